"""What a type of jobs is made of: its speedup, its sizes, and how it arrives (M8.1, M8.5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from scipy.optimize import minimize_scalar

from warehouse.errors import SettingsError

# ---
# How much faster a job runs on k GPUs than on one: s(k), for renting on a budget (M8.1).

#: Points at which a speedup given as a function is looked at before it is believed.
PROBES = 200
#: How far s(1) may be from 1, and a speedup from concave, by rounding.
ROUNDING = 1e-9


class Speedup(Protocol):
    """s(k) for k >= 1 GPUs, with s(1) = 1, increasing; an immutable value."""

    @property
    def most(self) -> float:
        """The largest width of use, infinite where there is none."""
        ...

    def at(self, width: float) -> float:
        """s(width): how many times faster than on one GPU."""
        ...


@runtime_checkable
class ConcaveSpeedup(Speedup, Protocol):
    """A concave speedup: one width is best at any price of a GPU (M8.2)."""

    def best_width(self, price: float) -> float:
        """argmin over k of (1 + price k) / s(k), ``price`` > 0 in units of delay per GPU."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdahlSpeedup:
    """s(k) = 1 / ((1 - f) + f / k): a share f of the work is parallel; best width sqrt(f / ((1 - f) price)) (M8.2).

    Raises `SettingsError` unless 0 <= f <= 1, and for f = 1 without ``most``: its best width has no end.
    """

    parallel: float
    most: float = math.inf

    def __post_init__(self) -> None:
        _check_most(self.most)
        if not 0.0 <= self.parallel <= 1.0:
            raise SettingsError(f"a parallel share of {self.parallel}", expected="0 to 1")
        _check_end(self.parallel == 1.0, self.most, "all work parallel")

    def at(self, width: float) -> float:
        """s(width)."""
        return 1.0 / ((1.0 - self.parallel) + self.parallel / width)

    def best_width(self, price: float) -> float:
        """argmin of (1 + price k) / s(k), within 1 and ``most``."""
        if self.parallel == 1.0:
            return self.most
        best = math.sqrt(self.parallel / ((1.0 - self.parallel) * price))
        return min(self.most, max(1.0, best))


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSpeedup:
    """s(k) = k^p; best width p / ((1 - p) price) (M8.2).

    Raises `SettingsError` unless 0 < p <= 1, and for p = 1 without ``most``: its best width has no end.
    """

    exponent: float
    most: float = math.inf

    def __post_init__(self) -> None:
        _check_most(self.most)
        if not 0.0 < self.exponent <= 1.0:
            raise SettingsError(
                f"an exponent of {self.exponent}",
                expected="above 0, at most 1",
                remedy="a speedup beyond linear is a measured one: give it as a table",
            )
        _check_end(self.exponent == 1.0, self.most, "an exponent of 1")

    def at(self, width: float) -> float:
        """s(width)."""
        return float(width**self.exponent)

    def best_width(self, price: float) -> float:
        """argmin of (1 + price k) / s(k), within 1 and ``most``."""
        if self.exponent == 1.0:
            return self.most
        best = self.exponent / ((1.0 - self.exponent) * price)
        return min(self.most, max(1.0, best))


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpeedup:
    """Any concave s(k) on 1..``most``, given as a function; the best width is found by search.

    Raises `SettingsError` if s(1) is not 1, or s is not increasing or not concave at one of `PROBES` widths.
    """

    function: Callable[[float], float]
    most: float

    def __post_init__(self) -> None:
        _check_most(self.most)
        _check_end(True, self.most, "a speedup given as a function")
        widths = np.geomspace(1.0, self.most, PROBES) if self.most > 1.0 else np.array([1.0])
        values = np.array([self.function(float(k)) for k in widths])
        _check_one(float(values[0]))
        _check_increasing(widths, values)
        slopes = np.diff(values) / np.diff(widths)
        bent = np.flatnonzero(np.diff(slopes) > ROUNDING * max(1.0, float(np.abs(slopes).max(initial=0.0))))
        if len(bent):
            at = widths[bent[0] + 1]
            raise SettingsError(
                f"a speedup that is not concave: it steepens at {at:.4g} GPUs",
                expected="a concave function",
                remedy="give measured speedups as a table, for which widths are mixed (M8.3)",
            )

    def at(self, width: float) -> float:
        """s(width)."""
        return float(self.function(width))

    def best_width(self, price: float) -> float:
        """argmin of (1 + price k) / s(k): quasi-convex where s is concave, so that a bounded search finds it."""

        def cost(width: float) -> float:
            return (1.0 + price * width) / self.at(width)

        if self.most == 1.0 or math.isinf(price):  # k / s(k) grows where s is concave
            return 1.0
        found = minimize_scalar(cost, bounds=(1.0, self.most), method="bounded", options={"xatol": 1e-10})
        return min((1.0, self.most, float(found.x)), key=cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpeedup:
    """Measured s at some whole widths, concave or not; only these widths are used (M8.3).

    ``gpus`` ascends, and ``speedups`` has one value each. Where the smallest width is k0 > 1 (the job does not fit on fewer GPUs)
    sizes are counted in GPU-hours on k0 GPUs, and s(k0) = k0 (ours). Raises `SettingsError` for s(k0) != k0 and for a
    speedup that does not grow.
    """

    gpus: tuple[int, ...]
    speedups: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus", tuple(self.gpus))
        object.__setattr__(self, "speedups", tuple(float(s) for s in self.speedups))
        if not self.gpus or len(self.gpus) != len(self.speedups):
            raise SettingsError(
                f"a table of {len(self.gpus)} widths and {len(self.speedups)} speedups",
                expected="one speedup for each width, at least one",
            )
        widths, values = np.array(self.gpus, dtype=float), np.array(self.speedups)
        if (widths < 1).any() or (widths != np.floor(widths)).any() or (np.diff(widths) <= 0).any():
            raise SettingsError(f"widths {self.gpus}", expected="whole numbers of GPUs, ascending from 1")
        _check_one(self.speedups[0], width=self.gpus[0])
        _check_increasing(widths, values)

    @property
    def most(self) -> float:
        """The largest measured width."""
        return float(self.gpus[-1])

    def at(self, width: float) -> float:
        """s(width); linear between measured widths. Raises `SettingsError` outside of them."""
        if not self.gpus[0] <= width <= self.gpus[-1]:
            raise SettingsError(
                f"a width of {width:g} GPUs", expected=f"{self.gpus[0]} to {self.gpus[-1]}, as measured"
            )
        return float(np.interp(width, self.gpus, self.speedups))


def _check_most(most: float) -> None:
    if not most >= 1.0:
        raise SettingsError(f"a largest width of {most} GPUs", expected="at least 1")


def _check_end(endless: bool, most: float, what: str) -> None:
    if endless and math.isinf(most):
        raise SettingsError(
            f"{what} and no largest width: the more GPUs the better, without end",
            expected="a largest width",
            remedy="say how many GPUs such a job can use with `most`",
        )


def _check_one(value: float, width: int = 1) -> None:
    if not abs(value - width) <= ROUNDING * width:
        raise SettingsError(
            f"a speedup of {value:g} on {width} GPU{'s' if width > 1 else ''}",
            expected=f"s({width}) = {width}",
            remedy=f"divide all speedups by {value / width:g} and count sizes in hours at that width"
            if value > 0
            else "speedups are positive",
        )


def _check_increasing(widths: np.ndarray, values: np.ndarray) -> None:
    if not np.isfinite(values).all() or (values <= 0).any():
        raise SettingsError(f"speedups {values.tolist()[:8]}", expected="finite positive numbers")
    falls = np.flatnonzero(np.diff(values) <= 0)
    if len(falls):
        i = int(falls[0])
        raise SettingsError(
            f"a speedup of {values[i + 1]:g} on {widths[i + 1]:g} GPUs after {values[i]:g} on {widths[i]:g}",
            expected="a speedup that grows with the GPUs",
            remedy=f"leave {widths[i + 1]:g} GPUs out: they cost more and finish no sooner",
        )


# ---
# How sizes of jobs are distributed, and how they arrive: what renting is simulated with, and what deadlines need (M8.5).

ArrivalLaw = Literal["poisson", "batches", "modulated"]
ARRIVAL_LAWS: tuple[ArrivalLaw, ...] = ("poisson", "batches", "modulated")


class SizeLaw(Protocol):
    """A distribution of sizes with mean 1; a job's size is its type's mean times a draw."""

    @property
    def name(self) -> str:
        """What it is called in a file of types."""

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """``count`` sizes in units of their mean, shape (count,)."""
        ...

    def mean_between(self, low: float, high: float) -> float:
        """Integral of P(X > x) over 0 <= ``low`` <= x <= ``high``, in units of the mean: E[clip(X - low, 0, high - low)]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """P(X > x) = exp(-x)."""

    name: str = "exponential"

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """``count`` sizes, shape (count,)."""
        return rng.exponential(size=count)

    def mean_between(self, low: float, high: float) -> float:
        """exp(-low) - exp(-high)."""
        return math.exp(-low) - math.exp(-high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deterministic:
    """X = 1 always."""

    name: str = "deterministic"

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """``count`` sizes, shape (count,)."""
        return np.ones(count)

    def mean_between(self, low: float, high: float) -> float:
        """The part of [low, high] below 1."""
        return max(0.0, min(1.0, high) - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyTailed:
    """Lomax (shifted Pareto): P(X > x) = (1 + x / (a - 1))^-a; a > 2, so its variance is finite."""

    shape: float = 2.5
    name: str = "heavy-tailed"

    def __post_init__(self) -> None:
        if not self.shape > 2.0:
            raise SettingsError(f"a tail of shape {self.shape}", expected="above 2: a finite variance")

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """``count`` sizes, shape (count,)."""
        return (self.shape - 1.0) * rng.pareto(self.shape, size=count)

    def mean_between(self, low: float, high: float) -> float:
        """(1 + low / (a - 1))^(1 - a) - (1 + high / (a - 1))^(1 - a)."""
        scale, power = self.shape - 1.0, 1.0 - self.shape
        return float((1.0 + low / scale) ** power - (1.0 + high / scale) ** power)


#: The laws a file of types may name.
SIZE_LAWS: dict[str, SizeLaw] = {law.name: law for law in (Exponential(), Deterministic(), HeavyTailed())}

#: Bursts: mean jobs of a batch; the rates of the two states of a modulated stream in units of the mean; how many mean gaps
#: a state lasts on the mean.
BATCH, CALM, BUSY, STAY = 4.0, 0.25, 1.75, 20.0


def arrival_times(
    law: ArrivalLaw, rate_per_hour: float, hours: float, rng: np.random.Generator
) -> np.ndarray:
    """Ascending arrival times in [0, ``hours``) at ``rate_per_hour`` on the mean, shape (n,).

    "poisson"; "batches": a Poisson stream of batches of geometric size, mean `BATCH`; "modulated": Poisson at `CALM` or
    `BUSY` times the rate in turns of exponential length, mean `STAY` gaps. All are stationary. Raises `SettingsError` for
    another law.
    """
    if law == "poisson":
        return np.sort(rng.uniform(0.0, hours, rng.poisson(rate_per_hour * hours)))
    if law == "batches":
        starts = np.sort(rng.uniform(0.0, hours, rng.poisson(rate_per_hour / BATCH * hours)))
        return np.repeat(starts, rng.geometric(1.0 / BATCH, len(starts)))
    if law == "modulated":
        return _modulated(rate_per_hour, hours, rng)
    raise SettingsError(f"arrivals {law!r}", expected=f"one of {', '.join(ARRIVAL_LAWS)}")


def _modulated(rate_per_hour: float, hours: float, rng: np.random.Generator) -> np.ndarray:
    """Both states last equally long on the mean, and the first is drawn, so that the stream is stationary."""
    turn = STAY / rate_per_hour
    ends = np.cumsum(rng.exponential(turn, int(2 * hours / turn) + 50))
    while ends[-1] < hours:
        ends = np.concatenate([ends, ends[-1] + np.cumsum(rng.exponential(turn, 50))])
    first = int(rng.integers(2))
    fastest = np.sort(rng.uniform(0.0, hours, rng.poisson(BUSY * rate_per_hour * hours)))
    busy = (np.searchsorted(ends, fastest, side="right") + first) % 2 == 1
    return np.asarray(fastest[busy | (rng.random(len(fastest)) < CALM / BUSY)])
