"""Decisions of a turn for one job or for all open jobs at a time, without storing them (M2.4, M3.7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.ledger.decisions import stored_decisions
from slackwater.flows.ledger.endings import Ending, ending_of
from slackwater.flows.ledger.jobs import StoredJob, find_job, stored_jobs
from slackwater.flows.ledger.open_job import OpenJob
from slackwater.flows.ledger.reports import Report, counting
from slackwater.flows.show.formats import listed, plural, rows_of, utc
from slackwater.flows.turn.context import Turn
from slackwater.flows.turn.decide import Decided, decide_together, effort_of, undecided
from slackwater.flows.turn.following import Followed, live_for, step_of
from slackwater.flows.turn.opening import (
    JobLedger,
    PlacedJob,
    forecasts_in_force,
    open_jobs,
    opened,
    read_ledger,
)
from slackwater.flows.turn.places import as_filed, market_of, markets_of, placed_in, proposed
from slackwater.flows.turn.pool import policies_named, read_pool
from slackwater.flows.turn.results import Row
from slackwater.flows.turn.work import sorted_jobs
from slackwater.optimization.fleet.competition import connected
from slackwater.optimization.job.request import JobRequest, read_request, run_on
from slackwater.optimization.moving.terms import fits
from slackwater.optimization.replay.decision import RAISED
from slackwater.optimization.window.plan import Allocation
from slackwater.warehouse.errors import JobError, MarketError, PolicyError, SlackwaterError
from slackwater.warehouse.files import names_file
from slackwater.warehouse.history import Market
from slackwater.warehouse.observations import list_markets
from slackwater.warehouse.store.connection import Store

# ---
# The slot to plan if no time is given.


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMoment:
    """A logical time, its decision ``slot``, and whether every market is read at its own end (`Turn.own_end`)."""

    at: pd.Timestamp
    slot: pd.Timestamp
    own_end: bool = False


def newest_turn(store: Store, jobs: Sequence[str] = ()) -> TurnMoment | None:
    """Return the newest turn with decisions, or None; its slot is that of the named ``jobs`` (empty: all jobs).

    A turn that reads each market at its own end decides slots before its logical time.
    """
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
        raise MarketError(
            "the warehouse has no observations", remedy="`slackwater run` or `slackwater ingest` brings some"
        )
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

    It is the present if something was observed recently (`live_for`) and since the ``newest`` turn,
    or if there is no turn; else the time of the newest turn, as a simulated market and past data
    have no newer data. If no job is open then, it is the other of the two, else the end of the
    record. For a ``folder`` with a stale record the end comes first, as in a turn on the folder.
    Raises `MarketError` on a warehouse without observations.
    """
    step, rows = step_of(settings), observed_markets(store)
    last = max(pd.Timestamp(row["last_observed"]) for row in rows)
    slots = [clock.floor(step), last.floor(step), *([newest.slot] if newest else [])]
    wanted = [one for one in requests if any(_is_open(one, slot) for slot in slots)] or requests
    ends = {one.name: _record_end(one, rows) for one in wanted}
    seen = max((end for end in ends.values() if end is not None), default=last)
    is_new = clock - seen <= live_for(settings) and (newest is None or seen >= newest.slot + step)
    found = [TurnMoment(at=slots[0], slot=slots[0])]
    if newest is not None:
        found.insert(0 if newest.slot >= slots[0] or not is_new else 1, newest)
    votes = Counter(
        end.floor(step)
        for one in wanted
        if (end := ends[one.name]) is not None and _is_open(one, end.floor(step))
    )
    common = max(votes, key=lambda slot: (votes[slot], slot), default=min(seen, last).floor(step))
    past = TurnMoment(at=last, slot=common, own_end=True)
    found.insert(0 if folder and not is_new else len(found), past)
    return next((one for one in found if any(_is_open(job, one.slot) for job in wanted)), found[0])


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


def named_moment(
    store: Store,
    settings: Settings,
    job: str,
    *,
    given: pd.Timestamp | None,
    clock: pd.Timestamp,
    folder: bool = False,
) -> TurnMoment:
    """Return the time at which the job of a name or a file is planned: ``given``, else as `usual_moment`.

    Raises `JobError` for an unknown name or an invalid file.
    """
    if given is not None:
        return TurnMoment(at=given, slot=given.floor(step_of(settings)))
    observed_markets(store)
    if names_file(job):
        request = read_request(Path(job))
        known = (one for one in stored_jobs(store) if one.request.name == request.name)
        stored = next((one for one in known if _is_same(request, one)), None)
    else:
        stored = find_job(store, job)
        request = stored.request
    newest = newest_turn(store, () if stored is None else [request.name])
    return usual_moment(
        store, settings, [stored.request if stored else request], newest, clock=clock, folder=folder
    )


def _record_end(request: JobRequest, rows: Sequence[Mapping[str, Any]]) -> pd.Timestamp | None:
    """Return the newest observation of any market that a job may use, by the listing; None if there is no such market."""
    return max((pd.Timestamp(row["last_observed"]) for row in rows if _uses(request, row)), default=None)


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


# ---
# A job by its name or its file.


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedJob:
    """A job named in a command, with its markets; ``is_stored`` if it is in the warehouse.

    ``is_elsewhere``: the command names another market than that of the stored job. ``proposal``
    explains how the markets were chosen if its file names none.
    """

    job: StoredJob
    markets: tuple[Followed, ...]
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


def asked_job(turn: Turn, job: str, *, market: str | None = None) -> AskedJob:
    """Return the job of a command, by its file or its name, with its markets at the turn's time.

    ``market`` is its only market, or the home of a multi-market job; without it a file that names
    no market gets the `proposed` markets. A file with the terms of a stored job is that job. Raises
    `JobError` for an unknown name, and as `markets_of` does.
    """
    if not names_file(job):
        stored = find_job(turn.store, job, known_at=turn.terms_at)
        return _asked(turn, stored, market, is_stored=True)
    request, told = read_request(Path(job)), ""
    known = {one.request.name: one for one in stored_jobs(turn.store, known_at=turn.terms_at)}
    same = known.get(request.name)
    if same is not None and market is None and _is_same(request, same):
        return _asked(turn, same, None, is_stored=True)
    if request.names_no_market and market is None:
        request, told = proposed(turn, request)
    placed, places = placed_in(turn, request, market=market)
    filed = StoredJob(request=placed, origin="user", step=step_of(turn.settings), created_at=places[0].at)
    return AskedJob(job=filed, markets=places, is_stored=False, proposal=told)


def _is_same(request: JobRequest, stored: StoredJob) -> bool:
    try:
        return as_filed(request, stored) == stored.request
    except SlackwaterError:  # a file that does not fit the market or times of the stored job is another job
        return False


def _asked(turn: Turn, stored: StoredJob, market: str | None, *, is_stored: bool) -> AskedJob:
    elsewhere = False
    if market is not None:
        there = market_of(turn, market)
        request = stored.request.model_copy(update={"market": there.market.key, "source": there.source})
        elsewhere = request.place != stored.request.place
        stored = replace(stored, request=request)
    return AskedJob(
        job=stored, markets=markets_of(turn, stored.request), is_stored=is_stored, is_elsewhere=elsewhere
    )


def opened_to_decide(turn: Turn, asked: AskedJob) -> OpenJob:
    """Return the state of a job with the forecasts for its decision; raises as `require_running` and `opened` do."""
    require_running(turn, asked)
    forecasts, by = forecasts_in_force(turn, [asked.placed]), read_pool(turn).deciders([turn.at])[0]
    return opened(turn, asked.placed, forecasts=forecasts, by=by)


def require_running(turn: Turn, asked: AskedJob) -> None:
    """Raise `JobError`, with the outcome of an ended job, if it has not begun or has ended at its markets' time."""
    job, name, at = asked.job, asked.name, asked.at
    if at < job.start:
        raise JobError(
            f"job {name!r} begins at {utc(job.start)}; nothing is to run at {utc(at)}",
            expected=f"a time from {utc(job.start)} to {utc(job.deadline)}",
            remedy=f"plan it then, or give --at {job.start:%Y-%m-%dT%H:%MZ}",
        )
    if job.deadline <= at:
        raise JobError(
            f"job {name!r} ended at its deadline, {utc(job.deadline)}{_how_it_ended(turn, asked)}",
            expected="a job whose deadline is to come" if asked.is_stored else "a deadline to come",
            remedy=f"`slackwater job show {name}` shows its decisions and outcome; --at TIME plans an earlier slot"
            if asked.is_stored
            else "give the file another deadline, or an earlier time with --at",
        )


def _how_it_ended(turn: Turn, asked: AskedJob) -> str:
    """Return the outcome of a stored job by its reports, else by its decisions; "" if its market cannot be read."""
    if not asked.is_stored:
        return ""
    job, ledger = asked.job, read_ledger(turn.store, [asked.name])
    ending = ending_of(job, ledger.decisions[asked.name], counting(ledger.reports[asked.name]))
    if not ending.measured:
        try:
            there = tuple(replace(one, at=min(one.at, job.deadline)) for one in asked.markets)
            running = opened(turn, (job, there), ledger=ledger)
        except RAISED:
            return ""
        progress = running.live.progress()
        share = max(0.0, progress.done / running.run.workload)
        state: Literal["finished", "missed"] = "finished" if share >= 1.0 - 1e-9 else "missed"
        ending = Ending(state=state, share=share, measured=False)
    return f": {ending.words()}"


# ---
# Joint decisions of open jobs; decisions already issued for the slot are fixed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Anew:
    """A job that is decided again even if a decision was issued, by the policy named ``by``.

    If ``by`` is None, the policy of a turn decides.
    """

    job: str
    by: str | None = None


def decide_open(
    turn: Turn, jobs: Sequence[PlacedJob], ledger: JobLedger, anew: Anew | None = None
) -> tuple[dict[str, Row], dict[str, str]]:
    """Return the decision of each running job by name, and for each job without a decision the reason as text (M3.7).

    Decisions issued for the slot are fixed, except for the job ``anew``, which gets the spot that
    the others leave. A job whose work is done is in neither result.
    """
    issued: dict[str, Row] = {}
    lacking: list[PlacedJob] = []
    for job, markets in jobs:
        name = job.request.name
        row = _issued(ledger, name, markets[0].at)
        if row is None or (anew is not None and anew.job == name):
            lacking.append((job, markets))
        else:
            issued[name] = row
    if not lacking:
        return issued, {}
    forecasts, by = forecasts_in_force(turn, lacking), read_pool(turn).deciders([turn.at])[0]
    why = dict[str, str]()
    running: list[tuple[int, OpenJob]] = []
    for placed in lacking:
        job, is_anew = placed[0], anew is not None and anew.job == placed[0].request.name
        (found,) = open_jobs(turn, [placed], ledger=ledger, forecasts=forecasts, by=by)
        if isinstance(found, Exception):
            if is_anew:
                raise found
            why[job.request.name] = undecided(job, found)
            continue
        if anew is not None and is_anew and anew.by is not None:
            policies = policies_named(turn, job.request, [anew.by])
            if len(policies) > 1:
                raise PolicyError(
                    f"{len(policies)} policies for one decision", expected="the name of a policy"
                )
            found = replace(found, policy=policies[0], because="asked for")
        running.append((0, found))
    made = decide_together(running, [list(issued.values())], effort_of(turn.settings), turn.fan)
    fresh = {name: row for own_rows in made for name, row in own_rows.items()}
    why |= {name: row for name, row in fresh.items() if isinstance(row, str)}
    return issued | {name: row for name, row in fresh.items() if not isinstance(row, str)}, why


def _issued(ledger: JobLedger, name: str, slot: pd.Timestamp) -> Row | None:
    rows = ledger.decisions.get(name, ())
    return next((row for row in rows if pd.Timestamp(row["slot"]) == slot), None)


def decisions_as_of(turn: Turn, requests: Sequence[JobRequest] = ()) -> Decided:
    """Return the decisions that a turn at this time would issue for the open jobs and for placed ``requests``, jointly."""
    left_out: list[str] = []
    known = stored_jobs(turn.store, known_at=turn.terms_at)
    names = {job.request.name for job in known if job.start <= turn.at < job.deadline}
    new = {request.name: request for request in requests if request.name not in names}
    known = [job for job in known if job.request.name not in new]
    step = step_of(turn.settings)
    known += [
        StoredJob(request=request, origin="user", step=step, created_at=turn.at) for request in new.values()
    ]
    jobs = running_jobs(turn, known, left_out)
    rows, why = decide_open(turn, jobs, read_ledger(turn.store, [job.request.name for job, _ in jobs]))
    return Decided(
        rows=tuple(rows[name] for name in sorted(rows)),
        left_out=(*left_out, *(why[name] for name in sorted(why))),
    )


def running_jobs(turn: Turn, known: Sequence[StoredJob], left_out: list[str]) -> list[PlacedJob]:
    """Return the jobs that a turn would decide, with their markets; messages on others are appended to ``left_out``."""
    # Ended jobs are skipped; with each market read at its own end, a job ends only with its record.
    over = () if turn.own_end else {job.request.name for job in known if job.deadline <= turn.at}
    work = sorted_jobs(turn, known, [], left_out, over)
    return [(job, work.places.get(job.request.name, (followed,))) for job, followed in work.running]


# ---
# The decision of one job, as issued by a turn or computed for a query.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuery:
    """Options of a plan of one job.

    ``policy`` decides in place of the leader, ``alone`` gives the job the whole market, and
    ``held`` are the instances that run as the slot begins. Without options the decision is that of
    the turn.
    """

    policy: str | None = None
    alone: bool = False
    held: Allocation | None = None

    @property
    def is_of_turn(self) -> bool:
        """Whether the decision is that of a turn."""
        return self.policy is None and not self.alone and self.held is None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """The decision of a job, as shown by `slackwater plan`, with notes for the reader.

    ``is_of_turn``: a turn has issued or would issue this decision.
    """

    row: Row
    is_of_turn: bool
    notes: tuple[str, ...] = ()


def plan_job(turn: Turn, asked: AskedJob, query: PlanQuery) -> PlannedJob:
    """Return the decision of one job for a slot: as a turn has issued or would issue it, or under the options of ``query``.

    Nothing is stored. Raises `JobError` where the job does not run then, has done its work or
    cannot be decided.
    """
    require_running(turn, asked)
    name, at = asked.name, asked.at
    own = read_ledger(turn.store, [name]) if asked.is_stored else JobLedger(decisions={}, reports={})
    _require_not_ended(turn, asked, own)
    issued = _issued(own, name, at)
    if issued is not None and query.is_of_turn and not asked.is_elsewhere:
        others = _decided_beside(turn.store, issued, asked.job.origin)
        row = issued | {"issued_at": _issued_at(turn.store, issued), "alone": False, "decided_with": others}
        return PlannedJob(
            row=row, is_of_turn=True, notes=(*_sharing_note(asked, others), *_since(asked, issued, own))
        )
    left_out: list[str] = []
    group = [asked.placed] if query.alone else _group(turn, asked, left_out)
    others = [job.request.name for job, _ in group if job.request.name != name]
    ledger = read_ledger(turn.store, others)
    reports = list(own.reports.get(name, ()))
    if query.held is not None:
        reports.append(_stated_instances(asked, query.held, own))
    ledger = JobLedger(
        decisions={**ledger.decisions, name: own.decisions.get(name, ())},
        reports={**ledger.reports, name: reports},
    )
    rows, why = decide_open(turn, group, ledger, Anew(job=name, by=query.policy))
    if name in why:
        raise JobError(why[name])
    if name not in rows:
        raise _ended(name, at, counting(reports, known_at=at))
    row = rows[name] | {
        "issued_at": None,
        "alone": query.alone,
        "decided_with": [] if query.alone else others,
    }
    of_turn = query.is_of_turn and asked.is_stored and not asked.is_elsewhere
    notes = (*_sharing_note(asked, others), *_asked_otherwise(asked, query, issued))
    return PlannedJob(row=row, is_of_turn=of_turn, notes=notes)


def _group(turn: Turn, asked: AskedJob, left_out: list[str]) -> list[PlacedJob]:
    """Return the job and the open jobs decided jointly with it: jobs that share a market, directly or through other jobs."""
    own = replace(asked.job, created_at=min(asked.job.created_at, turn.at))
    known = [one for one in stored_jobs(turn.store, known_at=turn.terms_at) if one.request.name != asked.name]
    running = running_jobs(turn, [*known, own], left_out)
    others = [one for one in running if one[0].request.name != asked.name]
    jobs = [asked.placed, *others]
    return [jobs[k] for k in connected([{(one.key, one.at) for one in markets} for _, markets in jobs])[0]]


def _decided_beside(store: Store, row: Row, origin: str) -> list[str]:
    """Return the other jobs with a decision for the same market and slot; examples only if the job is an example."""
    known = {job.request.name for job in stored_jobs(store) if job.origin == "user" or origin == job.origin}
    rows = stored_decisions(store, {"slot": pd.Timestamp(row["slot"])}, order_by=["job"])
    where = (row["market"], row["source"])
    return [
        str(one["job"])
        for _, one in rows
        if (one["market"], one["source"]) == where and one["job"] in known - {row["job"]}
    ]


def _issued_at(store: Store, row: Row) -> str:
    """Return the time of the turn that issued a decision."""
    ((us,),) = store.execute(
        "SELECT coalesce(max(epoch_us(runs.logical_at)), max(epoch_us(slot))) FROM decisions LEFT JOIN runs "
        "ON runs.run = decisions.run AND stage = 'allocate' WHERE job = ? AND slot = ?",
        [row["job"], pd.Timestamp(row["slot"])],
    )
    return pd.Timestamp(int(us), unit="us", tz="UTC").isoformat()


def _stated_instances(asked: AskedJob, held: Allocation, ledger: JobLedger) -> Report:
    """Return the instances given on the command line as an unstored report for the start of the slot.

    It includes the progress reported for that time. Raises `JobError` if there are more instances
    than the job may hold, or if a multi-market job has no known market.
    """
    request, at, reports = asked.job.request, asked.at, ledger.reports.get(asked.name, ())
    been = any(row["on_demand"] + row["spot"] for row in ledger.decisions.get(asked.name, ()))
    been = been or any(one.market is not None for one in reports)
    if held.total and request.may_move and request.market is None and not been:
        raise JobError(
            f"{plural(held.total, 'instance')} held by job {asked.name!r}, which is in none of its markets yet",
            expected="a job that is known to be in a market",
            remedy=f"say where: `slackwater job report {asked.name} --market MARKET --spot N`",
        )
    most = max(run_on(request, place.market)[1] for place in asked.markets)
    if held.total > most:
        raise JobError(
            f"{plural(held.total, 'instance')} held ({held.on_demand} on-demand, {held.spot} spot)",
            expected=f"at most {most}, the {'n_max' if request.gpus_max is None else 'gpus_max'} of job {asked.name!r}",
            remedy="check --held-on-demand and --held-spot",
        )
    same = [one for one in counting(reports, known_at=at) if one.reported_at == at]
    before = same[-1] if same else Report(job=asked.name, reported_at=at, known_at=at)
    return replace(
        before, known_at=at, revision=before.revision + 1, on_demand=held.on_demand, spot=held.spot
    )


#: Most other jobs named in a note.
MOST_NAMED = 4


def _sharing_note(asked: AskedJob, others: Sequence[str]) -> list[str]:
    """Return a note that other jobs share the spot instances of the slot, or nothing."""
    if not others:
        return []
    names = [
        *others[:MOST_NAMED],
        *([f"{len(others) - MOST_NAMED} more"] if len(others) > MOST_NAMED else []),
    ]
    many = "another open job shares" if len(others) == 1 else f"{len(others)} other open jobs share"
    return [f"{many} the spot of this slot: {listed(names)}. `--alone` plans {asked.name} by itself."]


def _asked_otherwise(asked: AskedJob, query: PlanQuery, issued: Row | None) -> list[str]:
    """Return notes on how a decision under options differs from that of the turn, and on the issued decision."""
    found = []
    if query.alone:
        found.append(
            f"planned alone, as if no other job wanted spot; `slackwater plan {asked.name}` is the decision of the turn"
            if asked.is_stored
            else "planned alone, as if no other job wanted spot"
        )
    if query.held is not None:
        found.append(
            f"planned from {query.held.on_demand} on-demand and {query.held.spot} spot held, as given, for this slot only"
        )
    if issued is not None:
        found.append(
            f"the turn has issued {issued['on_demand']} on-demand and {issued['spot']} spot for this slot, which stays as it is"
        )
    return found


def _require_not_ended(turn: Turn, asked: AskedJob, ledger: JobLedger) -> None:
    """Raise `JobError` if the slot is the present one and a report has ended the job since its start."""
    if turn.clock is None or not asked.at <= turn.clock < asked.at + asked.job.step:
        return
    reports = counting(ledger.reports.get(asked.name, ()), known_at=turn.clock)
    ends = [report for report in reports if report.ends]
    if ends:
        raise _ended(asked.name, ends[0].reported_at, reports)


def _ended(name: str, at: pd.Timestamp, reports: Sequence[Report]) -> JobError:
    withdrawn = any(report.withdrawn for report in reports)
    return JobError(
        f"job {name!r} {'was withdrawn' if withdrawn else 'has done its work'} by {utc(at)}; nothing is to run",
        expected="a job with work left",
        remedy=f"`slackwater job show {name}` shows it",
    )


def _since(asked: AskedJob, issued: Row, ledger: JobLedger) -> list[str]:
    """Return a note if the reported instances differ from those that the issued decision assumes or requests."""
    at, step = asked.at, asked.job.step
    newest: Report | None = None
    for report in counting(ledger.reports.get(asked.name, ())):
        newest = report if report.held is not None and at - step < report.reported_at < at + step else newest
    if newest is None or newest.held is None:
        return []
    keys = ("on_demand", "spot") if newest.reported_at > at else ("held_on_demand", "held_spot")
    held = newest.held
    if tuple(issued[key] for key in keys) == (held.on_demand, held.spot):
        return []
    return [
        f"{held.on_demand} on-demand and {held.spot} spot are reported as held at {utc(newest.reported_at)}, which the decision "
        f"does not count: `--held-on-demand {held.on_demand} --held-spot {held.spot}` plans the slot from there"
    ]
