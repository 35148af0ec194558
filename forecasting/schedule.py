"""When a forecaster is estimated and when it only moves on: a fixed timetable, the same live and afterwards (M6.4).

A forecast at slot c is a pure function of what was known at c: the parameters come from the history known at the last
refit time at or before c, and the refit times are multiples of the cadence since the epoch. A forecast made later for a
past slot is therefore the very one that would have been made then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from forecasting.forecast import Forecast
from forecasting.predictor import FittedPredictor, Predictor
from warehouse.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """``refit_every``: time between estimations; ``lookback``: how much history before a refit is used."""

    refit_every: pd.Timedelta
    lookback: pd.Timedelta

    def fit_time(self, origin: pd.Timestamp, first_observed: pd.Timestamp) -> pd.Timestamp:
        """The last refit time at or before ``origin``.

        A young market (less than one cadence of history at that refit) is estimated four times as often, and one
        with less than a quarter of it at every origin (ours).
        """
        for cadence in (self.refit_every, self.refit_every / 4):
            at = origin.floor(cadence)
            if first_observed <= at - cadence:
                return at
        return origin

    def start(self, origin: pd.Timestamp) -> pd.Timestamp:
        """The earliest slot that a forecast at ``origin`` may need."""
        return origin.floor(self.refit_every) - self.lookback


def since(history: History, start: pd.Timestamp) -> History:
    """The history from ``start`` on."""
    frame = history.frame.loc[start:]
    within = None if history.within is None else history.within[len(history.frame) - len(frame) :]
    return replace(history, frame=frame, within=within)


def scheduled(
    predictor: Predictor,
    history: History,
    origins: Sequence[pd.Timestamp],
    *,
    horizon: int,
    timetable: Timetable,
    progress: Callable[[int], None] | None = None,
) -> list[Forecast]:
    """One forecast per origin (ascending slots of ``history``), estimated and extended by the timetable.

    Nothing after an origin is read for it. ``progress`` is told the number of origins done.
    """
    observed = history.slots[~(np.isnan(history.price) | np.isnan(history.available))]
    fits: dict[pd.Timestamp, list[pd.Timestamp]] = {}
    for origin in origins:
        first = observed.searchsorted(timetable.start(origin))
        known = first < len(observed) and observed[first] <= origin
        at = timetable.fit_time(origin, observed[first]) if known else origin
        fits.setdefault(at, []).append(origin)
    forecasts: list[Forecast] = []
    for at, group in fits.items():
        known = since(history, timetable.start(group[0]))
        fitted: FittedPredictor = predictor.fit(known.until(at))
        forecasts += fitted.forecast_many(known.until(group[-1]), group, horizon=horizon)
        if progress is not None:
            progress(len(group))
    return forecasts
