"""Reports of users on their running jobs, stored with the time they became known; the next plan uses them (M1.2, M2.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd

from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.show.formats import rows_of, utc
from slackwater.optimization.job.definition import Allocation, is_finished
from slackwater.optimization.job.request import MOST, JobRequest
from slackwater.optimization.job.times import MEASURABLE
from slackwater.optimization.job.units import instance_range, named_market
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.history import Market
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.store.connection import Store

MOMENT = pd.Timedelta(microseconds=1)  # Resolution of times in the warehouse
MOST_INSTANCES = 1_000_000  # Most instances in a report: more are a typing error
#: Numbers of spot instances in a report of own launches, and how long they were held (M13.1).
LAUNCH_COUNTS = ("asked", "granted", "lost")
HELD_MINUTES = "held_minutes"
MOST_HELD = 7 * 24 * 60.0  # Longest time that spot instances were held before a report, in minutes: a week


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report on a job for the time ``reported_at``, known from ``known_at`` on.

    ``progress`` is in the unit of the job's workload, ``on_demand`` and ``spot`` are the instances
    that ran, ``market`` is where a multi-market job ran; None: not reported. ``withdrawn``: the
    owner ended the job before its work was done. ``revision`` counts reports with equal
    ``reported_at`` and ``known_at``. Measured minutes are those of `MEASURABLE` times (M12.9).

    Own launches (M13.1): ``granted`` of ``asked`` spot instances run (0: none were requested), ``lost``
    spot instances were lost at this time, and the spot instances were held for ``held_minutes`` before it.
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
    boot_minutes: float | None = None
    restart_minutes: float | None = None
    checkpoint_minutes: float | None = None
    on_demand_wait_minutes: float | None = None
    asked: int | None = None
    granted: int | None = None
    lost: int | None = None
    held_minutes: float | None = None

    @property
    def launch(self) -> dict[str, float]:
        """Reported own launches."""
        found = {key: getattr(self, key) for key in (*LAUNCH_COUNTS, HELD_MINUTES)}
        return {key: value for key, value in found.items() if value is not None}

    @property
    def measured(self) -> dict[str, float]:
        """The measured times that were reported."""
        found = {key: getattr(self, key) for key in MEASURABLE}
        return {key: value for key, value in found.items() if value is not None}

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

    def says(self) -> Report:
        """Return the content of the report, without the time it became known."""
        return replace(self, known_at=self.reported_at, revision=0)


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
        store, "reports", where={"job": list(jobs)}, order_by=["job", "known_at", "reported_at", "revision"]
    )
    return [_report(row) for row in rows_of(rows)]


#: Columns that are null where nothing was reported, with their types.
_OPTIONAL: Mapping[str, type] = {
    "progress": float, "on_demand": int, "spot": int, "market": str, **dict.fromkeys(LAUNCH_COUNTS, int),
    **dict.fromkeys((*MEASURABLE, HELD_MINUTES), float),
}  # fmt: skip


def _report(row: dict[str, Any]) -> Report:
    optional = {key: None if pd.isna(row[key]) else kind(row[key]) for key, kind in _OPTIONAL.items()}
    return Report(
        job=str(row["job"]),
        reported_at=pd.Timestamp(row["reported_at"]).tz_convert("UTC"),
        known_at=pd.Timestamp(row["known_at"]).tz_convert("UTC"),
        revision=int(row["revision"]),
        finished=bool(row["finished"]),
        withdrawn=bool(pd.notna(row["withdrawn"]) and row["withdrawn"]),
        note=str(row["note"]),
        **optional,
    )


def counting(reports: Iterable[Report], *, known_at: pd.Timestamp | None = None) -> list[Report]:
    """Return the reports in force at ``known_at``: the newest for every reported time up to then, ascending (M1.2)."""
    newest: dict[pd.Timestamp, Report] = {}
    for report in sorted(reports, key=lambda entry: (entry.known_at, entry.revision)):
        if known_at is None or max(report.known_at, report.reported_at) <= known_at:
            newest[report.reported_at] = report
    return [newest[when] for when in sorted(newest)]


def measured_times(reports: Iterable[Report]) -> dict[str, float]:
    """Return the measured times of a job by key: of several reports in force the largest, which the guard relies on (M12.9)."""
    found: dict[str, float] = {}
    for report in reports:
        for key, value in report.measured.items():
            found[key] = max(value, found.get(key, 0.0))
    return found


def check_report(
    report: Report, stored: StoredJob, earlier: Sequence[Report], *, is_listed: bool = False
) -> None:
    """Raise `JobError` on the first invalid value of a report, given the reports in force so far (``earlier``).

    ``is_listed``: a provider lists the instances, which may run on after the deadline.
    """
    request = stored.request
    if report.reported_at < request.starts:
        raise JobError(
            f"a report of job {report.job!r} at {report.reported_at.isoformat()}",
            expected=f"a time after its start, {request.starts.isoformat()}",
            remedy="give the time it was true with --at TIME",
        )
    has_place = report.held is not None or report.market is not None
    if report.reported_at > request.ends and has_place and not is_listed:
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
            expected="a time at or after the time of the report",
        )
    has_more = (
        report.measured
        or report.launch
        or report.ends
        or report.held is not None
        or report.market is not None
    )
    if report.progress is None and not has_more:
        raise JobError(
            f"an empty report of job {report.job!r}",
            expected="progress, running instances, measured minutes, the market of a multi-market job, --finished or --withdrawn",
            remedy="see `slackwater job report --help`",
        )
    for key, minutes in report.measured.items():
        most, unit = MOST[key]
        if not 0.0 <= minutes <= most:
            raise JobError(f"{key} of {minutes:g}", expected=f"0 to {most:,.0f} {unit}")
    for name, count in (("on-demand", report.on_demand), ("spot", report.spot)):
        if count is not None and not 0 <= count <= MOST_INSTANCES:
            raise JobError(f"{count} {name} instances held", expected=f"0 to {MOST_INSTANCES}")
    if report.market is not None and not request.may_move:
        raise JobError(
            f"a report of job {report.job!r} in {report.market}",
            expected=f"no market: it runs in {request.market} only",
            remedy="leave --market out",
        )
    _check_launch(report)
    _check_progress(report, request, earlier)


def _check_launch(report: Report) -> None:
    requested, granted, lost = report.asked, report.granted, report.lost
    if requested is not None and granted is None:
        raise JobError(
            f"{requested} spot instances requested for job {report.job!r}, and not how many were granted",
            remedy="say so with --granted N; 0 if the request was refused",
        )
    if granted is not None and requested is None:
        raise JobError(
            f"{granted} spot instances granted to job {report.job!r}, and no spot was advised in this slot",
            remedy="give the number requested with --asked N",
        )
    for key, value, least, most in (
        ("asked", requested, 0, MOST_INSTANCES),
        ("granted", granted, 0, requested or 0),
        ("lost", lost, 1, MOST_INSTANCES),
        (HELD_MINUTES, report.held_minutes, 0, MOST_HELD),
    ):
        if value is not None and not least <= value <= most:
            raise JobError(f"{key} = {value:g} of job {report.job!r}", expected=f"{least:,} to {most:,.0f}")


def slot_of_report(report: Report, stored: StoredJob) -> pd.Timestamp:
    """Return the slot in which the reported instances ran: a report at the start of a slot is of the slot before."""
    return max(stored.start, (report.reported_at - MOMENT).floor(stored.step))


def with_advised(report: Report, stored: StoredJob, decided: Mapping[pd.Timestamp, Allocation]) -> Report:
    """Return a report of own launches with the instances that follow from the decision of its slot.

    The requested spot instances are those decided. Running are the granted instances, or the
    decided instances less the lost; on-demand runs as decided.
    """
    if not report.launch:
        return report
    slot = slot_of_report(report, stored)
    advised = decided.get(slot, Allocation(0, 0))
    requested, spot, on_demand = report.asked, report.spot, report.on_demand
    if requested is None and report.granted is not None:
        requested = advised.spot or None
    if spot is None and report.granted is not None:
        spot = report.granted
    elif spot is None and report.lost is not None:
        spot = max(0, advised.spot - report.lost)
    if spot is not None and on_demand is None:
        on_demand = advised.on_demand
    return replace(report, asked=requested, spot=spot, on_demand=on_demand)


def _check_progress(report: Report, request: JobRequest, earlier: Sequence[Report]) -> None:
    amount, unit = request.workload.amount, request.workload.unit
    done = work_said(report, amount)
    if done is None:
        return
    if not (math.isfinite(done) and done >= 0 and is_finished(amount, done)):
        raise JobError(
            f"progress of {done:g} {unit} of job {report.job!r}",
            expected=f"0 to its workload of {amount:g} {unit}",
        )
    if report.finished and report.progress is not None and not is_finished(report.progress, amount):
        raise JobError(
            f"job {report.job!r} finished with {report.progress:g} of {amount:g} {unit} done",
            expected="all of it, or no --finished",
        )
    for other in earlier:
        reported = work_said(other, amount)
        if reported is None or other.reported_at == report.reported_at:
            continue
        before = other.reported_at < report.reported_at
        if reported > done if before else reported < done:
            raise JobError(
                f"progress of {done:g} {unit} at {report.reported_at.isoformat()}",
                expected=f"{'no less' if before else 'no more'} than the {reported:g} {unit} reported for "
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
    slot = slot_of_report(report, stored)
    advised = decided.get(slot)
    if advised is not None and advised != held:
        found.append(
            f"decided for the slot of {utc(slot)}: {advised.on_demand} on-demand and {advised.spot} spot, "
            f"reported: {held.on_demand} and {held.spot}"
        )
    return found


def elsewhere(
    report: Report, stored: StoredJob, decided: Mapping[pd.Timestamp, tuple[str | None, Allocation]]
) -> list[str]:
    """Return a warning if a multi-market job ran in another market than ``decided``."""
    slot = slot_of_report(report, stored)
    advised = decided.get(slot, (None, None))[0]
    if report.market is None or advised in (None, report.market):
        return []
    return [
        f"in the slot of {slot.isoformat()} {advised} was advised, it ran in {report.market}: the next plan starts there"
    ]


def save_report(
    store: Store, report: Report, stored: StoredJob, *, is_listed: bool = False
) -> tuple[Report, bool]:
    """Store a report; return it as stored, and whether it is new.

    A report with the content of the report in force adds nothing. A correction becomes known no
    earlier than the reports it corrects. Raises `JobError` as `check_report` does.
    """
    with store.transaction():
        known = every_report(store, [report.job])
        counts = counting(known)
        check_report(report, stored, counts, is_listed=is_listed)
        same = next((count for count in counts if count.reported_at == report.reported_at), None)
        if same is not None and same.says() == report.says():
            return same, False
        after = [earlier.known_at for earlier in known if earlier.reported_at == report.reported_at]
        known_at = max([report.known_at, *after])
        report = replace(report, known_at=known_at, revision=after.count(known_at))
        write_rows(
            store,
            "reports",
            pd.DataFrame([asdict(report)]).astype(
                {"on_demand": "Int32", "spot": "Int32", "market": "string"}
                | dict.fromkeys(LAUNCH_COUNTS, "Int32")
                | dict.fromkeys((*MEASURABLE, HELD_MINUTES), "float64")
            ),
        )
    return report, True


def report_row(report: Report, stored: StoredJob) -> dict[str, Any]:
    """Return a report as plain values; ``counts_from`` is the first slot whose decision uses it."""
    workload = stored.request.workload
    done = work_said(report, workload.amount)
    place = {"market": report.market} if stored.request.may_move else {}
    return place | {
        "job": report.job,
        "reported_at": report.reported_at,
        "known_at": report.known_at,
        "revision": report.revision,
        "progress": done,
        "progress_share": None if done is None else round(done / workload.amount, 6),
        "workload": workload.amount,
        "workload_unit": workload.unit,
        "on_demand": report.on_demand,
        "spot": report.spot,
        "finished": report.finished,
        "withdrawn": report.withdrawn,
        "note": report.note,
        **report.measured,
        **report.launch,
        "counts_from": max(stored.start, report.known_at.ceil(stored.step)),
    }
