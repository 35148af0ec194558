"""Accuracy as it stood at each of many slots: the tables of `forecasting.accuracy.score` over moving windows of origins (M6.5).

Every loss is calculated once, from its own forecast alone, and the means are sums in the order of the origins: a window measured
among many is the same to the bit as one that is measured alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecasting import measures
from forecasting.accuracy import FLOOR, INTERVALS, SCORE_COLUMNS, last_value_scale
from forecasting.forecast import LEVELS, Forecast, Variable
from forecasting.schedule import since
from forecasting.window_sums import window_sums
from warehouse.history import History

#: What is averaged over the origins of a window, in the order of the last axis of the losses.
_MEANS = (
    "mae", "mse", "pinball", *(f"coverage_{p}" for p in INTERVALS), *(f"width_{p}" for p in INTERVALS),
    "brier", "absent", "unpredicted", "fallback_share", "mae_floor", "pinball_floor", "mae_common", "pinball_common",
)  # fmt: skip
_PLACE = {name: i for i, name in enumerate(_MEANS)}
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
    tables: list[pd.DataFrame] = []
    by_model: dict[str, list[Forecast]] = {}
    for forecast in forecasts:
        by_model.setdefault(forecast.predictor, []).append(forecast)
    grid = _origins_grid(actual, windows)
    issued = {name: _issued(own, grid) for name, own in by_model.items()}
    for variable in ("count", "price"):
        losses = {name: _losses(own, grid, actual, variable, windows.horizon) for name, own in issued.items()}
        if FLOOR in losses:
            for own in losses.values():
                _beside(own, losses[FLOOR])
        for model in sorted(losses):
            tables.append(_table(losses[model], grid, actual, variable, windows).assign(model=model))
    found = [table for table in tables if len(table)]
    if not found:
        return nothing
    table = pd.concat(found, ignore_index=True).assign(market=actual.market.key)
    table["mase"] = table["mae"] / _scales(table, issued, actual, windows)
    table = table.sort_values(["measured_at", "variable", "model", "step"], kind="stable", ignore_index=True)
    return table[["measured_at", *SCORE_COLUMNS]]


def _origins_grid(actual: History, windows: Windows) -> pd.DatetimeIndex:
    """Every slot of any window, ascending."""
    first = min(windows.presents) - windows.origins * actual.step
    return pd.date_range(first, max(windows.presents) - actual.step, freq=actual.step)


def _issued(forecasts: Sequence[Forecast], grid: pd.DatetimeIndex) -> dict[int, Forecast]:
    places = grid.get_indexer(pd.DatetimeIndex([forecast.issued_at for forecast in forecasts]))
    return {int(place): one for place, one in zip(places, forecasts, strict=True) if place >= 0}


def _losses(
    issued: dict[int, Forecast], grid: pd.DatetimeIndex, actual: History, variable: Variable, horizon: int
) -> np.ndarray:
    """Every loss of every origin of the grid and step, shape (origins, horizon, `_MEANS`); NaN where there is none."""
    out = np.full((len(grid), horizon, len(_MEANS)), np.nan)
    places = sorted(issued)
    if not places:
        return out
    reach = min(horizon, *(one.horizon for one in issued.values()))
    own = [issued[place] for place in places]
    quantiles = np.stack([one.quantiles(variable)[:reach] for one in own])
    mean = np.stack([one.mean(variable)[:reach] for one in own])
    truth = _truth(grid[places], actual, variable, reach)
    rows = out[places, :reach]
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
    steps = np.arange(1, reach + 1) * actual.step
    places = np.stack([actual.slots.get_indexer(origins + step) for step in steps], axis=1)
    known = values[np.maximum(places, 0)] if len(values) else np.full(places.shape, np.nan)
    return np.where(places >= 0, known, np.nan)


def _beside(losses: np.ndarray, floor: np.ndarray) -> None:
    """Last value's losses beside a model's, and the model's where last value has one."""
    for loss in ("mae", "pinball"):
        base = floor[..., _PLACE[loss]]
        losses[..., _PLACE[f"{loss}_floor"]] = np.where(np.isnan(losses[..., _PLACE[loss]]), np.nan, base)
        losses[..., _PLACE[f"{loss}_common"]] = np.where(np.isnan(base), np.nan, losses[..., _PLACE[loss]])


def _table(
    losses: np.ndarray, grid: pd.DatetimeIndex, actual: History, variable: Variable, windows: Windows
) -> pd.DataFrame:
    presents = pd.DatetimeIndex(list(windows.presents))
    ends = np.asarray((presents - grid[0]) // actual.step, dtype=np.int64)
    sums, counts = window_sums(losses, ends, windows.origins)
    with np.errstate(invalid="ignore"):
        means = sums / np.where(counts > 0, counts, np.nan)
    n = counts[..., _PLACE["mae"]]
    window, step = np.nonzero(n)
    columns = {name: means[window, step, i] for name, i in _PLACE.items()}
    table = pd.DataFrame(
        {"measured_at": presents[window], "variable": variable, "step": step + 1, "n": n[window, step]}
        | columns
    )
    table["rmse"] = np.sqrt(table["mse"])
    for loss in ("mae", "pinball"):
        against = table[f"{loss}_floor"].where(table[f"{loss}_floor"] > 0)
        table[f"skill_{loss}"] = 1.0 - table[f"{loss}_common"] / against
    return table


def _scales(
    table: pd.DataFrame, issued: dict[str, dict[int, Forecast]], actual: History, windows: Windows
) -> np.ndarray:
    """What each row's error is scaled by: last value's before the first origin of its window that any model forecast at."""
    grid = _origins_grid(actual, windows)
    there = np.array(sorted({place for own in issued.values() for place in own}), dtype=np.int64)
    scale: dict[tuple[pd.Timestamp, str], float] = {}
    for present in pd.DatetimeIndex(table["measured_at"].unique()):
        low = present - windows.origins * actual.step
        start = int(np.searchsorted(there, (low - grid[0]) // actual.step))
        first = grid[there[start]]
        past = since(actual, windows.scale_from(low))
        for variable in ("price", "count"):
            scale[present, variable] = last_value_scale(past, variable, first)
    keys = zip(pd.DatetimeIndex(table["measured_at"]), table["variable"], strict=True)
    return np.array([scale[key] for key in keys])
