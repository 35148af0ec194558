"""Refit timetable, driver of forecasts live and in backtests, and the units of work of a backtest (M6.1, M6.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from slackwater.forecasting.predictor import FittedPredictor, Outlook, Panel, Predictor, bound_quantiles
from slackwater.forecasting.predictors import DEFAULT, make_predictor
from slackwater.forecasting.predictors.last_value import LastValue
from slackwater.forecasting.quantiles import LEVELS, Forecast, Variable
from slackwater.forecasting.series import Series, largest_so_far, series_of, slot_at
from slackwater.warehouse.errors import ForecastError, SettingsError
from slackwater.warehouse.history import History

# ---
# When a forecaster is estimated, and on how much data: a fixed timetable, the same live and in backtests (M6.4).
#
# A forecast at slot c is a pure function of the data known at c. The parameters are estimated from the data known at the
# last refit time at or before c; refit times are multiples of the cadence since the epoch. Neither estimation nor forecast
# reads further back than the look-back before that refit. A forecast computed later for a past slot, by a turn, a backfill,
# an experiment or the accuracy report, is therefore identical to the forecast issued at that slot.
#
# Slots are numbered since the epoch in units of the step.

VARIABLES: tuple[Variable, ...] = ("price", "count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """Times between refits and length of the past that a refit reads; raises `SettingsError` unless both are positive."""

    refit_every: pd.Timedelta
    lookback: pd.Timedelta

    def __post_init__(self) -> None:
        if not (self.refit_every > pd.Timedelta(0) and self.lookback > pd.Timedelta(0)):
            raise SettingsError(
                f"refit every {self.refit_every}, look back {self.lookback}", expected="positive durations"
            )

    def start(self, origins: np.ndarray, step: pd.Timedelta) -> np.ndarray:
        """Return the earliest slot that a forecast at each origin may read, shape of ``origins``."""
        width, every = step.value, self.refit_every.value
        refits = (
            (origins * width + width - 1) // every * every
        )  # by the end of the slot: a refit time may lie within a slot
        return np.asarray(-((self.lookback.value - refits) // width))

    def fit_slots(self, origins: np.ndarray, observed: np.ndarray, step: pd.Timedelta) -> np.ndarray:
        """Return the slot at which the model used at each origin is estimated, shape of ``origins``.

        ``observed`` are the ascending slots at which any jointly estimated market has a value. A young market (less than one
        cadence of history at the last refit time) is estimated four times as often, and at every origin with less than a
        quarter of a cadence (ours).
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
    """Cadences of both variables."""

    price: Cadence
    count: Cadence

    def of(self, variable: Variable) -> Cadence:
        """Return the cadence of a variable."""
        return self.price if variable == "price" else self.count

    def start(self, origin: pd.Timestamp) -> pd.Timestamp:
        """Return the earliest time that a forecast at ``origin`` may read, of either variable."""
        return min(
            origin.floor(cadence.refit_every) - cadence.lookback for cadence in (self.price, self.count)
        )

    @property
    def lookback(self) -> pd.Timedelta:
        """The longer look-back of the two variables."""
        return max(self.price.lookback, self.count.lookback)


# ---
# The driver: the fit used at each origin, the data visible to it, and the forecasts of histories (M6.1, M6.4).

NOTHING_OBSERVED = "no observed value"  # Fallback reason where no value was observed within the look-back
#: Fallback reason where last value replaces a model whose numbers are not finite.
NO_NUMBER = "the model gave no number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Inputs of the forecasts of a variable: a predictor estimated at slot ``at`` that reads nothing before ``start``.

    ``peers`` are the series visible to the other markets: without values that were learned late.
    """

    predictor: str
    at: int
    start: int
    fitted: FittedPredictor
    peers: tuple[Series, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Series of a variable on which a predictor is estimated together (or a single series), with their cadence.

    Estimates and forecasts depend only on the part of the series from `Cadence.start` on, and not on their order.
    """

    series: tuple[Series, ...]
    cadence: Cadence

    @cached_property
    def ordered(self) -> tuple[Series, ...]:
        """The series sorted by market and source."""
        return tuple(
            sorted(
                self.series, key=lambda series: (series.market.key if series.market else "", series.source)
            )
        )

    @cached_property
    def observed(self) -> np.ndarray:
        """Slots at which any of the series has a value, ascending."""
        slots = [series.first_slot + np.flatnonzero(~np.isnan(series.values)) for series in self.series]
        return np.unique(np.concatenate(slots))

    def fit_slots(self, origins: np.ndarray) -> np.ndarray:
        """Return the slot at which the model used at each origin (slot since the epoch) is estimated."""
        return self.cadence.fit_slots(origins, self.observed, self.series[0].step)

    def start(self, at: int) -> int:
        """Return the earliest slot read by the fit at a slot and by the forecasts from it."""
        return int(self.cadence.start(np.array([at]), self.series[0].step)[0])

    def estimate(self, predictor: Predictor, at: int) -> FittedPredictor:
        """Estimate on the data of every series known at slot ``at``, without series that had not begun."""
        start = self.start(at)
        known = [series.since(start).as_of(at) for series in self.ordered]
        begun = tuple(series for series in known if len(series)) or tuple(known[:1])
        return predictor.fit(Panel(series=begun))

    def basis(self, predictor: Predictor, at: int) -> Basis:
        """Return the inputs of forecasts from the fit at slot ``at``."""
        return Basis(
            predictor=predictor.name,
            at=at,
            start=self.start(at),
            fitted=self.estimate(predictor, at),
            peers=self.peers(at) if predictor.pooled else (),
        )

    def peers(self, at: int) -> tuple[Series, ...]:
        """Return the series visible to the other markets when they are forecast from the fit at slot ``at``."""
        start = self.start(at)
        return tuple(series.since(start).punctual() for series in self.ordered)


def cohorts_of(series: Sequence[Series], cadence: Cadence, *, pooled: bool) -> list[Cohort]:
    """Return a single cohort of all series (of the same source and variable) if ``pooled``, else a cohort per series."""
    groups = [tuple(series)] if pooled else [(market,) for market in series]
    return [Cohort(series=group, cadence=cadence) for group in groups if group]


def outlook_from(basis: Basis, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
    """Forecast a series from ascending origins (slots since the epoch), within its bounds; drops the `Outlook.distribution`.

    No slot after an origin is read for it, neither of the series nor of its peers. Where nothing was observed, prices are
    the on-demand price (0 if unknown) and counts 0, with the reason. Raises `ForecastError` if the predictor returns a
    wrong shape; where a number is not finite, last value replaces the forecast, with a reason.
    """
    recent = series.since(basis.start)
    late = recent.late(origins)
    parts: list[tuple[np.ndarray, Outlook]] = []
    for at in [~late, *(np.arange(origins.size) == i for i in np.flatnonzero(late))]:
        if at.any():
            parts.append((at, _outlook(basis, recent.as_of(int(origins[at][-1])), origins[at], horizon)))
    if len(parts) == 1:
        return parts[0][1]
    order = np.argsort(np.concatenate([np.flatnonzero(at) for at, _ in parts]))
    reasons = [reason for _, outlook in parts for reason in outlook.reasons]
    return Outlook(
        quantiles=np.concatenate([outlook.quantiles for _, outlook in parts])[order],
        mean=np.concatenate([outlook.mean for _, outlook in parts])[order],
        reasons=tuple(reasons[i] for i in order),
    )


def _outlook(basis: Basis, series: Series, slots: np.ndarray, horizon: int) -> Outlook:
    """Forecast a series that ends at the last of its origins and contains no late rows."""
    origins = slots - series.first_slot
    seen = np.zeros(slots.size, dtype=bool)
    inside = (origins >= 0) & (origins < len(series))
    seen[inside] = series.newest[origins[inside]] >= 0
    filler = series.on_demand_usd if series.variable == "price" and np.isfinite(series.on_demand_usd) else 0.0
    quantiles = np.full((slots.size, horizon, LEVELS.size), filler)
    mean = np.full((slots.size, horizon), filler)
    reasons = [NOTHING_OBSERVED] * slots.size
    if not seen.any():
        return Outlook(quantiles=quantiles, mean=mean, reasons=tuple(reasons))
    last = int(slots[-1])
    others = tuple(peer.until(last) for peer in basis.peers if peer.key != series.key)
    outlook = basis.fitted.outlook(Panel(series=(series, *others)), 0, origins[seen], horizon)
    outlook = _finite(outlook, series, origins[seen], horizon, basis)
    quantiles[seen], mean[seen] = bound_quantiles(outlook.quantiles, outlook.mean, series, origins[seen])
    for place, reason in zip(np.flatnonzero(seen), outlook.reasons, strict=True):
        reasons[place] = reason
    return Outlook(quantiles=quantiles, mean=mean, reasons=tuple(reasons))


def _finite(outlook: Outlook, series: Series, origins: np.ndarray, horizon: int, basis: Basis) -> Outlook:
    """Check the shape of an outlook and replace forecasts that are not finite by last value."""
    shape = (origins.size, horizon)
    if (
        outlook.quantiles.shape != (*shape, LEVELS.size)
        or outlook.mean.shape != shape
        or len(outlook.reasons) != shape[0]
    ):
        raise ForecastError(
            f"{basis.predictor} on {series.key}: quantiles of shape {outlook.quantiles.shape}, mean {outlook.mean.shape}, "
            f"{len(outlook.reasons)} reasons",
            expected=f"{(*shape, LEVELS.size)}, {shape} and {shape[0]}",
        )
    not_finite = ~(np.isfinite(outlook.quantiles).all(axis=(1, 2)) & np.isfinite(outlook.mean).all(axis=1))
    if not not_finite.any():
        return outlook
    simpler = LastValue().fit(series.until(basis.at)).outlook(series, origins, horizon)
    return replace(
        outlook,
        quantiles=np.where(not_finite[:, None, None], simpler.quantiles, outlook.quantiles),
        mean=np.where(not_finite[:, None], simpler.mean, outlook.mean),
        reasons=tuple(
            NO_NUMBER if replaced else why for replaced, why in zip(not_finite, outlook.reasons, strict=True)
        ),
    )


# ---
# Forecasts of histories on the timetable: both variables of a market, for any number of origins (M6.1, M6.4).

#: Default timetable of turns.
DAILY = Cadence(refit_every=pd.Timedelta(days=1), lookback=pd.Timedelta(days=14))
TIMETABLE = Timetable(price=DAILY, count=DAILY)


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginBatch:
    """Ascending ``origins`` of a market that a predictor forecasts from the same fits."""

    origins: tuple[pd.Timestamp, ...]
    basis: Mapping[Variable, Basis]


def both_series(history: History) -> dict[Variable, Series]:
    """Return the series of both variables of a market."""
    return {variable: series_of(history, variable) for variable in VARIABLES}


def forecasts_from(
    history: History,
    batch: OriginBatch,
    *,
    horizon: int,
    series: Mapping[Variable, Series] | None = None,
    marked: bool = False,
) -> list[Forecast]:
    """Return a forecast of a market per origin of a batch; no slot after an origin is read for it.

    ``series`` are `both_series` of the history (None: computed). With ``marked`` the forecasts issued
    before its last slot are marked as backfilled.
    """
    slots = history.slots
    at = pd.DatetimeIndex(list(batch.origins))
    series = both_series(history) if series is None else series
    places, slot_numbers = _places_of(history, at)
    outlooks = {
        variable: outlook_from(batch.basis[variable], own, slot_numbers, horizon)
        for variable, own in series.items()
    }
    price, count = outlooks["price"], outlooks["count"]
    out = []
    for i, (origin, place, number) in enumerate(zip(at, places, slot_numbers, strict=True)):
        begun = place >= 0
        issued = slots[place] if begun else history.known_at if not len(slots) else origin
        newest = [_newest(own, batch.basis[variable].start, int(number)) for variable, own in series.items()]
        out.append(
            Forecast(
                market=history.market,
                issued_at=issued,
                step=history.step,
                predictor=batch.basis["price"].predictor,
                # Without observations the newest row is the origin itself; the reasons show that it holds no value.
                newest_row=slots[max(newest)] if max(newest) >= 0 else issued,
                price=price.quantiles[i],
                price_mean=price.mean[i],
                count=count.quantiles[i],
                count_mean=count.mean[i],
                capacity=_capacity(series["count"], history, batch.basis["count"].start, int(number)),
                price_fallback=price.reasons[i],
                count_fallback=count.reasons[i],
                backfilled=marked and bool(issued < slots[-1]),
            )
        )
    return out


def _places_of(history: History, origins: pd.DatetimeIndex) -> tuple[np.ndarray, np.ndarray]:
    """Return the last slot that has begun at each origin: its index in the history (-1: none), and its number since the epoch."""
    places = np.asarray(history.slots.searchsorted(origins, side="right")) - 1
    if len(history.slots):
        return places, slot_at(history.slots[0], history.step) + places
    return places, np.array([slot_at(origin, history.step) for origin in origins])


def _newest(series: Series, start: int, slot: int) -> int:
    """Return the index of the newest value known at a slot and not before ``start``; -1 if there is none."""
    low, high = max(start - series.first_slot, 0), slot - series.first_slot + 1
    observed = ~np.isnan(series.values[low : max(high, low)])
    if series.learned.size:
        observed &= series.learned[low : max(high, low)] <= slot
    indices = np.flatnonzero(observed)
    return int(low + indices[-1]) if indices.size else -1


def _capacity(series: Series, history: History, start: int, slot: int) -> int:
    """Return the largest count that a forecast at a slot may contain."""
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
    """Return the forecast that a turn following only this market issues at the end of ``history``."""
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
    """Return the forecasts that turns would have issued in past slots, by ``market@source``, ascending.

    ``histories`` are of a single source, each market once; a pooled predictor is estimated on all of them. ``origins`` are
    ascending slots, either common to all histories or by ``market@source`` for some of them. ``progress`` is called with
    the number of forecasts of each completed batch.
    """
    model = make_predictor(predictor) if isinstance(predictor, str) else predictor
    wanted = origins if isinstance(origins, Mapping) else {key_of(history): origins for history in histories}
    result: dict[str, list[Forecast]] = {key: [] for key in wanted}
    groups = [list(histories)] if model.pooled else [[history] for history in histories]
    for group in groups:
        cohorts = {
            variable: Cohort(
                series=tuple(series_of(history, variable) for history in group),
                cadence=timetable.of(variable),
            )
            for variable in VARIABLES
        }
        needed: dict[tuple[int, int], list[tuple[History, tuple[pd.Timestamp, ...]]]] = {}
        for market in group:
            for at, own in estimations(cohorts, market, wanted.get(key_of(market), ())):
                needed.setdefault(at, []).append((market, own))
        kept: dict[tuple[Variable, int], Basis] = {}
        for fits in sorted(needed):
            for variable, fit in zip(VARIABLES, fits, strict=True):
                if (variable, fit) not in kept:
                    kept = {key: value for key, value in kept.items() if key[0] != variable}
                    kept[variable, fit] = cohorts[variable].basis(model, fit)
            basis = {variable: kept[variable, fit] for variable, fit in zip(VARIABLES, fits, strict=True)}
            for market, own in needed[fits]:
                result[key_of(market)] += forecasts_from(
                    market, OriginBatch(origins=own, basis=basis), horizon=horizon
                )
                if progress is not None:
                    progress(len(own))
    return {key: sorted(own, key=lambda market: market.issued_at) for key, own in result.items()}


def estimations(
    cohorts: Mapping[Variable, Cohort], history: History, origins: Sequence[pd.Timestamp]
) -> list[tuple[tuple[int, int], tuple[pd.Timestamp, ...]]]:
    """Group ascending origins of a market by the fit slots of its price and its count, in that order."""
    if not len(origins):
        return []
    at = pd.DatetimeIndex(list(origins))
    _, numbers = _places_of(history, at)
    price, count = (cohorts[variable].fit_slots(numbers) for variable in VARIABLES)
    by_fit: dict[tuple[int, int], list[pd.Timestamp]] = {}
    for origin, price_fit, count_fit in zip(at, price, count, strict=True):
        by_fit.setdefault((int(price_fit), int(count_fit)), []).append(origin)
    return [(fits, tuple(own)) for fits, own in by_fit.items()]


def key_of(history: History) -> str:
    """Return ``market@source`` of a history."""
    return f"{history.market.key}@{history.source}"


# ---
# A backtest of many series, divided into independent units of work (M6.4, M6.5).
#
# A `Rolling` holds everything that a backtest depends on, `units_of` divides it into units (panel, predictor, fit slot), and
# `forecast_blocks` computes the forecasts of a unit with the driver and timetable of a turn. A unit is a pure function of
# the data up to its last origin, so units may run in any order, in any process, at any time, and be cached.


def second_half(series: Series, since: pd.Timestamp | None = None) -> np.ndarray:
    """Return the default origins of a series: ascending indices of its later half without the last slot, not before ``since``.

    Slots without an observed value at or before them are left out. An empty series has no origins.
    """
    n = len(series)
    first = max(n // 2 - 1, 0)
    if since is not None:
        slot = slot_at(since, series.step)
        first = max(first, slot - series.first_slot + (since > series.time(slot - series.first_slot)))
    origins = np.arange(first, max(n - 1, first))
    return origins[series.newest[origins] >= 0] if n else origins[:0]


@dataclass(frozen=True, kw_only=True)
class Rolling:
    """Backtest: ``panels``, each of a single source and variable, ``origins`` per series of each panel, ``predictors`` by name.

    Origins are ascending indices into their series. Raises `SettingsError` for a horizon below 1, or if the origins do not
    match the panels.
    """

    panels: tuple[Panel, ...]
    origins: tuple[tuple[np.ndarray, ...], ...]
    predictors: Mapping[str, Predictor]
    timetable: Timetable
    horizon: int = 12

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise SettingsError(f"horizon {self.horizon}", expected="at least one step")
        if [len(panel) for panel in self.panels] != [len(origins) for origins in self.origins]:
            raise SettingsError("origins that do not match the panels", expected="one array per series")

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the predictors."""
        return tuple(self.predictors)

    def variable(self, panel: int) -> Variable:
        """Return the variable of a panel."""
        return self.panels[panel].variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A fit and all forecasts from it; ``origins``: (index in the panel, ascending origins) per series."""

    panel: int
    model: str
    fit_slot: int
    origins: tuple[tuple[int, np.ndarray], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Forecasts of a model for a series; `Outlook` describes the arrays.

    ``origins`` (m,) are indices into the series; all numbers are finite, within their bounds and integers for counts (M6.3).
    """

    model: str
    panel: int
    which: int
    origins: np.ndarray
    outlook: Outlook


_PARCELS = 16  # Number of interleaved groups into which the units of a panel are dealt


def units_of(rolling: Rolling) -> list[Unit]:
    """Return all units, panel by panel; units of a panel are interleaved so that contiguous parts have similar cost."""
    units: list[Unit] = []
    for place in range(len(rolling.panels)):
        units_here = [unit for model in rolling.predictors for unit in _units(rolling, place, model)]
        units += [units_here[i] for first in range(_PARCELS) for i in range(first, len(units_here), _PARCELS)]
    return units


def _units(rolling: Rolling, place: int, model: str) -> list[Unit]:
    panel, cadence = rolling.panels[place], rolling.timetable.of(rolling.variable(place))
    groups: dict[int, list[tuple[int, np.ndarray]]] = {}
    for cohort in cohorts_of(panel.series, cadence, pooled=rolling.predictors[model].pooled):
        for series in cohort.series:
            which = panel.places[series.key]
            origins = rolling.origins[place][which]
            if origins.size:
                slots = cohort.fit_slots(series.first_slot + origins)
                for slot in np.unique(slots):
                    groups.setdefault(int(slot), []).append((which, origins[slots == slot]))
    return [
        Unit(panel=place, model=model, fit_slot=slot, origins=tuple(groups[slot])) for slot in sorted(groups)
    ]


def series_read_by(unit: Unit, rolling: Rolling) -> tuple[Series, ...]:
    """Return the series that a unit depends on, up to `last_slot`; only pooled predictors read the other markets."""
    panel = rolling.panels[unit.panel]
    if rolling.predictors[unit.model].pooled:
        return panel.series
    return tuple(panel.series[which] for which, _ in unit.origins)


def last_slot(unit: Unit, rolling: Rolling) -> int:
    """Return the last slot (since the epoch) that any forecast of a unit may read."""
    series = rolling.panels[unit.panel].series
    return max([unit.fit_slot, *(series[which].first_slot + int(at[-1]) for which, at in unit.origins)])


def forecast_blocks(unit: Unit, rolling: Rolling) -> Iterator[Block]:
    """Estimate and forecast from every origin of a unit; yield a block per series, in order, computed lazily."""
    predictor, panel = rolling.predictors[unit.model], rolling.panels[unit.panel]
    cadence = rolling.timetable.of(rolling.variable(unit.panel))
    together = (
        Cohort(series=panel.series, cadence=cadence).basis(predictor, unit.fit_slot)
        if predictor.pooled
        else None
    )
    for which, origins in unit.origins:
        series = panel.series[which]
        basis = together or Cohort(series=(series,), cadence=cadence).basis(predictor, unit.fit_slot)
        outlook = outlook_from(basis, series, series.first_slot + origins, rolling.horizon)
        yield Block(model=unit.model, panel=unit.panel, which=which, origins=origins, outlook=outlook)
