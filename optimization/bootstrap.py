"""Paired bootstrap over jobs: all policies are resampled together, so that what they share cancels in a comparison."""

from __future__ import annotations

import numpy as np

from warehouse.errors import SettingsError

#: Resamples behind an interval, and its level.
REPEATS, LEVEL = 2000, 0.95


def resampled_means(values: np.ndarray, *, rng: np.random.Generator, repeats: int = REPEATS) -> np.ndarray:
    """Means of ``values`` (jobs, columns) over ``repeats`` resamples of the jobs with replacement, shape (repeats, columns).

    Each resample is the same for all columns. Raises `SettingsError` for no job, or values that are not finite.
    """
    table = np.asarray(values, dtype=float)
    if table.ndim != 2 or not len(table) or not np.isfinite(table).all():
        raise SettingsError(
            f"values of shape {table.shape}, {int((~np.isfinite(table)).sum())} of them not finite",
            expected="a finite table of at least one job",
        )
    jobs = len(table)
    drawn = rng.multinomial(jobs, np.full(jobs, 1.0 / jobs), size=repeats)
    return np.asarray(drawn @ table / jobs)


def interval(samples: np.ndarray, *, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """The central percentile interval of ``samples`` (repeats, ...), NaN ones left out, two arrays of shape (...).

    A column of which no sample is a number has the interval (NaN, NaN).
    """
    table = np.asarray(samples, dtype=float)
    empty = np.isnan(table).all(axis=0)
    filled = np.where(empty, 0.0, table)
    low, high = np.nanquantile(filled, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=0)
    return np.where(empty, np.nan, low), np.where(empty, np.nan, high)
