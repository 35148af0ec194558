"""A daily cycle as a few sine and cosine terms by least squares, for sources with a real clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecasting.series import Series

#: Harmonics of the day; two follow one or two peaks a day.
HARMONICS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyCycle:
    """``coefficients`` of shape (1 + 2 HARMONICS,): level, then sine and cosine of each harmonic."""

    coefficients: np.ndarray

    @property
    def parameters(self) -> int:
        """Number of coefficients that were estimated."""
        return int(np.count_nonzero(self.coefficients))

    def at(self, series: Series, places: np.ndarray) -> np.ndarray:
        """The cycle's value at slots (any shape of indices, also past the end), the same shape."""
        if self.coefficients.size == 1:
            return np.full(places.shape, self.coefficients[0])
        return np.asarray(daily_terms(series, places) @ self.coefficients)


def daily_terms(series: Series, places: np.ndarray) -> np.ndarray:
    """Level and Fourier terms of the time of day at slots, shape (*places, 1 + 2 HARMONICS)."""
    phase = 2 * np.pi * ((places + series.first_slot) % series.slots_per_day) / series.slots_per_day
    terms = [np.ones(places.shape)]
    for k in range(1, HARMONICS + 1):
        terms += [np.sin(k * phase), np.cos(k * phase)]
    return np.stack(terms, axis=-1)


def level_only(series: Series) -> DailyCycle:
    """No cycle, the mean alone; the series needs an observed value."""
    return DailyCycle(coefficients=np.array([series.observed.mean()]))


def daily_cycle(series: Series) -> DailyCycle | None:
    """The least-squares cycle of the observed slots; None without a clock, eight slots a day, or two days observed."""
    seen = np.flatnonzero(~np.isnan(series.values))
    if series.slots_per_day < 8 or seen.size < 2 * series.slots_per_day:
        return None
    terms = daily_terms(series, seen)
    coefficients, _, rank, _ = np.linalg.lstsq(terms, series.values[seen], rcond=None)
    return DailyCycle(coefficients=coefficients) if rank == terms.shape[1] else None
