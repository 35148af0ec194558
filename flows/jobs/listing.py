"""The list of jobs: state, risk and outcome of each, for ``job list`` and for the pages of the UI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from slackwater.flows.ledger.decisions import stored_decisions
from slackwater.flows.ledger.endings import Ending, ending_of
from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.ledger.reports import Report, reports_by_job
from slackwater.optimization.job.units import request_words
from slackwater.warehouse.store.connection import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A job at ``at`` with its decisions by slot, each with its ``run``, and its reports."""

    job: StoredJob
    at: pd.Timestamp
    decisions: Sequence[dict[str, Any]]
    reports: Sequence[Report]
    is_scored: bool

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.job.request.name

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed, or the job was scored."""
        return self.is_scored or self.job.deadline <= self.at

    @property
    def state(self) -> str:
        """Waiting, running, finished or withdrawn (as reported before the deadline), or ended (the deadline has passed)."""
        if self.is_over:
            return "ended"
        for report in self.reports:
            if report.ends and report.reported_at <= self.at:
                return "finished" if report.finished else "withdrawn"
        return "running" if self.job.start <= self.at else "waiting"

    @property
    def ending(self) -> Ending | None:
        """Outcome of the job, None before its end."""
        if self.state in ("waiting", "running"):
            return None
        return ending_of(self.job, self.decisions, self.reports)

    def row(self) -> dict[str, Any]:
        """Return the job as a row of the list."""
        request, ending = self.job.request, self.ending
        newest = self.decisions[-1] if self.decisions and ending is None else {}
        return {
            "job": request.name,
            "market": request.where,
            "start": self.job.start,
            "deadline": self.job.deadline,
            **request_words(request, self.job.step / pd.Timedelta(hours=1)),
            "origin": self.job.origin,
            "state": self.state,
            "scored": self.is_scored,
            "late_probability": newest.get("late_probability"),
            "ending": None if ending is None else ending.words(),
        }


def list_jobs(
    store: Store, jobs: Sequence[StoredJob], *, at: pd.Timestamp, known_at: pd.Timestamp | None = None
) -> list[ListedJob]:
    """Return stored jobs at ``at`` with the reports known at ``known_at`` (None: all), in the given order."""
    names = [job.request.name for job in jobs]
    decisions: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for run, row in stored_decisions(store, {"job": names}, order_by=["job", "slot"]):
        decisions[row["job"]].append(row | {"run": run})
    reports = reports_by_job(store, names, known_at=known_at)
    scored = {str(job) for (job,) in store.execute("SELECT DISTINCT job FROM outcomes")}
    return [
        ListedJob(
            job=job,
            at=at,
            decisions=decisions[job.request.name],
            reports=reports[job.request.name],
            is_scored=job.request.name in scored,
        )
        for job in jobs
    ]
