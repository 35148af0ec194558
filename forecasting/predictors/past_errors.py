"""From past errors of a point forecast to a distribution: recent errors from like situations weigh most (ours).

An error made g slots ago weighs 2^(-g / half-life), times exp(-|difference of the forecasts| / width), times the ratio of the times
since the last change (the smaller over the larger). A count at 0 or at its cap thus gets the errors that were made there, and one
that has just jumped those after jumps; what an estimation long ago took for the spread is forgotten.
Compiled functions call only those of their own file: numba's cache on disk does not notice a change in another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from forecasting.predictors.laws import MIN_ERRORS, ahead
from forecasting.quantiles import LEVELS
from forecasting.series import Series

#: An error counts half as much after this many days, but not before so many slots.
HALF_LIFE_DAYS = 1.5
LEAST_HALF_LIFE = 48
#: Errors that count less than this, for their age alone, are left out.
_LEAST_WEIGHT = 0.01
#: An error from quite another situation still counts this much, so that a first visit somewhere has a spread.
_ELSEWHERE = 0.01
#: Forecasts of counts are alike within this share of the capacity, those of prices within this share of themselves.
_ALIKE = 1.0 / 16.0
#: Counts of more instances than this get quantiles without a whole distribution.
MOST_COUNTED = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Distributions at m origins: ``quantiles`` (m, h, 19), ``mean`` (m, h), ``law`` (m, h, n) of a count (None: a price).

    ``errors`` (m,) is how many past errors the first step was made from.
    """

    quantiles: np.ndarray
    mean: np.ndarray
    law: np.ndarray | None
    errors: np.ndarray

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the spread at each origin cannot be trusted, "" where it can."""
        return tuple(
            "" if n >= MIN_ERRORS else f"spread from {n} past errors, {MIN_ERRORS} are needed"
            for n in self.errors
        )


def forget(step_days: float) -> float:
    """What an error's weight is multiplied with per slot of ``step_days`` days."""
    return float(0.5 ** (1.0 / max(LEAST_HALF_LIFE, HALF_LIFE_DAYS / step_days)))


class _Past(NamedTuple):
    """Forecasts of the past, and what came of them; a named tuple, because compiled functions take those.

    ``places`` (m, 2): the newest observed slot of each origin and its age. ``point`` and ``errors`` (slots, steps), ``likeness``
    the same: forecasts of equal likeness are alike. ``runs`` (slots,): log of the slots since the last change. ``upper`` (m,):
    the bound at each origin. ``weight`` (reach,): what an error's age leaves of it.
    """

    places: np.ndarray
    point: np.ndarray
    errors: np.ndarray
    likeness: np.ndarray
    runs: np.ndarray
    upper: np.ndarray
    weight: np.ndarray


def spread_around(series: Series, point: np.ndarray, origins: np.ndarray, horizon: int) -> Spread:
    """The distribution of the ``horizon`` slots after each origin from the errors known there.

    ``point`` (slots, s) are the forecasts 1..s slots after every slot, s at least the horizon and the age of the oldest newest
    value; they are taken within 0 and the bound known at their slot. Reads no slot after an origin.
    """
    values, upper = series.values, series.upper[origins]
    point = np.clip(point, 0.0, series.upper[:, None])
    past = _Past(
        places=np.column_stack([series.newest[origins], series.age(origins)]),
        point=point,
        errors=np.where(np.isnan(values)[:, None], np.nan, ahead(values, point.shape[1]) - point),
        likeness=_likeness(series, point),
        runs=np.log(time_since_change(values)),
        upper=upper,
        weight=_ages(series.step.total_seconds() / 86400.0),
    )
    if series.variable == "count" and upper.max() <= MOST_COUNTED:
        law, seen = _laws(past, horizon)
        quantiles = _law_quantiles(law, LEVELS)
        return Spread(quantiles=quantiles, mean=law @ np.arange(law.shape[2]), law=law, errors=seen)
    quantiles, mean, seen = _quantiles(past, horizon, LEVELS)
    return Spread(quantiles=quantiles, mean=mean, law=None, errors=seen)


def _ages(step_days: float) -> np.ndarray:
    """What is left of an error's weight after 0, 1, ... slots of ``step_days`` days, until `_LEAST_WEIGHT`."""
    kept = 0.5 ** (1.0 / max(LEAST_HALF_LIFE, HALF_LIFE_DAYS / step_days))
    return np.asarray(kept ** np.arange(int(np.ceil(np.log(_LEAST_WEIGHT) / np.log(kept)))))


def _likeness(series: Series, point: np.ndarray) -> np.ndarray:
    """Forecasts on the scale on which they are compared, in units of `_ALIKE`: shares of the capacity, ratios of prices."""
    if series.variable == "count":
        return np.asarray(point / (_ALIKE * np.maximum(series.upper[:, None], 1.0)))
    positive = point[point > 0]
    least = positive.min() if positive.size else 1.0
    return np.asarray(np.log(np.maximum(point, least)) / _ALIKE)


@njit(cache=True)
def time_since_change(values: np.ndarray) -> np.ndarray:
    """Slots since the value last changed, the first of its run counting 1, shape (slots,); over a gap the newest value goes on."""
    out = np.ones(values.size)
    newest = np.nan
    for t in range(values.size):
        same = np.isnan(values[t]) or np.isnan(newest) or values[t] == newest
        out[t] = out[t - 1] + 1.0 if same and t > 0 else 1.0
        if not np.isnan(values[t]):
            newest = values[t]
    return out


@njit(cache=True)
def _weigh(past: _Past, origin: int, step: int, weights: np.ndarray) -> int:
    """Fill ``weights`` (reach,) of the errors made ``step`` slots and more ago, 0 where there is none; how many there are."""
    here, count = past.places[origin, 0], 0
    like, run = past.likeness[here, step - 1], past.runs[here]
    for i in range(weights.size):
        t = here - step - i
        if t < 0 or np.isnan(past.errors[t, step - 1]):
            weights[i] = 0.0
        else:
            apart = np.abs(past.likeness[t, step - 1] - like) + np.abs(past.runs[t] - run)
            weights[i] = past.weight[i] * (_ELSEWHERE + (1.0 - _ELSEWHERE) * np.exp(-apart))
            count += 1
    return count


@njit(cache=True)
def _laws(past: _Past, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Laws (m, h, n) of forecast plus error, rounded within 0 and ``upper``, and the number of errors at the first step."""
    m, most = past.places.shape[0], int(past.upper.max())
    law, seen = np.zeros((m, horizon, most + 1)), np.zeros(m, dtype=np.int64)
    weights = np.empty(past.weight.size)
    for o in range(m):
        here, age = past.places[o, 0], past.places[o, 1]
        for k in range(horizon):
            step = age + k + 1
            count = _weigh(past, o, step, weights)
            centre = past.point[here, step - 1]
            if k == 0:
                seen[o] = count
            if count == 0:
                law[o, k, int(min(np.floor(centre + 0.5), past.upper[o]))] = 1.0
                continue
            for i in range(weights.size):
                if weights[i] > 0.0:
                    value = np.floor(centre + past.errors[here - step - i, step - 1] + 0.5)
                    law[o, k, int(min(max(value, 0.0), past.upper[o]))] += weights[i]
            law[o, k] /= weights.sum()
    return law, seen


@njit(cache=True)
def _law_quantiles(law: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The least number whose cumulated chance reaches each level, shape (m, h, levels)."""
    out = np.empty((law.shape[0], law.shape[1], levels.size))
    for o in range(law.shape[0]):
        for k in range(law.shape[1]):
            number, reached = 0, law[o, k, 0]
            for j in range(levels.size):
                while reached < levels[j] - 1e-9 and number < law.shape[2] - 1:
                    number += 1
                    reached += law[o, k, number]
                out[o, k, j] = number
    return out


@njit(cache=True)
def _quantiles(past: _Past, horizon: int, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weighted quantiles (m, h, levels) and mean (m, h) of forecast plus error within 0 and ``upper``, and the errors at step 1."""
    m, reach = past.places.shape[0], past.weight.size
    out, mean = np.empty((m, horizon, levels.size)), np.zeros((m, horizon))
    seen = np.zeros(m, dtype=np.int64)
    weights, made = np.empty(reach), np.empty(reach)
    for o in range(m):
        here, age = past.places[o, 0], past.places[o, 1]
        for k in range(horizon):
            step = age + k + 1
            count = _weigh(past, o, step, weights)
            centre = past.point[here, step - 1]
            if k == 0:
                seen[o] = count
            if count == 0:
                out[o, k], mean[o, k] = centre, centre
                continue
            total = weights.sum()
            for i in range(reach):
                made[i] = np.inf
                if weights[i] > 0.0:
                    value = centre + past.errors[here - step - i, step - 1]
                    made[i] = min(max(value, 0.0), past.upper[o])
                    mean[o, k] += weights[i] * made[i] / total
            order = np.argsort(made)
            place, reached = 0, weights[order[0]] / total
            for j in range(levels.size):
                while reached < levels[j] - 1e-9 and place < count - 1:
                    place += 1
                    reached += weights[order[place]] / total
                out[o, k, j] = made[order[place]]
    return out, mean, seen
