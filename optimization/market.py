"""What the optimizer sees of a market: prices and counts per slot, observed or forecast (M1.1, M3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecasting.forecast import Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketWindow:
    """Consecutive slots of one market.

    ``price`` (USD per instance-hour) and ``available`` (instances) have shape (slots,). ``observed`` is False in a gap
    (M1.3); there, ``available`` must be 0: an unknown count gives no right to spot (ours).
    """

    price: np.ndarray
    available: np.ndarray
    on_demand_usd: float
    slot_hours: float
    observed: np.ndarray

    def __len__(self) -> int:
        return int(self.price.shape[0])

    def cut(self, start: int, stop: int) -> MarketWindow:
        """Slots start..stop-1."""
        return MarketWindow(
            price=self.price[start:stop],
            available=self.available[start:stop],
            on_demand_usd=self.on_demand_usd,
            slot_hours=self.slot_hours,
            observed=self.observed[start:stop],
        )


def market_window(
    price: np.ndarray, available: np.ndarray, *, on_demand_usd: float, slot_hours: float
) -> MarketWindow:
    """Build a window from arrays with NaN in gaps: a gap has no spot (count 0) and is priced at on-demand (ours)."""
    price = np.asarray(price, dtype=float)
    count = np.asarray(available, dtype=float)
    observed = ~(np.isnan(price) | np.isnan(count))
    return MarketWindow(
        price=np.where(observed, price, on_demand_usd),
        available=np.where(observed, count, 0).astype(np.int64),
        on_demand_usd=float(on_demand_usd),
        slot_hours=float(slot_hours),
        observed=observed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PointForecast:
    """What a plan reads of a forecast: one price and one count per slot ahead, shapes (h,); element 0 is slot t+1."""

    price: np.ndarray
    available: np.ndarray


def point_forecast(forecast: Forecast) -> PointForecast:
    """Median price and median count rounded down: half the time at least that many are there (ours)."""
    return PointForecast(
        price=forecast.median("price").astype(float),
        available=np.floor(forecast.median("count") + 1e-9).astype(np.int64),
    )
