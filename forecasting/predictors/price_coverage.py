"""Quantiles of a price corrected by where past prices fell among them (M6.6): the counts' recalibration without a law.

Only the 19 levels are known: what lies between two quantiles is spread evenly, a price equal to several quantiles over all
their levels. The corrected quantile of level a is the issued one of level b with G(b) = a, G the distribution of past
transforms (`forecasting.recalibration`); beyond the outermost levels the law is taken to go on as it goes there. A price that
is forecast without spread stays so.
"""

from __future__ import annotations

import numpy as np

from forecasting.forecast import LEVELS

#: Bins of the transform: below q05, between neighbouring levels, above q95.
BINS = LEVELS.size + 1
#: Transforms that are believed in before any was seen: uniform but for the outermost bins, which get so many times as much, since
#: what never happened in the past is not in it (ours); and how much the panel's mean adds to a market's own.
PRIOR = 60.0
_SURPRISE = 3.0
POOLED = 1.0
_BELIEVED = np.where(np.isin(np.arange(BINS), (0, BINS - 1)), _SURPRISE, 1.0)
#: The tail beyond q05 and q95 is this much longer than the step before it went on (ours).
_TAIL = 2.0
_EDGES = np.concatenate([[0.0], LEVELS, [1.0]])
#: Two prices closer than this share of themselves are one.
_SAME = 1e-9


def price_transforms(quantiles: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Share of each price's transform in each bin, shape (*truth.shape, BINS), zero where there is no price.

    ``quantiles`` has shape (*truth.shape, 19).
    """
    slack = _SAME * np.maximum(1.0, np.abs(truth))[..., None]
    below = (quantiles < truth[..., None] - slack).sum(axis=-1)
    upto = (quantiles <= truth[..., None] + slack).sum(axis=-1)
    tied = upto > below
    # A price between quantiles i-1 and i is in bin i; one tied with levels i..j-1 may be in any of the bins i..j.
    first, last = below, np.where(tied, upto, below)
    bins = np.arange(BINS)
    inside = (bins >= first[..., None]) & (bins <= last[..., None])
    # The end bins of a tie are in it by half: the ends of its mass are anywhere in them.
    ends = tied[..., None] & ((bins == first[..., None]) | (bins == last[..., None]))
    whole = (first[..., None] == 0) & (bins == 0) | (last[..., None] == BINS - 1) & (bins == BINS - 1)
    weight = inside * np.where(ends & ~whole, 0.5, 1.0)
    share = weight / weight.sum(axis=-1, keepdims=True)
    return np.where(np.isnan(truth)[..., None], 0.0, share)


def corrected_quantiles(quantiles: np.ndarray, past: np.ndarray) -> np.ndarray:
    """Quantiles (..., 19) at the levels that past transforms ``past`` (..., BINS) say they should have, non-decreasing.

    The median stays: it is the point forecast, and weighed as one.
    """
    weight = past + PRIOR * _BELIEVED / _BELIEVED.sum()
    reached = np.cumsum(weight, axis=-1) / weight.sum(axis=-1, keepdims=True)
    flat_q, flat_g = quantiles.reshape(-1, LEVELS.size), reached.reshape(-1, BINS)
    extended = np.concatenate(
        [
            flat_q[:, :1] - _TAIL * (flat_q[:, 1:2] - flat_q[:, :1]),
            flat_q,
            flat_q[:, -1:] + _TAIL * (flat_q[:, -1:] - flat_q[:, -2:-1]),
        ],
        axis=1,
    )
    out = np.empty(flat_q.shape)
    for i in range(flat_q.shape[0]):
        levels = np.interp(LEVELS, np.concatenate([[0.0], flat_g[i]]), _EDGES)
        out[i] = np.interp(levels, _EDGES, extended[i])
    half = LEVELS.size // 2
    middle = flat_q[:, half : half + 1]
    out[:, :half] = np.minimum(out[:, :half], middle)
    out[:, half + 1 :] = np.maximum(out[:, half + 1 :], middle)
    out[:, half] = flat_q[:, half]
    return np.maximum.accumulate(out, axis=1).reshape(quantiles.shape)
