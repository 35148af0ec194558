"""Distributions of a count on 0..n-1: conversion to and from quantiles and exceedance probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.forecasting.predictor import Outlook, stored
from slackwater.forecasting.quantiles import LEVELS

MOST_STATES = 128  # More states would need more data than the histories contain


def indicator(values: np.ndarray, states: int) -> np.ndarray:
    """Return a point mass for each value, shape (*values.shape, states); zeros in gaps and for values outside the states.

    >>> indicator(np.array([1.0, np.nan]), 3).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    return np.asarray((values[..., None] == np.arange(states)).astype(float))


def at_least(distribution: np.ndarray) -> np.ndarray:
    """Return P(count >= n) for n = 1..states-1 from distributions (..., states), shape (..., states - 1)."""
    return np.asarray(1.0 - np.cumsum(distribution, axis=-1)[..., :-1])


def distribution_of(least: np.ndarray) -> np.ndarray:
    """Return distributions (..., states) from P(count >= n), n = 1..states-1, after making them non-increasing in n."""
    falling = np.minimum.accumulate(least, axis=-1)
    bounds = np.concatenate(
        [np.ones_like(falling[..., :1]), falling, np.zeros_like(falling[..., :1])], axis=-1
    )
    return np.asarray(-np.diff(bounds, axis=-1))


def exceedance(values: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return [value >= n] as 0 or 1, NaN in gaps, shape (*values.shape, thresholds)."""
    known = np.isfinite(values)[..., None]
    return np.where(known, (values[..., None] >= thresholds).astype(float), np.nan)


def quantiles_of(distribution: np.ndarray) -> np.ndarray:
    """Return quantiles at `LEVELS` of distributions (..., states), shape (..., 19).

    A quantile is the smallest value whose cumulative probability reaches the level.

    >>> quantiles_of(np.array([0.4, 0.0, 0.6]))[[6, 7, 8]].tolist()
    [0.0, 0.0, 2.0]
    """
    cumulative = np.cumsum(distribution, axis=-1)
    # For each level, the number of values that do not reach it is the index of the first value that does.
    missed = cumulative[..., :-1, None] < LEVELS - 1e-9
    return np.asarray(missed.sum(axis=-2), dtype=float)


def interpolation(steps: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Return the weights of linear interpolation between ascending ``nodes``, constant beyond them, shape (steps, nodes).

    >>> interpolation(np.array([1, 3, 9]), np.array([1, 2, 4])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
    """
    return np.stack([np.interp(steps, nodes, unit) for unit in np.eye(nodes.size)], axis=1)


def outlook_of(distribution: np.ndarray, reasons: tuple[str, ...]) -> Outlook:
    """Return an outlook with the quantiles and mean of the distributions ``distribution`` (m, h, states)."""
    return Outlook(
        quantiles=quantiles_of(distribution),
        mean=distribution @ np.arange(distribution.shape[-1]),
        reasons=reasons,
        distribution=distribution,
    )


# ---
# Quantiles of past errors by step ahead, which turn a point forecast into a distribution.

#: Errors are tabulated up to this step: the longest horizon (48) from a newest value that is 48 slots old.
MAX_STEP = 96
MIN_ERRORS = 20  # A step with fewer errors takes the widest known spread instead (ours)


@stored("error_quantiles")
@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorQuantiles:
    """Table (MAX_STEP, 19) of quantiles of actual minus forecast by step; ``errors`` is the largest number of errors of a step."""

    table: np.ndarray
    errors: int

    def at(self, steps: np.ndarray) -> np.ndarray:
        """Return the rows for 1-based ``steps`` of any shape, shape (*steps, 19); steps beyond the table get the widest row."""
        rows = np.vstack([self.table, widest(self.table)])
        return np.asarray(rows[np.minimum(steps, self.table.shape[0] + 1) - 1])

    @property
    def reason(self) -> str:
        """Reason why the spread is unreliable, "" if it is reliable."""
        if self.errors >= MIN_ERRORS:
            return ""
        return f"spread from {self.errors} past errors, {MIN_ERRORS} are needed"


def widest(table: np.ndarray) -> np.ndarray:
    """Return the row with the widest range from the 5 % to the 95 % quantile, shape (19,)."""
    return np.asarray(table[np.argmax(table[:, -1] - table[:, 0])])


def error_quantiles(errors: np.ndarray, *, centred: bool = False) -> ErrorQuantiles:
    """Tabulate quantiles of errors of shape (origins, steps), NaN where an error is missing.

    A step with fewer than `MIN_ERRORS` errors takes the widest known row. If no step has enough, the step with most errors
    serves for all; without any error the spread is zero (see `ErrorQuantiles.reason`). ``centred`` shifts each row to
    median 0, so that the point forecast is the median.
    """
    finite = np.isfinite(errors)
    counts = finite.sum(axis=0) if errors.size else np.zeros(0, dtype=int)
    most = int(counts.max()) if counts.size else 0
    table = np.zeros((MAX_STEP, LEVELS.size))
    if most == 0:
        return ErrorQuantiles(table=table, errors=0)
    if not errors[finite].any():  # a flat series needs no sorting
        return ErrorQuantiles(table=table, errors=most)
    enough = np.flatnonzero(counts[:MAX_STEP] >= min(MIN_ERRORS, most))
    table[enough] = _column_quantiles(np.where(finite, errors, np.nan)[:, enough], counts[enough])
    if centred:
        table[enough] -= table[enough, LEVELS.size // 2][:, None]
    missing = np.setdiff1d(np.arange(MAX_STEP), enough)
    table[missing] = widest(table[enough])
    return ErrorQuantiles(table=table, errors=most)


def _column_quantiles(errors: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return linearly interpolated quantiles at `LEVELS` of the ``counts`` numbers in each column (others NaN), (columns, 19)."""
    ordered = np.sort(errors, axis=0)  # sorts NaN last
    place = LEVELS[None, :] * (counts[:, None] - 1)
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, counts[:, None] - 1)
    column = np.arange(counts.size)[:, None]
    below, above = ordered[low, column], ordered[high, column]
    return np.asarray(below + (above - below) * (place - low))


def ahead(values: np.ndarray, steps: int) -> np.ndarray:
    """Return a matrix (slots, steps) whose element (t, k-1) is ``values[t + k]``, NaN beyond the end."""
    padded = np.concatenate([values, np.full(steps, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, steps)
    return np.asarray(windows[1 : values.shape[0] + 1])
