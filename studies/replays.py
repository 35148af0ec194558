"""Replays of many policies and jobs for studies (M5.1): plans are shared, the work is in processes or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slackwater.flows.executor import fan_out
from slackwater.optimization.job.definition import Allocation, Job, Progress, is_finished
from slackwater.optimization.market.window import MarketWindow, Record
from slackwater.optimization.policies.contract import Policy, families, parted
from slackwater.optimization.policies.pace import step
from slackwater.optimization.replay.run import (
    Case,
    Forecasts,
    PlanMemo,
    SlotMarket,
    check_allocation,
    settle,
    with_shared_plans,
)
from slackwater.optimization.window.plan import Outcome


def replay_pool(
    policies: Sequence[Policy[Any]],
    job: Job,
    window: MarketWindow,
    *,
    forecasts: Forecasts | None = None,
    memo: PlanMemo | None = None,
    record: Record | None = None,
) -> list[Outcome]:
    """Run `replay` for every policy on a job; each horizon program is solved only once, with the same results (M5.1).

    ``memo`` reuses plans from another replay of the same job (on any market, since plans are identified by
    content), and tables from a replay of the same job, market and forecasts.
    """
    memo = memo or PlanMemo()
    (market,) = memo.slot_markets([Case(job=job, window=window, forecasts=forecasts, record=record)])
    return run_families([with_shared_plans(policy, memo) for policy in policies], job, market)


@dataclass(slots=True, kw_only=True)
class _Trajectory:
    """The slots of the policies ``members`` (indices), which have decided equally so far, up to ``end`` = (slot, progress)."""

    members: list[int]
    state: Any
    end: tuple[int, Progress]
    held: tuple[Allocation, ...] = ()


def run_families(policies: Sequence[Policy[Any]], job: Job, market: SlotMarket) -> list[Outcome]:
    """Run each policy; a family is run once until its members differ."""
    outcomes: dict[int, Outcome] = {}
    for members in families(policies):
        waiting = [_Trajectory(members=members, state=policies[members[0]].start(job), end=(0, Progress()))]
        while waiting:
            trajectory = waiting.pop()
            waiting += _follow(trajectory, policies, job, market)
            outcome = settle("", job, trajectory.held, trajectory.end, market)
            outcomes |= {i: replace(outcome, policy=policies[i].name) for i in trajectory.members}
    return [outcomes[i] for i in range(len(policies))]


def _follow(
    trajectory: _Trajectory, policies: Sequence[Policy[Any]], job: Job, market: SlotMarket
) -> Iterator[_Trajectory]:
    """Run a policy to the end: the loop of M2.4; yield the trajectories of members that decide otherwise, at that slot."""
    policy, (slot, progress) = policies[trajectory.members[0]], trajectory.end
    held = [*trajectory.held]
    while slot < job.deadline_slots and not is_finished(progress.done, job.workload):
        view = market.view(job, progress, slot)
        trajectory.members, *others = parted(policies, trajectory.members, view)
        for members in others:
            end = slot, progress
            yield _Trajectory(members=members, state=trajectory.state, end=end, held=tuple(held))
        wish, trajectory.state = policy.decide(trajectory.state, view)
        allocation = check_allocation(wish, view, policy.name)
        progress = step(progress, allocation, view)
        held.append(allocation)
        slot += 1
    trajectory.held, trajectory.end = tuple(held), (slot, progress)


def replay_batch(
    cases: Sequence[Case],
    policies: Sequence[Policy[Any]],
    *,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Outcome]]:
    """Return the outcomes of every policy on every case, a list per case, both in the given order.

    The results are those of `replay_pool` for each case, for any number of ``processes``; horizon
    programs are shared within a case. ``progress(done, total)`` counts cases. Raises the errors of
    `replay_pool`, and `SettingsError` for fewer than 1 process.
    """
    return list(fan_out(replay_case, cases, tuple(policies), processes=processes, progress=progress))


def replay_case(case: Case, policies: Sequence[Policy[Any]]) -> list[Outcome]:
    """Return the outcomes of every policy on a case."""
    return replay_pool(policies, case.job, case.window, forecasts=case.forecasts, record=case.record)
