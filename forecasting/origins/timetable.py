"""When a forecaster is estimated and when it only moves on: a fixed timetable, the same live and afterwards (M6.4).

A forecast at slot c is a pure function of what was known at c: the parameters come from the history known at the last
refit time at or before c, and the refit times are multiples of the cadence since the epoch. A forecast made later for a
past slot is therefore the very one that would have been made then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import pandas as pd

from forecasting.forecast import Forecast
from forecasting.predictor import (
    FittedPanelModel,
    FittedPanelPredictor,
    FittedUnivariate,
    FittedVariable,
    PanelPredictor,
    Peers,
    Predictor,
    UnivariatePredictor,
    peers_from,
)
from warehouse.errors import SettingsError
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
    if len(history.slots) and start <= history.slots[0]:
        return history
    frame = history.frame.loc[start:]
    within = None if history.within is None else history.within[len(history.frame) - len(frame) :]
    return replace(history, frame=frame, within=within)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimation:
    """Ascending ``origins`` that forecast from the estimation at slot ``at``."""

    at: pd.Timestamp
    origins: tuple[pd.Timestamp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """Both models of a predictor as estimated at slot ``at``: of one market alone, or (``pooled``) of a panel."""

    predictor: str
    at: pd.Timestamp
    pooled: bool
    price: FittedVariable | FittedPanelModel
    count: FittedVariable | FittedPanelModel


def is_pooled(predictor: Predictor) -> bool:
    """Whether a predictor is estimated on all markets of a source together."""
    return isinstance(predictor, PanelPredictor)


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """``histories`` that a predictor is estimated on together, one alone or a panel, in whatever order, by a timetable.

    What is estimated and forecast depends on the histories from `Timetable.start` on only, however far back they reach.
    """

    histories: tuple[History, ...]
    timetable: Timetable

    @cached_property
    def ordered(self) -> tuple[History, ...]:
        """The histories by market and source."""
        return tuple(sorted(self.histories, key=lambda one: (one.market.key, one.source)))

    @cached_property
    def observed(self) -> pd.DatetimeIndex:
        """Slots at which price and count of any of the histories were observed, ascending."""
        slots = [one.slots[~(np.isnan(one.price) | np.isnan(one.available))] for one in self.histories]
        return pd.DatetimeIndex(slots[0].append(slots[1:]).unique().sort_values())

    def estimations(self, origins: Sequence[pd.Timestamp]) -> list[Estimation]:
        """The estimations that ascending origins need (M6.4); the cohort is as young as its earliest observed slot is."""
        found: dict[pd.Timestamp, list[pd.Timestamp]] = {}
        for origin in origins:
            first = int(self.observed.searchsorted(self.timetable.start(origin)))
            known = first < len(self.observed) and self.observed[first] <= origin
            at = self.timetable.fit_time(origin, self.observed[first]) if known else origin
            found.setdefault(at, []).append(origin)
        return [Estimation(at=at, origins=tuple(own)) for at, own in found.items()]

    def estimate(self, predictor: Predictor, at: pd.Timestamp) -> Estimated:
        """Estimate on what every history knew at ``at``; raises `SettingsError` for one that cannot."""
        known = [since(one, self.timetable.start(at)).until(at) for one in self.ordered]
        fitted: FittedPanelPredictor | FittedUnivariate
        if isinstance(predictor, PanelPredictor):
            fitted = predictor.fit_panel(known)
        elif isinstance(predictor, UnivariatePredictor) and len(known) == 1:
            fitted = predictor.fit(known[0])
        else:
            raise SettingsError(
                f"predictor {predictor.name!r} of {len(known)} markets",
                expected="a PanelPredictor, or a UnivariatePredictor of one market",
            )
        return Estimated(
            predictor=predictor.name,
            at=at,
            pooled=is_pooled(predictor),
            price=fitted.price,
            count=fitted.count,
        )

    def peers(self, at: pd.Timestamp) -> Peers:
        """What the markets may see of each other when they forecast from the estimation at ``at``."""
        return peers_from([since(one, self.timetable.start(at)) for one in self.ordered])


def forecast_from(
    estimated: Estimated,
    history: History,
    origins: Sequence[pd.Timestamp],
    *,
    horizon: int,
    timetable: Timetable,
    peers: Peers,
) -> list[Forecast]:
    """One forecast of a market per ascending origin from one estimation; ``peers`` matter to a pooled one only.

    Nothing after an origin is read for it, neither of the market nor of its peers.
    """
    known = since(history, timetable.start(estimated.at)).until(origins[-1])
    name, price, count = estimated.predictor, estimated.price, estimated.count
    if estimated.pooled:
        panel = FittedPanelPredictor(
            name=name, price=cast(FittedPanelModel, price), count=cast(FittedPanelModel, count)
        )
        fitted = panel.among(known, peers)
    else:
        fitted = FittedUnivariate(
            name=name, history=known, price=cast(FittedVariable, price), count=cast(FittedVariable, count)
        )
    return fitted.forecast_many(known, origins, horizon=horizon)


def scheduled(
    predictor: Predictor,
    histories: Sequence[History],
    origins: Mapping[str, Sequence[pd.Timestamp]],
    *,
    horizon: int,
    timetable: Timetable,
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[Forecast]]:
    """Forecasts of several markets by ``market@source``, one per origin (ascending slots), estimated and extended by the timetable.

    A pooled predictor is estimated on all the histories, whether their forecasts are asked for or not; others market by market.
    ``progress`` is told the number of origins done.
    """
    together = is_pooled(predictor)
    groups = [tuple(histories)] if together else [(one,) for one in histories]
    made: dict[str, list[Forecast]] = {key: [] for key in origins}
    for group in groups:
        cohort = Cohort(histories=group, timetable=timetable)
        own = {key_of(one): one for one in group if key_of(one) in origins}
        needed: dict[pd.Timestamp, list[tuple[str, Estimation]]] = {}
        for key in own:
            for one in cohort.estimations(origins[key]):
                needed.setdefault(one.at, []).append((key, one))
        for at in sorted(needed):
            estimated = cohort.estimate(predictor, at)
            peers = cohort.peers(at) if together else Peers()
            for key, one in needed[at]:
                made[key] += forecast_from(
                    estimated, own[key], one.origins, horizon=horizon, timetable=timetable, peers=peers
                )
                if progress is not None:
                    progress(len(one.origins))
    return {key: sorted(own, key=lambda forecast: forecast.issued_at) for key, own in made.items()}


def key_of(history: History) -> str:
    """``market@source`` of a history."""
    return f"{history.market.key}@{history.source}"
