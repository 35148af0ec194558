"""Dual prices and spending plans: bounds on random and adversarial sequences, and comparison with hindsight (M10)."""

import numpy as np
import pytest
from forms_kit import quick_first

from slackwater.studies.renting_market import (
    DualPrice,
    SpendingPlan,
    best_fixed,
    daily_plan,
    follow,
    overspend_bound,
    regret_bound,
    spend_along,
)
from slackwater.warehouse.errors import SettingsError

WIDTHS = np.arange(1.0, 9.0)
ROUNDS = 2000


def offers(price, rng):
    """Jobs of random size under Amdahl's distribution: loss is time, cost GPU-time x price; shapes (T, K)."""
    size = rng.exponential(1.0, len(price))[:, None]
    pace = 1.0 / (0.1 + 0.9 / WIDTHS)
    return size / pace, size * price[:, None] * WIDTHS / pace


def prices(kind, rng):
    t = np.arange(ROUNDS)
    return {
        "iid": rng.uniform(0.3, 1.0, ROUNDS),
        "daily": 0.6 + 0.3 * np.sin(t / 48 * 2 * np.pi),
        "falls": np.where(t < ROUNDS // 2, 1.0, 0.2),
        "rises": np.where(t < ROUNDS // 2, 0.2, 1.0),
        "spikes": np.where(t % 200 < 5, 10.0, 0.3),
        "flips": np.where(t % 2 == 0, 0.1, 1.5),
    }[kind]


KINDS = ("iid", "daily", "falls", "rises", "spikes", "flips")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", quick_first([0.1, 0.001]))
def test_spend_stays_within_the_bound(kind, step):
    """The average budget holds up to a stated bound, which for a step of T^-1/2 falls as T^-1/2 (M10)."""
    rng = np.random.default_rng(8)
    loss, cost = offers(prices(kind, rng), rng)
    budget = np.full(ROUNDS, float(cost[:, 0].mean()) * 1.3)
    for start in (0.0, 0.3, 3.0):
        dual = DualPrice(price=start, step=step)
        spent = spend_along(loss, cost, budget, dual)
        over = float((spent.cost - budget).sum())
        assert over <= overspend_bound(loss, cost, budget, dual) + 1e-9
        # The underlying identity: the price has risen by at least the overspending.
        last = spent.price[-1] + step * (spent.cost[-1] - budget[-1])
        assert step * over <= max(0.0, last) - start + 1e-9


def test_the_bound_holds_against_who_knows_the_method():
    """The adversary reads the price and makes the next job expensive exactly when the method would buy wide."""
    rng = np.random.default_rng(2)
    dual, budget, step = 0.5, 1.2, 0.05
    losses, costs = [], []
    price = dual
    pace = 1.0 / (0.1 + 0.9 / WIDTHS)
    for _ in range(ROUNDS):
        made = []
        for usd in (0.1, 1.0, 1.2):  # of these, the price at which the method spends most
            loss, cost = 1.0 / pace, usd * WIDTHS / pace
            pick = DualPrice(price=price, step=step).choose(loss, cost)
            made.append((cost[pick], loss, cost))
        spend, loss, cost = max(made, key=lambda one: one[0] + 1e-3 * rng.random())
        price = DualPrice(price=price, step=step).paid(float(spend), budget).price
        losses.append(loss)
        costs.append(cost)
    loss, cost, plan = np.array(losses), np.array(costs), np.full(ROUNDS, budget)
    start = DualPrice(price=dual, step=step)
    spent = spend_along(loss, cost, plan, start)
    bound = overspend_bound(loss, cost, plan, start)
    assert float((spent.cost - plan).sum()) <= bound
    assert bound < 0.1 * plan.sum()  # the bound is not vacuous
    # A constant price is ruined by the same adversary.
    fixed = np.array([DualPrice(price=dual, step=step).choose(a, b) for a, b in zip(loss, cost, strict=True)])
    assert cost[np.arange(ROUNDS), fixed].sum() > 1.05 * spent.cost.sum()


@pytest.mark.parametrize("kind", KINDS)
def test_regret_against_whoever_follows_the_plan(kind):
    """Loss relative to the best choices within the plan of every round is below the bound, also for adversarial prices (M10)."""
    rng = np.random.default_rng(5)
    price = prices(kind, rng)
    loss, cost = offers(price, rng)
    plan = SpendingPlan(budget=cost[:, 0] * rng.uniform(1.0, 2.5, ROUNDS))
    within = np.where(cost <= plan.budget[:, None] + 1e-12, loss, np.inf)
    best = within.min(axis=1).sum()
    assert np.isfinite(best)
    for step in (0.003, 0.03, 0.3):
        dual = DualPrice(price=0.5, step=step)
        spent = follow(loss, cost, plan, dual)
        assert spent.loss.sum() - best <= regret_bound(spent, plan, dual) + 1e-9


def test_regret_against_the_best_fixed_multiplier_vanishes_where_prices_repeat():
    """With independent prices the loss approaches that of the best multiplier at the same budget, closer with more rounds."""
    gaps = []
    for rounds in (200, 20_000):
        rng = np.random.default_rng(1)
        loss, cost = offers(rng.uniform(0.3, 1.0, rounds), rng)
        budget = float(cost[:, 0].mean()) * 1.3
        spent = spend_along(loss, cost, np.full(rounds, budget), DualPrice(price=0.0, step=rounds**-0.5))
        best = best_fixed(loss, cost, budget * rounds)
        assert best.cost <= budget * rounds + 1e-9
        gaps.append(abs(spent.loss.sum() / best.loss - 1) + abs(spent.cost.sum() / (budget * rounds) - 1))
    assert gaps[1] < 0.02
    assert gaps[1] < 0.5 * gaps[0]


def test_a_plan_is_kept_in_each_part_and_an_average_is_not():
    """Every second stretch has half as much budget again: a plan is met in each part, an average budget spends equally in both.

    Stretches of 500 rounds: a gradient step cannot follow a plan that turns faster than about 1 / step
    (`docs/renting.md`).
    """
    rng = np.random.default_rng(3)
    loss, cost = offers(np.full(4000, 0.5), rng)
    rich = np.arange(4000) % 1000 < 500
    plan = SpendingPlan(budget=float(cost[:, 0].mean()) * np.where(rich, 1.5, 1.1))
    dual = DualPrice(price=0.5, step=0.2)
    planned, average = (follow(loss, cost, one, dual).cost for one in (plan, plan.average))
    for part in (rich, ~rich):
        share = plan.budget[part].sum()
        assert abs(planned[part].sum() - share) < 0.5 * abs(average[part].sum() - share)


def test_a_daily_plan_spends_what_it_says():
    plan = daily_plan(96, average=2.0, busy=1.5, slot_hours=0.5)
    assert plan.budget.sum() == pytest.approx(96 * 2.0)
    assert plan.budget[[0, 15, 16, 39, 40]] == pytest.approx([1.0, 1.0, 3.0, 3.0, 1.0])


def test_best_fixed_is_the_best_of_all_multipliers():
    rng = np.random.default_rng(9)
    loss, cost = offers(prices("iid", rng), rng)
    for factor in (1.05, 1.5, 2.0, 99.0):
        total = cost[:, 0].sum() * factor
        found = best_fixed(loss, cost, total)
        for price in np.geomspace(1e-3, 30, 200):
            pick = np.argmin(loss + price * cost, axis=1)
            rows = np.arange(ROUNDS)
            if cost[rows, pick].sum() <= total:
                assert loss[rows, pick].sum() >= found.loss - 1e-9


def test_what_is_refused():
    for make in (
        lambda: DualPrice(price=-1.0, step=1.0),
        lambda: DualPrice(price=1.0, step=0.0),
        lambda: SpendingPlan(budget=np.zeros(3)),
        lambda: SpendingPlan(budget=np.array([1.0, -1.0])),
        lambda: daily_plan(48, average=1.0, busy=2.5, slot_hours=0.5),
        lambda: spend_along(np.ones((3, 2)), np.ones((3, 2)), np.ones(4), DualPrice(price=1.0, step=1.0)),
    ):
        with pytest.raises(SettingsError):
            make()
