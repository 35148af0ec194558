"""Decide the next slot of running jobs: live solves by the MILP, expected cost and lateness by sampled futures (M3, M4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from optimization.job.definition import Progress
from optimization.job.termination import infeasible_by
from optimization.market.belief import Belief
from optimization.policies import OnDemandOnly
from optimization.policies.contract import Policy, belief_of
from optimization.replay.risk import Expected, look_ahead
from optimization.replay.run import Planning, catch_up
from optimization.replay.standing import LiveJob
from optimization.window.plan import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What a decision may take: seconds of one live solve (M3.4), sampled futures behind what to expect, and their seed."""

    solver_seconds: float
    risk_paths: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The next slot of one job: what to hold in ``slot``, who decided it, why, and what to expect.

    ``solver`` says how its horizon programs were solved ("" if there was none), ``progress`` where the job stood; ``planned``
    is what the plan behind it holds in the slots after ``slot``, None where the policy makes no plan.
    """

    job: str
    slot: int
    allocation: Allocation
    policy: str
    reason: str
    expected: Expected
    solver: str
    progress: Progress
    planned: tuple[Allocation, ...] | None


def decide(live: LiveJob, policy: Policy[Any], effort: Effort) -> Decision:
    """Ask a policy for the slot at hand and look ahead over sampled futures.

    A job that cannot resume from a checkpoint may not use spot: OD-only decides for it, and the reason says so (M2.7).
    """
    # A status or a job list reads what was decided: it must not cost the import of Pyomo.
    from optimization.window.live import LiveSolver

    refused = ""
    if not live.job.resumable:
        policy, refused = OnDemandOnly(), "cannot resume from a checkpoint, so no spot; "
    solver = LiveSolver(seconds=effort.solver_seconds)
    asked = policy.with_solver(solver) if isinstance(policy, Planning) else policy
    progress, views = live.standing()
    state = catch_up(policy, live.job, views)
    view = live.seen.view(live.job, progress, live.slot)
    allocation, _ = asked.decide(state, view)
    short = infeasible_by(live.job, slot_hours=live.seen.slot_hours)
    hopeless = (
        f"best effort: on-demand alone is {short} slots too slow to finish while it is worth anything; "
    )
    reason = refused + (hopeless if short else "") + policy.explain(state, view, allocation)
    return Decision(
        job=live.job.name,
        slot=live.slot,
        allocation=allocation,
        policy=policy.name,
        reason=_with_chance(reason, belief_of(policy, view), allocation),
        expected=look_ahead(
            policy, state, view, paths=effort.risk_paths, rng=np.random.default_rng(effort.seed)
        ),
        solver=solver.summary(),
        progress=progress,
        planned=solver.plans[-1].allocations[1:] if solver.plans else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A job at ascending slots that lack a decision, and who decides each of them."""

    slots: tuple[LiveJob, ...]
    policies: tuple[Policy[Any], ...]


def decide_course(course: Course, effort: Effort) -> list[Decision | None]:
    """Decide a job's slots one after the other, each knowing those before it; None where it has finished its work."""
    decided: dict[int, Allocation] = {}
    made: list[Decision | None] = []
    for live, policy in zip(course.slots, course.policies, strict=True):
        at = replace(live, decided={**live.decided, **decided})
        decision = None if at.is_finished else decide(at, policy, effort)
        if decision is not None:
            decided[decision.slot] = decision.allocation
        made.append(decision)
    return made


#: ``fan(function, calls)``: the results of ``function(**call)`` for every call, in their order, made perhaps side by side.
Fan = Callable[[Callable[..., Any], Sequence[dict[str, Any]]], list[Any]]


def in_turn(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
    """The plain `Fan`: one call after the other."""
    return [function(**call) for call in calls]


def decide_all(
    courses: Sequence[Course], effort: Effort, *, fan: Fan = in_turn
) -> list[list[Decision | None]]:
    """Decide every job's slots, each job for itself: what one holds takes nothing from another's market.

    Jobs that compete for the same instances are planned together by `optimization.fleet`, which asks for other forecasts and knows
    teams and moves; this is the one place where a turn could do the same.
    """
    return fan(decide_course, [{"course": course, "effort": effort} for course in courses])


def _with_chance(reason: str, belief: Belief, allocation: Allocation) -> str:
    """The policy's reason, with the chance of spot in the next slot that a person would want to know."""
    wanted = max(allocation.total, 1)
    return f"{reason}; P(spot >= {wanted} in the next slot) = {belief.chance_of_spot(wanted):.2f}"
