"""How sizes of jobs are distributed, and how they arrive: what renting is simulated with, and what deadlines need (M8.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from warehouse.errors import SettingsError

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
