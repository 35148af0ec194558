"""LightGBM for counts: trees over all markets of a source correct the odds of "at least n" (M6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import lightgbm
import numpy as np

from forecasting.predictor import Panel
from forecasting.predictors.count_members import (
    Expectations,
    Situation,
    in_slots,
    lagged,
    member_laws,
    situation_of,
    smoothed,
)
from forecasting.predictors.laws import MOST_STATES, at_least, exceeded, law_of
from forecasting.predictors.remembered import Remembered
from forecasting.state import stored

# ---
# What the boosted count model is told: one row per slot and threshold n, about "at least n" (M6.2).
#
# Rows are relative to the threshold (is the value at or above it, how far from it, how often of late), so that what is learned
# of one level, market or year holds at another. Row t reads slots up to t only, in the series and in its peers.

#: At most so many thresholds are modelled; chances between them are interpolated.
MOST_THRESHOLDS = 24
_LAGS = (1, 2, 3)


def thresholds_of(states: int) -> np.ndarray:
    """The counts n whose "at least n" is modelled, ascending, the first 1 and the last the cap."""
    return np.unique(np.linspace(1, states - 1, min(MOST_THRESHOLDS, states - 1)).astype(int))


def peers_of(panel: Panel, which: int) -> np.ndarray:
    """Counts of the other series of the same source on this one's slots, as shares of their caps, shape (slots, peers)."""
    own = panel.series[which]
    columns = []
    for place, other in enumerate(panel.series):
        if place == which or other.source != own.source:
            continue
        column = np.full(len(own), np.nan)
        first, stop = max(own.first_slot, other.first_slot), min(own.end, other.end)
        if first < stop:
            theirs = slice(first - other.first_slot, stop - other.first_slot)
            share = other.values[theirs] / np.maximum(other.upper[theirs], 1.0)
            column[first - own.first_slot : stop - own.first_slot] = share
        columns.append(column)
    return np.stack(columns, axis=1) if columns else np.zeros((len(own), 0))


def count_rows(at: Situation, peers: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """What is known at ``at.places`` of every threshold, shape (places, thresholds, columns), float32."""
    series, places = at.series, at.places
    cap = np.maximum(series.upper, 1.0)
    above = exceeded(at.present, thresholds)
    columns = [above, *(lagged(above, lag) for lag in _LAGS)]
    levels = [at.present, *(lagged(at.present, lag) for lag in _LAGS), *_readings(at)]
    levels += [smoothed(series.values, in_slots(series, hours, 3)) for hours in (3.0, 12.0, 48.0)]
    columns += [level[:, None] - thresholds + 0.5 for level in levels]
    columns += [_wide(column, thresholds) for column in _swings(at)]
    changed = np.abs(above - lagged(above, 1))
    columns += [_since(changed), *(smoothed(changed, in_slots(series, hours, 8)) for hours in (12.0, 48.0))]
    columns += [
        np.broadcast_to(part, above.shape)
        for part in (thresholds / (at.states - 1), thresholds == thresholds[-1])
    ]
    columns += [*_peer_columns(at, peers, thresholds, cap), _wide(_hour(at), thresholds)]
    return np.stack([column[places] for column in columns], axis=-1).astype(np.float32)


def _wide(column: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    return np.broadcast_to(column[:, None], (column.shape[0], thresholds.size))


def _readings(at: Situation) -> list[np.ndarray]:
    """Two readings at thirds of the slot before, and the mean of all of it with the value."""
    within, m = at.series.within, at.series.within.shape[1]
    if m == 0:
        return [np.full(len(at.series), np.nan)] * 3
    both = np.concatenate([within, at.series.values[:, None]], axis=1)
    seen = ~np.isnan(both)
    mean = np.where(seen, both, 0.0).sum(axis=1) / np.where(seen.any(axis=1), seen.sum(axis=1), np.nan)
    first, second = (max(round((m + 1) * third / 3) - 1, 0) for third in (1, 2))
    return [within[:, first], within[:, second], mean]


def _swings(at: Situation) -> list[np.ndarray]:
    """Usual change over one, two and four slots, over four hours and over a day."""
    values = at.series.values
    changes = [np.abs(values - lagged(values, lag)) for lag in (1, 2, 4)]
    return [smoothed(change, in_slots(at.series, hours, 4)) for change in changes for hours in (4.0, 24.0)]


def _since(changed: np.ndarray) -> np.ndarray:
    """Logarithm of one plus the slots since the threshold was last crossed, shape of ``changed``."""
    slots = np.arange(changed.shape[0])[:, None]
    last = np.maximum.accumulate(np.where(changed > 0, slots, 0), axis=0)
    return np.asarray(np.log1p(slots - last))


def _peer_columns(
    at: Situation, peers: np.ndarray, thresholds: np.ndarray, cap: np.ndarray
) -> list[np.ndarray]:
    """Share of peers that are at or above the threshold (as shares of their caps), and that against its mean of late."""
    shape = (len(at.series), thresholds.size)
    if peers.shape[1] == 0:
        return [np.full(shape, np.nan)] * 2
    above = exceeded(peers * cap[:, None], thresholds - 1e-9)
    seen = ~np.isnan(above)
    count = seen.sum(axis=1)
    share = np.where(seen, above, 0.0).sum(axis=1) / np.where(count > 0, count, np.nan)
    return [share, share - smoothed(share, in_slots(at.series, 24.0, 8))]


def _hour(at: Situation) -> np.ndarray:
    """Slot of the day as a share of it, NaN without a real clock."""
    day, slots = at.series.slots_per_day, np.arange(len(at.series))
    return (slots + at.series.first_slot) % day / day if day > 1 else np.full(slots.shape, np.nan)


# ---
# LightGBM for counts over panels: a mean of simple laws whose odds of "at least n" trees correct, step by step (M6.2).
#
# One binary model per step of `STEPS` (direct multi-step), pooled over thresholds and over every market of the panel. It starts
# from the log odds of a few laws that follow the series by themselves (`count_members`), so that what the trees have not
# learned is left as it was: trained on levels from scratch, they learned the training part's regime and lost by a factor of two
# when it changed (ours).

#: Steps ahead that are modelled; corrections between them are interpolated, beyond them held.
STEPS = np.array([1, 2, 4, 8, 12])
#: Members whose mean law is corrected.
BASE = ("alike_expected", "recent_4_hours", "alike_3_days", "recent_90_minutes", "recent_12_hours")
#: Members whose chances the trees are told beside.
TOLD = ("recent_half_hour", "even_readings", "odd_readings", "alike_1_day", "recent_2_days", "hour_of_day")
#: Only the newest so many slots of a series are trained on.
LONGEST_TRAINING = 1000
#: Rows of a step; of a panel that gives more, fewer origins are used.
MOST_ROWS = 60_000
#: Fewer rows than this teach nothing that lasts.
FEWEST_ROWS = 500
#: Thresholds drawn for each origin in training.
_DRAWN = 6
#: Odds outside these chances are a thin tail; trees could not correct them.
_SURE = 0.01
SETTINGS: dict[str, Any] = {
    "objective": "binary", "num_threads": 1, "deterministic": True, "force_row_wise": True, "seed": 7, "verbosity": -1,
    "learning_rate": 0.05, "num_leaves": 7, "min_data_in_leaf": 150, "lambda_l2": 10.0, "feature_fraction": 0.6,
    "bagging_fraction": 0.7, "bagging_freq": 1,
}  # fmt: skip
ROUNDS = 80


@stored("lightgbm.trees")
@dataclass(frozen=True, slots=True, kw_only=True)
class CountTrees:
    """A booster per step of `STEPS`, as text; none where the panel taught too little."""

    boosters: tuple[str, ...]

    def loaded(self) -> tuple[lightgbm.Booster, ...]:
        """The boosters themselves, read once however often they are asked for."""
        return _loaded(self.boosters)


@lru_cache(maxsize=16)
def _loaded(texts: tuple[str, ...]) -> tuple[lightgbm.Booster, ...]:
    return tuple(lightgbm.Booster(model_str=text) for text in texts)


def start_odds(at: Situation, thresholds: np.ndarray) -> np.ndarray:
    """Log odds of "at least n" of the mean of `BASE`, shape (places, steps, thresholds)."""
    least = at_least(member_laws(at, BASE).mean(axis=0))[..., thresholds - 1]
    chance = np.clip(least, _SURE, 1.0 - _SURE)
    return np.asarray(np.log(chance / (1.0 - chance)))


def _told(at: Situation, thresholds: np.ndarray) -> np.ndarray:
    """Chances of the members, one by one, shape (places, steps, thresholds, members), float32."""
    least = at_least(member_laws(at, (*BASE, *TOLD)))[..., thresholds - 1]
    return np.moveaxis(least, 0, -1).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lessons:
    """Training rows of one series: for every origin and drawn threshold its row (without the step's chances), and per
    step the chances, the start and whether it came."""

    known: np.ndarray
    told: np.ndarray
    start: np.ndarray
    hit: np.ndarray


#: The mixture is made of the same trees as the predictor `lightgbm`.
_TREES: Remembered[CountTrees] = Remembered()


def fit_trees(panel: Panel, expected: Expectations) -> CountTrees:
    """Train on every observed origin of the newest `LONGEST_TRAINING` slots of all series; deterministic."""
    told = expected.at(STEPS)
    beside = [told.nodes, *(beta for _, beta in sorted(told.coefficients.items()))]
    return _TREES.of(panel, lambda: _fit_trees(panel, told), beside=beside)


def _fit_trees(panel: Panel, expected: Expectations) -> CountTrees:
    rng = np.random.default_rng(SETTINGS["seed"])
    known_slots = sum(min(series.observed.size, LONGEST_TRAINING) for series in panel.series)
    every = max(1, -(-known_slots * _DRAWN // MOST_ROWS))
    lessons = [
        found
        for which in range(len(panel))
        if (found := _lessons(panel, which, every, expected, rng)) is not None
    ]
    if not lessons:
        return CountTrees(boosters=())
    known = np.concatenate([one.known for one in lessons])
    boosters = []
    for j in range(STEPS.size):
        hit = np.concatenate([one.hit[:, j] for one in lessons])
        use = np.flatnonzero(~np.isnan(hit))
        if use.size < FEWEST_ROWS or hit[use].min() == hit[use].max():
            return CountTrees(boosters=())
        rows = np.concatenate([known, np.concatenate([one.told[:, j] for one in lessons])], axis=1)[use]
        start = np.concatenate([one.start[:, j] for one in lessons])[use]
        data = lightgbm.Dataset(rows, hit[use], init_score=start)
        boosters.append(lightgbm.train(SETTINGS, data, ROUNDS).model_to_string())
    return CountTrees(boosters=tuple(boosters))


def _lessons(
    panel: Panel, which: int, every: int, expected: Expectations, rng: np.random.Generator
) -> _Lessons | None:
    """Lessons of one series at every ``every``-th origin, counted back from the newest; None if it has nothing to teach."""
    series = panel.series[which]
    n = len(series)
    states = int(series.upper.max()) + 1 if n else 1
    places = np.flatnonzero(~np.isnan(series.values))
    places = places[places >= max(8, n - LONGEST_TRAINING)][::-every][::-1]
    if not 2 <= states <= MOST_STATES or not places.size:
        return None
    thresholds = thresholds_of(states)
    at = situation_of(series, places, STEPS, states, expected.of)
    drawn = rng.random((places.size, thresholds.size)).argsort(axis=1)[:, :_DRAWN]
    known = np.take_along_axis(count_rows(at, peers_of(panel, which), thresholds), drawn[:, :, None], axis=1)
    wide = drawn[:, None, :]
    told = np.take_along_axis(_told(at, thresholds), wide[..., None], axis=2)
    start = np.take_along_axis(start_odds(at, thresholds), wide, axis=2)
    target = places[:, None] + STEPS
    came = np.where(target < n, series.values[np.minimum(target, n - 1)], np.nan)
    hit = np.take_along_axis(exceeded(came, thresholds), wide, axis=2)
    steps = STEPS.size

    def flat(table: np.ndarray) -> np.ndarray:
        """(origins, steps, drawn, ...) as (origins x drawn, steps, ...)."""
        return np.asarray(np.swapaxes(table, 1, 2).reshape(-1, steps, *table.shape[3:]))

    return _Lessons(
        known=known.reshape(-1, known.shape[-1]), told=flat(told), start=flat(start), hit=flat(hit)
    )


def trees_laws(boosters: Sequence[lightgbm.Booster], at: Situation, peers: np.ndarray) -> np.ndarray:
    """Corrected laws at every place and step of a situation, shape (places, steps, states); without boosters the start's."""
    if at.states < 2:
        return np.ones((at.places.size, at.steps.size, 1))
    thresholds = thresholds_of(at.states)
    odds = start_odds(at, thresholds)
    if boosters and at.places.size:
        odds = odds + _corrections(boosters, at, peers, thresholds)
    least = np.minimum.accumulate(1.0 / (1.0 + np.exp(-odds)), axis=-1)
    every = np.arange(1, at.states)
    if thresholds.size < every.size:
        least = _between(least, thresholds, every)
    return law_of(least)


def _corrections(
    boosters: Sequence[lightgbm.Booster], at: Situation, peers: np.ndarray, thresholds: np.ndarray
) -> np.ndarray:
    """What the trees add to the log odds, linear between the steps that are modelled, shape (places, steps, thresholds)."""
    nodes = at.at_steps(STEPS)
    known, told = count_rows(at, peers, thresholds), _told(nodes, thresholds)
    added = []
    for j, booster in enumerate(boosters):
        rows = np.concatenate([known, told[:, j]], axis=-1)
        raw = np.asarray(booster.predict(rows.reshape(-1, rows.shape[-1]), raw_score=True, num_threads=1))
        added.append(raw.reshape(rows.shape[:2]))
    table = np.stack(added, axis=1)
    return np.asarray(_step_shares(at.steps) @ table)


def _step_shares(steps: np.ndarray) -> np.ndarray:
    """Weights (steps, STEPS) that interpolate linearly between `STEPS`."""
    return np.stack([np.interp(steps, STEPS, unit) for unit in np.eye(STEPS.size)], axis=1)


def _between(least: np.ndarray, thresholds: np.ndarray, every: np.ndarray) -> np.ndarray:
    """Chances at thresholds 1..cap from those at some of them, linear in between."""
    right = np.minimum(np.searchsorted(thresholds, every), thresholds.size - 1)
    left = np.maximum(right - 1, 0)
    gap = np.maximum(thresholds[right] - thresholds[left], 1)
    share = np.where(right == left, 1.0, (every - thresholds[left]) / gap)
    return np.asarray(least[..., left] * (1.0 - share) + least[..., right] * share)
