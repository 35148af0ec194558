"""Forecast values: quantiles of price and count for the slots after the issue time (M6.1, M6.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from slackwater.warehouse.errors import ForecastError
from slackwater.warehouse.history import IssuedForecast

#: Quantile levels of every forecast (M6.1), shape (19,).
LEVELS = np.round(np.arange(0.05, 0.951, 0.05), 2)
Variable = Literal["price", "count"]
#: Probability assigned to counts below q05, and to counts above q95, where such counts exist: half of the 5 % that the
#: quantiles leave open on each side.
TAIL = 0.025
#: Counts from this value on are a single outcome of a distribution, so that no array grows with the capacity. It is four times
#: the largest size of a job (M2.8).
MOST_COUNT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(IssuedForecast):
    """Forecast of a model issued at slot c for slots c+1..c+h. A stored forecast is never overwritten.

    ``price`` and ``count`` are quantiles of shape (h, 19) at `LEVELS`; ``price_mean`` and ``count_mean`` have shape (h,).
    ``newest_row`` is the slot of the newest value known to the model. ``price_fallback`` and ``count_fallback`` give the
    reason why a simpler model replaced it ("" = no fallback). ``backfilled`` marks a forecast computed later for a past
    slot, from the data known at that slot.
    """

    def __post_init__(self) -> None:
        validate_forecast(self)

    @property
    def horizon(self) -> int:
        """Number of slots ahead."""
        return int(self.price.shape[0])

    @property
    def slots(self) -> pd.DatetimeIndex:
        """Starts of the forecast slots c+1..c+h."""
        return pd.date_range(self.issued_at + self.step, periods=self.horizon, freq=self.step)

    @property
    def fallback(self) -> str:
        """Fallback reasons of both variables in a single label, "" without a fallback."""
        labels = {f"price: {self.price_fallback}"} if self.price_fallback else set()
        labels |= {f"count: {self.count_fallback}"} if self.count_fallback else set()
        return "; ".join(sorted(labels))

    def quantiles(self, variable: Variable) -> np.ndarray:
        """Return the quantiles of a variable, shape (h, 19)."""
        return self.price if variable == "price" else self.count

    def mean(self, variable: Variable) -> np.ndarray:
        """Return the mean of a variable, shape (h,)."""
        return self.price_mean if variable == "price" else self.count_mean

    def median(self, variable: Variable) -> np.ndarray:
        """Return the median of a variable, shape (h,)."""
        return self.quantiles(variable)[:, 9]

    def probability_at_least(self, n: int, step_ahead: int) -> float:
        """Return P(count >= n) at ``step_ahead`` (1-based) from `count_distribution`; raises `ForecastError` above `MOST_COUNT`."""
        if n > MOST_COUNT:
            raise ForecastError(f"probability of {n:,} instances", expected=f"at most {MOST_COUNT:,}")
        return float(count_distribution(self.count[step_ahead - 1], self.capacity)[max(0, n) :].sum())

    @property
    def frame(self) -> pd.DataFrame:
        """Long table with columns variable, step_ahead, slot, mean, q05..q95, fallback."""
        parts = []
        for variable in ("price", "count"):
            table = pd.DataFrame(self.quantiles(variable), columns=[f"q{round(100 * q):02d}" for q in LEVELS])
            table.insert(0, "mean", self.mean(variable))
            table.insert(0, "slot", self.slots)
            table.insert(0, "step_ahead", np.arange(1, self.horizon + 1))
            table.insert(0, "variable", variable)
            table["fallback"] = self.price_fallback if variable == "price" else self.count_fallback
            parts.append(table)
        return pd.concat(parts, ignore_index=True)


def share_below(quantiles: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return P(value < at) (..., m) by quantiles (..., 19), linear between levels, 0 or 1 beyond; ``at`` (m,)."""
    under = (quantiles[..., None, :] < at[:, None]).sum(axis=-1)
    left, right = np.clip(under - 1, 0, LEVELS.size - 1), np.minimum(under, LEVELS.size - 1)
    start = np.take_along_axis(quantiles, left, axis=-1)
    gap = np.take_along_axis(quantiles, right, axis=-1) - start
    share = (at - start) / np.where(gap > 0, gap, 1.0)
    reached = LEVELS[left] + share * (LEVELS[right] - LEVELS[left])
    return np.asarray(np.where(under == 0, 0.0, np.where(under == LEVELS.size, 1.0, reached)))


def count_distribution(quantiles: np.ndarray, capacity: int, tail: float = TAIL) -> np.ndarray:
    """Convert quantiles (..., 19) of a count into probabilities of 0..capacity, shape (..., min(capacity, `MOST_COUNT`) + 1).

    If the capacity is above `MOST_COUNT`, the last element is the probability of that count or more. P(count < n) is
    `share_below` at n - 0.5. The quantiles do not describe the tails below q05 and above q95: where counts exist there,
    each tail gets the probability ``tail``, spread evenly (ours). Without it, counts were observed whose forecast
    probability was 0.
    """
    n = np.arange(min(capacity, MOST_COUNT) + 1)
    low, high = quantiles[..., :1], quantiles[..., -1:]
    upto = share_below(quantiles, n + 0.5)
    below = tail * (n + 1) / np.maximum(low, 1.0)
    above = 1.0 - tail * (capacity - n) / np.maximum(capacity - high + 1.0, 1.0)
    upto = np.where(n < low, below, np.where(n >= high, above, upto))
    if capacity > MOST_COUNT:
        upto[..., -1] = 1.0
    return np.asarray(np.diff(np.minimum(upto, 1.0), axis=-1, prepend=0.0))


def validate_forecast(forecast: Forecast) -> None:
    """Raise `ForecastError` on a wrong shape, a NaN, crossing quantiles, or values outside their bounds (M6.3)."""
    name = f"forecast of {forecast.market.key} by {forecast.predictor} at {forecast.issued_at}"
    horizon = forecast.price.shape[0]
    for variable in ("price", "count"):
        q, mean = forecast.quantiles(variable), forecast.mean(variable)
        if q.shape != (horizon, LEVELS.size) or mean.shape != (horizon,):
            raise ForecastError(
                f"{name}: {variable} of shape {q.shape}", expected=f"({horizon}, {LEVELS.size})"
            )
        if not (np.isfinite(q).all() and np.isfinite(mean).all()):
            raise ForecastError(f"{name}: {variable} is not finite", expected="numbers")
        if (np.diff(q, axis=1) < -1e-12).any():
            raise ForecastError(f"{name}: {variable} quantiles cross", expected="non-decreasing quantiles")
        if (q < 0).any():
            raise ForecastError(f"{name}: negative {variable}", expected="values >= 0")
    if (forecast.count > forecast.capacity).any():
        raise ForecastError(f"{name}: count above {forecast.capacity}", expected="counts within capacity")
    if forecast.newest_row > forecast.issued_at:
        raise ForecastError(f"{name}: knew {forecast.newest_row}", expected="no row later than its issue")
