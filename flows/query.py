"""The job and the slot of a query: a stored job by name, or a job file, with its markets at a time (M2.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.following import FollowedMarket, live_for, step_of
from slackwater.flows.histories import MarketReader
from slackwater.flows.ledger.jobs import StoredJob, find_job, stored_jobs
from slackwater.flows.places import (
    PlacedJob,
    as_filed,
    market_of,
    markets_of,
    placed_in,
    propose_markets,
    uncounted_note,
)
from slackwater.flows.show.formats import age, rows_of, utc
from slackwater.optimization.job.markets import fits
from slackwater.optimization.job.request import JobRequest, read_request
from slackwater.warehouse.documents import names_file
from slackwater.warehouse.errors import SlackwaterError, no_observations
from slackwater.warehouse.history import Market
from slackwater.warehouse.listing import list_markets, observed_sources
from slackwater.warehouse.store.connection import Store

if TYPE_CHECKING:
    from slackwater.flows.turn.context import Turn

#: A record that ended longer ago is of the past: jobs without a start begin at its end.
PAST = pd.Timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMoment:
    """A logical time, its decision ``slot``, and whether every market is read at its own end (`Turn.own_end`)."""

    at: pd.Timestamp
    slot: pd.Timestamp
    own_end: bool = False


def newest_turn(store: Store, jobs: Sequence[str] = ()) -> TurnMoment | None:
    """Return the newest turn with decisions, or None; its slot is that of the ``jobs`` (empty: of all)."""
    rows = store.execute(
        "SELECT run, epoch_us(logical_at) FROM runs WHERE stage = 'allocate' AND status = 'done' "
        "ORDER BY logical_at DESC, run DESC LIMIT 1"
    )
    if not rows:
        return None
    ((run, us),) = rows
    slots = store.execute(
        "SELECT epoch_us(slot) FROM decisions WHERE run = $run AND (len($jobs) = 0 OR list_contains($jobs, job)) "
        "GROUP BY slot ORDER BY count(*) DESC, slot DESC LIMIT 1",
        {"run": run, "jobs": list(jobs)},
    )
    at = pd.Timestamp(int(us), unit="us", tz="UTC")
    slot = pd.Timestamp(int(slots[0][0]), unit="us", tz="UTC") if slots else at
    return TurnMoment(at=at, slot=slot, own_end=slot != at)


def observed_markets(store: Store) -> list[dict[str, Any]]:
    """Return the listing of markets; raises `MarketError` on a warehouse without observations."""
    rows = rows_of(list_markets(store))
    if not rows:
        raise no_observations()
    return rows


def usual_moment(
    store: Store,
    settings: Settings,
    requests: Sequence[JobRequest],
    newest: TurnMoment | None,
    *,
    clock: pd.Timestamp,
    folder: bool = False,
) -> TurnMoment:
    """Return the time at which jobs are planned if none is given: a time at which at least one of them is open (ours).

    It is the present if something was observed recently (`live_for`) and since the ``newest`` turn, or if
    there is no turn; else the time of the newest turn, as a simulated market and past data have no newer
    data. If no job is open then, it is the other of the two, else the end of the record. For a ``folder``
    with a stale record the end comes first, as in a turn on the folder; so it does without a turn where the
    record ended more than `PAST` ago. Raises `MarketError` on a warehouse without observations.
    """
    step, rows = step_of(settings), observed_markets(store)
    last = max(pd.Timestamp(row["last_observed"]) for row in rows)
    slots = [clock.floor(step), last.floor(step), *([newest.slot] if newest else [])]
    wanted = [request for request in requests if any(_is_open(request, slot) for slot in slots)] or requests
    ends = {request.name: _record_end(request, rows) for request in wanted}
    seen = max((end for end in ends.values() if end is not None), default=last)
    is_new = clock - seen <= live_for(settings) and (newest is None or seen >= newest.slot + step)
    found = [TurnMoment(at=slots[0], slot=slots[0])]
    if newest is not None:
        found.insert(0 if newest.slot >= slots[0] or not is_new else 1, newest)
    end_slots = ((request, _end_slot(request, rows, step)) for request in wanted)
    votes = Counter(slot for request, slot in end_slots if slot is not None and _is_open(request, slot))
    common = max(votes, key=lambda slot: (votes[slot], slot), default=min(seen, last).floor(step))
    past = TurnMoment(at=last, slot=common, own_end=True)
    is_past = newest is None and clock - seen > PAST
    found.insert(0 if is_past or (folder and not is_new) else len(found), past)
    return next(
        (moment for moment in found if any(_is_open(request, moment.slot) for request in wanted)), found[0]
    )


def fleet_moment(
    store: Store,
    settings: Settings,
    requests: Sequence[JobRequest],
    *,
    given: pd.Timestamp | None,
    clock: pd.Timestamp,
    folder: bool = False,
) -> pd.Timestamp:
    """Return the slot in which all open jobs and new ``requests`` are planned: ``given``, else as `usual_moment`."""
    if given is not None:
        return given.floor(step_of(settings))
    jobs = [*(job.request for job in stored_jobs(store)), *requests]
    return usual_moment(store, settings, jobs, newest_turn(store), clock=clock, folder=folder).slot


def job_moment(
    store: Store,
    settings: Settings,
    request: JobRequest,
    *,
    given: pd.Timestamp | None,
    clock: pd.Timestamp,
    folder: bool = False,
    is_stored: bool = False,
) -> TurnMoment:
    """Return the time at which a job is planned or added.

    It is ``given``, else as in `usual_moment`; for a job that is not stored, now if its markets are
    live. A job that states no start begins then.
    """
    if given is not None:
        return TurnMoment(at=given, slot=given.floor(step_of(settings)))
    if not is_stored:
        slot, seen = clock.floor(step_of(settings)), _record_end(request, observed_markets(store))
        if seen is not None and clock - seen <= live_for(settings) and _is_open(request, slot):
            return TurnMoment(at=slot, slot=slot)
    newest = newest_turn(store, [request.name] if is_stored else [])
    return usual_moment(store, settings, [request], newest, clock=clock, folder=folder)


def start_note(
    known: MarketReader, placed: JobRequest, places: Sequence[FollowedMarket], *, clock: pd.Timestamp | None
) -> str:
    """Return when a job without a start begins, if its market was not observed in the last slot before ``clock``; else ""."""
    seen = newest_of(known, places)
    if clock is None or seen is None or placed.starts != places[0].at:
        return ""
    old = clock - seen
    if old <= step_of(known.settings):
        return ""
    start = f"The job starts at {utc(placed.starts)}"
    if seen.floor(step_of(known.settings)) == placed.starts:
        start += f", the newest observation of its market, {age(old)} ago"
    else:
        start = f"The newest observation of its market is {age(old)} old. {start}"
    return f"{start}; `deadline_in` counts from there. --at TIME starts it at another time."


def newest_of(known: MarketReader, places: Sequence[FollowedMarket]) -> pd.Timestamp | None:
    """Return the newest observation of some markets, None without one."""
    keys = {(place.market.key, place.source) for place in places}
    found = (
        pd.Timestamp(row["last_observed"])
        for row in known.market_rows()
        if (row["market"], row["source"]) in keys
    )
    return max(found, default=None)


def named_moment(
    store: Store,
    settings: Settings,
    job: str,
    *,
    given: pd.Timestamp | None,
    clock: pd.Timestamp,
    folder: bool = False,
) -> TurnMoment:
    """Return when the job of a name or file is planned: ``given``, else `usual_moment`; raises its errors and `JobError`."""
    if given is not None:
        return TurnMoment(at=given, slot=given.floor(step_of(settings)))
    if not observed_sources(store):  # before a name that is unknown for the same reason
        raise no_observations()
    if names_file(job):
        request = read_request(Path(job))
        stored = next((job for job in stored_jobs(store) if _is_same(request, job)), None)
    else:
        stored = find_job(store, job)
        request = stored.request
    return job_moment(
        store,
        settings,
        request if stored is None else stored.request,
        given=None,
        clock=clock,
        folder=folder,
        is_stored=stored is not None,
    )


def _record_end(request: JobRequest, rows: Sequence[Mapping[str, Any]]) -> pd.Timestamp | None:
    """Return the newest observation of any market that a job may use, by the listing; None if there is no such market."""
    return max((pd.Timestamp(row["last_observed"]) for row in rows if _uses(request, row)), default=None)


def _end_slot(
    request: JobRequest, rows: Sequence[Mapping[str, Any]], step: pd.Timedelta
) -> pd.Timestamp | None:
    """Return the last slot of the record of the markets that a job may use, the slot after a record that began within it."""
    used = [row for row in rows if _uses(request, row)]
    if not used:
        return None
    slot = max(pd.Timestamp(row["last_observed"]) for row in used).floor(step)
    return slot if any(pd.Timestamp(row["first_observed"]) <= slot for row in used) else slot + step


def _uses(request: JobRequest, row: Mapping[str, Any]) -> bool:
    """Return whether a job may use the market of a row of the listing; a job without markets may use any."""
    if request.names_no_market:
        return True
    market, source = Market.parse(str(row["market"])), str(row["source"])
    if request.market is not None and request.place.partition("@")[0] == market.key:
        return request.source in (None, source)
    return fits(request, market, source)


def _is_open(request: JobRequest, at: pd.Timestamp) -> bool:
    """Return whether a job runs at a time; a start or deadline that its file omits is no limit."""
    return (request.start is None or request.start <= at) and (
        request.deadline is None or at < request.deadline
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedJob:
    """A job named in a command, with its markets; ``is_stored`` if it is in the warehouse.

    ``is_elsewhere``: the command names another market than that of the stored job. ``proposal``
    explains how the markets were chosen if its file names none, or which are left out.
    """

    job: StoredJob
    markets: tuple[FollowedMarket, ...]
    is_stored: bool
    is_elsewhere: bool = False
    proposal: str = ""

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.job.request.name

    @property
    def at(self) -> pd.Timestamp:
        """The slot to decide."""
        return self.markets[0].at

    @property
    def placed(self) -> PlacedJob:
        """The job and its markets."""
        return self.job, self.markets


def named_job(turn: Turn, job: str, *, market: str | None = None) -> NamedJob:
    """Return the job of a command, by its file or its name, with its markets at the turn's time.

    ``market`` is its only market, or the home of a multi-market job; without it a file that names
    no market gets the `propose_markets` markets. A file with the terms of a stored job is that job. Raises
    `JobError` for an unknown name, and as `markets_of` does.
    """
    if not names_file(job):
        stored = turn.read(find_job, job, known_at=turn.terms_at)
        return _query_of_stored(turn, stored, market)
    request, note_of_choice = read_request(Path(job)), ""
    known = {job.request.name: job for job in turn.jobs()}
    same = known.get(request.name)
    if same is not None and market is None and _is_same(request, same):
        return _query_of_stored(turn, same, None)
    if request.names_no_market and market is None:
        request, note_of_choice = propose_markets(turn, request)
    placed, places = placed_in(turn, request, market=market)
    filed = StoredJob(request=placed, origin="user", step=step_of(turn.settings), created_at=places[0].at)
    return NamedJob(
        job=filed,
        markets=places,
        is_stored=False,
        proposal=note_of_choice or uncounted_note(turn, placed, places),
    )


def _is_same(request: JobRequest, stored: StoredJob) -> bool:
    """Return whether a file states the terms of a stored job of its name."""
    try:
        return request.name == stored.request.name and as_filed(request, stored) == stored.request
    except SlackwaterError:  # a file that does not fit the market or times of the stored job is another job
        return False


def _query_of_stored(turn: Turn, stored: StoredJob, market: str | None) -> NamedJob:
    elsewhere = False
    if market is not None:
        there = market_of(turn, market)
        request = stored.request.model_copy(update={"market": there.market.key, "source": there.source})
        elsewhere = request.place != stored.request.place
        stored = replace(stored, request=request)
    markets = markets_of(turn, stored.request)
    note = uncounted_note(turn, stored.request, markets)
    return NamedJob(job=stored, markets=markets, is_stored=True, is_elsewhere=elsewhere, proposal=note)
