"""After the deadline (M12.6): the best constant on-demand size and market, or giving up, with its money and value."""

from dataclasses import replace

import numpy as np
import pytest
from make import world_run

from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.kernels.rules import Value
from slackwater.optimization.world.simulation import Readings, WorldMarkets, WorldTerms

#: A deadline of 10 slots of half an hour; the value is 0 after 5 more.
SLOT, DEADLINE = 1800.0, 18_000.0
NONE = Readings(times=np.array([0.0]), available=np.array([0]), price=np.array([1.0]))
TERMS = WorldTerms(
    rates=(0.0, 1.0, 2.0), workload=1.0, on_demand_usd=4.0, boot=120.0, restart=240.0, checkpoint=0.0
)


def end(run, usd, *, must_finish=False):
    return run.end(Value(usd, 10, 1.5), deadline=DEADLINE, slot=SLOT, must_finish=must_finish)


@pytest.mark.parametrize(
    ("usd", "must_finish", "seconds", "paid", "share"),
    [
        (100.0, False, 360.0 + 1800.0, 2 * 4 * 2160 / 3600, 1 - 2160 / 9000),  # 2: 76 - 4.80 beats 56 - 4.40
        (2.0, False, None, 0.0, 0.0),  # neither 1.12 nor 1.52 pays for it
        (2.0, True, 360.0 + 3600.0, 4 * 3960 / 3600, 1 - 3960 / 9000),
    ],
    ids=["the faster pays", "given up", "hard deadline"],
)
def test_a_job_that_is_not_done_ends_on_the_best_size(usd, must_finish, seconds, paid, share):
    found = end(world_run(TERMS, NONE), usd, must_finish=must_finish)
    assert found.finish == (None if seconds is None else pytest.approx(DEADLINE + seconds))
    assert (found.late_usd, found.paid_usd) == pytest.approx((paid, paid))
    assert found.value_usd == pytest.approx(usd * share)
    assert found.utility_usd == pytest.approx(usd * share - paid)


def test_a_job_that_is_done_in_time_has_its_value_and_pays_nothing_more():
    run = world_run(TERMS, NONE)
    run.decide(Allocation(1, 0))
    found = end(run, 100.0)
    assert (found.finish, found.value_usd, found.late_usd) == (pytest.approx(3960.0), 100.0, 0.0)
    assert found.paid_usd == pytest.approx(4 * 3960 / 3600)


def test_running_on_demand_needs_neither_boot_nor_restart():
    run = world_run(TERMS, NONE)
    run.advance(DEADLINE - 1000.0)
    run.decide(Allocation(1, 0))
    found = end(run, 0.1, must_finish=True)  # a second instance would boot and restart: 3.96 USD
    assert found.finish == pytest.approx(DEADLINE - 1000.0 + 360.0 + 3600.0)
    assert found.late_usd == pytest.approx(4 * 2960 / 3600)
    assert run.restarts == 1


def test_the_wait_for_on_demand_counts():
    found = end(world_run(replace(TERMS, on_demand_wait=600.0), NONE), 100.0)
    assert found.finish == pytest.approx(DEADLINE + 600.0 + 360.0 + 1800.0)
    assert found.late_usd == pytest.approx(2 * 4 * 2160 / 3600)


def test_where_nothing_is_sold_on_demand_even_a_hard_deadline_is_given_up():
    found = end(world_run(replace(TERMS, sold=False), NONE), 100.0, must_finish=True)
    assert (found.finish, found.paid_usd, found.value_usd) == (None, 0.0, 0.0)


@pytest.mark.parametrize(("move_usd", "market"), [(1.0, 1), (4.0, 0)])
def test_of_several_markets_the_best_ends_it_with_its_move_paid(move_usd, market):
    cheap = replace(TERMS, on_demand_usd=1.0)
    job = WorldMarkets(terms=(TERMS, cheap), transfer=0.0, move_usd=np.full((2, 2), move_usd), home=0)
    run = world_run(job, (NONE, NONE))
    found = end(run, 100.0)  # 4.80 at home, 1.20 and the move elsewhere
    assert (run.market, found.late_usd) == (market, pytest.approx(1.2 + move_usd if market else 4.8))


@pytest.mark.parametrize("seed", range(20))
def test_no_other_size_would_have_been_better(seed):
    """Any other constant size from the deadline on, simulated, has no more value less money."""
    rng = np.random.default_rng(seed)
    terms = replace(
        TERMS,
        rates=(0.0, *np.sort(rng.uniform(0.5, 4.0, 4))),
        workload=20.0,
        boot=float(rng.choice([0.0, 300.0])),
        restart=float(rng.choice([0.0, 900.0])),
    )
    seen = Readings(
        times=np.arange(0.0, 20_000.0, 600.0), available=rng.integers(0, 5, 34), price=np.full(34, 1.0)
    )
    run = world_run(terms, seen)
    for at in np.arange(0.0, DEADLINE, SLOT):
        run.advance(at)
        run.decide(Allocation(int(rng.integers(0, 2)), int(rng.integers(0, 3))))
    run.advance(DEADLINE)
    others = []
    for n in range(1, 5):
        other = run.copy()
        other.decide(Allocation(n, 0))
        other.advance(np.inf)
        late = (other.now - DEADLINE) / SLOT
        others.append(max(0.0, 60.0 * (1 - late / 5)) - other.paid_usd)
    assert end(run, 60.0).utility_usd == pytest.approx(
        max(*others, -run.paid_usd if run.finish is None else -1e9)
    )
