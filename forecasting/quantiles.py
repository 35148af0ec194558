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
        """P(count >= n) at ``step_ahead`` (1-based), from the quantiles: the share of levels whose value is at least n."""
        values = self.count[step_ahead - 1]
        if n <= 0:
            return 1.0
        return float(1.0 - np.interp(n - 0.5, values, LEVELS, left=0.0, right=1.0))

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
