"""Throughput of fine-tuning configurations: a physical model, a Gaussian process on its residuals, intervals (M9.2, ours)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import least_squares, minimize

from slackwater.forecasting.configurations.facts import Configuration, Features, PredictedThroughput, features
from slackwater.forecasting.configurations.runs import Ranges, configurations_of, ranges_of

#: Starting values (logarithms): share of peak FLOP/s per method (3), weight traffic in units of `gather_s` and `read_s` (2),
#: sharpness of the overlap minus one, fixed milliseconds per layer on one GPU, and the additional ones on several GPUs.
_START: Final = (-0.8, -1.0, -0.85, 0.8, -1.0, -0.7, 2.0, 1.0)
CONSTANTS: Final = len(_START)  # Number of constants of the physical model
#: Width of the weak prior around the start, in log constants: few rows leave some constants undetermined.
_PRIOR_WIDTH: Final = 2.0
#: Errors (log) beyond this have linear loss, so that starved and bimodal runs do not distort the fit.
_ROBUST: Final = 0.1


def log_rate(constants: np.ndarray, f: Features) -> np.ndarray:
    """Return log tokens per second and GPU by the physical model, shape (n,).

    A step takes (C^k + (M + O)^k)^(1/k) seconds: matrix products C at a share of the GPU's peak, traffic of weights M, and fixed
    work O per layer; k > 1 because both overlap in part (k = 1: sequential, k large: the longer of the two).
    """
    share = np.exp(constants[:3])[f.method]
    compute = f.compute_s / share
    traffic = np.exp(constants[3]) * f.gather_s + np.exp(constants[4]) * f.read_s
    fixed = 1e-3 * f.layers * (np.exp(constants[6]) + np.exp(constants[7]) * (f.number_gpus > 1))
    sharpness = 1 + np.exp(constants[5])
    step = np.logaddexp(sharpness * np.log(compute), sharpness * np.log(traffic + fixed)) / sharpness
    return np.asarray(np.log(f.tokens) - step)


def fit_law(f: Features, log_tokens_per_second: np.ndarray) -> np.ndarray:
    """Fit the constants of `log_rate` by robust least squares on log tokens per second and GPU, shape (8,)."""
    start = np.array(_START)

    def error(constants: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [log_rate(constants, f) - log_tokens_per_second, _ROBUST * (constants - start) / _PRIOR_WIDTH]
        )

    found: np.ndarray = least_squares(
        error, start, loss="soft_l1", f_scale=_ROBUST, bounds=(start - 6, start + 6)
    ).x
    return found


# ---
# Gaussian process over configurations: sums of smooth and grouped covariances, fitted by the marginal likelihood.
#
# Rasmussen and Williams (2006), algorithms 2.1 and 5.1; the composition of the covariance is ours. It provides partial pooling: the
# measurements of a group (model, method, GPU, number format) correct the group's own curve, and a group without data falls back to
# the common part of its method and GPU.

#: Continuous coordinates, in the order of `Points.x`.
AXES: Final = ("tokens", "length", "gpus", "nodes", "params", "peak", "pressure")
#: (name, groups within which points covary, axes, whether only once differentiable); without axes: a constant of the group.
TERMS: Final[tuple[tuple[str, tuple[str, ...], tuple[int, ...], bool], ...]] = (
    ("method", ("method",), (0, 1, 2, 3, 4, 5, 6), False),
    ("device", ("method", "gpu"), (0, 1, 2, 4, 6), False),
    ("group", ("group",), (0, 1, 2, 6), True),
    ("model level", ("model",), (), False),
    ("gpu level", ("gpu",), (), False),
    ("group level", ("group",), (), False),
    ("count level", ("group", "count"), (), False),
)
#: Initial standard deviations per term (log residual), with the noise last. Length scales start at `_SCALE` of each axis.
_PROCESS_START: Final = (0.15, 0.1, 0.08, 0.1, 0.1, 0.05, 0.03, 0.02)
_SCALE: Final = (2.0, 2.5, 1.5, 1.5, 1.0, 1.0, 0.4)
#: Standard deviation of weak normal priors on the log hyperparameters, which stabilize fits to as few as fifty rows.
_PROCESS_PRIOR_WIDTH: Final = 1.0
_LEAST_NOISE: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Points of the process: ``x`` of shape (n, 7) by `AXES`; ``groups`` holds the labels of all rows by group name."""

    x: np.ndarray
    groups: Mapping[str, np.ndarray]

    def take(self, rows: np.ndarray) -> Points:
        """Return the given rows."""
        return Points(x=self.x[rows], groups={name: labels[rows] for name, labels in self.groups.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Fitted process: its training points, log hyperparameters and the factor of its covariance."""

    points: Points
    theta: np.ndarray
    factor: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    inverse_diagonal: np.ndarray = field(repr=False)

    def predict(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation (noise included) of the residual at ``points``, each of shape (m,)."""
        cross = covariance(self.theta, points, self.points)
        mean = cross @ self.weights
        half = solve_triangular(self.factor, cross.T, lower=True)
        far = float(np.exp(2 * self.theta[: len(TERMS)]).sum())  # the variance far from all measurements
        variance = far - (half**2).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, 0.0) + _noise(self.theta))

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Return leave-one-out errors and standard deviations of the training rows (Rasmussen and Williams, equation 5.12)."""
        return self.weights / self.inverse_diagonal, 1 / np.sqrt(self.inverse_diagonal)


def initial_parameters() -> np.ndarray:
    """Return initial log hyperparameters: standard deviations of terms and noise, then length scales of each term's axes."""
    scales = [np.log(_SCALE[axis]) for _, _, axes, _ in TERMS for axis in axes]
    return np.array([*np.log(_PROCESS_START), *scales])


def condition(points: Points, residual: np.ndarray, theta: np.ndarray) -> Process:
    """Condition the process with these hyperparameters on ``residual`` (shape (n,)) at ``points``."""
    matrix = covariance(theta, points, points)
    matrix[np.diag_indices_from(matrix)] += _noise(theta)
    factor = np.linalg.cholesky(matrix)
    weights = cho_solve((factor, True), residual)
    half = solve_triangular(factor, np.eye(len(residual)), lower=True)
    return Process(
        points=points, theta=theta, factor=factor, weights=weights, inverse_diagonal=(half**2).sum(axis=0)
    )


def fit(points: Points, residual: np.ndarray, *, theta: np.ndarray, iterations: int) -> Process:
    """Maximize the marginal likelihood (with weak priors around `initial_parameters`) from ``theta``, then call `condition`."""
    squares = [(points.x[:, [a]] - points.x[:, a]) ** 2 for a in range(len(AXES))]
    masks = {groups: same_groups(points, points, groups) for _, groups, _, _ in TERMS}
    centre = initial_parameters()

    def objective(t: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = _evidence(t, squares, masks, residual)
        away = (t - centre) / _PROCESS_PRIOR_WIDTH
        return value + 0.5 * float(away @ away), slope + away / _PROCESS_PRIOR_WIDTH

    found = minimize(
        objective, theta, jac=True, method="L-BFGS-B", bounds=[(c - 4, c + 4) for c in centre],
        options={"maxiter": iterations},
    )  # fmt: skip
    return condition(points, residual, found.x)


def covariance(theta: np.ndarray, left: Points, right: Points) -> np.ndarray:
    """Return the covariance of shape (len(left), len(right)), without noise."""
    squares = [(left.x[:, [a]] - right.x[:, a]) ** 2 for a in range(len(AXES))]
    total = np.zeros((len(left.x), len(right.x)))
    for term, shape, _ in _terms(theta, squares):
        total += np.exp(2 * theta[term]) * shape * same_groups(left, right, TERMS[term][1])
    return total


def _noise(theta: np.ndarray) -> float:
    return float(np.exp(2 * theta[len(TERMS)])) + _LEAST_NOISE**2


def same_groups(left: Points, right: Points, names: tuple[str, ...]) -> np.ndarray:
    """Return whether two points share the group of every name in ``names``, shape (len(left), len(right))."""
    same = np.ones((len(left.x), len(right.x)), dtype=bool)
    for name in names:
        both = np.concatenate([left.groups[name], right.groups[name]])
        codes = np.unique(both, return_inverse=True)[
            1
        ]  # comparing integers is many times faster than comparing strings
        same &= codes[: len(left.x), None] == codes[None, len(left.x) :]
    return same


def _terms(theta: np.ndarray, squares: list[np.ndarray]) -> list[Any]:
    """Return (term, covariance in units of its variance, gradient factor of its length scales) for every term."""
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
    """Return minus the log marginal likelihood and its gradient (Rasmussen and Williams, equations 2.30 and 5.9)."""
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


# ---
# Intervals of throughput: standardised leave-one-out errors, and regions that are hard to predict (M9.2, ours).

LEVEL: Final = 0.90  # Nominal coverage of the intervals
#: Bandwidth of the local difficulty per axis of the process (doublings, logs).
_NEAR: Final = np.array([1.5, 2.5, 0.5, 1.0, 1.5, 1.0, 0.5])
_PRIOR_ROWS: Final = 3.0  # Prior weight, in rows, of a difficulty of 1
_CAP: Final = 8.0  # Standardised errors are clipped to this in the difficulty


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Factors that convert the standard deviations of the process into 90 % intervals.

    ``points`` and ``scores``: the rows of the fit and their standardised leave-one-out errors. ``row``, ``model``, ``gpu``: the
    factors of a standard deviation for measured groups, for unmeasured groups, and for unmeasured GPU models.
    """

    points: Points
    scores: np.ndarray
    row: float
    model: float
    gpu: float

    def reach(self, points: Points, sd: np.ndarray, seen: Points) -> np.ndarray:
        """Return half the width of the interval of log throughput (m,); the process is conditioned on the rows ``seen``."""
        hard = difficulty(points, self.points, self.scores)
        measured = np.isin(points.groups["group"], seen.groups["group"])
        known_gpu = np.isin(points.groups["gpu"], seen.groups["gpu"])
        factor = np.where(measured, self.row, np.where(known_gpu, self.model, max(self.model, self.gpu)))
        return np.asarray(sd * hard * factor)

    def to_json(self) -> dict[str, Any]:
        """Return plain numbers; the points are omitted, since they are those of the first rows of the model's runs."""
        return {"scores": self.scores.tolist(), "row": self.row, "model": self.model, "gpu": self.gpu}


def calibrate(process: Process) -> Calibration:
    """Compute the factors from leave-out errors in closed form: split conformal on rows, on whole models and on whole GPU models.

    Every model and every GPU model has the same weight, whatever its number of rows. A row's own error is not part of its
    difficulty.
    """
    error, sd = process.left_out()
    scores = error / sd
    points = process.points
    hard = difficulty(points, points, scores, leave_out=True)
    row = float(np.quantile(np.abs(scores) / hard, _conformal_level(len(scores))))
    return Calibration(
        points=points, scores=scores, row=row,
        model=max(row, _block_factor(process, points.groups["model"], scores)),
        gpu=max(row, _block_factor(process, points.groups["gpu"], scores)),
    )  # fmt: skip


def difficulty(points: Points, rows: Points, scores: np.ndarray, *, leave_out: bool = False) -> np.ndarray:
    """Return the root mean square of standardised errors near each point on the same GPU model, shrunk to 1, shape (m,)."""
    squares = np.minimum(np.abs(scores), _CAP) ** 2
    near = np.zeros((len(points.x), len(rows.x)))
    for axis, scale in enumerate(_NEAR):
        near -= 0.5 * ((points.x[:, [axis]] - rows.x[:, axis]) / scale) ** 2
    np.exp(near, out=near)
    near *= same_groups(points, rows, ("gpu",))
    if leave_out:
        np.fill_diagonal(near, 0.0)
    return np.asarray(np.sqrt((_PRIOR_ROWS + near @ squares) / (_PRIOR_ROWS + near.sum(axis=1))))


def _block_factor(process: Process, labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the 90 % quantile of standardised errors of left-out groups, each group with the same weight."""
    inverse = cho_solve((process.factor, True), np.eye(len(labels)))
    values, weights = [], []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        others = np.flatnonzero(labels != label)
        if not others.size:
            continue
        block = cho_factor(inverse[np.ix_(rows, rows)])
        error = cho_solve(block, process.weights[rows])
        sd = np.sqrt(np.diag(cho_solve(block, np.eye(len(rows)))))
        hard = difficulty(process.points.take(rows), process.points.take(others), scores[others])
        values.append(np.abs(error) / (sd * hard))
        weights.append(np.full(len(rows), 1 / len(rows)))
    if not values:
        return 0.0
    order = np.argsort(np.concatenate(values))
    share = np.cumsum(np.concatenate(weights)[order]) / len(values)
    at = min(int(np.searchsorted(share, LEVEL)), len(order) - 1)
    return float(np.concatenate(values)[order[at]])


def _conformal_level(size: int) -> float:
    """Return the level whose empirical quantile covers a new row with probability `LEVEL` (split conformal)."""
    return min(1.0, ceil((size + 1) * LEVEL) / size)


# ---
# Throughput model: physical model, Gaussian process on its residuals, intervals (M9.2).

#: Iterations of the hyperparameter search; more iterations change no error by a tenth of a percentage point.
ITERATIONS: Final = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputModel:
    """Throughput model: training runs, physical constants, process on the residuals, calibration, measured ranges."""

    runs: pd.DataFrame
    law: np.ndarray
    process: Process
    calibration: Calibration
    ranges: Ranges

    def predict(self, configurations: Sequence[Configuration]) -> list[PredictedThroughput]:
        """Predict median and 90 % interval of tokens per second. Raises `InputError` for unknown models or GPUs."""
        if not configurations:
            return []
        f = features(configurations)
        points = points_of(f)
        mean, sd = self.process.predict(points)
        centre = np.exp(log_rate(self.law, f) + mean) * f.number_gpus
        distances = [self.ranges.distance(c) for c in configurations]
        reach = self.calibration.reach(points, sd, self.process.points) * np.array([1 + d for d in distances])
        return [
            PredictedThroughput(
                tokens_per_second=float(centre[i]),
                low=float(centre[i] * np.exp(-reach[i])),
                high=float(centre[i] * np.exp(reach[i])),
                outside=self.ranges.sentences(c),
            )
            for i, c in enumerate(configurations)
        ]

    def with_runs(self, runs: pd.DataFrame) -> ThroughputModel:
        """Return the model conditioned on additional ``runs``.

        ``runs`` has the columns `slackwater.forecasting.configurations.runs.COLUMNS`.

        Constants and calibration are unchanged. Conditioning can only lower the variance of the process: a reported run pulls
        its configuration's prediction towards it and never widens its interval. A model or group reported for the first time
        counts as measured from then on.
        """
        joined = pd.concat([self.runs, runs], ignore_index=True)
        return restore(joined, law=self.law, theta=self.process.theta, calibration=self.calibration)


def fit_throughput(runs: pd.DataFrame, *, iterations: int = ITERATIONS) -> ThroughputModel:
    """Fit physical model, process and calibration to cleaned runs."""
    configurations = configurations_of(runs)
    f = features(configurations)
    rate = log_per_gpu(runs, f)
    law = fit_law(f, rate)
    residual = rate - log_rate(law, f)
    points = points_of(f)
    fitted = fit(points, residual, theta=initial_parameters(), iterations=iterations)
    return ThroughputModel(
        runs=runs.reset_index(drop=True), law=law, process=fitted, calibration=calibrate(fitted),
        ranges=ranges_of(configurations),
    )  # fmt: skip


def restore(
    runs: pd.DataFrame, *, law: np.ndarray, theta: np.ndarray, calibration: Calibration
) -> ThroughputModel:
    """Rebuild a model from its stored rows, constants, hyperparameters and calibration."""
    configurations = configurations_of(runs)
    f = features(configurations)
    residual = log_per_gpu(runs, f) - log_rate(law, f)
    return ThroughputModel(
        runs=runs, law=law, process=condition(points_of(f), residual, theta), calibration=calibration,
        ranges=ranges_of(configurations),
    )  # fmt: skip


def log_per_gpu(runs: pd.DataFrame, f: Features) -> np.ndarray:
    """Return the log of measured tokens per second and GPU."""
    return np.asarray(np.log(runs["tokens_per_second"].to_numpy(dtype=float) / f.number_gpus))


def points_of(f: Features) -> Points:
    """Return coordinates (`AXES`; doublings, logs of size and peak) and groups of the process."""
    x = np.column_stack(
        [
            np.log2(f.tokens), np.log2(f.length), np.log2(f.number_gpus), np.log2(f.number_nodes),
            np.log(f.params_b), np.log(f.peak), np.clip(f.pressure, 0, 1.2),
        ]
    )  # fmt: skip
    model, method, device, _ = (np.array(names) for names in zip(*f.names, strict=True))
    groups: Mapping[str, np.ndarray] = {
        "model": model, "method": method, "gpu": device, "count": f.number_gpus.astype(int),
        "group": np.array(["|".join(names) for names in f.names]),
    }  # fmt: skip
    return Points(x=x, groups=groups)
