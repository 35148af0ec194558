"""What a rental is compared with, and how it answers to the budget and to the arrivals (M8.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq

from optimization.rental import Rental, Share, TypeRental, rent
from optimization.rental_frontier import JobType
from optimization.rental_simulation import shared_pace
from warehouse.errors import SettingsError

#: Arrival rates of the sensitivity, in units of those given, and the step of the elasticity.
FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
STEP = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a rental answers to its arrival rate: at ``factor`` times the rate, None where the budget no longer covers the load."""

    factor: float
    rental: Rental | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Renting:
    """What is rented: types, a budget, whole widths or not, and the price of a GPU in units of the budget (1: GPUs)."""

    types: tuple[JobType, ...]
    budget: float
    whole: bool = False
    price: float = 1.0

    @property
    def least_budget(self) -> float:
        """The budget below which the load is not covered, however narrow the widths (M8.1)."""
        return self.price * load_of(self.types)

    @property
    def covered(self) -> bool:
        """Whether the budget is above the load."""
        return self.budget > self.least_budget * (1.0 + 1e-9)

    def rental(self) -> Rental:
        """The optimal rental; raises as `optimization.rental.rent`."""
        prices = None if self.price == 1.0 else [self.price] * len(self.types)
        return rent(self.types, self.budget, whole=self.whole, prices=prices)

    def arriving(self, factor: float, only: str | None = None) -> Renting:
        """The same with all types, or the one called ``only``, arriving at ``factor`` times their rate."""
        changed = tuple(
            replace(kind, rate_per_hour=kind.rate_per_hour * factor) if only in (None, kind.name) else kind
            for kind in self.types
        )
        return replace(self, types=changed)


def budget_frontier(renting: Renting, budgets: Sequence[float]) -> list[Rental]:
    """The rental of each budget; those that do not cover the load are left out."""
    found = [replace(renting, budget=budget) for budget in budgets]
    return [one.rental() for one in found if one.covered]


def load_of(types: Sequence[JobType]) -> float:
    """The GPUs below which no budget is enough: sum of rho_i at the width that occupies the fewest (M8.1)."""
    return sum(kind.load * _least_occupied(kind) for kind in types)


def _least_occupied(kind: JobType) -> float:
    table = getattr(kind.speedup, "gpus", None)
    return 1.0 if table is None else min(k / kind.speedup.at(float(k)) for k in table)


def sensitivity(renting: Renting, *, only: str | None = None) -> list[Answer]:
    """The rental of the same budget when all types, or the one called ``only``, arrive at each of `FACTORS` times their rate."""
    changed = [(factor, renting.arriving(factor, only)) for factor in FACTORS]
    return [Answer(factor=f, rental=one.rental() if one.covered else None) for f, one in changed]


def elasticity(renting: Renting, *, only: str | None = None) -> tuple[float, float]:
    """Percent that E[T], and the cost of delay, grow for one percent more arrivals.

    By a central difference; NaN right above the load.
    """
    ends = [renting.arriving(factor, only) for factor in (1.0 - STEP, 1.0 + STEP)]
    if not all(one.covered for one in ends):
        return float("nan"), float("nan")
    low, high = (one.rental() for one in ends)
    span = math.log((1.0 + STEP) / (1.0 - STEP))
    return (
        math.log(high.response_hours / low.response_hours) / span,
        math.log(high.loss_per_hour / low.loss_per_hour) / span,
    )


def equal_widths(types: Sequence[JobType], budget: float) -> Rental:
    """All jobs at one width, the largest that the budget covers; a type is never wider than it can use.

    A table is interpolated between measured widths. Raises `SettingsError` if the budget does not cover the load.
    """

    def used(width: float) -> float:
        return sum(one.gpus for one in fixed_rental(types, width, budget).types)

    if used(1.0) > budget:
        raise SettingsError(
            f"a budget of {budget:.6g} GPUs for {used(1.0):.6g} at width 1",
            expected="a budget that covers it",
        )
    widest = 1.0
    while used(2.0 * widest) <= budget and widest < 2**30:
        widest *= 2.0
    if used(2.0 * widest) <= budget:
        return fixed_rental(types, widest, budget)
    width = brentq(lambda k: used(k) - budget, widest, 2.0 * widest, xtol=1e-12)
    return fixed_rental(types, float(width), budget)


def fixed_rental(types: Sequence[JobType], width: float, budget: float) -> Rental:
    """All jobs at ``width`` GPUs, or the nearest width of use of their type."""
    chosen = []
    for kind in types:
        least = float(getattr(kind.speedup, "gpus", (1,))[0])
        own = min(max(width, least), kind.speedup.most)
        pace = shared_pace(kind.speedup, own)
        response = kind.mean_hours / pace
        loss = float(kind.delay.expected(np.array([response]))[0])
        chosen.append(
            TypeRental(
                kind=kind,
                shares=(Share(width=own, probability=1.0),),
                response_hours=response,
                gpus=kind.load * own / pace,
                spend=kind.load * own / pace,
                loss_per_hour=kind.rate_per_hour * loss,
            )
        )
    return Rental(
        types=tuple(chosen), budget=budget, spend=sum(one.spend for one in chosen), multiplier=float("nan")
    )
