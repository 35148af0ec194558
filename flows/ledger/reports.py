"""What users say of their running jobs: kept with when it became known, and where the next plan starts from (M1.2, M2.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from flows.ledger.jobs import StoredJob
from flows.show.formats import rows_of
from forecasting.quantiles import Forecast
from optimization.job.definition import Job, finished
from optimization.job.request import JobRequest, job_on
from optimization.replay.decision import LiveJob, Reported, live_job
from optimization.window.plan import Allocation
from warehouse.errors import JobError
from warehouse.history import History
from warehouse.issued import read_rows, write_rows
from warehouse.store.connection import Store

#: The least time there is in the warehouse.
MOMENT = pd.Timedelta(microseconds=1)
#: More instances than anybody holds: a slip of the hand.
MOST_INSTANCES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was said of a job at ``reported_at``, known from ``known_at`` on.

    ``progress`` is in the unit of the job's own workload, ``on_demand`` and ``spot`` are what was held; None: not said.
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

    @property
    def held(self) -> Allocation | None:
        """The instances held, None where nothing was said of them; what was left out of the two is none."""
        if self.on_demand is None and self.spot is None:
            return None
        return Allocation(self.on_demand or 0, self.spot or 0)

    def says(self) -> tuple[object, ...]:
        """Everything it says, without when it became known."""
        return (self.progress, self.on_demand, self.spot, self.finished, self.note)


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
class OpenJob:
    """A request whose job is running on the market of ``history``, as it stands at the slot to decide.

    ``reports`` are those that count by then.
    """

    request: JobRequest
    history: History
    live: LiveJob
    reports: tuple[Report, ...] = ()

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
    return OpenJob(request=request, history=history, live=live, reports=tuple(said))


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
    if report.progress is None and report.held is None and not report.finished:
        raise JobError(
            f"a report of job {report.job!r} that says nothing",
            expected="progress, instances held or --finished",
            remedy="see `slackwater job report --help`",
        )
    for name, count in (("on-demand", report.on_demand), ("spot", report.spot)):
        if count is not None and not 0 <= count <= MOST_INSTANCES:
            raise JobError(f"{count} {name} instances held", expected=f"0 to {MOST_INSTANCES}")
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
    if held.total and not request.n_min <= held.total <= request.n_max:
        counted = "none" if held.total < request.n_min else str(request.n_max)
        found.append(
            f"{held.total} instances held, the job's bounds are {request.n_min} to {request.n_max}: plans count {counted}"
        )
    slot = max(stored.start, (report.reported_at - MOMENT).floor(stored.step))
    advised = decided.get(slot)
    if advised is not None and advised != held:
        found.append(
            f"in the slot of {slot.isoformat()} {advised.on_demand} on-demand and {advised.spot} spot were advised, "
            f"{held.on_demand} and {held.spot} held"
        )
    return found


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
            store, "reports", pd.DataFrame([_row(report)]).astype({"on_demand": "Int32", "spot": "Int32"})
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
    }


def report_row(report: Report, stored: StoredJob) -> dict[str, Any]:
    """A report as plain values; ``counts_from`` is the first slot whose decision counts it."""
    workload = stored.request.workload
    done = work_said(report, workload.amount)
    return {
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
