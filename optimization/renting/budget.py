"""Renting of GPUs for a stream of jobs on a budget: each type gets a fixed width at once, without queueing (M8, paper B).

A type of jobs trades the GPUs it occupies against its delay, per unit of load (M8.2, M8.3). The problem is to
minimise the cost of delay, sum over i of rho_i l_i(k_i), subject to sum over i of rho_i p_i k_i / s_i(k_i) <=
b. With l = 1 / s and p = 1 the objective is lambda E[T] within a budget of b GPUs (M8.2); other l and p are
ours (M8.6). All types share a multiplier: the price of a GPU at which each type alone would choose its width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slackwater.optimization.renting.price import Delay, PricedDelay
from slackwater.optimization.renting.speedup import ConcaveSpeedup, Speedup, TableSpeedup
from slackwater.warehouse.errors import JobError, SettingsError

WIDEST = 2**17  # Maximal width to consider for a speedup without a largest width
#: Ratio of neighbouring widths in the grid of a type with a deadline and fractional widths; widths
#: between them are mixtures.
FINE = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class JobType:
    """Jobs of one kind (M8.1): arrivals per hour, mean size in hours on one GPU, speedup, and cost of delay."""

    name: str
    rate_per_hour: float
    mean_hours: float
    speedup: Speedup
    delay: Delay = field(default_factory=PricedDelay)

    def __post_init__(self) -> None:
        for what, value in (("arrival rate", self.rate_per_hour), ("mean size", self.mean_hours)):
            if not 0.0 < value < float("inf"):
                raise JobError(f"type {self.name!r}: {what} {value}", expected="a positive number")

    @property
    def load(self) -> float:
        """rho = lambda E[X]: mean number of busy GPUs at width 1."""
        return self.rate_per_hour * self.mean_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Width of a type with its GPUs per unit of load, k / s(k), and its cost of delay per unit of load."""

    width: float
    gpus: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothFrontier:
    """Frontier of a concave speedup with fractional widths and a linear price of delay."""

    speedup: ConcaveSpeedup
    delay_price: float

    def best(self, price: float) -> Point:
        """Return the best width of the speedup at the price of a GPU in units of delay."""
        width = self.speedup.best_width(price / self.delay_price)
        pace = self.speedup.at(width)
        return Point(width=width, gpus=width / pace, loss=self.delay_price / pace)

    def between(self, low: Point, high: Point) -> list[Point]:
        """Return ``high`` alone if it differs from ``low``: at the same price both are the same point."""
        return [high] if high.gpus > low.gpus else []


@dataclass(frozen=True, slots=True, kw_only=True)
class HullFrontier:
    """Lower hull of points (n,), gpus ascending, loss descending (M8.3); ``worth`` (n - 1,): loss saved per GPU."""

    width: np.ndarray
    gpus: np.ndarray
    loss: np.ndarray
    worth: np.ndarray

    def best(self, price: float) -> Point:
        """Return the point after every step whose benefit exceeds the price."""
        return self.point(int(np.searchsorted(-self.worth, -price, side="left")))

    def between(self, low: Point, high: Point) -> list[Point]:
        """Return the corners of the hull after ``low`` up to ``high``."""
        first, last = np.searchsorted(self.gpus, [low.gpus, high.gpus], side="right")
        return [self.point(i) for i in range(int(first), int(last))]

    def point(self, i: int) -> Point:
        """Return corner ``i``."""
        return Point(width=float(self.width[i]), gpus=float(self.gpus[i]), loss=float(self.loss[i]))


Frontier = SmoothFrontier | HullFrontier  # Points of a type that are optimal at some price of a GPU


def hull_frontier(width: np.ndarray, gpus: np.ndarray, loss: np.ndarray) -> HullFrontier:
    """Return the lower left hull of points (gpus, loss) at widths (n,), by the monotone chain; ties: less width."""
    order = np.lexsort((width, loss, gpus))
    kept: list[int] = []
    for i in order.tolist():
        if kept and loss[i] >= loss[kept[-1]]:
            continue
        while len(kept) >= 2 and _is_above_line(gpus, loss, kept[-2], kept[-1], i):
            kept.pop()
        kept.append(i)
    chosen = np.array(kept)
    x, y = np.asarray(gpus, dtype=float)[chosen], np.asarray(loss, dtype=float)[chosen]
    with np.errstate(divide="ignore"):
        worth = -np.diff(y) / np.diff(x)
    return HullFrontier(width=np.asarray(width, dtype=float)[chosen], gpus=x, loss=y, worth=worth)


def _is_above_line(x: np.ndarray, y: np.ndarray, a: int, b: int, c: int) -> bool:
    """Return whether ``b`` lies on or above the line from ``a`` to ``c``."""
    return bool((y[b] - y[a]) * (x[c] - x[a]) >= (y[c] - y[a]) * (x[b] - x[a]))


def widths_of(speedup: Speedup, *, whole: bool, widest: int) -> np.ndarray:
    """Return the widths to consider, ascending: measured, whole, or a fine grid; none above ``widest``."""
    if isinstance(speedup, TableSpeedup):
        return np.array(speedup.gpus, dtype=float)
    last = min(speedup.most, float(widest))
    if whole:
        return np.arange(1.0, np.floor(last) + 1.0)
    fine = FINE ** np.arange(np.floor(np.log(last) / np.log(FINE)) + 1)
    return np.unique(np.append(fine[fine <= last], last))


def frontier_of(kind: JobType, *, whole: bool, widest: int) -> Frontier:
    """Return the frontier of a type; ``widest`` limits the widths of a hull."""
    price = kind.delay.linear_price
    if price is not None and not whole and not isinstance(kind.speedup, TableSpeedup):
        return SmoothFrontier(speedup=kind.speedup, delay_price=price)
    width = widths_of(kind.speedup, whole=whole, widest=widest)
    pace = np.array([kind.speedup.at(float(k)) for k in width])
    loss = kind.delay.expected_loss(kind.mean_hours / pace) / kind.mean_hours
    return hull_frontier(width, width / pace, loss)


#: Bisections of the logarithm of the multiplier: enough to reach neighbouring floating-point numbers.
HALVINGS = 200
REACH = 1e30  # The multiplier is searched within this factor of 1, in both directions
FIRST_WIDEST = 64  # Initial maximal whole width; doubled while a type uses it


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Width and the probability that an arriving job gets it."""

    width: float
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRental:
    """Rental of a job type.

    ``shares`` is a single width or a mixture of two. ``response_hours`` is the mean response time,
    ``gpus`` the mean number of GPUs, ``spend`` that number times the type's price,
    ``loss_per_hour`` the cost of its delay.
    """

    kind: JobType
    shares: tuple[Share, ...]
    response_hours: float
    gpus: float
    spend: float
    loss_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """Widths for all types; ``spend`` of ``budget`` is used, in the unit of the budget (GPUs, or USD per hour).

    ``multiplier`` is the reduction of ``loss_per_hour`` by an additional unit of budget; 0 if more
    budget has no use. If delay is counted in hours, the loss per hour is lambda E[T], the mean
    number of jobs in the system.
    """

    types: tuple[TypeRental, ...]
    budget: float
    spend: float
    multiplier: float

    @property
    def rate_per_hour(self) -> float:
        """Arrivals of all types per hour."""
        return sum(kind.kind.rate_per_hour for kind in self.types)

    @property
    def response_hours(self) -> float:
        """E[T] = (1 / lambda) sum rho_i / s_i(k_i), over all jobs (M8.2)."""
        return sum(kind.kind.rate_per_hour * kind.response_hours for kind in self.types) / self.rate_per_hour

    @property
    def loss_per_hour(self) -> float:
        """Minimised cost of delay of all types per hour."""
        return sum(kind.loss_per_hour for kind in self.types)

    @property
    def gpus(self) -> float:
        """Mean number of GPUs."""
        return sum(kind.gpus for kind in self.types)

    @property
    def mixed(self) -> str | None:
        """Name of the only type that mixes two widths, or None."""
        return next((kind.kind.name for kind in self.types if len(kind.shares) > 1), None)


def rent(
    types: Sequence[JobType], budget: float, *, whole: bool = False, prices: Sequence[float] | None = None
) -> Rental:
    """Return the optimal fixed widths for ``budget``.

    The budget is in GPUs on long-run average, or in USD per hour with ``prices`` per GPU-hour of
    each type. With ``whole`` widths are whole numbers of GPUs; measured tables always are. At most
    one type mixes two widths (M8.3), without loss: the mixture is a point of the convex hull.
    Raises `JobError` for types that cannot be compared, and `SettingsError` for a budget that is
    not a positive number or does not cover the load (M8.1).
    """
    paid = _prices(types, prices)
    _check_types(types)
    loads = [kind.load * price for kind, price in zip(types, paid, strict=True)]
    widest = FIRST_WIDEST if whole else WIDEST
    while True:
        frontiers = [frontier_of(kind, whole=whole, widest=widest) for kind in types]
        _check_budget(types, frontiers, loads, budget, money=prices is not None)
        points, multiplier = _best_mixtures(frontiers, loads, paid, budget)
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
    return Rental(
        types=chosen, budget=budget, spend=sum(rented.spend for rented in chosen), multiplier=multiplier
    )


Mixture = list[tuple[Point, float]]  # Up to two points of a type, each with its probability


def _best_mixtures(
    frontiers: Sequence[Frontier], loads: Sequence[float], prices: Sequence[float], budget: float
) -> tuple[list[Mixture], float]:
    """Return the mixtures that use the budget, and the multiplier, by bisection and the steepest steps (M8.2, M8.3)."""

    def best_points(multiplier: float) -> list[Point]:
        return [frontier.best(multiplier * price) for frontier, price in zip(frontiers, prices, strict=True)]

    def gpus_of(points: Sequence[Point]) -> float:
        return sum(load * point.gpus for load, point in zip(loads, points, strict=True))

    highest, lowest = math.log(REACH), -math.log(REACH)
    if gpus_of(best_points(math.exp(lowest))) <= budget:
        return [[(point, 1.0)] for point in best_points(math.exp(lowest))], 0.0
    for _ in range(HALVINGS):
        middle = (highest + lowest) / 2.0
        if gpus_of(best_points(math.exp(middle))) <= budget:
            highest = middle
        else:
            lowest = middle
    within, beyond = best_points(math.exp(highest)), best_points(math.exp(lowest))
    return _fill(frontiers, loads, (within, beyond), budget - gpus_of(within)), math.exp(highest)


def _fill(
    frontiers: Sequence[Frontier],
    loads: Sequence[float],
    ends: tuple[Sequence[Point], Sequence[Point]],
    left: float,
) -> list[Mixture]:
    """Extend the points within the budget by steps of equal benefit toward those beyond; the last step is mixed."""
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
    """Return the name of the type if it uses the widest width considered and could use more, else ""."""
    if isinstance(kind.speedup, TableSpeedup) or kind.speedup.most <= widest:
        return ""
    return kind.name if max(point.width for point, _ in mixture) >= widest else ""


def _prices(types: Sequence[JobType], prices: Sequence[float] | None) -> list[float]:
    paid = [1.0] * len(types) if prices is None else [float(price) for price in prices]
    if len(paid) != len(types) or not all(0.0 < price < math.inf for price in paid):
        raise SettingsError(f"prices {paid}", expected=f"{len(types)} positive prices, one for each type")
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
    """Raise `SettingsError` unless the budget exceeds the load at the widths with the fewest GPUs (M8.1)."""
    if not 0.0 < budget < math.inf:
        raise SettingsError(f"a budget of {budget}", expected="a positive number")
    least = sum(load * frontier.best(math.inf).gpus for load, frontier in zip(loads, frontiers, strict=True))
    if budget <= least:
        unit = "USD per hour" if money else "GPUs"
        parts = ", ".join(f"{kind.name} {load:.4g}" for kind, load in zip(types, loads, strict=True))
        raise SettingsError(
            f"a budget of {budget:.6g} {unit} for a load of {least:.6g} ({parts}): unstable by {least - budget:.4g}",
            expected=f"more than {least:.6g} {unit}",
            remedy="raise the budget, or let fewer jobs in",
        )
