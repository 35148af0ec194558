"""Hindsight optimum over markets in the slot model, the walk of given decisions, and its audit (M11.2, M11.7) (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slackwater.optimization.job.definition import Progress, is_finished, work_needed
from slackwater.optimization.kernels.moving import CHEAPER, ending_at, hindsight_ways
from slackwater.optimization.kernels.rules import spot_held
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.moving.definition import IDLE, MarketsJob, Placement, check_target, step
from slackwater.optimization.moving.sight import markets_view
from slackwater.optimization.replay.run import see
from slackwater.optimization.window.plan import Allocation, Outcome
from slackwater.warehouse.errors import MarketError

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
    if is_finished(progress.done, run.workload):
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
        allocations=tuple(step.allocation for step in held),
        progress=progress.done,
        cost_usd=progress.cost_usd,
        termination_cost_usd=after,
        finished_slot=slots if is_finished(progress.done, run.workload) else None,
        finish_slots=finish,
        value_usd=value,
        utility_usd=value - progress.cost_usd - after,
        places=tuple(step.market for step in held),
        moves=moves,
        moving_usd=moving_usd,
        ended_in=ended_in,
    )


def _ending(
    job: MarketsJob, progress: Progress, slot: int, windows: Sequence[MarketWindow]
) -> tuple[float, int, int, int]:
    """Return (USD, market, size index, slots) of the ending of M2.6 in the best market, including a move there."""
    ground = job.ground([window.on_demand_usd for window in windows], windows[0].slot_hours)
    rest = work_needed(job.job.workload) - progress.done
    usd, market, size, slots = ending_at(ground, progress.place, progress.n_previous, slot, rest)
    return float(usd), int(market), int(size), int(slots)


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
    start, need = (int(begin.place), 0), work_needed(run.workload)
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
    for slot, slot_state in enumerate(held):
        if is_finished(progress.done, job.job.workload):
            break
        view = markets_view(job, seen, progress, slot)
        own = check_target(slot_state, view, "these decisions")
        if own.market is not None and own.market != progress.place:
            moves += progress.place != job.nowhere
            moving_usd += view.move_usd(own.market)
        progress = step(view, own)
        kept.append(own)
    return _settle("these decisions", job, kept, progress, windows, moves, moving_usd)
