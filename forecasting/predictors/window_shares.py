"""Second level of 0/1 series: trees on the share of ones in windows of raw readings, pooled over a panel (M6.2)."""

from __future__ import annotations

import lightgbm
import numpy as np

from slackwater.forecasting.predictor import Panel
from slackwater.forecasting.predictors.count_members import in_slots, readings
from slackwater.forecasting.predictors.distributions import interpolation
from slackwater.forecasting.predictors.lightgbm import COUNT_SETTINGS, FEWEST_ROWS, CountTrees, hour_of_day
from slackwater.forecasting.series import Series

WINDOWS = (0.5, 1.0, 2.0, 4.0, 8.0, 24.0, 72.0)  # Lengths of the windows in hours, at least a slot
#: Modelled steps ahead; log odds between them are interpolated, beyond them constant.
SHARE_STEPS = np.array([1, 2, 4, 8, 12, 24, 48])
SHARE_ROUNDS = 150
_PSEUDO = 0.5  # Readings of each state added to a window, so that its log odds are finite
NO_SHARES = CountTrees(boosters=())  # The model of a panel without 0/1 series


def is_binary(series: Series) -> bool:
    """Return whether a source states that at most one instance can be observed."""
    return series.capacity_stated and bool(len(series)) and float(series.upper.max()) == 1.0


def share_rows(series: Series) -> np.ndarray:
    """Return the features of every slot, shape (slots, columns); nothing after a slot is read."""
    seen, per_slot = readings(series)
    read = ~np.isnan(seen)
    # Sums over all readings up to each slot, with a leading zero.
    count, window_count = (
        np.concatenate([[0.0], np.cumsum(part.reshape(-1, per_slot).sum(axis=1))])
        for part in (read.astype(float), np.where(read, seen, 0.0))
    )
    end = np.arange(1, len(series) + 1)
    columns = [np.where(series.newest >= 0, series.values[np.maximum(series.newest, 0)], np.nan)]
    for hours in WINDOWS:
        begin = np.maximum(end - round(in_slots(series, hours, 1)), 0)
        found, total = window_count[end] - window_count[begin], count[end] - count[begin]
        columns.append(np.log((found + _PSEUDO) / (total - found + _PSEUDO)))
    columns += [hour_of_day(series), np.full(len(series), float(per_slot))]
    return np.stack(columns, axis=1)


def fit_shares(panel: Panel) -> CountTrees:
    """Train a booster per step of `SHARE_STEPS` on the 0/1 series; none for `FEWEST_ROWS` pairs or a single outcome."""
    binary = [series for series in panel.series if is_binary(series)]
    rows = [share_rows(series) for series in binary]
    boosters = []
    for step in SHARE_STEPS:
        known, hit = [], []
        for series, own in zip(binary, rows, strict=True):
            start, target = series.values[:-step], series.values[step:]
            both = np.flatnonzero(~(np.isnan(start) | np.isnan(target)))
            known.append(own[both])
            hit.append(target[both])
        outcomes = np.concatenate(hit) if hit else np.zeros(0)
        if outcomes.size < FEWEST_ROWS or outcomes.min() == outcomes.max():
            return NO_SHARES
        data = lightgbm.Dataset(np.concatenate(known), outcomes)
        boosters.append(lightgbm.train(COUNT_SETTINGS, data, SHARE_ROUNDS).model_to_string())
    return CountTrees(boosters=tuple(boosters))


def share_distributions(
    trees: CountTrees, series: Series, places: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """Return distributions on 0..1 at ``steps`` after ``places`` (ascending slots), shape (places, steps, 2)."""
    rows = share_rows(series)[places]
    odds = np.stack(
        [np.asarray(tree.predict(rows, raw_score=True, num_threads=1)) for tree in trees.loaded()], axis=1
    )
    chance = 1.0 / (1.0 + np.exp(-(odds @ interpolation(steps, SHARE_STEPS).T)))
    return np.stack([1.0 - chance, chance], axis=-1)
