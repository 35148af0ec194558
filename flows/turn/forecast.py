"""Issue and score forecasts, for one turn or for many at once, with bit-identical results (M6.1, M6.4, M6.5).

The forecasts of a market are computed in a single call, which returns values and writes nothing. Turns with the same
markets are processed together from the histories of the last turn, if the histories of every
earlier turn are prefixes of those. Otherwise (a capacity that was not known yet, a row learned
late) they are processed separately.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.following import FollowedMarket, step_of
from slackwater.flows.histories import read_all
from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.ledger.stages import LIVE, RunRow
from slackwater.flows.turn.context import Turn, TurnValues
from slackwater.flows.turn.estimates import (
    NO_ESTIMATES,
    Estimates,
    Estimations,
    ForecastInput,
    prepare,
    read_estimations,
    timetable_of,
)
from slackwater.flows.turn.results import Results
from slackwater.flows.turn.work import Work, panel_mates
from slackwater.forecasting.accuracy.losses import Windows, window_scores
from slackwater.forecasting.origins import OriginBatch, both_series, forecasts_from
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.replay.decision import RAISED, record_start
from slackwater.warehouse.errors import ForecastError, why_raised
from slackwater.warehouse.history import ROW_KNOWN_AT, History, Market
from slackwater.warehouse.issued import VintageQuery, read_vintages, vintage_times


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketForecasts:
    """Result of a market's call: issued forecasts, the planner's at each present, and the errors measured there."""

    issued: list[Forecast]
    planned: dict[pd.Timestamp, Forecast]
    accuracy: pd.DataFrame


def forecast_market(history: History, **options: Any) -> MarketForecasts | str:
    """Return the result of `issue_and_measure`, or a message why this market cannot be forecast."""
    try:
        return issue_and_measure(history, **options)
    except RAISED as error:
        return f"market {history.market.key}@{history.source} is left out: {why_raised(error)}"


def issue_and_measure(
    history: History,
    *,
    settings: Settings,
    batches: Mapping[str, Sequence[OriginBatch]],
    stored: Sequence[Forecast],
    presents: Sequence[pd.Timestamp],
    live: bool = True,
) -> MarketForecasts:
    """Forecast one market with every model at its missing origins, and measure all its forecasts (M6.4, M6.5).

    ``presents`` are the slots of the turns, the last of them the last of the history;
    ``live`` means that the forecasts of the last present are issued in their own slot: all others
    are marked as backfilled. Forecasts use only data known at their origin, and errors are those
    known at each present. Raises `ForecastError` if the planner has no forecast at a present.
    """
    result = forecasts_of(history, batches, settings=settings)
    if not live:
        result = [replace(forecast, backfilled=True) for forecast in result]
    everything = sorted([*result, *stored], key=lambda forecast: forecast.issued_at)
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
    if not history.availability_observed:  # there are no observed counts to compare forecasts with
        errors = errors[errors["variable"] != "count"]
    return MarketForecasts(
        issued=result,
        planned={present: planned[present] for present in presents},
        accuracy=errors.assign(source=history.source),
    )


def forecasts_of(
    history: History,
    batches: Mapping[str, Sequence[OriginBatch]],
    *,
    settings: Settings,
    horizon: int | None = None,
) -> list[Forecast]:
    """Return the forecasts of a market by model and time; those issued before its last slot are marked as backfilled."""
    # The planner needs the planning horizon.
    slots = dict.fromkeys(batches, horizon or settings.horizon)
    slots |= {} if horizon else {settings.planner: settings.planning_horizon}
    series = both_series(history)
    return [
        forecast
        for model, model_batches in batches.items()
        for batch in model_batches
        for forecast in forecasts_from(history, batch, horizon=slots[model], series=series, marked=True)
    ]


Origins = dict[str, list[pd.Timestamp]]  # By model, the slots that need a forecast
Place = tuple[Market, str]  # A market and its source, at any time


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredErrors:
    """Errors per market, variable, model and lead time, with the history and newest planning forecast of each market.

    ``planned`` has every forecast of the planner that the decisions and scores of the turn need;
    None if another process issued the forecasts of the turn.
    ``left_out`` are messages on markets that could not be forecast.
    """

    accuracy: pd.DataFrame = field(default_factory=pd.DataFrame)
    histories: dict[FollowedMarket, History] = field(default_factory=dict)
    forecasts: dict[FollowedMarket, Forecast] = field(default_factory=dict)
    planned: PlannedForecasts | None = None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LackingTurn:
    """A turn with its work, its histories, and the origins without a forecast."""

    turn: TurnValues
    work: Work
    histories: dict[FollowedMarket, History]
    missing: dict[FollowedMarket, Origins]

    def by_place(self) -> dict[Place, FollowedMarket]:
        """Return the followed markets by market and source."""
        return {(market.market, market.source): market for market in self.work.markets}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastFacts:
    """Facts for the forecasts of ascending turns whose histories are prefixes of those of the last.

    By market and source: ``stored`` are the forecasts to measure, and ``planned`` those of the
    planner in the slots of the jobs, as far as they are stored.
    """

    turns: tuple[LackingTurn, ...]
    estimations: Estimations
    stored: Mapping[tuple[str, str], Sequence[Forecast]]
    planned: PlannedForecasts


def read_forecast_facts(turn: Turn, group: Sequence[LackingTurn]) -> ForecastFacts:
    """Return the facts for the forecasts of a group of `lacking_groups`; ``turn`` is the last of its turns."""
    placed = [market for lacking in group for market in lacking.work.jobs_in_markets()]
    return ForecastFacts(
        turns=tuple(group),
        estimations=read_estimations(turn, group[-1].histories, missing_origins(group)),
        stored=_stored_forecasts(turn, group),
        planned=read_planned(turn, placed),
    )


def missing_origins(group: Sequence[LackingTurn]) -> dict[FollowedMarket, Origins]:
    """Return the origins that any turn of a group lacks, by the markets of the last turn."""
    found: dict[Place, dict[str, set[pd.Timestamp]]] = {}
    for lacking in group:
        for market, models in lacking.missing.items():
            joined = found.setdefault((market.market, market.source), {})
            for model, slots in models.items():
                joined.setdefault(model, set()).update(slots)
    return {
        market: {model: sorted(slots) for model, slots in found[market.market, market.source].items()}
        for market in group[-1].work.markets
    }


def lacking_groups(turns: Sequence[Turn], works: Sequence[Work]) -> list[list[LackingTurn]]:
    """Return ascending turns with the origins that each lacks, in groups whose histories are prefixes of the last turn's."""
    lacking = list(_lacking_turns(turns, works))
    end = len(lacking)
    groups: list[list[LackingTurn]] = []
    while end:
        first = end - 1
        while first and _begins(lacking[first - 1], lacking[end - 1]):
            first -= 1
        groups.append(lacking[first:end])
        end = first
    return groups[::-1]


def _lacking_turns(turns: Sequence[Turn], works: Sequence[Work]) -> Iterator[LackingTurn]:
    origins = [
        {followed: origins_of(turn, followed, work.jobs_on(followed)) for followed in work.markets}
        for turn, work in zip(turns, works, strict=True)
    ]
    have = _issued_times(turns[-1], origins)
    starts = _starts(turns[-1], origins)
    for turn, work, of_turn in zip(turns, works, origins, strict=True):
        histories = dict(
            zip(of_turn, read_all(turn, [(market, starts[market.source]) for market in of_turn]), strict=True)
        )
        missing: dict[FollowedMarket, Origins] = {}
        for followed, models in of_turn.items():
            known = histories[followed].slots
            first, last = known[0], known[-1]
            missing[followed] = {}
            for model, slots in models.items():
                stored = have.setdefault((followed.market.key, followed.source, model), set())
                lacking = [slot for slot in slots if slot not in stored and first <= slot <= last]
                missing[followed][model] = lacking
                stored.update(lacking)
        yield LackingTurn(turn=turn, work=work, histories=histories, missing=missing)


def _issued_times(
    turn: Turn, origins: Sequence[Mapping[FollowedMarket, Origins]]
) -> dict[tuple[str, str, str], set[pd.Timestamp]]:
    """Return the times of issued forecasts, within the origins of any turn."""
    wanted = [
        (followed, model, slots)
        for by_market in origins
        for followed, models in by_market.items()
        for model, slots in models.items()
    ]
    if not wanted:
        return {}
    query = VintageQuery(
        markets=_places(followed for followed, _, _ in wanted),
        models=dict.fromkeys(model for _, model, _ in wanted),
        start=min(slots[0] for _, _, slots in wanted),
        end=max(slots[-1] for _, _, slots in wanted),
        step=step_of(turn.settings),
    )
    return turn.read(vintage_times, query)


def _places(followed: Iterator[FollowedMarket]) -> dict[Place, None]:
    return dict.fromkeys((market.market, market.source) for market in followed)


def origins_of(turn: TurnValues, followed: FollowedMarket, jobs: Sequence[StoredJob]) -> Origins:
    """Return by model the slots that need a forecast: measured slots, and for the planner the slots of every job."""
    step, settings = step_of(turn.settings), turn.settings
    measured = list(pd.date_range(end=followed.at, periods=settings.measured_origins + 1, freq=step))
    origins = dict.fromkeys(dict.fromkeys([*settings.models, settings.planner]), measured)
    slots = set(measured)
    for job in jobs:
        last = min(job.deadline - job.step, followed.at)
        slots |= set(pd.date_range(job.start, last, freq=step))
    origins[settings.planner] = sorted(slots)
    return origins


def _starts(turn: TurnValues, origins: Sequence[Mapping[FollowedMarket, Origins]]) -> dict[str, pd.Timestamp]:
    """Return by source the earliest slot needed of any market, as the markets of a source are estimated together."""
    starts: dict[str, pd.Timestamp] = {}
    for by_market in origins:
        for followed, by_model in by_market.items():
            needed = min(timetable_of(turn.settings).start(slots[0]) for slots in by_model.values())
            starts[followed.source] = min(needed, starts.get(followed.source, needed))
    return starts


def _begins(earlier: LackingTurn, later: LackingTurn) -> bool:
    """Return whether two turns follow the same markets, and each earlier history is a prefix of the later history."""
    short, long = earlier.by_place(), later.by_place()
    return (
        earlier.turn.settings == later.turn.settings
        and set(short) == set(long)
        and all(
            is_beginning(earlier.histories[short[followed]], later.histories[long[followed]])
            for followed in short
        )
    )


def is_beginning(short: History, long: History) -> bool:
    """Return whether ``long`` has the facts of ``short`` and the same values in its slots, from their common start on."""
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
    same = all(np.array_equal(column[a:], other[b : b + size], equal_nan=True) for column, other in columns)
    return same and bool(
        short.frame[ROW_KNOWN_AT].array[a:].equals(long.frame[ROW_KNOWN_AT].array[b : b + size])
    )


def forecast_group(
    facts: ForecastFacts, ahead: Estimates = NO_ESTIMATES
) -> tuple[Results, list[MeasuredErrors]]:
    """Issue the missing forecasts of a group of turns and measure all; returns the rows to store and the errors of each turn.

    Estimates in ``ahead`` are not computed again. Raises `ForecastError` if no market can be forecast.
    """
    group = facts.turns
    last = group[-1]
    turn, markets = last.turn, last.work.markets
    places = [(market.market, market.source) for market in markets]
    followed_by_turn = [lacking.by_place() for lacking in group]
    prepared = prepare(turn, facts.estimations, ahead)
    calls = [
        {
            "history": last.histories[followed],
            "settings": turn.settings,
            "batches": prepared.batches[followed],
            "stored": facts.stored.get((followed.market.key, followed.source), []),
            "presents": [by_place[place].at for by_place in followed_by_turn],
            "live": turn.made == LIVE,
        }
        for followed, place in zip(markets, places, strict=True)
    ]
    results: list[MarketForecasts | str] = turn.fan(forecast_market, calls)
    done = {
        place: result
        for place, result in zip(places, results, strict=True)
        if isinstance(result, MarketForecasts)
    }
    left_out = tuple(result for result in results if isinstance(result, str))
    if left_out and not done:
        raise ForecastError(left_out[0])
    for text in left_out:
        turn.say(text)
    parts = {place: _by_time(result.accuracy) for place, result in done.items()}
    planned = _with_issued(facts.planned, done, turn.settings.planner)
    measured = [
        replace(_turn_errors(lacking, done, parts), planned=planned, left_out=left_out) for lacking in group
    ]
    rows = Results(
        unreadable=prepared.unreadable,
        estimates=prepared.estimates,
        forecasts=tuple(
            (source, tuple(forecast for _, forecast in pairs))
            for source, pairs in groupby(_in_order(group, done), key=lambda pair: pair[0])
        ),
        assumed=tuple(last.histories[market] for market in markets),
        accuracy=tuple(
            (lacking.turn.at, errors.accuracy) for lacking, errors in zip(group, measured, strict=True)
        ),
        runs=tuple(_run_row(lacking, done, left_out) for lacking in group),
    )
    return rows, measured


def _with_issued(
    planned: PlannedForecasts, done: Mapping[Place, MarketForecasts], planner: str
) -> PlannedForecasts:
    """Return stored forecasts of the planner with those issued now, ascending."""
    found = dict(planned)
    for (market, source), market_forecasts in done.items():
        planned_now = [forecast for forecast in market_forecasts.issued if forecast.predictor == planner]
        stored = found.get((market.key, source), ())
        found[market.key, source] = sorted([*stored, *planned_now], key=lambda forecast: forecast.issued_at)
    return found


def _in_order(
    group: Sequence[LackingTurn], done: Mapping[Place, MarketForecasts]
) -> Iterator[tuple[str, Forecast]]:
    """Yield the new forecasts with their source, in the order in which single turns would issue them."""
    issued = {
        place: {(forecast.predictor, forecast.issued_at): forecast for forecast in result.issued}
        for place, result in done.items()
    }
    for lacking in group:
        for place, followed in lacking.by_place().items():
            forecasts = issued.get(place)
            if forecasts is None:
                continue
            for model, slots in lacking.missing[followed].items():
                for slot in slots:
                    yield followed.source, forecasts[model, slot]


def _stored_forecasts(turn: Turn, group: Sequence[LackingTurn]) -> dict[tuple[str, str], list[Forecast]]:
    """Return the stored forecasts to measure, and those of the presents, by market and source."""
    settings = turn.settings
    presents = [followed.at for lacking in group for followed in lacking.work.markets]
    forecasts: dict[tuple[str, str], list[Forecast]] = {}
    if not presents:
        return forecasts
    query = VintageQuery(
        markets=_places(iter(group[-1].work.markets)),
        models=dict.fromkeys([*settings.models, settings.planner]),
        start=min(presents) - settings.measured_origins * step_of(settings),
        end=max(presents),
        step=step_of(settings),
    )
    for (key, source, _), vintage in turn.read(read_vintages, Forecast, query).items():
        forecasts.setdefault((key, source), []).extend(vintage)
    return forecasts


def _turn_errors(
    lacking: LackingTurn,
    done: Mapping[Place, MarketForecasts],
    parts: Mapping[Place, Mapping[Any, pd.DataFrame]],
) -> MeasuredErrors:
    """Return the errors (``parts``, by time of measurement) and forecasts of a turn; a market without outcomes has none."""
    tables, newest = [], {}
    for place, followed in lacking.by_place().items():
        if place not in done:
            continue
        if followed.at in parts[place]:
            tables.append(parts[place][followed.at])
        newest[followed] = done[place].planned[followed.at]
    accuracy = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
    return MeasuredErrors(accuracy=accuracy, histories=lacking.histories, forecasts=newest)


def _by_time(accuracy: pd.DataFrame) -> dict[Any, pd.DataFrame]:
    rows = accuracy.groupby("measured_at", sort=False).indices
    errors = accuracy.drop(columns="measured_at")
    return {at: errors.iloc[places] for at, places in rows.items()}


def _run_row(lacking: LackingTurn, done: Collection[Place], left_out: Sequence[str]) -> RunRow:
    places = [followed for place, followed in lacking.by_place().items() if place in done]
    result = sum(len(slots) for place in places for slots in lacking.missing[place].values())
    messages = [*lacking.work.left_out, *left_out]
    details = {"markets": len(places), "forecasts": result, "left_out": messages}
    turn = lacking.turn
    return turn.done("forecast", details)


def ready(
    turn: Turn, origins: Mapping[FollowedMarket, Sequence[pd.Timestamp]], models: Sequence[str]
) -> tuple[dict[FollowedMarket, History], ForecastInput]:
    """Return histories and forecast input of some markets at ascending origins.

    For panel forecasters the other followed markets of the same sources are included. The histories
    reach back far enough for the record of a job from the first origin on. Nothing is stored.
    """
    sources = {followed.source for followed in origins}
    together = any(make_predictor(model).pooled for model in models)
    mates = panel_mates(turn, origins) if together else []
    first = {
        source: min(slots[0] for market, slots in origins.items() if market.source == source)
        for source in sources
    }
    timetable = timetable_of(turn.settings)
    starts = {market: timetable.start(first[market.source]) for market in (*origins, *mates)}
    starts |= {market: min(starts[market], record_start(slots[0])) for market, slots in origins.items()}
    histories = dict(zip(starts, read_all(turn, list(starts.items())), strict=True))
    missing = {market: {model: list(slots) for model in models} for market, slots in origins.items()}
    return histories, prepare(turn, read_estimations(turn, histories, missing))


# ---
# Forecasts of the planner that were issued in the slots of jobs (M6.1).

#: Forecasts of the planner by market key and source, ascending.
PlannedForecasts = Mapping[tuple[str, str], Sequence[Forecast]]


def planned_forecasts(
    turn: Turn, jobs: Sequence[tuple[StoredJob, FollowedMarket]], issued: PlannedForecasts | None = None
) -> dict[tuple[str, str], list[Forecast]]:
    """Return by job and market (`FollowedMarket.key`) the forecasts of the planner (M6.1).

    They are those issued in the job's slots, up to the market's time. ``issued`` are forecasts in
    memory, as the forecast stage of the same jobs returns them; None: all are read.
    """
    stored = read_planned(turn, jobs) if issued is None else issued
    return {
        (job.request.name, followed.key): [
            forecast
            for forecast in stored.get((followed.market.key, followed.source), ())
            if forecast.step == job.step and job.start <= forecast.issued_at <= min(job.deadline, followed.at)
        ]
        for job, followed in jobs
    }


def joined_forecasts(planned: Iterable[PlannedForecasts]) -> PlannedForecasts:
    """Return the forecasts of consecutive turns together, ascending, each once."""
    found: dict[tuple[str, str], dict[tuple[pd.Timestamp, pd.Timedelta], Forecast]] = {}
    before: PlannedForecasts | None = None
    for by_time in planned:
        if by_time is before:  # turns whose forecasts were computed together share them
            continue
        before = by_time
        for place, forecasts in by_time.items():
            found.setdefault(place, {}).update(
                ((forecast.issued_at, forecast.step), forecast) for forecast in forecasts
            )
    return {place: [by_time[key] for key in sorted(by_time)] for place, by_time in found.items()}


def read_planned(
    turn: Turn, jobs: Iterable[tuple[StoredJob, FollowedMarket]]
) -> dict[tuple[str, str], list[Forecast]]:
    """Return the stored forecasts of the planner in the slots of some jobs on their markets."""
    by_step: dict[pd.Timedelta, list[tuple[StoredJob, FollowedMarket]]] = {}
    for job, followed in jobs:
        by_step.setdefault(job.step, []).append((job, followed))
    found: dict[tuple[str, str], list[Forecast]] = {}
    for step, pairs in by_step.items():
        query = VintageQuery(
            markets=dict.fromkeys((followed.market, followed.source) for _, followed in pairs),
            models=[turn.settings.planner],
            start=min(job.start for job, _ in pairs),
            end=max(min(job.deadline, followed.at) for job, followed in pairs),
            step=step,
        )
        for (key, source, _), forecasts in turn.read(read_vintages, Forecast, query).items():
            found.setdefault((key, source), []).extend(forecasts)
    return found
