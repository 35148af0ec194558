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
