"""Work units, overheads and the must-finish value."""

from dataclasses import replace

import numpy as np
import pytest

from optimization.job.definition import Amdahl, Job, Linear, Power, Table, on_demand_to_go
from optimization.job.request import VALUE_MARGIN, mu_from_overhead, must_finish_value, workload_units
from warehouse.errors import JobError


def test_overhead_becomes_a_share_of_the_slot():
    assert mu_from_overhead(0.0, 0.5) == 1.0
    assert mu_from_overhead(0.1, 0.5) == pytest.approx(0.8)
    assert mu_from_overhead(0.5, 0.5) == 0.0


def test_overhead_above_a_slot_is_a_debt_paid_back_when_the_change_ends():
    mu = mu_from_overhead(0.6, 0.25)
    assert mu == pytest.approx(-1.4)
    # 2.4 slots of change: after k slots on one instance exactly k - 2.4 slots of work are done.
    for slots in range(1, 6):
        assert mu + (slots - 1) == pytest.approx(slots - 0.6 / 0.25)


@pytest.mark.parametrize("overhead", [-0.1, float("inf"), float("nan")])
def test_an_overhead_that_is_none_is_refused(overhead):
    with pytest.raises(JobError, match="finite overhead"):
        mu_from_overhead(overhead, 0.5)


def test_units_of_work():
    tokens = Power(exponent=0.9, scale=2e6)
    assert workload_units(1e9, "tokens", tokens, 0.5) == 1e9
    assert workload_units(48, "gpu_hours", tokens, 0.5) == pytest.approx(48 * 2e6)
    assert workload_units(48, "slots", tokens, 0.25) == pytest.approx(48 * 2e6 * 0.25)
    with pytest.raises(JobError, match="gpu_hours"):
        workload_units(48, "days", tokens, 0.25)
    with pytest.raises(JobError, match="positive"):
        workload_units(float("nan"), "tokens", tokens, 0.25)


JOBS = [
    Job(name="a", workload=30, deadline_slots=6, n_min=1, n_max=8, throughput=Linear(), mu_up=0.6, mu_down=0.9, value=0),
    Job(name="b", workload=90, deadline_slots=10, n_min=2, n_max=5, throughput=Power(exponent=0.7), mu_up=0.9, value=0),
    Job(name="c", workload=7, deadline_slots=9, n_min=1, n_max=1, throughput=Linear(), gamma=1.25, value=0),
    Job(name="d", workload=40, deadline_slots=7, n_min=1, n_max=6, throughput=Amdahl(parallel=0.9), gamma=2.0, value=0),
    Job(name="e", workload=9, deadline_slots=5, n_min=1, n_max=3, throughput=Table(rates=(1.0, 2.5, 2.0)), value=0),
    Job(name="g", workload=9, deadline_slots=12, n_min=1, n_max=3, throughput=Linear(), mu_up=-1.5, mu_down=-0.2, value=0),
    Job(name="h", workload=4, deadline_slots=8, n_min=1, n_max=2, throughput=Linear(), mu_up=-4.0, mu_down=1.0, value=0),
    Job(name="f", workload=3, deadline_slots=4, n_min=1, n_max=3, throughput=Linear(), gamma=1.05, value=0),
]  # fmt: skip


def most_owed(job: Job) -> float:
    """The most progress one slot can cost: a change to n_max that lasts longer than the slot."""
    return max(0.0, -min(job.mu_up * job.n_max, job.mu_down * (job.n_max - 1))) * 0.5


def gives_up(job: Job, done: float, before: int, slot: int) -> bool:
    to_go = on_demand_to_go(job, done=done, n_previous=before, slot=slot, on_demand_usd=2.0, slot_hours=0.5)
    return to_go.n == 0


def can_finish(job: Job, done: float, before: int, slot: int) -> bool:
    """Some constant n finishes in whole slots before gamma d: stepped slot by slot, unlike the code under test."""
    for n in range(job.n_min, job.n_max + 1):
        z, held, t = done, before, slot
        while t + 1 < job.late_limit:
            z += job.efficiency(n, held) * job.throughput.rate(n) * 0.5
            held, t = n, t + 1
            if z >= job.workload - 1e-9:
                return True
    return False


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_must_finish_never_gives_up_while_it_can_finish(job):
    job = replace(job, value=must_finish_value(job, on_demand_usd=2.0, slot_hours=0.5), must_finish=True)
    rng = np.random.default_rng(7)
    seen = 0
    owed = most_owed(job)
    for done in np.concatenate([[-2 * owed, -owed, 0.0], rng.uniform(-owed, job.workload * 0.999, 40)]):
        for before in range(job.n_max + 1):
            for slot in range(job.deadline_slots + 1):
                if done >= -slot * owed and can_finish(job, done, before, slot):
                    seen += 1
                    assert not gives_up(job, done, before, slot), (done, before, slot)
    assert seen > 0


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_must_finish_is_the_least_such_value(job):
    value = must_finish_value(job, on_demand_usd=2.0, slot_hours=0.5) / (1 + VALUE_MARGIN)
    cheap = replace(job, value=0.999 * value)
    gain = [job.throughput.rate(n) * 0.5 for n in range(job.n_max + 1)]
    last = int(np.ceil(job.late_limit)) - 1
    given_up = False
    for slot in range(job.deadline_slots + 1):
        for before in range(job.n_max + 1):
            ks = last - slot
            most = max(
                (job.efficiency(n, before) + ks - 1) * gain[n] for n in range(job.n_min, job.n_max + 1)
            )
            rest = min(job.workload + slot * most_owed(job), most)
            done = job.workload - rest
            if ks >= 1 and can_finish(cheap, done, before, slot):
                given_up |= gives_up(cheap, done, before, slot)
    assert given_up


def test_must_finish_scales_with_the_price():
    one = must_finish_value(JOBS[0], on_demand_usd=1.0, slot_hours=1.0)
    assert must_finish_value(JOBS[0], on_demand_usd=3.0, slot_hours=1.0) == pytest.approx(3 * one)
