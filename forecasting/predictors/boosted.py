"""LightGBM: one model for all steps ahead, started from a simpler model whose errors it corrects (M6.2).

Counts: a binary model of "at least n at step k", pooled over n, started from the Markov chain's odds; its answers for all n
are a distribution on {0..cap}. Price: quantiles of the change from the last value, started from last value's.
Trained from scratch instead, on levels, the same trees learned the training part's regime and lost to last
value by a factor of two on the open 16-GPU series (ours).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import lightgbm
import numpy as np
import pandas as pd

from forecasting.features import (
    EXCEEDANCE_SIGNS,
    TARGET_COLUMNS,
    exceedance_features,
    exceeded,
    price_features,
    target_features,
    value_a_day_before,
)
from forecasting.forecast import LEVELS
from forecasting.predictors.last_value import FittedLastValue, LastValue
from forecasting.predictors.markov import FittedMarkovChain, MarkovChain, quantiles_of
from forecasting.series import Series
from forecasting.univariate import FallsBack, FittedVariable, Outlook, UnivariatePredictor, mixed

#: Steps ahead that are trained on; the model interpolates between them.
STEPS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 48])
#: Only the newest so many slots are trained on.
LONGEST_TRAINING = 1000
#: Time of day and the day before are told only if so many days were observed; on one week they were learned by heart (ours).
CALENDAR_DAYS = 14
#: Fewer pairs of origin and step than this teach nothing that lasts.
FEWEST_PAIRS = 500
#: At most so many thresholds are modelled; counts between them are interpolated.
MOST_THRESHOLDS = 24
#: Thresholds drawn for each pair of origin and step in training.
_DRAWN = 4
#: Odds outside these chances are the chain's thin tail; trees could not correct them.
_SURE = 0.01
#: Quantile levels of the price that are modelled; the others are interpolated.
PRICE_LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
#: Rows predicted at once.
_CHUNK_ROWS = 1_000_000

SETTINGS: dict[str, Any] = {
    "num_threads": 1, "deterministic": True, "force_row_wise": True, "seed": 7, "verbosity": -1,
    "learning_rate": 0.05, "num_leaves": 4, "min_data_in_leaf": 200, "lambda_l2": 20.0,
}  # fmt: skip
ROUNDS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Training pairs: ``origins`` (slots), ``steps`` ahead and the ``target`` value that came, all of shape (pairs,)."""

    origins: np.ndarray
    steps: np.ndarray
    target: np.ndarray


def training_pairs(series: Series) -> Pairs:
    """Every observed origin of the newest `LONGEST_TRAINING` slots with every step of `STEPS` whose target was observed."""
    n = len(series)
    first = max(0, n - LONGEST_TRAINING)
    origins, steps = (a.ravel() for a in np.meshgrid(np.arange(first, n), STEPS, indexing="ij"))
    inside = origins + steps < n
    origins, steps = origins[inside], steps[inside]
    target = series.values[origins + steps]
    both = ~(np.isnan(target) | np.isnan(series.values[origins]))
    return Pairs(origins=origins[both], steps=steps[both], target=target[both])


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostedCount:
    """Model of the count: the Markov chain's chance of "at least n", corrected by trees."""

    def fit(self, series: Series) -> FittedVariable:
        """Fit the chain, then the trees to what it got wrong; where the chain falls back, so does this."""
        calendar = _knows_calendar(series)
        series = _clocked(series, calendar)
        chain = MarkovChain().fit(series)
        if not isinstance(chain, FittedMarkovChain):
            return chain
        pairs = training_pairs(series)
        if pairs.target.size < FEWEST_PAIRS:
            return FallsBack(
                simpler=chain, reason=f"{pairs.target.size} training pairs, {FEWEST_PAIRS} are needed"
            )
        if np.ptp(pairs.target) == 0:
            return FallsBack(simpler=chain, reason="flat series")
        thresholds = np.unique(
            np.linspace(1, chain.states - 1, min(MOST_THRESHOLDS, chain.states - 1)).astype(int)
        )
        drawn = _drawn_thresholds(pairs.target.size, thresholds.size)
        unique, place = np.unique(pairs.origins, return_inverse=True)
        laws = chain.laws(series, unique, int(STEPS[-1]), np.zeros(unique.size, dtype=int))
        odds = _log_odds(laws[place, pairs.steps - 1], thresholds)
        rows = np.take_along_axis(
            _count_rows(series, thresholds, pairs.origins, pairs.steps), drawn[:, :, None], axis=1
        )
        hit = np.take_along_axis(exceeded(pairs.target, thresholds), drawn, axis=1)
        start = np.take_along_axis(odds, drawn, axis=1)
        settings = {**SETTINGS, "objective": "binary", "monotone_constraints": _signs()}
        data = lightgbm.Dataset(rows.reshape(-1, rows.shape[2]), hit.ravel(), init_score=start.ravel())
        booster = lightgbm.train(settings, data, ROUNDS)
        return FittedBoostedCount(chain=chain, thresholds=thresholds, booster=booster, calendar=calendar)


def _knows_calendar(series: Series) -> bool:
    """Whether enough days were observed to learn from time of day."""
    days = series.observed.size * series.step / pd.Timedelta(days=1)
    return series.slots_per_day > 1 and days >= CALENDAR_DAYS


def _clocked(series: Series, calendar: bool) -> Series:
    """The series, without its clock if the calendar is not to be used."""
    return series if calendar else replace(series, slots_per_day=0)


def _signs() -> list[int]:
    return [*EXCEEDANCE_SIGNS, *(0 for _ in TARGET_COLUMNS)]


def _drawn_thresholds(pairs: int, thresholds: int) -> np.ndarray:
    """For each pair a few different thresholds, seeded, shape (pairs, at most `_DRAWN`)."""
    order = np.random.default_rng(SETTINGS["seed"]).random((pairs, thresholds)).argsort(axis=1)
    return order[:, :_DRAWN]


def _log_odds(laws: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Log odds of "at least n" from distributions (..., states), shape (..., thresholds)."""
    least = 1.0 - np.cumsum(laws, axis=-1)
    chance = np.clip(least[..., thresholds - 1], _SURE, 1.0 - _SURE)
    return np.asarray(np.log(chance / (1.0 - chance)))


def _count_rows(series: Series, thresholds: np.ndarray, origins: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Features of each (origin, step) pair and threshold, shape (pairs, thresholds, columns)."""
    known = exceedance_features(series, thresholds)[origins]
    before = exceeded(value_a_day_before(series, origins, steps), thresholds)
    target = target_features(series, origins, steps)
    wide = np.broadcast_to(target[:, None, :], (*before.shape, target.shape[1]))
    return np.concatenate([known, before[:, :, None], wide], axis=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBoostedCount:
    """The chain and the trees that correct its log odds at ``thresholds`` (ascending, the last is the cap)."""

    chain: FittedMarkovChain
    thresholds: np.ndarray
    booster: lightgbm.Booster
    calendar: bool

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """Corrected distributions from observed origins; an origin in a gap is answered by the chain, labelled."""
        series = _clocked(series, self.calendar)
        plain = (series.age(origins) == 0) & (series.last(origins) < self.chain.states)
        other = FallsBack(simpler=self.chain, reason="origin is a gap") if not plain.all() else None
        if other is not None and not plain.any():
            return other.outlook(series, origins, horizon)
        inside = np.where(plain, origins, origins[np.argmax(plain)])
        chunk = max(1, _CHUNK_ROWS // (horizon * self.thresholds.size))
        laws = np.concatenate(
            [self._laws(series, inside[i : i + chunk], horizon) for i in range(0, inside.size, chunk)]
        )
        own = Outlook(
            quantiles=quantiles_of(laws),
            mean=laws @ np.arange(self.chain.states),
            reasons=("",) * origins.size,
        )
        return own if other is None else mixed(own, other.outlook(series, origins, horizon), ~plain)

    def _laws(self, series: Series, origins: np.ndarray, horizon: int) -> np.ndarray:
        """Distributions on 0..cap, shape (origins, horizon, states)."""
        laws = self.chain.laws(series, origins, horizon, np.zeros(origins.size, dtype=int))
        odds = _log_odds(laws, self.thresholds)
        pairs = np.repeat(origins, horizon), np.tile(np.arange(1, horizon + 1), origins.size)
        rows = _count_rows(series, self.thresholds, *pairs)
        raw = np.asarray(self.booster.predict(rows.reshape(-1, rows.shape[2]), raw_score=True))
        least = 1.0 / (1.0 + np.exp(-(raw.reshape(odds.shape) + odds)))
        least = np.minimum.accumulate(least, axis=-1)  # "at least n + 1" is never likelier than "at least n"
        return _law_of(least, self.thresholds)


def _law_of(least: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Distributions on 0..cap from chances of "at least n" at ascending thresholds 1..cap, linear in between."""
    states = np.arange(1, thresholds[-1] + 1)
    right = np.minimum(np.searchsorted(thresholds, states), thresholds.size - 1)
    left = np.maximum(right - 1, 0)
    gap = np.maximum(thresholds[right] - thresholds[left], 1)
    share = np.where(right == left, 1.0, (states - thresholds[left]) / gap)
    tail = least[..., left] * (1.0 - share) + least[..., right] * share
    bounds = np.concatenate([np.ones_like(tail[..., :1]), tail, np.zeros_like(tail[..., :1])], axis=-1)
    return np.asarray(-np.diff(bounds, axis=-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostedPrice:
    """Model of the price: quantiles of the change over k slots, in units of the mean change over k slots."""

    def fit(self, series: Series) -> FittedVariable:
        """One model per level of `PRICE_LEVELS`; flat or short series fall back to last value."""
        calendar = _knows_calendar(series)
        series = _clocked(series, calendar)
        simpler = LastValue().fit(series)
        pairs = training_pairs(series)
        if pairs.target.size < FEWEST_PAIRS:
            return FallsBack(
                simpler=simpler, reason=f"{pairs.target.size} training pairs, {FEWEST_PAIRS} are needed"
            )
        change = pairs.target - series.values[pairs.origins]
        if not change.any():
            return FallsBack(simpler=simpler, reason="flat series")
        scale = np.array(
            [np.abs(change[pairs.steps == k]).mean() if (pairs.steps == k).any() else 0 for k in STEPS]
        )
        scale = np.maximum.accumulate(np.where(scale > 0, scale, np.abs(change).mean() * 1e-3))
        unit = np.interp(pairs.steps, STEPS, scale)
        rows = _price_rows(series, pairs.origins, pairs.steps)
        boosters = []
        for level in PRICE_LEVELS:
            start = simpler.spread.at(pairs.steps)[:, np.argmin(np.abs(LEVELS - level))] / unit
            data = lightgbm.Dataset(rows, change / unit, init_score=start)
            boosters.append(
                lightgbm.train({**SETTINGS, "objective": "quantile", "alpha": level}, data, ROUNDS)
            )
        return FittedBoostedPrice(boosters=tuple(boosters), scale=scale, simpler=simpler, calendar=calendar)


def _price_rows(series: Series, origins: np.ndarray, steps: np.ndarray) -> np.ndarray:
    seasonal = (
        value_a_day_before(series, origins, steps)
        / np.where(series.values > 0, series.values, np.nan)[origins]
        - 1
    )
    return np.hstack(
        [price_features(series)[origins], seasonal[:, None], target_features(series, origins, steps)]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBoostedPrice:
    """A booster per level of `PRICE_LEVELS`, the unit of change at each of `STEPS`, and last value, which they correct.

    ``calendar``: whether time of day is told to the trees.
    """

    boosters: tuple[lightgbm.Booster, ...]
    scale: np.ndarray
    simpler: FittedLastValue
    calendar: bool

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """Corrected quantiles from observed origins; an origin in a gap is answered by last value, labelled."""
        series = _clocked(series, self.calendar)
        plain = series.age(origins) == 0
        inside = np.where(plain, origins, series.newest[origins])
        steps = np.arange(1, horizon + 1)
        pairs = np.repeat(inside, horizon), np.tile(steps, inside.size)
        rows = _price_rows(series, *pairs)
        base = self.simpler.outlook(series, inside, horizon)
        unit = np.interp(steps, STEPS, self.scale)
        shift = np.stack(
            [
                np.asarray(b.predict(rows, raw_score=True)).reshape(inside.size, horizon) * unit
                for b in self.boosters
            ],
            axis=-1,
        )
        between = np.stack([np.interp(LEVELS, PRICE_LEVELS, row) for row in np.eye(PRICE_LEVELS.size)])
        quantiles = np.maximum.accumulate(base.quantiles + shift @ between, axis=-1)
        own = Outlook(quantiles=quantiles, mean=quantiles.mean(axis=-1), reasons=base.reasons)
        if plain.all():
            return own
        other = FallsBack(simpler=self.simpler, reason="origin is a gap")
        return mixed(own, other.outlook(series, origins, horizon), ~plain)


def lightgbm_predictor() -> UnivariatePredictor:
    """The LightGBM predictor."""
    return UnivariatePredictor(name="lightgbm", price=BoostedPrice(), count=BoostedCount())
