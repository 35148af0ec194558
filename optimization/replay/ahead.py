"""Expected cost and lateness of a running job: its policy in the world (M12) over sampled paths of the market (M12.12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from slackwater.optimization.job.definition import ROUNDING_USD, Job, Progress, rates, times_of, work_needed
from slackwater.optimization.kernels.moving import Ground, ending_at
from slackwater.optimization.kernels.world import ON_DEMAND, SPOT
from slackwater.optimization.market.belief import LEAST_SEEN, Belief, MarketPaths, SlotBeliefs, join_paths
from slackwater.optimization.market.window import BEYOND_BUDGET, MarketWindow, Record, record_of
from slackwater.optimization.moving.definition import MarketsJob, MarketsView, Placement
from slackwater.optimization.policies.contract import Paths, Policy, Together, View
from slackwater.optimization.replay.run import PlanMemo, SlotMarket, check_allocation, see, with_shared_plans
from slackwater.optimization.world.paths import WorldPaths, finish_in_slots, later_readings
from slackwater.optimization.world.simulation import Standing, Targets, WorldRun
from slackwater.warehouse.errors import MarketError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedOutcome:
    """Expected outcome of a running job over ``paths`` sampled paths.

    ``cost_usd`` is the mean total cost from the first second to the last, the ending included (M2.6), with
    quantiles ``cost_p10_usd`` and ``cost_p90_usd``. ``finish_slots`` (mean) counts slots
    from the job's first; a path on which the job is given up counts as gamma d, from which on the value is 0.
    ``finish`` contains every path's finish, shape (paths,), NaN where given up. ``late_probability`` is P(not
    finished by d within the budget), ``given_up_probability`` P(given up), ``over_budget_probability``
    P(the budget does not pay for all of the work), and ``work_share`` the mean share of the work done at the end.
    ``uses_spot``: spot is wanted on some path, now or later.
    """

    paths: int
    cost_usd: float
    cost_p10_usd: float
    cost_p90_usd: float
    finish_slots: float
    finish: np.ndarray
    late_probability: float
    given_up_probability: float
    utility_usd: float
    over_budget_probability: float = 0.0
    work_share: float = 1.0
    uses_spot: bool = True


def outcome_of(
    job: Job,
    *,
    cost: np.ndarray,
    finish: np.ndarray,
    value: np.ndarray,
    share: np.ndarray,
    spent: np.ndarray,
    uses_spot: bool,
) -> ExpectedOutcome:
    """Return the expected outcome of a job over the ends of its paths, (paths,) each.

    They are cost and value in USD, finish in slots (NaN: given up) and share of the work done. ``spent``: the budget
    did not pay for another slot, or for on-demand at all, before the work was done.
    """
    counted = np.where(np.isnan(finish), job.late_limit, finish)
    over = (cost > job.budget_usd + ROUNDING_USD) | (spent & (counted > job.deadline_slots))
    return ExpectedOutcome(
        paths=len(cost),
        cost_usd=float(cost.mean()),
        cost_p10_usd=float(np.quantile(cost, 0.1)),
        cost_p90_usd=float(np.quantile(cost, 0.9)),
        finish_slots=float(counted.mean()),
        finish=finish,
        late_probability=float(np.mean((counted > job.deadline_slots) | over)),
        given_up_probability=float(np.isnan(finish).mean()),
        utility_usd=float(np.mean(value - cost)),
        over_budget_probability=float(np.mean(over)),
        work_share=float(np.mean(share)),
        uses_spot=uses_spot,
    )


DRAWN = 10  # Number of belief variants among which the paths are divided, if the job may be given up
LIKELY = 0.5  # Probability from which on a policy believes in one of the variants


class Wishes(Protocol):
    """Wishes of a policy for a job on many paths, slot by slot."""

    def at(self, slot: int, own: np.ndarray) -> Targets:
        """Return the targets on all paths in a slot: wishes on the paths ``own``, which have work left, nothing on others."""


class Planner(Protocol):
    """Rule that decides the later slots of a job on sampled paths."""

    def wishes(
        self,
        believed: Sequence[Sequence[Belief]],
        which: np.ndarray,
        paths: WorldPaths,
        sampled: Sequence[MarketPaths],
    ) -> Wishes:
        """Return the wishes in the slots after the present; ``sampled`` are the paths of each market.

        ``believed`` are the beliefs that are possible about each market, ``which`` (paths, slots, M) of them the policy has.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentJob:
    """A running job at its decision: view, run in the world, beliefs about its markets, and the target decided there.

    ``standby`` is the target if there is no spot in the market of the target. ``planner`` decides the later slots, in
    which other jobs take ``taken`` instances of each market first (empty: none). The decision is ``elapsed`` seconds
    after the start of its slot.
    """

    view: MarketsView
    run: WorldRun
    beliefs: Sequence[Belief]
    planner: Planner
    target: Placement
    standby: Placement | None = None
    taken: Sequence[int] = ()
    elapsed: float = 0.0


def look_ahead(now: PresentJob, *, paths: int, rng: np.random.Generator) -> ExpectedOutcome:
    """Return the expected outcome over paths sampled from the beliefs about the markets (M6.9, M12.12).

    If finishing is always worth its on-demand price, no later belief leads to a missed deadline by choice,
    and the paths come from the beliefs themselves. Otherwise a changed belief may do so: then the paths come from
    `DRAWN` variants of each belief, and on each path the policy learns which of them holds (`beliefs_on_paths`).
    """
    later = now.view.slots_left - 1
    if now.view.never_let_go:
        sampled = [belief.sample(later, paths=paths, rng=rng) for belief in now.beliefs]
        return simulate_ahead(now, sampled, rng=rng)
    many = min(DRAWN, paths)
    shares = [len(range(share, paths, many)) for share in range(many)]
    # A variant of a market may come with any of another market, and draws are in order.
    drawn = [
        own if not m else [own[k] for k in rng.permutation(many).tolist()]
        for m, own in enumerate(list(belief.draw(many, rng)) for belief in now.beliefs)
    ]
    sampled = [
        join_paths([each.sample(later, paths=few, rng=rng) for each, few in zip(own, shares, strict=True)])
        for own in drawn
    ]
    itself = np.repeat(np.arange(many), shares)[:, None].repeat(later, axis=1)
    which = [
        itself if belief.request is None else beliefs_on_paths(own, paths)
        for belief, own, paths in zip(now.beliefs, drawn, sampled, strict=True)
    ]
    believed = [[*own, belief] for own, belief in zip(drawn, now.beliefs, strict=True)]
    return _simulate(now, believed, np.stack(which, axis=2), sampled, rng)


def beliefs_on_paths(variants: Sequence[Belief], sampled: MarketPaths) -> np.ndarray:
    """Return the variant that the policy takes for the market on each path in each later slot, shape (paths, slots) (M13.4).

    It is the most probable variant given the counts up to the slot, if its probability is at least `LIKELY`;
    otherwise ``len(variants)``, which stands for the present belief.
    """
    (paths, slots), chain = sampled.count.shape, variants[0].counts
    steps = np.stack([each.count_transitions(slots) for each in variants], axis=-1)
    steps, states = np.log(np.maximum(steps, LEAST_SEEN)), chain.indices(sampled.count)
    now = np.log(np.maximum(np.stack([each.count_now for each in variants], axis=-1), LEAST_SEEN))
    first = np.full(paths, now[:, 0].argmax()) if sampled.present is None else chain.indices(sampled.present)
    before = np.column_stack([first, states[:, :-1]])
    fit = now[first][:, None] + steps[np.arange(slots), before, states].cumsum(axis=1)
    weight = np.exp(fit - fit.max(axis=2, keepdims=True))
    likely = weight.max(axis=2) >= LIKELY * weight.sum(axis=2)
    return np.asarray(np.where(likely, weight.argmax(axis=2), len(variants)))


def simulate_ahead(
    now: PresentJob, sampled: Sequence[MarketPaths], *, rng: np.random.Generator
) -> ExpectedOutcome:
    """Run the policy from its present state over sampled paths of each market, in the world and under the exact guard.

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
    later, shape = now.view.slots_left - 1, sampled[0].count.shape
    for own in sampled:
        if (
            own.price.shape != own.count.shape
            or len(shape) != 2
            or own.count.shape != shape
            or shape[1] < later
            or not shape[0]
        ):
            raise MarketError(
                f"price paths of shape {own.price.shape}, count paths of {own.count.shape}",
                expected=f"both of shape (paths, slots), at least one path and at least {later} slots",
            )
    which = np.zeros((shape[0], later, len(sampled)), dtype=np.int64)
    return _simulate(
        now, [[belief] for belief in now.beliefs], which, [own.cut(later) for own in sampled], rng
    )


def _simulate(
    now: PresentJob,
    believed: Sequence[Sequence[Belief]],
    which: np.ndarray,
    sampled: Sequence[MarketPaths],
    rng: np.random.Generator,
) -> ExpectedOutcome:
    """Return the expected outcome over paths of each market, with the beliefs of `Planner.wishes`.

    Where a path has no spot at all in the market of the target, the standby applies at once.
    """
    view, many = now.view, len(which)
    seconds = view.slot_hours * 3600.0
    sampled = [own.left(few) for own, few in zip(sampled, now.taken or [0] * len(sampled), strict=True)]
    readings = later_readings(now.run, seconds, sampled, rng, first=seconds - now.elapsed)
    paths = WorldPaths(now.run, readings)
    if any(own.present is not None for own in sampled):
        paths.advance(now.run.now)  # instances that are gone are lost before the decision
    paths.decide(_first_targets(now, [own.present for own in sampled], many))
    wishes = now.planner.wishes(believed, which, paths, sampled)
    prices = np.stack([own.price for own in sampled])
    start = now.run.now - now.elapsed - view.slot * seconds
    expected = _run_to_end(paths, wishes, view, prices, start)
    return replace(expected, uses_spot=expected.uses_spot or now.target.allocation.spot > 0)


def _first_targets(now: PresentJob, present: Sequence[np.ndarray | None], paths: int) -> Targets:
    """Return the targets of the present slot, in which the markets have ``present`` instances on each path (None: as read)."""
    market, standby = now.run.market if now.target.market is None else now.target.market, now.standby
    held = now.target.allocation
    first = Targets(*(np.full(paths, part) for part in (market, held.on_demand, held.spot)))
    counts = present[market]
    if counts is not None and standby is not None and standby.market is not None:
        gone = counts == 0
        parts = standby.market, standby.allocation.on_demand, standby.allocation.spot
        for whole, part in zip(first, parts, strict=True):
            whole[gone] = part
    return first


def _run_to_end(
    paths: WorldPaths, wishes: Wishes, view: MarketsView, prices: np.ndarray, start: float
) -> ExpectedOutcome:
    """Let a policy decide in every slot after that of the view, which is decided, under the exact guard, and end the job (M2.6).

    ``prices`` are those of the later slots, (M, paths, slots); ``start`` is the first second of the job.
    """
    job, slots, seconds = view.job, view.job.job.deadline_slots, view.slot_hours * 3600.0
    ground = job.ground([own.on_demand_usd for own in view.views], view.slot_hours)
    sold, deadline = any(own.on_demand.sold for own in view.views), start + slots * seconds
    bounded, uses_spot = not np.isinf(job.job.budget_usd), False
    # On-demand would finish the work: where the budget does not pay for it, the budget is why work is left.
    spent = np.full(paths.paths, bounded and any(own.on_demand == BEYOND_BUDGET for own in view.views))
    paths.advance(start + (view.slot + 1) * seconds)
    for slot in range(view.slot + 1, slots):
        next_at = start + (slot + 1) * seconds
        own = np.flatnonzero(paths.running)
        if not len(own):
            break
        targets = wishes.at(slot, own)
        if sold:
            safe = paths.guarded(targets, next_at=next_at, deadline=deadline)
            market, on_demand, spot = (a != b for a, b in zip(targets, safe, strict=True))
            changed = np.flatnonzero(market | on_demand | spot)
            kept = changed if view.never_let_go else _worth_finishing(job, ground, paths, slot, changed)
            for wish, guarded in zip(targets, safe, strict=True):
                wish[kept] = guarded[kept]
        if bounded:
            spent |= _pay_from_budget(view, paths, targets, prices[..., slot - view.slot - 1])
        uses_spot = uses_spot or bool(targets.spot[own].any())
        paths.decide(targets, until=next_at)
    paths.advance(deadline)
    cost, work = paths.paid, paths.work
    _end(job, ground, paths)
    finish, beyond = finish_in_slots(paths.finish, start, seconds, slots), np.zeros(paths.paths, dtype=bool)
    if bounded:  # the end on demand is left out where the budget does not pay for it
        beyond = (paths.paid > np.maximum(cost, job.job.budget_usd) + ROUNDING_USD) & ~(finish <= slots)
    finish, spent = np.where(beyond, np.nan, finish), spent | beyond
    cost, work = np.where(beyond, cost, paths.paid), np.where(beyond, work, paths.work)
    value = [0.0 if np.isnan(at) else job.job.completion_value(at) for at in finish.tolist()]
    share = np.where(np.isnan(finish), np.minimum(work / job.job.workload, 1.0), 1.0)
    return outcome_of(
        job.job,
        cost=cost,
        finish=finish,
        value=np.array(value),
        share=share,
        spent=spent,
        uses_spot=uses_spot,
    )


def _pay_from_budget(
    view: MarketsView, paths: WorldPaths, targets: Targets, prices: np.ndarray
) -> np.ndarray:
    """Reduce targets to what the rest of the budget pays for in the slot, on-demand first (M2.10).

    Return the paths on which it pays for less than the target, or for no spot at all. ``prices`` are those of
    the slot, (M, paths).
    """
    job, hours, market = view.job, view.slot_hours, targets.market
    listed = np.array([own.on_demand_usd for own in view.views])[market] * hours
    spot_usd = prices[market, np.arange(paths.paths)] * hours
    least = np.array([run.n_min for run in job.runs])[market]
    left = np.maximum(job.job.budget_usd + ROUNDING_USD - paths.paid, 0.0)
    enough = (
        _hours(view, paths, targets) / hours * (targets.on_demand * listed + targets.spot * spot_usd) <= left
    )
    on_demand = np.minimum(targets.on_demand, left // listed).astype(np.int64)
    most = (left - on_demand * listed) // spot_usd
    spot = np.minimum(targets.spot, most).astype(np.int64)
    on_demand, spot = np.where(enough, targets.on_demand, on_demand), np.where(enough, targets.spot, spot)
    short = (on_demand + spot < targets.on_demand + targets.spot) | (on_demand + most < least)
    stopped = on_demand + spot < least
    for part, payable in zip(targets[1:], (on_demand, spot), strict=True):
        part[:] = np.where(stopped, 0, payable)
    return np.asarray(paths.running & short)


def _hours(view: MarketsView, paths: WorldPaths, targets: Targets) -> np.ndarray:
    """Return how long the instances of a slot are paid for at most, shape (paths,): less than the slot if they finish the job."""
    found = np.full(paths.paths, view.slot_hours)
    rest, total = work_needed(view.job.job.workload) - paths.work, targets.on_demand + targets.spot
    for m, run in enumerate(view.job.runs):
        rate, times = rates(run.throughput, run.n_max), times_of(run, view.slot_hours)
        for n in range(run.n_min, run.n_max + 1):
            here = (targets.market == m) & (total == n)
            start = times.new_seconds(n) / 3600.0
            found[here] = np.minimum(found[here], rest[here] / rate[n] + start)
    return found


def _worth_finishing(
    job: MarketsJob, ground: Ground, paths: WorldPaths, slot: int, own: np.ndarray
) -> np.ndarray:
    """Return the paths of ``own`` on which M2.6, applied in ``slot`` instead of at d, would finish the job on demand (M4)."""
    place, before = place_and_size(job, paths)
    rest = work_needed(job.job.workload) - paths.work
    states = zip(own.tolist(), place[own].tolist(), before[own].tolist(), rest[own].tolist(), strict=True)
    return np.array([p for p, m, n, left in states if ending_at(ground, m, n, slot, left)[2]], dtype=np.int64)


def _end(job: MarketsJob, ground: Ground, paths: WorldPaths) -> None:
    """End the jobs that are not done at the deadline: the best constant on-demand size of M2.6 in any market, or nothing."""
    own = np.flatnonzero(paths.running)
    if not len(own):
        return
    place, before = place_and_size(job, paths)
    work, done = work_needed(job.job.workload), paths.work
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
class PolicyPlan:
    """A policy of one market, its state at the present slot, and the view by which it plans (`LiveJob.views_for`)."""

    policy: Policy[Any]
    state: Any
    view: View
    job: MarketsJob

    def wishes(
        self,
        believed: Sequence[Sequence[Belief]],
        which: np.ndarray,
        paths: WorldPaths,
        sampled: Sequence[MarketPaths],
    ) -> Wishes:
        """Return the wishes from the present on; a path has one state of the policy, the same under all beliefs."""
        view, (beliefs,), (own,) = self.view, believed, sampled
        policy = with_shared_plans(self.policy, PlanMemo())
        states, under = [policy.decide(self.state, view)[1]] * paths.paths, []
        for belief in beliefs:
            # The tables of a belief do not apply to the next.
            apart = view if len(beliefs) == 1 else replace(view, tables=dict(view.tables))
            wishes = _Wishes(
                policy=policy,
                seen=_later(apart, replace(view.market_beliefs(), held=belief)),
                states=states,
                view=apart,
                job=self.job,
                paths=paths,
                prices=own.price,
                counts=own.count,
            )
            under.append(wishes)
        return _LearningWishes(under=under, which=which[..., 0], first=view.slot + 1, paths=paths)


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

    def at(self, slot: int, own: np.ndarray) -> Targets:
        """Return the targets on all paths in a slot: wishes on the paths ``own``, nothing on others."""
        targets, job = nothing(self.paths), self.view.job
        if slot >= job.deadline_slots:  # the last slot of a job planned a slot earlier is left to the guard
            return targets
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
            kept = check_allocation(wish, view, self.policy.name)
            targets.on_demand[p], targets.spot[p] = kept.on_demand, kept.spot
        return targets

    def _states(self, slot: int, own: np.ndarray) -> Paths:
        paths, later = self.paths, slot - self.view.slot - 1
        (held, pending, saved), running = paths.instances(own), self.view.running
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
            guarded=running is not None and running.guarded,
        )

    def _view(self, slot: int, i: int, states: Paths, paid: float) -> View:
        progress = Progress(done=float(states.done[i]), n_previous=int(states.n_previous[i]), cost_usd=paid)
        shown = self.seen.view(self.view.job, progress, slot)
        price, available = float(states.price[i]), int(states.available[i])
        running = states.running(i) if self.view.running is not None else None
        return replace(shown, price=price, available=available, running=running)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LearningWishes:
    """Wishes of a policy whose beliefs may change: ``which`` (paths, slots) of ``under`` in each slot from ``first`` on."""

    under: Sequence[Wishes]
    which: np.ndarray
    first: int
    paths: WorldPaths

    def at(self, slot: int, own: np.ndarray) -> Targets:
        """Return the targets on all paths in a slot: wishes on the paths ``own``, nothing on others."""
        targets, which = nothing(self.paths), self.which[own, slot - self.first]
        for k in np.unique(which).tolist():
            part = own[which == k]
            for whole, wished in zip(targets, self.under[k].at(slot, part), strict=True):
                whole[part] = wished[part]
        return targets


def _later(view: View, beliefs: SlotBeliefs) -> SlotMarket:
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
