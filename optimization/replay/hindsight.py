"""The hindsight bound: the best that could have been done with the whole future known, as a bracket (M4.7)."""

from __future__ import annotations

from dataclasses import dataclass

from optimization.job.definition import Job
from optimization.job.progress import finished
from optimization.market.window import MarketWindow
from optimization.window.plan import Allocation, EndRule, HorizonProblem
from optimization.window.twin import solve_window
from warehouse.errors import MarketError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """Hindsight lies in [``low``, ``high``], USD of utility; ``low`` is what ``allocations`` achieve.

    ``allocations`` covers the slots up to the finish or the deadline, as in `Outcome`; the ending of M2.6 is in ``low``.
    """

    low: float
    high: float
    allocations: tuple[Allocation, ...]

    @property
    def exact(self) -> bool:
        """True if the two ends meet."""
        return self.high <= self.low


def hindsight(job: Job, window: MarketWindow) -> Bracket:
    """The optimum of a job from slot 0 on a market of at least d known slots, its ending of M2.6 included.

    It is the horizon program over all d slots with on-demand to go (M3.3b with t + w = d is M2.6), answered by the exact twin,
    so the bracket closes unless the twin runs out of labels; then ``high`` is the bound it proved. A job that cannot resume is
    bounded without spot, which it may not use (M2.7). Raises `MarketError` for a window shorter than d.
    """
    d = job.deadline_slots
    if len(window) < d:
        raise MarketError(f"job {job.name!r}: a window of {len(window)} slots", expected=f"at least d = {d}")
    problem = HorizonProblem(
        job=job,
        slot=0,
        done=0.0,
        n_previous=0,
        window=_usable(job, window.cut(0, d)),
        end_rule=EndRule.ON_DEMAND_TO_GO,
    )
    plan = solve_window(problem)
    return Bracket(
        low=plan.objective,
        high=max(plan.bound, plan.objective),
        allocations=_up_to_finish(job, window.slot_hours, plan.allocations),
    )


def _usable(job: Job, window: MarketWindow) -> MarketWindow:
    if job.resumable:
        return window
    return MarketWindow(
        price=window.price,
        available=window.available * 0,
        on_demand_usd=window.on_demand_usd,
        slot_hours=window.slot_hours,
        observed=window.observed,
    )


def _up_to_finish(job: Job, slot_hours: float, allocations: tuple[Allocation, ...]) -> tuple[Allocation, ...]:
    done, before = 0.0, 0
    for slot, a in enumerate(allocations):
        if finished(done, job.workload):
            return allocations[:slot]
        done += job.efficiency(a.total, before) * job.throughput.rate(a.total) * slot_hours
        before = a.total
    return allocations
