"""Replay of policies in the world of M12: decisions at slots or at readings, under the exact guard (M12.10)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from slackwater.optimization.job.definition import Job, Progress
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.policies.baselines import OnDemandOnly
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pace import always_worth_finishing, worth_finishing
from slackwater.optimization.replay.run import (
    Case,
    NewestReading,
    PlanMemo,
    Seen,
    checked,
    spread,
    with_shared_plans,
)
from slackwater.optimization.window.plan import WORLD, Allocation, Model, Outcome
from slackwater.optimization.world.simulation import (
    SECOND_TOLERANCE,
    Readings,
    Standing,
    WorldRun,
)
from slackwater.optimization.world.terms import world_terms
from slackwater.warehouse.errors import MarketError

S = TypeVar("S")
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
    the work done by the deadline. ``on_demand_usd``, ``spot_usd`` and the instance-hours cover the
    whole run; ``restarts`` counts how often the group formed.
    """

    launcher: Launcher
    finish: float | None
    on_demand_usd: float
    spot_usd: float
    on_demand_hours: float
    spot_hours: float
    lost_instances: int
    lost_work: float
    restarts: int

    @property
    def model(self) -> Model:
        """Always "world"."""
        return WORLD

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
    """A job on a market in the world: its case, whose job states the times of its instances, and the market's readings."""

    case: Case
    readings: Readings


def market_readings(window: MarketWindow, within: np.ndarray | None = None) -> Readings:
    """Return the readings of a window, in seconds from its first slot: the slots, and the counts read between them.

    ``within`` (slots, m) are the counts between the start of each slot and the next, evenly spaced
    and oldest first, NaN where none was read; without them the slots are the only readings. Prices
    are those of the slots. In a gap there is no spot.

    Raises `MarketError` if window and ``within`` have different slots.
    """
    slots, seconds = len(window), window.slot_hours * SECONDS_PER_HOUR
    between = np.full((slots, 0), np.nan) if within is None else np.asarray(within, dtype=float)
    if between.ndim != 2 or len(between) != slots:
        raise MarketError(f"readings of shape {between.shape} in {slots} slots", expected="one row per slot")
    per_slot = between.shape[1] + 1
    times = np.arange(slots)[:, None] * seconds + np.arange(per_slot) * (seconds / per_slot)
    price = window.price if window.quoted is None else window.quoted
    usd = np.where(window.observed, price, window.on_demand_usd)
    counts = np.column_stack([window.available.astype(float), between])
    counts[~window.observed] = 0.0
    known = np.isfinite(counts)
    return Readings(
        times=times[known],
        available=counts[known],
        price=np.broadcast_to(usd[:, None], counts.shape)[known],
    )


def readings_inside(within: np.ndarray | None, first: int, slots: int) -> np.ndarray | None:
    """Return the readings inside ``slots`` slots from ``first`` on, from those between each slot and the slot before.

    ``within`` is `History.within`. The readings inside the last slot of a record are unknown.
    """
    if within is None:
        return None
    inside = np.full((slots, within.shape[1]), np.nan)
    known = within[first + 1 : first + 1 + slots]
    inside[: len(known)] = known
    return inside


@dataclass(frozen=True, slots=True)
class Decisions:
    """Times of decisions in seconds, ascending; each is in a slot, and the last one is followed by the deadline."""

    times: tuple[float, ...]
    slots: tuple[int, ...]
    deadline: float

    def __iter__(self) -> Iterator[tuple[float, int, float]]:
        """Yield the time of each decision, its slot, and the time of the next."""
        return iter(zip(self.times, self.slots, (*self.times[1:], self.deadline), strict=True))


def decision_times(launcher: Launcher, slots: int, slot_seconds: float, readings: Readings) -> Decisions:
    """Return the decisions of a launcher in a job of ``slots`` slots: the starts of the slots, and readings if it reacts."""
    starts = np.arange(slots) * slot_seconds
    deadline = slots * slot_seconds
    times = starts
    if launcher is Launcher.READINGS:
        times = np.union1d(starts, readings.times[(readings.times > 0) & (readings.times < deadline)])
    place = np.searchsorted(starts, times, side="right") - 1
    return Decisions(tuple(times.tolist()), tuple(place.tolist()), deadline)


def replay_in_world(
    policies: Sequence[Policy[Any]],
    case: WorldCase,
    *,
    launcher: Launcher = Launcher.READINGS,
    guard: bool = True,
    memo: PlanMemo | None = None,
) -> list[WorldOutcome]:
    """Replay every policy on a job in the world, under the exact guard (M12.7) unless ``guard`` is False.

    ``memo`` shares plans and tables with other replays of the same case. Raises the errors of
    `slackwater.optimization.replay.run.replay` and `world_terms`.
    """
    memo = memo or PlanMemo()
    job, known = case.case.job, case.case
    seen = memo.seen(job, known.window, known.forecasts, known.record, known.launches)
    slot_seconds = seen.slot_hours * SECONDS_PER_HOUR
    decisions = decision_times(launcher, job.deadline_slots, slot_seconds, case.readings)
    ahead = None
    if guard and launcher is Launcher.SLOTS and job.deadline_slots > 1 and always_kept(job, seen):
        early = replace(job, deadline_slots=job.deadline_slots - 1)
        ahead = early, replace(seen, windows={}, tables={})
    return [
        _run_policy(
            with_shared_plans(policy, memo),
            case,
            seen,
            None if isinstance(policy, OnDemandOnly) else ahead,
            decisions,
            launcher,
            guard,
        )
        for policy in policies
    ]


def replay_world_batch(
    cases: Sequence[WorldCase],
    policies: Sequence[Policy[Any]],
    *,
    launcher: Launcher = Launcher.READINGS,
    guard: bool = True,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[WorldOutcome]]:
    """Return the outcomes of every policy on every case, as `slackwater.optimization.replay.run.replay_batch`."""
    shared = (tuple(policies), launcher, guard)
    return list(spread(_replay_case, cases, shared, processes=processes, progress=progress))


def _replay_case(
    case: WorldCase, shared: tuple[tuple[Policy[Any], ...], Launcher, bool]
) -> list[WorldOutcome]:
    policies, launcher, guard = shared
    return replay_in_world(policies, case, launcher=launcher, guard=guard)


def _run_policy(
    policy: Policy[S],
    case: WorldCase,
    seen: Seen,
    ahead: tuple[Job, Seen] | None,
    decisions: Decisions,
    launcher: Launcher,
    guard: bool,
) -> WorldOutcome:
    """Run a policy to the end of the job.

    ``ahead`` are the job as it is planned, due a slot earlier (M12.11), and what is seen of its
    market; None: it is planned as it is. A policy that decides again within a slot starts from its
    state before the slot, so that its state counts slots (M12.10).
    """
    job = case.case.job
    terms = world_terms(
        job, on_demand_usd=seen.on_demand_usd, slot_hours=seen.slot_hours, sold=seen.on_demand.sold
    )
    run = WorldRun(terms, case.readings)
    before = state = policy.start(job)
    always = always_kept(job, seen)
    present, targets = -1, list[Allocation]()
    at = Standing(0, run.available, run.price, 0.0, 0.0)
    for now, slot, next_at in decisions:
        if slot != present:
            before, present = state, slot
        elapsed = max(0.0, now / SECONDS_PER_HOUR - slot * seen.slot_hours)
        progress = Progress(done=at.work, n_previous=at.held, cost_usd=at.paid_usd)
        view = seen.view(job, progress, slot, NewestReading(at.price, at.available, elapsed))
        plan = view
        if ahead is not None and slot < ahead[0].deadline_slots:
            plan = ahead[1].view(ahead[0], progress, slot, NewestReading(at.price, at.available, elapsed))
        wish, state = policy.decide(before, plan)
        wish = checked(wish, view, policy.name)
        kept = guard and (always or (view.on_demand.sold and worth_finishing(view)))
        limit = decisions.deadline if kept else math.inf
        target, at = run.follow(wish, until=next_at, deadline=limit)
        if len(targets) <= slot:
            targets.append(target)
        if run.is_finished:
            break
    return _outcome(policy.name, job, run, targets, seen, launcher)


def always_kept(job: Job, seen: Seen) -> bool:
    """Return whether finishing on demand pays in every state from which it meets the deadline, as for the priced net (M4)."""
    usd, hours = seen.on_demand_usd, seen.slot_hours
    return seen.on_demand.sold and always_worth_finishing(job, usd, hours)


def _outcome(
    policy: str,
    job: Job,
    run: WorldRun,
    targets: Sequence[Allocation],
    seen: Seen,
    launcher: Launcher,
) -> WorldOutcome:
    slot_seconds = seen.slot_hours * SECONDS_PER_HOUR
    deadline = job.deadline_slots * slot_seconds
    run.advance(deadline)
    work = run.work
    end = run.end(job.worth, deadline=deadline, slot=slot_seconds, must_finish=job.must_finish)
    finish = end.finish
    on_time = finish is not None and finish <= deadline + SECOND_TOLERANCE
    slots = None if finish is None else math.ceil((finish - SECOND_TOLERANCE) / slot_seconds)
    on_demand_usd, spot_usd = run.paid
    on_demand_seconds, spot_seconds = run.instance_seconds
    return WorldOutcome(
        policy=policy,
        job=job.name,
        allocations=tuple(targets),
        progress=work,
        cost_usd=end.paid_usd - end.late_usd,
        termination_cost_usd=end.late_usd,
        finished_slot=slots if on_time else None,
        finish_slots=slots,
        value_usd=end.value_usd,
        utility_usd=end.utility_usd,
        launcher=launcher,
        finish=finish,
        on_demand_usd=on_demand_usd,
        spot_usd=spot_usd,
        on_demand_hours=on_demand_seconds / SECONDS_PER_HOUR,
        spot_hours=spot_seconds / SECONDS_PER_HOUR,
        lost_instances=run.lost_instances,
        lost_work=run.lost_work,
        restarts=run.restarts,
    )
