"""Renting on a market: effective prices, a stream computed by hand, consistent accounts, and no look-ahead (M8.6)."""

import math

import numpy as np
import pytest
from make import make_record, make_window

from slackwater.optimization.renting.budget import JobType
from slackwater.optimization.renting.price import (
    PricedDelay,
    PriceOutlook,
    affordable,
    effective_price,
    loss_rate,
)
from slackwater.optimization.renting.simulation import Stream, job_stream
from slackwater.optimization.renting.speedup import AmdahlSpeedup, Exponential, PowerSpeedup
from slackwater.studies.renting_market import (
    Arrival,
    DualPrice,
    EffectiveRenter,
    FixedRenter,
    MultiplierRenter,
    Outlooks,
    PlanRenter,
    Renter,
    Rules,
    SpendingPlan,
    covered_rental,
    rent_on_market,
)
from slackwater.warehouse.errors import SettingsError

RULES = Rules(widths=np.arange(1, 9), restart_hours=0.1)
TYPES = [
    JobType(
        name="a", rate_per_hour=0.5, mean_hours=4.0, speedup=AmdahlSpeedup(parallel=0.85, most=8.0),
        delay=PricedDelay(price=2.0, in_usd=True),
    ),
    JobType(
        name="b", rate_per_hour=0.3, mean_hours=6.0, speedup=PowerSpeedup(exponent=0.7, most=8.0),
        delay=PricedDelay(price=1.0, in_usd=True),
    ),
]  # fmt: skip
SLOTS = 300


def outlook(count, price=1.0, losses=0.0):
    return PriceOutlook(
        count=np.atleast_2d(np.array(count, dtype=float)), weight=np.full((1, len(count)), 1 / len(count)),
        price=np.array([price]), on_demand_usd=4.0, loss_rate=losses,
    )  # fmt: skip


def market(seed=1):
    rng = np.random.default_rng(seed)
    moves = rng.random(SLOTS) < 0.1
    count = rng.integers(0, 13, SLOTS)[np.maximum.accumulate(np.where(moves, np.arange(SLOTS), 0))]
    price = 0.3 + 0.2 * np.sin(np.arange(SLOTS) / 20) + 0.05 * rng.random(SLOTS)
    return price, count.astype(float)


def outlooks(price, count):
    record = make_record(price, count, first=0, slot_hours=0.5)
    return Outlooks(record=record, on_demand_usd=1.0, capacity=12, fleet=6.0, horizon=12)


def stream(seed=3, hours=120.0):
    return job_stream(TYPES, hours=hours, sizes=Exponential(), rng=np.random.default_rng(seed))


def played(renter, price, count, jobs=None, looks=None):
    window = make_window(price, count, slot_hours=0.5)
    looks = looks or outlooks(price, count)
    return rent_on_market(TYPES, jobs or stream(), window, renter, outlook=looks.at, rules=RULES)


def test_effective_price_by_hand():
    """Counts 0 or 8 with equal probability: half of 4 GPUs are on spot; one loss in 5 hours at 6 minutes adds 1 % of time."""
    found = effective_price(outlook([0, 8], losses=0.2), 4.0, overhead_hours=0.1)
    assert found.spot_share == pytest.approx(0.5)
    assert found.paid_usd == pytest.approx(0.5 * 1.0 + 0.5 * 4.0)
    assert found.lost == pytest.approx(0.5 * 0.2 * 0.1)
    assert found.usd_per_gpu_hour == pytest.approx(2.5 * 1.01)
    assert effective_price(outlook([0, 8]), 16.0, overhead_hours=0.1).spot_share == pytest.approx(0.25)
    none = effective_price(outlook([0]), 4.0, overhead_hours=0.1)
    assert none.usd_per_gpu_hour == 4.0
    assert math.isnan(none.spot_usd)


def test_a_budget_holds_one_fleet():
    looks = outlook([0, 2, 5, 9, 16])
    sizes = [affordable(looks, usd, overhead_hours=0.1) for usd in (2.0, 8.0, 20.0, 60.0)]
    for usd, one in zip((2.0, 8.0, 20.0, 60.0), sizes, strict=True):
        assert one.gpus * one.paid_usd == pytest.approx(usd)
    assert [one.usd_per_gpu_hour for one in sizes] == sorted(one.usd_per_gpu_hour for one in sizes)
    with pytest.raises(SettingsError, match="positive"):
        affordable(looks, 0.0, overhead_hours=0.1)
    with pytest.raises(SettingsError, match="overhead"):
        effective_price(looks, 1.0, overhead_hours=-1.0)


def test_losses_are_counted_per_spot_gpu_and_hour():
    """4, 4, 1, 5, gap, 3 with a fleet of 4: 3 lost in (4 + 4 + 1) half hours."""
    assert loss_rate(np.array([4, 4, 1, 5, np.nan, 3.0]), 4.0, slot_hours=0.5) == pytest.approx(3 / 4.5)
    assert loss_rate(np.zeros(5), 4.0, slot_hours=0.5) == 0.0


class Always(Renter):
    """Renter with one width for all jobs."""

    def __init__(self, width, uses_spot=True):
        self._width, self.uses_spot = width, uses_spot

    def width(self, arrival: Arrival) -> int:
        return self._width - 1


def test_one_job_by_hand():
    """Width 2 from hour 0.25, 4 h of work at pace 2^0.7; two on spot at 0.2, of which one is lost from 1.0 to 2.0."""
    kind = TYPES[1:]
    jobs = Stream(time=np.array([0.25]), kind=np.array([0]), size=np.array([4.0]), hours=10.0)
    count = np.array([2, 2, 1, 1, 2, 2, 2, 2.0])
    window = make_window(np.full(8, 0.2), count, slot_hours=0.5)
    looks = outlooks(np.full(8, 0.2), count)
    found = rent_on_market(kind, jobs, window, Always(2), outlook=looks.at, rules=RULES)
    pace = 2**0.7
    took = 4.0 / pace + 0.1 + 0.1  # one restart after the loss, one on the move back
    assert found.restarts == 1
    assert found.response_hours == pytest.approx([took])
    assert found.cost_usd == pytest.approx([0.75 * 0.4 + 1.0 * 1.2 + (took - 1.75) * 0.4])
    assert found.gpu_hours == pytest.approx(2 * took)
    assert found.spot_gpu_hours == pytest.approx(2 * took - 1.0)


def test_money_adds_up_and_list_price_is_the_closed_form():
    price, count = market()
    for renter in (Always(3), Always(1), FixedRenter(covered_rental(TYPES, 8.0, 1.0), uses_spot=True)):
        found = played(renter, price, count)
        assert found.cost_usd.sum() == pytest.approx(found.slot_usd.sum())
        assert (found.response_hours > 0).all()
        assert found.gpu_hours * price.min() <= found.cost_usd.sum() <= found.gpu_hours
    jobs = stream()
    on_demand = played(Always(2, uses_spot=False), price, count, jobs)
    pace = np.array([kind.speedup.at(2.0) for kind in TYPES])[jobs.kind]
    assert on_demand.response_hours == pytest.approx(jobs.size / pace)
    assert on_demand.cost_usd == pytest.approx(2 * jobs.size / pace)
    assert on_demand.spot_gpu_hours == 0.0


def test_spot_above_on_demand_is_not_taken():
    price, count = market()
    assert played(Always(2), price + 1.0, count).spot_gpu_hours == 0.0


def renters(looks):
    plan = SpendingPlan(budget=np.full(SLOTS, 4.0))
    return {
        "effective": lambda: EffectiveRenter(TYPES, lambda slot: 3.5, looks.at, restart_hours=0.1, every=6),
        "multiplier": lambda: MultiplierRenter(1.5),
        "plan": lambda: PlanRenter(DualPrice(price=1.0, step=0.02), plan, lambda slot: 1.5),
    }


@pytest.mark.parametrize("name", ["effective", "multiplier", "plan"])
def test_no_renter_sees_a_later_slot(name):
    """Changing everything after slot 120 does not change earlier decisions (M4.9)."""
    price, count = market()
    rng = np.random.default_rng(9)
    other_price, other_count = price.copy(), count.copy()
    other_price[121:] = rng.uniform(0.1, 0.9, SLOTS - 121)
    other_count[121:] = rng.integers(0, 13, SLOTS - 121)
    chosen = []
    for p, c in ((price, count), (other_price, other_count)):
        looks = outlooks(p, c)
        renter = renters(looks)[name]()
        widths: list[tuple[int, int]] = []
        ask = renter.width

        def kept(arrival, ask=ask, widths=widths):
            widths.append((arrival.slot, ask(arrival)))
            return widths[-1][1]

        renter.width = kept  # type: ignore[method-assign]
        played(renter, p, c, looks=looks)
        chosen.append(widths)
    before = [[pair for pair in widths if pair[0] <= 120] for widths in chosen]
    assert len(before[0]) > 20
    assert before[0] == before[1]
    assert chosen[0] != chosen[1]


def test_a_dearer_dollar_buys_narrower_jobs():
    price, count = market()
    runs = [played(MultiplierRenter(one), price, count) for one in (0.1, 1.0, 10.0)]
    spend = [one.cost_usd.sum() for one in runs]
    assert spend == sorted(spend, reverse=True)
    response = [one.response_hours.mean() for one in runs]
    assert response == sorted(response)


class Recorded(PlanRenter):
    """Renter that records the committed cost per slot."""

    def slot_ends(self, slot, committed, paid):
        self.committed = [*getattr(self, "committed", []), committed]
        super().slot_ends(slot, committed, paid)


@pytest.mark.parametrize("start", [0.2, 20.0])
def test_a_dual_price_meets_the_average_budget(start):
    """From a dual price far too low or too high, committed cost exceeds the budget by at most the bound (M10).

    The identity of the step: sum (committed - plan) <= (end - start) / step, and the end is at most the
    highest slope plus one slot's jump; the amount finally paid differs by the error of the cost forecasts.
    """
    rng = np.random.default_rng(4)
    slots = 48 * 28
    count = np.repeat(rng.integers(0, 13, slots // 8), 8).astype(float)
    price = np.repeat(rng.uniform(0.2, 0.6, slots // 24), 24)
    jobs = stream(seed=8, hours=slots * 0.5)
    budget, step = 3.0, 0.2
    plan = SpendingPlan(budget=np.full(slots, budget * 0.5))
    renter = Recorded(DualPrice(price=start, step=step), plan, lambda slot: 1.0)
    found = played(renter, price, count, jobs, outlooks(price, count))
    committed = np.array(renter.committed[:slots])
    # Above a price of 2 / (cheapest saving) width 1 is best for both types; a slot has at most four jobs.
    dearest = max(start, 40.0)
    over = committed.sum() - plan.budget.sum()
    assert over <= (dearest - start) / step + committed.max()
    assert committed.sum() / jobs.hours == pytest.approx(budget, rel=0.1)
    assert 0.75 * budget < found.cost_usd.sum() / jobs.hours < 1.1 * budget


def test_a_gap_and_the_end_of_the_record_have_no_spot():
    price, count = market()
    count[10] = np.nan
    looks = outlooks(price, count)
    for slot in (10, SLOTS, SLOTS + 50):
        assert looks.at(slot).expected_spot(4.0).sum() == 0.0
    weight = looks.at(40).weight
    assert weight.sum(axis=1) == pytest.approx(np.ones(12))
    assert looks.at(40).expected_spot(12.0)[0] <= count[40]


def test_a_budget_below_the_load_sends_nobody_away():
    found = covered_rental(TYPES, 0.5, 1.0)
    assert all(sum(own.width * own.probability for own in one.shares) < 1.001 for one in found.types)
