"""Changes of a job's terms: a row each, known from a time on; earlier decisions do not use it (M1.2, M2.9)."""

from __future__ import annotations

import shlex

import pandas as pd

from slackwater.flows.ledger.jobs import StoredJob, find_job
from slackwater.flows.ledger.reports import reports_of
from slackwater.flows.show.formats import utc
from slackwater.optimization.job.request import JobRequest, check_change
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.store.connection import Store


def save_change(store: Store, request: JobRequest, *, at: pd.Timestamp) -> bool:
    """Store new terms of a job, given as a placed request, as known from ``at`` on; False if the job has them already.

    Raises `JobError` if there is no such job, it has ended by then or was changed later, its
    deadline leaves no slot, or a term cannot be changed (`check_change`).
    """
    with store.transaction():
        stored = find_job(store, request.name)
        if stored.request == request:
            return False
        _check_open(store, stored, at)
        check_change(stored.request, request)
        if request.ends.floor(stored.step) <= max(at, stored.start):
            raise JobError(
                f"job {request.name!r}: deadline {utc(request.ends)} leaves no whole slot after {utc(max(at, stored.start))}",
                expected=f"{utc(max(at, stored.start).floor(stored.step) + stored.step)} or later",
                remedy=f"if its work is done, say so: `slackwater job report {shlex.quote(request.name)} --finished`",
            )
        same = read_rows(store, "terms", where={"job": request.name, "known_at": at})
        row = {
            "job": request.name,
            "known_at": at,
            "revision": len(same),
            "spec": request.model_dump_json(),
            "deadline_at": request.ends,
        }
        write_rows(store, "terms", [row])
    return True


def _check_open(store: Store, stored: StoredJob, at: pd.Timestamp) -> None:
    """Raise `JobError` unless a job's terms can change at a time.

    They can if the job was added and last changed by then, and has not ended, been reported as
    finished or been scored.
    """
    name, another = stored.request.name, "add another job with `slackwater job add --name NAME`"
    if at < stored.known_at:
        what = "was added" if stored.changed_at is None else "had its terms changed"
        raise JobError(
            f"job {name!r} {what} at {utc(stored.known_at)}, a change at {utc(at)}",
            expected="a time at or after that",
            remedy="give --at TIME, or leave it out",
        )
    if stored.deadline <= at:
        raise JobError(
            f"job {name!r} ended at {utc(stored.deadline)}, a change at {utc(at)}",
            expected="a job whose deadline is in the future",
            remedy=f"give --at TIME if the change was made earlier; else {another}",
        )
    done = [report for report in reports_of(store, name, known_at=at) if report.ends]
    if done:
        state = "finished" if done[0].finished else "withdrawn"
        raise JobError(
            f"job {name!r} was reported as {state} at {utc(done[0].reported_at)}",
            expected="a job with work left",
            remedy=f"if it is not, report that time again without --{state}; else {another}",
        )
    if len(read_rows(store, "outcomes", where={"job": name})):
        raise JobError(
            f"job {name!r} has been scored by a later turn",
            expected="a job that has not ended",
            remedy=another,
        )
