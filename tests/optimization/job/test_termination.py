"""Termination on on-demand instances, infeasible jobs, and the work tolerance (M2.4, M2.6, M2.7)."""

from dataclasses import replace

import numpy as np
import pytest
from make import make_job
from window_cases import random_problem, to_go

from slackwater.optimization.job.definition import (
    TOLERANCE,
    ToGo,
    check_job,
    infeasible_by,
    is_finished,
    on_demand_to_go,
    work_needed,
)
from slackwater.optimization.kernels.rules import slots_needed
from slackwater.optimization.window.plan import EndRule
from slackwater.warehouse.errors import JobError

JOB = make_job(workload=20, deadline_slots=6, n_min=2, n_max=5, mu_up=0.9, mu_down=0.5, value=60)


def ending(job=JOB, **state):
    return on_demand_to_go(job, slot=6, on_demand_usd=1.0, slot_hours=1.0, **state)


def test_takes_the_constant_size_worth_most():
    # 5.5 work left, no instances running: 2 slots with 3 (2.7 + 3), 4 or 5 instances; V(8) = 60 / 3 = 20.
    assert ending(done=14.5, n_previous=0) == ToGo(value_usd=20.0 - 6.0, n=3, slots=2)
    # With 3 already running the first slot is fully efficient; shrinking to 2 would make only 1 + 2 in two slots.
    assert ending(done=14.0, n_previous=3) == ToGo(value_usd=14.0, n=3, slots=2)


def test_gives_up_when_nothing_is_worth_it():
    assert ending(done=4.0, n_previous=0) == ToGo(value_usd=0.0, n=0, slots=0)
    assert ending(replace(JOB, value=1.0), done=19.0, n_previous=0) == ToGo(value_usd=0.0, n=0, slots=0)


def test_a_finished_job_is_worth_its_value():
    assert ending(done=20.0, n_previous=4) == ToGo(value_usd=60.0, n=0, slots=0)


def test_equals_stepping_slot_by_slot():
    rng = np.random.default_rng(41)
    for _ in range(300):
        case = random_problem(rng, w=2, n_max=5, end_rule=EndRule.TARGET)
        job, window, slot = case.job, case.window, int(rng.integers(0, case.job.deadline_slots + 1))
        told = on_demand_to_go(
            job,
            done=case.done,
            n_previous=case.n_previous,
            slot=slot,
            on_demand_usd=window.on_demand_usd,
            slot_hours=window.slot_hours,
        )
        if is_finished(case.done, job.workload):
            assert told.value_usd == job.completion_value(slot)
            continue
        stepped = to_go(job, case.done, case.n_previous, slot, window.on_demand_usd, window.slot_hours)
        assert told.value_usd == pytest.approx(stepped, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("rest", "first", "gain", "slots"),
    [(1.0, 2.0, 2.0, 1), (2.0, 2.0, 2.0, 1), (2.1, 2.0, 2.0, 2), (10.0, 0.0, 2.0, 6), (0.3, 0.1, 0.1, 3)],
)
def test_slots_needed(rest, first, gain, slots):
    assert slots_needed(rest - 1e-12, first, gain) == slots


def test_misses_by_slots():
    # 20 work: 4.5 + 5 + 5 + 5 + 0.5, so at least five slots.
    assert infeasible_by(JOB, slot_hours=1.0) == 0
    late = replace(JOB, workload=42.0)
    # 4.5 + 7 x 5 = 39.5 in eight slots, so nine are needed, and the value is already 0 at gamma d = 9.
    assert infeasible_by(late, slot_hours=1.0) == 1
    assert infeasible_by(replace(late, workload=60.0), slot_hours=1.0) == 5
    assert infeasible_by(JOB, slot_hours=0.25) > 0


def test_spot_needs_a_job_that_resumes():
    once = replace(JOB, resumable=False)
    check_job(JOB, uses_spot=True)
    check_job(once, uses_spot=False)
    with pytest.raises(JobError, match="resume"):
        check_job(once, uses_spot=True)


def test_rounding_does_not_leave_a_job_unfinished():
    done = sum([0.1] * 10)
    assert done < 1.0
    assert is_finished(done, 1.0)
    assert not is_finished(1.0 - 10 * TOLERANCE, 1.0)
    assert work_needed(1e12) < 1e12
