"""The exact guard (M12.7): no job is late, whatever the market does and whatever the policy wishes."""

import numpy as np
import pytest

from slackwater.optimization.window.plan import Allocation
from slackwater.optimization.world.simulation import Readings, WorldRun, WorldTerms

#: Reading intervals and slots in seconds.
READING, SLOT = 300.0, 1800.0


def job(rng):
    """Return the terms of a random job, and a deadline that on-demand alone meets with a random slack, often none."""
    n_min = int(rng.integers(1, 4))
    n_max = n_min + int(rng.integers(0, 5))
    sizes = np.arange(n_max + 1)
    speed = sizes.astype(float) if rng.random() < 0.5 else sizes / (0.2 * sizes + 0.8)
    terms = WorldTerms(
        rates=tuple(np.where(sizes >= n_min, speed, 0.0)),
        workload=float(rng.uniform(0.5, 20.0)),
        on_demand_usd=4.0,
        boot=float(rng.choice([0.0, 120.0, 400.0])),
        restart=float(rng.choice([0.0, 240.0, 2400.0])),
        checkpoint=float(rng.choice([0.0, 600.0, 3600.0])),
        notice_saves=bool(rng.random() < 0.2),
        on_demand_wait=float(rng.choice([0.0, 0.0, 900.0])),
    )
    slack = float(rng.choice([0.0, rng.uniform(0.0, 3600.0), rng.uniform(0.0, 40_000.0)]))
    return terms, terms.least_time + slack


def hostile_readings(rng, terms, until):
    """Return readings of which many fall on decisions or a second before or after, with all spot lost or back."""
    kind = rng.integers(3)
    grid = np.arange(0.0, until + SLOT, READING)
    if kind == 0:
        times = grid
    else:
        slots = np.arange(0.0, until + SLOT, SLOT)
        times = np.unique(np.concatenate([slots, slots + 1.0, slots[1:] - 1.0, rng.uniform(0.0, until, 20)]))
    available = rng.choice([0, 1, terms.n_max, terms.n_max + 2], len(times), p=[0.4, 0.1, 0.4, 0.1])
    return Readings(times=times, available=available, price=np.full(len(times), 1.0))


def wish(rng, terms, run):
    """Return the wish of a hostile policy: nothing, all spot, a random mix, or the instances held."""
    kind = rng.integers(5)
    if kind == 0:
        return Allocation(0, 0)
    if kind == 1:
        return Allocation(0, terms.n_max)
    if kind == 2:
        held = run.held
        return held if terms.rates[held.total] > 0.0 else Allocation(0, 0)
    on_demand = int(rng.integers(0, terms.n_max + 1))
    spot = int(rng.integers(0, terms.n_max + 1 - on_demand))
    return Allocation(on_demand, spot) if terms.rates[on_demand + spot] > 0.0 else Allocation(0, 0)


def finish_of(rng):
    """Return the finish of a hostile run under the guard, and its deadline."""
    terms, deadline = job(rng)
    run = WorldRun(terms, hostile_readings(rng, terms, deadline))
    reacts = rng.random() < 0.5
    now = 0.0
    while not run.is_finished and now < deadline:
        later = now + (READING if reacts else SLOT)
        run.decide(run.guarded(wish(rng, terms, run), next_at=later, deadline=deadline))
        run.advance(later)
        now = later
    run.advance(deadline)
    return run.finish, deadline


def late_jobs(seed, jobs):
    rng = np.random.default_rng(seed)
    ends = [finish_of(rng) for _ in range(jobs)]
    return [(finish, deadline) for finish, deadline in ends if finish is None or finish > deadline + 1e-3]


def test_no_job_is_late_in_a_hostile_market():
    assert late_jobs(1, 2_000) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_no_job_of_100_000_is_late_in_a_hostile_market(seed):
    assert late_jobs(100 + seed, 10_000) == []


def test_without_the_guard_jobs_are_late():
    """The markets of the tests above are hostile: most jobs that follow the wishes alone are late."""
    rng, late = np.random.default_rng(1), 0
    for _ in range(300):
        terms, deadline = job(rng)
        run = WorldRun(terms, hostile_readings(rng, terms, deadline))
        for now in np.arange(0.0, deadline, SLOT):
            run.advance(now)
            run.decide(wish(rng, terms, run))
        run.advance(deadline)
        late += not run.is_finished
    assert late > 150


def test_a_safe_wish_is_left_alone_and_an_unsafe_one_gets_the_least_on_demand():
    terms = WorldTerms(
        rates=(0.0, 1.0, 2.0, 3.0, 4.0),
        workload=4.0,
        on_demand_usd=4.0,
        boot=120.0,
        restart=240.0,
        checkpoint=0.0,
    )
    spot = Readings(times=np.array([0.0]), available=np.array([4]), price=np.array([1.0]))
    run = WorldRun(terms, spot)
    wished = Allocation(0, 4)
    assert run.guarded(wished, next_at=SLOT, deadline=terms.least_time + SLOT) == wished
    assert run.guarded(wished, next_at=SLOT, deadline=terms.least_time + SLOT - 60.0) == Allocation(1, 0)
    assert run.guarded(wished, next_at=SLOT, deadline=terms.least_time) == Allocation(4, 0)
    assert run.guarded(Allocation(0, 0), next_at=SLOT, deadline=4700.0) == Allocation(3, 0)
