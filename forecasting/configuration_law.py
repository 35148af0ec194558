"""The physical law of a training step: what is expected of a configuration from peak figures and a few constants (M9.2, ours)."""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.optimize import least_squares

from forecasting.configuration_features import Features

#: Logarithms to begin with: reached share of peak FLOP/s per method (3), weight traffic in units of `gather_s` and `read_s` (2),
#: sharpness of the overlap less one, fixed milliseconds per layer on one GPU, and those added on several.
_START: Final = (-0.8, -1.0, -0.85, 0.8, -1.0, -0.7, 2.0, 1.0)
#: How many constants the law has.
CONSTANTS: Final = len(_START)
#: Weak prior around the start, in units of log constants: few rows leave some of them undetermined.
_PRIOR_WIDTH: Final = 2.0
#: Errors beyond this (log) count linearly: starved and bimodal runs must not bend the law.
_ROBUST: Final = 0.1


def log_rate(constants: np.ndarray, f: Features) -> np.ndarray:
    """Log tokens per second and GPU by the law, shape (n,).

    A step takes (C^k + (M + O)^k)^(1/k) seconds: matrix products C at a share of the GPU's peak, traffic of weights M, and fixed
    work O per layer; k > 1 because the two overlap in part (k = 1: one after the other, k large: the longer of the two).
    """
    share = np.exp(constants[:3])[f.method]
    compute = f.compute_s / share
    traffic = np.exp(constants[3]) * f.gather_s + np.exp(constants[4]) * f.read_s
    fixed = 1e-3 * f.layers * (np.exp(constants[6]) + np.exp(constants[7]) * (f.number_gpus > 1))
    sharpness = 1 + np.exp(constants[5])
    step = np.logaddexp(sharpness * np.log(compute), sharpness * np.log(traffic + fixed)) / sharpness
    return np.asarray(np.log(f.tokens) - step)


def fit_law(f: Features, log_tokens_per_second: np.ndarray) -> np.ndarray:
    """Constants of `log_rate` by robust least squares on log tokens per second and GPU, shape (8,)."""
    start = np.array(_START)

    def error(constants: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [log_rate(constants, f) - log_tokens_per_second, _ROBUST * (constants - start) / _PRIOR_WIDTH]
        )

    found: np.ndarray = least_squares(
        error, start, loss="soft_l1", f_scale=_ROBUST, bounds=(start - 6, start + 6)
    ).x
    return found
