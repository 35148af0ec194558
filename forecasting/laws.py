"""Distributions of a count on 0..n-1 ("laws"): quantiles, chances of "at least n", and back."""

from __future__ import annotations

import numpy as np

from forecasting.forecast import LEVELS
from forecasting.univariate import Outlook

#: More states than this would need more data than any history has.
MOST_STATES = 128


def indicator(values: np.ndarray, states: int) -> np.ndarray:
    """A law of certainty for each value, shape (*values.shape, states); all zero in gaps and beyond the states.

    >>> indicator(np.array([1.0, np.nan]), 3).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    return np.asarray((values[..., None] == np.arange(states)).astype(float))


def at_least(law: np.ndarray) -> np.ndarray:
    """P(count >= n) for n = 1..states-1 from laws (..., states), shape (..., states - 1)."""
    return np.asarray(1.0 - np.cumsum(law, axis=-1)[..., :-1])


def law_of(least: np.ndarray) -> np.ndarray:
    """Laws (..., states) from P(count >= n), n = 1..states-1, made non-increasing in n first."""
    falling = np.minimum.accumulate(least, axis=-1)
    bounds = np.concatenate(
        [np.ones_like(falling[..., :1]), falling, np.zeros_like(falling[..., :1])], axis=-1
    )
    return np.asarray(-np.diff(bounds, axis=-1))


def exceeded(values: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """[value >= n] as 0 or 1, NaN in gaps, shape (*values.shape, thresholds)."""
    known = np.isfinite(values)[..., None]
    return np.where(known, (values[..., None] >= thresholds).astype(float), np.nan)


def quantiles_of(law: np.ndarray) -> np.ndarray:
    """Quantiles at `LEVELS` of laws (..., states): the least value whose cumulative probability reaches the level.

    The result has shape (..., 19).

    >>> quantiles_of(np.array([0.4, 0.0, 0.6]))[[6, 7, 8]].tolist()
    [0.0, 0.0, 2.0]
    """
    cumulative = np.cumsum(law, axis=-1)
    # Levels not reached by each value, added up over values: the index of the first value that reaches the level.
    missed = cumulative[..., :-1, None] < LEVELS - 1e-9
    return np.asarray(missed.sum(axis=-2), dtype=float)


def outlook_of(law: np.ndarray, reasons: tuple[str, ...]) -> Outlook:
    """An outlook whose quantiles and mean are those of ``law`` (m, h, states)."""
    return Outlook(quantiles=quantiles_of(law), mean=law @ np.arange(law.shape[-1]), reasons=reasons, law=law)
