"""How good forecasts were: metrics over one long table, beside last value (M6.5).

A metric is a plain function of the table ``pairs`` (one row per forecast, variable and step) that returns one number per row;
`score` averages them by market, variable, model and step. The point behind absolute errors is the median, behind
squared ones the mean. A slot whose actual value is a gap is scored by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from forecasting import measures
from forecasting.forecast import LEVELS, Forecast, Variable
from warehouse.errors import ForecastError
from warehouse.history import History

#: The quantile columns of the long table.
QUANTILES = [f"q{round(100 * q):02d}" for q in LEVELS]
#: Central intervals that are scored: per cent -> the columns of their ends.
INTERVALS = {50: ("q25", "q75"), 80: ("q10", "q90"), 90: ("q05", "q95")}
KEYS = ["market", "variable", "model", "step"]
#: The model that skill is measured against.
FLOOR = "last_value"

Metric = Callable[[pd.DataFrame], np.ndarray]


def pairs_of(forecasts: Sequence[Forecast], actual: History) -> pd.DataFrame:
    """The long table: market, variable, model, step (1-based), issued_at, slot, actual, mean, q05..q95, capacity, fallback.

    Actual is NaN in a gap and after the end of ``actual``. Raises `ForecastError` on a forecast of another market or step.
    """
    for forecast in forecasts:
        if forecast.market != actual.market or forecast.step != actual.step:
            raise ForecastError(
                f"forecast of {forecast.market.key} every {forecast.step} scored on {actual.market.key} every {actual.step}",
                expected="forecasts of the history's own market and step",
            )
    parts = [_pairs(forecasts, actual, variable) for variable in ("price", "count") if forecasts]
    return (
        pd.concat(parts, ignore_index=True)
        if parts
        else pd.DataFrame(columns=[*KEYS, "actual", "mean", *QUANTILES])
    )


def _pairs(forecasts: Sequence[Forecast], actual: History, variable: Variable) -> pd.DataFrame:
    horizons = np.array([forecast.horizon for forecast in forecasts])
    steps = np.concatenate([np.arange(1, h + 1) for h in horizons])
    issued = pd.DatetimeIndex([forecast.issued_at for forecast in forecasts]).repeat(horizons)
    slots = issued + steps * actual.step
    values = actual.price if variable == "price" else actual.available
    place = actual.slots.get_indexer(slots)
    truth = (
        np.where(place >= 0, values[np.maximum(place, 0)], np.nan)
        if len(values)
        else np.full(len(slots), np.nan)
    )
    labels = [f.price_fallback if variable == "price" else f.count_fallback for f in forecasts]
    table = {
        "market": actual.market.key,
        "variable": variable,
        "model": np.repeat(np.array([f.predictor for f in forecasts], dtype=object), horizons),
        "step": steps,
        "issued_at": issued,
        "slot": slots,
        "actual": truth,
        "mean": np.concatenate([forecast.mean(variable) for forecast in forecasts]),
        "capacity": np.repeat([forecast.capacity for forecast in forecasts], horizons),
        "fallback": np.repeat(np.array(labels, dtype=object), horizons),
    }
    quantiles = np.concatenate([forecast.quantiles(variable) for forecast in forecasts])
    return pd.concat([pd.DataFrame(table), pd.DataFrame(quantiles, columns=QUANTILES)], axis=1)


def absolute_error(pairs: pd.DataFrame) -> np.ndarray:
    """|y - median|; its mean is the MAE."""
    return np.asarray(np.abs(pairs["actual"].to_numpy() - pairs["q50"].to_numpy()))


def squared_error(pairs: pd.DataFrame) -> np.ndarray:
    """(y - mean)^2; the root of its mean is the RMSE."""
    return np.asarray(np.square(pairs["actual"].to_numpy() - pairs["mean"].to_numpy()))


def pinball_by_level(pairs: pd.DataFrame) -> np.ndarray:
    """Pinball loss max(a (y - q), (a - 1)(y - q)) of every level a of `LEVELS`, shape (rows, 19)."""
    error = pairs["actual"].to_numpy()[:, None] - pairs[QUANTILES].to_numpy()
    return np.asarray(np.maximum(LEVELS * error, (LEVELS - 1.0) * error))


def pinball(pairs: pd.DataFrame) -> np.ndarray:
    """Mean pinball loss over the levels; twice it approximates the CRPS."""
    return np.asarray(pinball_by_level(pairs).mean(axis=1))


def covered(pairs: pd.DataFrame, percent: int) -> np.ndarray:
    """Share of the randomised transform of the actual value within the central interval of levels, in 0..1; NaN in a gap.

    From the quantiles, as `forecasting.measures.covered` has it: where values tie with quantiles (counts, prices that stay
    put) the closed interval would hold more than ``percent`` of them however right the forecast is.
    """
    actual = pairs["actual"].to_numpy(dtype=float)
    span = measures.transform_span(pairs[QUANTILES].to_numpy(dtype=float), None, actual)
    return measures.covered(span, actual, percent)


def width(pairs: pd.DataFrame, percent: int) -> np.ndarray:
    """Width of the central interval."""
    low, high = INTERVALS[percent]
    return np.asarray(pairs[high].to_numpy() - pairs[low].to_numpy())


def brier_at_least(pairs: pd.DataFrame) -> np.ndarray:
    """Squared error of the chance of "at least n", averaged over n = 1..capacity.

    Counts only: NaN for prices, in gaps, and where the capacity is 0.
    """
    out = np.full(len(pairs), np.nan)
    capacity = pairs["capacity"].to_numpy()
    for cap in np.unique(capacity[(pairs["variable"] == "count").to_numpy()]):
        rows = np.flatnonzero((pairs["variable"] == "count").to_numpy() & (capacity == cap))
        if cap < 1:
            continue
        n = np.arange(1, cap + 1)
        quantiles = pairs[QUANTILES].to_numpy()[rows]
        actual = pairs["actual"].to_numpy()[rows]
        chance = 1.0 - np.stack([np.interp(n - 0.5, q, LEVELS, left=0.0, right=1.0) for q in quantiles])
        error = np.square(chance - (actual[:, None] >= n)).mean(axis=1)
        out[rows] = np.where(np.isnan(actual), np.nan, error)
    return out


def absent(pairs: pd.DataFrame) -> np.ndarray:
    """Instances forecast (median, rounded down) that were not there: max(forecast - actual, 0); counts only.

    With `unpredicted` this is the split of "A universal error measure for input predictions" (2022).
    """
    return np.asarray(np.maximum(_count_error(pairs), 0.0))


def unpredicted(pairs: pd.DataFrame) -> np.ndarray:
    """Instances that were there and not forecast: max(actual - forecast, 0); counts only."""
    return np.asarray(np.maximum(-_count_error(pairs), 0.0))


def _count_error(pairs: pd.DataFrame) -> np.ndarray:
    forecast = np.floor(pairs["q50"].to_numpy() + 1e-9)
    return np.where(pairs["variable"] == "count", forecast - pairs["actual"].to_numpy(), np.nan)


def last_value_scale(history: History, variable: Variable, before: pd.Timestamp) -> float:
    """Mean |y(t) - y(t-1)| over the slots up to ``before``: the scale of MASE; NaN if it is 0 or there is no pair (undefined)."""
    values = history.price if variable == "price" else history.available
    values = values[: int(history.slots.searchsorted(before, side="right"))]
    changes = np.abs(np.diff(values))
    changes = changes[~np.isnan(changes)]
    scale = float(changes.mean()) if changes.size else np.nan
    return scale if scale > 0 else np.nan


#: Metric name -> one number per row; all are averaged over forecasts.
METRICS: dict[str, Metric] = {
    "mae": absolute_error,
    "mse": squared_error,
    "pinball": pinball,
    **{f"coverage_{p}": lambda pairs, p=p: covered(pairs, p) for p in INTERVALS},  # type: ignore[misc]
    **{f"width_{p}": lambda pairs, p=p: width(pairs, p) for p in INTERVALS},  # type: ignore[misc]
    "brier": brier_at_least,
    "absent": absent,
    "unpredicted": unpredicted,
}


def score(forecasts: Sequence[Forecast], actual: History, *, horizon: int | None = None) -> pd.DataFrame:
    """Accuracy by market, variable, model and step: n and the means of `METRICS`, rmse, mase, and skill over last value.

    Steps beyond ``horizon`` are left out if it is given. ``skill_mae`` and ``skill_pinball`` are 1 - loss / loss of last
    value over the origins both forecast; NaN if last value is not among the forecasts or never erred. ``mase`` scales by the
    last-value error before the first origin. ``fallback_share`` is the share of forecasts in which
    another model answered. What is not defined is NaN, never infinite.
    """
    pairs = pairs_of(forecasts, actual)
    pairs = pairs[pairs["actual"].notna() & (pairs["step"] <= (horizon or np.inf))].reset_index(drop=True)
    if pairs.empty:
        return pd.DataFrame(columns=SCORE_COLUMNS)
    measured = pairs[[*KEYS, "issued_at"]].assign(
        **{name: metric(pairs) for name, metric in METRICS.items()},
        fallback_share=(pairs["fallback"] != "").astype(float),
        n=1,
    )
    floor = measured[measured["model"] == FLOOR].drop_duplicates(["variable", "step", "issued_at"])
    floor = floor[["variable", "step", "issued_at", "mae", "pinball"]]
    measured = measured.merge(
        floor, how="left", on=["variable", "step", "issued_at"], suffixes=("", "_floor")
    )
    for loss in ("mae", "pinball"):
        measured[f"{loss}_common"] = measured[loss].where(measured[f"{loss}_floor"].notna())
    grouped = measured.drop(columns="issued_at").groupby(KEYS, sort=True)
    table = grouped.mean().assign(n=grouped["n"].sum())
    table["rmse"] = np.sqrt(table["mse"])
    for loss in ("mae", "pinball"):
        against = table[f"{loss}_floor"].where(table[f"{loss}_floor"] > 0)
        table[f"skill_{loss}"] = 1.0 - table[f"{loss}_common"] / against
    table = table.reset_index()
    first = min(forecast.issued_at for forecast in forecasts)
    scale = {v: last_value_scale(actual, v, first) for v in ("price", "count")}
    table["mase"] = table["mae"] / table["variable"].map(scale)
    return table[SCORE_COLUMNS]


SCORE_COLUMNS = [
    *KEYS, "n", "mae", "rmse", "mase", "pinball", "skill_mae", "skill_pinball",
    *(f"coverage_{p}" for p in INTERVALS), *(f"width_{p}" for p in INTERVALS),
    "brier", "absent", "unpredicted", "fallback_share",
]  # fmt: skip
