"""The one driver: which series are estimated together, from which estimation an origin is forecast, and what it may see.

A turn, a backfill, an experiment and the accuracy report all ask a `Cohort` for its estimations and hand what they get to
`outlook_from`; they differ in what they keep, and in who calls (M6.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from forecasting.origins.timetable import Cadence
from forecasting.predictor import FittedPredictor, Outlook, Panel, Predictor, bounded
from forecasting.predictors.last_value import LastValue
from forecasting.quantiles import LEVELS
from forecasting.series import Series
from warehouse.errors import ForecastError

#: Why a forecast says nothing: no value was ever observed, as far back as it looks.
NOTHING_OBSERVED = "no observed value"
#: Why last value answers in the place of a model whose numbers are not finite.
NO_NUMBER = "the model gave no number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimation:
    """Ascending ``origins`` (slots since the epoch) that are forecast from the estimation at slot ``at``."""

    at: int
    origins: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What one variable is forecast from: a predictor as estimated at slot ``at``, which reads nothing before ``start``.

    ``peers`` are what the markets may see of each other: their series without values that were learned late.
    """

    predictor: str
    at: int
    start: int
    fitted: FittedPredictor
    peers: tuple[Series, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Series of one variable that a predictor is estimated on together, or a single one, by a cadence.

    What is estimated and forecast depends on the series from `Cadence.start` on only, however far back they reach, and
    not on their order.
    """

    series: tuple[Series, ...]
    cadence: Cadence

    @cached_property
    def ordered(self) -> tuple[Series, ...]:
        """The series by market and source."""
        return tuple(sorted(self.series, key=lambda one: (one.market.key if one.market else "", one.source)))

    @cached_property
    def observed(self) -> np.ndarray:
        """Slots at which any of the series has a value, ascending."""
        slots = [one.first_slot + np.flatnonzero(~np.isnan(one.values)) for one in self.series]
        return np.unique(np.concatenate(slots))

    def fit_slots(self, origins: np.ndarray) -> np.ndarray:
        """The slot whose estimation each origin (slots since the epoch) is forecast from."""
        return self.cadence.fit_slots(origins, self.observed, self.series[0].step)

    def estimations(self, origins: np.ndarray) -> list[Estimation]:
        """The estimations that ascending origins need, ascending."""
        slots = self.fit_slots(origins)
        return [Estimation(at=int(at), origins=origins[slots == at]) for at in np.unique(slots)]

    def start(self, at: int) -> int:
        """The earliest slot that the estimation at a slot, and the forecasts from it, read."""
        return int(self.cadence.start(np.array([at]), self.series[0].step)[0])

    def estimate(self, predictor: Predictor, at: int) -> FittedPredictor:
        """Estimate on what every series knew at slot ``at``; those that had not begun are not there."""
        start = self.start(at)
        known = [one.since(start).as_of(at) for one in self.ordered]
        begun = tuple(one for one in known if len(one)) or tuple(known[:1])
        return predictor.fit(Panel(series=begun))

    def basis(self, predictor: Predictor, at: int, fitted: FittedPredictor | None = None) -> Basis:
        """What is forecast from an estimation, which is made now unless it is given."""
        return Basis(
            predictor=predictor.name,
            at=at,
            start=self.start(at),
            fitted=self.estimate(predictor, at) if fitted is None else fitted,
            peers=self.peers(at) if predictor.pooled else (),
        )

    def peers(self, at: int) -> tuple[Series, ...]:
        """What the markets may see of each other when they are forecast from the estimation at slot ``at``."""
        start = self.start(at)
        return tuple(one.since(start).punctual() for one in self.ordered)


def cohorts_of(series: Sequence[Series], cadence: Cadence, *, pooled: bool) -> list[Cohort]:
    """All series of one source and variable together, or each one by itself."""
    groups = [tuple(series)] if pooled else [(one,) for one in series]
    return [Cohort(series=group, cadence=cadence) for group in groups if group]


def outlook_from(basis: Basis, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
    """The forecasts of a series from ascending origins (slots since the epoch), within its bounds; the law as it is given.

    Nothing after an origin is read for it, neither of the series nor of its peers. Where nothing was observed, prices are
    the on-demand price (0 where unknown) and counts 0, with the reason. Raises `ForecastError` on an answer of the wrong
    shape; last value answers, labelled, where a number is not finite.
    """
    own = series.since(basis.start)
    late = own.late(origins)
    parts: list[tuple[np.ndarray, Outlook]] = []
    for at in [~late, *(np.arange(origins.size) == i for i in np.flatnonzero(late))]:
        if at.any():
            parts.append((at, _outlook(basis, own.as_of(int(origins[at][-1])), origins[at], horizon)))
    if len(parts) == 1:
        return parts[0][1]
    order = np.argsort(np.concatenate([np.flatnonzero(at) for at, _ in parts]))
    reasons = [reason for _, one in parts for reason in one.reasons]
    return Outlook(
        quantiles=np.concatenate([one.quantiles for _, one in parts])[order],
        mean=np.concatenate([one.mean for _, one in parts])[order],
        reasons=tuple(reasons[i] for i in order),
    )


def _outlook(basis: Basis, series: Series, slots: np.ndarray, horizon: int) -> Outlook:
    """The outlook of a series that ends at the last of its origins and knows nothing late."""
    origins = slots - series.first_slot
    seen = np.zeros(slots.size, dtype=bool)
    inside = (origins >= 0) & (origins < len(series))
    seen[inside] = series.newest[origins[inside]] >= 0
    known = series.on_demand_usd if series.variable == "price" and np.isfinite(series.on_demand_usd) else 0.0
    quantiles = np.full((slots.size, horizon, LEVELS.size), known)
    mean = np.full((slots.size, horizon), known)
    reasons = [NOTHING_OBSERVED] * slots.size
    if not seen.any():
        return Outlook(quantiles=quantiles, mean=mean, reasons=tuple(reasons))
    last = int(slots[-1])
    others = tuple(peer.until(last) for peer in basis.peers if peer.key != series.key)
    given = basis.fitted.outlook(Panel(series=(series, *others)), 0, origins[seen], horizon)
    given = _finite(given, series, origins[seen], horizon, basis)
    quantiles[seen], mean[seen] = bounded(given.quantiles, given.mean, series, origins[seen])
    for place, reason in zip(np.flatnonzero(seen), given.reasons, strict=True):
        reasons[place] = reason
    return Outlook(quantiles=quantiles, mean=mean, reasons=tuple(reasons))


def _finite(given: Outlook, series: Series, origins: np.ndarray, horizon: int, basis: Basis) -> Outlook:
    """The outlook if its shape is right, with last value's answer where a number is not finite."""
    shape = (origins.size, horizon)
    if (
        given.quantiles.shape != (*shape, LEVELS.size)
        or given.mean.shape != shape
        or len(given.reasons) != shape[0]
    ):
        raise ForecastError(
            f"{basis.predictor} on {series.key}: quantiles of shape {given.quantiles.shape}, mean {given.mean.shape}, "
            f"{len(given.reasons)} reasons",
            expected=f"{(*shape, LEVELS.size)}, {shape} and {shape[0]}",
        )
    lost = ~(np.isfinite(given.quantiles).all(axis=(1, 2)) & np.isfinite(given.mean).all(axis=1))
    if not lost.any():
        return given
    simpler = LastValue().fit(series.until(basis.at)).outlook(series, origins, horizon)
    return replace(
        given,
        quantiles=np.where(lost[:, None, None], simpler.quantiles, given.quantiles),
        mean=np.where(lost[:, None], simpler.mean, given.mean),
        reasons=tuple(NO_NUMBER if gone else why for gone, why in zip(lost, given.reasons, strict=True)),
    )
