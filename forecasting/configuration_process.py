"""A Gaussian process over configurations: sums of smooth and grouped covariances, fitted by the marginal likelihood.

Rasmussen and Williams (2006), algorithms 2.1 and 5.1; the composition of the covariance is ours. Partial pooling comes
from it: what a group (model, method, GPU, number format) has measured corrects its own curve, and a group without data falls back
to what its method and GPU have in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize

#: Continuous coordinates, in the order of `Points.x`.
AXES: Final = ("tokens", "length", "gpus", "nodes", "params", "peak", "pressure")
#: (name, groups whose members alone covary, axes, whether once differentiable only); no axes: a constant of the group.
TERMS: Final[tuple[tuple[str, tuple[str, ...], tuple[int, ...], bool], ...]] = (
    ("method", ("method",), (0, 1, 2, 3, 4, 5, 6), False),
    ("device", ("method", "gpu"), (0, 1, 2, 4, 6), False),
    ("group", ("group",), (0, 1, 2, 6), True),
    ("model level", ("model",), (), False),
    ("gpu level", ("gpu",), (), False),
    ("group level", ("group",), (), False),
    ("count level", ("group", "count"), (), False),
)
#: Starting standard deviations per term, log residual; the noise last. Length scales start at `_SCALE` of each axis.
_START: Final = (0.15, 0.1, 0.08, 0.1, 0.1, 0.05, 0.03, 0.02)
_SCALE: Final = (2.0, 2.5, 1.5, 1.5, 1.0, 1.0, 0.4)
#: Weak normal priors on the logarithms (standard deviation), so that fifty rows do not run away.
_PRIOR_WIDTH: Final = 1.0
_LEAST_NOISE: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """``x`` of shape (n, 7) by `AXES`; ``groups``: per name the label of every row."""

    x: np.ndarray
    groups: Mapping[str, np.ndarray]

    def take(self, rows: np.ndarray) -> Points:
        """The rows alone."""
        return Points(x=self.x[rows], groups={name: labels[rows] for name, labels in self.groups.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A fitted process: its training points, log hyperparameters and the factor of its covariance."""

    points: Points
    theta: np.ndarray
    factor: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    inverse_diagonal: np.ndarray = field(repr=False)

    def predict(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation (noise included) of the residual at ``points``, each of shape (m,)."""
        cross = covariance(self.theta, points, self.points)
        mean = cross @ self.weights
        half = solve_triangular(self.factor, cross.T, lower=True)
        variance = prior_variance(self.theta) - (half**2).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, 0.0) + _noise(self.theta))

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Leave-one-out errors and standard deviations of the training rows (Rasmussen and Williams, equation 5.12)."""
        return self.weights / self.inverse_diagonal, 1 / np.sqrt(self.inverse_diagonal)


def start() -> np.ndarray:
    """Log hyperparameters to begin with: standard deviations of terms and noise, then length scales of each term's axes."""
    scales = [np.log(_SCALE[axis]) for _, _, axes, _ in TERMS for axis in axes]
    return np.array([*np.log(_START), *scales])


def condition(points: Points, residual: np.ndarray, theta: np.ndarray) -> Process:
    """The process with these hyperparameters that has seen ``residual`` (shape (n,)) at ``points``."""
    matrix = covariance(theta, points, points)
    matrix[np.diag_indices_from(matrix)] += _noise(theta)
    factor = np.linalg.cholesky(matrix)
    weights = cho_solve((factor, True), residual)
    half = solve_triangular(factor, np.eye(len(residual)), lower=True)
    return Process(
        points=points, theta=theta, factor=factor, weights=weights, inverse_diagonal=(half**2).sum(axis=0)
    )


def fit(points: Points, residual: np.ndarray, *, theta: np.ndarray, iterations: int) -> Process:
    """Hyperparameters of the greatest marginal likelihood (with weak priors around `start`) from ``theta``, then `condition`."""
    squares = [(points.x[:, [a]] - points.x[:, a]) ** 2 for a in range(len(AXES))]
    masks = {groups: same_groups(points, points, groups) for _, groups, _, _ in TERMS}
    centre = start()

    def objective(t: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = _evidence(t, squares, masks, residual)
        away = (t - centre) / _PRIOR_WIDTH
        return value + 0.5 * float(away @ away), slope + away / _PRIOR_WIDTH

    found = minimize(
        objective, theta, jac=True, method="L-BFGS-B", bounds=[(c - 4, c + 4) for c in centre],
        options={"maxiter": iterations},
    )  # fmt: skip
    return condition(points, residual, found.x)


def covariance(theta: np.ndarray, left: Points, right: Points) -> np.ndarray:
    """Covariance of shape (len(left), len(right)), without noise."""
    squares = [(left.x[:, [a]] - right.x[:, a]) ** 2 for a in range(len(AXES))]
    total = np.zeros((len(left.x), len(right.x)))
    for term, shape, _ in _terms(theta, squares):
        total += np.exp(2 * theta[term]) * shape * same_groups(left, right, TERMS[term][1])
    return total


def prior_variance(theta: np.ndarray) -> float:
    """Variance of the residual where nothing was measured."""
    return float(np.exp(2 * theta[: len(TERMS)]).sum())


def _noise(theta: np.ndarray) -> float:
    return float(np.exp(2 * theta[len(TERMS)])) + _LEAST_NOISE**2


def same_groups(left: Points, right: Points, names: tuple[str, ...]) -> np.ndarray:
    """Whether two points belong to the same group by every one of ``names``, shape (len(left), len(right))."""
    same = np.ones((len(left.x), len(right.x)), dtype=bool)
    for name in names:
        both = np.concatenate([left.groups[name], right.groups[name]])
        codes = np.unique(both, return_inverse=True)[1]  # whole numbers compare many times faster than texts
        same &= codes[: len(left.x), None] == codes[None, len(left.x) :]
    return same


def _terms(theta: np.ndarray, squares: list[np.ndarray]) -> list[Any]:
    """(term, covariance in units of its variance, slope factor of its length scales) for every term."""
    out: list[Any] = []
    at = len(TERMS) + 1
    for term, (_, _, axes, rough) in enumerate(TERMS):
        if not axes:
            out.append((term, 1.0, None))
            continue
        distance = sum(squares[axis] * np.exp(-2 * theta[at + i]) for i, axis in enumerate(axes))
        at += len(axes)
        if rough:  # Matern 3/2
            root = np.sqrt(3 * distance)
            decay = np.exp(-root)
            out.append((term, (1 + root) * decay, 3 * decay))
        else:
            decay = np.exp(-0.5 * distance)
            out.append((term, decay, decay))
    return out


def _evidence(
    theta: np.ndarray,
    squares: list[np.ndarray],
    masks: Mapping[tuple[str, ...], np.ndarray],
    residual: np.ndarray,
) -> tuple[float, np.ndarray]:
    """Minus the log marginal likelihood and its slope (Rasmussen and Williams, equations 2.30 and 5.9)."""
    size = len(residual)
    terms = _terms(theta, squares)
    parts = [np.exp(2 * theta[t]) * shape * masks[TERMS[t][1]] for t, shape, _ in terms]
    matrix = sum(parts) + _noise(theta) * np.eye(size)
    try:
        factor = cho_factor(matrix, lower=True)
    except np.linalg.LinAlgError:
        return 1e10, np.zeros_like(theta)
    weights = cho_solve(factor, residual)
    value = (
        0.5 * float(residual @ weights)
        + float(np.log(np.diag(factor[0])).sum())
        + 0.5 * size * np.log(2 * np.pi)
    )
    half = dpotri(factor[0], lower=1)[0]
    inner = np.tril(half) + np.tril(half, -1).T - np.outer(weights, weights)
    slope = np.empty_like(theta)
    at = len(TERMS) + 1
    for (term, _, decay), part in zip(terms, parts, strict=True):
        slope[term] = float(np.vdot(inner, part))
        axes = TERMS[term][2]
        if axes:
            shared = inner * decay * masks[TERMS[term][1]] * np.exp(2 * theta[term])
            for i, axis in enumerate(axes):
                slope[at + i] = 0.5 * float(np.vdot(shared, squares[axis])) * np.exp(-2 * theta[at + i])
            at += len(axes)
    slope[len(TERMS)] = float(np.trace(inner)) * np.exp(2 * theta[len(TERMS)])
    return value, slope
