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
    """A job at ``at`` (None: no time is given) with its decisions by slot, each with its ``run``, and its reports."""

    job: StoredJob
    at: pd.Timestamp | None
    decisions: Sequence[dict[str, Any]]
    reports: Sequence[Report]
    is_scored: bool

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.job.request.name

    @property
    def state(self) -> str:
        """One of scored, finished, withdrawn, ended, running, waiting; "open" if ``at`` is None."""
        if self.is_scored:
            return "scored"
        for report in self.reports:
            if report.ends and (self.at is None or report.reported_at <= self.at):
                return "finished" if report.finished else "withdrawn"
        if self.at is None:
            return "open"
        if self.job.deadline <= self.at:
            return "ended"
        return "running" if self.job.start <= self.at else "waiting"

    @property
    def ending(self) -> Ending | None:
        """Outcome of the job, None before its end."""
        has_ended = self.is_scored or (self.at is not None and self.job.deadline <= self.at)
        if not has_ended and not any(report.withdrawn for report in self.reports):
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
            "late_probability": newest.get("late_probability"),
            "ending": None if ending is None else ending.words(),
        }


def list_jobs(
    store: Store, jobs: Sequence[StoredJob], *, at: pd.Timestamp | None, known_at: pd.Timestamp | None = None
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
