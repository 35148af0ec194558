"""Checks of plans against their own numbers: a function per invariant (M3.5).

The checks share no code with the computation of plans: they recompute every number from the allocations by
the arithmetic of M2. A failed check raises `AuditError` with the found and the expected value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.optimization.job.definition import Allocation, Job, ToGo, is_finished, on_demand_to_go
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.window.plan import EndRule, HorizonProblem, Outcome, Plan, PlanStatus
from slackwater.warehouse.errors import AuditError

#: Relative difference above which two amounts disagree.
AGREEMENT = 1e-6
WITH_PLAN = (PlanStatus.OPTIMAL, PlanStatus.TIME_LIMIT, PlanStatus.DIFFERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkTotals:
    """Totals of a sequence of allocations.

    ``cost_usd`` is the cost, ``done`` the work done (capped at the workload), ``n_last`` the last size, and
    ``finished_after`` the number of slots up to the finish, None if the job is not finished.
    """

    cost_usd: float
    done: float
    n_last: int
    finished_after: int | None


def audit_plan(problem: HorizonProblem, plan: Plan) -> None:
    """Recompute cost, progress, feasibility and objective of a plan; raises `AuditError` on the first mismatch (M3.5)."""
    name = f"plan of job {problem.job.name!r} at slot {problem.slot}"
    if plan.status not in WITH_PLAN:
        check_unanswered(name, plan)
        return
    check_length(name, plan.allocations, len(problem.window))
    check_counts(name, problem.job, problem.window, plan.allocations)
    check_spot_allowed(name, problem.job, plan.allocations)
    check_split(name, problem.window, plan.allocations)
    walked = walk(problem.job, problem.window, plan.allocations, done=problem.done, before=problem.n_previous)
    check_nothing_after_finish(name, plan.allocations, walked)
    check_plan_cost(name, plan, walked)
    check_plan_progress(name, problem, plan, walked)
    check_objective(name, problem, plan, walked)
    check_bound(name, problem, plan)


def walk(
    job: Job, window: MarketWindow, allocations: Sequence[Allocation], *, done: float, before: int
) -> WalkTotals:
    """Compute the cost and progress of allocations slot by slot (M2.4)."""
    cost, last = 0.0, before
    finished_after = 0 if is_finished(done, job.workload) else None
    for i, a in enumerate(allocations):
        cost += a.on_demand * window.on_demand_usd * window.slot_hours
        cost += a.spot * float(window.price[i]) * window.slot_hours
        if a.total:
            done += job.efficiency(a.total, last) * job.throughput.rate(a.total) * window.slot_hours
        last = a.total
        if finished_after is None and is_finished(done, job.workload):
            finished_after = i + 1
    return WalkTotals(cost_usd=cost, done=min(done, job.workload), n_last=last, finished_after=finished_after)


def check_unanswered(name: str, plan: Plan) -> None:
    """Check that a solve without an incumbent has no allocations (M3.4)."""
    if plan.allocations:
        raise AuditError(
            f"{name}: status {plan.status} with {len(plan.allocations)} allocations", expected="none"
        )


def check_length(name: str, allocations: Sequence[Allocation], slots: int) -> None:
    """Check that there is an allocation for each slot of the window (M3.1)."""
    if len(allocations) != slots:
        raise AuditError(f"{name}: {len(allocations)} allocations", expected=f"one for each of {slots} slots")


def check_counts(name: str, job: Job, window: MarketWindow, allocations: Sequence[Allocation]) -> None:
    """Check that n_o >= 0, 0 <= n_s <= availability, n is 0 or in [n_min, n_max], all whole numbers (M2.3)."""
    for i, a in enumerate(allocations):
        whole = isinstance(a.on_demand, int) and isinstance(a.spot, int)
        if not whole or a.on_demand < 0 or not 0 <= a.spot <= window.available[i]:
            raise AuditError(
                f"{name}: {a} in its slot {i}",
                expected=f"whole numbers, on-demand >= 0, spot within 0..{int(window.available[i])}",
            )
        if a.total and not job.n_min <= a.total <= job.n_max:
            raise AuditError(
                f"{name}: {a.total} instances in its slot {i}", expected=f"0 or {job.n_min}..{job.n_max}"
            )


def check_spot_allowed(name: str, job: Job, allocations: Sequence[Allocation]) -> None:
    """Check that a job that cannot resume uses no spot instances (M2.7)."""
    if not job.resumable and any(a.spot for a in allocations):
        raise AuditError(f"{name}: holds spot for a job that cannot resume", expected="on-demand only")


def check_split(name: str, window: MarketWindow, allocations: Sequence[Allocation]) -> None:
    """Check that the split of every slot is the cheapest: spot first if below on-demand, else none (M3.2)."""
    for i, a in enumerate(allocations):
        cheap = int(window.available[i]) if window.price[i] < window.on_demand_usd else 0
        if a.spot != min(a.total, cheap):
            raise AuditError(
                f"{name}: {a} in its slot {i}",
                expected=f"{min(a.total, cheap)} of {a.total} instances on spot",
            )


def check_nothing_after_finish(name: str, allocations: Sequence[Allocation], walked: WalkTotals) -> None:
    """Check that no instances run after the finish (M2.4, M3.3b)."""
    if walked.finished_after is not None and any(a.total for a in allocations[walked.finished_after :]):
        raise AuditError(
            f"{name}: holds instances after finishing in {walked.finished_after} slots", expected="none"
        )


def check_plan_cost(name: str, plan: Plan, walked: WalkTotals) -> None:
    """Check that the plan's cost is the cost of its allocations (M2.4)."""
    agree(f"{name}: cost", plan.cost_usd, walked.cost_usd, scale=walked.cost_usd)


def check_plan_progress(name: str, problem: HorizonProblem, plan: Plan, walked: WalkTotals) -> None:
    """Check that the plan's progress is that of its allocations, capped at the workload or the target (M2.4, M3.3a)."""
    job = problem.job
    cap = job.workload
    if problem.end_rule is EndRule.TARGET:
        cap *= min(1.0, (problem.slot + len(problem.window)) / job.deadline_slots)
    agree(f"{name}: progress", plan.end_progress, min(walked.done, cap), scale=job.workload)


def check_objective(name: str, problem: HorizonProblem, plan: Plan, walked: WalkTotals) -> None:
    """Check that the objective is the cost (target) or W - cost (on-demand to go, expected to go) (M3.3)."""
    expected = walked.cost_usd
    if problem.end_rule is not EndRule.TARGET:
        expected = _end_worth(problem, walked) - walked.cost_usd
    agree(f"{name}: objective", plan.objective, expected, scale=problem.job.value + walked.cost_usd)


def check_bound(name: str, problem: HorizonProblem, plan: Plan) -> None:
    """Check that no objective is better than its bound, and that an optimal objective meets its bound (M3.4)."""
    slack = AGREEMENT * (problem.job.value + plan.cost_usd)
    over = plan.bound - plan.objective
    if problem.end_rule is EndRule.TARGET:
        over = -over
    if not over >= -slack:
        raise AuditError(
            f"{name}: bound {plan.bound} for an objective of {plan.objective}",
            expected="a bound that the objective does not pass",
        )
    if plan.status is PlanStatus.OPTIMAL and not over <= plan.gap * max(abs(plan.objective), slack) + slack:
        raise AuditError(
            f"{name}: status optimal with bound {plan.bound} and objective {plan.objective}",
            expected=f"them to agree within the stated gap of {plan.gap}",
        )


def check_value_after(name: str, job: Job, outcome: Outcome, slots: float | None) -> None:
    """Check that the value is V of a finish after ``slots`` slots, 0 if the job was given up (M2.5)."""
    value = 0.0 if slots is None else job.completion_value(slots)
    agree(f"{name}: value", outcome.value_usd, value, scale=job.value)


def check_utility(name: str, outcome: Outcome) -> None:
    """Check that U = V(T) - cost - termination cost (M2.5)."""
    utility = outcome.value_usd - outcome.cost_usd - outcome.termination_cost_usd
    scale = outcome.value_usd + outcome.cost_usd + outcome.termination_cost_usd
    agree(f"{name}: utility", outcome.utility_usd, utility, scale=scale)


def _end_worth(problem: HorizonProblem, walked: WalkTotals) -> float:
    """Return W of M3.3 (b) or (c) in USD at the end of the allocations."""
    job, table, end = problem.job, problem.expected, problem.slot + len(problem.window)
    if problem.end_rule is EndRule.ON_DEMAND_TO_GO or table is None:
        return to_go(job, problem.window, walked, end).value_usd
    if walked.finished_after is not None:
        return job.completion_value(end)
    z = min(max(walked.done, float(table.work[0])), float(table.work[-1]))
    column = table.value_usd[:, walked.n_last - job.n_min + 1 if walked.n_last else 0]
    above = int((table.work < z).sum())
    if above == 0:
        return float(column[0])
    share = (z - table.work[above - 1]) / (table.work[above] - table.work[above - 1])
    return float((1.0 - share) * column[above - 1] + share * column[above])


def to_go(job: Job, window: MarketWindow, walked: WalkTotals, slot: int) -> ToGo:
    """Return the best on-demand ending of the walked slots at ``slot``, or at the end of a plan (M2.6)."""
    return on_demand_to_go(
        job,
        done=walked.done,
        n_previous=walked.n_last,
        slot=slot,
        on_demand_usd=window.on_demand_usd,
        slot_hours=window.slot_hours,
    )


def agree(what: str, found: float, expected: float, *, scale: float) -> None:
    """Raise `AuditError` unless two amounts agree up to `AGREEMENT` of ``scale``."""
    if not abs(found - expected) <= AGREEMENT * max(scale, abs(expected), 1e-9):
        raise AuditError(
            f"{what} {found}", expected=f"{expected}", remedy="its own allocations do not add up to it"
        )
