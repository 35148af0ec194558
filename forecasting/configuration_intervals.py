"""Intervals of throughput: standardised errors of what was left out, and where the data are hard to predict (M9.2, ours)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from forecasting.configuration_process import Points, Process, same_groups

#: Nominal coverage of the intervals.
LEVEL: Final = 0.90
#: How far a standardised error speaks for its surroundings, per axis of the process (doublings, logs).
_NEAR: Final = np.array([1.5, 2.5, 0.5, 1.0, 1.5, 1.0, 0.5])
#: Rows' worth of "as expected" that a surrounding begins with.
_PRIOR_ROWS: Final = 3.0
#: A standardised error counts no more than this in its surroundings' difficulty.
_CAP: Final = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What makes the process's standard deviations 90 % intervals.

    ``points`` and ``scores``: the rows of the fit and their standardised leave-one-out errors. ``row``, ``model``, ``gpu``: the
    factors of a standard deviation where the group was measured, where it was not, and where not even the GPU was.
    """

    points: Points
    scores: np.ndarray
    row: float
    model: float
    gpu: float

    def reach(self, points: Points, sd: np.ndarray, seen: Points) -> np.ndarray:
        """Half width of the interval of log throughput, shape (m,); ``seen`` are the rows the process stands on now."""
        hard = difficulty(points, self.points, self.scores)
        measured = np.isin(points.groups["group"], seen.groups["group"])
        known_gpu = np.isin(points.groups["gpu"], seen.groups["gpu"])
        factor = np.where(measured, self.row, np.where(known_gpu, self.model, max(self.model, self.gpu)))
        return np.asarray(sd * hard * factor)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; the points are those of the first rows of the model's runs."""
        return {"scores": self.scores.tolist(), "row": self.row, "model": self.model, "gpu": self.gpu}


def calibrate(process: Process) -> Calibration:
    """Factors from the process's own left-out errors: split conformal on rows, on whole models, on whole GPUs (closed form).

    Every model and every GPU counts alike, however many rows it has. A row's own error is not part of its difficulty.
    """
    error, sd = process.left_out()
    scores = error / sd
    points = process.points
    hard = difficulty(points, points, scores, leave_out=True)
    row = float(np.quantile(np.abs(scores) / hard, _corrected(len(scores))))
    return Calibration(
        points=points, scores=scores, row=row,
        model=max(row, _block_factor(process, points.groups["model"], scores)),
        gpu=max(row, _block_factor(process, points.groups["gpu"], scores)),
    )  # fmt: skip


def difficulty(points: Points, rows: Points, scores: np.ndarray, *, leave_out: bool = False) -> np.ndarray:
    """Root mean square of standardised errors near each point on the same GPU model, shrunk to 1 where few, shape (m,)."""
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
    """The 90 % quantile of standardised errors of whole groups left out, each group with the same weight."""
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


def _corrected(size: int) -> float:
    """The level whose empirical quantile covers a new row with probability `LEVEL` (split conformal)."""
    return min(1.0, ceil((size + 1) * LEVEL) / size)
