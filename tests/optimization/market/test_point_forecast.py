"""Point forecasts used by plans: median price, and median count in whole instances."""

import numpy as np
import pandas as pd

from slackwater.forecasting.quantiles import LEVELS, Forecast
from slackwater.optimization.market.window import point_forecast, whole_counts
from slackwater.warehouse.history import Market


def forecast_of(counts: list[float], prices: list[float]) -> Forecast:
    """Return a forecast with these medians; its other quantiles are spaced by a tenth of a count and of a price."""
    spread = 10.0 * (LEVELS - 0.5)
    at = pd.Timestamp("2026-01-01", tz="UTC")
    return Forecast(
        market=Market.parse("a/b/c/d"),
        issued_at=at,
        step=pd.Timedelta(minutes=30),
        predictor="by hand",
        newest_row=at,
        price=np.maximum(np.array(prices)[:, None] + 0.01 * spread, 0.0),
        price_mean=np.array(prices),
        count=np.clip(np.array(counts)[:, None] + spread, 0.0, 16.0),
        count_mean=np.array(counts),
        capacity=16,
    )


def test_counts_are_rounded_down_to_whole_instances():
    """Counts are rounded down, not up or to even, except where only a rounding error separates them from the next integer."""
    told = point_forecast(forecast_of([2.0, 2.4, 2.5, 2.6, 3.5, 2.9999999999, 0.9, 16.0], [0.5] * 8))
    assert told.available.tolist() == [2, 2, 2, 2, 3, 3, 0, 16]
    assert told.available.dtype == np.int64


def test_prices_are_the_median():
    assert point_forecast(forecast_of([1.0, 1.0], [0.5, 0.25])).price.tolist() == [0.5, 0.25]


def test_whole_counts_forgive_a_rounding_error_and_no_more():
    assert whole_counts(np.array([3 - 1e-12, 3 - 1e-6, 3.0, 3.999999])).tolist() == [3, 2, 3, 3]
