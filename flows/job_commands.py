"""What ``job add``, ``job list`` and ``job show`` do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from flows.clock import parse_time
from flows.commands import DECISION_COLUMNS, logical_time
from flows.config import read_settings
from flows.frames import rows_of
from flows.jobfile import read_request, slot_job
from flows.markets import find_market, read_history, step_of
from flows.printing import print_json, print_table
from flows.records import decisions_of, find_job, save_jobs, stored_jobs
from optimization.termination import infeasible_by
from warehouse.errors import MarketError
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
        when = parse_time(at, "--at") if at else None
    rows = [
        {
            "job": job.request.name,
            "market": job.request.market,
            "start": job.start,
            "deadline": job.deadline,
            "origin": job.origin,
            "state": "scored" if job.request.name in scored else _state(job, when),
        }
        for job in jobs
    ]
    if as_json:
        print_json({"jobs": rows})
    else:
        print_table(
            "Jobs", rows, {key: key for key in ("job", "market", "start", "deadline", "origin", "state")}
        )


def _state(job: Any, at: pd.Timestamp | None) -> str:
    if at is None:
        return "open"
    return "ended" if job.deadline <= at else "running" if job.start <= at else "waiting"


def job_show_command(name: str, *, db: Path, as_json: bool) -> None:
    """``slackwater job show``: a job, its decisions, its outcomes."""
    with open_reader(db) as store:
        job = find_job(store, name)
        decisions = decisions_of(store, name)
        outcomes = rows_of(read_rows(store, "outcomes", where={"job": name}))
    outcomes.sort(key=lambda row: -row["utility_usd"])
    if as_json:
        print_json(
            {
                "job": job.request.model_dump(mode="json"),
                "origin": job.origin,
                "decisions": decisions,
                "outcomes": [{key: row[key] for key in OUTCOME_KEYS} for row in outcomes],
            }
        )
        return
    print(job.request.model_dump_json(indent=2, exclude_none=True))
    print_table("Decisions", decisions, DECISION_COLUMNS)
    print_table("Outcomes (best 10)", outcomes[:10], {key: key.replace("_", " ") for key in OUTCOME_KEYS})


OUTCOME_KEYS = (
    "policy",
    "utility_usd",
    "cost_usd",
    "on_time",
    "finish_slots",
    "spot_share",
    "hindsight_high_usd",
)
