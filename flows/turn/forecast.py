"""Issue forecasts and measure the forecasters: one call per market, which returns values and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from flows.config import Settings
from flows.ledger.jobs import StoredJob
from flows.ledger.records import save_accuracy
from flows.ledger.runs import LIVE, RunRow, save_runs
from flows.turn.context import Turn
from flows.turn.estimate import (
    NO_ESTIMATES,
    Estimates,
    Prepared,
    Wanted,
    estimate_ahead,
    prepare,
    timetable_of,
)
from flows.turn.markets import Followed, read_histories, step_of, turn_histories
from flows.turn.work import Work, panel_mates
from forecasting.accuracy.losses import Windows, window_scores
from forecasting.origins.forecasts import Batch, forecasts_from
from forecasting.predictors import make_predictor
from forecasting.quantiles import Forecast
from optimization.replay.record import record_start
from warehouse.errors import ForecastError
from warehouse.history import ROW_KNOWN_AT, History, Market
from warehouse.issued.records import record_assumptions
from warehouse.issued.vintages import read_vintages, vintage_times, write_forecasts


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketForecasts:
    """What a market's call returns: the forecasts it made, the planner's at each present, and the errors measured there."""

    issued: list[Forecast]
    planned: dict[pd.Timestamp, Forecast]
    accuracy: pd.DataFrame


def forecast_market(
    history: History,
    *,
    settings: Settings,
    batches: Mapping[str, Sequence[Batch]],
    stored: Sequence[Forecast],
    presents: Sequence[pd.Timestamp],
    live: bool = True,
) -> MarketForecasts:
    """Forecast one market with every model at the origins it lacks, and measure all its forecasts (M6.4, M6.5).

    ``presents`` are the slots of one or more turns, the last of them the history's; ``live`` says that the forecasts of the last
    are issued in their own slot: all others are marked as backfilled. Each sees only what was known at its origin, and
    errors are those known at each present. Raises `ForecastError` if the planner has no forecast at a present.
    """
    made = [
        replace(forecast, backfilled=not live or forecast.issued_at < history.slots[-1])
        for forecast in forecasts_of(history, batches, settings=settings)
    ]
    everything = sorted([*made, *stored], key=lambda forecast: forecast.issued_at)
    planned = {f.issued_at: f for f in everything if f.predictor == settings.planner}
    for present in presents:
        if present not in planned:
            raise ForecastError(f"no {settings.planner} forecast of {history.market.key} at {present}")
    windows = Windows(
        presents=tuple(presents),
        origins=settings.measured_origins,
        horizon=settings.horizon,
        timetable=timetable_of(settings),
    )
    measured = [forecast for forecast in everything if forecast.predictor in settings.models]
    errors = window_scores(measured, history, windows)
    return MarketForecasts(
        issued=made,
        planned={present: planned[present] for present in presents},
        accuracy=errors.assign(source=history.source),
    )


def forecasts_of(
    history: History,
    batches: Mapping[str, Sequence[Batch]],
    *,
    settings: Settings,
    horizon: int | None = None,
) -> list[Forecast]:
    """The forecasts of one market that its batches stand for, by model and time; ``horizon`` in the place of the settings'.

    Those of slots before the history's last are marked as backfilled.
    """
    made = [
        forecast
        for model, own in batches.items()
        for batch in own
        for forecast in forecasts_from(history, batch, horizon=horizon or horizon_of(model, settings))
    ]
    return [replace(forecast, backfilled=forecast.issued_at < history.slots[-1]) for forecast in made]


def horizon_of(model: str, settings: Settings) -> int:
    """Slots ahead that a model forecasts: the planner as far as plans look."""
    return settings.planning_horizon if model == settings.planner else settings.horizon


# ---
# The forecast stage of one turn or of many at once: the same forecasts, errors and estimations to the bit (M6.1, M6.4).
#
# Turns that follow the same markets are made together from the histories of the last of them, as far as every earlier turn's
# histories are the beginnings of those; where they are not (a capacity that was not known yet, a row learned late), apart.

#: Slots that each model must have a forecast for.
Origins = dict[str, list[pd.Timestamp]]
#: A market of a source, at whatever time.
Place = tuple[Market, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Errors per market, variable, model and step, and the history and newest planning forecast of each market."""

    accuracy: pd.DataFrame = field(default_factory=pd.DataFrame)
    histories: dict[Followed, History] = field(default_factory=dict)
    forecasts: dict[Followed, Forecast] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A turn, what it is about, its histories, and the origins that lack a forecast."""

    turn: Turn
    work: Work
    histories: dict[Followed, History]
    missing: dict[Followed, Origins]

    def by_place(self) -> dict[Place, Followed]:
        """The followed markets by what they are at whatever time."""
        return {(one.market, one.source): one for one in self.work.markets}


def forecast_turns(
    turns: Sequence[Turn], works: Sequence[Work], *, ahead: Estimates = NO_ESTIMATES
) -> list[Measured]:
    """Issue the forecasts of ascending turns of one warehouse, fill in those that past slots lack, and measure all of them.

    What had to be estimated for them is kept in the same transaction, so it is there next time whenever they are; what was
    estimated ``ahead`` is not estimated again.
    """
    asked = list(_asked(turns, works))
    done: list[Measured] = []
    for group in _groups(asked):
        done += _forecast_group(group, ahead)
    return done


def estimate_turns(turns: Sequence[Turn], works: Sequence[Work], *, before: Estimates) -> Estimates:
    """What `forecast_turns` will have to estimate for slots from the first of ascending turns on, taken from ``before`` or made.

    Forecasts of earlier slots may be in the making, from estimations that are: where they are not, `forecast_turns` sees to it.
    """
    found: dict[Wanted, str] = {}
    for group in _groups(list(_asked(turns, works))):
        missing = {
            one: {model: [slot for slot in slots if slot >= turns[0].at] for model, slots in models.items()}
            for one, models in _missing(group).items()
        }
        last = group[-1]
        found |= estimate_ahead(last.turn, last.histories, missing, {**before, **found})
    return found


def _missing(group: Sequence[_Asked]) -> dict[Followed, Origins]:
    """What any turn of a group lacks, by the last one's markets."""
    at = [asked.by_place() for asked in group]
    return {
        one: _joined(
            [asked.missing[own[one.market, one.source]] for asked, own in zip(group, at, strict=True)]
        )
        for one in group[-1].work.markets
    }


def _asked(turns: Sequence[Turn], works: Sequence[Work]) -> Iterator[_Asked]:
    """What each turn lacks when those before it are done."""
    origins = [
        {followed: origins_of(turn, followed, work.jobs_on(followed)) for followed in work.markets}
        for turn, work in zip(turns, works, strict=True)
    ]
    have = _issued(turns[-1], origins)
    starts = _starts(turns[-1], origins)
    for turn, work, own in zip(turns, works, origins, strict=True):
        histories = turn_histories(turn, {followed: starts[followed.source] for followed in own})
        missing: dict[Followed, Origins] = {}
        for followed, models in own.items():
            known = histories[followed].slots
            first, last = known[0], known[-1]
            missing[followed] = {}
            for model, slots in models.items():
                there = have.setdefault((followed.market.key, followed.source, model), set())
                lacking = [slot for slot in slots if slot not in there and first <= slot <= last]
                missing[followed][model] = lacking
                there.update(lacking)
        yield _Asked(turn=turn, work=work, histories=histories, missing=missing)


def _issued(
    turn: Turn, origins: Sequence[Mapping[Followed, Origins]]
) -> dict[tuple[str, str, str], set[pd.Timestamp]]:
    """When forecasts were issued that any of the turns asks for."""
    slots = [
        slot for own in origins for models in own.values() for wanted in models.values() for slot in wanted
    ]
    if not slots:
        return {}
    return vintage_times(
        turn.store,
        markets=_places(followed for own in origins for followed in own),
        models=dict.fromkeys(model for own in origins for models in own.values() for model in models),
        start=min(slots),
        end=max(slots),
        step=step_of(turn.settings),
    )


def _places(followed: Iterator[Followed]) -> dict[Place, None]:
    return dict.fromkeys((one.market, one.source) for one in followed)


def origins_of(turn: Turn, followed: Followed, jobs: Sequence[StoredJob]) -> Origins:
    """Slots that each model must have a forecast for: those it is measured at; the planner's also in every job's slots."""
    step, settings = step_of(turn.settings), turn.settings
    measured = list(pd.date_range(end=followed.at, periods=settings.measured_origins + 1, freq=step))
    origins = dict.fromkeys(dict.fromkeys([*settings.models, settings.planner]), measured)
    slots = set(measured)
    for job in jobs:
        last = min(job.deadline - job.step, followed.at)
        slots |= set(pd.date_range(job.start, last, freq=step))
    origins[settings.planner] = sorted(slots)
    return origins


def _starts(turn: Turn, origins: Sequence[Mapping[Followed, Origins]]) -> dict[str, pd.Timestamp]:
    """How far back any market of a source is needed, by source: they are estimated together."""
    starts: dict[str, pd.Timestamp] = {}
    for asked in origins:
        for followed, own in asked.items():
            needed = min(timetable_of(turn.settings).start(slots[0]) for slots in own.values())
            starts[followed.source] = min(needed, starts.get(followed.source, needed))
    return starts


def _groups(asked: Sequence[_Asked]) -> Iterator[list[_Asked]]:
    """Consecutive turns whose histories are the beginnings of the last one's, as long as can be."""
    end = len(asked)
    groups: list[list[_Asked]] = []
    while end:
        first = end - 1
        while first and _begins(asked[first - 1], asked[end - 1]):
            first -= 1
        groups.append(list(asked[first:end]))
        end = first
    yield from reversed(groups)


def _begins(earlier: _Asked, later: _Asked) -> bool:
    """Whether two turns follow the same markets, and each history of the one goes on in the other's."""
    short, long = earlier.by_place(), later.by_place()
    return (
        earlier.turn.settings == later.turn.settings
        and set(short) == set(long)
        and all(is_beginning(earlier.histories[short[one]], later.histories[long[one]]) for one in short)
    )


def is_beginning(short: History, long: History) -> bool:
    """Whether ``long`` states the same facts and says of the slots of ``short``, from where both reach on, what it says."""
    facts = (
        "market",
        "step",
        "on_demand_usd",
        "capacity",
        "capacity_stated",
        "real_clock",
        "source",
        "assumptions",
    )
    if any(getattr(short, name) != getattr(long, name) for name in facts):
        return False
    if (short.within is None) != (long.within is None):
        return False
    start = max(short.slots[0], long.slots[0])
    a, b = int(short.slots.searchsorted(start)), int(long.slots.searchsorted(start))
    size = len(short.slots) - a
    if size <= 0 or b + size > len(long.slots):
        return False
    columns = [(short.price, long.price), (short.available, long.available)]
    if short.within is not None and long.within is not None:
        columns.append((short.within, long.within))
    same = all(np.array_equal(one[a:], other[b : b + size], equal_nan=True) for one, other in columns)
    return same and bool(
        short.frame[ROW_KNOWN_AT].array[a:].equals(long.frame[ROW_KNOWN_AT].array[b : b + size])
    )


def _forecast_group(group: Sequence[_Asked], ahead: Estimates) -> list[Measured]:
    """The forecasts and errors of turns whose histories are beginnings of the last one's."""
    last = group[-1]
    turn, markets = last.turn, last.work.markets
    places = [(one.market, one.source) for one in markets]
    at = [asked.by_place() for asked in group]
    prepared = prepare(turn, last.histories, _missing(group), ahead)
    stored = _stored(group)
    calls = [
        {
            "history": last.histories[one],
            "settings": turn.settings,
            "batches": prepared.batches[one],
            "stored": stored.get((one.market.key, one.source), []),
            "presents": [own[place].at for own in at],
            "live": turn.made == LIVE,
        }
        for one, place in zip(markets, places, strict=True)
    ]
    made: list[MarketForecasts] = turn.fan(forecast_market, calls)
    del calls  # what was read for them is not held while all of it is written
    done = dict(zip(places, made, strict=True))
    parts = {place: _by_time(one.accuracy) for place, one in done.items()}
    measured = [_measured(asked, done, parts) for asked in group]
    with turn.store.transaction():
        prepared.save(turn.store)
        for source, own in groupby(_in_order(group, done), key=lambda pair: pair[0]):
            write_forecasts(turn.store, [forecast for _, forecast in own], source=source)
        for one in markets:
            record_assumptions(turn.store, last.histories[one])
        save_accuracy(
            turn.store, [(asked.turn.at, own.accuracy) for asked, own in zip(group, measured, strict=True)]
        )
        save_runs(turn.store, [_run_row(asked) for asked in group])
    return measured


def _joined(missing: Sequence[Origins]) -> Origins:
    """What any of the turns lacks of a market, by model."""
    joined: dict[str, set[pd.Timestamp]] = {}
    for own in missing:
        for model, slots in own.items():
            joined.setdefault(model, set()).update(slots)
    return {model: sorted(slots) for model, slots in joined.items()}


def _in_order(
    group: Sequence[_Asked], done: Mapping[Place, MarketForecasts]
) -> Iterator[tuple[str, Forecast]]:
    """What was made, in the order in which the turns would have made it one by one, each with its source."""
    made = {
        place: {(one.predictor, one.issued_at): one for one in result.issued}
        for place, result in done.items()
    }
    for asked in group:
        for place, followed in asked.by_place().items():
            own = made[place]
            for model, slots in asked.missing[followed].items():
                for slot in slots:
                    yield followed.source, own[model, slot]


def _stored(group: Sequence[_Asked]) -> dict[tuple[str, str], list[Forecast]]:
    """The stored forecasts that are measured, and those of the presents, by market and source."""
    turn, settings = group[-1].turn, group[-1].turn.settings
    presents = [followed.at for asked in group for followed in asked.work.markets]
    found: dict[tuple[str, str], list[Forecast]] = {}
    if not presents:
        return found
    vintages = read_vintages(
        turn.store,
        Forecast,
        markets=_places(iter(group[-1].work.markets)),
        models=dict.fromkeys([*settings.models, settings.planner]),
        start=min(presents) - settings.measured_origins * step_of(settings),
        end=max(presents),
        step=step_of(settings),
    )
    for (key, source, _), own in vintages.items():
        found.setdefault((key, source), []).extend(own)
    return found


def _measured(
    asked: _Asked, done: Mapping[Place, MarketForecasts], parts: Mapping[Place, Mapping[Any, pd.DataFrame]]
) -> Measured:
    """What one of the turns found; ``parts`` are the errors by when they were measured.

    A market without a forecast whose outcome is known by then has no errors: a gap, a young record, or no measured origins.
    """
    tables, newest = [], {}
    for place, followed in asked.by_place().items():
        if followed.at in parts[place]:
            tables.append(parts[place][followed.at])
        newest[followed] = done[place].planned[followed.at]
    accuracy = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
    return Measured(accuracy=accuracy, histories=asked.histories, forecasts=newest)


def _by_time(accuracy: pd.DataFrame) -> dict[Any, pd.DataFrame]:
    """A table of errors by when they were measured."""
    rows = accuracy.groupby("measured_at", sort=False).indices
    errors = accuracy.drop(columns="measured_at")
    return {at: errors.iloc[places] for at, places in rows.items()}


def _run_row(asked: _Asked) -> RunRow:
    made = sum(len(slots) for models in asked.missing.values() for slots in models.values())
    details = {"markets": len(asked.work.markets), "forecasts": made, "left_out": list(asked.work.left_out)}
    turn = asked.turn
    return turn.done("forecast", details)


# ---
# Forecasts asked for by hand.


def ready(
    turn: Turn, origins: Mapping[Followed, Sequence[pd.Timestamp]], models: Sequence[str]
) -> tuple[dict[Followed, History], Prepared]:
    """What forecasts of some markets at ascending origins need, with the other followed markets of their sources beside them.

    Also the histories, long enough for the record of a job from the first of the origins on. Nothing is stored.
    """
    sources = {followed.source for followed in origins}
    together = any(make_predictor(model).pooled for model in models)
    mates = panel_mates(turn, origins) if together else []
    first = {
        source: min(own[0] for one, own in origins.items() if one.source == source) for source in sources
    }
    timetable = timetable_of(turn.settings)
    starts = {one: timetable.start(first[one.source]) for one in (*origins, *mates)}
    starts |= {one: min(starts[one], record_start(own[0])) for one, own in origins.items()}
    histories = read_histories(turn.store, starts, settings=turn.settings)
    missing = {one: {model: list(own) for model in models} for one, own in origins.items()}
    return histories, prepare(turn, histories, missing)
