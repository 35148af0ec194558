"""Replay of policies in the world of M12: decisions at slots or at readings, under the exact guard (M12.10)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from slackwater.optimization.moving.adapter import for_markets
from slackwater.optimization.moving.definition import (
    MarketsJob,
    MultiMarketPolicy,
    Placement,
    check_target,
    in_one_market,
    is_multi_market,
    placement,
)
from slackwater.optimization.moving.sight import Grounds, always_kept
from slackwater.optimization.policies.baselines import OnDemandOnly
from slackwater.optimization.policies.contract import Policy, families, parted, plans_in_world
from slackwater.optimization.policies.pace import worth_finishing
from slackwater.optimization.replay.ahead import progress_at
from slackwater.optimization.replay.guard import Guard
from slackwater.optimization.replay.run import Case, NewestReading, PlanMemo, legal, with_shared_plans
from slackwater.optimization.window.plan import WORLD, Model, Outcome
from slackwater.optimization.world.simulation import SECOND_TOLERANCE, Readings, Standing, WorldRun
from slackwater.optimization.world.terms import world_markets

SECONDS_PER_HOUR = 3600.0


class Launcher(StrEnum):
    """When a job's launcher decides: at the starts of slots, or also at every reading between them."""

    SLOTS = "slots"
    READINGS = "readings"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOutcome(Outcome):
    """Outcome of a policy on a job in the world (M12); times are in seconds from the job's start.

    ``allocations`` are the targets at the starts of slots, ``cost_usd`` is paid by the deadline and
    ``termination_cost_usd`` after it. ``finish`` is None for a job that was given up, ``progress``
    the work done by the deadline. ``on_demand_usd``, ``spot_usd``, ``moving_usd`` and the
    instance-hours cover the whole run; ``restarts`` counts how often the group formed.
    """

    model: ClassVar[Model] = WORLD

    finish: float | None
    on_demand_usd: float
    spot_usd: float
    on_demand_hours: float
    spot_hours: float
    lost_instances: int
    lost_work: float
    restarts: int

    def finish_seconds(self, slot_seconds: float) -> float | None:
        """Return the seconds from the start to the finish, None if the job was given up."""
        return self.finish

    @property
    def spot_share(self) -> float:
        """Share of spot in the instance-hours, 0 without any."""
        hours = self.on_demand_hours + self.spot_hours
        return self.spot_hours / hours if hours else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldCase:
    """A job in the world with its M >= 1 markets: its run in each, which states the times of its instances, and the readings."""

    job: MarketsJob
    cases: tuple[Case, ...]
    readings: tuple[Readings, ...]

    @classmethod
    def of(cls, case: Case, readings: Readings) -> WorldCase:
        """Return the case of a job in one market."""
        job = in_one_market(case.job, sold=case.window.on_demand.sold)
        return cls(job=job, cases=(case,), readings=(readings,))


#: Time of a decision in seconds, its slot, and the time of the next decision, or of the deadline.
DecisionTime = tuple[float, int, float]


def decision_times(
    launcher: Launcher, slots: int, slot_seconds: float, readings: Sequence[Readings]
) -> list[DecisionTime]:
    """Return the decisions of a launcher in ``slots`` slots: their starts, and the readings of the markets if it reacts."""
    starts = np.arange(slots) * slot_seconds
    deadline, times = slots * slot_seconds, starts
    if launcher is Launcher.READINGS:
        read = np.concatenate([own.times for own in readings])
        times = np.union1d(starts, read[(read > 0) & (read < deadline)])
    place = np.searchsorted(starts, times, side="right") - 1
    return list(zip(times.tolist(), place.tolist(), [*times[1:].tolist(), deadline], strict=True))


def replay_in_world(
    policies: Sequence[Policy[Any] | MultiMarketPolicy[Any]],
    case: WorldCase,
    *,
    launcher: Launcher = Launcher.READINGS,
    guard: bool = True,
    memo: PlanMemo | None = None,
    grounds: Grounds | None = None,
) -> list[WorldOutcome]:
    """Replay every policy on a job in the world, under the exact guard (M12.7) unless ``guard`` is False.

    A policy that knows one market is lifted to several (`for_markets`). ``memo`` shares plans and
    tables with other replays of the same case, ``grounds`` those of another job in the same markets.
    Raises `MarketError` for windows that are too short, `PolicyError` for an illegal allocation
    (M2.3), `JobError` if a policy may not run the job (M2.7), and the errors of `world_markets`.
    """
    memo = memo or PlanMemo()
    job, windows = case.job, [market.window for market in case.cases]
    markets = world_markets(
        job,
        on_demand_usd=[window.on_demand_usd for window in windows],
        slot_hours=windows[0].slot_hours,
        sold=[window.on_demand.sold for window in windows],
    )
    decisions = decision_times(
        launcher, job.job.deadline_slots, windows[0].slot_hours * SECONDS_PER_HOUR, case.readings
    )
    ahead = guard and launcher is Launcher.SLOTS
    one = len(windows) == 1 and math.isinf(job.job.budget_usd)
    outcomes: dict[int, WorldOutcome] = {}
    for members in families(policies) if one else [[i] for i in range(len(policies))]:
        if grounds is None:
            grounds = Grounds(job, case.cases, memo)
        waiting = [_Trajectory(members=members, run=WorldRun(markets, case.readings))]
        while waiting:
            trajectory = waiting.pop()
            waiting += _follow(trajectory, policies, memo, grounds, decisions, guard=guard, ahead=ahead)
            outcome = _outcome(job, trajectory, windows[0].slot_hours)
            outcomes |= {i: replace(outcome, policy=policies[i].name) for i in trajectory.members}
    return [outcomes[i] for i in range(len(policies))]


class _Trajectory:
    """The run of the policies ``members`` (indices), which have decided equally so far.

    ``step`` is the next decision, ``at`` the state of the run there, and ``targets`` are those at the starts of
    slots. The policies have ``state``, and had the state ``before`` when they first decided in ``slot``.
    """

    __slots__ = ("at", "before", "members", "run", "slot", "state", "step", "targets")

    def __init__(self, members: list[int], run: WorldRun) -> None:
        self.members, self.run, self.at = members, run, run.standing
        self.step, self.slot, self.targets = 0, -1, list[Placement]()
        self.before: Any = None
        self.state: Any = None

    def branch(self, members: list[int]) -> _Trajectory:
        """Return the same trajectory so far of other policies."""
        other = copy.copy(self)
        other.members, other.run, other.targets = members, self.run.copy(), [*self.targets]
        return other


def _follow(
    trajectory: _Trajectory,
    policies: Sequence[Policy[Any] | MultiMarketPolicy[Any]],
    memo: PlanMemo,
    grounds: Grounds,
    decisions: Sequence[DecisionTime],
    *,
    guard: bool,
    ahead: bool,
) -> Iterator[_Trajectory]:
    """Run a policy up to the deadline or its finish; yield the trajectories of members that decide otherwise, at that decision.

    ``ahead``: the policy sees the job as it is planned, due a slot earlier (M12.11). A policy that decides
    again within a slot starts from its state before the slot, so that its state counts slots (M12.10).
    """
    policy, run = policies[trajectory.members[0]], trajectory.run
    ahead = ahead and not isinstance(policy, OnDemandOnly)
    if ahead:
        grounds.plan_a_slot_ahead()
    policy = policy if is_multi_market(policy) else with_shared_plans(policy, memo)
    job, seen, hours = grounds.job, grounds.seen, grounds.seen[0].slot_hours
    budget = job.job.budget_usd < math.inf
    alone = None if is_multi_market(policy) or len(seen) > 1 or budget else policy
    always, sold = always_kept(job, seen), any(own.on_demand.sold for own in seen)
    in_world = plans_in_world(policy) and (len(seen) > 1 or (guard and not budget))
    movable = for_markets(policy, of=len(seen))
    if not trajectory.step:
        trajectory.state = movable.start(job) if alone is None else alone.start(job.job)
    for now, slot, next_at in decisions[trajectory.step :]:
        if slot != trajectory.slot:
            trajectory.before, trajectory.slot = trajectory.state, slot
        before, at = trajectory.before, trajectory.at
        progress = progress_at(job, run, at)
        newest = _newest(run, at, max(0.0, now / SECONDS_PER_HOUR - slot * hours))
        running = run.running(next_at=next_at, guarded=guard and always) if in_world else None
        if alone is not None:
            own = grounds.view_alone(progress, slot, newest[0], planned=ahead, running=running)
            trajectory.members, *others = parted(policies, trajectory.members, own)
            yield from map(trajectory.branch, others)
            wish, trajectory.state = alone.decide(before, own)
            wish = legal(wish, own, policy.name)
            market, kept = 0, guard and (always or (sold and worth_finishing(own)))
        else:
            held, trajectory.state, view = grounds.decide(
                movable, before, progress, slot, newest, planned=ahead,
                instances=None if running is None else (run.market, running),
            )  # fmt: skip
            held = check_target(held, view, policy.name)
            kept = guard and (always or (sold and view.worth_finishing))
            if kept and budget:
                held, kept = Guard.of(view, run, next_at=next_at).allow(held), False
            wish, market = held.allocation, run.market if held.market is None else held.market
        limit = decisions[-1][2] if kept else math.inf
        to, target, trajectory.at = run.follow(wish, until=next_at, deadline=limit, market=market)
        trajectory.step += 1
        if len(trajectory.targets) <= slot:
            trajectory.targets.append(placement(to, target))
        if run.is_finished:
            break


def _newest(run: WorldRun, at: Standing, elapsed_hours: float) -> list[NewestReading]:
    """Return the newest reading of each market of a run."""
    if len(run.readings) == 1:
        return [NewestReading(at.price, at.available, elapsed_hours)]
    read = map(run.reading_of, range(len(run.readings)))
    return [NewestReading(usd, available, elapsed_hours) for available, usd in read]


def _outcome(job: MarketsJob, trajectory: _Trajectory, slot_hours: float) -> WorldOutcome:
    several, run, targets = len(job.runs) > 1, trajectory.run, trajectory.targets
    slot_seconds = slot_hours * SECONDS_PER_HOUR
    deadline = job.job.deadline_slots * slot_seconds
    run.advance(deadline)
    work = run.work
    end = run.end(job.job.worth, deadline=deadline, slot=slot_seconds, must_finish=job.job.must_finish)
    finish = end.finish
    on_time = finish is not None and finish <= deadline + SECOND_TOLERANCE
    slots = None if finish is None else math.ceil((finish - SECOND_TOLERANCE) / slot_seconds)
    on_demand_usd, spot_usd = run.paid
    on_demand_seconds, spot_seconds = run.instance_seconds
    return WorldOutcome(
        policy="",
        job=job.job.name,
        allocations=tuple(target.allocation for target in targets),
        progress=work,
        cost_usd=end.paid_usd - end.late_usd,
        termination_cost_usd=end.late_usd,
        finished_slot=slots if on_time else None,
        finish_slots=slots,
        value_usd=end.value_usd,
        utility_usd=end.utility_usd,
        places=tuple(target.market for target in targets) if several else None,
        moves=run.moves,
        moving_usd=run.moving_usd,
        ended_in=run.market if several and finish is not None and not on_time else None,
        finish=finish,
        on_demand_usd=on_demand_usd,
        spot_usd=spot_usd,
        on_demand_hours=on_demand_seconds / SECONDS_PER_HOUR,
        spot_hours=spot_seconds / SECONDS_PER_HOUR,
        lost_instances=run.lost_instances,
        lost_work=run.lost_work,
        restarts=run.restarts,
    )
