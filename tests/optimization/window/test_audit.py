"""Every check of the audit passes honest plans and outcomes and fails on a tampered version (M3.5)."""

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_window
from window_cases import programs

from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.window.audit import audit_plan
from slackwater.optimization.window.plan import EndRule, HorizonProblem, Outcome, PlanStatus
from slackwater.optimization.window.twin import solve_window
from slackwater.studies.audit import audit_outcome
from slackwater.warehouse.errors import AuditError

JOB = make_job(workload=20, deadline_slots=6, n_min=2, n_max=5, mu_up=0.9, mu_down=0.95, value=60)
WINDOW = make_window(np.array([0.3, 0.4, 0.9, 0.5, 1.4, 0.2]), np.array([3, 1, 5, 0, 5, 2]))


def problem(end_rule=EndRule.ON_DEMAND_TO_GO, **changes):
    made = HorizonProblem(job=JOB, slot=1, done=4.0, n_previous=2, window=WINDOW.cut(1, 5), end_rule=end_rule)
    return replace(made, **changes)


def swap(plan, slot, allocation):
    held = list(plan.allocations)
    held[slot] = allocation
    return replace(plan, allocations=tuple(held))


@pytest.mark.parametrize("end_rule", list(EndRule))
def test_honest_plans_pass(end_rule):
    for case in programs(60, seed=31, end_rule=end_rule, w=5, n_max=5):
        audit_plan(case, solve_window(case))


PLAN_TAMPERING = {
    "one for each": lambda p: replace(p, allocations=p.allocations[:-1]),
    "spot within": lambda p: swap(p, 2, Allocation(0, 3)),
    "on-demand >= 0": lambda p: swap(p, 1, Allocation(-1, 4)),
    "whole numbers": lambda p: swap(p, 0, Allocation(2.0, 1)),
    "0 or 2..5": lambda p: swap(p, 0, Allocation(0, 1)),
    "6 instances": lambda p: swap(p, 0, Allocation(5, 1)),
    "on spot": lambda p: swap(p, 3, Allocation(0, 4)),
    "cost": lambda p: replace(p, cost_usd=p.cost_usd * 1.00001),
    "progress": lambda p: replace(p, end_progress=p.end_progress - 1e-4),
    "objective": lambda p: replace(p, objective=p.objective + 1e-3, bound=p.bound + 1e-3),
    "does not pass": lambda p: replace(p, bound=p.bound - 1),
    "agree within the stated gap": lambda p: replace(p, bound=p.bound + 1),
    "expected none": lambda p: replace(p, status=PlanStatus.NO_INCUMBENT),
}


@pytest.mark.parametrize("words", PLAN_TAMPERING)
def test_a_tampered_plan_is_refused(words):
    case = problem()
    plan = solve_window(case)
    audit_plan(case, plan)
    with pytest.raises(AuditError, match=words):
        audit_plan(case, PLAN_TAMPERING[words](plan))


def test_a_cost_below_its_bound_is_refused():
    case = problem(EndRule.TARGET)
    plan = solve_window(case)
    audit_plan(case, plan)
    with pytest.raises(AuditError, match="does not pass"):
        audit_plan(case, replace(plan, bound=plan.bound + 1))


def test_capped_progress_is_what_the_target_rule_states():
    case = problem(EndRule.TARGET)
    plan = solve_window(case)
    with pytest.raises(AuditError, match="progress"):
        audit_plan(case, replace(plan, end_progress=plan.end_progress + 0.1))


def test_holding_after_the_finish_is_refused():
    case = problem(done=19.0)
    plan = solve_window(case)
    late = swap(plan, 3, Allocation(2, 0))
    late = replace(late, cost_usd=plan.cost_usd + 2, objective=plan.objective - 2, bound=plan.bound - 2)
    with pytest.raises(AuditError, match="after finishing"):
        audit_plan(case, late)


def test_spot_for_a_job_that_cannot_resume_is_refused():
    plan = solve_window(problem())
    assert any(a.spot for a in plan.allocations)
    with pytest.raises(AuditError, match="resume"):
        audit_plan(problem(job=replace(JOB, resumable=False)), plan)


def test_a_plan_without_an_answer_passes_when_empty():
    nan = float("nan")
    plan = replace(
        solve_window(problem()), allocations=(), status=PlanStatus.NO_INCUMBENT, objective=nan, cost_usd=nan
    )
    audit_plan(problem(), plan)


# By hand: 3 spot at 0.3 make 0.9 x 3; then 1 spot + 4 on-demand 0.9 x 5; then five spot twice a full 5, ...
FINISHED = Outcome(
    policy="hand",
    job="j",
    allocations=(Allocation(0, 3), Allocation(4, 1), Allocation(0, 5), Allocation(5, 0), Allocation(3, 0)),
    progress=20.0,
    cost_usd=0.9 + 4.4 + 4.5 + 5.0 + 3.0,
    termination_cost_usd=0.0,
    finished_slot=5,
    finish_slots=5,
    value_usd=60.0,
    utility_usd=60.0 - 17.8,
)
# 0.9 x 3 + 0.95 x 2 = 4.6 by d, last holding nothing; 15.4 left: 5 on-demand make 4.5, then 5 a slot: 4 slots, but
# V(10) = 0; so the job is given up (gamma d = 9).
GIVEN_UP = Outcome(
    policy="hand",
    job="j",
    allocations=(Allocation(0, 3), Allocation(1, 1), *(Allocation(0, 0),) * 4),
    progress=4.6,
    cost_usd=0.9 + 1.4,
    termination_cost_usd=0.0,
    finished_slot=None,
    finish_slots=None,
    value_usd=0.0,
    utility_usd=-2.3,
)
# 0.9 x 5 + 5 + 5 = 14.5 by slot 3, then nothing: 5.5 left at d; 5 instances take 2 slots (V(8) = 20 > 10) as do 4 and 3
# (2.7 + 3 = 5.7): 3 instances for 2 slots cost 6.
LATE = Outcome(
    policy="hand",
    job="j",
    allocations=(Allocation(2, 3), Allocation(4, 1), Allocation(0, 5), *(Allocation(0, 0),) * 3),
    progress=14.5,
    cost_usd=2.9 + 4.4 + 4.5,
    termination_cost_usd=6.0,
    finished_slot=None,
    finish_slots=8,
    value_usd=20.0,
    utility_usd=20.0 - 6.0 - 11.8,
)


@pytest.mark.parametrize("outcome", [FINISHED, GIVEN_UP, LATE])
def test_honest_outcomes_pass(outcome):
    audit_outcome(JOB, WINDOW, outcome)


OUTCOME_TAMPERING = [
    ("no more", FINISHED, {"allocations": (*FINISHED.allocations, Allocation(0, 0), Allocation(0, 0))}),
    ("spot within", FINISHED, {"allocations": (Allocation(0, 4), *FINISHED.allocations[1:])}),
    ("finished_slot", FINISHED, {"finished_slot": 4}),
    ("finished_slot", GIVEN_UP, {"finished_slot": 6}),
    ("slots", FINISHED, {"allocations": (*FINISHED.allocations, Allocation(0, 0))}),
    ("slots", GIVEN_UP, {"allocations": GIVEN_UP.allocations[:-1]}),
    ("cost", FINISHED, {"cost_usd": 17.0}),
    ("progress", GIVEN_UP, {"progress": 5.0}),
    ("finish_slots", LATE, {"finish_slots": 7}),
    ("finish_slots", GIVEN_UP, {"finish_slots": 9}),
    ("termination cost", LATE, {"termination_cost_usd": 5.0}),
    ("value", LATE, {"value_usd": 60.0}),
    ("utility", LATE, {"utility_usd": 8.2}),
]


@pytest.mark.parametrize(("words", "outcome", "change"), OUTCOME_TAMPERING)
def test_a_tampered_outcome_is_refused(words, outcome, change):
    with pytest.raises(AuditError, match=words):
        audit_outcome(JOB, WINDOW, replace(outcome, **change))


def test_an_outcome_with_spot_for_a_job_that_cannot_resume_is_refused():
    with pytest.raises(AuditError, match="resume"):
        audit_outcome(replace(JOB, resumable=False), WINDOW, FINISHED)
