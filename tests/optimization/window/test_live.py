"""Programs of live decisions: exact plans, audited and recorded (M3.5)."""

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_window

from slackwater.optimization.job.definition import Linear, Progress
from slackwater.optimization.window import twin
from slackwater.optimization.window.plan import EndRule, HorizonProblem, PlanStatus
from slackwater.optimization.window.twin import AuditedSearch, plan, solve_window
from slackwater.warehouse.errors import AuditError


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


def test_plans_are_audited_recorded_and_told():
    search = AuditedSearch()
    assert search.summary() == ""
    plans = [search(_problem()), search(_problem(EndRule.TARGET))]
    assert search.plans == plans == [solve_window(_problem()), solve_window(_problem(EndRule.TARGET))]
    assert search.summary() == "exact; exact"


def test_a_wrong_plan_is_an_error_and_a_search_that_ends_early_says_so(monkeypatch):
    right = solve_window(_problem())
    monkeypatch.setattr(twin, "solve_window", lambda problem: replace(right, cost_usd=right.cost_usd + 1.0))
    with pytest.raises(AuditError, match="cost"):
        AuditedSearch()(_problem())
    early = replace(right, status=PlanStatus.TIME_LIMIT, bound=1.001 * right.objective, gap=1e-3)
    monkeypatch.setattr(twin, "solve_window", lambda problem: early)
    search = AuditedSearch()
    assert search(_problem()) == early
    assert search.summary() == "best plan found, gap 1.0e-03"


def test_a_plan_over_a_window_is_cut_at_the_deadline():
    job = replace(_problem().job, deadline_slots=3)
    window = make_window(np.full(5, 0.4), np.full(5, 16), slot_hours=0.5)
    assert len(plan(job, window).allocations) == 3
    assert len(plan(job, window, slot=2, progress=Progress(done=50.0)).allocations) == 1
