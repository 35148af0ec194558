"""Seasonal naive forecast: the same slot yesterday or last week, whichever had the smaller training error (M6.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.forecasting.predictor import (
    ByVariable,
    FallsBack,
    FittedSeriesModel,
    Outlook,
    each_alone,
    join_reasons,
    mix_outlooks,
    stored,
)
from slackwater.forecasting.predictors.distributions import (
    MAX_STEP,
    MIN_ERRORS,
    ErrorQuantiles,
    error_quantiles,
)
from slackwater.forecasting.predictors.last_value import FittedLastValue, LastValue
from slackwater.forecasting.series import Series


@stored("seasonal_naive.model")
@dataclass(frozen=True, slots=True, kw_only=True)
class SeasonalNaive:
    """Model of a variable: y(t+k) = y(t + k - m ceil(k/m)) with a season of m slots, one day or one week."""

    def fit(self, series: Series) -> FittedSeriesModel:
        """Choose the season by mean absolute error where both are defined.

        Falls back to last value without a clock, or with less than a day of history.
        """
        simpler = LastValue().fit(series)
        day = series.slots_per_day
        if day < 2:
            return FallsBack(simpler=simpler, reason="time of day is unknown")
        daily = _differences(series.values, day)
        if np.isfinite(daily).sum() < 1:
            return FallsBack(simpler=simpler, reason="history shorter than a day")
        weekly = _differences(series.values, 7 * day)
        both = np.isfinite(daily) & np.isfinite(weekly)
        season = day
        if both.sum() >= max(MIN_ERRORS, day) and np.abs(weekly[both]).mean() < np.abs(daily[both]).mean():
            season = 7 * day
        seasons = -(-MAX_STEP // season)
        errors = np.stack(
            [_differences(series.values, season * back) for back in range(1, seasons + 1)], axis=1
        )
        column = (np.arange(MAX_STEP)) // season
        return FittedSeasonalNaive(
            season=season, spread=error_quantiles(errors[:, column], centred=True), simpler=simpler
        )


def _differences(values: np.ndarray, lag: int) -> np.ndarray:
    """Return y(t) - y(t - lag), shape (slots,), NaN where either is missing."""
    out = np.full(values.shape[0], np.nan)
    if 0 < lag < values.shape[0]:
        out[lag:] = values[lag:] - values[:-lag]
    return out


@stored("seasonal_naive.fitted")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSeasonalNaive:
    """Season in slots, quantiles of its errors, and last value for slots without a value one season earlier."""

    season: int
    spread: ErrorQuantiles
    simpler: FittedLastValue

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast the value of the same slot in the newest season known at the origin.

        Where that value is missing, last value replaces it, with a reason.
        """
        steps = np.arange(1, horizon + 1)
        places = origins[:, None] + steps - self.season * (-(-steps // self.season))
        point = np.where(places >= 0, series.values[np.maximum(places, 0)], np.nan)
        missing = np.isnan(point)
        lost = np.asarray(missing.any(axis=1))
        spread = np.broadcast_to(self.spread.at(steps), (origins.size, horizon, self.spread.table.shape[1]))
        season = (
            f"{self.season // series.slots_per_day} days" if self.season > series.slots_per_day else "a day"
        )
        own = Outlook(
            quantiles=point[:, :, None] + spread, mean=point, reasons=(self.spread.reason,) * origins.size
        )
        simpler = self.simpler.outlook(series, origins, horizon)
        labels = tuple(
            f"{int(n)} of {horizon} slots have no value {season} before" for n in missing.sum(axis=1)
        )
        patched = Outlook(
            quantiles=np.where(missing[:, :, None], simpler.quantiles, own.quantiles),
            mean=np.where(missing, simpler.mean, point),
            reasons=join_reasons(labels, simpler.reasons),
        )
        return mix_outlooks(own, patched, lost)


def seasonal_naive() -> ByVariable:
    """Return the seasonal-naive predictor."""
    return each_alone("seasonal_naive", price=SeasonalNaive(), count=SeasonalNaive())
