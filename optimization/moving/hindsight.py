"""Hindsight optimum over markets in the slot model, the walk of given decisions, and its audit (M11.2, M11.7) (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slackwater.optimization.job.definition import Progress, finished, needed
from slackwater.optimization.kernels.moving import CHEAPER, ending_at, hindsight_ways
from slackwater.optimization.kernels.rules import spot_held
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.moving.definition import IDLE, MarketsJob, Placement, checked, step
from slackwater.optimization.moving.sight import markets_view
from slackwater.optimization.replay.run import see
from slackwater.optimization.window.plan import Allocation, Outcome
from slackwater.warehouse.errors import AuditError, MarketError

#: Partial solutions per state in the first search for the hindsight optimum; it finds a good bound,
#: with which the second search prunes.
BEAM = 24


def _settle(
    name: str,
    job: MarketsJob,
    held: Sequence[Placement],
    progress: Progress,
    windows: Sequence[MarketWindow],
    moves: int,
    moving_usd: float,
) -> Outcome:
    run, slots = job.job, len(held)
    after, finish, value, ended_in = 0.0, None, 0.0, None
    if finished(progress.done, run.workload):
        value, finish = run.completion_value(slots), slots
    else:
        usd, market, size, more = _ending(job, progress, slots, windows)
        if size:
            finish, ended_in = slots + more, market
            value = run.completion_value(finish)
            after = value - usd
    return Outcome(
        policy=name,
        job=run.name,
        allocations=tuple(one.allocation for one in held),
        progress=progress.done,
        cost_usd=progress.cost_usd,
        termination_cost_usd=after,
        finished_slot=slots if finished(progress.done, run.workload) else None,
        finish_slots=finish,
        value_usd=value,
        utility_usd=value - progress.cost_usd - after,
        places=tuple(one.market for one in held),
        moves=moves,
        moving_usd=moving_usd,
        ended_in=ended_in,
    )


def _ending(
    job: MarketsJob, progress: Progress, slot: int, windows: Sequence[MarketWindow]
) -> tuple[float, int, int, int]:
    """Return (USD, market, size index, slots) of the ending of M2.6 in the best market, including a move there."""
    ground = job.ground([window.on_demand_usd for window in windows], windows[0].slot_hours)
    rest = needed(job.job.workload) - progress.done
    usd, market, size, slots = ending_at(ground, progress.place, progress.n_previous, slot, rest)
    return float(usd), int(market), int(size), int(slots)


# ---
# Audit: independent recomputation of a multi-market outcome (M3.5).


def audit_moved(job: MarketsJob, windows: Sequence[MarketWindow], outcome: Outcome) -> None:
    """Recompute counts, moves, cost, progress, ending and utility; raises `AuditError` on the first difference."""
    run, moving, hours = job.job, job.moving, windows[0].slot_hours
    place, before, done, paid, moves = job.home, 0, 0.0, 0.0, 0
    for t, (market, held) in enumerate(zip(outcome.places or (), outcome.allocations, strict=True)):
        if done >= run.workload * (1.0 - 1e-9):
            raise AuditError(f"{outcome.policy}: slot {t} holds {held} after the finish", expected="nothing")
        if market is None:
            if held.total:
                raise AuditError(f"{outcome.policy}: slot {t} holds {held} in no market", expected="a market")
            before = 0
            continue
        own, window = job.runs[market], windows[market]
        if not own.n_min <= held.total <= own.n_max or not 0 <= held.spot <= window.available[t]:
            raise AuditError(
                f"{outcome.policy}: slot {t} holds {held} in market {market}",
                expected=f"{own.n_min}..{own.n_max} instances, at most {window.available[t]} of them spot",
            )
        gain = own.throughput.rate(held.total) * hours
        if place is not None and market != place:
            mu = max(0.0, own.mu_up - moving.taken) if own.mu_up >= 0 else own.mu_up
            paid += float(moving.usd[place, market])
            moves += 1
        else:
            mu = own.mu_up if held.total > before else own.mu_down if held.total < before else 1.0
        paid += (held.on_demand * window.on_demand_usd + held.spot * float(window.price[t])) * hours
        done, place, before = done + mu * gain, market, held.total
    _agree(outcome.policy, "moves", outcome.moves, moves)
    _agree(outcome.policy, "cost", outcome.cost_usd, paid)
    _agree(outcome.policy, "progress", outcome.progress, min(done, run.workload))
    on_time = done >= run.workload * (1.0 - 1e-9)
    if on_time != (outcome.finished_slot is not None):
        raise AuditError(
            f"{outcome.policy}: finished in slot {outcome.finished_slot}", expected=f"progress {done}"
        )
    if on_time:
        worth, after = run.completion_value(len(outcome.allocations)), 0.0
    else:
        worth, after = _audited_ending(job, windows, place, before, done)
    _agree(outcome.policy, "cost after the deadline", outcome.termination_cost_usd, after)
    _agree(outcome.policy, "utility", outcome.utility_usd, worth - paid - after)


def _audited_ending(
    job: MarketsJob, windows: Sequence[MarketWindow], place: int | None, before: int, done: float
) -> tuple[float, float]:
    """Return (V, USD paid) of the best constant on-demand size in a market after d, by trying all."""
    best, found = 0.0, (0.0, 0.0)
    hours = windows[0].slot_hours
    for market, (own, window) in enumerate(zip(job.runs, windows, strict=True)):
        moved = place is not None and market != place
        for n in range(own.n_min, own.n_max + 1):
            gain = own.throughput.rate(n) * hours
            mu = own.efficiency(n, 0 if market != place else before)
            if moved:
                mu = max(0.0, own.mu_up - job.moving.taken) if own.mu_up >= 0 else own.mu_up
            slots, left = 1, own.workload * (1.0 - 1e-9) - done - mu * gain
            while left > 0 and own.deadline_slots + slots < own.late_limit:
                left -= gain
                slots += 1
            if left > 0:
                continue
            worth = own.completion_value(own.deadline_slots + slots)
            usd = slots * n * window.on_demand_usd * hours + (
                float(job.moving.usd[place, market]) if moved else 0.0
            )
            if worth - usd > best:
                best, found = worth - usd, (worth, usd)
    return found


def _agree(policy: str, what: str, said: float, found: float) -> None:
    if abs(said - found) > 1e-6 * max(1.0, abs(found)):
        raise AuditError(f"{policy}: {what} {said}", expected=f"{found}, as the audit finds it")


# ---
# Hindsight optimum over markets (M11.7).


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedBracket:
    """Bounds of the hindsight optimum over markets, USD of utility.

    The optimum lies in [``low``, ``high``]; ``held`` achieves ``low`` up to the finish or d.
    """

    low: float
    high: float
    held: tuple[Placement, ...]

    @property
    def exact(self) -> bool:
        """True if the bounds coincide."""
        return self.high <= self.low


def hindsight_over_markets(job: MarketsJob, windows: Sequence[MarketWindow]) -> MovedBracket:
    """Return the optimum of a job from slot 0 over all decisions of market and size, including its ending (M11.7).

    Exact: a partial solution is dropped only if another with the same state has done as much work
    at lower cost, or if even the cheapest possible work in the remaining slots cannot make it
    optimal. Raises `MarketError` for windows shorter than d.
    """
    run = job.job
    d = run.deadline_slots
    for window in windows:
        if len(window) < d:
            raise MarketError(
                f"job {run.name!r}: a window of {len(window)} slots", expected=f"at least d = {d}"
            )
    ground = job.ground([window.on_demand_usd for window in windows], windows[0].slot_hours)
    price = np.array([window.price[:d] for window in windows]) * windows[0].slot_hours
    available = np.array([window.available[:d] for window in windows], dtype=np.int64)
    if not run.resumable:
        available *= 0
    begin = job.begin()
    start, need = (int(begin.place), 0), needed(run.workload)
    low, _, places, sizes, slots = hindsight_ways(ground, price, available, need, start, -CHEAPER, BEAM)
    found, _, better, n, more = hindsight_ways(ground, price, available, need, start, float(low), 0)
    if more >= 0:
        low, places, sizes, slots = found, better, n, more
    held = []
    for t in range(max(slots, 0)):
        if places[t] == job.nowhere or not sizes[t]:
            held.append(IDLE)
            continue
        own = windows[places[t]]
        spot = spot_held(int(sizes[t]), int(available[places[t], t]), float(own.price[t]), own.on_demand_usd)
        held.append(Placement(int(places[t]), Allocation(int(sizes[t]) - spot, spot)))
    return MovedBracket(low=float(low), high=float(low), held=tuple(held))


def walk(job: MarketsJob, windows: Sequence[MarketWindow], held: Sequence[Placement]) -> Outcome:
    """Return the outcome of given decisions, slot by slot up to the finish or d."""
    seen = [see(run, window, None) for run, window in zip(job.runs, windows, strict=True)]
    progress, moves, moving_usd = job.begin(), 0, 0.0
    kept: list[Placement] = []
    for slot, one in enumerate(held):
        if finished(progress.done, job.job.workload):
            break
        view = markets_view(job, seen, progress, slot)
        own = checked(one, view, "these decisions")
        if own.market is not None and own.market != progress.place:
            moves += progress.place != job.nowhere
            moving_usd += view.move_usd(own.market)
        progress = step(view, own)
        kept.append(own)
    return _settle("these decisions", job, kept, progress, windows, moves, moving_usd)
