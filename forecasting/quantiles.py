"""The value of a forecast: quantiles of price and count for the slots after its issue time (M6.1, M6.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from warehouse.errors import ForecastError
from warehouse.history import Market

#: The quantile levels every forecast carries (M6.1), shape (19,).
LEVELS = np.round(np.arange(0.05, 0.951, 0.05), 2)
Variable = Literal["price", "count"]
#: Chance that a count lies below q05, where it can, and above q95: half of what the quantiles leave open.
TAIL = 0.025
#: From this count on all are one outcome of a law: four times what the widest job may hold (M2.8), so that no array grows with a
#: capacity.
WIDEST_LAW = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Issued at slot c for slots c+1..c+h: what one model believed then. Nothing overwrites a forecast.

    ``price`` and ``count`` are quantiles of shape (h, 19) at `LEVELS`; ``price_mean`` and ``count_mean`` have shape (h,).
    ``newest_row`` is the slot of the newest value it knew. ``price_fallback`` / ``count_fallback`` say why another,
    simpler model answered in its place ("" = it answered itself). ``backfilled`` marks a forecast made later for a
    past time, from what was known at that time.
    """

    market: Market
    issued_at: pd.Timestamp
    step: pd.Timedelta
    predictor: str
    newest_row: pd.Timestamp
    price: np.ndarray
    price_mean: np.ndarray
    count: np.ndarray
    count_mean: np.ndarray
    capacity: int
    price_fallback: str = ""
    count_fallback: str = ""
    backfilled: bool = False

    def __post_init__(self) -> None:
        validate_forecast(self)

    @property
    def horizon(self) -> int:
        """Number of slots ahead."""
        return int(self.price.shape[0])

    @property
    def slots(self) -> pd.DatetimeIndex:
        """Start of the slots it speaks of: c+1..c+h."""
        return pd.date_range(self.issued_at + self.step, periods=self.horizon, freq=self.step)

    @property
    def fallback(self) -> str:
        """Reasons of both variables in one label, "" if neither fell back."""
        labels = {f"price: {self.price_fallback}"} if self.price_fallback else set()
        labels |= {f"count: {self.count_fallback}"} if self.count_fallback else set()
        return "; ".join(sorted(labels))

    def quantiles(self, variable: Variable) -> np.ndarray:
        """Quantiles of one variable, shape (h, 19)."""
        return self.price if variable == "price" else self.count

    def mean(self, variable: Variable) -> np.ndarray:
        """Mean of one variable, shape (h,)."""
        return self.price_mean if variable == "price" else self.count_mean

    def median(self, variable: Variable) -> np.ndarray:
        """Median of one variable, shape (h,)."""
        return self.quantiles(variable)[:, 9]

    def probability_at_least(self, n: int, step_ahead: int) -> float:
        """P(count >= n) at ``step_ahead`` (1-based) by `count_law`; raises `ForecastError` above `WIDEST_LAW`."""
        if n > WIDEST_LAW:
            raise ForecastError(f"probability of {n:,} instances", expected=f"at most {WIDEST_LAW:,}")
        return float(count_law(self.count[step_ahead - 1], self.capacity)[max(0, n) :].sum())

    @property
    def frame(self) -> pd.DataFrame:
        """Long table: variable, step_ahead, slot, mean, q05..q95, fallback."""
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
    """P(value < at) by laws given by their quantiles (..., 19), for thresholds ``at`` (m,), shape (..., m).

    Linear between the levels, 0 or 1 beyond the outermost quantiles.
    """
    under = (quantiles[..., None, :] < at[:, None]).sum(axis=-1)
    left, right = np.clip(under - 1, 0, LEVELS.size - 1), np.minimum(under, LEVELS.size - 1)
    start = np.take_along_axis(quantiles, left, axis=-1)
    gap = np.take_along_axis(quantiles, right, axis=-1) - start
    share = (at - start) / np.where(gap > 0, gap, 1.0)
    reached = LEVELS[left] + share * (LEVELS[right] - LEVELS[left])
    return np.asarray(np.where(under == 0, 0.0, np.where(under == LEVELS.size, 1.0, reached)))


def count_law(quantiles: np.ndarray, capacity: int, tail: float = TAIL) -> np.ndarray:
    """The laws on 0..capacity of counts given by their quantiles (..., 19), shape (..., min(capacity, `WIDEST_LAW`) + 1).

    The last element of a law that ends before the capacity is the chance of its count or more. P(count < n) is `share_below`
    half a count below n. What the quantiles do not say is how likely it is below q05 and above q95: where there is room, each is
    given the chance ``tail``, evenly (ours). With none, outcomes that were called impossible came.
    """
    n = np.arange(min(capacity, WIDEST_LAW) + 1)
    low, high = quantiles[..., :1], quantiles[..., -1:]
    upto = share_below(quantiles, n + 0.5)
    below = tail * (n + 1) / np.maximum(low, 1.0)
    above = 1.0 - tail * (capacity - n) / np.maximum(capacity - high + 1.0, 1.0)
    upto = np.where(n < low, below, np.where(n >= high, above, upto))
    if capacity > WIDEST_LAW:
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
