"""Outcome of a job at its end: finished, missed, given up, withdrawn, replayed only, or unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from slackwater.flows.ledger.decisions import decisions_by_job
from slackwater.flows.ledger.headline import MISSED
from slackwater.flows.ledger.jobs import StoredJob, stored_jobs
from slackwater.flows.ledger.reports import Report, reports_by_job, work_said
from slackwater.flows.show.formats import percent, utc
from slackwater.optimization.job.definition import is_finished
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Outcome of a job at its end; ``share`` is the share of the work that was done, None if unknown.

    "late": finished after the deadline, at ``at``; "withdrawn": ended by its owner before its work was done,
    at ``at``; "missed": not finished by the deadline, and no later report of its finish; "given up": a missed
    job with a value whose last decision stopped all instances, as finishing would have cost more; "replayed":
    over when it was added. ``measured``: the outcome was reported; otherwise it follows from the decisions,
    assuming that all decided instances ran.
    """

    state: Literal["finished", "late", "missed", "given up", "withdrawn", "replayed", "unknown"]
    share: float | None
    measured: bool
    at: pd.Timestamp | None = None

    @property
    def is_unfinished(self) -> bool:
        """Whether the job ended without all of its work done, and not by its owner's wish."""
        return self.state in ("missed", "given up")

    @property
    def is_missed(self) -> bool:
        """Whether the deadline passed without the work done, finished later or not."""
        return self.state in ("missed", "late")

    def words(self) -> str:
        """Return the outcome in a few words.

        >>> Ending(state="missed", share=0.06, measured=True).words()
        'missed: 6 % done at its deadline'
        """
        if self.state == "finished":
            return "finished" if self.measured else "finished by its decisions; nobody reported it"
        if self.state == "late":
            return f"late: finished by {utc(self.at)}, after its deadline"
        if self.state == "withdrawn":
            done = "" if self.share is None else f" with {percent(self.share)} done"
            return f"withdrawn by its owner at {utc(self.at)}{done}"
        if self.state == "missed":
            source = "" if self.measured else " by its decisions; nobody reported it"
            return f"missed: {100 * (self.share or 0.0):.0f} % done at its deadline{source}"
        if self.state == "given up":
            done = f"{100 * (self.share or 0.0):.0f} % done"
            return f"given up with {done}: finishing would have cost more than its value"
        if self.state == "replayed":
            return "over when added"
        return "ended; nobody reported whether it finished"


def ending_of(job: StoredJob, decisions: Sequence[Mapping[str, Any]], reports: Sequence[Report]) -> Ending:
    """Return the outcome of a job that has ended; ``decisions`` by slot, ``reports`` those in force.

    The first report of all work done gives the finish: in time up to a slot after the deadline,
    else late. A report of partial progress from before the deadline does not determine the
    outcome. In that case, as without a report, the newest decision gives the work done at the
    start of its slot, and the job counts as missed if it was not expected to finish by the deadline.
    It counts as finished if it was expected to finish in that slot or the next; if later, nothing was
    decided since, and the outcome is unknown.
    """
    if job.deadline <= job.created_at and not decisions and not reports:
        return Ending(state="replayed", share=None, measured=False)
    found = _finish_of(job, decisions, reports)
    gave_up = found.state == "missed" and decisions and _gives_up(job, decisions[-1])
    return replace(found, state="given up") if gave_up else found


def _gives_up(job: StoredJob, row: Mapping[str, Any]) -> bool:
    """Return whether a decision abandons a job with a value: no instances, and no expected finish."""
    return (
        job.request.value_usd is not None
        and not (row["on_demand"] or row["spot"])
        and row.get("expected_finish") is None
    )


def _finish_of(job: StoredJob, decisions: Sequence[Mapping[str, Any]], reports: Sequence[Report]) -> Ending:
    amount = job.request.workload.amount
    shares = [
        (report, done / amount) for report in reports if (done := work_said(report, amount)) is not None
    ]
    for report, share in shares:
        if is_finished(share, 1.0):
            late = report.reported_at > job.deadline + job.step
            return Ending(
                state="late" if late else "finished", share=share, measured=True, at=report.reported_at
            )
    by_deadline = [share for report, share in shares if report.reported_at <= job.deadline + job.step]
    withdrawn = next((report for report in reports if report.withdrawn), None)
    if withdrawn is not None and withdrawn.reported_at < job.deadline:
        reached = by_deadline[-1] if by_deadline else None
        return Ending(state="withdrawn", share=reached, measured=True, at=withdrawn.reported_at)
    if shares and shares[-1][0].reported_at >= job.deadline:
        # progress reported after the deadline bounds the share that was done by then
        return Ending(state="missed", share=(by_deadline or [shares[-1][1]])[-1], measured=True)
    if not decisions:
        return Ending(state="missed", share=0.0, measured=False)
    last = decisions[-1]
    done = last.get("progress_share")
    if done is None:
        return Ending(state="unknown", share=None, measured=False)
    finish = pd.Timestamp(last["expected_finish"]) if last.get("expected_finish") else None
    if finish is None or finish > job.deadline:
        return Ending(state="missed", share=float(done), measured=False)
    if finish > pd.Timestamp(last["slot"]) + 2 * job.step:
        return Ending(state="unknown", share=None, measured=False)
    return Ending(state="finished", share=1.0, measured=False)


def endings_of(
    store: Store, jobs: Sequence[StoredJob], *, known_at: pd.Timestamp | None = None
) -> dict[str, Ending]:
    """Return the outcome of each decided user job among ``jobs``, which have ended."""
    own = {job.request.name: job for job in jobs if job.origin == "user"}
    decisions = decisions_by_job(store, list(own))
    reports = reports_by_job(store, list(own), known_at=known_at)
    return {
        name: ending_of(job, decisions[name], reports[name]) for name, job in own.items() if decisions[name]
    }


def missed_jobs(endings: Mapping[str, Ending]) -> list[str]:
    """Return a sentence for each job that missed its deadline, finished later or not."""
    return [f"{MISSED}job {name} {ending.words()}." for name, ending in endings.items() if ending.is_missed]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedOutcomes:
    """Reported outcomes of scored jobs: in time or not ``by_policy``, and the number of decided jobs ``unreported``."""

    by_policy: Mapping[str, Sequence[bool]]
    unreported: int

    def sentence(self) -> str:
        """Return the reported outcomes of all policies as a sentence.

        >>> ReportedOutcomes(by_policy={"UP": [True, False], "MSU": [True]}, unreported=0).sentence()
        'Real outcomes: 2 of 3 decided jobs were on time, as reported.'
        >>> ReportedOutcomes(by_policy={}, unreported=2).sentence()
        'No real outcome yet: nobody reported how a decided job ended (2 ended without a report).'
        """
        found = [on_time for own in self.by_policy.values() for on_time in own]
        without = f"{self.unreported} ended without a report"
        if not found:
            none = "No real outcome yet: nobody reported how a decided job ended"
            return f"{none} ({without})." if self.unreported else f"{none}."
        more = f"; {without}" if self.unreported else ""
        jobs = "decided job was" if len(found) == 1 else "decided jobs were"
        return f"Real outcomes: {sum(found)} of {len(found)} {jobs} on time, as reported{more}."


def reported_outcomes(store: Store) -> ReportedOutcomes:
    """Return the reported outcomes of the scored jobs, each for the policy of most of its decisions (ties: the newest)."""
    scored = set(read_rows(store, "outcomes")["job"])
    jobs = [job for job in stored_jobs(store) if job.request.name in scored]
    names = [job.request.name for job in jobs]
    decisions, reports = decisions_by_job(store, names), reports_by_job(store, names)
    by_policy: dict[str, list[bool]] = {}
    unreported = 0
    for job in jobs:
        own = decisions[job.request.name]
        if not own:
            continue
        ending = ending_of(job, own, reports[job.request.name])
        if not ending.measured:
            unreported += 1
            continue
        if ending.state == "withdrawn":
            continue
        policy = Counter(str(row["policy"]) for row in reversed(own)).most_common(1)[0][0]
        by_policy.setdefault(policy, []).append(ending.state == "finished")
    return ReportedOutcomes(by_policy=by_policy, unreported=unreported)
