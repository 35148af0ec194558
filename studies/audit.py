"""Check of a whole run in the slot model against its own numbers (M2.4-M2.6); shares no code with the replay."""

from __future__ import annotations

from slackwater.optimization.job.definition import Job
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.window.audit import (
    WalkTotals,
    agree,
    check_counts,
    check_spot_allowed,
    check_utility,
    check_value_after,
    to_go,
    walk,
)
from slackwater.optimization.window.plan import Outcome
from slackwater.warehouse.errors import AuditError


def audit_outcome(job: Job, window: MarketWindow, outcome: Outcome) -> None:
    """Recompute a whole run from slot 0: cost, progress, finish, termination, value, utility (M2.4-M2.6).

    ``window`` covers at least the outcome's slots. Raises `AuditError` on the first mismatch.
    """
    name = f"outcome of {outcome.policy} on job {job.name!r}"
    check_within_window(name, window, outcome)
    check_counts(name, job, window, outcome.allocations)
    check_spot_allowed(name, job, outcome.allocations)
    walked = walk(job, window, outcome.allocations, done=0.0, before=0)
    check_end_slot(name, job, outcome, walked)
    check_outcome_cost(name, outcome, walked)
    check_outcome_progress(name, job, outcome, walked)
    check_termination(name, job, window, outcome, walked)
    check_value(name, job, outcome)
    check_utility(name, outcome)


def check_within_window(name: str, window: MarketWindow, outcome: Outcome) -> None:
    """Check that every slot of the outcome has a price and a count."""
    if len(outcome.allocations) > len(window):
        raise AuditError(
            f"{name}: {len(outcome.allocations)} slots on a window of {len(window)}", expected="no more"
        )


def check_end_slot(name: str, job: Job, outcome: Outcome, walked: WalkTotals) -> None:
    """Check that the run ends in the slot that finishes the job, or at the deadline with work left (M2.4, M2.6)."""
    if outcome.finished_slot != walked.finished_after:
        raise AuditError(
            f"{name}: finished_slot {outcome.finished_slot}", expected=f"{walked.finished_after}"
        )
    end = job.deadline_slots if walked.finished_after is None else walked.finished_after
    if len(outcome.allocations) != end or end > job.deadline_slots:
        raise AuditError(
            f"{name}: {len(outcome.allocations)} slots", expected=f"{end}, of at most {job.deadline_slots}"
        )


def check_outcome_cost(name: str, outcome: Outcome, walked: WalkTotals) -> None:
    """Check that the outcome's cost is the cost of its allocations (M2.4)."""
    agree(f"{name}: cost", outcome.cost_usd, walked.cost_usd, scale=walked.cost_usd)


def check_outcome_progress(name: str, job: Job, outcome: Outcome, walked: WalkTotals) -> None:
    """Check that the outcome's progress is that of its allocations, capped at the workload (M2.4)."""
    agree(f"{name}: progress", outcome.progress, walked.done, scale=job.workload)


def check_termination(
    name: str, job: Job, window: MarketWindow, outcome: Outcome, walked: WalkTotals
) -> None:
    """Check that the cost after d and the total slots used are those of the best on-demand ending (M2.6)."""
    cost, finish = 0.0, walked.finished_after
    if finish is None:
        end = to_go(job, window, walked, job.deadline_slots)
        cost = end.n * end.slots * window.on_demand_usd * window.slot_hours
        finish = job.deadline_slots + end.slots if end.n else None
    if outcome.finish_slots != finish:
        raise AuditError(f"{name}: finish_slots {outcome.finish_slots}", expected=f"{finish}")
    agree(f"{name}: termination cost", outcome.termination_cost_usd, cost, scale=cost)


def check_value(name: str, job: Job, outcome: Outcome) -> None:
    """Check that the value is V of the slots used, 0 if the job was given up (M2.5)."""
    check_value_after(name, job, outcome, outcome.finish_slots)
