"""Forecasts of histories on the timetable: both variables of a market side by side, for one origin or for many (M6.1, M6.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecasting.origins.cohort import Basis, Cohort, cohorts_of, outlook_from
from forecasting.origins.timetable import VARIABLES, Cadence, Timetable
from forecasting.predictor import Predictor
from forecasting.predictors import DEFAULT, make_predictor
from forecasting.quantiles import Forecast, Variable
from forecasting.series import Series, largest_so_far, series_of, slot_at
from warehouse.history import History

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
