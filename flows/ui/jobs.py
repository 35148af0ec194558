"""Jobs as plain values: the list, and one job with its decisions and what every policy would have made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from flows.jobs.predicted import reports_shown
from flows.ledger.jobs import StoredJob, find_job, stored_jobs
from flows.show.table import rows_of
from flows.turn.page import LIKELY, WORRYING
from flows.ui.reading import Reading
from flows.ui.standing import Standing, read_decisions, standings
from warehouse.issued.records import read_rows

#: States a job can be in, and the sentence each is explained by.
STATES: Final = {
    "running": "its slots are being decided",
    "waiting": "it has not begun",
    "finished": "its work is done, its deadline is still to come",
    "ended": "its deadline has passed",
}
#: Jobs of one page of the list.
PAGE_JOBS: Final = 40


def state_of(reading: Reading, job: StoredJob, standing: Standing | str | None) -> str:
    """One of `STATES` at the time of the newest turn."""
    if reading.at is None or job.start > reading.at:
        return "waiting"
    if job.deadline <= reading.at:
        return "ended"
    return "finished" if isinstance(standing, Standing) and standing.is_finished else "running"


def risk_of(late: float | None) -> str:
    """How a job is marked by its probability of missing the deadline: "at risk", "likely late", or not at all ("")."""
    if late is None or late < WORRYING:
        return ""
    return "likely late" if late >= LIKELY else "at risk"


def jobs_data(reading: Reading, *, state: str = "", page: int = 1) -> dict[str, Any]:
    """The jobs of one state ("" = all), open ones first, those over by falling deadline; `PAGE_JOBS` a page."""
    stored = stored_jobs(reading.store)
    over = [job for job in stored if state_of(reading, job, None) == "ended"]
    over.sort(key=lambda job: (job.deadline, job.request.name), reverse=True)
    rows = open_rows(reading, stored)
    counts = {name: sum(row["state"] == name for row in rows) for name in STATES} | {"ended": len(over)}
    first = [row for row in rows if state in ("", row["state"])]
    later = over if state in ("", "ended") else []
    pages = max(1, -(-(len(first) + len(later)) // PAGE_JOBS))
    page = min(max(page, 1), pages)
    low, high = (page - 1) * PAGE_JOBS, page * PAGE_JOBS
    shown = first[low:high]
    shown += job_rows(reading, later[max(0, low - len(first)) : max(0, high - len(first))])
    return {"at": reading.at, "state": state, "counts": counts, "page": page, "pages": pages, "jobs": shown}


def open_rows(reading: Reading, stored: Sequence[StoredJob] | None = None) -> list[dict[str, Any]]:
    """The rows of all jobs whose deadline is to come: those in danger first, then running, waiting and finished ones."""
    known = stored_jobs(reading.store) if stored is None else stored
    rows = job_rows(reading, [job for job in known if state_of(reading, job, None) != "ended"])
    order = list(STATES)
    return sorted(rows, key=lambda row: (order.index(row["state"]), -_late(row), row["deadline"], row["job"]))


def _late(row: Mapping[str, Any]) -> float:
    return float((row["hold"] or {}).get("late_probability") or 0.0)


def job_rows(reading: Reading, stored: Sequence[StoredJob]) -> list[dict[str, Any]]:
    """One row a job: what it is, where it stands, what it must hold, and once scored the best policy on it (``best``)."""
    names = [job.request.name for job in stored]
    decided = read_decisions(reading, names)
    found = standings(reading, stored, decided)
    best = _best_policies(reading, names)
    return [
        job_row(reading, job, decided.get(job.request.name, ()), found.get(job.request.name))
        | {"scored": job.request.name in best, "best": best.get(job.request.name)}
        for job in stored
    ]


def _best_policies(reading: Reading, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The policy with the highest utility on each of the jobs that the pool was replayed on, and its cost."""
    if not names:
        return {}
    marks = ", ".join("?" * len(names))
    rows = reading.store.execute(
        f"SELECT job, policy, cost_usd FROM outcomes WHERE job IN ({marks}) QUALIFY "
        "row_number() OVER (PARTITION BY job ORDER BY utility_usd DESC, policy) = 1",
        list(names),
    )
    return {str(job): {"policy": str(policy), "cost_usd": float(cost)} for job, policy, cost in rows}


def job_row(
    reading: Reading,
    job: StoredJob,
    decisions: Sequence[Mapping[str, Any]],
    standing: Standing | str | None,
) -> dict[str, Any]:
    """A job's terms, standing and newest decision; ``problem`` says why there is no standing where one was looked for."""
    request = job.request
    row: dict[str, Any] = {
        "job": request.name, "market": request.market, "source": request.source or "", "origin": job.origin,
        "state": state_of(reading, job, standing), "start": job.start, "deadline": job.deadline,
        "n_min": request.n_min, "n_max": request.n_max, "resumable": request.checkpoint.resumable,
        "value_usd": request.value_usd, "workload": f"{request.workload.amount:g} {request.workload.unit}",
        "share_done": None, "share_expected": None, "slots_ahead": None, "cost_usd": None, "finished_at": None, "reported_at": None,
        "problem": standing if isinstance(standing, str) else "", "hold": None,
    }  # fmt: skip
    if isinstance(standing, Standing):
        row |= {
            "share_done": min(1.0, standing.now.done / standing.job.workload),
            "share_expected": min(1.0, standing.slot / standing.job.deadline_slots),
            "slots_ahead": standing.slots_ahead,
            "cost_usd": standing.now.cost_usd,
            "finished_at": standing.finished_at,
            "reported_at": standing.reported_at,
            "must_finish": standing.job.must_finish,
        }
    if decisions and row["state"] == "running":
        newest = decisions[-1]
        row["source"] = row["source"] or newest.get("source") or ""
        row["hold"] = {
            **newest,
            "risk": risk_of(newest["late_probability"]),
            "current": pd.Timestamp(newest["slot"]) == _due(reading),
        }
    return row


def _due(reading: Reading) -> pd.Timestamp | None:
    """The slot that the newest turn decided."""
    return None if reading.at is None else reading.at.floor(reading.step)


def job_data(reading: Reading, name: str) -> dict[str, Any]:
    """Everything about one job: its row, its slots so far, its decisions, what was reported of it, and all policies' outcomes.

    Raises `JobError` with the known names if there is none of that name.
    """
    job = find_job(reading.store, name)
    decisions = read_decisions(reading, [name]).get(name, [])
    standing = standings(reading, [job], {name: decisions}).get(name)
    outcomes = _outcomes(reading, job)
    return {
        "at": reading.at,
        "job": job_row(reading, job, decisions, standing) | {"scored": bool(outcomes)},
        "request": job.request.model_dump(mode="json", exclude_none=True),
        "slots": _slots(standing) if isinstance(standing, Standing) else [],
        "deadline_slots": standing.job.deadline_slots if isinstance(standing, Standing) else None,
        "decisions": decisions,
        "reports": reports_shown(reading.store, job, decisions, reading.settings),
        "outcomes": outcomes,
    }


def _slots(standing: Standing) -> list[dict[str, Any]]:
    """The job's slots up to the decided one: what it should have done by then, had done, could hold, was told to hold, held."""
    rows: list[dict[str, Any]] = []
    for k in range(min(standing.slot + 1, standing.job.deadline_slots)):
        had = standing.held[k] if k < len(standing.held) else None
        told = standing.decided.get(k)
        rows.append(
            {
                "slot": standing.start + k * standing.step,
                "share_done": standing.done[k] / standing.job.workload,
                "share_expected": k / standing.job.deadline_slots,
                "price_usd": _number(standing.price[k]),
                "available": _number(standing.available[k]),
                "decided_on_demand": None if told is None else told.on_demand,
                "decided_spot": None if told is None else told.spot,
                "held_on_demand": None if had is None else had.on_demand,
                "held_spot": None if had is None else had.spot,
            }
        )
    return rows


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _outcomes(reading: Reading, job: StoredJob) -> list[dict[str, Any]]:
    """What every policy of the pool would have made of the job, the best first; utility in units of the on-demand-only cost."""
    rows = []
    for row in rows_of(read_rows(reading.store, "outcomes", where={"job": job.request.name})):
        details = json.loads(row["details"])
        slots = row["finish_slots"]
        unit = details["on_demand_only_usd"]
        rows.append(
            {
                "policy": row["policy"],
                "utility": details["utility"],
                "utility_usd": row["utility_usd"],
                "cost_usd": row["cost_usd"],
                "on_time": bool(row["on_time"]),
                "finish": None if pd.isna(slots) else job.start + int(slots) * job.step,
                "spot_share": row["spot_share"],
                "gap_to_hindsight": details["gap_to_hindsight"],
                "hindsight": row["hindsight_low_usd"] / unit if unit else None,
                "lost_to_forecast_error_usd": details.get("lost_to_forecast_error_usd"),
                "allocations": json.loads(row["allocations"] or "[]"),
            }
        )
    return sorted(rows, key=lambda row: (-row["utility_usd"], row["policy"]))
