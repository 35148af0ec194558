"""The list of jobs: state, risk and outcome of each, for ``job list`` and for the pages of the UI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from slackwater.flows.ledger.decisions import stored_decisions
from slackwater.flows.ledger.endings import Ending, ending_of
from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.ledger.reports import Report, reports_by_job, work_said
from slackwater.optimization.job.definition import is_finished
from slackwater.optimization.job.units import request_words
from slackwater.warehouse.documents import read_object
from slackwater.warehouse.store.connection import Store

#: States of a job before its end: it is planned, it has not begun, or it is an example that is no longer planned.
OPEN: Final = ("running", "waiting", "set aside")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestTurn:
    """Time of the newest turn that decided jobs, and its messages about jobs without a decision."""

    at: pd.Timestamp
    left_out: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A job at ``at`` with its decisions by slot, each with its ``run``, and its reports.

    ``turn`` is the newest turn, None without one; ``is_set_aside``: an example, while users have jobs of their own.
    """

    job: StoredJob
    at: pd.Timestamp
    decisions: Sequence[dict[str, Any]]
    reports: Sequence[Report]
    is_scored: bool
    turn: NewestTurn | None = None
    is_set_aside: bool = False

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
        """Waiting, running, set aside, finished or withdrawn before the deadline, or ended (the deadline has passed).

        A job is finished by a report, or by its decisions (`is_done_by_decisions`).
        """
        if self.is_over:
            return "ended"
        for report in self.reports:
            if report.ends and report.reported_at <= self.at:
                return "finished" if report.finished else "withdrawn"
        if self.job.start > self.at:
            return "waiting"
        if self.is_done_by_decisions:
            return "finished"
        return "set aside" if self.is_set_aside else "running"

    @property
    def is_done_by_decisions(self) -> bool:
        """Whether the newest turn had nothing to decide, as all work is done if the decided instances ran.

        The newest decision expected that in its slot or the next, as in `ending_of`.
        """
        decisions = [row for row in self.decisions if pd.Timestamp(row["slot"]) <= self.at]
        if not decisions or self.turn is None or any(self.name in text for text in self.turn.left_out):
            return False
        newest, amount = decisions[-1], self.job.request.workload.amount
        slot, finish = pd.Timestamp(newest["slot"]), newest.get("expected_finish")
        if self.turn.at <= slot or not finish or pd.Timestamp(finish) > slot + 2 * self.job.step:
            return False
        later = [work_said(report, amount) for report in self.reports if report.reported_at > self.turn.at]
        return all(work is None or is_finished(work, amount) for work in later)

    @property
    def ending(self) -> Ending | None:
        """Outcome of the job, None before its end."""
        if self.state in OPEN:
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
    turn, own_jobs = _newest_turn(store, at), has_own_jobs(store)
    return [
        ListedJob(
            job=job,
            at=at,
            decisions=decisions[job.request.name],
            reports=reports[job.request.name],
            is_scored=job.request.name in scored,
            turn=turn,
            is_set_aside=own_jobs and job.origin == "example",
        )
        for job in jobs
    ]


def has_own_jobs(store: Store) -> bool:
    """Return whether a user has added a job; examples are then set aside."""
    query = "SELECT 1 FROM jobs WHERE origin = 'user' AND deadline_at > created_at LIMIT 1"
    return bool(store.execute(query))


def _newest_turn(store: Store, at: pd.Timestamp) -> NewestTurn | None:
    """Return the newest turn at or before a time that decided jobs, None if there is none."""
    rows = store.execute(
        "SELECT epoch_us(logical_at), details FROM runs WHERE stage = 'allocate' AND status = 'done' "
        "AND logical_at <= $at ORDER BY logical_at DESC LIMIT 1",
        {"at": pd.Timestamp(at).to_pydatetime(warn=False)},
    )
    if not rows:
        return None
    ((when, text),) = rows
    details: Mapping[str, Any] = read_object(text) or {}
    left_out = [str(message) for message in details.get("left_out", ())]
    return NewestTurn(at=pd.Timestamp(when, unit="us", tz="UTC"), left_out=left_out)
