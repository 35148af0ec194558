"""What ``job report`` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from flows.clock import now, parse_time
from flows.command.answer import print_json, print_table
from flows.command.context import DECISION_COLUMNS, logical_time
from flows.config import read_settings
from flows.delivery.deliver import deliveries_of
from flows.jobs.file import JobRequest, read_request, slot_job
from flows.jobs.reports import (
    Report,
    counting,
    differences,
    every_report,
    report_row,
    reports_by_job,
    save_report,
)
from flows.ledger.records import StoredJob, decisions_of, find_job, save_jobs, stored_jobs
from flows.requests.measured_runs import measured_rows, throughput_told
from flows.show.table import rows_of
from flows.turn.markets import find_market, read_history, step_of
from optimization.job.termination import infeasible_by
from warehouse.errors import JobError, MarketError
from warehouse.issued.records import read_rows
from warehouse.reader import open_reader
from warehouse.store.connection import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The options of ``job report`` that say something of the job."""

    progress: float | None
    progress_share: float | None
    tokens: float | None
    on_demand: int | None
    spot: int | None
    finished: bool
    note: str

    def work(self, request: JobRequest) -> float | None:
        """The progress in the unit of the job's workload; raises `JobError` if it is said twice or in a unit it does not have."""
        given = [name for name in ("progress", "progress_share", "tokens") if getattr(self, name) is not None]
        if len(given) > 1:
            options = " and ".join("--" + name.replace("_", "-") for name in given)
            raise JobError(f"progress given as {options}", expected="one of them")
        if self.tokens is not None and request.workload.unit != "tokens":
            raise JobError(
                f"job {request.name!r} counts its work in {request.workload.unit}, not in tokens",
                remedy="use --progress or --progress-share",
            )
        if self.progress_share is None:
            return self.progress if self.tokens is None else self.tokens
        if not 0.0 <= self.progress_share <= 1.0:
            raise JobError(f"a progress share of {self.progress_share:g}", expected="0 to 1")
        return self.progress_share * request.workload.amount


def job_report_command(
    name: str, said: Said, *, at: str | None, known_at: str | None, db: Path, as_json: bool
) -> None:
    """``slackwater job report``: keep what was done and held up to a time; the next plan starts from it."""
    when = parse_time(at, "--at") if at else now().floor("s")
    with open_store(db) as store:
        stored = find_job(store, name)
        report = Report(
            job=name,
            reported_at=when,
            known_at=parse_time(known_at, "--known-at") if known_at else when,
            progress=said.work(stored.request),
            on_demand=said.on_demand,
            spot=said.spot,
            finished=said.finished,
            note=said.note,
        )
        kept, added = save_report(store, report, stored)
        decisions = decisions_of(store, name)
        warnings = differences(kept, stored, decisions)
        reports = counting(every_report(store, [name]))
    answer = report_row(kept, stored) | {"added": added, "warnings": warnings}
    told = measured_rows(stored, decisions, reports)[reports.index(kept)] if kept in reports else None
    if told is not None:
        answer["throughput"] = told
    if as_json:
        print_json(answer)
        return
    shown = (
        "job",
        "reported_at",
        "progress",
        "progress_share",
        "on_demand",
        "spot",
        "finished",
        "counts_from",
    )
    print_table(
        "Report" if added else "Report (known already)",
        [answer],
        {key: key.replace("_", " ") for key in shown},
    )
    for warning in warnings:
        print(f"* {warning}")
    if told is not None:
        print(f"* {throughput_told(told)}")


# ---
# What ``job add``, ``job list`` and ``job show`` do; ``job report`` is in `flows.jobs.command`.


def job_add_command(
    file: Path, *, market: str | None, name: str | None, db: Path, at: str | None, as_json: bool
) -> None:
    """``slackwater job add``: keep a job, planned in every later run until it ends."""
    request = read_request(file)
    if name:
        request = request.model_copy(update={"name": name})
    settings = read_settings(None)
    text = market or request.market
    if text is None:
        raise MarketError(f"job {request.name!r} names no market", remedy="give --market MARKET")
    with open_store(db) as store:
        when, own_end = logical_time(store, at)
        followed = find_market(store, text, at=when, settings=settings, own_end=own_end and at is None)
        placed = request.placed(at=followed.at, market=followed.market.key, source=followed.source)
        history = read_history(store, followed, settings=settings, start=followed.at)
        job = slot_job(placed, step=step_of(settings), on_demand_usd=history.on_demand_usd)
        added = save_jobs(store, [placed], origin="user", at=followed.at, step=step_of(settings))
    answer = {
        "job": job.name,
        "added": bool(added),
        "market": followed.market.key,
        "source": followed.source,
        "start": placed.start,
        "deadline": placed.deadline,
        "deadline_slots": job.deadline_slots,
        "workload": job.workload,
        "value_usd": job.value,
        "must_finish": job.must_finish,
        "infeasible_by_slots": infeasible_by(job, slot_hours=history.slot_hours),
        "note": "no value given: one was chosen that never gives up while finishing is possible"
        if job.must_finish
        else "",
    }
    if as_json:
        print_json(answer)
    else:
        print_table("Job", [answer], {key: key.replace("_", " ") for key in answer if key != "added"})


def job_list_command(*, db: Path, at: str | None, as_json: bool) -> None:
    """``slackwater job list``."""
    with open_reader(db) as store:
        jobs = stored_jobs(store)
        scored = set(read_rows(store, "outcomes")["job"])
        reports = reports_by_job(store, [job.request.name for job in jobs])
        when = parse_time(at, "--at") if at else None
    rows = [
        {
            "job": job.request.name,
            "market": job.request.market,
            "start": job.start,
            "deadline": job.deadline,
            "origin": job.origin,
            "state": "scored" if job.request.name in scored else _state(job, when, reports[job.request.name]),
        }
        for job in jobs
    ]
    if as_json:
        print_json({"jobs": rows})
    else:
        print_table(
            "Jobs", rows, {key: key for key in ("job", "market", "start", "deadline", "origin", "state")}
        )


def _state(job: StoredJob, at: pd.Timestamp | None, reports: Sequence[Report]) -> str:
    if any(report.finished and (at is None or report.reported_at <= at) for report in reports):
        return "finished"
    if at is None:
        return "open"
    return "ended" if job.deadline <= at else "running" if job.start <= at else "waiting"


REPORT_COLUMNS = {
    "reported_at": "at (UTC)", "progress": "reported", "predicted": "predicted", "off": "off by",
    "on_demand": "on-demand", "spot": "spot", "finished": "finished", "known_at": "known at", "note": "note",
}  # fmt: skip


def job_show_command(name: str, *, db: Path, settings: Path | None, as_json: bool) -> None:
    """``slackwater job show``: a job, its decisions and where they were sent, what was reported of it, its outcomes."""
    from flows.jobs.predicted import reports_shown

    if not db.exists():
        raise JobError(
            f"no job {name!r}: there is no warehouse at {db}", remedy="`slackwater job add` makes one"
        )
    with open_reader(db) as store:
        job = find_job(store, name)
        decisions = decisions_of(store, name)
        reports = reports_shown(store, job, decisions, read_settings(settings))
        deliveries = [one.row() for one in deliveries_of(store, name)]
        outcomes = rows_of(read_rows(store, "outcomes", where={"job": name}))
    outcomes.sort(key=lambda row: -row["utility_usd"])
    if as_json:
        print_json(
            {
                "job": job.request.model_dump(mode="json"),
                "origin": job.origin,
                "decisions": decisions,
                "reports": reports,
                "deliveries": deliveries,
                "outcomes": [{key: row[key] for key in OUTCOME_KEYS} for row in outcomes],
            }
        )
        return
    print(job.request.model_dump_json(indent=2, exclude_none=True))
    print_table("Decisions", decisions, DECISION_COLUMNS)
    if reports:
        print_table(f"Reports, in {job.request.workload.unit}", reports, REPORT_COLUMNS)
        print(how_far_off(reports, job.request.workload.unit))
        for row in reports:
            if "throughput" in row:
                print(f"* {row['reported_at']:%Y-%m-%d %H:%M}: {throughput_told(row['throughput'])}")
    if deliveries:
        keys = ("slot", "sink", "status", "attempts", "reason")
        print_table("Deliveries", deliveries, {key: key for key in keys})
    print_table("Outcomes (best 10)", outcomes[:10], {key: key.replace("_", " ") for key in OUTCOME_KEYS})


def how_far_off(reports: Sequence[Mapping[str, Any]], unit: str) -> str:
    """A sentence on how far the throughput of the job file was off, from report to report."""
    told = [row for row in reports if row["off"] is not None]
    if not told:
        return "* how far the predicted progress was off is not known"
    off = sum(row["off"] for row in told)
    return (
        f"* progress was {abs(off):.4g} {unit} {'more' if off >= 0 else 'less'} than predicted from what was decided, "
        f"over {len(told)} {'report' if len(told) == 1 else 'reports'}"
    )


OUTCOME_KEYS = (
    "policy",
    "utility_usd",
    "cost_usd",
    "on_time",
    "finish_slots",
    "spot_share",
    "hindsight_high_usd",
)
