"""A price on a budget that is learned while it is spent: dual prices for an average budget (M10).

"Constrained online two-stage stochastic optimization" (2024) keeps a long-run average by a dual price that moves with the
gradient of the constraint after every arrival. What of it is not public is ours: the first stage is the price, set before the
arrival is seen, the second the choice that is best at that price once loss and cost of every choice are known.
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
