"""What ``job add``, ``job list`` and ``job show`` do; ``job report`` is in `flows.job_report_command`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from flows.clock import parse_time
from flows.commands import DECISION_COLUMNS, logical_time
from flows.config import read_settings
from flows.deliver import deliveries_of
from flows.frames import rows_of
from flows.job_report import Report, reports_by_job
from flows.jobfile import read_request, slot_job
from flows.markets import find_market, read_history, step_of
from flows.measured_runs import throughput_told
from flows.printing import print_json, print_table
from flows.records import StoredJob, decisions_of, find_job, save_jobs, stored_jobs
from optimization.termination import infeasible_by
from warehouse.errors import JobError, MarketError
from warehouse.store import open_reader, open_store, read_rows


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
    from flows.job_predicted import reports_shown  # here, since it loads what decisions are made with

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
