"""Walk of given decisions of a multi-market job in the slot model (M2.4, M11.2), for tests."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.optimization.job.definition import Progress, is_finished, work_needed
from slackwater.optimization.kernels.moving import ending_at
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.moving.definition import MarketsJob, Placement, check_target, step
from slackwater.optimization.moving.sight import markets_view
from slackwater.optimization.replay.run import see
from slackwater.optimization.window.plan import Outcome


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
