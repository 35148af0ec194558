"""Observations of a job's markets slot by slot: as a policy receives them, and as it plans them (M11.4, M12.11) (ours)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from slackwater.optimization.job.definition import Progress
from slackwater.optimization.moving.definition import MarketsJob, MarketsView, MultiMarketPolicy, Placement
from slackwater.optimization.policies.contract import Running, View
from slackwater.optimization.replay.run import Case, NewestReading, PlanMemo, SlotMarket
from slackwater.optimization.world.terms import planned_job
from slackwater.warehouse.errors import MarketError

S = TypeVar("S")


def markets_view(
    job: MarketsJob,
    seen: Sequence[SlotMarket],
    progress: Progress,
    slot: int,
    newest: Sequence[NewestReading] | None = None,
) -> MarketsView:
    """Return the view of a policy in ``slot``, or at the ``newest`` reading of each market; all markets count as seen."""
    views = []
    for m, (run, own) in enumerate(zip(job.runs, seen, strict=True)):
        there = progress
        if m != progress.place:
            there = Progress(done=progress.done, cost_usd=progress.cost_usd, place=m)
        views.append(own.view(run, there, slot, None if newest is None else newest[m]))
    return MarketsView(job=job, progress=progress, slot=slot, views=tuple(views))


def due_a_slot_earlier(
    job: MarketsJob, seen: Sequence[SlotMarket]
) -> tuple[MarketsJob, tuple[SlotMarket, ...]] | None:
    """Return a job and its markets as policies plan them where the guard protects its deadline (`planned_job`, M12.11).

    None for another job, which is planned as it is. The last slot is planned as it is.
    """
    due = job.job.deadline_slots
    if due < 2 or not always_kept(job, seen):
        return None
    hours = seen[0].slot_hours
    runs = tuple(planned_job(run, slot_hours=hours) for run in job.runs)
    return replace(job, runs=runs), tuple(replace(own, windows={}, tables={}) for own in seen)


def always_kept(job: MarketsJob, seen: Sequence[SlotMarket]) -> bool:
    """Return whether finishing on demand pays in every state from which it meets the deadline, as for the priced net (M4)."""
    return any(own.on_demand.sold for own in seen) and job.always_worth_finishing(
        [own.on_demand_usd for own in seen], seen[0].slot_hours
    )


class Grounds:
    """Observations of a job's markets, slot by slot; the views of all policies share their caches."""

    def __init__(self, job: MarketsJob, cases: Sequence[Case], memo: PlanMemo | None = None) -> None:
        hours = {case.window.slot_hours for case in cases}
        if len(cases) != len(job.runs) or len(hours) != 1:
            raise MarketError(
                f"job {job.job.name!r}: {len(cases)} markets with slots of {sorted(hours)} hours",
                expected=f"{len(job.runs)} markets on slots of one length",
            )
        self.job, self.seen = job, (memo or PlanMemo()).slot_markets(cases)
        self.planned: tuple[MarketsJob, tuple[SlotMarket, ...]] | None = None

    def of(self, job: MarketsJob) -> Grounds:
        """Return the same markets for another job with the same runs; both share the caches of views.

        Observations depend neither on the cost of a move nor on the location of the job's data.
        """
        shared = copy.copy(self)
        shared.job = job
        if self.planned is not None and (planned := due_a_slot_earlier(job, self.seen)) is not None:
            shared.planned = planned[0], self.planned[1]
        return shared

    def plan_a_slot_ahead(self) -> None:
        """Show policies the job as it is planned (`due_a_slot_earlier`)."""
        if self.planned is None:
            self.planned = due_a_slot_earlier(self.job, self.seen)

    def view(
        self,
        progress: Progress,
        slot: int,
        *,
        newest: Sequence[NewestReading] | None = None,
        planned: bool = False,
    ) -> MarketsView:
        """Return the view of the policy in ``slot``; ``planned``: of the job as policies plan it."""
        job, seen = self._job_and_markets(slot, planned)
        return markets_view(job, seen, progress, slot, newest)

    def _job_and_markets(self, slot: int, planned: bool) -> tuple[MarketsJob, tuple[SlotMarket, ...]]:
        """Return the job and its markets in ``slot`` as policies plan it, or as it is."""
        if planned and self.planned is not None and slot < self.planned[0].job.deadline_slots:
            return self.planned
        return self.job, self.seen

    def view_alone(
        self,
        progress: Progress,
        slot: int,
        newest: NewestReading,
        *,
        planned: bool,
        running: Running | None = None,
    ) -> View:
        """Return the view of a policy in the only market of a job without a budget: the replays that are many.

        With ``running`` the policy plans in the world, the job as it is.
        """
        job, (seen,) = self._job_and_markets(slot, planned and running is None)
        view = seen.view(job.runs[0], progress, slot, newest)
        return view if running is None else replace(view, running=running)

    def decide(
        self,
        policy: MultiMarketPolicy[S],
        state: S,
        progress: Progress,
        slot: int,
        newest: Sequence[NewestReading] | None = None,
        *,
        planned: bool = False,
        instances: tuple[int, Running] | None = None,
    ) -> tuple[Placement, S, MarketsView]:
        """Return the wish of a policy, its new state, and the view of the slot that the wish is checked by (`checked`).

        ``planned``: the policy sees the job as it is planned; the check does so too, except of a
        budget. With ``instances``, their market and themselves, it plans in the world, the job as
        it is.
        """
        view = self.view(progress, slot, newest=newest, planned=planned and instances is None)
        if instances is not None:
            view = view.in_world(instances[1], instances[0])
        wish, new = policy.decide(state, view)
        if view.job is not self.job and not math.isinf(self.job.job.budget_usd):
            view = self.view(progress, slot, newest=newest)
        return wish, new, view
