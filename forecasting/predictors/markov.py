"""Markov chain of the count on {0..capacity} with exponential forgetting and a prior for staying (M4.6, M6.2).

Transition counts are updated slot by slot and decay with a half-life, so the chain follows the history between refits.
``fit`` chooses the half-life and the strength of the prior by the one-step log likelihood. Prices use last value: prices
of the public series are flat or move by small steps, and a chain on price levels was no better than last value there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd

from slackwater.forecasting.predictor import (
    ByVariable,
    FallsBack,
    FittedSeriesModel,
    Outlook,
    each_alone,
    join_reasons,
    mix_outlooks,
    stored,
)
from slackwater.forecasting.predictors.distributions import MOST_STATES, outlook_of
from slackwater.forecasting.predictors.last_value import FittedLastValue, LastValue, is_stale
from slackwater.forecasting.series import Series

#: Candidate half-lives of the transition counts.
HALF_LIVES = (pd.Timedelta(hours=12), pd.Timedelta(days=1), pd.Timedelta(days=3), pd.Timedelta(days=10))
PRIORS = (1.0, 4.0)  # Candidate strengths of the prior in pseudo-transitions
FEWEST_TRANSITIONS = 20  # Minimal number of transitions; with fewer the model falls back


@stored("markov.model")
@dataclass(frozen=True, slots=True, kw_only=True)
class MarkovChain:
    """Model of the count: P(i -> j) from decayed transition counts and a prior for staying."""

    def fit(self, series: Series) -> FittedSeriesModel:
        """Choose half-life and prior by the one-step likelihood on the training part."""
        simpler = LastValue().fit(series)
        cap = int(series.upper[-1]) if len(series) else 0
        pairs = int(np.isfinite(series.values[1:] - series.values[:-1]).sum())
        if pairs < FEWEST_TRANSITIONS:
            return FallsBack(simpler=simpler, reason=f"{pairs} transitions, {FEWEST_TRANSITIONS} are needed")
        if cap >= MOST_STATES:
            return FallsBack(simpler=simpler, reason=f"{cap + 1} states, at most {MOST_STATES} are used")
        tried = [
            FittedMarkovChain(
                states=cap + 1, forget=float(0.5 ** (series.step / life)), prior=prior, simpler=simpler
            )
            for life in HALF_LIVES
            for prior in PRIORS
        ]
        return tried[int(np.argmax(log_likelihoods(series.values, tried)))]


@stored("markov.fitted")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedMarkovChain:
    """Chain on ``states`` 0..states-1; ``forget``: decay factor per slot, ``prior``: prior strength in transitions."""

    states: int
    forget: float
    prior: float
    simpler: FittedLastValue

    def _counts(self, values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each slot with the decayed transition counts (states, states) up to it, an array that is reused."""
        counts = np.zeros((self.states, self.states))
        previous = np.nan
        for slot, value in enumerate(values):
            counts *= self.forget
            known = not (np.isnan(previous) or np.isnan(value))
            if known and max(previous, value) < self.states:
                counts[int(previous), int(value)] += 1.0
            previous = value
            yield slot, counts

    def _matrix(self, counts: np.ndarray) -> np.ndarray:
        """Return the transition matrix (states, states) from counts and ``prior`` pseudo-transitions.

        The prior of row i stays at i with the share s of all transitions that stayed (smoothed). The rest 1 - s is distributed
        in proportion to the transitions into each state plus one transition spread evenly, so no step is impossible (ours).
        """
        total = counts.sum()
        stayed = (np.trace(counts) + 4.0) / (total + 5.0)
        visits = counts.sum(axis=0) + 1.0 / self.states
        elsewhere = (1.0 - stayed) * visits / visits.sum()
        prior = elsewhere + stayed * np.eye(self.states)
        return np.asarray((counts + self.prior * prior) / (counts.sum(axis=1, keepdims=True) + self.prior))

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """Return the distribution age + k steps after the newest value; stale values and unseen states fall back to last value."""
        age, last = series.age(origins), series.last(origins)
        stale = is_stale(series, age)
        strange = last >= self.states
        distributions = self.distributions(series, origins, horizon, np.where(stale, 0, age))
        own = outlook_of(distributions, ("",) * origins.size)
        if not (stale | strange).any():
            return own
        simpler = self.simpler.outlook(series, origins, horizon)
        labels = (
            f"count {n:.0f} was never seen in training" if new else ""
            for n, new in zip(last, strange, strict=True)
        )
        simpler = replace(simpler, reasons=join_reasons(labels, simpler.reasons))
        return mix_outlooks(own, simpler, stale | strange)

    def distributions(self, series: Series, origins: np.ndarray, horizon: int, age: np.ndarray) -> np.ndarray:
        """Return distributions (origins, horizon, states) of the count, from newest values of ``age`` (origins,) slots."""
        start = np.minimum(series.last(origins), self.states - 1).astype(int)
        out = np.empty((origins.size, horizon, self.states))
        where: dict[int, list[int]] = {}
        for i, origin in enumerate(origins):
            where.setdefault(int(origin), []).append(i)
        for slot, counts in self._counts(series.values[: int(origins.max()) + 1]):
            if slot in where:
                matrix = self._matrix(counts)
                for i in where[slot]:
                    out[i] = _distributions_ahead(matrix, start[i], int(age[i]), horizon)
        return out


def log_likelihoods(values: np.ndarray, chains: Sequence[FittedMarkovChain]) -> np.ndarray:
    """Return the sum of log P(y(t) | y up to t-1) over the observed transitions of ``values`` per chain, shape (chains,).

    The chains may differ only in decay and prior, so a single pass serves all. Only the required entry of each transition
    matrix is computed, by the formula of ``_matrix``.
    """
    states = chains[0].states
    forget = np.array([chain.forget for chain in chains])
    prior = np.array([chain.prior for chain in chains])
    counts = np.zeros((len(chains), states, states))
    visits, stays, total = np.zeros((len(chains), states)), np.zeros(len(chains)), np.zeros(len(chains))
    out = np.zeros(len(chains))
    for before, after in pairwise(values):
        if not (np.isnan(before) or np.isnan(after)) and max(before, after) < states:
            i, j = int(before), int(after)
            stayed = (stays + 4.0) / (total + 5.0)
            pull = (1.0 - stayed) * (visits[:, j] + 1.0 / states) / (total + 1.0) + (
                stayed if i == j else 0.0
            )
            out += np.log((counts[:, i, j] + prior * pull) / (counts[:, i].sum(axis=1) + prior))
        else:
            i = j = -1
        counts *= forget[:, None, None]
        visits *= forget[:, None]
        stays, total = stays * forget, total * forget
        if i >= 0:
            counts[:, i, j] += 1.0
            visits[:, j] += 1.0
            stays += i == j
            total += 1.0
    return out


def _distributions_ahead(matrix: np.ndarray, start: int, age: int, horizon: int) -> np.ndarray:
    """Return the distributions age+1..age+horizon steps after ``start``, shape (horizon, states)."""
    distribution = np.zeros(matrix.shape[0])
    distribution[start] = 1.0
    out = np.empty((horizon, matrix.shape[0]))
    for k in range(age + horizon):
        distribution = distribution @ matrix
        if k >= age:
            out[k - age] = distribution
    return out


def markov() -> ByVariable:
    """Return the Markov predictor: a chain for counts, last value for prices."""
    return each_alone("markov", price=LastValue(), count=MarkovChain())
