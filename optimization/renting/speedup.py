"""Properties of a job type: its speedup and its size distribution (M8.1, M8.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slackwater.warehouse.errors import SettingsError

ROUNDING = 1e-9  # Rounding tolerance of s(1) = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdahlSpeedup:
    """s(k) = 1 / ((1 - f) + f / k): a share f of the work is parallel; best width sqrt(f / ((1 - f) price)) (M8.2).

    Raises `SettingsError` unless 0 <= f <= 1, and for f = 1 without ``most``, where the best width
    is unbounded.
    """

    parallel: float
    most: float = math.inf

    def __post_init__(self) -> None:
        _check_most(self.most)
        if not 0.0 <= self.parallel <= 1.0:
            raise SettingsError(f"a parallel share of {self.parallel}", expected="0 to 1")
        _check_end(self.parallel == 1.0, self.most, "all work parallel")

    def at(self, width: float) -> float:
        """Return s(width)."""
        return 1.0 / ((1.0 - self.parallel) + self.parallel / width)

    def best_width(self, price: float) -> float:
        """Return the argmin of (1 + price k) / s(k) between 1 and ``most``."""
        if self.parallel == 1.0:
            return self.most
        best = math.sqrt(self.parallel / ((1.0 - self.parallel) * price))
        return min(self.most, max(1.0, best))


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSpeedup:
    """s(k) = k^p; best width p / ((1 - p) price) (M8.2).

    Raises `SettingsError` unless 0 < p <= 1, and for p = 1 without ``most``, where the best width
    is unbounded.
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
        """Return s(width)."""
        return float(width**self.exponent)

    def best_width(self, price: float) -> float:
        """Return the argmin of (1 + price k) / s(k) between 1 and ``most``."""
        if self.exponent == 1.0:
            return self.most
        best = self.exponent / ((1.0 - self.exponent) * price)
        return min(self.most, max(1.0, best))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpeedup:
    """Measured s at some whole widths, concave or not; only these widths are used (M8.3).

    ``gpus`` ascends, and ``speedups`` has a value for each. If the smallest width is k0 > 1 (the
    job does not fit on fewer GPUs), sizes are in GPU-hours on k0 GPUs, and s(k0) = k0 (ours).
    Raises `SettingsError` for s(k0) != k0 and for a speedup that is not increasing.
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
        """Largest measured width."""
        return float(self.gpus[-1])

    def at(self, width: float) -> float:
        """Return s(width), linear between measured widths; raises `SettingsError` outside of them."""
        if not self.gpus[0] <= width <= self.gpus[-1]:
            raise SettingsError(
                f"a width of {width:g} GPUs", expected=f"{self.gpus[0]} to {self.gpus[-1]}, as measured"
            )
        return float(np.interp(width, self.gpus, self.speedups))


#: Concave speedups: a single width is best at any price of a GPU (M8.2).
ConcaveSpeedup = AmdahlSpeedup | PowerSpeedup
#: Speedup s(k) for k >= 1 GPUs with s(1) = 1, increasing; ``most`` is the largest usable width.
Speedup = ConcaveSpeedup | TableSpeedup


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
# Distributions of job sizes, for simulations of renting and for deadlines (M8.5).


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Exponential distribution, P(X > x) = exp(-x)."""

    name: str = "exponential"

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return ``count`` sizes, shape (count,)."""
        return rng.exponential(size=count)

    def mean_between(self, low: float, high: float) -> float:
        """Return exp(-low) - exp(-high)."""
        return math.exp(-low) - math.exp(-high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deterministic:
    """Constant size X = 1."""

    name: str = "deterministic"

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return ``count`` sizes, shape (count,)."""
        return np.ones(count)

    def mean_between(self, low: float, high: float) -> float:
        """Return the length of the part of [low, high] below 1."""
        return max(0.0, min(1.0, high) - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyTailed:
    """Lomax distribution (shifted Pareto), P(X > x) = (1 + x / (a - 1))^-a; finite variance, since a > 2."""

    shape: float = 2.5
    name: str = "heavy-tailed"

    def __post_init__(self) -> None:
        if not self.shape > 2.0:
            raise SettingsError(f"a tail of shape {self.shape}", expected="above 2: a finite variance")

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return ``count`` sizes, shape (count,)."""
        return (self.shape - 1.0) * rng.pareto(self.shape, size=count)

    def mean_between(self, low: float, high: float) -> float:
        """Return (1 + low / (a - 1))^(1 - a) - (1 + high / (a - 1))^(1 - a)."""
        scale, power = self.shape - 1.0, 1.0 - self.shape
        return float((1.0 + low / scale) ** power - (1.0 + high / scale) ** power)


#: Distribution of sizes with mean 1; the size of a job is the mean of its type times a draw.
SizeDistribution = Exponential | Deterministic | HeavyTailed


#: Size distributions by their name in a file of types.
SIZE_DISTRIBUTIONS: dict[str, SizeDistribution] = {
    distribution.name: distribution for distribution in (Exponential(), Deterministic(), HeavyTailed())
}
