"""Intervals corrected by what earlier forecasts got wrong: conformalised quantile regression, rolling, per step (M6.6).

Romano, Patterson and Candes (2019): for the central interval [lo, hi] of nominal coverage 1 - a, the score of a past forecast is
max(lo - y, y - hi), and both ends move out by the (1 - a)(1 + 1/n) quantile of the scores (in, if it is negative).
Here the scores of step k at origin c are those of the newest forecasts whose slot had passed, and whose value was known, at c: a
rolling split, since exchangeability over the whole record is not to be had (ours).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from forecasting.accuracy.losses import INTERVALS, score
from forecasting.forecast import LEVELS, Forecast, Variable
from warehouse.errors import ForecastError
from warehouse.history import ROW_KNOWN_AT, History

#: Central intervals are the pairs of levels (i, 18 - i); the median is no interval and stays.
PAIRS = LEVELS.size // 2
#: Added to the name of the predictor whose intervals were corrected.
SUFFIX = "+conformal"


def calibrate(
    forecasts: Sequence[Forecast], actual: History, *, window: int = 240, minimum: int = 30
) -> list[Forecast]:
    """The same forecasts with their intervals corrected; the k-th answers the k-th given.

    All must come from one predictor and market, in ascending order of issue, with one horizon; else `ForecastError`.
    The newest ``window`` scores are used; a step with fewer than ``minimum`` keeps its interval, so the first forecasts come
    back unchanged but for their name. Means and medians never change. Nothing known after an origin touches its forecast (M1.2).
    """
    if not forecasts:
        return []
    _refuse_mixture(forecasts, actual)
    price = _moved(forecasts, actual, "price", window, minimum)
    count = _moved(forecasts, actual, "count", window, minimum)
    return [
        replace(forecast, predictor=forecast.predictor + SUFFIX, price=price[i], count=count[i])
        for i, forecast in enumerate(forecasts)
    ]


def _refuse_mixture(forecasts: Sequence[Forecast], actual: History) -> None:
    kinds = {(f.predictor, f.horizon, f.market, f.step) for f in forecasts}
    issued = pd.DatetimeIndex([f.issued_at for f in forecasts])
    if len(kinds) > 1 or not issued.is_monotonic_increasing or not issued.is_unique:
        raise ForecastError(
            f"{len(forecasts)} forecasts of {len(kinds)} kinds (predictor, horizon, market, step)",
            expected="one kind, ascending by time of issue without repeats",
        )
    if forecasts[0].market != actual.market or forecasts[0].step != actual.step:
        raise ForecastError(
            f"forecasts of {forecasts[0].market.key} calibrated on {actual.market.key}",
            expected="their own market and step",
        )


def _moved(
    forecasts: Sequence[Forecast], actual: History, variable: Variable, window: int, minimum: int
) -> np.ndarray:
    """Corrected quantiles of one variable, shape (forecasts, horizon, 19)."""
    quantiles = np.stack([forecast.quantiles(variable) for forecast in forecasts])
    issued = pd.DatetimeIndex([forecast.issued_at for forecast in forecasts])
    out = quantiles.copy()
    for step in range(quantiles.shape[1]):
        scores, learned = _scores(quantiles[:, step], issued + (step + 1) * actual.step, actual, variable)
        for i in range(len(forecasts)):
            past = scores[:i][learned[:i] <= issued[i]][-window:]
            if past.shape[0] >= minimum:
                out[i, step] = _widened(quantiles[i, step], past)
    upper = _upper(forecasts, actual, variable)
    if variable == "count":
        out = np.floor(out + 0.5 + 1e-9)
    return np.clip(np.maximum.accumulate(out, axis=2), 0.0, upper[:, None, None])


def _scores(
    quantiles: np.ndarray, slots: pd.DatetimeIndex, actual: History, variable: Variable
) -> tuple[np.ndarray, pd.DatetimeIndex]:
    """Scores max(lo - y, y - hi) of every forecast and pair, shape (forecasts, PAIRS), and when each could be known.

    A gap and a slot beyond the record are never known: they are dated at the end of time.
    """
    place = actual.slots.get_indexer(slots)
    values = actual.price if variable == "price" else actual.available
    truth = np.where(place >= 0, values[np.maximum(place, 0)], np.nan)
    known = pd.DatetimeIndex(actual.frame[ROW_KNOWN_AT].iloc[np.maximum(place, 0)])
    later = np.maximum(known.as_unit("us").asi8, slots.as_unit("us").asi8)
    later[np.isnan(truth)] = pd.Timestamp.max.as_unit("us").value
    low, high = quantiles[:, :PAIRS], quantiles[:, : -PAIRS - 1 : -1]
    scores = np.maximum(low - truth[:, None], truth[:, None] - high)
    return scores, pd.DatetimeIndex(later.astype("datetime64[us]"), tz="UTC")


def _widened(quantiles: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Quantiles (19,) with each pair moved by its conformal margin; an interval never shrinks past the median."""
    n = scores.shape[0]
    coverage = 1.0 - 2.0 * LEVELS[:PAIRS]
    ranks = np.minimum(np.ceil(coverage * (n + 1)).astype(int), n) - 1
    margin = np.take_along_axis(np.sort(scores, axis=0), ranks[None, :], axis=0)[0]
    out = quantiles.copy()
    middle = quantiles[PAIRS]
    out[:PAIRS] = np.minimum(quantiles[:PAIRS] - margin, middle)
    out[: -PAIRS - 1 : -1] = np.maximum(quantiles[: -PAIRS - 1 : -1] + margin, middle)
    # Margins are found pair by pair, so a wider interval could end inside a narrower one: it then takes its end.
    out[:PAIRS] = np.minimum.accumulate(out[:PAIRS][::-1])[::-1]
    return out


def _upper(forecasts: Sequence[Forecast], actual: History, variable: Variable) -> np.ndarray:
    """The largest value possible as known at each issue: capacity, or the dearer of on-demand and all seen; (forecasts,)."""
    if variable == "count":
        return np.array([float(forecast.capacity) for forecast in forecasts])
    dearest = np.fmax.accumulate(np.append(actual.on_demand_usd, actual.price))
    known = np.array([actual.slots.searchsorted(f.issued_at, side="right") for f in forecasts], dtype=int)
    own = np.array([forecast.price.max() for forecast in forecasts])
    return np.asarray(np.maximum(dearest[known], own))


def calibration_report(forecasts: Sequence[Forecast], actual: History, *, window: int = 240) -> pd.DataFrame:
    """Coverage, width and pinball before and after, by variable and step, over the same origins (M6.6).

    Columns: variable, step, n, then for 50, 80 and 90 per cent coverage_P_before, coverage_P_after, width_P_before,
    width_P_after, and pinball_before, pinball_after.
    """
    corrected = calibrate(forecasts, actual, window=window)
    columns = [f"{what}_{percent}" for percent in INTERVALS for what in ("coverage", "width")] + ["pinball"]
    before = score(forecasts, actual)[["variable", "step", "n", *columns]]
    after = score(corrected, actual)[["variable", "step", *columns]]
    return before.merge(after, on=["variable", "step"], suffixes=("_before", "_after"))
