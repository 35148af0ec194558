"""The one driver: which estimation an origin is forecast from, what it may see, and the forecasts of histories (M6.1, M6.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from forecasting.origins.timetable import VARIABLES, Cadence, Timetable
from forecasting.predictor import FittedPredictor, Outlook, Panel, Predictor, bounded
from forecasting.predictors import DEFAULT, make_predictor
from forecasting.predictors.last_value import LastValue
from forecasting.quantiles import LEVELS, Forecast, Variable
from forecasting.series import Series, largest_so_far, series_of, slot_at
from warehouse.errors import ForecastError
from warehouse.history import History

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


# ---
# Forecasts of histories on the timetable: both variables of a market side by side, for one origin or for many (M6.1, M6.4).

#: The timetable of turns unless the settings say otherwise.
DAILY = Cadence(refit_every=pd.Timedelta(days=1), lookback=pd.Timedelta(days=14))
TIMETABLE = Timetable(price=DAILY, count=DAILY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Ascending ``origins`` of one market that are forecast by one predictor from the same estimations."""

    origins: tuple[pd.Timestamp, ...]
    basis: Mapping[Variable, Basis]


def forecasts_from(history: History, batch: Batch, *, horizon: int) -> list[Forecast]:
    """One forecast of a market per origin of a batch; nothing after an origin is read for it."""
    slots = history.slots
    at = pd.DatetimeIndex(list(batch.origins))
    series = {variable: series_of(history, variable) for variable in VARIABLES}
    first = series["price"].first_slot
    places = np.asarray(slots.searchsorted(at, side="right")) - 1
    numbers = first + places if len(slots) else np.array([slot_at(one, history.step) for one in at])
    told = {
        variable: outlook_from(batch.basis[variable], one, numbers, horizon)
        for variable, one in series.items()
    }
    price, count = told["price"], told["count"]
    out = []
    for i, (origin, place, number) in enumerate(zip(at, places, numbers, strict=True)):
        begun = place >= 0
        issued = slots[place] if begun else history.known_at if not len(slots) else origin
        newest = [_newest(one, batch.basis[variable].start, int(number)) for variable, one in series.items()]
        out.append(
            Forecast(
                market=history.market,
                issued_at=issued,
                step=history.step,
                predictor=batch.basis["price"].predictor,
                # Of nothing observed the newest row is the origin itself: the reasons say that it holds no value.
                newest_row=slots[max(newest)] if max(newest) >= 0 else issued,
                price=price.quantiles[i],
                price_mean=price.mean[i],
                count=count.quantiles[i],
                count_mean=count.mean[i],
                capacity=_capacity(series["count"], history, batch.basis["count"].start, int(number)),
                price_fallback=price.reasons[i],
                count_fallback=count.reasons[i],
            )
        )
    return out


def _newest(series: Series, start: int, slot: int) -> int:
    """Where in a series its newest value stands that is known at a slot and not before ``start``; -1 if there is none."""
    low, high = max(start - series.first_slot, 0), slot - series.first_slot + 1
    known = ~np.isnan(series.values[low : max(high, low)])
    if series.learned.size:
        known &= series.learned[low : max(high, low)] <= slot
    there = np.flatnonzero(known)
    return int(low + there[-1]) if there.size else -1


def _capacity(series: Series, history: History, start: int, slot: int) -> int:
    """The largest count that a forecast at a slot may give."""
    if series.capacity_stated:
        return history.capacity
    known = series.since(start).as_of(slot)
    return int(largest_so_far(known.values)[-1]) if len(known) else 0


def forecast(
    history: History,
    predictor: str | Predictor = DEFAULT,
    *,
    horizon: int = 48,
    timetable: Timetable = TIMETABLE,
) -> Forecast:
    """The forecast that a turn following this market alone issues at the end of ``history``.

    >>> forecast(history, "last_value", horizon=6).median("count")  # doctest: +SKIP
    """
    last = history.slots[-1] if len(history.slots) else history.known_at
    return backtest([history], predictor, origins=[last], horizon=horizon, timetable=timetable)[
        key_of(history)
    ][0]


def backtest(
    histories: Sequence[History],
    predictor: str | Predictor = DEFAULT,
    *,
    origins: Sequence[pd.Timestamp] | Mapping[str, Sequence[pd.Timestamp]],
    horizon: int = 48,
    timetable: Timetable = TIMETABLE,
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[Forecast]]:
    """The forecasts that turns would have issued in past slots, by ``market@source``, ascending.

    ``histories`` are of one source, each market once; a pooled predictor is estimated on all of them. ``origins`` are
    ascending slots for all of them, or by ``market@source`` for some. ``progress`` is told the number of forecasts made.
    """
    model = make_predictor(predictor) if isinstance(predictor, str) else predictor
    wanted = origins if isinstance(origins, Mapping) else {key_of(one): origins for one in histories}
    made: dict[str, list[Forecast]] = {key: [] for key in wanted}
    groups = [list(histories)] if model.pooled else [[one] for one in histories]
    for group in groups:
        cohorts = {variable: _cohort(group, timetable, variable) for variable in VARIABLES}
        needed: dict[tuple[int, int], list[tuple[History, tuple[pd.Timestamp, ...]]]] = {}
        for one in group:
            for at, own in estimations(cohorts, one, wanted.get(key_of(one), ())):
                needed.setdefault(at, []).append((one, own))
        kept: dict[tuple[Variable, int], Basis] = {}
        for fits in sorted(needed):
            for variable, fit in zip(VARIABLES, fits, strict=True):
                if (variable, fit) not in kept:
                    kept = {key: value for key, value in kept.items() if key[0] != variable}
                    kept[variable, fit] = cohorts[variable].basis(model, fit)
            basis = {variable: kept[variable, fit] for variable, fit in zip(VARIABLES, fits, strict=True)}
            for one, own in needed[fits]:
                made[key_of(one)] += forecasts_from(one, Batch(origins=own, basis=basis), horizon=horizon)
                if progress is not None:
                    progress(len(own))
    return {key: sorted(own, key=lambda one: one.issued_at) for key, own in made.items()}


def estimations(
    cohorts: Mapping[Variable, Cohort], history: History, origins: Sequence[pd.Timestamp]
) -> list[tuple[tuple[int, int], tuple[pd.Timestamp, ...]]]:
    """Ascending origins of a market by the slots that its price and its count are estimated at, in that order."""
    if not len(origins):
        return []
    at = pd.DatetimeIndex(list(origins))
    slots = history.slots
    if len(slots):
        first = slot_at(slots[0], history.step)
        numbers = first + np.asarray(slots.searchsorted(at, side="right")) - 1
    else:
        numbers = np.array([slot_at(one, history.step) for one in at])
    price, count = (cohorts[variable].fit_slots(numbers) for variable in VARIABLES)
    found: dict[tuple[int, int], list[pd.Timestamp]] = {}
    for origin, one, other in zip(at, price, count, strict=True):
        found.setdefault((int(one), int(other)), []).append(origin)
    return [(fits, tuple(own)) for fits, own in found.items()]


def _cohort(histories: Sequence[History], timetable: Timetable, variable: Variable) -> Cohort:
    (cohort,) = cohorts_of(
        [series_of(one, variable) for one in histories], timetable.of(variable), pooled=True
    )
    return cohort


def key_of(history: History) -> str:
    """``market@source`` of a history."""
    return f"{history.market.key}@{history.source}"
