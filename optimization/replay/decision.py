"""Decide the next slot of running jobs: live solves by the MILP, expected cost and lateness by sampled futures (M3, M4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from optimization.job.definition import Progress, finished, infeasible_by, needed
from optimization.market.belief import Belief, Believed
from optimization.market.window import MarketWindow, Record, record_of
from optimization.policies import OnDemandOnly
from optimization.policies.contract import Paths, Policy, Together, View, belief_of
from optimization.policies.pace import pace, step
from optimization.replay.run import (
    PlanMemo,
    Planning,
    Seen,
    catch_up,
    checked,
    run_from,
    see,
    settle,
    with_shared_plans,
)
from optimization.replay.standing import LiveJob
from optimization.window.plan import Allocation, Outcome
from warehouse.errors import MarketError

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected end of a running job over ``paths`` sampled futures.

    ``cost_usd`` is the mean of everything paid from the first slot to the last, termination included (M2.6),
    with quantiles ``cost_p10_usd`` and ``cost_p90_usd``. ``finish_slots`` (mean) and ``finish_median`` count
    slots from the job's first; a path on which the job is given up counts as gamma d, when it is worth
    nothing. ``finish`` holds every path's finish, shape (paths,), NaN where given up. ``late_probability`` is
    P(not finished by d), ``given_up_probability`` P(given up).
    """

    paths: int
    cost_usd: float
    cost_p10_usd: float
    cost_p90_usd: float
    finish_slots: float
    finish_median: float
    finish: np.ndarray
    late_probability: float
    given_up_probability: float
    utility_usd: float


def look_ahead(policy: Policy[S], state: S, view: View, *, paths: int, rng: np.random.Generator) -> Expected:
    """`simulate_ahead` over futures sampled from the belief that ``policy`` plans by, those of M6.9."""
    later = view.job.deadline_slots - view.slot - 1
    return simulate_ahead(policy, state, view, *belief_of(policy, view).sample(later, paths=paths, rng=rng))


def simulate_ahead(
    policy: Policy[S], state: S, view: View, price_paths: np.ndarray, count_paths: np.ndarray
) -> Expected:
    """Replay ``policy`` from its present ``state`` in the slot of ``view`` over sampled futures.

    ``price_paths`` (USD per instance-hour) and ``count_paths`` have shape (paths, slots after this one), at
    least up to the deadline; the slot of ``view`` is as observed. In later slots the policy reads the
    forecast of ``view`` shifted to that slot: one *static vintage*, since what would be issued then is not
    known (ours). So it is with the record of ``view`` and with the belief: what is believed now holds to the
    end, from whatever state a path comes to, which also means that tables are made once. A policy that lives on
    fresh forecasts therefore looks a little worse here than it will be.
    Horizon programs are answered by the exact twin (M3.2) whoever answers them live. A policy that decides `Together` is asked
    once a slot for all paths, with the same outcome. Raises `MarketError` for paths of another shape, `PolicyError` and
    `JobError` as `replay` does.
    """
    prices, counts = _checked(view, np.asarray(price_paths, dtype=float), np.asarray(count_paths))
    beliefs = replace(view.market_beliefs(), held=belief_of(policy, view))
    if isinstance(policy, Together):
        together = _run_together(policy, state, (view, beliefs), prices, counts)
        if together is not None:
            return _summary(view, together)
    twin = with_shared_plans(policy, PlanMemo())
    begin = (view.slot, view.progress)
    futures = _windows(view, beliefs, prices, counts)
    return _summary(view, [run_from(twin, state, view.job, seen, begin) for seen in futures])


def _checked(view: View, prices: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The paths cut at the deadline, shapes (paths, slots after this one)."""
    later = view.job.deadline_slots - view.slot - 1
    if prices.ndim != 2 or prices.shape != counts.shape or prices.shape[1] < later or not prices.shape[0]:
        raise MarketError(
            f"price paths of shape {prices.shape}, count paths of {counts.shape}",
            expected=f"(paths, at least {later}) both, at least one path",
        )
    return prices[:, :later], counts[:, :later].astype(np.int64)


def _run_together(
    policy: Policy[S], state: S, at: tuple[View, Believed], prices: np.ndarray, counts: np.ndarray
) -> list[Outcome] | None:
    """`run_from` on all paths, slot after slot instead of path after path; None where the policy wants to be asked one by one.

    In the slot of ``view`` all paths are one. The steps are those of `replay.step` (M2.4), in the same order of arithmetic.
    """
    view, beliefs = at
    job, d = view.job, view.job.deadline_slots
    seen = _windows(view, beliefs, prices[:1], counts[:1])[0]
    if finished(view.progress.done, job.workload):
        return None
    wish, state = policy.decide(state, seen.view(job, view.progress, view.slot))
    first = step(view.progress, checked(wish, view, policy.name), view)
    paths = len(prices)
    done, before = np.full(paths, first.done), np.full(paths, first.n_previous)
    cost, slots = np.full(paths, first.cost_usd), np.full(paths, d)
    work = np.array(pace(job, view.slot_hours).work)
    running = np.full(paths, True)
    for slot in range(view.slot + 1, d):
        ended = running & (done >= needed(job.workload))
        slots[ended], running = slot, running & ~ended
        if not running.any():
            break
        own = np.flatnonzero(running)
        price, available = prices[own, slot - view.slot - 1], counts[own, slot - view.slot - 1]
        market = Paths(done=done[own], n_previous=before[own], price=price, available=available)
        template = seen.view(job, Progress(done=float(done[own[0]]), n_previous=int(before[own[0]])), slot)
        n = policy.decide_together(state, template, market) if isinstance(policy, Together) else None
        if n is None:
            return None
        spot = np.where(price < view.on_demand_usd, np.minimum(n, available), 0)
        cost[own] += ((n - spot) * view.on_demand_usd + spot * price) * view.slot_hours
        after = done[own] + work[before[own], n]
        done[own] = np.where(after >= needed(job.workload), job.workload, after)
        before[own] = n
    ends = zip(slots.tolist(), done.tolist(), before.tolist(), cost.tolist(), strict=True)
    return [
        settle(policy.name, job, (), (at, Progress(done=work_done, n_previous=held, cost_usd=paid)), seen)
        for at, work_done, held, paid in ends
    ]


def _windows(view: View, beliefs: Believed, prices: np.ndarray, counts: np.ndarray) -> list[Seen]:
    """One prepared market per path; slots before the present one are never read and are filled with it."""
    later = view.job.deadline_slots - view.slot - 1
    past = view.slot + 1
    forecasts = [None] * view.slot + [view.forecast] + [None] * later
    record = _still(view)
    seen = []
    for price, count in zip(prices, counts, strict=True):
        window = MarketWindow(
            price=np.concatenate([np.full(past, view.price), price]),
            available=np.concatenate([np.full(past, view.available), count]).astype(np.int64),
            on_demand_usd=view.on_demand_usd,
            slot_hours=view.slot_hours,
            observed=np.concatenate([np.full(past, view.observed), np.full(later, True)]),
        )
        seen.append(replace(see(view.job, window, forecasts, record), tables=view.tables, beliefs=beliefs))
    return seen


def _still(view: View) -> Record | None:
    """The record of ``view``, held still at its slot."""
    past = view.past
    if past is None:
        return None
    end = len(past.price) - 1
    begins = None if past.hour is None else (past.hour - end * view.slot_hours) % 24.0
    return record_of(
        past.price,
        past.available,
        first=end - view.slot,
        slot_hours=view.slot_hours,
        peers=past.peers,
        hour=begins,
        still=True,
    )


def _summary(view: View, outcomes: list[Outcome]) -> Expected:
    job = view.job
    cost = np.array([outcome.total_cost_usd for outcome in outcomes])
    finish = np.array([np.nan if o.finish_slots is None else o.finish_slots for o in outcomes], dtype=float)
    counted = np.where(np.isnan(finish), job.late_limit, finish)
    return Expected(
        paths=len(outcomes),
        cost_usd=float(cost.mean()),
        cost_p10_usd=float(np.quantile(cost, 0.1)),
        cost_p90_usd=float(np.quantile(cost, 0.9)),
        finish_slots=float(counted.mean()),
        finish_median=float(np.median(counted)),
        finish=finish,
        late_probability=float(np.mean(counted > job.deadline_slots)),
        given_up_probability=float(np.isnan(finish).mean()),
        utility_usd=float(np.mean([outcome.utility_usd for outcome in outcomes])),
    )


# ---
# Decide the next slot of running jobs: live solves by the MILP, expected cost and lateness by sampled futures (M3, M4).


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
    from optimization.window.solver import LiveSolver

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
