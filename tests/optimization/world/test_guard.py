"""The exact guard (M12.7): no job is late, whatever the markets do and whatever the policy wishes."""

from dataclasses import replace

import numpy as np
import pytest
from make import RestartByGroup, least_time, world_run

from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.world.simulation import Readings, WorldMarkets, WorldTerms

#: Reading intervals and slots in seconds.
READING, SLOT = 300.0, 1800.0


def market(rng, workload):
    """Return the terms of a random market."""
    n_min = int(rng.integers(1, 4))
    n_max = n_min + int(rng.integers(0, 5))
    sizes = np.arange(n_max + 1)
    speed = sizes.astype(float) if rng.random() < 0.5 else sizes / (0.2 * sizes + 0.8)
    kind = RestartByGroup if n_max % 2 else WorldTerms
    return kind(
        rates=tuple(np.where(sizes >= n_min, speed, 0.0)),
        workload=workload,
        on_demand_usd=float(rng.uniform(2.0, 6.0)),
        boot=float(rng.choice([0.0, 120.0, 400.0])),
        restart=float(rng.choice([0.0, 240.0, 2400.0])),
        checkpoint=float(rng.choice([0.0, 600.0, 3600.0])),
        notice_saves=bool(rng.random() < 0.2),
        on_demand_wait=float(rng.choice([0.0, 0.0, 900.0])),
        sold=True,
    )


def job(rng, markets):
    """Return a random job in some markets, and a deadline that on-demand alone meets with a random slack, often none."""
    workload = float(rng.uniform(0.5, 20.0))
    terms = [market(rng, workload) for _ in range(markets)]
    terms[1:] = [replace(one, sold=bool(rng.random() < 0.8)) for one in terms[1:]]
    places = WorldMarkets(
        terms=tuple(terms),
        transfer=float(rng.choice([0.0, 300.0, 3000.0])),
        move_usd=rng.uniform(0.0, 3.0, (markets, markets)),
        home=None if rng.random() < 0.3 else int(rng.integers(markets)),
    )
    slack = float(rng.choice([0.0, rng.uniform(0.0, 3600.0), rng.uniform(0.0, 40_000.0)]))
    return places, least_time(places) + slack


def hostile_readings(rng, n_max, until):
    """Return readings of which many fall on decisions or a second before or after, with all spot lost or back."""
    kind = rng.integers(3)
    grid = np.arange(0.0, until + SLOT, READING)
    if kind == 0:
        times = grid
    else:
        slots = np.arange(0.0, until + SLOT, SLOT)
        times = np.unique(np.concatenate([slots, slots + 1.0, slots[1:] - 1.0, rng.uniform(0.0, until, 20)]))
    available = rng.choice([0, 1, n_max, n_max + 2], len(times), p=[0.4, 0.1, 0.4, 0.1])
    return Readings(times=times, available=available, price=np.full(len(times), 1.0))


def wish(rng, run):
    """Return the wish of a hostile policy: nothing, all spot, a random mix, or the instances held; often elsewhere."""
    to = run.market if rng.random() < 0.6 else int(rng.integers(len(run.markets.terms)))
    terms = run.markets.terms[to]
    kind = rng.integers(5)
    if kind == 0:
        return to, Allocation(0, 0)
    if kind == 1:
        return to, Allocation(0, terms.n_max)
    if kind == 2:
        held = run.held
        return run.market, held if run.terms.rates[held.total] > 0.0 else Allocation(0, 0)
    on_demand = int(rng.integers(0, terms.n_max + 1)) if terms.sold else 0
    spot = int(rng.integers(0, terms.n_max + 1 - on_demand))
    return to, Allocation(on_demand, spot) if terms.rates[on_demand + spot] > 0.0 else Allocation(0, 0)


def new_run(rng, markets):
    """Return a hostile run at its start, and its deadline."""
    places, deadline = job(rng, markets)
    seen = [hostile_readings(rng, one.n_max, deadline) for one in places.terms]
    return world_run(places, seen), deadline


def finish_of(rng):
    """Return the finish of a hostile run under the guard, its deadline, and its moves."""
    run, deadline = new_run(rng, int(rng.integers(1, 4)))
    reacts = rng.random() < 0.5
    now = 0.0
    while not run.is_finished and now < deadline:
        later = now + (READING if reacts else SLOT)
        to, target = run.guarded_in(*wish(rng, run), next_at=later, deadline=deadline)
        run.decide(target, to)
        run.advance(later)
        now = later
    run.advance(deadline)
    return run.finish, deadline, run.moves


def late_jobs(seed, jobs):
    rng = np.random.default_rng(seed)
    ends = [finish_of(rng) for _ in range(jobs)]
    assert sum(moves for *_, moves in ends) > jobs / 2
    return [end for end in ends if end[0] is None or end[0] > end[1] + 1e-3]


def test_no_job_is_late_in_hostile_markets():
    assert late_jobs(1, 600) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_no_job_of_100_000_is_late_in_hostile_markets(seed):
    assert late_jobs(100 + seed, 10_000) == []


@pytest.mark.parametrize("markets", [1, 3])
def test_without_the_guard_jobs_are_late(markets):
    """The markets of the tests above are hostile: most jobs that follow the wishes alone are late."""
    rng, late = np.random.default_rng(1), 0
    for _ in range(300):
        run, deadline = new_run(rng, markets)
        for now in np.arange(0.0, deadline, SLOT):
            run.advance(now)
            to, target = wish(rng, run)
            run.decide(target, to)
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
    run = world_run(terms, spot)
    wished = Allocation(0, 4)
    assert run.guarded_in(0, wished, next_at=SLOT, deadline=least_time(terms) + SLOT)[1] == wished
    assert run.guarded_in(0, wished, next_at=SLOT, deadline=least_time(terms) + SLOT - 60.0)[1] == Allocation(
        1, 0
    )
    assert run.guarded_in(0, wished, next_at=SLOT, deadline=least_time(terms))[1] == Allocation(4, 0)
    assert run.guarded_in(0, Allocation(0, 0), next_at=SLOT, deadline=4700.0)[1] == Allocation(3, 0)


def two_markets(home, usd):
    """Return the same fast job in a market with expensive on-demand and in a cheap one, 600 s of transfer apart."""
    terms = WorldTerms(
        rates=(0.0, 1.0, 2.0), workload=4.0, on_demand_usd=4.0, boot=120.0, restart=240.0, checkpoint=0.0
    )
    return WorldMarkets(
        terms=(terms, replace(terms, on_demand_usd=1.0)),
        transfer=600.0,
        move_usd=np.full((2, 2), usd),
        home=home,
    )


@pytest.mark.parametrize(
    ("usd", "slack", "expected"),
    [
        (1.0, 700.0, (1, Allocation(2, 0))),  # 4 instance-hours are 12 USD cheaper there, less the move
        (20.0, 700.0, (0, Allocation(2, 0))),  # the move costs more
        (1.0, 500.0, (0, Allocation(2, 0))),  # no time for the transfer
    ],
)
def test_an_idle_job_out_of_slack_goes_where_on_demand_finishes_it_at_the_least_cost(usd, slack, expected):
    job = two_markets(0, usd)
    none = Readings(times=np.array([0.0]), available=np.array([0]), price=np.array([1.0]))
    run = world_run(job, (none, none))
    deadline = least_time(job.terms[0]) + slack
    assert run.guarded_in(0, Allocation(0, 0), next_at=SLOT, deadline=deadline) == expected
    run.decide(expected[1], expected[0])
    run.advance(deadline)
    assert run.is_finished


def test_where_nothing_is_sold_on_demand_the_wish_is_taken():
    terms = WorldTerms(
        rates=(0.0, 1.0), workload=9.0, on_demand_usd=4.0, boot=0.0, restart=0.0, checkpoint=0.0, sold=False
    )
    none = Readings(times=np.array([0.0]), available=np.array([0]), price=np.array([1.0]))
    wished = Allocation(0, 1)
    assert world_run(terms, none).guarded_in(0, wished, next_at=SLOT, deadline=SLOT)[1] == wished
