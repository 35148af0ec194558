"""Renting GPUs for a stream of jobs on a budget: each type gets a fixed width at once and never queues (M8, paper B).

Minimise the cost of delay, sum over i of rho_i l_i(k_i), so that sum over i of rho_i p_i k_i / s_i(k_i) <= b. With l = 1 / s and
p = 1 that is lambda E[T] within a budget of b GPUs (M8.2); other l and p are ours (M8.6). All types share one multiplier: the
price of a GPU at which each type by itself would choose its width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from optimization.rental_frontier import WIDEST, Frontier, HullFrontier, JobType, Point, frontier_of
from optimization.rental_speedup import TableSpeedup
from warehouse.errors import JobError, SettingsError

#: Halvings of the interval of the multiplier's logarithm: enough for two neighbouring floating-point numbers.
HALVINGS = 200
#: A multiplier is looked for within this factor of 1, either way.
REACH = 1e30
#: Whole widths are looked at up to here first, and twice as far while the end is used.
FIRST_WIDEST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A width, and the probability that an arriving job gets it."""

    width: float
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRental:
    """What a type rents.

    ``shares`` are one width, or two that are mixed; ``response_hours`` is the mean response time, ``gpus`` the mean number of
    GPUs held, ``spend`` that times the type's price, ``loss_per_hour`` the cost of its delay.
    """

    kind: JobType
    shares: tuple[Share, ...]
    response_hours: float
    gpus: float
    spend: float
    loss_per_hour: float

    @property
    def mean_width(self) -> float:
        """Mean of the widths of arriving jobs."""
        return sum(share.width * share.probability for share in self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """Widths for all types: ``spend`` of ``budget`` is used, in the unit of the budget (GPUs, or USD per hour).

    ``multiplier`` is what one more unit of budget would save in ``loss_per_hour``; 0 where more is of no use. Where delay counts
    hours, loss per hour is lambda E[T], the mean number of jobs in the system.
    """

    types: tuple[TypeRental, ...]
    budget: float
    spend: float
    multiplier: float

    @property
    def rate_per_hour(self) -> float:
        """Arrivals of all types per hour."""
        return sum(one.kind.rate_per_hour for one in self.types)

    @property
    def response_hours(self) -> float:
        """E[T] = (1 / lambda) sum rho_i / s_i(k_i), over all jobs (M8.2)."""
        return sum(one.kind.rate_per_hour * one.response_hours for one in self.types) / self.rate_per_hour

    @property
    def loss_per_hour(self) -> float:
        """The minimised cost of delay of all types per hour."""
        return sum(one.loss_per_hour for one in self.types)

    @property
    def gpus(self) -> float:
        """Mean number of GPUs held."""
        return sum(one.gpus for one in self.types)

    @property
    def mixed(self) -> str | None:
        """The one type that mixes two widths, if any."""
        return next((one.kind.name for one in self.types if len(one.shares) > 1), None)


def rent(
    types: Sequence[JobType], budget: float, *, whole: bool = False, prices: Sequence[float] | None = None
) -> Rental:
    """The optimal fixed widths for ``budget``: GPUs on long-run average, or USD per hour with ``prices`` per GPU-hour and type.

    ``whole``: widths are whole numbers of GPUs; measured tables are whole anyway. At most one type mixes two widths (M8.3), which
    costs nothing: the mixture is a point of the convex hull. Raises `JobError` for types that cannot be compared, and
    `SettingsError` for a budget that is no number or that does not cover the load (M8.1).
    """
    paid = _prices(types, prices)
    _check_types(types)
    loads = [kind.load * price for kind, price in zip(types, paid, strict=True)]
    widest = FIRST_WIDEST if whole else WIDEST
    while True:
        frontiers = [frontier_of(kind, whole=whole, widest=widest) for kind in types]
        _check_budget(types, frontiers, loads, budget, money=prices is not None)
        points, multiplier = _steepest(frontiers, loads, paid, budget)
        at_end = [name for name in map(_used_up, types, points, [widest] * len(types)) if name]
        if not at_end:
            break
        if widest >= WIDEST:
            raise SettingsError(
                f"type {at_end[0]!r} would get more than {WIDEST:,} GPUs a job",
                expected="a type whose speedup levels off",
                remedy="say how many GPUs such a job can use with `most`",
            )
        widest *= 2
    chosen = tuple(
        _type_rental(kind, mix, price) for kind, mix, price in zip(types, points, paid, strict=True)
    )
    return Rental(types=chosen, budget=budget, spend=sum(one.spend for one in chosen), multiplier=multiplier)


#: Up to two points of a type, each with its probability.
Mixture = list[tuple[Point, float]]


def _steepest(
    frontiers: Sequence[Frontier], loads: Sequence[float], prices: Sequence[float], budget: float
) -> tuple[list[Mixture], float]:
    """The mixtures that use the budget, and the multiplier, by bisection on it and then by the steepest steps left (M8.2, M8.3)."""

    def chosen(multiplier: float) -> list[Point]:
        return [one.best(multiplier * price) for one, price in zip(frontiers, prices, strict=True)]

    def used(points: Sequence[Point]) -> float:
        return sum(load * point.gpus for load, point in zip(loads, points, strict=True))

    dear, cheap = math.log(REACH), -math.log(REACH)
    if used(chosen(math.exp(cheap))) <= budget:
        return [[(point, 1.0)] for point in chosen(math.exp(cheap))], 0.0
    for _ in range(HALVINGS):
        middle = (dear + cheap) / 2.0
        if used(chosen(math.exp(middle))) <= budget:
            dear = middle
        else:
            cheap = middle
    low, high = chosen(math.exp(dear)), chosen(math.exp(cheap))
    return _fill(frontiers, loads, (low, high), budget - used(low)), math.exp(dear)


def _fill(
    frontiers: Sequence[Frontier],
    loads: Sequence[float],
    ends: tuple[Sequence[Point], Sequence[Point]],
    left: float,
) -> list[Mixture]:
    """From the points just within the budget on towards those just beyond: all steps have the same worth, the last one is mixed."""
    mixtures: list[Mixture] = [[(point, 1.0)] for point in ends[0]]
    for i, (frontier, load) in enumerate(zip(frontiers, loads, strict=True)):
        here = ends[0][i]
        for point in frontier.between(here, ends[1][i]):
            need = load * (point.gpus - here.gpus)
            share = left / need if need > left else 1.0
            if isinstance(frontier, HullFrontier) and 0.0 < share < 1.0:
                mixtures[i] = [(here, 1.0 - share), (point, share)]
            elif share == 1.0:
                mixtures[i] = [(point, 1.0)]
            if share < 1.0:
                return mixtures
            here, left = point, left - need
    return mixtures


def _type_rental(kind: JobType, mixture: Mixture, price: float) -> TypeRental:
    gpus = kind.load * sum(point.gpus * share for point, share in mixture)
    pace = [kind.speedup.at(point.width) for point, _ in mixture]
    response = sum(kind.mean_hours / s * share for s, (_, share) in zip(pace, mixture, strict=True))
    return TypeRental(
        kind=kind,
        shares=tuple(Share(width=point.width, probability=share) for point, share in mixture),
        response_hours=response,
        gpus=gpus,
        spend=gpus * price,
        loss_per_hour=kind.load * sum(point.loss * share for point, share in mixture),
    )


def _used_up(kind: JobType, mixture: Mixture, widest: int) -> str:
    """The type's name if it stands at the widest width looked at, although it could use more."""
    if isinstance(kind.speedup, TableSpeedup) or kind.speedup.most <= widest:
        return ""
    return kind.name if max(point.width for point, _ in mixture) >= widest else ""


def _prices(types: Sequence[JobType], prices: Sequence[float] | None) -> list[float]:
    paid = [1.0] * len(types) if prices is None else [float(price) for price in prices]
    if len(paid) != len(types) or not all(0.0 < price < math.inf for price in paid):
        raise SettingsError(f"prices {paid}", expected=f"{len(types)} positive ones, one a type")
    return paid


def _check_types(types: Sequence[JobType]) -> None:
    if not types:
        raise JobError("no type of jobs", expected="at least one")
    names = [kind.name for kind in types]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise JobError(f"two types are called {double!r}", expected="a name for each")
    plain = [kind.name for kind in types if not kind.delay.in_usd]
    if plain and len(plain) < len(types):
        other = next(name for name in names if name not in plain)
        raise JobError(
            f"type {other!r} says what delay costs in USD, type {plain[0]!r} does not",
            expected="all of them or none: hours and USD do not add up",
            remedy="give each a price of delay, or a deadline and a value",
        )


def _check_budget(
    types: Sequence[JobType],
    frontiers: Sequence[Frontier],
    loads: Sequence[float],
    budget: float,
    *,
    money: bool,
) -> None:
    """Stable iff the budget is above the load at the widths that occupy the fewest GPUs (M8.1)."""
    if not 0.0 < budget < math.inf:
        raise SettingsError(f"a budget of {budget}", expected="a positive number")
    least = sum(load * one.best(math.inf).gpus for load, one in zip(loads, frontiers, strict=True))
    if budget <= least:
        unit = "USD per hour" if money else "GPUs"
        parts = ", ".join(f"{kind.name} {load:.4g}" for kind, load in zip(types, loads, strict=True))
        raise SettingsError(
            f"a budget of {budget:.6g} {unit} for a load of {least:.6g} ({parts}): unstable by {least - budget:.4g}",
            expected=f"more than {least:.6g} {unit}",
            remedy="raise the budget, or let fewer jobs in",
        )
