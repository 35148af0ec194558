"""Observations of a job's markets slot by slot: as a policy receives them, and as it plans them (M11.4, M12.11) (ours)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TypeVar

import numpy as np

from slackwater.optimization.belief.launches import Launches
from slackwater.optimization.job.definition import Progress
from slackwater.optimization.market.window import MarketWindow, Record
from slackwater.optimization.moving.definition import (
    MarketsJob,
    MarketsView,
    MultiMarketPolicy,
    Placement,
    Probing,
)
from slackwater.optimization.policies.contract import Policy, Running, View
from slackwater.optimization.replay.run import Case, Forecasts, NewestReading, PlanMemo, SlotMarket, legal
from slackwater.optimization.window.plan import Allocation
from slackwater.optimization.world.terms import planned_job
from slackwater.warehouse.errors import MarketError

S = TypeVar("S")


class Sight(StrEnum):
    """Counts that a policy observes in a slot: of all markets, of its market, or also of a probed market (M11.4)."""

    ALL = "all"
    OWN = "own"
    PROBE = "probe"


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
    return MarketsView(job=job, progress=progress, slot=slot, views=tuple(views), seen=(True,) * len(views))


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
    """Observations of a job's markets, slot by slot, for one policy.

    With `Sight.ALL` the views of all policies share their caches. Otherwise the counts of the job's
    slots are unknown until observed, both to the market and as a peer of other markets, and
    forecasts are not used, because they were issued with more information.
    """

    def __init__(
        self,
        job: MarketsJob,
        windows: Sequence[MarketWindow],
        *,
        records: Sequence[Record | None] | None = None,
        forecasts: Sequence[Forecasts | None] | None = None,
        sight: Sight = Sight.ALL,
        memo: PlanMemo | None = None,
        launches: Sequence[Launches | None] | None = None,
    ) -> None:
        if len(windows) != len(job.runs) or len({window.slot_hours for window in windows}) != 1:
            raise MarketError(
                f"job {job.job.name!r}: {len(windows)} markets with slots of {sorted({w.slot_hours for w in windows})} hours",
                expected=f"{len(job.runs)} markets on slots of one length",
            )
        self.job, self.windows, self.sight = job, tuple(windows), sight
        known = records or (None,) * len(windows)
        ahead = forecasts or (None,) * len(windows)
        if sight is not Sight.ALL:
            known = [None if record is None else _unseen(record) for record in known]
            ahead = [None] * len(windows)
        tried = launches or (None,) * len(windows)
        cases = [
            Case(job=run, window=window, forecasts=issued, record=record, launches=own)
            for run, window, issued, record, own in zip(job.runs, windows, ahead, known, tried, strict=True)
        ]
        self.seen = (memo or PlanMemo()).slot_markets(cases)
        if sight is not Sight.ALL:
            self.seen = tuple(_hidden(own) for own in self.seen)
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

    @property
    def in_world(self) -> bool:
        """Whether policies may plan in the world (M4.12): all counts are seen, and on-demand is sold in all markets or in none."""
        sold = {own.on_demand.sold for own in self.seen}
        return self.sight is Sight.ALL and len(sold) == 1

    def look(self, m: int, slot: int) -> None:
        """Reveal the count of market ``m`` in ``slot``."""
        if self.sight is Sight.ALL or not self.windows[m].observed[slot]:
            return
        count = float(self.windows[m].available[slot])
        for k, seen in enumerate(self.seen):
            if k == m:
                seen.beliefs.available[slot] = count
                seen.beliefs._made.clear()
            if seen.record is not None:
                at = seen.record.first + slot
                if k == m:
                    seen.record.available[at] = count
                elif len(seen.record.peers) == len(self.windows) - 1:
                    seen.record.peers[m if m < k else m - 1, at] = count

    def view(
        self,
        progress: Progress,
        slot: int,
        looked: Sequence[int] = (),
        committed: int | None = None,
        *,
        newest: Sequence[NewestReading] | None = None,
        planned: bool = False,
    ) -> MarketsView:
        """Return the view of the policy in ``slot`` after it has observed the counts of ``looked``.

        ``planned``: of the job as policies plan it.
        """
        job, seen = self._job_and_markets(slot, planned)
        view = markets_view(job, seen, progress, slot, newest)
        if self.sight is Sight.ALL:
            return view
        known = tuple(m in looked for m in range(len(seen)))
        shown = (
            own if is_known else replace(own, available=0, observed=False)
            for own, is_known in zip(view.views, known, strict=True)
        )
        return replace(view, views=tuple(shown), seen=known, committed=committed)

    def _job_and_markets(self, slot: int, planned: bool) -> tuple[MarketsJob, tuple[SlotMarket, ...]]:
        """Return the job and its markets in ``slot`` as policies plan it, or as it is."""
        if planned and self.planned is not None and slot < self.planned[0].job.deadline_slots:
            return self.planned
        return self.job, self.seen

    def decide_alone(
        self,
        policy: Policy[S],
        state: S,
        progress: Progress,
        slot: int,
        newest: NewestReading,
        *,
        planned: bool,
        running: Running | None = None,
    ) -> tuple[Allocation, S, View]:
        """Return `decide` of a policy of one market in the only market of a job without a budget: the replays that are many.

        With ``running`` the policy plans in the world, the job as it is.
        """
        job, (seen,) = self._job_and_markets(slot, planned and running is None)
        view = seen.view(job.runs[0], progress, slot, newest)
        if running is not None:
            view = replace(view, running=running)
        wish, new = policy.decide(state, view)
        return legal(wish, view, policy.name), new, view

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
        it is. A policy of partial sight observes its place, then a market that it probes, then a
        market to which it goes, and decides again there.
        """
        if instances is not None:
            view = self.view(progress, slot, newest=newest).in_world(instances[1], instances[0])
            return (*policy.decide(state, view), view)
        looked: list[int] = []

        def view_after(*more: int, committed: int | None = None, planned: bool = planned) -> MarketsView:
            for m in more:
                looked.append(m)
                self.look(m, slot)
            return self.view(progress, slot, looked, committed, newest=newest, planned=planned)

        here = progress.place if self.sight is not Sight.ALL else len(self.seen)
        view = view_after(*([here] if here < len(self.seen) else []))
        if self.sight is Sight.PROBE and isinstance(policy, Probing):
            probed = policy.probe(state, view)
            view = view if probed is None else view_after(probed)
        wish, new = policy.decide(state, view)
        if wish.market is not None and not view.seen[wish.market]:
            view = view_after(wish.market, committed=wish.market)
            wish, new = policy.decide(state, view)
        if planned and view.job is not self.job and not math.isinf(self.job.job.budget_usd):
            view = view_after(committed=view.committed, planned=False)
        return wish, new, view


def _unseen(record: Record) -> Record:
    """Return a copy of the record with the job's slots unknown."""
    available, peers = record.available.copy(), record.peers.copy()
    available[record.first :] = np.nan
    peers[:, record.first :] = np.nan
    return replace(record, available=available, peers=peers)


def _hidden(seen: SlotMarket) -> SlotMarket:
    """Return a market whose counts in the job's slots are unknown."""
    unknown = np.full(len(seen.price), np.nan)
    return replace(seen, beliefs=replace(seen.beliefs, available=unknown, _made={}))
