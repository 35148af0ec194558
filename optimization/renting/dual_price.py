"""A price on a budget that is learned while it is spent: dual prices for an average budget (M10).

"Constrained online two-stage stochastic optimization" (2024) keeps a long-run average by a dual price that moves with the
gradient of the constraint after every arrival. What of it is not public is ours: the first stage is the price, set before the
arrival is seen, the second the choice that is best at that price once loss and cost of every choice are known.

Spending by a plan: a budget that varies over time, followed by a dual price (M10).

"No-regret learning under adversarial resource constraints: a spending plan is all you need" (2025) replaces the average
budget of dual methods by a plan of what each round may spend, so that regret against whoever follows the plan is small even
where prices are adversarial. The update is the gradient step of `optimization.renting.dual_price` against the plan's own
round (ours where the paper's inside is not public).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class DualPrice:
    """The price of a unit of budget in units of loss, and how far it moves for each unit overspent."""

    price: float
    step: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.price < np.inf or not 0.0 < self.step < np.inf:
            raise SettingsError(
                f"a dual price of {self.price} with steps of {self.step}",
                expected="a price of at least 0 and a positive step",
            )

    def choose(self, loss: np.ndarray, cost: np.ndarray) -> int:
        """argmin of loss + price x cost over the choices, shapes (K,); the cheapest of equal ones."""
        total = loss + self.price * cost
        best = np.flatnonzero(total <= total.min())
        return int(best[np.argmin(cost[best])])

    def paid(self, cost: float, budget: float) -> DualPrice:
        """After a round: price + step (cost - budget), no less than 0."""
        return replace(self, price=max(0.0, self.price + self.step * (cost - budget)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a sequence of choices came to: per round the choice, its loss and cost, and the price before it, shapes (T,)."""

    choice: np.ndarray
    loss: np.ndarray
    cost: np.ndarray
    price: np.ndarray


def spend_along(loss: np.ndarray, cost: np.ndarray, budget: np.ndarray, dual: DualPrice) -> Spent:
    """Choose round by round, shapes (T, K) of losses and costs and (T,) of budgets; nothing later is looked at.

    A constant budget is the average one; one that varies is a spending plan. Raises `SettingsError` if shapes differ.
    """
    if loss.shape != cost.shape or loss.ndim != 2 or budget.shape != loss.shape[:1]:
        raise SettingsError(
            f"losses {loss.shape}, costs {cost.shape}, budgets {budget.shape}",
            expected="(T, K), (T, K) and (T,)",
        )
    choice, price = np.empty(len(loss), dtype=np.int64), np.empty(len(loss))
    for t in range(len(loss)):
        price[t], choice[t] = dual.price, dual.choose(loss[t], cost[t])
        dual = dual.paid(float(cost[t, choice[t]]), float(budget[t]))
    rounds = np.arange(len(loss))
    return Spent(choice=choice, loss=loss[rounds, choice], cost=cost[rounds, choice], price=price)


def overspend_bound(loss: np.ndarray, cost: np.ndarray, budget: np.ndarray, dual: DualPrice) -> float:
    """No sequence, adversarial or not, makes `spend_along` spend more than this beyond the sum of the budgets (ours).

    Above the dearest slope P = max over rounds and choices of (loss lost by the cheapest choice) / (its saving), the cheapest
    choice is taken. So the price never passes max(P, start) + step (max cost - min budget)+ + step sum (cheapest - budget)+,
    and the sum of the price's moves, step sum (cost - budget), is at most its end minus its start:

        sum (cost - budget) <= (max(P, start) - start) / step + (max cost - min budget)+ + sum (cheapest - budget)+.
    """
    cheapest = np.argmin(cost, axis=1)
    rounds = np.arange(len(cost))
    least, worst = cost[rounds, cheapest], loss[rounds, cheapest]
    saving = cost - least[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(saving > 0, (worst[:, None] - loss) / saving, 0.0)
    dearest = max(float(slope.max(initial=0.0)), dual.price)
    jump = max(0.0, float(cost.max() - budget.min()))
    return (dearest - dual.price) / dual.step + jump + float(np.maximum(least - budget, 0.0).sum())


#: Halvings of a multiplier's interval in hindsight.
HALVINGS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingPlan:
    """What each round may spend, shape (T,), in the unit of the costs."""

    budget: np.ndarray

    def __post_init__(self) -> None:
        if (
            self.budget.ndim != 1
            or not len(self.budget)
            or not (self.budget >= 0).all()
            or not self.budget.sum() > 0
        ):
            raise SettingsError(
                f"a plan of shape {self.budget.shape} and sum {float(np.sum(self.budget)):g}",
                expected="at least one round, none below 0, and something to spend",
            )

    @property
    def average(self) -> SpendingPlan:
        """The same money spread evenly: the plan of an average budget."""
        return SpendingPlan(budget=np.full(len(self.budget), self.budget.mean()))


def daily_plan(
    rounds: int,
    *,
    average: float,
    busy: float,
    slot_hours: float,
    busy_hours: tuple[float, float] = (8.0, 20.0),
) -> SpendingPlan:
    """A plan over days: ``busy`` times the average from one hour of the day to another, what is left of it at the others.

    Round 0 begins at midnight. Raises `SettingsError` if the busy hours would take more than everything.
    """
    hour = np.arange(rounds) * slot_hours % 24.0
    inside = (hour >= busy_hours[0]) & (hour < busy_hours[1])
    share = (busy_hours[1] - busy_hours[0]) / 24.0
    if not 0.0 <= busy * share <= 1.0:
        raise SettingsError(
            f"{busy} times the average in {share:.0%} of the day", expected="no more than all of it"
        )
    return SpendingPlan(budget=average * np.where(inside, busy, (1.0 - busy * share) / (1.0 - share)))


def follow(loss: np.ndarray, cost: np.ndarray, plan: SpendingPlan, dual: DualPrice) -> Spent:
    """Choose round by round along the plan, shapes (T, K)."""
    return spend_along(loss, cost, plan.budget, dual)


def regret_bound(spent: Spent, plan: SpendingPlan, dual: DualPrice) -> float:
    """Loss beyond that of any choices that stay within the plan in every round is at most this, whatever the sequence.

    start^2 / (2 step) + step / 2 sum (cost - plan)^2: at its price every round's choice is no worse than the comparator's, and
    what the prices add is bounded by gradient descent against price 0.
    """
    return dual.price**2 / (2.0 * dual.step) + dual.step / 2.0 * float(
        ((spent.cost - plan.budget) ** 2).sum()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """The best fixed multiplier: the least one at which all rounds together cost no more than the plan, with loss and cost."""

    price: float
    loss: float
    cost: float


def best_fixed(loss: np.ndarray, cost: np.ndarray, total: float) -> Hindsight:
    """The best fixed multiplier in hindsight for ``total`` to spend over all rounds, by bisection.

    It may shift money between rounds, which a plan may not. Where even the cheapest choices cost more, these are taken.
    """

    def at(price: float) -> tuple[float, float]:
        pick = np.argmin(loss + price * cost + 1e-12 * cost, axis=1)
        rounds = np.arange(len(loss))
        return float(loss[rounds, pick].sum()), float(cost[rounds, pick].sum())

    if at(0.0)[1] <= total:
        return Hindsight(price=0.0, loss=at(0.0)[0], cost=at(0.0)[1])
    low, high = 0.0, 1.0
    while at(high)[1] > total and high < 1e12:
        low, high = high, 4.0 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if at(middle)[1] > total else (low, middle)
    return Hindsight(price=high, loss=at(high)[0], cost=at(high)[1])
