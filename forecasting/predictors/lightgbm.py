"""Predictor `lightgbm`: trees over all markets of a panel, for counts and for prices, with a cache of estimations (M6.2)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import repeat
from statistics import NormalDist
from typing import Any, TypeVar

import lightgbm
import numpy as np
import pandas as pd

from slackwater.forecasting.predictor import (
    NEVER_SEEN,
    ByVariable,
    Outlook,
    Panel,
    join_reasons,
    mix_outlooks,
    stored,
)
from slackwater.forecasting.predictors.count_members import (
    Expectations,
    Situation,
    expectations,
    in_slots,
    lag_values,
    member_distributions,
    situation_of,
    smooth_values,
)
from slackwater.forecasting.predictors.distributions import (
    MOST_STATES,
    at_least,
    distribution_of,
    exceedance,
    indicator,
    interpolation,
    outlook_of,
)
from slackwater.forecasting.predictors.last_value import LastValue, is_stale, stale_reasons
from slackwater.forecasting.predictors.price_changes import (
    STATE_COLUMNS,
    ChangeProcess,
    FittedChangeProcess,
    PriceState,
    moving_quantiles,
    price_rows,
    price_state,
)
from slackwater.forecasting.quantiles import LEVELS
from slackwater.forecasting.series import Series

T = TypeVar("T")


_MOST_CACHED = 4  # Estimations that are cached of a kind


def from_cache(
    cache: dict[bytes, T], panel: Panel, make: Callable[[], T], *, beside: Iterable[np.ndarray] = ()
) -> T:
    """Return the estimation for a panel and the input arrays ``beside``, from the cache or by calling ``make``.

    The cache has the newest estimations by content of their inputs; callers must not modify them.
    """
    key = _digest(panel, beside)
    found = cache.get(key)
    if found is None:
        found = cache[key] = make()
        if len(cache) > _MOST_CACHED:
            cache.pop(next(iter(cache)), None)
    return found


def _digest(panel: Panel, arrays: Iterable[np.ndarray]) -> bytes:
    digest = hashlib.blake2b(digest_size=20)
    for array in (*(part for series in panel.series for part in _parts(series)), *arrays):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()


def _parts(series: Series) -> tuple[np.ndarray, ...]:
    """Return all content of a series as arrays."""
    words = (
        series.variable, series.key, series.slots_per_day, series.first_slot, series.step.value, series.on_demand_usd,
        series.capacity_stated,
    )  # fmt: skip
    description = np.frombuffer(repr(words).encode(), dtype=np.uint8)
    return (description, series.values, series.upper, series.newest, series.within)


# ---
# Features of the count model: one row per slot and threshold n, for the event "at least n" (M6.2).
#
# Features are relative to the threshold (value at or above it, distance to it, recent frequency), so that relations learned at
# one level, market or year hold at another. Row t reads slots up to t only, in the series and in its peers.

#: Maximal number of modelled thresholds; probabilities between them are interpolated.
MOST_THRESHOLDS = 24
_LAGS = (1, 2, 3)


def thresholds_of(states: int) -> np.ndarray:
    """Return the modelled counts n of "at least n", ascending from 1 to the capacity."""
    return np.unique(np.linspace(1, states - 1, min(MOST_THRESHOLDS, states - 1)).astype(int))


def peers_of(panel: Panel, which: int) -> np.ndarray:
    """Return the shares of capacity of a source's other series (slots, peers), in the slots of series ``which``."""
    own = panel.series[which]
    columns = []
    for place, other in enumerate(panel.series):
        if place == which or other.source != own.source:
            continue
        column = np.full(len(own), np.nan)
        first, stop = max(own.first_slot, other.first_slot), min(own.end, other.end)
        if first < stop:
            span = slice(first - other.first_slot, stop - other.first_slot)
            share = other.values[span] / np.maximum(other.upper[span], 1.0)
            column[first - own.first_slot : stop - own.first_slot] = share
        columns.append(column)
    return np.stack(columns, axis=1) if columns else np.zeros((len(own), 0))


def count_rows(at: Situation, peers: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the features known at ``at.places`` for every threshold, shape (places, thresholds, columns), float32."""
    series, places = at.series, at.places
    cap = np.maximum(series.upper, 1.0)
    above = exceedance(at.present, thresholds)
    columns = [above, *(lag_values(above, lag) for lag in _LAGS)]
    levels = [at.present, *(lag_values(at.present, lag) for lag in _LAGS), *_readings(at)]
    levels += [smooth_values(series.values, in_slots(series, hours, 3)) for hours in (3.0, 12.0, 48.0)]
    columns += [level[:, None] - thresholds + 0.5 for level in levels]
    columns += [_per_threshold(column, thresholds) for column in _mean_changes(at)]
    changed = np.abs(above - lag_values(above, 1))
    columns += [
        _since(changed),
        *(smooth_values(changed, in_slots(series, hours, 8)) for hours in (12.0, 48.0)),
    ]
    columns += [
        np.broadcast_to(part, above.shape)
        for part in (thresholds / (at.states - 1), thresholds == thresholds[-1])
    ]
    columns += [
        *_peer_columns(at, peers, thresholds, cap),
        _per_threshold(hour_of_day(at.series), thresholds),
    ]
    return np.stack([column[places] for column in columns], axis=-1).astype(np.float32)


def _per_threshold(column: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    return np.broadcast_to(column[:, None], (column.shape[0], thresholds.size))


def _readings(at: Situation) -> list[np.ndarray]:
    """Return two readings at thirds of the previous slot, and the mean of all its readings and the value."""
    within, m = at.series.within, at.series.within.shape[1]
    if m == 0:
        return [np.full(len(at.series), np.nan)] * 3
    both = np.concatenate([within, at.series.values[:, None]], axis=1)
    seen = ~np.isnan(both)
    mean = np.where(seen, both, 0.0).sum(axis=1) / np.where(seen.any(axis=1), seen.sum(axis=1), np.nan)
    first, second = (max(round((m + 1) * third / 3) - 1, 0) for third in (1, 2))
    return [within[:, first], within[:, second], mean]


def _mean_changes(at: Situation) -> list[np.ndarray]:
    """Return the mean absolute change over one, two and four slots, each averaged over four hours and over a day."""
    values = at.series.values
    changes = [np.abs(values - lag_values(values, lag)) for lag in (1, 2, 4)]
    return [
        smooth_values(change, in_slots(at.series, hours, 4)) for change in changes for hours in (4.0, 24.0)
    ]


def _since(changed: np.ndarray) -> np.ndarray:
    """Return log(1 + slots since the threshold was last crossed), shape of ``changed``."""
    slots = np.arange(changed.shape[0])[:, None]
    last = np.maximum.accumulate(np.where(changed > 0, slots, 0), axis=0)
    return np.asarray(np.log1p(slots - last))


def _peer_columns(
    at: Situation, peers: np.ndarray, thresholds: np.ndarray, cap: np.ndarray
) -> list[np.ndarray]:
    """Return the share of peers at or above the threshold (as shares of capacity), and its deviation from the recent mean."""
    shape = (len(at.series), thresholds.size)
    if peers.shape[1] == 0:
        return [np.full(shape, np.nan)] * 2
    above = exceedance(peers * cap[:, None], thresholds - 1e-9)
    seen = ~np.isnan(above)
    count = seen.sum(axis=1)
    share = np.where(seen, above, 0.0).sum(axis=1) / np.where(count > 0, count, np.nan)
    return [share, share - smooth_values(share, in_slots(at.series, 24.0, 8))]


def hour_of_day(series: Series) -> np.ndarray:
    """Return the slot of the day as a share of the day, NaN without a real clock."""
    day, slots = series.slots_per_day, np.arange(len(series))
    return (slots + series.first_slot) % day / day if day > 1 else np.full(slots.shape, np.nan)


# ---
# LightGBM for counts over panels: trees correct the odds of "at least n" of a mean distribution, step by step (M6.2).
#
# A binary model per step of `COUNT_STEPS` (direct multi-step), pooled over thresholds and over every market of the panel. It
# starts from the log odds of a few members of `count_members`, so that relations the trees have not learned are left unchanged.
# Trees trained on levels from scratch learned the regime of the training part and doubled the loss when it changed (ours).

#: Modelled steps ahead; corrections between them are interpolated, beyond them constant.
COUNT_STEPS = np.array([1, 2, 4, 8, 12])
#: Members whose mean distribution is corrected.
BASE = ("alike_expected", "recent_4_hours", "alike_3_days", "recent_90_minutes", "recent_12_hours")
#: Members whose probabilities are additional features of the trees.
FEATURE_MEMBERS = (
    "recent_half_hour",
    "even_readings",
    "odd_readings",
    "alike_1_day",
    "recent_2_days",
    "hour_of_day",
)
LONGEST_TRAINING = 1000  # Maximal number of newest slots of a series used for training
MOST_ROWS = 60_000  # Maximal number of training rows of a step; larger panels use fewer origins
FEWEST_ROWS = 500  # Minimal number of training rows of a step; with fewer no trees are trained
_DRAWN = 6  # Thresholds drawn for each origin in training
#: Probabilities are clipped at this distance from 0 and 1, because trees cannot correct more extreme odds.
_CLIP = 0.01
COUNT_SETTINGS: dict[str, Any] = {
    "objective": "binary", "num_threads": 1, "deterministic": True, "force_row_wise": True, "seed": 7, "verbosity": -1,
    "learning_rate": 0.05, "num_leaves": 7, "min_data_in_leaf": 150, "lambda_l2": 10.0, "feature_fraction": 0.6,
    "bagging_fraction": 0.7, "bagging_freq": 1,
}  # fmt: skip
COUNT_ROUNDS = 80


@stored("lightgbm.trees")
@dataclass(frozen=True, slots=True, kw_only=True)
class CountTrees:
    """A booster per step of `COUNT_STEPS`, as text; empty if the panel has too few training rows."""

    boosters: tuple[str, ...]

    def loaded(self) -> tuple[lightgbm.Booster, ...]:
        """Return the parsed boosters, cached across calls."""
        return _load_boosters(self.boosters)


@lru_cache(maxsize=16)
def _load_boosters(texts: tuple[str, ...]) -> tuple[lightgbm.Booster, ...]:
    return tuple(lightgbm.Booster(model_str=text) for text in texts)


def start_odds(at: Situation, thresholds: np.ndarray) -> np.ndarray:
    """Return the log odds of "at least n" of the mean of `BASE`, shape (places, steps, thresholds)."""
    least = at_least(member_distributions(at, BASE).mean(axis=0))[..., thresholds - 1]
    chance = np.clip(least, _CLIP, 1.0 - _CLIP)
    return np.asarray(np.log(chance / (1.0 - chance)))


def _member_probabilities(at: Situation, thresholds: np.ndarray) -> np.ndarray:
    """Return the probabilities of each member, shape (places, steps, thresholds, members), float32."""
    least = at_least(member_distributions(at, (*BASE, *FEATURE_MEMBERS)))[..., thresholds - 1]
    return np.moveaxis(least, 0, -1).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainingRows:
    """Training rows of a series, per origin and drawn threshold.

    ``known`` holds the features common to all steps; ``members`` the members' probabilities, ``start`` the initial log odds and
    ``hit`` the outcome (0, 1 or NaN) per step.
    """

    known: np.ndarray
    members: np.ndarray
    start: np.ndarray
    hit: np.ndarray


#: Cache shared by the count mixture and the predictor `lightgbm`, which use the same trees.
_TREES: dict[bytes, CountTrees] = {}


def fit_trees(panel: Panel, expected: Expectations) -> CountTrees:
    """Train on every observed origin of the newest `LONGEST_TRAINING` slots of all series; deterministic."""
    nodes = expected.at(COUNT_STEPS)
    arrays = [nodes.nodes, *(beta for _, beta in sorted(nodes.coefficients.items()))]
    return from_cache(_TREES, panel, lambda: _fit_trees(panel, nodes), beside=arrays)


def _fit_trees(panel: Panel, expected: Expectations) -> CountTrees:
    rng = np.random.default_rng(COUNT_SETTINGS["seed"])
    known_slots = sum(min(series.observed.size, LONGEST_TRAINING) for series in panel.series)
    every = max(1, -(-known_slots * _DRAWN // MOST_ROWS))
    lessons = [
        found
        for which in range(len(panel))
        if (found := _training_rows(panel, which, every, expected, rng)) is not None
    ]
    if not lessons:
        return CountTrees(boosters=())
    known = np.concatenate([lesson.known for lesson in lessons])
    boosters = []
    for j in range(COUNT_STEPS.size):
        hit = np.concatenate([lesson.hit[:, j] for lesson in lessons])
        use = np.flatnonzero(~np.isnan(hit))
        if use.size < FEWEST_ROWS or hit[use].min() == hit[use].max():
            return CountTrees(boosters=())
        rows = np.concatenate([known, np.concatenate([lesson.members[:, j] for lesson in lessons])], axis=1)[
            use
        ]
        start = np.concatenate([lesson.start[:, j] for lesson in lessons])[use]
        data = lightgbm.Dataset(rows, hit[use], init_score=start)
        boosters.append(lightgbm.train(COUNT_SETTINGS, data, COUNT_ROUNDS).model_to_string())
    return CountTrees(boosters=tuple(boosters))


def _training_rows(
    panel: Panel, which: int, every: int, expected: Expectations, rng: np.random.Generator
) -> _TrainingRows | None:
    """Return the training rows of every ``every``-th origin, counted back from the newest; None if there are none."""
    series = panel.series[which]
    n = len(series)
    states = int(series.upper.max()) + 1 if n else 1
    places = np.flatnonzero(~np.isnan(series.values))
    places = places[places >= max(8, n - LONGEST_TRAINING)][::-every][::-1]
    if not 2 <= states <= MOST_STATES or not places.size:
        return None
    thresholds = thresholds_of(states)
    at = situation_of(series, places, COUNT_STEPS, states, expected.of)
    drawn = rng.random((places.size, thresholds.size)).argsort(axis=1)[:, :_DRAWN]
    known = np.take_along_axis(count_rows(at, peers_of(panel, which), thresholds), drawn[:, :, None], axis=1)
    wide = drawn[:, None, :]
    members = np.take_along_axis(_member_probabilities(at, thresholds), wide[..., None], axis=2)
    start = np.take_along_axis(start_odds(at, thresholds), wide, axis=2)
    target = places[:, None] + COUNT_STEPS
    actual = np.where(target < n, series.values[np.minimum(target, n - 1)], np.nan)
    hit = np.take_along_axis(exceedance(actual, thresholds), wide, axis=2)
    steps = COUNT_STEPS.size

    def flat(table: np.ndarray) -> np.ndarray:
        """Reshape (origins, steps, drawn, ...) to (origins x drawn, steps, ...)."""
        return np.asarray(np.swapaxes(table, 1, 2).reshape(-1, steps, *table.shape[3:]))

    return _TrainingRows(
        known=known.reshape(-1, known.shape[-1]), members=flat(members), start=flat(start), hit=flat(hit)
    )


def trees_distributions(boosters: Sequence[lightgbm.Booster], at: Situation, peers: np.ndarray) -> np.ndarray:
    """Return corrected distributions (places, steps, states) of a situation; without boosters the mean of `BASE`."""
    if at.states < 2:
        return np.ones((at.places.size, at.steps.size, 1))
    thresholds = thresholds_of(at.states)
    odds = start_odds(at, thresholds)
    if boosters and at.places.size:
        odds = odds + _corrections(boosters, at, peers, thresholds)
    least = np.minimum.accumulate(1.0 / (1.0 + np.exp(-odds)), axis=-1)
    every = np.arange(1, at.states)
    if thresholds.size < every.size:
        least = _interpolate(least, thresholds, every)
    return distribution_of(least)


def _corrections(
    boosters: Sequence[lightgbm.Booster], at: Situation, peers: np.ndarray, thresholds: np.ndarray
) -> np.ndarray:
    """Return the trees' corrections of the log odds, linear between modelled steps, shape (places, steps, thresholds)."""
    nodes = at.at_steps(COUNT_STEPS)
    known, members = count_rows(at, peers, thresholds), _member_probabilities(nodes, thresholds)
    added = []
    for j, booster in enumerate(boosters):
        rows = np.concatenate([known, members[:, j]], axis=-1)
        raw = np.asarray(booster.predict(rows.reshape(-1, rows.shape[-1]), raw_score=True, num_threads=1))
        added.append(raw.reshape(rows.shape[:2]))
    table = np.stack(added, axis=1)
    return np.asarray(interpolation(at.steps, COUNT_STEPS) @ table)


def _interpolate(least: np.ndarray, thresholds: np.ndarray, every: np.ndarray) -> np.ndarray:
    """Interpolate probabilities linearly from modelled thresholds to all thresholds 1..capacity."""
    right = np.minimum(np.searchsorted(thresholds, every), thresholds.size - 1)
    left = np.maximum(right - 1, 0)
    gap = np.maximum(thresholds[right] - thresholds[left], 1)
    share = np.where(right == left, 1.0, (every - thresholds[left]) / gap)
    return np.asarray(least[..., left] * (1.0 - share) + least[..., right] * share)


# ---
# Features of the price model for a pair of origin and step, and the training pairs (M6.2).

#: Steps ahead used for training; the trees interpolate between them.
PRICE_STEPS = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 36, 48])
#: Steps drawn for each origin in training, and the seed of the draws.
DRAWN = 4
SEED = 7
MOST_PAIRS = 40_000  # Maximal number of training pairs, spread evenly over the slots at which prices move
FEWEST_PAIRS = 500  # Minimal number of training pairs; with fewer no trees are trained
HALF_LIFE = pd.Timedelta(days=21)  # Half-life of the weight of a training pair
SIZE_LEVELS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])  # Modelled levels of the size of a move
SIZE_RANGE = (-9.0, 6.0)  # Log sizes (in units of recent changes) are clipped to this range
SMALLEST_CHANCE = 1e-3  # Minimal probability of each direction
#: Columns with a direction, which are also included relative to the direction of the last change.
_SIGNED_COLUMNS = [
    STATE_COLUMNS.index(name) for name in ("change_2", "change_4", "over_median_day", "over_median_week")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPairs:
    """Features and baseline distribution of n pairs of origin and step.

    ``rows`` (n, columns) are features. ``ways`` (n, 3) are log probabilities, by the change process, that the price moves against
    the direction of the last change, not at all, or onwards in it. ``sizes`` (n, 2, levels) are log sizes of a move against and
    onwards at `SIZE_LEVELS`, in units of recent changes.
    """

    rows: np.ndarray
    ways: np.ndarray
    sizes: np.ndarray


def known_pairs(
    process: FittedChangeProcess, series: Series, state: PriceState, origins: np.ndarray, steps: np.ndarray
) -> KnownPairs:
    """Compute features and the change process's distribution for origins (m,) and steps ahead (m, k), as m k pairs.

    Features are `price_rows`, its signed columns relative to the direction of the last change, and that change's sign; then the
    process's probabilities of no change and of one change by the step, the mean number of changes, and the step.
    """
    rows = price_rows(series, state, origins)
    sign = np.sign(state.last[origins])[:, None]
    known = np.hstack([rows, rows[:, _SIGNED_COLUMNS] * sign, sign])
    chances = process.chances(series, state, origins, int(steps.max()))
    at = np.take_along_axis(chances, (steps - 1)[:, :, None], axis=1)
    of_step = np.stack([at[:, :, 0], at[:, :, 1], at @ np.arange(at.shape[2]), steps], axis=-1)
    wide = np.broadcast_to(known[:, None, :], (*steps.shape, known.shape[1]))
    value, weight = process.mixture(state, origins, at)
    # Measured in the direction of the last change: moves against it are negative, ascending, for rises and falls alike.
    fell = sign[:, 0] < 0
    value = np.where(fell[:, None], -value[:, ::-1], value) / state.size[origins][:, None]
    weight = np.where(fell[:, None, None], weight[:, :, ::-1], weight)
    directions, sizes = _distribution_of(value, weight)
    return KnownPairs(
        rows=np.concatenate([wide, of_step], axis=-1).reshape(-1, wide.shape[2] + of_step.shape[2]),
        ways=directions.reshape(-1, 3),
        sizes=sizes.reshape(-1, 2, SIZE_LEVELS.size),
    )


def _distribution_of(value: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log probabilities below, at and above 0 (m, k, 3), and log sizes (m, k, 2, levels), of ascending values (m, p)."""
    below, above = (value < 0)[:, None, :], (value > 0)[:, None, :]
    sides = [np.where(side, weight, 0.0) for side in (below, above)]
    falls, rises = (side.sum(axis=2) for side in sides)
    least = np.maximum(np.stack([falls, 1.0 - falls - rises, rises], axis=-1), SMALLEST_CHANCE)
    sizes = np.zeros((*falls.shape, 2, SIZE_LEVELS.size))
    rows = np.arange(value.shape[0])[:, None]
    logs = np.clip(np.log(np.maximum(np.abs(value), 1e-9)), *SIZE_RANGE)
    for i, (side, total) in enumerate(zip(sides, (falls, rises), strict=True)):
        share = np.cumsum(side, axis=2) / np.maximum(total, 1e-12)[:, :, None]
        for j, level in enumerate(SIZE_LEVELS):
            # Below 0 the values ascend towards small sizes.
            place = np.argmax(share >= (1.0 - level if i == 0 else level) - 1e-9, axis=2)
            sizes[:, :, i, j] = np.where(total > 1e-12, logs[rows, place], 0.0)
    return np.log(least / least.sum(axis=-1, keepdims=True)), sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Training pairs of origin and step.

    ``pairs`` hold features and baseline; ``change`` is the log price change, ``unit`` its unit, ``weight`` the weight and
    ``sign`` the sign of the last change before the origin, each of shape (n,).
    """

    pairs: KnownPairs
    change: np.ndarray
    unit: np.ndarray
    weight: np.ndarray
    sign: np.ndarray


def training_moves(panel: Panel, process: FittedChangeProcess) -> Moves | None:
    """Return training pairs of observed origins at which the price moves with drawn steps; None if the panel has too few."""
    states = [price_state(series) for series in panel.series]
    places = [
        np.flatnonzero(state.moves & (market_series.newest == np.arange(len(market_series))))
        for market_series, state in zip(panel.series, states, strict=True)
    ]
    total = sum(place.size for place in places) * DRAWN
    if total < FEWEST_PAIRS or not process.sizes:
        return None
    every = -(-total // MOST_PAIRS)
    end = max(series.end for series in panel.series)
    rng = np.random.default_rng(SEED)
    parts = []
    for market_series, state, place in zip(panel.series, states, places, strict=True):
        origins = place[(place + market_series.first_slot) % every == 0]
        if origins.size:
            steps = rng.choice(PRICE_STEPS, (origins.size, DRAWN))
            parts.append(_pairs(process, market_series, state, (origins, steps), end))
    made = [np.concatenate(column) for column in zip(*parts, strict=True)]
    pairs = KnownPairs(rows=made[0], ways=made[1], sizes=made[2])
    return Moves(pairs=pairs, change=made[3], unit=made[4], weight=made[5], sign=made[6])


def _pairs(
    process: FittedChangeProcess,
    series: Series,
    state: PriceState,
    drawn: tuple[np.ndarray, np.ndarray],
    end: int,
) -> tuple[np.ndarray, ...]:
    """Return the columns of `Moves` for origins (n,) and steps (n, k) with an observed target; ``end`` is the panel's end."""
    origins, steps = drawn
    target = origins[:, None] + steps
    inside = np.minimum(target, len(series) - 1)
    known = (target < len(series)) & ~np.isnan(series.values[inside])
    at = np.broadcast_to(origins[:, None], steps.shape)[known]
    old = (end - series.first_slot - at) * (series.step / HALF_LIFE)
    pairs = known_pairs(process, series, state, origins, steps)
    directions, sizes, rows = (part[known.ravel()] for part in (pairs.ways, pairs.sizes, pairs.rows))
    change = state.level[target[known]] - state.level[at]
    return rows, directions, sizes, change, state.size[at], np.exp2(-old), np.sign(state.last[at])


# ---
# LightGBM for prices over panels: whether and in which direction the price moves within k slots, and by how much (M6.2).
#
# A price is constant most of the time, so its distribution is a point mass at the newest value between two tails. Both models
# correct the distribution of the change process (`price_changes`): a multiclass model the probabilities of the three outcomes,
# quantile models the size of the move in units of the series' recent changes. The step ahead is a feature, and all markets of
# the panel are pooled. Directions are relative to that of the last change, so that momentum and reversal are learned jointly for
# rises and falls; the sign of the last change is a feature too (ours).

FEWEST_MOVES = 50  # Minimal number of moves in the training pairs; with fewer no trees are trained
PRICE_SETTINGS: dict[str, Any] = {
    "num_threads": 1, "deterministic": True, "force_row_wise": True, "seed": 7, "verbosity": -1,
    "learning_rate": 0.05, "num_leaves": 7, "min_data_in_leaf": 200, "lambda_l2": 20.0, "feature_fraction": 0.7,
}  # fmt: skip
#: Boosting rounds of a panel with hardly any moves, and additional rounds of a panel with `MANY_MOVES` or more training pairs that
#: moved.
PRICE_ROUNDS = 20
ROUNDS_MORE = 20
MANY_MOVES = 20_000
AGAINST, NONE, ONWARDS = 0, 1, 2  # Classes of the direction: against the last change, no move, onwards
#: Changes of the logarithm below this are no move.
_SAME = 1e-9
_CHUNK_ROWS = 200_000
_SCORES = np.array([NormalDist().inv_cdf(level) for level in SIZE_LEVELS])
_GRID = np.linspace(0.001, 0.999, 999)
_GRID_SCORES = np.array([NormalDist().inv_cdf(share) for share in _GRID])


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostedPrice:
    """Price model of a panel; if the panel has too few moves, the change process replaces it, with a reason."""

    def fit(self, panel: Panel) -> FittedBoostedPrice:
        """Fit the trees on the slots of all markets at which the price moves."""
        return from_cache(_FITTED, panel, lambda: self._fit(panel))

    def _fit(self, panel: Panel) -> FittedBoostedPrice:
        process = ChangeProcess().fit(panel)
        moves = training_moves(panel, process)
        if moves is None:
            return FittedBoostedPrice(way=None, sizes=(), process=process)
        way = np.where(np.abs(moves.change) < _SAME, NONE, np.sign(moves.change) * moves.sign + 1)
        moved = np.count_nonzero(way != NONE)
        if moved < FEWEST_MOVES:
            return FittedBoostedPrice(way=None, sizes=(), process=process)
        rounds = PRICE_ROUNDS + round(ROUNDS_MORE * min(1.0, moved / MANY_MOVES))
        start = moves.pairs.ways.ravel(order="F")  # Fortran order: class by class
        data = lightgbm.Dataset(moves.pairs.rows, way, weight=moves.weight, init_score=start)
        direction = lightgbm.train(
            {**PRICE_SETTINGS, "objective": "multiclass", "num_class": 3}, data, rounds
        )
        return FittedBoostedPrice(way=direction, sizes=_size_boosters(moves, way, rounds), process=process)


def _size_boosters(moves: Moves, way: np.ndarray, rounds: int) -> tuple[lightgbm.Booster, ...]:
    """Fit quantile models of the log size of a move, given its direction; a booster per level of `SIZE_LEVELS`."""
    moved = np.flatnonzero(way != NONE)
    rows = np.hstack([moves.pairs.rows[moved], way[moved, None]])
    size = np.clip(np.log(np.abs(moves.change[moved]) / moves.unit[moved]), *SIZE_RANGE)
    starts = moves.pairs.sizes[moved, (way[moved] == ONWARDS).astype(int)]
    # The levels differ only in their initial scores, so the rows are binned once for all of them.
    data = lightgbm.Dataset(rows, size, weight=moves.weight[moved], init_score=starts[:, 0].copy())
    boosters = []
    for i, level in enumerate(SIZE_LEVELS):
        data.set_init_score(starts[:, i].copy())
        boosters.append(
            lightgbm.train({**PRICE_SETTINGS, "objective": "quantile", "alpha": level}, data, rounds)
        )
    return tuple(boosters)


@stored("lightgbm.price")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBoostedPrice:
    """Fitted price trees and change process: booster ``way`` of the direction or None, ``sizes`` of `SIZE_LEVELS`."""

    way: lightgbm.Booster | None
    sizes: tuple[lightgbm.Booster, ...]
    process: FittedChangeProcess

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast quantiles where the price moves, and the newest value where it is constant (`PriceState.moves`)."""
        if self.way is None:
            given = self.process.outlook(panel, which, origins, horizon)
            reasons = join_reasons(repeat("too few moves to learn from", origins.size), given.reasons)
            return replace(given, reasons=reasons)
        series = panel.series[which]
        state = price_state(series)
        quantiles, mean = moving_quantiles(
            partial(self._quantiles, self.way, series, state, horizon),
            series,
            state,
            origins,
            horizon,
            chunk=max(1, _CHUNK_ROWS // horizon),
        )
        return Outlook(quantiles=quantiles, mean=mean, reasons=stale_reasons(series, origins))

    def _quantiles(
        self, way: lightgbm.Booster, series: Series, state: PriceState, horizon: int, origins: np.ndarray
    ) -> np.ndarray:
        """Return quantiles of the price, shape (origins, horizon, 19)."""
        steps = np.minimum(series.age(origins)[:, None] + np.arange(1, horizon + 1), PRICE_STEPS[-1])
        pairs = known_pairs(self.process, series, state, origins, steps)
        chances = np.exp(pairs.ways + np.asarray(way.predict(pairs.rows, raw_score=True, num_threads=1)))
        chances /= chances.sum(axis=1, keepdims=True)
        against, onwards = (self._sizes(pairs, direction) for direction in (AGAINST, ONWARDS))
        rose = np.repeat(state.last[origins] > 0, horizon)
        change = distribution_quantiles(
            falls=np.where(rose, chances[:, AGAINST], chances[:, ONWARDS]),
            rises=np.where(rose, chances[:, ONWARDS], chances[:, AGAINST]),
            down=np.where(rose[:, None], against, onwards),
            up=np.where(rose[:, None], onwards, against),
        ).reshape(origins.size, horizon, LEVELS.size)
        moved = state.level[origins][:, None, None] + change * state.size[origins][:, None, None]
        return np.where(change == 0, series.last(origins)[:, None, None], np.exp(np.minimum(moved, 30.0)))

    def _sizes(self, pairs: KnownPairs, way: int) -> np.ndarray:
        """Return the log size at `SIZE_LEVELS` of a move in direction ``way``, shape (pairs, levels)."""
        rows = np.hstack([pairs.rows, np.full((pairs.rows.shape[0], 1), float(way))])
        shift = np.stack(
            [np.asarray(size.predict(rows, raw_score=True, num_threads=1)) for size in self.sizes], axis=1
        )
        return np.sort(pairs.sizes[:, int(way == ONWARDS)] + shift, axis=1)


def distribution_quantiles(
    *, falls: np.ndarray, rises: np.ndarray, down: np.ndarray, up: np.ndarray
) -> np.ndarray:
    """Return quantiles at `LEVELS`, shape (n, 19), of a change with probabilities of a fall and of a rise (n,), else 0.

    ``down`` and ``up`` (n, levels) are the log sizes of falls and rises at `SIZE_LEVELS`.
    """
    out = np.zeros((falls.size, LEVELS.size))
    for i, level in enumerate(LEVELS):
        low = np.flatnonzero(level < falls)
        out[low, i] = -_size_at(1.0 - level / falls[low], down[low])
        high = np.flatnonzero(1.0 - level < rises)
        out[high, i] = _size_at(1.0 - (1.0 - level) / rises[high], up[high])
    return out


def _size_at(share: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Return the size at probability ``share`` (n,) from log sizes (n, levels), interpolated and extrapolated in normal scores."""
    score = np.clip(np.interp(share, _GRID, _GRID_SCORES), -2.0, 2.0)
    left = np.clip(np.searchsorted(_SCORES, score) - 1, 0, _SCORES.size - 2)
    rows = np.arange(share.size)
    low, high = logs[rows, left], logs[rows, left + 1]
    part = (score - _SCORES[left]) / (_SCORES[left + 1] - _SCORES[left])
    return np.asarray(np.exp(np.clip(low + part * (high - low), *SIZE_RANGE)))


#: Cache shared by the price mixture and the predictor `lightgbm`, which use the same trees.
_FITTED: dict[bytes, FittedBoostedPrice] = {}


# ---
# The predictor of both variables.

UNTAUGHT = "too little to train trees on"  # Reason where the distributions are not corrected by trees


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostedCount:
    """Count model of a panel: a mean of simple distributions corrected by trees."""

    def fit(self, panel: Panel) -> FittedBoostedCount:
        """Estimate expectations and trees on the whole panel."""
        expected = expectations(panel, COUNT_STEPS)
        seen = tuple(series.key for series in panel.series if series.observed.size)
        end = max((series.end for series in panel.series), default=0)
        return FittedBoostedCount(expected=expected, trees=fit_trees(panel, expected), seen=seen, end=end)


@stored("lightgbm.count")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBoostedCount:
    """Fitted count trees and their expectations; ``seen``: keys of the training series, ``end``: the slot after the last."""

    expected: Expectations
    trees: CountTrees
    seen: tuple[str, ...]
    end: int

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast corrected distributions.

        Last value replaces them, with a reason, if the newest value is stale or there are too many states.
        """
        series = panel.series[which]
        why = UNTAUGHT if not self.trees.boosters else "" if series.key in self.seen else NEVER_SEEN

        def distributions(part: np.ndarray, steps: np.ndarray, states: int) -> np.ndarray:
            at = situation_of(series, series.newest[part], steps, states, self.expected.of)
            return trees_distributions(self.trees.loaded(), at, peers_of(panel, which))

        return outlook_or_last_value(distributions, series, origins, horizon, end=self.end, why=why)


def outlook_or_last_value(
    distributions: Callable[[np.ndarray, np.ndarray, int], np.ndarray],
    series: Series,
    origins: np.ndarray,
    horizon: int,
    *,
    end: int,
    why: str,
) -> Outlook:
    """Return the outlook of ``distributions(origins, steps, states)``, or last value for a stale newest value or too many states.

    ``steps`` count from the slot of the newest value: a value that is g slots old is forecast g + 1..g + ``horizon`` steps
    ahead. Origins with different ages or bounds are forecast separately, so the forecast of an origin does not depend on the
    others. ``end`` is the slot after the last slot of the estimation, which also limits the data for the spread of last value.
    """
    bounds, age = series.upper[origins], series.age(origins)
    many, stale = bounds >= MOST_STATES, is_stale(series, age)
    most = int(bounds.max()) + 1
    distribution = np.zeros((origins.size, horizon, min(most, MOST_STATES)))
    for bound, old in np.unique(np.stack([bounds, age], axis=1)[~(many | stale)], axis=0).astype(int):
        part = (bounds == bound) & (age == old)
        distribution[part, :, : bound + 1] = distributions(
            origins[part], old + np.arange(1, horizon + 1), bound + 1
        )
    own = outlook_of(distribution, (why,) * origins.size)
    if not (many | stale).any():
        return own
    simpler = LastValue().fit(series.until(end - 1)).outlook(series, origins, horizon)
    texts = (f"{bound:.0f} instances at most, fewer than {MOST_STATES} are modelled" for bound in bounds)
    labels = (text if large else "" for text, large in zip(texts, many, strict=True))
    simpler = with_distribution(simpler, distribution.shape[2])
    simpler = replace(simpler, reasons=join_reasons(labels, simpler.reasons))
    given = mix_outlooks(own, simpler, many | stale)
    return replace(given, distribution=None) if many.any() else given


def with_distribution(outlook: Outlook, states: int) -> Outlook:
    """Add to an outlook an approximate distribution from its quantiles, with equal mass at each level."""
    distribution = indicator(np.floor(outlook.quantiles + 0.5), states).mean(axis=2)
    return replace(outlook, distribution=distribution)


def lightgbm_predictor() -> ByVariable:
    """Return the LightGBM predictor."""
    return ByVariable(name="lightgbm", pooled=True, price=BoostedPrice(), count=BoostedCount())
