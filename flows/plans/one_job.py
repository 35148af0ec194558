"""Plan of one job for a slot: the issued decision, read without forecasters and optimizer, else computed (M2.4, M3.7)."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from slackwater.flows.ledger.decisions import JobLedger, Row, read_ledger, stored_decisions
from slackwater.flows.ledger.endings import Ending, ending_of
from slackwater.flows.ledger.jobs import StoredJob, stored_jobs
from slackwater.flows.ledger.reports import Report, counting
from slackwater.flows.query import NamedJob
from slackwater.flows.show.formats import first_of, join_words, utc
from slackwater.flows.turn.context import Turn
from slackwater.optimization.job.definition import Allocation
from slackwater.warehouse.amounts import duration
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.store.connection import Store


def require_running(turn: Turn, named: NamedJob) -> None:
    """Raise `JobError`, with the outcome of an ended job, if it has not begun or has ended at its markets' time."""
    job, name, at = named.job, named.name, named.at
    if at < job.start:
        raise JobError(
            f"job {name!r} begins at {utc(job.start)}; nothing is to run at {utc(at)}",
            expected=f"a time from {utc(job.start)} to {utc(job.deadline)}",
            remedy=f"plan it then, or give --at {job.start:%Y-%m-%dT%H:%MZ}",
        )
    if job.deadline <= at < job.request.ends:
        raise JobError(
            f"job {name!r}: no whole slot of {duration(job.step)} from {utc(at)} to its deadline {utc(job.request.ends)}",
            expected="at least one slot",
            remedy="give it a later deadline, or shorter slots with the setting step_minutes",
        )
    if job.deadline <= at:
        raise JobError(
            f"job {name!r} ended at its deadline, {utc(job.deadline)}{_how_it_ended(turn, named)}",
            expected="a job whose deadline is in the future"
            if named.is_stored
            else "a deadline in the future",
            remedy=f"`slackwater job show {shlex.quote(name)}` shows its decisions and outcome; --at TIME plans an earlier slot"
            if named.is_stored
            else "give the file another deadline, or an earlier time with --at",
        )


def _how_it_ended(turn: Turn, named: NamedJob) -> str:
    """Return the outcome of a stored job by its reports, else by its decisions; "" if its market cannot be read."""
    if not named.is_stored:
        return ""
    job, ledger = named.job, turn.read(read_ledger, [named.name])
    ending: Ending | None = ending_of(job, ledger.decisions[named.name], counting(ledger.reports[named.name]))
    if ending is None or not ending.measured:
        from slackwater.flows.turn.opening import computed_ending  # computes, unlike the rest of this module

        ending = computed_ending(turn, named.placed, ledger)
    return "" if ending is None else f": {ending.words()}"


def issued_row(ledger: JobLedger, name: str, slot: pd.Timestamp) -> Row | None:
    """Return the decision issued for a job and a slot, None if there is none."""
    rows = ledger.decisions.get(name, ())
    return next((row for row in rows if pd.Timestamp(row["slot"]) == slot), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuery:
    """Options of a plan of one job.

    ``policy`` decides in place of the leader, ``alone`` gives the job the whole market, and ``held`` are the
    instances that run as the slot begins. Without options the decision is that of the turn.
    """

    policy: str | None = None
    alone: bool = False
    held: Allocation | None = None

    @property
    def is_of_turn(self) -> bool:
        """Whether the decision is that of a turn."""
        return self.policy is None and not self.alone and self.held is None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """The decision of a job with notes for the reader; ``is_of_turn``: a turn has issued it or would."""

    row: Row
    is_of_turn: bool
    notes: tuple[str, ...] = ()


def plan_job(turn: Turn, named: NamedJob, query: PlanQuery) -> PlannedJob:
    """Return the decision of one job for a slot: as a turn has issued or would issue it, or under the options of ``query``.

    Nothing is stored. Raises `JobError` where the job does not run then, has done its work or
    cannot be decided.
    """
    require_running(turn, named)
    name, at = named.name, named.at
    own = turn.read(read_ledger, [name]) if named.is_stored else JobLedger(decisions={}, reports={})
    _require_not_ended(turn, named, own)
    issued = issued_row(own, name, at)
    if issued is not None and query.is_of_turn and not named.is_elsewhere:
        others = turn.read(_decided_beside, issued, named.job.origin)
        row = issued | {"issued_at": turn.read(_issued_at, issued), "alone": False, "decided_with": others}
        notes = (
            *sharing_note(named, others), *_changed_terms(named.job, issued), *_since(named, issued, own)
        )  # fmt: skip
        return PlannedJob(row=row, is_of_turn=True, notes=notes)
    from slackwater.flows.plans.decisions import computed_plan  # loads the forecasters and the optimizer

    return computed_plan(turn, named, query, own)


def _decided_beside(store: Store, row: Row, origin: str) -> list[str]:
    """Return the other jobs with a decision for the same market and slot; examples only if the job is an example."""
    known = {job.request.name for job in stored_jobs(store) if job.origin == "user" or origin == job.origin}
    rows = stored_decisions(store, {"slot": pd.Timestamp(row["slot"])}, order_by=["job"])
    where = (row["market"], row["source"])
    return [
        str(decision["job"])
        for _, decision in rows
        if (decision["market"], decision["source"]) == where and decision["job"] in known - {row["job"]}
    ]


def _issued_at(store: Store, row: Row) -> str:
    """Return the time of the turn that issued a decision."""
    ((us,),) = store.execute(
        "SELECT coalesce(max(epoch_us(runs.logical_at)), max(epoch_us(slot))) FROM decisions LEFT JOIN runs "
        "ON runs.run = decisions.run AND stage = 'allocate' WHERE job = ? AND slot = ?",
        [row["job"], pd.Timestamp(row["slot"])],
    )
    return pd.Timestamp(int(us), unit="us", tz="UTC").isoformat()


MOST_NAMED = 4  # Most other jobs named in a note


def sharing_note(named: NamedJob, others: Sequence[str]) -> list[str]:
    """Return a note that other jobs share the spot instances of the slot, or nothing."""
    if not others:
        return []
    many = "another open job shares" if len(others) == 1 else f"{len(others)} other open jobs share"
    return [
        f"{many} the spot of this slot: {join_words(first_of(others, MOST_NAMED))}. `--alone` plans {named.name} by itself."
    ]


def _require_not_ended(turn: Turn, named: NamedJob, ledger: JobLedger) -> None:
    """Raise `JobError` if the slot is the present one and a report has ended the job since its start."""
    if turn.clock is None or not named.at <= turn.clock < named.at + named.job.step:
        return
    reports = counting(ledger.reports.get(named.name, ()), known_at=turn.clock)
    ends = [report for report in reports if report.ends]
    if ends:
        raise ended_error(named.name, ends[0].reported_at, reports)


def ended_error(name: str, at: pd.Timestamp, reports: Sequence[Report]) -> JobError:
    """Return the error for a job that its reports have ended by a time."""
    withdrawn = any(report.withdrawn for report in reports)
    return JobError(
        f"job {name!r} {'was withdrawn' if withdrawn else 'has done its work'} by {utc(at)}; nothing is to run",
        expected="a job with work left",
        remedy=f"`slackwater job show {shlex.quote(name)}` shows it",
    )


def _changed_terms(job: StoredJob, issued: Row) -> list[str]:
    """Return a note if the deadline or the work of a job have changed since the decision was issued."""
    last = job.start + (job.deadline - job.start) // job.step * job.step
    is_same_work = math.isclose(job.request.workload.amount, float(issued["workload"]), rel_tol=1e-6)
    if last == pd.Timestamp(issued["deadline"]) and is_same_work:
        return []
    return ["its deadline or its work has changed since: `slackwater run` decides by the new terms"]


def _since(named: NamedJob, issued: Row, ledger: JobLedger) -> list[str]:
    """Return a note if the reported instances differ from those that the issued decision assumes or requests."""
    at, step = named.at, named.job.step
    newest: Report | None = None
    for report in counting(ledger.reports.get(named.name, ())):
        newest = report if report.held is not None and at - step < report.reported_at < at + step else newest
    if newest is None or newest.held is None:
        return []
    keys = ("on_demand", "spot") if newest.reported_at > at else ("held_on_demand", "held_spot")
    held = newest.held
    if tuple(issued[key] for key in keys) == (held.on_demand, held.spot):
        return []
    return [
        f"{held.on_demand} on-demand and {held.spot} spot are reported as held at {utc(newest.reported_at)}, which the decision "
        f"does not count: `--held-on-demand {held.on_demand} --held-spot {held.spot}` plans the slot from there"
    ]
