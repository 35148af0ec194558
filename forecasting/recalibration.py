"""Laws corrected by where past values fell in them (M6.6): conformal predictive distributions, split and adaptive.

The probability integral transform (PIT) of a value under the law issued for it is uniform if laws are right. With G the
distribution of past transforms on forecasts that were not fitted to them, the corrected law has distribution function G(F(n)): its
intervals then have their nominal coverage on that past (a split conformal step, for all levels at once; Vovk et al. 2017,
Kuleshov et al. 2018). G is kept up slot by slot with old transforms forgotten, so it follows drift as adaptive conformal inference
does (Gibbs and Candes 2021). A count has point masses: its transform is spread evenly over the mass of the value that came.
"""

from __future__ import annotations

import numpy as np

#: Edges of the bins of the transform: the quantile levels, and finer in the tails, where a law that is too narrow goes wrong.
_TAIL = np.array([0.0, 0.002, 0.01, 0.025])
_EDGES = np.concatenate([_TAIL, np.linspace(0.05, 0.95, 19), 1.0 - _TAIL[::-1]])
BINS = _EDGES.size - 1
_WIDTH = np.diff(_EDGES)
#: Transforms that are believed in before any was seen: uniform but for the outermost twentieths, which get so many times as much,
#: since what never happened in the past is not in it (ours).
PRIOR = 40.0
_SURPRISE = 3.0
_BELIEVED = _WIDTH * np.where((_EDGES[1:] <= 0.05 + 1e-9) | (_EDGES[:-1] >= 0.95 - 1e-9), _SURPRISE, 1.0)


def transforms(law: np.ndarray, came: np.ndarray) -> np.ndarray:
    """Share of each value's transform in each bin, shape (*came.shape, BINS); zero where nothing came or it was impossible.

    ``law`` has shape (*came.shape, states).

    >>> transforms(np.array([[0.25, 0.75]]), np.array([0.0]))[0, 4:9].round(2).tolist()
    [0.2, 0.2, 0.2, 0.2, 0.0]
    """
    states = law.shape[-1]
    known = ~np.isnan(came) & (came < states)
    value = np.where(known, came, 0.0).astype(int)
    upper = np.cumsum(law, axis=-1)
    high = np.minimum(np.take_along_axis(upper, value[..., None], axis=-1), 1.0)
    mass = np.take_along_axis(law, value[..., None], axis=-1)
    low = np.maximum(high - mass, 0.0)
    overlap = np.clip(np.minimum(high, _EDGES[1:]) - np.maximum(low, _EDGES[:-1]), 0.0, None)
    total = overlap.sum(axis=-1, keepdims=True)
    share = overlap / np.where(total > 0, total, 1.0)
    return np.asarray(np.where(known[..., None], share, 0.0))


def corrected(law: np.ndarray, past: np.ndarray) -> np.ndarray:
    """Laws (..., states) with distribution function G(F), G from sums of past transforms (..., BINS) and `PRIOR` believed ones."""
    weight = past + PRIOR * _BELIEVED / _BELIEVED.sum()
    reached = np.cumsum(weight, axis=-1) / weight.sum(axis=-1, keepdims=True)
    reached = np.concatenate([np.zeros_like(reached[..., :1]), reached], axis=-1)
    reached = np.broadcast_to(reached, (*law.shape[:-1], BINS + 1))
    cumulative = np.clip(np.cumsum(law, axis=-1), 0.0, 1.0)
    left = np.clip(np.searchsorted(_EDGES, cumulative, side="right") - 1, 0, BINS - 1)
    low = np.take_along_axis(reached, left, axis=-1)
    high = np.take_along_axis(reached, left + 1, axis=-1)
    after = low + (high - low) * (cumulative - _EDGES[left]) / _WIDTH[left]
    after[..., -1] = 1.0
    return np.asarray(np.diff(after, axis=-1, prepend=0.0))
