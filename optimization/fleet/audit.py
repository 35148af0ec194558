"""Checks of a joint plan against its own numbers, one function per invariant (M3.5).

Nothing here is shared with what made the plan: cost, progress, ending, counts and caps are recomputed from the routes with the
arithmetic of M2. A check that fails raises `AuditError`.
"""

from __future__ import annotations

from optimization.fleet.problem import JointJob, JointPlan, JointProblem, Place, Route, spot_used
from optimization.job.definition import finished, needed
from optimization.kernels.rules import slots_needed
from warehouse.errors import AuditError

#: Relative difference above which two amounts do not agree.
AGREEMENT = 1e-6


def audit_joint(problem: JointProblem, plan: JointPlan) -> None:
    """Recompute every route, the counts held together, the caps and the objective; raises `AuditError` on the first mismatch."""
    if [route.job for route in plan.routes] != [job.name for job in problem.jobs]:
        raise AuditError(
            f"joint plan with routes of {', '.join(route.job for route in plan.routes)[:80]}",
            expected="one route for each job, in their order",
        )
    for job, route in zip(problem.jobs, plan.routes, strict=True):
        check_route(problem, job, route)
    check_together(problem, plan.routes)
    check_team_caps(problem, plan.routes)
    check_objective(problem, plan)


def check_route(problem: JointProblem, job: JointJob, route: Route) -> None:
    """Places, money, progress and ending of one job (M2.3, M2.4, M3.3b), and its own cap."""
    name = f"joint plan, job {job.name!r}"
    if len(route.places) != problem.window(job):
        raise AuditError(f"{name}: {len(route.places)} slots", expected=f"{problem.window(job)} slots")
    paid, done, before = 0.0, job.done, (job.market_previous, job.n_previous)
    for i, place in enumerate(route.places):
        check_place(name, job, place, finished(done, job.job.workload))
        if place.market is not None:
            window = problem.markets[place.market]
            held = place.allocation
            paid += (
                held.on_demand * window.on_demand_usd + held.spot * float(window.price[i])
            ) * window.slot_hours
            paid += job.move_usd if job.moves(place.market, before) else 0.0
            rate = job.runs[place.market].throughput.rate(held.total)
            done += (
                job.efficiency(place.market, held.total, before, window.slot_hours) * rate * window.slot_hours
            )
        before = place.held
    _agree(f"{name}: paid in the window", route.paid_usd, paid)
    _agree(f"{name}: progress", route.end_progress, min(done, job.job.workload))
    check_ending(problem, job, route, done, before)
    counted = route.paid_usd + (
        route.ending_usd if len(route.places) == job.job.deadline_slots - job.slot else 0.0
    )
    _agree(f"{name}: counted by caps", route.capped_usd, counted)
    if route.capped_usd > job.left_usd * (1.0 + AGREEMENT) + AGREEMENT:
        raise AuditError(
            f"{name}: pays {route.capped_usd} USD", expected=f"at most the {job.left_usd} USD of its cap"
        )


def check_place(name: str, job: JointJob, place: Place, is_finished: bool) -> None:
    """An allowed market and a legal size, nothing where nothing may be held (M2.3, M2.7)."""
    n = place.allocation.total
    if place.market is None:
        if n:
            raise AuditError(f"{name}: {n} instances nowhere", expected="a market")
        return
    if is_finished or place.market not in job.runs:
        raise AuditError(
            f"{name}: {n} instances in {place.market}",
            expected="nothing after the finish" if is_finished else f"one of {sorted(job.runs)}",
        )
    run, held = job.runs[place.market], place.allocation
    if held.on_demand < 0 or held.spot < 0 or not run.n_min <= n <= run.n_max:
        raise AuditError(f"{name}: {held} in {place.market}", expected=f"{run.n_min}..{run.n_max} instances")
    if held.spot and not run.resumable:
        raise AuditError(f"{name}: spot for a job that cannot resume", expected="on-demand only")


def check_ending(
    problem: JointProblem, job: JointJob, route: Route, done: float, before: tuple[str | None, int]
) -> None:
    """The ending finishes the work in its slots, costs what it says and is worth V of its finish; or it is given up (M3.3b)."""
    name, ending, run = f"joint plan, job {job.name!r}", route.ending, job.job
    cost = value = 0.0
    if finished(done, run.workload):
        if ending.n:
            raise AuditError(f"{name}: {ending} after the finish", expected="no ending")
        value = run.value
    elif ending.n:
        if ending.market not in job.runs or ending.market is None:
            raise AuditError(f"{name}: ends in {ending.market}", expected=f"one of {sorted(job.runs)}")
        own, window = job.runs[ending.market], problem.markets[ending.market]
        gain = own.throughput.rate(ending.n) * window.slot_hours
        first = job.efficiency(ending.market, ending.n, before, window.slot_hours) * gain
        least = slots_needed(needed(run.workload) - done, first, gain)
        if not own.n_min <= ending.n <= own.n_max or ending.slots < least:
            raise AuditError(
                f"{name}: {ending}", expected=f"{own.n_min}..{own.n_max} instances, at least {least} slots"
            )
        cost = ending.n * ending.slots * window.on_demand_usd * window.slot_hours
        cost += job.move_usd if job.moves(ending.market, before) else 0.0
        value = run.completion_value(job.slot + len(route.places) + ending.slots)
    _agree(f"{name}: cost of the ending", route.ending_usd, cost)
    _agree(f"{name}: value", route.value_usd, value)


def check_together(problem: JointProblem, routes: tuple[Route, ...]) -> None:
    """sum_j spot(j, m, t) <= available(m, t)."""
    for market, used in spot_used(problem, routes).items():
        over = used > problem.markets[market].available
        if over.any():
            i = int(over.argmax())
            raise AuditError(
                f"joint plan: {used[i]} spot instances of {market} in slot {i}",
                expected=f"at most the {problem.markets[market].available[i]} that are there",
            )


def check_team_caps(problem: JointProblem, routes: tuple[Route, ...]) -> None:
    """What a team's jobs pay is within what it has left."""
    for name, team in problem.teams.items():
        paid = sum(
            route.capped_usd for job, route in zip(problem.jobs, routes, strict=True) if job.team == name
        )
        if paid > team.left_usd * (1.0 + AGREEMENT) + AGREEMENT:
            raise AuditError(
                f"joint plan: team {name!r} pays {paid} USD", expected=f"at most {team.left_usd} USD"
            )


def check_objective(problem: JointProblem, plan: JointPlan) -> None:
    """The objective is the sum of priority x utility, and no more than the bound."""
    total = sum(
        job.priority * route.utility_usd for job, route in zip(problem.jobs, plan.routes, strict=True)
    )
    _agree("joint plan: objective", plan.objective, total)
    if plan.bound < plan.objective - AGREEMENT * max(1.0, abs(plan.objective)):
        raise AuditError(
            f"joint plan: objective {plan.objective}", expected=f"at most its bound {plan.bound}"
        )


def _agree(what: str, stated: float, found: float) -> None:
    if not abs(stated - found) <= AGREEMENT * max(1.0, abs(stated), abs(found)):
        raise AuditError(f"{what}: stated {stated}, recomputed {found}", expected="the same")
