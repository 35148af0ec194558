"""Expected cost and lateness of a running job: its policy in the world (M12) over sampled paths of the market (M12.12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from slackwater.optimization.job.definition import Allocation, Job, Progress, needed
from slackwater.optimization.kernels.moving import Ground, ending_at
from slackwater.optimization.kernels.world import ON_DEMAND, SPOT
from slackwater.optimization.market.belief import LEAST_SEEN, Belief, Believed, MarketPaths, joined
from slackwater.optimization.market.window import MarketWindow, Record, record_of
from slackwater.optimization.moving.definition import MarketsJob, in_one_market
from slackwater.optimization.policies.contract import Paths, Policy, Together, View, belief_of
from slackwater.optimization.policies.pace import always_worth_finishing, worth_finishing
from slackwater.optimization.replay.run import PlanMemo, SlotMarket, checked, see, with_shared_plans
from slackwater.optimization.world.paths import WorldPaths, finish_in_slots, later_readings
from slackwater.optimization.world.simulation import Standing, Targets, WorldRun
from slackwater.warehouse.errors import MarketError


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected outcome of a running job over ``paths`` sampled paths.

    ``cost_usd`` is the mean total cost from the first second to the last, the ending included (M2.6), with
    quantiles ``cost_p10_usd`` and ``cost_p90_usd``. ``finish_slots`` (mean) and ``finish_median`` count slots
    from the job's first; a path on which the job is given up counts as gamma d, from which on the value is 0.
    ``finish`` contains every path's finish, shape (paths,), NaN where given up. ``late_probability`` is P(not
    finished by d within the budget), ``given_up_probability`` P(given up), ``over_budget_probability``
    P(finishing costs more than the budget).
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
    over_budget_probability: float = 0.0


def summary(job: Job, *, cost: np.ndarray, finish: np.ndarray, utility: np.ndarray) -> Expected:
    """Return the expected outcome from (paths,): ``cost`` in USD, ``finish`` in slots (NaN: given up), ``utility`` in USD."""
    counted = np.where(np.isnan(finish), job.late_limit, finish)
    over = cost > job.budget_usd
    return Expected(
        paths=len(cost),
        cost_usd=float(cost.mean()),
        cost_p10_usd=float(np.quantile(cost, 0.1)),
        cost_p90_usd=float(np.quantile(cost, 0.9)),
        finish_slots=float(counted.mean()),
        finish_median=float(np.median(counted)),
        finish=finish,
        late_probability=float(np.mean((counted > job.deadline_slots) | over)),
        given_up_probability=float(np.isnan(finish).mean()),
        utility_usd=float(np.mean(utility)),
        over_budget_probability=float(np.mean(over)),
    )


DRAWN = 10  # Number of belief variants among which the paths are divided, if the job may be given up
LIKELY = 0.5  # Probability from which on a policy believes in one of the variants


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """A running job at its decision: policy and state, view, run in the world, and the target decided there.

    ``plan`` is the view by which the policy plans (`LiveJob.views_for`), ``standby`` the target if
    there is no spot. The decision is ``elapsed`` seconds after the start of its slot.
    """

    policy: Policy[Any]
    state: Any
    view: View
    plan: View
    run: WorldRun
    target: Allocation
    standby: Allocation | None = None
    elapsed: float = 0.0


def look_ahead(now: Present, *, paths: int, rng: np.random.Generator) -> Expected:
    """Return the expected outcome over paths sampled from the policy's belief (M6.9).

    If finishing is always worth its on-demand price, no later belief leads to a missed deadline by choice,
    and the paths come from the belief itself. Otherwise a changed belief may do so: then the paths come from
    `DRAWN` variants of the belief, and on each path the policy learns which of them holds (`beliefs_on_paths`).
    """
    view = now.view
    later = view.job.deadline_slots - view.slot - 1
    belief = belief_of(now.policy, view)
    if always_worth_finishing(view.job, view.on_demand_usd, view.slot_hours):
        return simulate_ahead(now, belief.sample(later, paths=paths, rng=rng), rng=rng)
    variants = list(belief.draw(min(DRAWN, paths), rng))
    shares = [len(range(share, paths, DRAWN)) for share in range(len(variants))]
    sampled = joined(
        [each.sample(later, paths=many, rng=rng) for each, many in zip(variants, shares, strict=True)]
    )
    if belief.request is None:
        which = np.repeat(np.arange(len(variants)), shares)[:, None].repeat(later, axis=1)
    else:
        which = beliefs_on_paths(variants, sampled)
    cost, finish, value = _ahead(now, (*variants, belief), which, sampled, rng)
    return summary(view.job, cost=cost, finish=finish, utility=value - cost)


def beliefs_on_paths(variants: Sequence[Belief], sampled: MarketPaths) -> np.ndarray:
    """Return the variant that the policy takes for the market on each path in each later slot, shape (paths, slots) (M13.4).

    It is the most probable variant given the counts up to the slot, if its probability is at least `LIKELY`;
    otherwise ``len(variants)``, which stands for the present belief.
    """
    (paths, slots), chain = sampled.count.shape, variants[0].counts
    steps = np.stack([each.count_transitions(slots) for each in variants], axis=-1)
    steps, states = np.log(np.maximum(steps, LEAST_SEEN)), chain.indices(sampled.count)
    now = np.log(np.maximum(np.stack([each.count_now for each in variants], axis=-1), LEAST_SEEN))
    before = np.full(paths, now[:, 0].argmax()) if sampled.present is None else chain.indices(sampled.present)
    fit, found = now[before], np.empty((paths, slots), dtype=np.int64)
    for k in range(slots):
        fit = fit + steps[k, before, states[:, k]]
        before, weight = states[:, k], np.exp(fit - fit.max(axis=1, keepdims=True))
        likely = weight.max(axis=1) >= LIKELY * weight.sum(axis=1)
        found[:, k] = np.where(likely, weight.argmax(axis=1), len(variants))
    return found


def simulate_ahead(now: Present, sampled: MarketPaths, *, rng: np.random.Generator) -> Expected:
    """Run the policy from its present state over sampled paths, in the world and under the exact guard.

    The paths reach at least to the deadline; the slot of the view is as observed. A count that
    changes between two readings changes at a uniformly random second between them (M12.12).

    In later slots the policy reads the forecast of the view shifted to that slot: a *static vintage*, since
    later forecasts are unknown (ours). The record and the belief of the view are fixed too: the present
    belief applies to the end from every state that a path reaches, so tables are computed only once. The
    result is therefore slightly pessimistic for a policy that profits from new forecasts.

    Horizon programs are solved by the exact twin (M3.2), whatever the live solver. A policy that
    implements `Together` decides once per slot for all paths, with the same outcome. Raises
    `MarketError` for paths of another shape, `PolicyError` and `JobError` as `replay` does.
    """
    view = now.view
    later, shape = view.job.deadline_slots - view.slot - 1, sampled.count.shape
    if sampled.price.shape != shape or len(shape) != 2 or shape[1] < later or not shape[0]:
        raise MarketError(
            f"price paths of shape {sampled.price.shape}, count paths of {sampled.count.shape}",
            expected=f"both of shape (paths, slots), at least one path and at least {later} slots",
        )
    which = np.zeros((shape[0], later), dtype=np.int64)
    cost, finish, value = _ahead(now, (belief_of(now.policy, view),), which, sampled.cut(later), rng)
    return summary(view.job, cost=cost, finish=finish, utility=value - cost)


def _ahead(
    now: Present, beliefs: Sequence[Belief], which: np.ndarray, sampled: MarketPaths, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return total cost in USD, finish in slots (NaN: given up) and value in USD of every path, shape (paths,).

    ``which`` (paths, slots) of the ``beliefs`` the policy has in the slots after that of the view. Where a path has
    no spot at all in the present slot, the standby applies at once.
    """
    view, present, many = now.view, sampled.present, len(sampled.count)
    seconds = view.slot_hours * 3600.0
    readings = later_readings(now.run, seconds, [sampled], rng, first=seconds - now.elapsed)
    paths = WorldPaths(now.run, readings)
    first = Targets(*(np.full(many, part) for part in (0, now.target.on_demand, now.target.spot)))
    if present is not None:
        paths.advance(now.run.now)  # instances that are gone are lost before the decision
        if now.standby is not None and now.standby.total:
            gone = present == 0
            first.on_demand[gone], first.spot[gone] = now.standby.on_demand, now.standby.spot
    paths.decide(first)
    wishes = _LearningWishes.of(now, beliefs, which, paths, sampled)
    ground = wishes.job.ground([view.on_demand_usd], view.slot_hours)
    start = now.run.now - now.elapsed - view.slot * seconds
    return run_to_end(paths, wishes, ground, slot=view.slot, start=start, seconds=seconds)


class Wishes(Protocol):
    """Wishes of a policy for a job on many paths, slot by slot."""

    @property
    def job(self) -> MarketsJob:
        """The job, in one market or in several."""

    @property
    def sold(self) -> bool:
        """Whether on-demand is sold in some market."""

    def at(self, slot: int, own: np.ndarray) -> Targets:
        """Return the targets on all paths in a slot: wishes on the paths ``own``, which have work left, nothing on others."""

    def guarded(self, slot: int, own: np.ndarray, wished: Targets, safe: Targets) -> np.ndarray:
        """Return the paths of ``own`` on which the target of the guard replaces the wish."""


def run_to_end(
    paths: WorldPaths, wishes: Wishes, ground: Ground, *, slot: int, start: float, seconds: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Let a policy decide in every slot after ``slot``, which is decided, under the exact guard, and end the job (M2.6).

    Return total cost in USD, finish in slots (NaN: given up) and value in USD of every path, shape
    (paths,). ``start`` is the first second of the job.
    """
    job, slots = wishes.job, wishes.job.job.deadline_slots
    deadline = start + slots * seconds
    for later in range(slot + 1, slots):
        paths.advance(start + later * seconds)
        own = np.flatnonzero(paths.running)
        if not len(own):
            break
        targets = wishes.at(later, own)
        if wishes.sold:
            safe = paths.guarded(targets, next_at=start + (later + 1) * seconds, deadline=deadline)
            kept = wishes.guarded(later, own, targets, safe)
            for wish, guarded in zip(targets, safe, strict=True):
                wish[kept] = guarded[kept]
        paths.decide(targets)
    paths.advance(deadline)
    _end(job, ground, paths)
    finish = finish_in_slots(paths.finish, start, seconds, slots)
    value = [0.0 if np.isnan(at) else job.job.completion_value(at) for at in finish.tolist()]
    return paths.paid, finish, np.array(value)


def _end(job: MarketsJob, ground: Ground, paths: WorldPaths) -> None:
    """End the jobs that are not done at the deadline: the best constant on-demand size of M2.6 in any market, or nothing."""
    own = np.flatnonzero(paths.running)
    if not len(own):
        return
    place, before = place_and_size(job, paths)
    work, done = needed(job.job.workload), paths.work
    ends = nothing(paths)
    for p in own.tolist():
        state = int(place[p]), int(before[p]), job.job.deadline_slots, work - float(done[p])
        _, market, size, _ = ending_at(ground, *state)
        if size:
            ends.market[p], ends.on_demand[p] = market, ground.sizes[market, size]
    paths.decide(ends)
    paths.advance(np.inf)


def nothing(paths: WorldPaths) -> Targets:
    """Return targets of no instances, in the markets in which the paths are."""
    return Targets(paths.market, *np.zeros((2, paths.paths), dtype=np.int64))


def place_and_size(job: MarketsJob, paths: WorldPaths) -> tuple[np.ndarray, np.ndarray]:
    """Return market and size on every path as policies read them, shapes (paths,); see `held_size`."""
    market = paths.market
    place = market if len(job.runs) == 1 else np.where(paths.place < 0, job.nowhere, paths.place)
    least = np.array([run.n_min for run in job.runs])[market]
    most = np.array([run.n_max for run in job.runs])[market]
    held = np.where(paths.held < least, 0, np.minimum(paths.held, most))
    return place, np.where(place == market, held, 0)


def held_size(job: Job, reported: int) -> int:
    """Return the size that policies read: 0 below ``n_min``, which makes no progress, and at most ``n_max``."""
    return min(reported, job.n_max) if reported >= job.n_min else 0


def progress_of(job: MarketsJob, run: WorldRun) -> Progress:
    """Return the progress of a run in the world, as policies read it."""
    at = run.standing
    return progress_at(job, run, at._replace(work=job.job.workload) if run.is_finished else at)


def progress_at(job: MarketsJob, run: WorldRun, at: Standing) -> Progress:
    """Return the progress of a run whose state is ``at``, as policies read it."""
    place = market = 0
    if len(job.runs) > 1:
        market, place = run.market, job.nowhere if run.place is None else run.place
    size = held_size(job.runs[market], at.held) if place == market else 0
    return Progress(done=at.work, n_previous=size, cost_usd=at.paid_usd, place=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wishes:
    """Wishes of a policy on every path, together if it can; prices and counts (paths, slots) after the view's slot."""

    policy: Policy[Any]
    seen: SlotMarket
    states: list[Any]
    view: View
    job: MarketsJob
    paths: WorldPaths
    prices: np.ndarray
    counts: np.ndarray
    always: bool
    sold: bool

    @classmethod
    def of(
        cls, now: Present, held: Belief, paths: WorldPaths, prices: np.ndarray, counts: np.ndarray
    ) -> _Wishes:
        """Return the wishes from the present on; ``held`` is the belief in later slots."""
        view = now.plan
        beliefs = replace(view.market_beliefs(), held=held)
        policy = with_shared_plans(now.policy, PlanMemo())
        _, state = policy.decide(now.state, view)
        sold = now.view.on_demand.sold
        return cls(
            policy=policy,
            seen=_later(view, beliefs),
            states=[state] * paths.paths,
            view=view,
            job=in_one_market(now.view.job, sold=sold),
            paths=paths,
            prices=prices,
            counts=counts,
            always=always_worth_finishing(now.view.job, view.on_demand_usd, view.slot_hours),
            sold=sold,
        )

    def at(self, slot: int, own: np.ndarray) -> Targets:
        """Return the targets on all paths in a slot: wishes on the paths ``own``, nothing on others."""
        targets, job = nothing(self.paths), self.view.job
        states = self._states(slot, own)
        if isinstance(self.policy, Together) and self.view.running is not None:
            first = Progress(done=float(states.done[0]), n_previous=int(states.n_previous[0]))
            chosen = self.policy.decide_together(self.states[0], self.seen.view(job, first, slot), states)
            if chosen is not None:
                on_demand, spot = chosen
                if not self.view.on_demand.sold:
                    on_demand, spot = np.zeros_like(spot), np.where(spot >= job.n_min, spot, 0)
                targets.on_demand[own], targets.spot[own] = on_demand, spot
                return targets
        paid = self.paths.paid
        for i, p in enumerate(own.tolist()):
            view = self._view(slot, i, states, float(paid[p]))
            wish, self.states[p] = self.policy.decide(self.states[p], view)
            kept = checked(wish, view, self.policy.name)
            targets.on_demand[p], targets.spot[p] = kept.on_demand, kept.spot
        return targets

    def guarded(self, slot: int, own: np.ndarray, wished: Targets, safe: Targets) -> np.ndarray:
        """Return the paths on which the guard counts: all, or those on which the job is worth finishing (M4)."""
        if self.always:
            return own
        states = self._states(slot, own)
        changed = (wished.on_demand[own] != safe.on_demand[own]) | (wished.spot[own] != safe.spot[own])
        kept = [
            p
            for i, p in enumerate(own.tolist())
            if changed[i] and worth_finishing(self._view(slot, i, states, 0.0))
        ]
        return np.array(kept, dtype=np.int64)

    def _states(self, slot: int, own: np.ndarray) -> Paths:
        paths, later = self.paths, slot - self.view.slot - 1
        held, pending, saved = paths.instances(own)
        return Paths(
            done=paths.work[own],
            n_previous=place_and_size(self.job, paths)[1][own],
            price=self.prices[own, later],
            available=self.counts[own, later],
            on_demand=held[ON_DEMAND],
            spot=held[SPOT],
            pending_hours=pending / 3600.0,
            saved=saved,
            gap_hours=self.view.slot_hours,
            guarded=self.sold and self.always,
        )

    def _view(self, slot: int, i: int, states: Paths, paid: float) -> View:
        progress = Progress(done=float(states.done[i]), n_previous=int(states.n_previous[i]), cost_usd=paid)
        shown = self.seen.view(self.view.job, progress, slot)
        price, available = float(states.price[i]), int(states.available[i])
        running = states.running(i) if self.view.running is not None else None
        return replace(shown, price=price, available=available, running=running)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LearningWishes:
    """Wishes of a policy whose belief may change: ``which`` (paths, slots) of ``under`` in each slot after the view's."""

    under: tuple[_Wishes, ...]
    which: np.ndarray

    @classmethod
    def of(
        cls,
        now: Present,
        beliefs: Sequence[Belief],
        which: np.ndarray,
        paths: WorldPaths,
        sampled: MarketPaths,
    ) -> _LearningWishes:
        """Return the wishes from the present on; a path has one state of the policy, the same under all beliefs."""
        under: list[_Wishes] = []
        for belief in beliefs:
            # The tables of a belief do not apply to the next.
            tables = now.plan.tables if len(beliefs) == 1 else dict(now.plan.tables)
            apart = replace(now, plan=replace(now.plan, tables=tables))
            wishes = _Wishes.of(apart, belief, paths, sampled.price, sampled.count)
            under.append(replace(wishes, states=under[0].states) if under else wishes)
        return cls(under=tuple(under), which=which)

    @property
    def job(self) -> MarketsJob:
        """The job."""
        return self.under[0].job

    @property
    def sold(self) -> bool:
        """Whether on-demand is sold."""
        return self.under[0].sold

    def at(self, slot: int, own: np.ndarray) -> Targets:
        """Return the targets on all paths in a slot: wishes on the paths ``own``, nothing on others."""
        first = self.under[0]
        targets = nothing(first.paths)
        if slot >= first.view.job.deadline_slots:  # the last slot is left to the guard
            return targets
        which = self.which[own, slot - first.view.slot - 1]
        for k in np.unique(which).tolist():
            part = own[which == k]
            for whole, wished in zip(targets, self.under[k].at(slot, part), strict=True):
                whole[part] = wished[part]
        return targets

    def guarded(self, slot: int, own: np.ndarray, wished: Targets, safe: Targets) -> np.ndarray:
        """Return the paths on which the guard applies, which do not depend on the belief."""
        return self.under[0].guarded(slot, own, wished, safe)


def _later(view: View, beliefs: Believed) -> SlotMarket:
    """Return the market of all paths, each slot filled with the values of ``view``: a path brings price and count of its own."""
    slots, later = view.job.deadline_slots, view.job.deadline_slots - view.slot - 1
    window = MarketWindow(
        price=np.full(slots, view.price),
        available=np.full(slots, view.available, dtype=np.int64),
        on_demand_usd=view.on_demand_usd,
        slot_hours=view.slot_hours,
        observed=np.array([view.observed] * (view.slot + 1) + [True] * later),
        on_demand=view.on_demand,
    )
    forecasts = [None] * view.slot + [view.forecast] + [None] * later
    return replace(see(view.job, window, forecasts, _still(view)), tables=view.tables, beliefs=beliefs)


def _still(view: View) -> Record | None:
    """Return the record of ``view``, fixed at its slot."""
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
