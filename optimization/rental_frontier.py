"""What a type of jobs can buy: GPUs it occupies against the delay it suffers, per unit of load (M8.2, M8.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from optimization.rental_delay import Delay, PricedDelay
from optimization.rental_speedup import ConcaveSpeedup, Speedup, TableSpeedup
from warehouse.errors import JobError, SettingsError

#: No width beyond this is looked at where a speedup has no largest width of its own.
WIDEST = 2**17
#: Ratio of neighbouring widths of a type with a deadline where widths need not be whole; between them widths are mixed.
FINE = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class JobType:
    """Jobs of one kind (M8.1): arrivals per hour, mean size in hours on one GPU, speedup, and what delay costs."""

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
        """rho = lambda E[X]: GPUs that are busy on the mean at width 1."""
        return self.rate_per_hour * self.mean_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One width of a type: GPUs occupied per unit of load, k / s(k), and cost of delay per unit of load."""

    width: float
    gpus: float
    loss: float


class Frontier(Protocol):
    """The points of a type that are best at some price of a GPU."""

    def best(self, price: float) -> Point:
        """The point of least loss + price x gpus; the one of fewer GPUs where two are equal."""
        ...

    def between(self, low: Point, high: Point) -> list[Point]:
        """The points from ``low`` to ``high`` in steps that are ever less worth, without ``low``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothFrontier:
    """A concave speedup whose widths need not be whole, with a linear price of delay."""

    speedup: ConcaveSpeedup
    delay_price: float

    def best(self, price: float) -> Point:
        """By the speedup's own best width, at the price of a GPU in units of delay."""
        width = self.speedup.best_width(price / self.delay_price)
        pace = self.speedup.at(width)
        return Point(width=width, gpus=width / pace, loss=self.delay_price / pace)

    def between(self, low: Point, high: Point) -> list[Point]:
        """Both ends only: at one price they are one point."""
        return [high] if high.gpus > low.gpus else []


@dataclass(frozen=True, slots=True, kw_only=True)
class HullFrontier:
    """The lower convex hull of some points, gpus ascending and loss descending, shapes (n,) (M8.3)."""

    width: np.ndarray
    gpus: np.ndarray
    loss: np.ndarray
    worth: np.ndarray

    def best(self, price: float) -> Point:
        """After every step whose worth is above the price."""
        return self.point(int(np.searchsorted(-self.worth, -price, side="left")))

    def between(self, low: Point, high: Point) -> list[Point]:
        """The hull's corners after ``low`` up to ``high``."""
        first, last = np.searchsorted(self.gpus, [low.gpus, high.gpus], side="right")
        return [self.point(i) for i in range(int(first), int(last))]

    def point(self, i: int) -> Point:
        """Corner ``i``."""
        return Point(width=float(self.width[i]), gpus=float(self.gpus[i]), loss=float(self.loss[i]))


def hull_frontier(width: np.ndarray, gpus: np.ndarray, loss: np.ndarray) -> HullFrontier:
    """The lower left convex hull of points (gpus, loss), each at its width, by the monotone chain; shapes (n,).

    Where two widths are the same point the smaller one stays.
    """
    order = np.lexsort((width, loss, gpus))
    kept: list[int] = []
    for i in order.tolist():
        if kept and loss[i] >= loss[kept[-1]]:
            continue
        while len(kept) >= 2 and _above(gpus, loss, kept[-2], kept[-1], i):
            kept.pop()
        kept.append(i)
    chosen = np.array(kept)
    x, y = np.asarray(gpus, dtype=float)[chosen], np.asarray(loss, dtype=float)[chosen]
    with np.errstate(divide="ignore"):
        worth = -np.diff(y) / np.diff(x)
    return HullFrontier(width=np.asarray(width, dtype=float)[chosen], gpus=x, loss=y, worth=worth)


def _above(x: np.ndarray, y: np.ndarray, a: int, b: int, c: int) -> bool:
    """Whether ``b`` lies on or above the line from ``a`` to ``c``."""
    return bool((y[b] - y[a]) * (x[c] - x[a]) >= (y[c] - y[a]) * (x[b] - x[a]))


def widths_of(speedup: Speedup, *, whole: bool, widest: int) -> np.ndarray:
    """The widths to be looked at, ascending: measured ones, whole ones, or a fine grid; none above ``widest``."""
    if isinstance(speedup, TableSpeedup):
        return np.array(speedup.gpus, dtype=float)
    last = min(speedup.most, float(widest))
    if whole:
        return np.arange(1.0, np.floor(last) + 1.0)
    fine = FINE ** np.arange(np.floor(np.log(last) / np.log(FINE)) + 1)
    return np.unique(np.append(fine[fine <= last], last))


def frontier_of(kind: JobType, *, whole: bool, widest: int) -> Frontier:
    """The frontier of a type; ``widest`` bounds the widths of a hull. Raises `SettingsError` for a speedup of no known kind."""
    price = kind.delay.linear_price
    if price is not None and not whole and not isinstance(kind.speedup, TableSpeedup):
        if not isinstance(kind.speedup, ConcaveSpeedup):
            raise SettingsError(
                f"type {kind.name!r}: a speedup of type {type(kind.speedup).__name__} without best_width",
                expected="a concave speedup or a table",
            )
        return SmoothFrontier(speedup=kind.speedup, delay_price=price)
    width = widths_of(kind.speedup, whole=whole, widest=widest)
    pace = np.array([kind.speedup.at(float(k)) for k in width])
    loss = kind.delay.expected(kind.mean_hours / pace) / kind.mean_hours
    return hull_frontier(width, width / pace, loss)
