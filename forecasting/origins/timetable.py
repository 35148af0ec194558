"""When a forecaster is estimated, and on how much: one fixed timetable, the same live and afterwards (M6.4).

A forecast at slot c is a pure function of what was known at c. The parameters come from what was known at the last refit
time at or before c, and refit times are multiples of the cadence since the epoch. Neither estimation nor forecast reads
further back than the look-back before that refit. So a forecast made later for a past slot is the very one that would
have been made then, by a turn, a backfill, an experiment or the accuracy report.

Slots are numbered since the epoch in units of the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecasting.quantiles import Variable
from warehouse.errors import SettingsError

VARIABLES: tuple[Variable, ...] = ("price", "count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """The timetable of one variable.

    ``refit_every``: time between estimations; ``lookback``: how much of the past before a refit time is read. Raises
    `SettingsError` unless both are positive.
    """

    refit_every: pd.Timedelta
    lookback: pd.Timedelta

    def __post_init__(self) -> None:
        if not (self.refit_every > pd.Timedelta(0) and self.lookback > pd.Timedelta(0)):
            raise SettingsError(
                f"refit every {self.refit_every}, look back {self.lookback}", expected="positive durations"
            )

    def start(self, origins: np.ndarray, step: pd.Timedelta) -> np.ndarray:
        """The earliest slot that a forecast at each origin may need, shape of ``origins``."""
        width, every = step.value, self.refit_every.value
        refits = (
            (origins * width + width - 1) // every * every
        )  # by a slot's end: a refit time may lie within a slot
        return np.asarray(-((self.lookback.value - refits) // width))

    def fit_slots(self, origins: np.ndarray, observed: np.ndarray, step: pd.Timedelta) -> np.ndarray:
        """The slot whose estimation each origin forecasts from, shape of ``origins``.

        ``observed`` are the ascending slots at which any market that is estimated together had a value. A young market
        (less than one cadence of history at the last refit time) is estimated four times as often, and one with less
        than a quarter of it at every origin (ours).
        """
        width = step.value
        first = np.searchsorted(observed, self.start(origins, step))
        known = first < observed.size
        begun = np.where(known, observed[np.minimum(first, observed.size - 1)] if observed.size else 0, 0)
        known &= begun <= origins
        slots = origins.copy()
        for every in (self.refit_every.value // 4, self.refit_every.value):
            at = origins * width // every * every
            old = known & (begun * width <= at - every)
            slots = np.where(old, at // width, slots)
        return slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """The cadence of each variable."""

    price: Cadence
    count: Cadence

    def of(self, variable: Variable) -> Cadence:
        """The cadence of one variable."""
        return self.price if variable == "price" else self.count

    def start(self, origin: pd.Timestamp) -> pd.Timestamp:
        """The earliest time that a forecast at ``origin`` may need of any variable."""
        return min(origin.floor(one.refit_every) - one.lookback for one in (self.price, self.count))

    @property
    def lookback(self) -> pd.Timedelta:
        """The longer look-back."""
        return max(self.price.lookback, self.count.lookback)
