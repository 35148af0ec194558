"""The horizon program and the hindsight bound on cases with answers enumerated outside this project."""

import json
from pathlib import Path

import pytest
from make import make_job, make_window

from slackwater.optimization.job.definition import Linear
from slackwater.optimization.replay.score import hindsight
from slackwater.optimization.window.audit import audit_plan
from slackwater.optimization.window.plan import EndRule, HorizonProblem, PlanStatus
from slackwater.optimization.window.solver import plan_problem
from slackwater.optimization.window.twin import solve_window

HERE = Path(__file__).parent
WINDOWS = json.loads((HERE / "windows.json").read_text())
HINDSIGHT = json.loads((HERE / "hindsight.json").read_text())


def job_of(case):
    told = dict(case["job"])
    market = {"on_demand_usd": told.pop("on_demand_price"), "slot_hours": told.pop("slot_hours")}
    throughput = Linear(alpha=told.pop("alpha"), beta=told.pop("beta"))
    return make_job(name="golden", throughput=throughput, **told), make_window(
        case["price"], case["available"], **market
    )


@pytest.mark.parametrize("end_rule", [EndRule.TARGET, EndRule.ON_DEMAND_TO_GO])
@pytest.mark.parametrize(
    ("solve", "every"), [(solve_window, 1), (plan_problem, 8), pytest.param(plan_problem, 1, marks=pytest.mark.slow)]
)  # fmt: skip
def test_windows(solve, every, end_rule):
    assert len(WINDOWS) == 80
    for number, case in list(enumerate(WINDOWS))[::every]:
        job, window = job_of(case)
        problem = HorizonProblem(
            job=job,
            slot=case["slot"],
            done=case["progress"],
            n_previous=case["n_previous"],
            window=window,
            end_rule=end_rule,
        )
        plan, expected = solve(problem), case["expect"][end_rule.value]
        assert plan.status is PlanStatus.OPTIMAL
        audit_plan(problem, plan)
        if end_rule is EndRule.TARGET:
            assert plan.end_progress == pytest.approx(expected["progress"], abs=1e-6), number
            assert plan.cost_usd == pytest.approx(expected["cost"], abs=1e-6), number
        else:
            assert plan.objective == pytest.approx(expected["objective"], abs=1e-6), number


def test_hindsight():
    assert len(HINDSIGHT) == 40
    for number, case in enumerate(HINDSIGHT):
        bracket = hindsight(*job_of(case))
        assert bracket.high <= bracket.low
        assert bracket.low == pytest.approx(case["expect"]["utility"], abs=1e-6), number
