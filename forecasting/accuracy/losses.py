"""How good forecasts were: metrics over one long table, beside last value (M6.5).

A metric is a plain function of the table ``pairs`` (one row per forecast, variable and step) that returns one number per row;
`score` averages them by market, variable, model and step. The point behind absolute errors is the median, behind
squared ones the mean. A slot whose actual value is a gap is scored by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numba import njit

from forecasting.accuracy import measures
from forecasting.forecast import LEVELS, Forecast, Variable
from forecasting.origins.timetable import since
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

    From the quantiles, as `forecasting.accuracy.measures.covered` has it: where values tie with quantiles (counts, prices that stay
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


# ---
# Sums over moving windows in one fixed order, compiled.


@njit(cache=True, nogil=True)
def window_sums(losses: np.ndarray, ends: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums and counts, shapes (ends, steps, losses), of what is known of ``losses`` (origins, steps, losses), NaN where none is.

    Window i has the origins ``ends[i] - width`` to ``ends[i] - 1``; of origin o step k (from 0) is known if o + k + 1 <= ends[i].
    """
    steps, kinds = losses.shape[1], losses.shape[2]
    sums = np.zeros((ends.size, steps, kinds))
    counts = np.zeros((ends.size, steps, kinds), dtype=np.int64)
    for i in range(ends.size):
        for origin in range(max(0, ends[i] - width), ends[i]):
            for k in range(min(steps, ends[i] - origin)):
                for kind in range(kinds):
                    value = losses[origin, k, kind]
                    if not np.isnan(value):
                        sums[i, k, kind] += value
                        counts[i, k, kind] += 1
    return sums, counts


# ---
# Accuracy as it stood at each of many slots: the tables of `forecasting.accuracy.losses.score` over moving windows of
# origins (M6.5).
#
# Every loss is calculated once, from its own forecast alone, and the means are sums in the order of the origins: a window measured
# among many is the same to the bit as one that is measured alone.

#: What is averaged over the origins of a window, in the order of the last axis of the losses.
_MEANS = (
    "mae", "mse", "pinball", *(f"coverage_{p}" for p in INTERVALS), *(f"width_{p}" for p in INTERVALS),
    "brier", "absent", "unpredicted", "fallback_share", "mae_floor", "pinball_floor", "mae_common", "pinball_common",
)  # fmt: skip
_PLACE = {name: i for i, name in enumerate(_MEANS)}
_FIXED = ("window", "variable", "model", "step", "n")
_VARIABLES: tuple[Variable, ...] = ("count", "price")
_MEDIAN = LEVELS.size // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Windows that end before each of the ``presents`` (slots): the ``origins`` slots before it, ``horizon`` steps ahead.

    ``scale_from`` gives the first slot of the history that errors are scaled by (MASE), from the first slot of a window.
    """

    presents: tuple[pd.Timestamp, ...]
    origins: int
    horizon: int
    scale_from: Callable[[pd.Timestamp], pd.Timestamp]


def window_scores(forecasts: Sequence[Forecast], actual: History, windows: Windows) -> pd.DataFrame:
    """The columns of `score` with ``measured_at``: for each present, what was known of the forecasts of its window then.

    A pair counts from the slot that it speaks of on. Forecasts are of one market; one that is there twice counts once.
    """
    nothing = pd.DataFrame(columns=["measured_at", *SCORE_COLUMNS])
    if not windows.origins or not forecasts:
        return nothing
    by_model: dict[str, list[Forecast]] = {}
    for forecast in forecasts:
        by_model.setdefault(forecast.predictor, []).append(forecast)
    grid = _origins_grid(actual, windows)
    issued = {name: _issued(by_model[name], grid) for name in sorted(by_model)}
    ends = np.asarray((pd.DatetimeIndex(list(windows.presents)) - grid[0]) // actual.step, dtype=np.int64)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in (*_FIXED, *_MEANS)}
    for rank, variable in enumerate(_VARIABLES):
        truth = _truth(grid, actual, variable, windows.horizon)
        losses = {name: _losses(own, truth, variable) for name, own in issued.items()}
        for place, own in enumerate(losses.values()):
            if FLOOR in losses:
                _beside(own, losses[FLOOR])
            _add_means(columns, own, (rank, place), ends, windows.origins)
    return _table({name: np.concatenate(parts) for name, parts in columns.items()}, issued, actual, windows)


def _origins_grid(actual: History, windows: Windows) -> pd.DatetimeIndex:
    """Every slot of any window, ascending."""
    first = min(windows.presents) - windows.origins * actual.step
    return pd.date_range(first, max(windows.presents) - actual.step, freq=actual.step)


def _issued(forecasts: Sequence[Forecast], grid: pd.DatetimeIndex) -> dict[int, Forecast]:
    places = grid.get_indexer(pd.DatetimeIndex([forecast.issued_at for forecast in forecasts]))
    return {int(place): one for place, one in zip(places, forecasts, strict=True) if place >= 0}


def _losses(issued: dict[int, Forecast], truth: np.ndarray, variable: Variable) -> np.ndarray:
    """Every loss of every origin of the grid and step, shape (*truth.shape, `_MEANS`); NaN where there is none."""
    out = np.full((*truth.shape, len(_MEANS)), np.nan)
    places = sorted(issued)
    if not places:
        return out
    own = [issued[place] for place in places]
    reach = min(truth.shape[1], *(one.horizon for one in own))
    quantiles = np.stack([one.quantiles(variable)[:reach] for one in own])
    mean = np.stack([one.mean(variable)[:reach] for one in own])
    truth = truth[places, :reach]
    rows = np.full((*truth.shape, len(_MEANS)), np.nan)
    median = quantiles[..., _MEDIAN]
    rows[..., _PLACE["mae"]] = np.abs(truth - median)
    rows[..., _PLACE["mse"]] = np.square(truth - mean)
    error = truth[..., None] - quantiles
    rows[..., _PLACE["pinball"]] = np.maximum(LEVELS * error, (LEVELS - 1.0) * error).mean(axis=-1)
    span = measures.transform_span(quantiles, None, truth)
    for percent in INTERVALS:
        rows[..., _PLACE[f"coverage_{percent}"]] = measures.covered(span, truth, percent)
        rows[..., _PLACE[f"width_{percent}"]] = measures.width(quantiles, percent)
    if variable == "count":
        capacity = np.array([one.capacity for one in own])
        for cap in np.unique(capacity[capacity > 0]):
            of_it = np.flatnonzero(capacity == cap)
            chance = measures.chances(quantiles[of_it], None, int(cap))
            rows[of_it, :, _PLACE["brier"]] = measures.brier(chance, truth[of_it])
        missed = np.floor(median + 1e-9) - truth
        rows[..., _PLACE["absent"]] = np.maximum(missed, 0.0)
        rows[..., _PLACE["unpredicted"]] = np.maximum(-missed, 0.0)
    labels = [one.price_fallback if variable == "price" else one.count_fallback for one in own]
    rows[..., _PLACE["fallback_share"]] = np.array([label != "" for label in labels], dtype=float)[:, None]
    rows[np.isnan(truth)] = np.nan
    out[places, :reach] = rows
    return out


def _truth(origins: pd.DatetimeIndex, actual: History, variable: Variable, reach: int) -> np.ndarray:
    """Actual values ``reach`` steps after each origin, NaN in gaps and after the end, shape (origins, reach)."""
    values = actual.price if variable == "price" else actual.available
    if not len(values):
        return np.full((len(origins), reach), np.nan)
    first = int((origins[0] - actual.slots[0]) // actual.step)
    places = first + np.arange(len(origins))[:, None] + np.arange(1, reach + 1)
    inside = (places >= 0) & (places < len(values))
    return np.where(inside, values[np.where(inside, places, 0)], np.nan)


def _beside(losses: np.ndarray, floor: np.ndarray) -> None:
    """Last value's losses beside a model's, and the model's where last value has one."""
    for loss in ("mae", "pinball"):
        base = floor[..., _PLACE[loss]]
        losses[..., _PLACE[f"{loss}_floor"]] = np.where(np.isnan(losses[..., _PLACE[loss]]), np.nan, base)
        losses[..., _PLACE[f"{loss}_common"]] = np.where(np.isnan(base), np.nan, losses[..., _PLACE[loss]])


def _add_means(
    columns: dict[str, list[np.ndarray]],
    losses: np.ndarray,
    place: tuple[int, int],
    ends: np.ndarray,
    width: int,
) -> None:
    """Add the rows of one variable and model (their places): one for each window and step of which anything is known."""
    sums, counts = window_sums(losses, ends, width)
    window, step = np.nonzero(counts[..., _PLACE["mae"]])
    with np.errstate(invalid="ignore"):
        means = sums[window, step] / np.where(counts[window, step] > 0, counts[window, step], np.nan)
    fixed = (
        window, np.full(window.size, place[0]), np.full(window.size, place[1]), step + 1,
        counts[window, step, _PLACE["mae"]],
    )  # fmt: skip
    for name, values in zip(_FIXED, fixed, strict=True):
        columns[name].append(values)
    for name, i in _PLACE.items():
        columns[name].append(means[:, i])


def _table(
    columns: dict[str, np.ndarray],
    issued: dict[str, dict[int, Forecast]],
    actual: History,
    windows: Windows,
) -> pd.DataFrame:
    """The rows by window, variable, model and step, with what follows from their means."""
    order = np.lexsort((columns["step"], columns["model"], columns["variable"], columns["window"]))
    own = {name: values[order] for name, values in columns.items()}
    scale = _scales(issued, actual, windows)
    with np.errstate(invalid="ignore", divide="ignore"):
        skills = {
            f"skill_{loss}": np.where(
                own[f"{loss}_floor"] > 0, 1.0 - own[f"{loss}_common"] / own[f"{loss}_floor"], np.nan
            )
            for loss in ("mae", "pinball")
        }
        own["mase"] = own["mae"] / scale[own["window"], own["variable"]]
    presents = pd.DatetimeIndex(list(windows.presents))
    table = pd.DataFrame(
        own
        | skills
        | {
            "rmse": np.sqrt(own["mse"]),
            "measured_at": presents[own["window"]],
            "market": actual.market.key,
            "variable": np.array(_VARIABLES, dtype=object)[own["variable"]],
            "model": np.array(list(issued), dtype=object)[own["model"]],
        }
    )
    return table[["measured_at", *SCORE_COLUMNS]]


def _scales(issued: dict[str, dict[int, Forecast]], actual: History, windows: Windows) -> np.ndarray:
    """What errors are scaled by, by window and variable: last value's before the first origin that any model forecast at."""
    grid = _origins_grid(actual, windows)
    there = np.array(sorted({place for own in issued.values() for place in own}), dtype=np.int64)
    scale = np.full((len(windows.presents), len(_VARIABLES)), np.nan)
    for i, present in enumerate(windows.presents):
        low = present - windows.origins * actual.step
        start = int(np.searchsorted(there, (low - grid[0]) // actual.step))
        if start < there.size:
            past = since(actual, windows.scale_from(low))
            scale[i] = [last_value_scale(past, variable, grid[there[start]]) for variable in _VARIABLES]
    return scale
