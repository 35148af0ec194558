"""The Markov chain compared with matrix powers of counted transitions (M6.2)."""

from __future__ import annotations

import numpy as np
import pytest
from make import make_history
from series_kit import wandering
from standing import standing

from slackwater.forecasting.predictors.markov import FittedMarkovChain
from slackwater.forecasting.quantiles import LEVELS


def slow_chain(values, states, forget, prior):
    """Return the transition matrix at the end of a series, counted pair by pair."""
    counts = np.zeros((states, states))
    n = len(values)
    for t in range(1, n):
        if not (np.isnan(values[t - 1]) or np.isnan(values[t])):
            counts[int(values[t - 1]), int(values[t])] += forget ** (n - 1 - t)
    stay = (np.trace(counts) + 4) / (counts.sum() + 5)
    visits = counts.sum(axis=0) + 1 / states
    matrix = np.empty_like(counts)
    for i in range(states):
        base = (1 - stay) * visits / visits.sum()
        base[i] += stay
        matrix[i] = (counts[i] + prior * base) / (counts[i].sum() + prior)
    return matrix


def test_markov_equals_matrix_powers_of_counted_transitions():
    whole = wandering(300, seed=2, gaps=0.05)
    fitted = standing("markov", whole.until(whole.slots[200]))
    chain = fitted.count
    assert isinstance(chain, FittedMarkovChain)
    for place in (230, 280, 299):
        values = whole.available[: place + 1]
        matrix = slow_chain(values, 9, chain.forget, chain.prior)
        assert matrix.sum(axis=1) == pytest.approx(1)
        newest = np.flatnonzero(~np.isnan(values))[-1]
        forecast = fitted.extend(whole.until(whole.slots[place])).forecast(horizon=5)
        for k in range(1, 6):
            distribution = np.linalg.matrix_power(matrix, place - newest + k)[int(values[newest])]
            assert forecast.count_mean[k - 1] == pytest.approx(distribution @ np.arange(9))
            cdf = np.cumsum(distribution)
            least = [next(n for n in range(9) if cdf[n] >= level - 1e-9) for level in LEVELS]
            assert forecast.count[k - 1].tolist() == least


def test_markov_learns_a_known_chain():
    """Two states with known rates, a long series without forgetting: the forecast is that of the chain."""
    rng = np.random.default_rng(5)
    state, path = 0, []
    for u in rng.random(4000):
        state = (1 if u < 0.05 else 0) if state == 0 else (0 if u < 0.15 else 1)
        path.append(state)
    path[-1] = 1
    fitted = standing("markov", make_history([1.0] * 4000, path))
    distribution = np.linalg.matrix_power(np.array([[0.95, 0.05], [0.15, 0.85]]), 6)[1]
    assert fitted.forecast(horizon=6).count_mean[5] == pytest.approx(distribution[1], abs=0.08)
    assert fitted.count.forget > 0.995, "a chain that never changes should be forgotten slowly"
