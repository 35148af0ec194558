"""The exact guard (M12.7) of a live decision, and its standby plan for a loss of spot (M12.11)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from slackwater.optimization.job.definition import Allocation, Progress
from slackwater.optimization.moving.definition import MarketsView, Placement, check_target, placement
from slackwater.optimization.replay.ahead import progress_of
from slackwater.optimization.world.simulation import Readings, WorldRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The guard of a job at a decision, on its run in the world before the decision.

    It protects the deadlines that M4 protects: hard deadlines, and those of jobs worth finishing on demand
    (``protects``; ``always``: in every state). ``next_at`` is the time of the next decision.
    """

    view: MarketsView
    run: WorldRun
    next_at: float
    deadline: float
    protects: bool
    always: bool

    @classmethod
    def of(cls, view: MarketsView, run: WorldRun, *, next_at: float | None = None) -> Guard:
        """Return the guard of a job; the next decision is at the start of the next slot unless given in seconds."""
        sold = any(market_view.on_demand.sold for market_view in view.views)
        seconds = view.slot_hours * 3600.0
        return cls(
            view=view,
            run=run,
            next_at=(view.slot + 1) * seconds if next_at is None else next_at,
            deadline=view.job.job.deadline_slots * seconds,
            protects=sold and view.worth_finishing,
            always=sold and view.never_let_go,
        )

    def in_world(self) -> MarketsView:
        """Return the view of the job with its instances in the world, for a policy that plans there (M4.12)."""
        return self.view.in_world(
            self.run.running(next_at=self.next_at, guarded=self.always), self.run.market
        )

    def allow(self, wish: Placement) -> Placement:
        """Return the wish if it is safe or nothing is, else the closest safe target within the budget."""
        if not self.protects or self.run.is_finished:
            return wish
        market = self.run.market if wish.market is None else wish.market
        to, allocation = self.run.guarded_in(
            market, wish.allocation, next_at=self.next_at, deadline=self.deadline
        )
        safe = placement(to, allocation)
        if safe == wish or not self._is_safe(safe):
            return wish
        return check_target(safe, self.view, "the guard")

    def holds(self, target: Placement) -> bool:
        """Return whether the deadline is met whatever becomes of spot, with every later decision under the guard."""
        if self.run.is_finished:
            return True
        return self.always and math.isinf(self.view.job.job.budget_usd) and self._is_safe(target)

    def _is_safe(self, target: Placement) -> bool:
        return self.run.is_safe(
            target.allocation, next_at=self.next_at, deadline=self.deadline, market=target.market
        )

    def reason(self, wish: Allocation, allowed: Allocation) -> str:
        """Return why a wish was changed, "" if it was not."""
        if wish == allowed:
            return ""
        return "; with less on-demand the deadline could be missed if spot is lost in this slot"


def standby(
    guard: Guard, plan: MarketsView, target: Placement, decide: Callable[[MarketsView], Placement]
) -> Placement | None:
    """Return the target of a job for the rest of the slot if all its spot is lost at once, None without spot.

    It is the choice of ``decide`` without the lost spot, under the guard; other markets keep their spot.
    ``plan`` is the slot as the policy plans it.
    """
    view, market = guard.view, target.market
    if market is None or not target.allocation.spot:
        return None
    next_second = guard.run.now + 1.0
    run = guard.run.copy(
        [
            Readings(
                times=np.array([guard.run.now, next_second]),
                available=np.array([market_view.available, 0 if m == market else market_view.available]),
                price=np.full(2, market_view.price),
            )
            for m, market_view in enumerate(view.views)
        ]
    )
    run.decide(target.allocation, market)
    run.advance(next_second)
    progress = progress_of(view.job, run)
    after = Guard.of(_without_spot(view, market, progress), run)
    in_world = plan.views[0].running is not None
    wish = decide(after.in_world() if in_world else _without_spot(plan, market, progress))
    return after.allow(check_target(wish, after.view, "the standby"))


def _without_spot(view: MarketsView, market: int, progress: Progress) -> MarketsView:
    """Return a view in which the job has made ``progress`` and a market has no spot."""
    views = []
    for m, market_view in enumerate(view.views):
        progress_there = progress if m == progress.place else replace(progress, place=m, n_previous=0)
        without = replace(market_view, available=0, others=0) if m == market else market_view
        views.append(replace(without, progress=progress_there))
    return replace(view, progress=progress, views=tuple(views))
