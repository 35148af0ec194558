"""Stored jobs, reports on their progress, and the throughput measured from reports (M1.2, M2.4, M9.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError

from slackwater.flows.show.formats import age, rows_of, utc
from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.job.definition import Job, finished
from slackwater.optimization.job.request import (
    FilledConfiguration,
    JobRequest,
    check_bounds,
    check_change,
    first_slot,
    term_changes,
)
from slackwater.optimization.job.units import instance_range, named_market
from slackwater.optimization.moving.definition import IDLE, MultiMarketPolicy, placement
from slackwater.optimization.moving.terms import job_in_markets
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.replay.decision import NOTHING, LiveJob, Reported, live_job
from slackwater.optimization.replay.run import Seen
from slackwater.optimization.window.plan import Allocation
from slackwater.warehouse.errors import JobError, unknown_job
from slackwater.warehouse.history import History, Market
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import microseconds, moment, utc_index

# ---
# Stored jobs: placed requests, each with its origin and the time it was added.


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A placed request as stored, with its ``origin`` "user" or "example"; added at ``created_at``.

    Older warehouses also have the origin "practice": synthetic jobs for learning that ended before
    they were added.

    ``start`` is the start of the job's first slot, ``deadline`` the end of the last whole slot
    before its deadline. ``changed_at`` is when these terms became known, None for the terms with
    which it was added (M2.9).
    """

    request: JobRequest
    origin: str
    step: pd.Timedelta
    created_at: pd.Timestamp
    changed_at: pd.Timestamp | None = None
    # Stored instead of computed on access: every turn sorts all jobs.
    start: pd.Timestamp = field(init=False)
    deadline: pd.Timestamp = field(init=False)

    def __post_init__(self) -> None:
        """Raise `JobError` if the request is not placed."""
        object.__setattr__(self, "start", first_slot(self.request, self.step))
        object.__setattr__(self, "deadline", self.request.ends.floor(self.step))

    @property
    def known_at(self) -> pd.Timestamp:
        """Time at which the terms became known."""
        return self.created_at if self.changed_at is None else self.changed_at

    @property
    def changed_under_way(self) -> bool:
        """Whether its terms changed after its first slot began, so that no replay can reproduce it (M2.9)."""
        return self.changed_at is not None and self.changed_at > self.start


def save_jobs(
    store: Store, requests: Iterable[JobRequest], *, origin: str, at: pd.Timestamp, step: pd.Timedelta
) -> int:
    """Store placed requests and return the number of new jobs.

    A request with terms that a stored job has had adds nothing. Raises `JobError` if the name
    belongs to a job with other terms.
    """
    requests = list(requests)
    if not requests:
        return 0
    known = {job.request.name: job for job in stored_jobs(store)}
    rows = []
    for request in requests:
        check_bounds(request)
        before = known.get(request.name)
        if before is not None and all(one.request != request for one in [before, *terms_of(store, before)]):
            others = [one.term for one in term_changes(before.request, request)]
            raise JobError(
                f"job {request.name!r} is known with other terms ({', '.join(others)})",
                remedy="`slackwater job change` changes the terms of a job; another job needs another name (--name)",
            )
        rows.append(
            {
                "name": request.name,
                "market": request.market or "",
                "source": request.source or "",
                "spec": request.model_dump_json(),
                "origin": origin,
                "created_at": at,
                "start_at": first_slot(request, step),
                "deadline_at": request.ends,
                "step_seconds": int(step / pd.Timedelta(seconds=1)),
            }
        )
    return write_rows(store, "jobs", pd.DataFrame(rows)).added if rows else 0


def stored_jobs(store: Store, *, known_at: pd.Timestamp | None = None) -> list[StoredJob]:
    """Return every readable job, with the terms known at a time (None: now), by start and name (M2.9).

    Jobs added later are included, with the terms with which they were added.
    """
    return list(_in_order(_job_rows(store, known_at))[0])


def unreadable_jobs(store: Store, *, known_at: pd.Timestamp | None = None) -> list[str]:
    """Return messages on stored jobs whose terms cannot be read: an older version accepted them."""
    return list(_in_order(_job_rows(store, known_at))[1])


#: Arguments of `_stored_job`.
_JobRow = tuple[str, str, str, int, int, int | None]
#: The terms in force of every job: those of its last change, else those with which it was added.
_IN_FORCE = """
    SELECT name, coalesce(changed.spec, jobs.spec), origin, step_seconds, epoch_us(created_at), epoch_us(changed.known_at)
    FROM jobs LEFT JOIN (
        SELECT job, spec, known_at FROM terms WHERE $known_at IS NULL OR known_at <= $known_at
        QUALIFY row_number() OVER (PARTITION BY job ORDER BY known_at DESC, revision DESC) = 1
    ) AS changed ON changed.job = jobs.name
"""


def _job_rows(store: Store, known_at: pd.Timestamp | None) -> tuple[_JobRow, ...]:
    asked = {"known_at": None if known_at is None else moment(known_at, "known_at")}
    return tuple(store.execute(_IN_FORCE, asked))


@lru_cache(maxsize=2)
def _in_order(rows: tuple[_JobRow, ...]) -> tuple[tuple[StoredJob, ...], tuple[str, ...]]:
    """Return jobs by start and name, and messages on unreadable jobs; cached because every turn calls it."""
    jobs = [_stored_job(*row) for row in rows]
    readable = [job for job in jobs if isinstance(job, StoredJob)]
    return (
        tuple(sorted(readable, key=lambda job: (job.start, job.request.name))),
        tuple(job for job in jobs if isinstance(job, str)),
    )


@lru_cache(maxsize=16_384)
def _stored_job(
    name: str, spec: str, origin: str, step_seconds: int, created_us: int, changed_us: int | None
) -> StoredJob | str:
    """Return a stored job, or why it cannot be read; cached because every turn reads all jobs and rows never change."""
    try:
        return StoredJob(
            request=_request_of(spec, name),
            origin=origin,
            step=pd.Timedelta(seconds=int(step_seconds)),
            created_at=_time(created_us),
            changed_at=None if changed_us is None else _time(changed_us),
        )
    except JobError as error:
        return f"job {name} is left out: {error}"


def _request_of(spec: str, name: str) -> JobRequest:
    """Return the placed request of a stored text; raises `JobError` if it cannot be read or has another name."""
    try:
        request = JobRequest.model_validate_json(spec)
        _ = request.starts, request.ends
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise JobError(f"its stored {key or 'text'} cannot be read: {first['msg']}") from error
    except (ValueError, OverflowError) as error:  # times outside the range of pandas, or without a zone
        raise JobError(f"its stored times cannot be read: {error}") from error
    if request.name != name:
        raise JobError(f"its stored text is of job {request.name!r}")
    return request


def unusable_spec(spec: str) -> str:
    """Return why a stored text of a job cannot be used, "" if it can."""
    try:
        request = JobRequest.model_validate_json(spec)
        _request_of(spec, request.name)
        check_bounds(request)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc']) or 'text'}: {first['msg']}"
    except JobError as error:
        return str(error)
    return ""


def _time(us: int) -> pd.Timestamp:
    return utc_index(np.array([us], dtype=np.int64))[0]


def find_job(store: Store, name: str, *, known_at: pd.Timestamp | None = None) -> StoredJob:
    """Return a job by name, with the terms known at a time (None: now); raises `JobError` with the known names."""
    jobs = stored_jobs(store, known_at=known_at)
    for job in jobs:
        if job.request.name == name:
            return job
    raise unknown_job(name, [job.request.name for job in jobs])


# ---
# Changes of a job's terms: a row each, known from a time on; earlier decisions do not use it (M1.2, M2.9).


def terms_of(store: Store, stored: StoredJob) -> list[StoredJob]:
    """Return the job with each of its terms in turn, the original terms first; unreadable terms are left out."""
    rows = store.execute(
        "SELECT spec, NULL AS known_us, -1 AS revision FROM jobs WHERE name = $job UNION ALL "
        "SELECT spec, epoch_us(known_at), revision FROM terms WHERE job = $job ORDER BY known_us NULLS FIRST, revision",
        {"job": stored.request.name},
    )
    step, created = int(stored.step / pd.Timedelta(seconds=1)), microseconds(stored.created_at, "created_at")
    name = stored.request.name
    found = [_stored_job(name, spec, stored.origin, step, created, known_us) for spec, known_us, _ in rows]
    return [one for one in found if isinstance(one, StoredJob)]


def save_change(store: Store, request: JobRequest, *, at: pd.Timestamp) -> bool:
    """Store new terms of a job, given as a placed request, as known from ``at`` on; False if the job has them already.

    Raises `JobError` if there is no such job, it has ended by then or was changed later, its
    deadline leaves no slot, or a term cannot be changed (`check_change`).
    """
    with store.transaction():
        stored = find_job(store, request.name)
        if stored.request == request:
            return False
        _check_open(store, stored, at)
        check_change(stored.request, request)
        if request.ends.floor(stored.step) <= max(at, stored.start):
            raise JobError(
                f"job {request.name!r}: deadline {utc(request.ends)} leaves no whole slot after {utc(max(at, stored.start))}",
                expected=f"{utc(max(at, stored.start).floor(stored.step) + stored.step)} or later",
                remedy=f"if its work is done, say so: `slackwater job report {request.name} --finished`",
            )
        same = read_rows(store, "terms", where={"job": request.name, "known_at": at})
        row = {
            "job": request.name,
            "known_at": at,
            "revision": len(same),
            "spec": request.model_dump_json(),
            "deadline_at": request.ends,
        }
        write_rows(store, "terms", [row])
    return True


def _check_open(store: Store, stored: StoredJob, at: pd.Timestamp) -> None:
    """Raise `JobError` unless a job's terms can change at a time.

    They can if the job was added and last changed by then, and has not ended, been reported as
    finished or been scored.
    """
    name, another = stored.request.name, "add another job with `slackwater job add --name NAME`"
    if at < stored.known_at:
        what = "was added" if stored.changed_at is None else "had its terms changed"
        raise JobError(
            f"job {name!r} {what} at {utc(stored.known_at)}, a change at {utc(at)}",
            expected="a time at or after that",
            remedy="give --at TIME, or leave it out",
        )
    if stored.deadline <= at:
        raise JobError(
            f"job {name!r} ended at {utc(stored.deadline)}, a change at {utc(at)}",
            expected="a job whose deadline is to come",
            remedy=f"give --at TIME if it was said before; else {another}",
        )
    done = [one for one in reports_of(store, name, known_at=at) if one.ends]
    if done:
        state = "finished" if done[0].finished else "withdrawn"
        raise JobError(
            f"job {name!r} was reported as {state} at {utc(done[0].reported_at)}",
            expected="a job with work left",
            remedy=f"if it is not, report that time again without --{state}; else {another}",
        )
    if len(read_rows(store, "outcomes", where={"job": name})):
        raise JobError(
            f"job {name!r} has been scored by a later turn",
            expected="a job that has not ended",
            remedy=another,
        )


# ---
# Reports of users on their running jobs, stored with the time they became known; the next plan uses
# them (M1.2, M2.4).

#: Resolution of times in the warehouse.
MOMENT = pd.Timedelta(microseconds=1)
#: Most instances in a report: more are a typing error.
MOST_INSTANCES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report on a job for the time ``reported_at``, known from ``known_at`` on.

    ``progress`` is in the unit of the job's workload, ``on_demand`` and ``spot`` are the instances
    that ran, ``market`` is where a multi-market job ran; None: not reported. ``withdrawn``: the
    owner ended the job before its work was done. ``revision`` counts reports with equal
    ``reported_at`` and ``known_at``.
    """

    job: str
    reported_at: pd.Timestamp
    known_at: pd.Timestamp
    revision: int = 0
    progress: float | None = None
    on_demand: int | None = None
    spot: int | None = None
    finished: bool = False
    note: str = ""
    market: str | None = None
    withdrawn: bool = False

    @property
    def ends(self) -> bool:
        """Whether the job needs no more instances: finished or withdrawn."""
        return self.finished or self.withdrawn

    @property
    def held(self) -> Allocation | None:
        """The instances that ran, None if not reported; if only one kind was reported, the other is 0."""
        if self.on_demand is None and self.spot is None:
            return None
        return Allocation(self.on_demand or 0, self.spot or 0)

    def says(self) -> tuple[object, ...]:
        """Return the content of the report, without the time it became known."""
        return (
            self.progress,
            self.on_demand,
            self.spot,
            self.finished,
            self.note,
            self.market,
            self.withdrawn,
        )


def reports_of(store: Store, job: str, *, known_at: pd.Timestamp | None = None) -> list[Report]:
    """Return the reports of a job in force at ``known_at`` (None: now), by reported time."""
    return reports_by_job(store, [job], known_at=known_at)[job]


def reports_by_job(
    store: Store, jobs: Sequence[str], *, known_at: pd.Timestamp | None = None
) -> dict[str, list[Report]]:
    """Return the `reports_of` several jobs, read with one statement."""
    found: dict[str, list[Report]] = {job: [] for job in jobs}
    for report in every_report(store, jobs):
        found[report.job].append(report)
    return {job: counting(reports, known_at=known_at) for job, reports in found.items()}


def every_report(store: Store, jobs: Sequence[str]) -> list[Report]:
    """Return every report of some jobs, including corrected reports, in the order they became known."""
    rows = read_rows(
        store,
        "reports",
        where={"job": list(jobs)},
        order_by=["job", "known_at", "reported_at", "revision"],
    )
    return [_report(row) for row in rows_of(rows)]


def _report(row: dict[str, Any]) -> Report:
    return Report(
        job=str(row["job"]),
        reported_at=pd.Timestamp(row["reported_at"]).tz_convert("UTC"),
        known_at=pd.Timestamp(row["known_at"]).tz_convert("UTC"),
        revision=int(row["revision"]),
        progress=None if pd.isna(row["progress"]) else float(row["progress"]),
        on_demand=None if pd.isna(row["on_demand"]) else int(row["on_demand"]),
        spot=None if pd.isna(row["spot"]) else int(row["spot"]),
        finished=bool(row["finished"]),
        note=str(row["note"]),
        market=None if pd.isna(row["market"]) else str(row["market"]),
        withdrawn=False if pd.isna(row["withdrawn"]) else bool(row["withdrawn"]),
    )


def counting(reports: Iterable[Report], *, known_at: pd.Timestamp | None = None) -> list[Report]:
    """Return the reports in force: for every reported time the newest report known at ``known_at``, ascending (M1.2).

    Reports on a later time are left out.
    """
    newest: dict[pd.Timestamp, Report] = {}
    for report in sorted(reports, key=lambda one: (one.known_at, one.revision)):
        if known_at is None or max(report.known_at, report.reported_at) <= known_at:
            newest[report.reported_at] = report
    return [newest[when] for when in sorted(newest)]


def as_reported(
    reports: Iterable[Report], request: JobRequest, job: Job, *, start: pd.Timestamp, step: pd.Timedelta
) -> list[Reported]:
    """Return reports in slots and work units, each for the first slot that starts at or after the reported time."""
    found = []
    for report in reports:
        place = max(0.0, (report.reported_at - start) / step)
        slot = math.ceil(place - 1e-9)
        done = None if report.progress is None else report.progress / request.workload.amount * job.workload
        found.append(
            Reported(
                slot=slot,
                done=job.workload if report.ends else done,
                size=None if report.held is None else report.held.total,
                early=min(max(0.0, slot - place), 1.0 - 1e-9),
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Test whether the newest observation of a market exceeds its maximal age (M1.3) at the slot to decide.

    ``clock``: present time, used instead of the slot if later, for markets that are read at the end
    of their records.
    """

    clock: pd.Timestamp | None = None

    def stale(self, history: History, slot: pd.Timestamp) -> str | None:
        """Return a note that a market's newest count (or price, without counts) is too old for a slot, else None."""
        name, seen, limit = "count", history.newest_count, history.count_max_age
        if seen is None:
            name, seen, limit = "price", history.newest_price, history.price_max_age
        at = slot if self.clock is None else max(slot, self.clock)
        if seen is None or limit is None or at - seen <= limit:
            return None
        what = "this slot" if at == slot else "now: this slot is long over"
        return (
            f"the newest {name} of {history.market.key} is from {utc(seen)}, {age(at - seen)} before {what}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBefore:
    """The instances that a job runs as a slot begins; ``reported``: from a report, else computed from decisions."""

    allocation: Allocation = NOTHING
    reported: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob:
    """State of a job at the slot to decide, on the M >= 1 markets of ``histories``.

    ``reports`` are those in force by then; ``fresh`` tests for stale data. ``policy`` decides the
    job, and ``because`` is why it was chosen ("": the first multi-market policy, before a round).
    The properties of a single market are those of market ``place``; M means that the job has not
    begun.
    """

    request: JobRequest
    histories: tuple[History, ...]
    live: LiveJob
    reports: tuple[Report, ...] = ()
    policy: Policy[Any] | MultiMarketPolicy[Any] | None = None
    because: str = ""
    fresh: Freshness | None = None
    place: int = 0

    def in_market(self, m: int) -> OpenJob:
        """Return the job as seen from market ``m``."""
        return replace(self, place=m)

    @property
    def chosen_because(self) -> str:
        """The reason for its policy."""
        many = f"a multi-market policy, because the job may run in {len(self.places)} markets"
        return self.because or many

    @property
    def places(self) -> tuple[str, ...]:
        """The names of its markets, as in decisions."""
        return tuple(history.market.key for history in self.histories)

    @property
    def market(self) -> int:
        """Index of the market from which the job is seen: its place, else the first market."""
        return self.place if self.place < len(self.histories) else 0

    @property
    def run(self) -> Job:
        """The job as its market runs it."""
        return self.live.job.runs[self.market]

    @property
    def history(self) -> History:
        """The history of its market; for a job that has not begun, with the assumptions of all markets."""
        history = self.histories[self.market]
        if self.place < len(self.histories):
            return history
        assumed = (text for own in self.histories for text in own.assumptions)
        return replace(history, assumptions=tuple(dict.fromkeys(assumed)))

    @property
    def seen(self) -> Seen:
        """The observations of its market."""
        return self.live.seen[self.market]

    @property
    def forecast(self) -> Forecast | None:
        """The forecast for its market that was issued in the slot to decide."""
        return self.live.forecasts[self.market]

    @property
    def held(self) -> HeldBefore:
        """The instances that run as the slot to decide begins: from the report for that slot, else from the decisions."""
        slot = self.live.slot
        for report, found in zip(reversed(self.reports), reversed(self.live.reported), strict=True):
            if found.slot == slot and report.held is not None:
                return HeldBefore(allocation=report.held, reported=True)
        return HeldBefore(allocation=self.live.ran(slot - 1).allocation)

    def after(self, decided: Mapping[int, tuple[str | None, Allocation]]) -> OpenJob:
        """Return the job with later decisions, by slot: a market's name (None: no instances), and the allocation."""
        own = {
            slot: IDLE if key is None else placement(self.places.index(key), allocation)
            for slot, (key, allocation) in decided.items()
            if key is None or key in self.places
        }
        return replace(self, live=replace(self.live, decided={**self.live.decided, **own}))

    @property
    def stale(self) -> str | None:
        """A note that the newest observation of its market is stale, None if it is not or if ``fresh`` is None."""
        return None if self.fresh is None else self.fresh.stale(self.history, self.live.now)

    @property
    def progress_report(self) -> Report | None:
        """The newest report with progress, None if progress is computed from the decisions alone."""
        said = [one for one in self.reports if one.finished or one.progress is not None]
        return said[-1] if said else None


def open_job(
    request: JobRequest,
    histories: Sequence[History],
    *,
    decided: Mapping[pd.Timestamp, tuple[str | None, Allocation]],
    forecasts: Sequence[Sequence[Forecast]] | None = None,
    peers: Sequence[Sequence[History]] | None = None,
    reports: Sequence[Report] = (),
    by: tuple[Policy[Any] | MultiMarketPolicy[Any] | None, str] = (None, ""),
    fresh: Freshness | None = None,
) -> OpenJob:
    """Return the state of a job from a placed request and the histories of its markets, its home first; see `live_job`.

    ``decided`` is by slot: the name of a market (None: no instances) and the allocation;
    ``forecasts`` and ``peers`` are per market; ``by`` is the deciding policy and the reason. Only
    ``reports`` on a time up to the start of the slot to decide, and known by then, are used. Raises
    `JobError` if a decision or report of a multi-market job names a market that is not among them.
    """
    job = job_in_markets(request, histories)
    step, start = histories[0].step, first_slot(request, histories[0].step)
    said = counting(reports, known_at=histories[0].known_at.floor(step))
    been = {slot: key for slot, (key, _) in decided.items() if key is not None}
    reported = as_reported(said, request, job.job, start=start, step=step)
    at = _market_indices(
        request, histories, [*been.items(), *((one.reported_at, one.market) for one in said if one.market)]
    )
    live = live_job(
        job,
        start,
        histories,
        decided={
            slot: IDLE if key is None else placement(at[key], allocation)
            for slot, (key, allocation) in decided.items()
        },
        forecasts=forecasts,
        peers=peers,
        reported=reported,
        names=_short_names(histories),
        places={
            one.slot: at[report.market]
            for report, one in zip(said, reported, strict=True)
            if report.market is not None
        },
    )
    return OpenJob(
        request=request,
        histories=tuple(histories),
        live=live,
        reports=tuple(said),
        policy=by[0],
        because=by[1],
        fresh=fresh,
    )


def _market_indices(
    request: JobRequest, histories: Sequence[History], been: Sequence[tuple[pd.Timestamp, str]]
) -> dict[str, int]:
    """Return the index of each market in which the job was to be, by name.

    A single-market job was in its only market. Raises `JobError` for a market of a multi-market job
    that is not among ``histories``.
    """
    keys = [history.market.key for history in histories]
    if not request.may_move:
        return {key: 0 for _, key in been}
    for slot, key in been:
        if key not in keys:
            raise JobError(
                f"job {request.name!r} was to be in {key} at {slot}, which cannot be read now",
                expected=f"one of {', '.join(keys)}",
                remedy="bring its source back, or give the job another name",
            )
    return {key: keys.index(key) for _, key in been}


def _short_names(histories: Sequence[History]) -> list[str]:
    """Return short names of the markets: their zones if these differ, else the market keys."""
    zones = [history.market.zone for history in histories]
    return zones if len(set(zones)) == len(zones) else [history.market.key for history in histories]


def check_report(report: Report, stored: StoredJob, earlier: Sequence[Report]) -> None:
    """Raise `JobError` on the first invalid value of a report, given the reports in force so far (``earlier``)."""
    request = stored.request
    if report.reported_at < request.starts:
        raise JobError(
            f"a report of job {report.job!r} at {report.reported_at.isoformat()}",
            expected=f"a time after its start, {request.starts.isoformat()}",
            remedy="give the time it was true with --at TIME",
        )
    if report.reported_at > request.ends and (report.held is not None or report.market is not None):
        raise JobError(
            f"instances of job {report.job!r} at {report.reported_at.isoformat()}, after its deadline",
            expected=f"progress, --finished or --withdrawn after {request.ends.isoformat()}",
            remedy="leave the instances out, or give the time at which they ran with --at TIME",
        )
    if report.finished and report.withdrawn:
        raise JobError(
            f"job {report.job!r} finished and withdrawn",
            expected="--finished if its work is done, --withdrawn if you ended it before",
        )
    if report.known_at < report.reported_at:
        raise JobError(
            f"a report at {report.reported_at.isoformat()} known at {report.known_at.isoformat()}",
            expected="a time at or after the one it is about",
        )
    if report.progress is None and report.held is None and report.market is None and not report.ends:
        raise JobError(
            f"an empty report of job {report.job!r}",
            expected="progress, running instances, the market of a multi-market job, --finished or --withdrawn",
            remedy="see `slackwater job report --help`",
        )
    for name, count in (("on-demand", report.on_demand), ("spot", report.spot)):
        if count is not None and not 0 <= count <= MOST_INSTANCES:
            raise JobError(f"{count} {name} instances held", expected=f"0 to {MOST_INSTANCES}")
    if report.market is not None and not request.may_move:
        raise JobError(
            f"a report of job {report.job!r} in {report.market}",
            expected=f"no market: it runs in {request.market} only",
            remedy="leave --market out",
        )
    _check_progress(report, request, earlier)


def _check_progress(report: Report, request: JobRequest, earlier: Sequence[Report]) -> None:
    amount, unit = request.workload.amount, request.workload.unit
    done = work_said(report, amount)
    if done is None:
        return
    if not (math.isfinite(done) and done >= 0 and finished(amount, done)):
        raise JobError(
            f"progress of {done:g} {unit} of job {report.job!r}",
            expected=f"0 to its workload of {amount:g} {unit}",
        )
    if report.finished and report.progress is not None and not finished(report.progress, amount):
        raise JobError(
            f"job {report.job!r} finished with {report.progress:g} of {amount:g} {unit} done",
            expected="all of it, or no --finished",
        )
    for other in earlier:
        said = work_said(other, amount)
        if said is None or other.reported_at == report.reported_at:
            continue
        before = other.reported_at < report.reported_at
        if said > done if before else said < done:
            raise JobError(
                f"progress of {done:g} {unit} at {report.reported_at.isoformat()}",
                expected=f"{'no less' if before else 'no more'} than the {said:g} {unit} reported for "
                f"{other.reported_at.isoformat()}",
                remedy="if that one was wrong, correct it first: report the same time again",
            )


def work_said(report: Report, amount: float) -> float | None:
    """Return the progress of a report in the unit of the workload: all work if finished, None if not reported."""
    return amount if report.finished else report.progress


def differences(report: Report, stored: StoredJob, decided: Mapping[pd.Timestamp, Allocation]) -> list[str]:
    """Return warnings if the reported instances violate the bounds of the job or differ from the decision of the slot."""
    held = report.held
    if held is None or report.ends:
        return []
    request, found = stored.request, []
    place = report.market or request.market
    market = named_market(request) if place is None else Market.parse(place)
    if held.total and market is not None:
        least, most = instance_range(request, market)
        if not least <= held.total <= most:
            counted = "none" if held.total < least else str(most)
            found.append(
                f"{held.total} instances held, the job's bounds are {least} to {most}: plans count {counted}"
            )
    slot = max(stored.start, (report.reported_at - MOMENT).floor(stored.step))
    advised = decided.get(slot)
    if advised is not None and advised != held:
        found.append(
            f"decided for the slot of {slot.isoformat()}: {advised.on_demand} on-demand and {advised.spot} spot, "
            f"reported: {held.on_demand} and {held.spot}"
        )
    return found


def elsewhere(
    report: Report, stored: StoredJob, decided: Mapping[pd.Timestamp, tuple[str | None, Allocation]]
) -> list[str]:
    """Return a warning if a multi-market job ran in another market than ``decided``."""
    slot = max(stored.start, (report.reported_at - MOMENT).floor(stored.step))
    advised = decided.get(slot, (None, None))[0]
    if report.market is None or advised in (None, report.market):
        return []
    return [
        f"in the slot of {slot.isoformat()} {advised} was advised, it ran in {report.market}: the next plan starts there"
    ]


def save_report(store: Store, report: Report, stored: StoredJob) -> tuple[Report, bool]:
    """Store a report; return it as stored, and whether it is new.

    A report with the content of the report in force adds nothing. A correction becomes known no
    earlier than the reports it corrects. Raises `JobError` as `check_report` does.
    """
    with store.transaction():
        known = every_report(store, [report.job])
        counts = counting(known)
        check_report(report, stored, counts)
        same = next((one for one in counts if one.reported_at == report.reported_at), None)
        if same is not None and same.says() == report.says():
            return same, False
        after = [one.known_at for one in known if one.reported_at == report.reported_at]
        report = replace(report, known_at=max([report.known_at, *after]))
        taken = [
            one for one in known if (one.reported_at, one.known_at) == (report.reported_at, report.known_at)
        ]
        report = replace(report, revision=len(taken))
        write_rows(
            store,
            "reports",
            pd.DataFrame([_row(report)]).astype({"on_demand": "Int32", "spot": "Int32", "market": "string"}),
        )
    return report, True


def _row(report: Report) -> dict[str, Any]:
    return {
        "job": report.job,
        "reported_at": report.reported_at,
        "known_at": report.known_at,
        "revision": report.revision,
        "progress": report.progress,
        "on_demand": report.on_demand,
        "spot": report.spot,
        "finished": report.finished,
        "note": report.note,
        "market": report.market,
        "withdrawn": report.withdrawn,
    }


def report_row(report: Report, stored: StoredJob) -> dict[str, Any]:
    """Return a report as plain values; ``counts_from`` is the first slot whose decision uses it.

    The report of a multi-market job includes its market.
    """
    workload = stored.request.workload
    done = work_said(report, workload.amount)
    place = {"market": report.market} if stored.request.may_move else {}
    return place | {
        "job": report.job,
        "reported_at": report.reported_at,
        "known_at": report.known_at,
        "revision": report.revision,
        "progress": done,
        "progress_share": None if done is None else done / workload.amount,
        "workload": workload.amount,
        "workload_unit": workload.unit,
        "on_demand": report.on_demand,
        "spot": report.spot,
        "finished": report.finished,
        "withdrawn": report.withdrawn,
        "note": report.note,
        "counts_from": max(stored.start, report.known_at.ceil(stored.step)),
    }


# ---
# Throughput of jobs with a configuration, measured from reports, compared with its prediction, and
# used in later predictions (M9.4, M1.2).
#
# It is computed from the stored reports and not stored itself, so that a corrected report corrects
# the measurement, and a query at an earlier time measures only what was known then.

SOURCE = "reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Measured tokens per second of a job with a configuration, between two reports.

    The number of ``instances`` was constant between them.
    """

    job: str
    filled: FilledConfiguration
    instances: int
    since: pd.Timestamp
    reported_at: pd.Timestamp
    tokens_per_second: float

    @property
    def predicted(self) -> float:
        """The median predicted when the configuration was chosen, tokens per second."""
        return self.filled.tokens_per_second[self.instances - 1]

    @property
    def interval(self) -> tuple[float, float]:
        """The predicted 90 % interval, tokens per second."""
        return self.filled.low[self.instances - 1], self.filled.high[self.instances - 1]

    @property
    def inside(self) -> bool:
        """Whether the measurement is inside the interval."""
        low, high = self.interval
        return low <= self.tokens_per_second <= high

    def row(self) -> dict[str, Any]:
        """Return the run as plain values; ``error`` is measured over predicted, minus 1."""
        low, high = self.interval
        return {
            "since": self.since,
            "instances": self.instances,
            "number_gpus": self.instances * self.filled.gpus_per_instance,
            "tokens_per_second": self.tokens_per_second,
            "predicted": self.predicted,
            "low": low,
            "high": high,
            "inside": self.inside,
            "error": self.tokens_per_second / self.predicted - 1.0,
            "why_not": "",
        }

    def run(self) -> dict[str, Any]:
        """Return the run as a row of measured runs, as in `slackwater.optimization.requests.candidates`.

        The batch size is that of a round of whole batches per GPU.
        """
        place = self.instances - 1
        samples = self.filled.round_samples[place]
        return {
            "model_name": self.filled.model_name,
            "method": self.filled.method,
            "gpu_model": self.filled.gpu_model,
            "number_nodes": self.instances,
            "number_gpus": self.instances * self.filled.gpus_per_instance,
            "tokens_per_sample": self.filled.tokens_per_sample,
            "batch_size": samples,
            "torch_dtype": self.filled.torch_dtype,
            "tokens_per_second": self.tokens_per_second
            * self.filled.rounds[place]
            * samples
            / self.filled.batch_size,
            "source": SOURCE,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedStretch:
    """A report with the last report of progress before it (None: the job's start), and the reports between."""

    report: Report
    before: Report | None
    between: tuple[Report, ...]


def measured_run(
    stored: StoredJob, decided: Mapping[pd.Timestamp, Allocation], stretch: ReportedStretch
) -> MeasuredRun | str:
    """Return the throughput measured by a report, or why there is none (ours).

    The number of instances must be constant since the report before: by both reports, or by the
    report and every decision between. The overhead of a change of size at the beginning is
    subtracted from the time.
    """
    filled, report, before = stored.request.configuration, stretch.report, stretch.before
    if filled is None:
        return "the job was not filled"
    if report.finished:
        return "when it finished is not known, only that it had by then"
    if report.progress is None:
        return "no progress was said"
    since = before.reported_at if before else stored.start
    done = report.progress - ((before.progress or 0.0) if before else 0.0)
    sizes = _sizes(stored, decided, stretch, since)
    if len(sizes) != 1:
        told = " and ".join(str(size) for size in sorted(sizes))
        return f"{told} instances were held in between" if sizes else "nothing was said of the instances held"
    instances = sizes.pop()
    if not 1 <= instances <= len(filled.tokens_per_second) or filled.tokens_per_second[instances - 1] <= 0:
        return f"nothing was predicted for {instances} instances"
    seconds = (report.reported_at - since).total_seconds() - 60.0 * _overhead(
        stored, decided, stretch, instances
    )
    if seconds <= 0 or done <= 0:
        return "no time beyond the change of size went by" if seconds <= 0 else "no progress was made"
    return MeasuredRun(
        job=report.job,
        filled=filled,
        instances=instances,
        since=since,
        reported_at=report.reported_at,
        tokens_per_second=done / seconds,
    )


def _sizes(
    stored: StoredJob,
    decided: Mapping[pd.Timestamp, Allocation],
    stretch: ReportedStretch,
    since: pd.Timestamp,
) -> set[int]:
    """Return the different sizes that ran from ``since`` to the report, as far as known."""
    told = {one.held.total for one in (*stretch.between, stretch.report) if one.held is not None}
    before = stretch.before.held if stretch.before else None
    if before is not None and stretch.report.held is not None and told == {before.total}:
        return told  # reported at both ends: overrides the decisions in between
    slots = pd.date_range(
        since.floor(stored.step), stretch.report.reported_at, freq=stored.step, inclusive="left"
    )
    inside = [decided[slot].total for slot in slots if slot in decided]
    if stretch.report.held is None and len(inside) < len(slots):
        return set()  # neither reported nor decided
    if before is not None and not inside:
        told.add(before.total)
    return told | set(inside)


def _overhead(
    stored: StoredJob, decided: Mapping[pd.Timestamp, Allocation], stretch: ReportedStretch, instances: int
) -> float:
    """Return the minutes taken by a change of size at the beginning."""
    point = stored.request.checkpoint
    if stretch.before is None:
        return point.overhead_minutes  # first launch
    held = stretch.before.held
    earlier = held.total if held is not None else None
    if earlier is None:
        slot = (stretch.before.reported_at - pd.Timedelta(microseconds=1)).floor(stored.step)
        advised = decided.get(slot)
        earlier = advised.total if advised is not None else instances
    if earlier == instances:
        return 0.0
    shrink = point.shrink_overhead_minutes
    return point.overhead_minutes if instances > earlier or shrink is None else shrink


def stretches(reports: Sequence[Report]) -> list[ReportedStretch]:
    """Return the reports in force, ascending, each with the reports before it."""
    found: list[ReportedStretch] = []
    before: Report | None = None
    between: list[Report] = []
    for report in reports:
        found.append(ReportedStretch(report=report, before=before, between=tuple(between)))
        if report.progress is not None:
            before, between = report, []
        else:
            between.append(report)
    return found


def measured_rows(
    stored: StoredJob, decided: Mapping[pd.Timestamp, Allocation], reports: Sequence[Report]
) -> list[dict[str, Any] | None]:
    """Return the measurement of every report in force as plain values, with ``why_not`` if there is none.

    None for jobs without a configuration.
    """
    if stored.request.configuration is None:
        return [None for _ in reports]
    rows: list[dict[str, Any] | None] = []
    for stretch in stretches(reports):
        found = measured_run(stored, decided, stretch)
        rows.append({"why_not": found} if isinstance(found, str) else found.row())
    return rows


def throughput_told(row: Mapping[str, Any]) -> str:
    """Return a row of `measured_rows` as a sentence."""
    if row["why_not"]:
        return f"the throughput was not measured: {row['why_not']}"
    place = "inside" if row["inside"] else "outside"
    return (
        f"{row['tokens_per_second']:.0f} tokens/s on {row['instances']} instances, predicted {row['predicted']:.0f} "
        f"({row['error']:+.1%}), {place} the 90 % interval {row['low']:.0f} to {row['high']:.0f}"
    )
