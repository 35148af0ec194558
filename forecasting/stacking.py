"""Weights of a mixture of laws that would have been best of late, by CRPS (M6.2, M6.5; ours).

The ranked probability score of a mixture is quadratic in its weights: with F_m(n) member m's P(count <= n) and y what came,

    CRPS(w) = sum_n (sum_m w_m F_m(n) - [y <= n])^2 = w' G w,   G_ab = sum_n (F_a(n) - [y <= n]) (F_b(n) - [y <= n]),

for weights that add up to one. So the best weights on past forecasts, each counting half as much as one a half-life later, solve a
quadratic program on the simplex whose matrix is a running sum. Unlike weights by each member's own score, they know which members
err together. Combination by squared error is Bates and Granger (1969); for laws by CRPS it is the linear pool of Hall
and Mitchell (2007) with their log score replaced.
"""

from __future__ import annotations

import numpy as np

#: Steps of exponentiated gradient; more change no weight by 0.01 on the open series.
_ITERATIONS = 200
_RATE = 0.5
#: Of the matrix' mean diagonal, added to each diagonal: alike members share their weight.
_RIDGE = 0.005


def error_products(laws: np.ndarray, came: np.ndarray) -> np.ndarray:
    """G per element, divided by the number of thresholds; ``laws`` (members, *shape, states), ``came`` (*shape,) with NaN where
    nothing is known, which gives zero. The result has shape (*shape, members, members)."""
    states = laws.shape[-1]
    if states < 2:
        return np.zeros((*came.shape, laws.shape[0], laws.shape[0]))
    below = (came[..., None] <= np.arange(states - 1)).astype(float)
    error = np.where(np.isnan(came)[..., None], 0.0, np.cumsum(laws, axis=-1)[..., :-1] - below)
    error = np.moveaxis(error, 0, -2)
    return np.asarray(error @ np.swapaxes(error, -1, -2) / (states - 1))


def simplex_weights(matrix: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Weights w >= 0 that add up to one and minimise w' A w + ridge |w|^2 for each A (..., members, members), shape (..., members).

    Exponentiated gradient from ``start`` (members,); a matrix of zeros returns ``start``.
    """
    members = matrix.shape[-1]
    scale = np.einsum("...ii->...", matrix)[..., None] / members
    unit = matrix / np.where(scale > 0, scale, 1.0)[..., None]
    unit = unit + _RIDGE * np.eye(members) * (scale > 0)[..., None]
    weights = np.broadcast_to(start, matrix.shape[:-1]).copy()
    for _ in range(_ITERATIONS):
        slope = 2.0 * (unit @ weights[..., None])[..., 0]
        slope -= (weights * slope).sum(axis=-1, keepdims=True)
        weights *= np.exp(-_RATE * slope)
        weights /= weights.sum(axis=-1, keepdims=True)
    return weights
