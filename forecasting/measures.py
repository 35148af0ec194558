"""Accuracy of arrays of forecasts: each measure a plain function of quantiles, mean or chances and the actual values (M6.5).

Shapes: ``actual`` (m, h), NaN in gaps; ``quantiles`` (m, h, 19) at `LEVELS`, not crossing; ``law`` (m, h, states).
Results are (m, h) unless said; NaN where the actual value is a gap.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import t as student

from forecasting.forecast import LEVELS

#: Central intervals: per cent -> places of their ends in `LEVELS`.
ENDS = {50: (4, 14), 80: (1, 17), 90: (0, 18)}
#: Prices are sums of floats: a value that was forecast exactly must not fall out of its own interval.
_SLACK = 1e-9
_STEP = 0.05


def pinball(quantiles: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Mean over the levels a of max(a (y - q), (a - 1)(y - q)); half the CRPS, approximately."""
    error = actual[..., None] - quantiles
    # max(a e, (a - 1) e) = a e - min(e, 0): one pass less over the largest array there is.
    return np.asarray(error @ LEVELS / LEVELS.size - np.minimum(error, 0.0).mean(axis=-1))


def covered(quantiles: np.ndarray, actual: np.ndarray, percent: int) -> np.ndarray:
    """1 where the actual value is in the central interval, ends included, else 0."""
    low, high = ENDS[percent]
    slack = _SLACK * np.maximum(1.0, np.abs(actual))
    inside = (actual >= quantiles[..., low] - slack) & (actual <= quantiles[..., high] + slack)
    return np.where(np.isnan(actual), np.nan, inside)


def width(quantiles: np.ndarray, percent: int) -> np.ndarray:
    """Width of the central interval."""
    low, high = ENDS[percent]
    return np.asarray(quantiles[..., high] - quantiles[..., low])


def chances(quantiles: np.ndarray, law: np.ndarray | None, capacity: int) -> np.ndarray:
    """Chance of "at least n" for n = 1..capacity, shape (m, h, capacity).

    From the law where there is one, else from the quantiles as `Forecast.probability_at_least`: linear between
    levels, 0 or 1 beyond the outermost.
    """
    n = np.arange(1, capacity + 1)
    if law is not None:
        tail = 1.0 - np.cumsum(law, axis=-1)
        known = np.clip(tail[..., np.minimum(n, law.shape[-1]) - 1], 0.0, 1.0)
        return np.where(n < law.shape[-1], known, 0.0)
    at = n - 0.5
    below = (quantiles[..., None, :] <= at[:, None]).sum(axis=-1)
    left, right = np.clip(below - 1, 0, LEVELS.size - 1), np.minimum(below, LEVELS.size - 1)
    start = np.take_along_axis(quantiles, left, axis=-1)
    gap = np.take_along_axis(quantiles, right, axis=-1) - start
    share = (at - start) / np.where(gap > 0, gap, 1.0)
    reached = LEVELS[left] + share * (LEVELS[right] - LEVELS[left])
    reached = np.where(below == 0, 0.0, np.where(below == LEVELS.size, 1.0, reached))
    return np.asarray(1.0 - reached)


def brier(chance: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Mean over n of (P(at least n) - [y >= n])^2, from chances (m, h, capacity); NaN for capacity 0."""
    if chance.shape[-1] == 0:
        return np.full(actual.shape, np.nan)
    n = np.arange(1, chance.shape[-1] + 1)
    error = np.square(chance - (actual[..., None] >= n)).mean(axis=-1)
    return np.where(np.isnan(actual), np.nan, error)


def shares_below(quantiles: np.ndarray, law: np.ndarray | None, actual: np.ndarray) -> np.ndarray:
    """For each level a the chance that the (randomised) probability integral transform of y is at most a, shape (m, h, 19).

    Where y is between two quantiles this is [y <= q_a]. Where it ties with some, the transform is uniform over the levels
    it covers (with a law: from P(Y < y) to P(Y <= y)), and the expected share is given instead of a draw.
    """
    if law is not None:
        y = np.where(np.isnan(actual), 0.0, actual).astype(int)
        upto = np.concatenate([np.zeros((*actual.shape, 1)), np.cumsum(law, axis=-1)], axis=-1)
        top = law.shape[-1]
        low = np.take_along_axis(upto, np.minimum(y, top)[..., None], axis=-1)
        high = np.take_along_axis(upto, np.minimum(y + 1, top)[..., None], axis=-1)
    else:
        slack = _SLACK * np.maximum(1.0, np.abs(actual))[..., None]
        low = _STEP * (quantiles < actual[..., None] - slack).sum(axis=-1, keepdims=True)
        high = _STEP * ((quantiles <= actual[..., None] + slack).sum(axis=-1, keepdims=True) + 1)
    span = high - low
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(span > 1e-12, (LEVELS - low) / span, (low <= LEVELS + _SLACK).astype(float))
    return np.where(np.isnan(actual)[..., None], np.nan, np.clip(share, 0.0, 1.0))


def conditional_frequencies(values: np.ndarray, capacity: int, steps: int) -> np.ndarray:
    """P(y(t+k) >= n | [y(t) >= n]) counted over the observed pairs of ``values``, shape (steps, capacity, 2).

    The last axis is the state [y(t) >= n] = 0 or 1. A state that was never seen k slots before an observed one stays
    what it is.
    """
    out = np.empty((steps, capacity, 2))
    out[...] = np.array([0.0, 1.0])
    n = np.arange(1, capacity + 1)
    seen = ~np.isnan(values)
    above = seen[:, None] & (np.where(seen, values, -1.0)[:, None] >= n)
    for k in range(1, min(steps, values.size - 1) + 1):
        both = (seen[:-k] & seen[k:])[:, None]
        for state, now in enumerate((~above[:-k], above[:-k])):
            pairs = (both & now).sum(axis=0)
            hits = (both & now & above[k:]).sum(axis=0)
            out[k - 1, :, state] = np.where(pairs > 0, hits / np.maximum(pairs, 1), out[k - 1, :, state])
    return out


def diebold_mariano(loss: np.ndarray, floor: np.ndarray, step: int) -> tuple[float, float]:
    """Statistic and two-sided p value of equal accuracy at one step ahead; positive where ``loss`` is the smaller one.

    Diebold and Mariano (1995) with the correction of Harvey, Leybourne and Newbold (1997): the mean of d = floor -
    loss over origins in order, its long-run variance from step - 1 autocovariances, Student t with n - 1 degrees. If
    that variance is not positive, Bartlett's weights are used. NaN where the losses are the same, or for fewer than
    two origins.
    """
    d = floor - loss
    n = d.size
    if n < 2 or not np.ptp(d) > 0:
        return np.nan, np.nan
    lags = np.arange(1, min(step, n))
    centred = d - d.mean()
    own = float(centred @ centred) / n
    auto = np.array([float(centred[k:] @ centred[:-k]) / n for k in lags])
    variance = own + 2.0 * auto.sum()
    if variance <= 0:
        variance = own + 2.0 * float(((1.0 - lags / (lags.size + 1.0)) * auto).sum())
    if variance <= 0:
        return np.nan, np.nan
    small = np.sqrt(max(n + 1 - 2 * step + step * (step - 1) / n, 0.0) / n)
    statistic = float(small * d.mean() / np.sqrt(variance / n))
    return statistic, float(2.0 * student.sf(abs(statistic), df=n - 1))
