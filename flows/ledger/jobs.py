"""Jobs as the warehouse keeps them, what users report of them, and what reports say of throughput (M1.2, M2.4, M9.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError

from flows.show.formats import age, rows_of, utc
from forecasting.quantiles import Forecast
from optimization.job.definition import Job, Progress, finished
from optimization.job.request import (
    FilledConfiguration,
    JobRequest,
    check_bounds,
    check_change,
    first_slot,
    job_on,
    term_changes,
)
from optimization.job.units import instance_range, named_market
from optimization.moving.definition import Mover, MovingHold
from optimization.moving.live import LIVE_MOVER, LiveMovable, live_movable
from optimization.moving.terms import movable_job
from optimization.replay.decision import NOTHING, LiveJob, Reported, live_job
from optimization.replay.decision import held as could_hold
from optimization.window.plan import Allocation
from warehouse.errors import JobError, unknown_job
from warehouse.history import History, Market
from warehouse.issued import read_rows, write_rows
from warehouse.store.connection import Store
from warehouse.times import microseconds, moment, utc_index

# ---
# Jobs as the warehouse keeps them: placed requests, each with where it came from and when it was added.


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A placed request as kept: ``origin`` is "user" or "example"; it was added at ``created_at``.

    In older warehouses it is also "practice", of jobs made up to learn from, which were over before they were added.

    ``start`` is the start of the job's first slot, ``deadline`` the end of the last whole slot before its deadline. ``changed_at``
    is when these terms became known, None where they are those it was added with (M2.9).
    """

    request: JobRequest
    origin: str
    step: pd.Timedelta
    created_at: pd.Timestamp
    changed_at: pd.Timestamp | None = None
    # Kept, not asked for each time: every turn sorts all jobs there ever were.
    start: pd.Timestamp = field(init=False)
    deadline: pd.Timestamp = field(init=False)

    def __post_init__(self) -> None:
        """Raise `JobError` if the request is not placed."""
        object.__setattr__(self, "start", first_slot(self.request, self.step))
        object.__setattr__(self, "deadline", self.request.ends.floor(self.step))

    @property
    def known_at(self) -> pd.Timestamp:
        """When its terms became known."""
        return self.created_at if self.changed_at is None else self.changed_at

    @property
    def changed_under_way(self) -> bool:
        """Whether its terms were others in its first slot: no replay can show it as it was (M2.9)."""
        return self.changed_at is not None and self.changed_at > self.start


def save_jobs(
    store: Store, requests: Iterable[JobRequest], *, origin: str, at: pd.Timestamp, step: pd.Timedelta
) -> int:
    """Keep placed requests; the same again adds nothing, whatever was changed since. Raises `JobError` if a name is taken by
    another job.
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
    """Every job whose terms can be read, with those known at a time (None: by now), by start and name (M2.9).

    A job that was added later is there, too, with the terms that it was added with.
    """
    return list(_in_order(_job_rows(store, known_at))[0])


def unreadable_jobs(store: Store, *, known_at: pd.Timestamp | None = None) -> list[str]:
    """In words, which stored jobs have terms that cannot be read: an older version let them in."""
    return list(_in_order(_job_rows(store, known_at))[1])


#: What `_stored_job` takes, of one job.
_JobRow = tuple[str, str, str, int, int, int | None]
#: Of every job the terms in force: those that were changed last, else those that it was added with.
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
    """Jobs by start and name, and what is said of the others: every turn asks, and seldom is there a new one."""
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
    """A job as it is stored, or why it cannot be read; what is stored never changes, and every turn reads all of them."""
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
    """The placed request in a stored text; raises `JobError` for one that cannot be read, or is of another job."""
    try:
        request = JobRequest.model_validate_json(spec)
        _ = request.starts, request.ends
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise JobError(f"its stored {key or 'text'} cannot be read: {first['msg']}") from error
    except (ValueError, OverflowError) as error:  # times beyond those of pandas, or without a zone
        raise JobError(f"its stored times cannot be read: {error}") from error
    if request.name != name:
        raise JobError(f"its stored text is of job {request.name!r}")
    return request


def unusable_spec(spec: str) -> str:
    """Return why a stored text of a job cannot be used, "" where it can."""
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
    """The job of that name with the terms known at a time (None: by now); raises `JobError` with the known names."""
    jobs = stored_jobs(store, known_at=known_at)
    for job in jobs:
        if job.request.name == name:
            return job
    raise unknown_job(name, [job.request.name for job in jobs])


# ---
# Terms that were changed after a job was added: a row each, known from a time on, which nothing decided before reads (M1.2, M2.9).


def terms_of(store: Store, stored: StoredJob) -> list[StoredJob]:
    """The job with each of the terms it has had, first those that it was added with; those that cannot be read are left out."""
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
    """Keep the new terms of a job, a placed request of its name, as known from ``at`` on; False where it has them already.

    Raises `JobError` where there is no such job, it has ended by then or was changed later, its deadline leaves no slot, or a
    term is another that cannot change (`check_change`).
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
    """Raise `JobError` unless a job's terms can change at a time: it was there, not changed later, and has not ended."""
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
    done = [one for one in reports_of(store, name, known_at=at) if one.finished]
    if done:
        raise JobError(
            f"job {name!r} was reported as finished at {utc(done[0].reported_at)}",
            expected="a job with work left",
            remedy=f"if it is not, report that time again without --finished; else {another}",
        )
    if len(read_rows(store, "outcomes", where={"job": name})):
        raise JobError(
            f"job {name!r} has been scored by a later turn",
            expected="a job that has not ended",
            remedy=another,
        )


# ---
# What users say of their running jobs: kept with when it became known, and where the next plan starts from (M1.2, M2.4).

#: The least time there is in the warehouse.
MOMENT = pd.Timedelta(microseconds=1)
#: More instances than anybody holds: a slip of the hand.
MOST_INSTANCES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was said of a job at ``reported_at``, known from ``known_at`` on.

    ``progress`` is in the unit of the job's own workload, ``on_demand`` and ``spot`` are what was held, ``market`` is where a job
    that may move ran; None: not said.
    ``revision`` counts reports of one time that became known at one time.
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

    @property
    def held(self) -> Allocation | None:
        """The instances held, None where nothing was said of them; what was left out of the two is none."""
        if self.on_demand is None and self.spot is None:
            return None
        return Allocation(self.on_demand or 0, self.spot or 0)

    def says(self) -> tuple[object, ...]:
        """Everything it says, without when it became known."""
        return (self.progress, self.on_demand, self.spot, self.finished, self.note, self.market)


def reports_of(store: Store, job: str, *, known_at: pd.Timestamp | None = None) -> list[Report]:
    """The reports of a job that count at ``known_at`` (None: by now), by the time they are about."""
    return reports_by_job(store, [job], known_at=known_at)[job]


def reports_by_job(
    store: Store, jobs: Sequence[str], *, known_at: pd.Timestamp | None = None
) -> dict[str, list[Report]]:
    """`reports_of` for several jobs by one statement."""
    found: dict[str, list[Report]] = {job: [] for job in jobs}
    for report in every_report(store, jobs):
        found[report.job].append(report)
    return {job: counting(reports, known_at=known_at) for job, reports in found.items()}


def every_report(store: Store, jobs: Sequence[str]) -> list[Report]:
    """Every report of some jobs, corrected ones too, in the order they became known."""
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
    )


def counting(reports: Iterable[Report], *, known_at: pd.Timestamp | None = None) -> list[Report]:
    """Of every time the newest report known at ``known_at``, ascending; nothing of a later time, nothing learned later (M1.2)."""
    newest: dict[pd.Timestamp, Report] = {}
    for report in sorted(reports, key=lambda one: (one.known_at, one.revision)):
        if known_at is None or max(report.known_at, report.reported_at) <= known_at:
            newest[report.reported_at] = report
    return [newest[when] for when in sorted(newest)]


def as_reported(
    reports: Iterable[Report], request: JobRequest, job: Job, *, start: pd.Timestamp, step: pd.Timedelta
) -> list[Reported]:
    """Reports in slots and work units, each for the first slot that starts when it was true or after."""
    found = []
    for report in reports:
        place = max(0.0, (report.reported_at - start) / step)
        slot = math.ceil(place - 1e-9)
        done = None if report.progress is None else report.progress / request.workload.amount * job.workload
        found.append(
            Reported(
                slot=slot,
                done=job.workload if report.finished else done,
                size=None if report.held is None else report.held.total,
                early=min(max(0.0, slot - place), 1.0 - 1e-9),
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Whether the newest observation of a market is older than its maximal age (M1.3) at the slot that is decided.

    ``clock``: the present time instead, where each market is taken at the end of its record and that may be long ago.
    """

    clock: pd.Timestamp | None = None

    def stale(self, history: History, slot: pd.Timestamp) -> str | None:
        """That a market's newest count (without any, its price) is too old for a slot, and how old; None where it is not."""
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
    """The instances that a job holds as a slot begins; ``reported``: its owner reported them, else they follow from decisions."""

    allocation: Allocation = NOTHING
    reported: bool = False


def _held_before(
    slot: int, reports: Sequence[Report], reported: Sequence[Reported], decided: Allocation
) -> HeldBefore:
    """What is held at the start of ``slot``: by the report for that slot, else what could be held of the decision before."""
    for report, one in zip(reversed(reports), reversed(reported), strict=True):
        if one.slot == slot and report.held is not None:
            return HeldBefore(allocation=report.held, reported=True)
    return HeldBefore(allocation=decided)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob:
    """A request whose job is running on the market of ``history``, as it stands at the slot to decide.

    ``reports`` are those that count by then; ``fresh`` says which observation is old.
    ``places`` names the markets of a job that may move, this one among them; ``others``
    is the job as it stands in each other of them, and ``held_anywhere`` what it holds in any of them.
    """

    request: JobRequest
    history: History
    live: LiveJob
    reports: tuple[Report, ...] = ()
    places: tuple[str, ...] = ()
    others: tuple[LiveJob, ...] = ()
    fresh: Freshness | None = None
    held_anywhere: HeldBefore | None = None

    @property
    def histories(self) -> tuple[History, ...]:
        """The history of its market."""
        return (self.history,)

    def in_market(self, m: int) -> OpenJob:
        """The job as it is seen from its market."""
        return self

    @property
    def held(self) -> HeldBefore:
        """The instances that it holds as the slot to decide begins."""
        if self.held_anywhere is not None:
            return self.held_anywhere
        return _held_before(
            self.live.slot, self.reports, self.live.reported, self.held_in(self.live.slot - 1)
        )

    def held_in(self, slot: int) -> Allocation:
        """What could be held of the decision of an earlier slot."""
        decided, live = self.live.decided.get(slot), self.live
        return NOTHING if decided is None else could_hold(live.job, decided, live.seen.available[slot])

    def after(self, decided: Mapping[int, tuple[str | None, Allocation]]) -> OpenJob:
        """The job with later decisions, by slot: a market's name (None: nothing held), and what to hold there."""
        own = {slot: allocation for slot, (_, allocation) in decided.items()}
        return replace(self, live=replace(self.live, decided={**self.live.decided, **own}))

    @property
    def stale(self) -> str | None:
        """That the newest observation of its market is old, and how old; None where it is not, or where nobody asks."""
        return None if self.fresh is None else self.fresh.stale(self.history, self.live.now)

    @property
    def on_demand_only_usd(self) -> float | None:
        """What the whole job costs on on-demand alone, USD; of a job that may move in the market where that is least.

        None where no on-demand price is known.
        """
        known = [live.on_demand_only_usd for live in (self.live, *self.others)]
        return min((usd for usd in known if usd is not None), default=None)

    def shortfall(self, progress: Progress) -> str:
        """Why the job cannot be done in time, "" where it can; of a job that may move where no market can do it."""
        told = [live.shortfall(progress) for live in (self.live, *self.others)]
        return told[0] if all(told) else ""

    @property
    def progress_report(self) -> Report | None:
        """The report its progress goes back to, None if it is reckoned from the decisions alone."""
        said = [one for one in self.reports if one.finished or one.progress is not None]
        return said[-1] if said else None


def open_job(
    request: JobRequest,
    history: History,
    *,
    decided: Mapping[pd.Timestamp, Allocation],
    forecasts: Sequence[Forecast] = (),
    peers: Sequence[History] = (),
    reports: Sequence[Report] = (),
    fresh: Freshness | None = None,
) -> OpenJob:
    """Line a placed request up with its market's history; see `live_job`.

    Of ``reports`` those count that are about the start of the slot to decide or before and were known by then.
    """
    job, start = job_on(request, history)
    said = counting(reports, known_at=history.known_at.floor(history.step))
    live = live_job(
        job,
        start,
        history,
        decided=decided,
        forecasts=forecasts,
        peers=peers,
        reported=as_reported(said, request, job, start=start, step=history.step),
    )
    return OpenJob(request=request, history=history, live=live, reports=tuple(said), fresh=fresh)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMovable:
    """A request whose job may move among the markets of ``histories``, as it stands at the slot to decide.

    ``because`` says why its mover decides, "" where nothing was learned of movers yet.
    """

    request: JobRequest
    histories: tuple[History, ...]
    live: LiveMovable
    reports: tuple[Report, ...] = ()
    because: str = ""
    fresh: Freshness | None = None

    @property
    def places(self) -> tuple[str, ...]:
        """The names of its markets, as decisions have them."""
        return tuple(history.market.key for history in self.histories)

    @property
    def held(self) -> HeldBefore:
        """The instances that it holds as the slot to decide begins."""
        return _held_before(
            self.live.slot, self.reports, self.live.reported, self.held_in(self.live.slot - 1)
        )

    def held_in(self, slot: int) -> Allocation:
        """What could be held of the decision of an earlier slot, in whichever market."""
        decided, live = self.live.decided.get(slot), self.live
        if decided is None or decided.market is None:
            return NOTHING
        there = live.lives[decided.market].seen.available[slot]
        return could_hold(live.job.runs[decided.market], decided.allocation, there)

    def after(self, decided: Mapping[int, tuple[str | None, Allocation]]) -> OpenMovable:
        """The job with later decisions, by slot: a market's name (None: nothing held), and what to hold there."""
        own = {
            slot: MovingHold(None if key is None else self.places.index(key), allocation)
            for slot, (key, allocation) in decided.items()
            if key is None or key in self.places
        }
        return replace(self, live=replace(self.live, decided={**self.live.decided, **own}))

    def in_market(self, m: int) -> OpenJob:
        """The job as it is seen from one of its markets; of one that is nowhere yet the first, with what is assumed of any."""
        if m < len(self.histories):
            history = self.histories[m]
        else:
            m, assumed = 0, (text for one in self.histories for text in one.assumptions)
            history = replace(self.histories[m], assumptions=tuple(dict.fromkeys(assumed)))
        return OpenJob(
            request=self.request,
            history=history,
            live=self.live.lives[m],
            reports=self.reports,
            places=self.places,
            others=tuple(live for k, live in enumerate(self.live.lives) if k != m),
            fresh=self.fresh,
            held_anywhere=self.held,
        )


def open_movable(
    request: JobRequest,
    histories: Sequence[History],
    *,
    decided: Mapping[pd.Timestamp, tuple[str | None, Allocation]],
    forecasts: Sequence[Sequence[Forecast]] | None = None,
    peers: Sequence[Sequence[History]] | None = None,
    reports: Sequence[Report] = (),
    by: tuple[Mover[Any], str] = (LIVE_MOVER, ""),
    fresh: Freshness | None = None,
) -> OpenMovable:
    """Line a placed request that may move up with the histories of its markets, its home first if it has one.

    ``decided`` is by slot: the name of a market (None: none) and what to hold there; ``forecasts`` and ``peers`` are those of each
    market; ``by`` is who decides, and why. Raises `JobError` where it was decided to be in a market that is not among them.
    """
    nothing: Sequence[Sequence[Any]] = [()] * len(histories)
    job = movable_job(request, histories, None if request.market is None else 0)
    step, start = histories[0].step, first_slot(request, histories[0].step)
    keys = [history.market.key for history in histories]
    said = counting(reports, known_at=histories[0].known_at.floor(step))
    been = [(slot, key) for slot, (key, _) in decided.items()] + [
        (one.reported_at, one.market) for one in said
    ]
    for slot, key in been:
        if key is not None and key not in keys:
            raise JobError(
                f"job {request.name!r} was to be in {key} at {slot}, which cannot be read now",
                expected=f"one of {', '.join(keys)}",
                remedy="bring its source back, or give the job another name",
            )
    reported = as_reported(said, request, job.job, start=start, step=step)
    places = {
        one.slot: keys.index(report.market)
        for report, one in zip(said, reported, strict=True)
        if report.market is not None
    }
    lives = [
        live_job(run, start, history, decided={}, forecasts=ahead, peers=others, reported=reported)
        for run, history, ahead, others in zip(
            job.runs, histories, forecasts or nothing, peers or nothing, strict=True
        )
    ]
    held = {
        round((slot - start) / step): MovingHold(None if key is None else keys.index(key), allocation)
        for slot, (key, allocation) in decided.items()
    }
    return OpenMovable(
        request=request,
        histories=tuple(histories),
        live=replace(live_movable(job, lives, held, _short_names(histories), reported, by[0]), places=places),
        reports=tuple(said),
        because=by[1],
        fresh=fresh,
    )


def _short_names(histories: Sequence[History]) -> list[str]:
    """What sentences call the markets: their zones where no two share one."""
    zones = [history.market.zone for history in histories]
    return zones if len(set(zones)) == len(zones) else [history.market.key for history in histories]


def check_report(report: Report, stored: StoredJob, earlier: Sequence[Report]) -> None:
    """Raise `JobError` on the first thing a report cannot say, given those that count so far (``earlier``)."""
    request = stored.request
    if not request.starts <= report.reported_at <= request.ends:
        raise JobError(
            f"a report of job {report.job!r} at {report.reported_at.isoformat()}",
            expected=f"a time in the job, {request.starts.isoformat()} to {request.ends.isoformat()}",
            remedy="give the time it was true with --at TIME",
        )
    if report.known_at < report.reported_at:
        raise JobError(
            f"a report at {report.reported_at.isoformat()} known at {report.known_at.isoformat()}",
            expected="a time at or after the one it is about",
        )
    if report.progress is None and report.held is None and report.market is None and not report.finished:
        raise JobError(
            f"a report of job {report.job!r} that says nothing",
            expected="progress, instances held, the market of a job that may move, or --finished",
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
    """The progress a report stands for, in the unit of the workload; all of it once finished, None if it says nothing of it."""
    return amount if report.finished else report.progress


def differences(report: Report, stored: StoredJob, decided: Mapping[pd.Timestamp, Allocation]) -> list[str]:
    """Sentences on what was held otherwise than the job allows or than was ``decided`` for the slot; none forbids the report."""
    held = report.held
    if held is None or report.finished:
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
            f"in the slot of {slot.isoformat()} {advised.on_demand} on-demand and {advised.spot} spot were advised, "
            f"{held.on_demand} and {held.spot} held"
        )
    return found


def elsewhere(
    report: Report, stored: StoredJob, decided: Mapping[pd.Timestamp, tuple[str | None, Allocation]]
) -> list[str]:
    """A sentence where a job that may move ran in another market than was ``decided``; it does not forbid the report."""
    slot = max(stored.start, (report.reported_at - MOMENT).floor(stored.step))
    advised = decided.get(slot, (None, None))[0]
    if report.market is None or advised in (None, report.market):
        return []
    return [
        f"in the slot of {slot.isoformat()} {advised} was advised, it ran in {report.market}: the next plan starts there"
    ]


def save_report(store: Store, report: Report, stored: StoredJob) -> tuple[Report, bool]:
    """Keep a report; the report as kept, and whether it is new. The same again as the one that counts adds nothing.

    A correction is never known before what it corrects. Raises `JobError` as `check_report` does.
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
    }


def report_row(report: Report, stored: StoredJob) -> dict[str, Any]:
    """A report as plain values; ``counts_from`` is the first slot whose decision counts it. A job that may move has its market."""
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
        "note": report.note,
        "counts_from": max(stored.start, report.known_at.ceil(stored.step)),
    }


# ---
# What reports of filled jobs say of their throughput: measured beside predicted, and fed back to the predictions (M9.4,
# M1.2).
#
# Nothing of it is stored: it follows from the reports, which are kept with the time they became known, so that a correction
# of a report corrects what was measured, and a look at an earlier time measures what could be measured then.

SOURCE = "reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Tokens per second of a filled job from one report to the next, on ``instances`` held all the while, beside the prediction."""

    job: str
    filled: FilledConfiguration
    instances: int
    since: pd.Timestamp
    reported_at: pd.Timestamp
    tokens_per_second: float

    @property
    def predicted(self) -> float:
        """The median that was predicted when the job was filled, tokens per second."""
        return self.filled.tokens_per_second[self.instances - 1]

    @property
    def interval(self) -> tuple[float, float]:
        """The 90 % interval that was predicted, tokens per second."""
        return self.filled.low[self.instances - 1], self.filled.high[self.instances - 1]

    @property
    def inside(self) -> bool:
        """Whether it is inside the interval."""
        low, high = self.interval
        return low <= self.tokens_per_second <= high

    def row(self) -> dict[str, Any]:
        """It as plain values; ``error`` is measured over predicted, less one."""
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
        """It as a row of measured runs: rounds of whole batches a GPU, as `optimization.requests.candidates` predicts them."""
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
    """A report and what went before it: the report that last said progress (None: the job's start), and those between."""

    report: Report
    before: Report | None
    between: tuple[Report, ...]


def measured_run(
    stored: StoredJob, decided: Mapping[pd.Timestamp, Allocation], stretch: ReportedStretch
) -> MeasuredRun | str:
    """The throughput that a report shows, or why it shows none (ours).

    One size must have been held since the report before: both reports say so, or the report and every decision between. A
    change of size at its beginning takes the job's overhead off the time.
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
    """The different sizes that were held from ``since`` to the report, as far as is known."""
    told = {one.held.total for one in (*stretch.between, stretch.report) if one.held is not None}
    before = stretch.before.held if stretch.before else None
    if before is not None and stretch.report.held is not None and told == {before.total}:
        return told  # said at both ends: what was decided in between was not followed, if it was another
    slots = pd.date_range(
        since.floor(stored.step), stretch.report.reported_at, freq=stored.step, inclusive="left"
    )
    inside = [decided[slot].total for slot in slots if slot in decided]
    if stretch.report.held is None and len(inside) < len(slots):
        return set()  # neither said nor decided
    if before is not None and not inside:
        told.add(before.total)
    return told | set(inside)


def _overhead(
    stored: StoredJob, decided: Mapping[pd.Timestamp, Allocation], stretch: ReportedStretch, instances: int
) -> float:
    """Minutes that a change of size at the beginning took."""
    point = stored.request.checkpoint
    if stretch.before is None:
        return point.overhead_minutes  # from nothing
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
    """The reports that count, ascending, each with what went before it."""
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
    """For every report that counts what it measured, as plain values (``why_not`` says why nothing); None for jobs that
    were not filled.
    """
    if stored.request.configuration is None:
        return [None for _ in reports]
    rows: list[dict[str, Any] | None] = []
    for stretch in stretches(reports):
        found = measured_run(stored, decided, stretch)
        rows.append({"why_not": found} if isinstance(found, str) else found.row())
    return rows


def throughput_told(row: Mapping[str, Any]) -> str:
    """A sentence on a row of `measured_rows`."""
    if row["why_not"]:
        return f"the throughput was not measured: {row['why_not']}"
    place = "inside" if row["inside"] else "outside"
    return (
        f"{row['tokens_per_second']:.0f} tokens/s on {row['instances']} instances, predicted {row['predicted']:.0f} "
        f"({row['error']:+.1%}), {place} the 90 % interval {row['low']:.0f} to {row['high']:.0f}"
    )
