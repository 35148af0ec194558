"""Fixed widths on a budget: published vectors, the counterexample, an LP on random instances, and invalid input (M8)."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from slackwater.optimization.renting.budget import JobType, hull_frontier, rent
from slackwater.optimization.renting.price import DeadlineDelay, PricedDelay
from slackwater.optimization.renting.simulation import equal_widths, fixed_rental, load_of
from slackwater.optimization.renting.speedup import (
    SIZE_DISTRIBUTIONS,
    AmdahlSpeedup,
    PowerSpeedup,
    TableSpeedup,
)
from slackwater.warehouse.errors import JobError, SettingsError


def mean_width(rental):
    """Return the mean width of the arriving jobs of a type."""
    return sum(share.width * share.probability for share in rental.shares)


def kind(name, speedup, rate=0.4, mean=1.0, **rest):
    return JobType(name=name, rate_per_hour=rate, mean_hours=mean, speedup=speedup, **rest)


VECTORS = [kind("amdahl", AmdahlSpeedup(parallel=0.8)), kind("root", PowerSpeedup(exponent=0.5))]


@pytest.mark.parametrize(
    ("budget", "widths", "response"),
    [
        (0.9, (2.0714, 1.0727), 0.7759),
        (1.0, (2.4286, 1.4745), 0.6765),
        (1.5, (4.2143, 4.4401), 0.4322),
        (2.0, (6.0, 9.0), 0.3333),
        (3.0, (9.5714, 22.9031), 0.2463),
    ],
)
def test_published_vectors(budget, widths, response):
    found = rent(VECTORS, budget)
    assert [mean_width(one) for one in found.types] == pytest.approx(widths, abs=6e-5)
    assert found.response_hours == pytest.approx(response, abs=5e-5)
    assert found.spend == pytest.approx(budget, rel=1e-7)
    assert found.mixed is None


def test_mixing_beats_the_best_single_width():
    """M8.3: s = 1, 1.2, 1.8 at budget 4/3: 0.917 at the best single width, 0.778 with widths 1 and 3 mixed."""
    table = TableSpeedup(gpus=(1, 2, 3), speedups=(1.0, 1.2, 1.8))
    types = [kind("dented", table, rate=1.0)]
    found = rent(types, 4 / 3)
    assert found.response_hours == pytest.approx(7 / 9, abs=1e-12)
    assert [(s.width, s.probability) for s in found.types[0].shares] == [
        (1.0, pytest.approx(0.5)),
        (3.0, pytest.approx(0.5)),
    ]
    single = equal_widths(types, 4 / 3)
    assert mean_width(single.types[0]) == pytest.approx(16 / 11)
    assert single.response_hours == pytest.approx(0.9167, abs=5e-5)
    # No single width within the budget improves on this result.
    tried = [fixed_rental(types, k, 4 / 3) for k in np.linspace(1, 3, 2001)]
    assert min(r.response_hours for r in tried if r.spend <= 4 / 3 + 1e-12) >= single.response_hours - 1e-9


def test_multiplier_is_the_worth_of_budget():
    for whole in (False, True):
        for budget in (0.93, 1.31, 2.27):
            low, here, high = (rent(VECTORS, budget + d, whole=whole) for d in (-1e-5, 0.0, 1e-5))
            slope = (low.loss_per_hour - high.loss_per_hour) / 2e-5
            assert here.multiplier == pytest.approx(slope, rel=1e-3)
            assert here.loss_per_hour == pytest.approx(here.rate_per_hour * here.response_hours)


def random_types(rng, count):
    types = []
    for i in range(count):
        widths = np.sort(rng.choice(np.arange(2, 40), size=rng.integers(1, 9), replace=False))
        speedups = 1.0 + np.cumsum(rng.exponential(rng.choice([0.2, 1.0, 4.0]), size=len(widths)))
        table = TableSpeedup(gpus=(1, *widths.tolist()), speedups=(1.0, *speedups.tolist()))
        delay = PricedDelay(price=float(rng.uniform(0.2, 5)), in_usd=True)
        types.append(kind(f"t{i}", table, rate=rng.uniform(0.1, 2), mean=rng.uniform(0.2, 6), delay=delay))
    return types


def by_linear_program(types, budget, prices):
    """Solve min sum q rho c / s with sum q rho p k / s <= b and each type's q summing to 1, over all widths of all tables."""
    cost, use, owner = [], [], []
    for i, (one, price) in enumerate(zip(types, prices, strict=True)):
        for k in one.speedup.gpus:
            s = one.speedup.at(k)
            cost.append(one.load * one.delay.price / s)
            use.append(one.load * price * k / s)
            owner.append(i)
    chooses = (np.array(owner)[None, :] == np.arange(len(types))[:, None]).astype(float)
    found = linprog(
        cost, A_ub=[use], b_ub=[budget], A_eq=chooses, b_eq=np.ones(len(types)), method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )  # fmt: skip
    assert found.status == 0
    return found


@pytest.mark.parametrize("instances", [100, pytest.param(600, marks=pytest.mark.slow)])
def test_equal_to_a_linear_program_on_random_tables(instances):
    """Includes superlinear speedups, different prices and priced delay; at most one type mixes widths (M8.3)."""
    rng = np.random.default_rng(20261121)
    mixed = 0
    for _ in range(instances):
        types = random_types(rng, int(rng.integers(1, 6)))
        prices = rng.uniform(0.3, 3.0, len(types)).tolist()
        least = sum(
            t.load * p * min(k / t.speedup.at(k) for k in t.speedup.gpus)
            for t, p in zip(types, prices, strict=True)
        )
        budget = least * float(rng.choice([1.001, 1.1, 1.5, 3.0, 30.0]))
        found, program = rent(types, budget, prices=prices), by_linear_program(types, budget, prices)
        assert found.loss_per_hour == pytest.approx(program.fun, rel=1e-8)
        assert found.spend <= budget * (1 + 1e-12)
        assert found.multiplier == 0.0 or found.spend == pytest.approx(budget, rel=1e-9)
        several = [one for one in found.types if len(one.shares) > 1]
        assert len(several) <= 1
        mixed += len(several)
    assert mixed > instances / 2


def test_whole_widths_are_the_best_whole_widths():
    """Compared with the same program with all widths up to 60 as a table."""
    rng = np.random.default_rng(4)
    for _ in range(10):
        smooth = [
            kind("a", AmdahlSpeedup(parallel=float(rng.uniform(0.3, 0.97))), mean=float(rng.uniform(0.5, 3))),
            kind("p", PowerSpeedup(exponent=float(rng.uniform(0.2, 0.8)), most=60.0)),
        ]
        tables = [
            kind(t.name, TableSpeedup(gpus=range(1, 61), speedups=[t.speedup.at(k) for k in range(1, 61)]), mean=t.mean_hours)
            for t in smooth
        ]  # fmt: skip
        budget = load_of(smooth) * float(rng.uniform(1.05, 2.5))
        whole, table = rent(smooth, budget, whole=True), rent(tables, budget)
        assert whole.loss_per_hour == pytest.approx(table.loss_per_hour, rel=1e-10)
        assert all(share.width == int(share.width) for one in whole.types for share in one.shares)
        free = rent(smooth, budget)
        assert free.loss_per_hour <= whole.loss_per_hour * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 100)), min_size=1, max_size=25))
def test_hull_lies_below_every_point(points):
    x, y = np.array(points).T
    hull = hull_frontier(np.arange(len(x), dtype=float), x, y)
    assert (np.diff(hull.gpus) > 0).all()
    assert (np.diff(hull.loss) < 0).all()
    assert (np.diff(hull.worth) <= 1e-9 * np.abs(hull.worth[:-1])).all()
    for a, b in points:
        low = np.interp(a, hull.gpus, hull.loss) if a >= hull.gpus[0] else math.inf
        assert a >= hull.gpus[0]
        assert b >= low - 1e-7 * max(1.0, abs(low))


def test_more_budget_than_is_of_use_is_left():
    found = rent([kind("t", TableSpeedup(gpus=(1, 4), speedups=(1.0, 3.0)), rate=2.0)], 50.0)
    assert found.multiplier == 0.0
    assert mean_width(found.types[0]) == 4.0
    assert found.spend == pytest.approx(2.0 * 4 / 3)


def test_a_job_that_needs_four_gpus_counts_its_size_on_four():
    """Sizes in GPU-hours at the smallest width: s(4) = 4 (ours)."""
    found = rent([kind("big", TableSpeedup(gpus=(4, 8), speedups=(4.0, 7.0)), rate=1.0, mean=2.0)], 2.1)
    assert 2.0 / 7.0 < found.response_hours < 2.0 / 4.0
    assert found.spend == pytest.approx(2.1)


@pytest.mark.parametrize("distribution", list(SIZE_DISTRIBUTIONS.values()), ids=list(SIZE_DISTRIBUTIONS))
def test_loss_after_a_deadline_is_its_mean_over_sizes(distribution):
    """E[loss] of a deadline equals the mean of V lost over drawn sizes (M2.5, M8.6)."""
    delay = DeadlineDelay(deadline_hours=2.0, value_usd=30.0, gamma=1.5, size_distribution=distribution)
    drawn = distribution.draw(np.random.default_rng(1), 200_000)
    assert drawn.mean() == pytest.approx(1.0, abs=0.02)
    for mean in (0.7, 2.2, 9.0):
        lost = delay.cost(mean * drawn)
        error = max(float(lost.std()) / math.sqrt(len(lost)), 1e-12)
        assert abs(float(delay.expected_loss(np.array([mean]))[0]) - lost.mean()) < 4 * error


def test_deadlines_move_gpus_to_those_who_need_them():
    """Two equal types, one with a deadline ten times as far: the near one gets the GPUs, and the lost value is minimal."""
    speedup = AmdahlSpeedup(parallel=0.95)
    near, far = (
        kind(name, speedup, mean=4.0, delay=DeadlineDelay(deadline_hours=hours, value_usd=100.0))
        for name, hours in (("near", 2.0), ("far", 40.0))
    )
    found = rent([near, far], 6.0)
    assert mean_width(found.types[0]) > 2 * mean_width(found.types[1])
    grid = np.geomspace(1, 60, 200)
    x, loss = grid / [speedup.at(k) for k in grid], {}
    for one in (near, far):
        loss[one.name] = one.rate_per_hour * one.delay.expected_loss(
            4.0 / np.array([speedup.at(k) for k in grid])
        )
    spend = 1.6 * x[:, None] + 1.6 * x[None, :]
    total = loss["near"][:, None] + loss["far"][None, :]
    assert found.loss_per_hour <= total[spend <= 6.0].min() + 1e-9


def test_a_price_of_delay_is_a_weight():
    """Twice the price of delay is twice the load in the objective: k = sqrt(c f / ((1 - f) eta)) (M8.6)."""
    types = [
        kind("dear", AmdahlSpeedup(parallel=0.9), delay=PricedDelay(price=40.0, in_usd=True)),
        kind("cheap", AmdahlSpeedup(parallel=0.9), delay=PricedDelay(price=10.0, in_usd=True)),
    ]
    found = rent(types, 2.0)
    assert mean_width(found.types[0]) / mean_width(found.types[1]) == pytest.approx(2.0)
    assert mean_width(found.types[0]) == pytest.approx(math.sqrt(40 * 9 / found.multiplier))


def test_money_is_gpus_times_their_price():
    gpus = rent(VECTORS, 1.5)
    money = rent(VECTORS, 6.0, prices=[4.0, 4.0])
    assert [mean_width(t) for t in money.types] == pytest.approx([mean_width(t) for t in gpus.types])
    assert money.multiplier == pytest.approx(gpus.multiplier / 4.0)
    assert money.gpus == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: rent(VECTORS, 0.5), "unstable by 0.3"),
        (lambda: rent(VECTORS, 0.8), "more than 0.8 GPUs"),
        (lambda: rent(VECTORS, 1.0, prices=[4.0, 4.0]), "USD per hour"),
        (lambda: rent(VECTORS, math.nan), "positive number"),
        (lambda: rent(VECTORS, 1.0, prices=[1.0]), "2 positive prices"),
        (lambda: TableSpeedup(gpus=(1, 2, 3), speedups=(1.0, 1.9, 1.8)), "leave 3 GPUs out"),
        (lambda: TableSpeedup(gpus=(1, 2), speedups=(2.0, 3.0)), "divide all speedups by 2"),
        (lambda: TableSpeedup(gpus=(2, 1), speedups=(2.0, 3.0)), "ascending"),
        (lambda: TableSpeedup(gpus=(), speedups=()), "at least one"),
        (lambda: PowerSpeedup(exponent=1.0), "`most`"),
        (lambda: PowerSpeedup(exponent=1.2), "as a table"),
        (lambda: AmdahlSpeedup(parallel=1.2), "0 to 1"),
        (lambda: AmdahlSpeedup(parallel=0.5, most=0.5), "at least 1"),
        (lambda: DeadlineDelay(deadline_hours=1.0, value_usd=0.0), "positive deadline"),
        (lambda: PricedDelay(price=-1.0), "positive"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why(make, says):
    with pytest.raises(SettingsError) as caught:
        make()
    assert says in str(caught.value)


def test_types_that_cannot_be_compared_are_refused():
    priced = kind("priced", PowerSpeedup(exponent=0.5), delay=PricedDelay(price=3.0, in_usd=True))
    for types, says in (
        ([VECTORS[0], priced], "do not add up"),
        ([VECTORS[0], VECTORS[0]], "a name for each"),
        ([], "at least one"),
    ):
        with pytest.raises(JobError, match=says):
            rent(types, 3.0)
    with pytest.raises(JobError, match="arrival rate"):
        kind("none", PowerSpeedup(exponent=0.5), rate=0.0)


def test_without_end_is_refused_and_a_cap_mends_it():
    nearly = kind("nearly", PowerSpeedup(exponent=0.999))
    with pytest.raises(SettingsError, match="`most`"):
        rent([nearly], 1e9, whole=True)
    assert rent([kind("capped", PowerSpeedup(exponent=0.999, most=64.0))], 1e9, whole=True).gpus < 1.0
