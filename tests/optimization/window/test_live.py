"""Live solves: the MILP's plan if proved optimal in time, otherwise the exact label solver's plan."""

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_window
from window_cases import flat_problem

from slackwater.optimization.job.definition import Linear
from slackwater.optimization.window import solver as live
from slackwater.optimization.window.audit import audit_plan
from slackwater.optimization.window.plan import EndRule, HorizonProblem, PlanStatus, worth
from slackwater.optimization.window.solver import LiveSolver
from slackwater.optimization.window.twin import solve_window


def _problem(end_rule=EndRule.ON_DEMAND_TO_GO) -> HorizonProblem:
    rng = np.random.default_rng(5)
    window = make_window(rng.uniform(0.2, 0.9, 4), rng.integers(0, 17, 4), slot_hours=0.5)
    job = make_job(
        workload=60,
        deadline_slots=20,
        n_max=16,
        throughput=Linear(beta=0.5),
        mu_up=0.8,
        mu_down=0.9,
        value=80,
    )
    return HorizonProblem(job=job, slot=4, done=9.3, n_previous=3, window=window, end_rule=end_rule)


def test_the_milp_answers_and_agrees_with_the_twin():
    solver = LiveSolver(seconds=30)
    plan = solver(_problem())
    assert plan.objective == pytest.approx(solve_window(_problem()).objective, abs=1e-6)
    assert "optimal" in solver.summary()


def test_without_time_the_twin_answers_and_the_note_says_so():
    solver = LiveSolver(seconds=1e-6)
    plan = solver(_problem())
    assert plan.objective == pytest.approx(solve_window(_problem()).objective)
    assert "twin instead" in solver.summary()
    assert solver.summary().count(" s") == 0


@pytest.mark.parametrize("end_rule", [EndRule.ON_DEMAND_TO_GO, EndRule.TARGET])
def test_a_solver_that_contradicts_the_twin_is_a_status_and_the_better_plan_is_taken(end_rule, monkeypatch):
    case, twin = _problem(end_rule), solve_window(_problem(end_rule))

    def wrong(problem, limits):
        """Return a consistent plan of idle slots that is marked optimal and is not."""
        idle = worth(problem, [0] * len(problem.window))
        return replace(
            twin, allocations=idle.allocations, cost_usd=0.0, objective=idle.objective, bound=idle.objective,
            end_progress=idle.end_progress,
        )  # fmt: skip

    audit_plan(case, wrong(case, None))
    monkeypatch.setattr(live, "plan_problem", wrong)
    solver = LiveSolver(seconds=30)
    plan = solver(case)
    assert plan.status is PlanStatus.DIFFERS
    assert plan.allocations == twin.allocations
    assert plan.objective == twin.objective
    assert plan.gap > 0
    assert "solver_differs_from_twin" in solver.summary()
    assert f"{twin.objective:.6g}" in solver.summary()


@pytest.mark.parametrize("end_rule", [EndRule.ON_DEMAND_TO_GO, EndRule.TARGET])
def test_a_twin_that_is_wrong_is_found_out_as_well(end_rule, monkeypatch):
    case = _problem(end_rule)
    right = solve_window(case)
    idle = worth(case, [0] * len(case.window))
    wrong = replace(
        right, allocations=idle.allocations, cost_usd=0.0, objective=idle.objective, bound=idle.objective,
        end_progress=idle.end_progress,
    )  # fmt: skip
    monkeypatch.setattr(live, "solve_window", lambda problem: wrong)
    plan = LiveSolver(seconds=30)(case)
    assert plan.status is PlanStatus.DIFFERS
    assert plan.objective == pytest.approx(right.objective, rel=1e-6)
    assert plan.allocations != idle.allocations


def test_live_plans_of_a_flat_future_are_the_best_ones():
    """Where later slots add no value the best plan is often to run nothing: HiGHS once ran instances at "gap 0"."""
    rng = np.random.default_rng(0)
    for _ in range(15):
        case, solver = flat_problem(rng), LiveSolver(seconds=30)
        assert solver(case).objective == pytest.approx(
            solve_window(case).objective, abs=1e-6 * (1 + case.job.value)
        )
        assert "differs" not in solver.summary()


def test_live_plans_settle_ties_as_replays_do():
    """Flat prices and no spot: HiGHS is indifferent about when to buy, so the plan is that of the label solver."""
    case = replace(_problem(), window=make_window(0.4, np.zeros(3, int), slot_hours=0.5))
    assert LiveSolver(seconds=30)(case).allocations == solve_window(case).allocations
