"""Running multi-market job: its state, the decision of the present slot, and the expected outcome (M11) (ours)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from slackwater.optimization.job.definition import Progress, finished
from slackwater.optimization.kernels.rules import spot_held, spot_is_cheaper
from slackwater.optimization.moving.definition import (
    IDLE,
    MarketsView,
    MovableJob,
    Mover,
    MovingHold,
    checked,
    step,
)
from slackwater.optimization.moving.movers import MeanField
from slackwater.optimization.moving.tables import MovingTables
from slackwater.optimization.policies.contract import View
from slackwater.optimization.policies.pace import LETS_GO, narrate, price_text
from slackwater.optimization.replay.decision import (
    Decision,
    Effort,
    Expected,
    LiveJob,
    Reported,
    corrected,
    held,
    summary,
)
from slackwater.optimization.window.plan import Allocation
from slackwater.warehouse.amounts import price as usd_price
from slackwater.warehouse.amounts import usd
from slackwater.warehouse.errors import JobError

#: Policy that decides unless another policy leads, and that gives the expected outcome.
LIVE_MOVER = MeanField()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveMovable:
    """Running multi-market job at the slot to decide.

    ``lives`` is the job as seen in each market separately, in the order of the job's runs, all on
    the same slots; ``names`` are the names of the markets. ``decided`` maps a slot to its decision.
    ``reported`` gives progress and instances; ``places`` gives the reported market by slot,
    otherwise the decided market applies. ``mover`` decides the present slot.
    """

    job: MovableJob
    lives: tuple[LiveJob, ...]
    decided: Mapping[int, MovingHold]
    names: tuple[str, ...]
    reported: tuple[Reported, ...] = ()
    mover: Mover[Any] = LIVE_MOVER
    places: Mapping[int, int] = field(default_factory=dict)

    @property
    def start(self) -> pd.Timestamp:
        """Start of the job's slot 0."""
        return self.lives[0].start

    @property
    def step(self) -> pd.Timedelta:
        """Length of a slot."""
        return self.lives[0].step

    @property
    def slot(self) -> int:
        """Slot to decide."""
        return self.lives[0].slot

    @property
    def now(self) -> pd.Timestamp:
        """Start of the slot to decide."""
        return self.lives[0].now

    @property
    def deadline(self) -> pd.Timestamp:
        """End of the last slot before the deadline."""
        return self.lives[0].deadline

    def standing(self) -> tuple[Progress, list[MarketsView]]:
        """Return the job state at the slot to decide, and the view of each earlier slot.

        The job ran the decided instances as far as they were available; a move after which no
        instance was available does not count as a move.
        """
        progress, views = self.job.begin(), []
        for slot in range(self.slot):
            progress = self._corrected(progress, slot)
            if finished(progress.done, self.job.job.workload):
                continue
            view = self.view(progress, slot)
            views.append(view)
            progress = step(view, self._held(view, self.decided.get(slot, IDLE)))
        return self._corrected(progress, self.slot), views

    def _held(self, view: MarketsView, decided: MovingHold) -> MovingHold:
        if decided.market is None:
            return IDLE
        kept = held(self.job.runs[decided.market], decided.allocation, view.views[decided.market].available)
        return MovingHold(decided.market, kept) if kept.total else IDLE

    def _corrected(self, progress: Progress, slot: int) -> Progress:
        place = self.places.get(slot, progress.place)
        m = place if place < len(self.lives) else 0
        there = replace(progress, place=0)
        return replace(
            corrected(self.job.runs[m], self.lives[m].seen, there, slot, self.reported), place=place
        )

    def progress(self) -> Progress:
        """Return the job state at the slot to decide."""
        return self.standing()[0]

    @property
    def is_finished(self) -> bool:
        """Whether the job has done its work before the slot to decide."""
        return finished(self.progress().done, self.job.job.workload)

    def view(self, progress: Progress, slot: int) -> MarketsView:
        """Return the view of a multi-market policy in ``slot``; markets of unknown count are beliefs with an age."""
        views: list[View] = []
        for m, (run, live) in enumerate(zip(self.job.runs, self.lives, strict=True)):
            n = progress.n_previous if m == progress.place else 0
            there = Progress(done=progress.done, n_previous=n, cost_usd=progress.cost_usd, place=m)
            views.append(live.seen.view(run, there, slot))
        # All markets count as seen: a running job cannot look and decide again within the slot. A
        # view without observations promises no spot.
        return MarketsView(
            job=self.job, progress=progress, slot=slot, views=tuple(views), seen=(True,) * len(views)
        )


def live_movable(
    job: MovableJob,
    lives: Sequence[LiveJob],
    decided: Mapping[int, MovingHold],
    names: Sequence[str],
    reported: Sequence[Reported] = (),
    mover: Mover[Any] = LIVE_MOVER,
) -> LiveMovable:
    """Combine the markets of a job.

    Raises `JobError` if their slots differ or if their number differs from that of the runs.
    """
    grids = {(live.start, live.step, live.slot) for live in lives}
    if len(lives) != len(job.runs) or len(names) != len(lives) or len(grids) != 1:
        raise JobError(
            f"job {job.job.name!r}: {len(lives)} markets called {', '.join(names)} on {len(grids)} grids of slots",
            expected=f"{len(job.runs)} markets whose slots are the same",
        )
    return LiveMovable(
        job=job, lives=tuple(lives), decided=dict(decided), names=tuple(names), reported=tuple(reported), mover=mover,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedDecision(Decision):
    """`Decision` of a multi-market job.

    ``market`` is the market of its instances, or its place if it has none (the number of markets:
    no place yet); ``moved_from`` is the place it leaves, None without a move, and ``move_usd`` the
    cost of the move. ``probe_next`` is the market whose count has the highest information value,
    None if all counts are known or none can change the decision.
    """

    market: int
    moved_from: int | None
    move_usd: float
    probe_next: int | None


def decide_moving(
    live: LiveMovable,
    effort: Effort,
    *,
    left: Sequence[int] | None = None,
    taken: Sequence[int] | None = None,
) -> MovedDecision:
    """Decide market and instances of the present slot, with the reason and the expected outcome (M11.6, M11.9).

    ``left`` is the spot that other jobs leave in each market in this slot (None: all of it),
    ``taken`` the instances that they are expected to take first in every later slot (None: none).
    Expected cost and lateness come from sampled paths of every market, each from the belief of the
    market, with the tables of the present belief fixed to the end. They are the outcome of the
    mean-field policy, whichever policy decides.
    """
    view, tables = seen_by_mover(live, taken)
    return decided_by_tables(live, view if left is None else view.left(left), tables, effort)


def seen_by_mover(live: LiveMovable, taken: Sequence[int] | None = None) -> tuple[MarketsView, MovingTables]:
    """Return the view of the present slot and the tables of this and all later slots.

    In later slots other jobs take ``taken`` instances of each market first.
    """
    view = live.view(live.progress(), live.slot)
    return view, LIVE_MOVER.tables(view, keep=view.slots_left, taken=taken)


def decided_by_tables(
    live: LiveMovable, view: MarketsView, tables: MovingTables, effort: Effort
) -> MovedDecision:
    """Return the decision of `decide_moving` for the slot of ``view`` from given tables."""
    progress, worth = view.progress, tables.worth(view)[0]
    if live.mover == LIVE_MOVER:
        m, n = tables.best(view, worth)
        wish = IDLE if m == live.job.nowhere else view.split(m, n)
    else:
        wish = _wish(live.mover, live.standing()[1], view)
    market = progress.place if wish.market is None else wish.market
    moved = wish.market is not None and progress.place not in (wish.market, live.job.nowhere)
    unseen = replace(
        view,
        seen=tuple(own.observed for own in view.views),
        views=tuple(_as_believed(own) for own in view.views),
    )
    return MovedDecision(
        job=live.job.job.name,
        slot=live.slot,
        allocation=wish.allocation,
        policy=live.mover.name,
        reason=_reason(live, view, wish, tables, worth) + _crowded(live, view, tables),
        expected=expected_ahead(view, tables, effort),
        solver="",
        progress=progress,
        planned=None,
        market=market,
        moved_from=progress.place if moved else None,
        move_usd=view.move_usd(market) if moved else 0.0,
        probe_next=LIVE_MOVER.probe(None, unseen) if not all(unseen.seen) else None,
        risk_known=all(own.availability_observed for own in view.views)
        and (live.job.job.must_finish or any(own.knows_count for own in view.views)),
    )


def _wish(mover: Mover[Any], before: Sequence[MarketsView], view: MarketsView) -> MovingHold:
    """Return the allocation of a policy in the slot of ``view`` after a replay of its decisions on earlier slots.

    The earlier views contain the actual allocations.
    """
    state = mover.start(view.job)
    for past in before:
        _, state = mover.decide(state, past)
    wish, _ = mover.decide(state, view)
    return checked(wish, view, mover.name)


def capped_worth(view: MarketsView, tables: MovingTables) -> list[tuple[int | None, int, float]]:
    """Return (market, spot instances, value in USD) of the best option under each cap on the spot of a single market.

    All other markets have no spot. The first entry is the best option without any spot.
    """

    def best(worth: np.ndarray) -> tuple[int, int, float]:
        m, n = tables.best(view, worth)
        if m == len(view.views):
            return m, 0, float(worth[m, 0])
        return m, n, float(worth[m, int(np.searchsorted(tables.full.sizes[m, : tables.full.held[m]], n))])

    most = [
        spot_held(run.n_max, own.available, own.price, own.on_demand_usd)
        for own, run in zip(view.views, view.job.runs, strict=True)
    ]
    none = tables.worth(view.left([0] * len(most)))[0]
    found: list[tuple[int | None, int, float]] = [(None, 0, best(none)[2])]
    for cap in range(1, max(most) + 1):
        capped = tables.worth(view.left([cap] * len(most)))[0]
        for m, own in enumerate(view.views):
            if cap > most[m]:
                continue
            worth = none.copy()
            worth[m] = capped[m]
            where, n, usd = best(worth)
            if where == m and n:
                found.append((m, spot_held(n, cap, own.price, own.on_demand_usd), usd))
    return found


def slack_of(view: MarketsView) -> int:
    """Return the idle slots that remain before only the fastest on-demand of all markets meets d; -1 if none does."""
    reach = view.job.pace(view.slot_hours).reach[: view.slots_left + 1, view.place, view.progress.n_previous]
    enough = np.flatnonzero(reach >= view.work_left * (1.0 - 1e-9))
    return view.slots_left - int(enough[0]) if len(enough) else -1


def _as_believed(own: View) -> View:
    """Return an unobserved market at its expected price under the belief; its view has no price."""
    if own.observed:
        return own
    belief = own.belief(LIVE_MOVER.forgetting)
    return replace(own, price=float(belief.price_now @ belief.prices.level_usd))


def _reason(
    live: LiveMovable, view: MarketsView, wish: MovingHold, tables: MovingTables, worth: np.ndarray
) -> str:
    """Return the reason for market and allocation, including that the deadline is given up where it is."""
    rule = LETS_GO if view.deadline_in_reach and not view.keeps_deadline(wish) else ""
    if wish.market is None:
        if view.place == live.job.nowhere:
            return f"nothing yet: {_waiting(live, view, tables, worth)}"
        return f"stay: {narrate(view.views[view.place], wish.allocation, rule=rule)}"
    own = view.views[wish.market]
    why = narrate(own, wish.allocation, rule=rule)
    if view.place == wish.market:
        return f"stay: {why}"
    name = live.names[wish.market]
    if view.place == live.job.nowhere:
        return f"start in {name}, the best of {len(live.names)} markets: {why}"
    return f"move from {live.names[view.place]} to {name}: {_gain(view, wish)} for {usd(view.move_usd(wish.market))} USD; {why}"


def _waiting(live: LiveMovable, view: MarketsView, tables: MovingTables, worth: np.ndarray) -> str:
    """Return the total cost of the best start in this slot compared with waiting for a later slot."""
    m, j = np.unravel_index(int(np.argmax(worth[:-1])), worth[:-1].shape)
    start = view.split(int(m), int(tables.full.sizes[m, j])).allocation
    dearer = float(worth[-1, 0] - worth[m, j])
    if not start.total or not dearer > 0.0:
        return f"no market is worth a start in this slot, {len(live.names)} looked at"
    there = " and ".join(
        f"{count} {kind}" for count, kind in ((start.on_demand, "on-demand"), (start.spot, "spot")) if count
    )
    return (
        f"waiting is expected to cost {usd(dearer)} USD less in all than the best start in this slot, {there} in {live.names[m]}, "
        f"of {len(live.names)} markets"
    )


def _crowded(live: LiveMovable, view: MarketsView, tables: MovingTables) -> str:
    """Return the expected later use by other jobs in the cheapest of the markets they use first."""
    sought = np.flatnonzero(tables.taken)
    if not len(sought):
        return ""
    m = min(sought.tolist(), key=lambda k: view.views[k].price)
    return f"; jobs with less slack need {tables.taken[m]} in {live.names[m]} in later slots"


def _gain(view: MarketsView, wish: MovingHold) -> str:
    """Return the advantage of the other market: more instances, or fewer dollars per hour."""
    here, there = view.views[view.place], view.views[wish.market or 0]
    most = view.job.runs[wish.market or 0].n_max
    more = min(there.available, most) - min(here.available, most)
    if more > 0 and wish.allocation.spot:
        return f"{more} spot instance{'s' if more > 1 else ''} more"
    if not here.available and not here.on_demand.known:
        return "a better outlook"
    less = (here.price if here.available else here.on_demand_usd) - (
        there.price if wish.allocation.spot else there.on_demand_usd
    )
    if less > 0:
        return f"{usd(less)} USD an instance-hour less"
    return "a better outlook"


def expected_ahead(view: MarketsView, tables: MovingTables, effort: Effort) -> Expected:
    """Return the expected outcome of the job over sampled paths of its markets."""
    later = view.slots_left - 1
    rng = np.random.default_rng(effort.seed)
    paths = effort.risk_paths
    sampled = [own.belief(LIVE_MOVER.forgetting).sample(later, paths=paths, rng=rng) for own in view.views]
    price = np.stack([one[0] for one in sampled], axis=1)
    available = np.stack([one[1] for one in sampled], axis=1)
    paid, ends, value = tables.ahead(view, price, available)
    cost = view.progress.cost_usd + paid
    finish = np.where(ends < 0, np.nan, ends).astype(float)
    return summary(view.job.job, cost=cost, finish=finish, utility=value - cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedMarket:
    """Market as seen by a multi-market job in the present slot.

    ``allocation`` is the best allocation there in the slot. ``dearer_usd`` is the increase of the
    job's expected total cost over the best option of all markets, including later moves. ``chance``
    is the probability of spot for at least the smallest size in the next slot.
    """

    market: int
    allocation: Allocation
    dearer_usd: float
    move_usd: float
    price_usd: float | None
    available: int | None
    on_demand_usd: float | None
    chance: float | None
    reason: str


def ranked_markets(live: LiveMovable) -> list[RankedMarket]:
    """Return the markets of a job by the value of running there in the present slot, best first."""
    view = live.view(live.progress(), live.slot)
    tables = LIVE_MOVER.tables(view)
    worth = tables.credited(view, tables.worth(view)[0])
    best = float(worth.max())
    found = []
    for m, own in enumerate(view.views):
        j = int(np.argmax(worth[m]))
        held = view.split(m, int(tables.full.sizes[m, j]))
        moves = view.place not in (m, live.job.nowhere)
        found.append(
            RankedMarket(
                market=m,
                allocation=held.allocation,
                dearer_usd=best - float(worth[m, j]),
                move_usd=view.move_usd(m) if moves else 0.0,
                price_usd=own.price if own.observed else None,
                available=own.available if own.observed and own.availability_observed else None,
                on_demand_usd=own.on_demand_usd if own.on_demand.known else None,
                chance=own.belief(LIVE_MOVER.forgetting).chance_of_spot(live.job.runs[m].n_min)
                if own.knows_count
                else None,
                reason=_why_there(live, view, m, held),
            )
        )
    return sorted(found, key=lambda one: (one.dearer_usd, one.market))


def _why_there(live: LiveMovable, view: MarketsView, m: int, held: MovingHold) -> str:
    """Return the spot situation of a market in a few words."""
    own, most = view.views[m], live.job.runs[m].n_max
    if not own.observed:
        return "not seen in this slot"
    there = min(own.available, most)
    if not there:
        return "no spot now"
    if not own.availability_observed:
        return f"spot at {price_text(own)}; availability not observed"
    if own.above_ceiling:
        return f"spot costs {usd_price(own.quoted)} USD, above the job's highest of {usd_price(own.job.max_spot_usd)}"
    if not spot_is_cheaper(own.price, own.on_demand_usd):
        return "spot is dearer than on-demand"
    text = f"{there} of {most} on spot at {price_text(own)}"
    return text if held.allocation.total else f"{text}; waiting is worth more"
