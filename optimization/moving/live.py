"""A running job that may move: where it stands, what it should do in the slot at hand, and what to expect (M11) (ours)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from optimization.job.definition import Progress, finished
from optimization.kernels.rules import spot_held, spot_is_cheaper
from optimization.moving.definition import IDLE, MarketsView, MovableJob, Mover, MovingHold, checked, step
from optimization.moving.movers import MeanField
from optimization.moving.tables import MovingTables
from optimization.policies.contract import View
from optimization.policies.pace import LETS_GO, narrate, price_text
from optimization.replay.decision import (
    Decision,
    Effort,
    Expected,
    LiveJob,
    Reported,
    corrected,
    held,
    summary,
)
from optimization.window.plan import Allocation
from warehouse.amounts import price as usd_price
from warehouse.amounts import usd
from warehouse.errors import JobError

#: The mover that decides unless another one leads, and that says what to expect.
LIVE_MOVER = MeanField()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveMovable:
    """A running job that may move, at the slot to decide.

    ``lives`` is the job as each market alone would see it, in the order of the job's runs, all on the same slots; ``names``
    says what the markets are called. ``decided`` is by slot. Reports say how far it is and how many it holds; where it is they
    say by slot in ``places``, else that is where it was decided to be. ``mover`` decides the slot at hand.
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
        """The slot to decide."""
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
        """Where the job stands at the slot to decide, and the view of each slot before it.

        It held what was decided for it, as far as it was there; a move that brought nothing, because no instance was there, is
        none.
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
        """Where the job stands at the slot to decide."""
        return self.standing()[0]

    @property
    def is_finished(self) -> bool:
        """Whether the job has done its work before the slot to decide."""
        return finished(self.progress().done, self.job.job.workload)

    def view(self, progress: Progress, slot: int) -> MarketsView:
        """What a mover sees in ``slot``: markets whose count is not known there are beliefs with an age."""
        views: list[View] = []
        for m, (run, live) in enumerate(zip(self.job.runs, self.lives, strict=True)):
            n = progress.n_previous if m == progress.place else 0
            there = Progress(done=progress.done, n_previous=n, cost_usd=progress.cost_usd, place=m)
            views.append(live.seen.view(run, there, slot))
        # A job does not go blind: it cannot be asked again in the slot. Where nothing was seen nothing is promised.
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
    """Put the markets of a job together; raises `JobError` where they are not on the same slots, or not one for each run."""
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
    """A `Decision` of a job that may move.

    ``market`` is where it holds its instances, or its place where it holds nothing (the number of markets: nowhere yet);
    ``moved_from`` the place it leaves, None if it does not move, and ``move_usd`` what that costs. ``probe_next`` is the market
    whose count it would be worth most to know, None where all counts are known or none can change anything.
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
    """Where to be in the slot at hand, with how many instances, why, and what to expect (M11.6, M11.9).

    ``left`` is the spot that other jobs leave to this one in each market in the slot (None: all of it), ``taken`` what they are
    expected to take first in every later one (None: nothing). Expected cost and lateness are those of
    sampled futures of every market, each from its own belief, on which the tables of the present belief hold to the end;
    whichever mover decides, they are what the mean-field mover would come to from here.
    """
    view, tables = seen_by_mover(live, taken)
    return decided_by_tables(live, view if left is None else view.left(left), tables, effort)


def seen_by_mover(live: LiveMovable, taken: Sequence[int] | None = None) -> tuple[MarketsView, MovingTables]:
    """The slot at hand, and the tables of it and all later slots, in which others take ``taken`` of each market first."""
    view = live.view(live.progress(), live.slot)
    return view, LIVE_MOVER.tables(view, keep=view.slots_left, taken=taken)


def decided_by_tables(
    live: LiveMovable, view: MarketsView, tables: MovingTables, effort: Effort
) -> MovedDecision:
    """`decide_moving` in the slot of ``view`` by tables that are made."""
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
    """What a mover holds in the slot of ``view``, had it been asked in those before; what was really held is in them."""
    state = mover.start(view.job)
    for past in before:
        _, state = mover.decide(state, past)
    wish, _ = mover.decide(state, view)
    return checked(wish, view, mover.name)


def capped_worth(view: MarketsView, tables: MovingTables) -> list[tuple[int | None, int, float]]:
    """(market, spot instances held, USD) of what the mover would do with each cap on the spot of one market and none elsewhere.

    The first is what it would do without any spot.
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
    """Slots that could be spent on nothing before only the fastest on-demand of all markets meets d; below 0 where none does."""
    reach = view.job.pace(view.slot_hours).reach[: view.slots_left + 1, view.place, view.progress.n_previous]
    enough = np.flatnonzero(reach >= view.work_left * (1.0 - 1e-9))
    return view.slots_left - int(enough[0]) if len(enough) else -1


def _as_believed(own: View) -> View:
    """A market that was not seen, at the price that is believed of it: its view shows none."""
    if own.observed:
        return own
    belief = own.belief(LIVE_MOVER.forgetting)
    return replace(own, price=float(belief.price_now @ belief.prices.level_usd))


def _reason(
    live: LiveMovable, view: MarketsView, wish: MovingHold, tables: MovingTables, worth: np.ndarray
) -> str:
    """Why the job is where it is, why it holds what it holds, and that its deadline is let go where it is."""
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
    """What the best start in this slot would cost in all beside waiting for a later one."""
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
    """What others are expected to take later of the cheapest of the markets that they come to first."""
    sought = np.flatnonzero(tables.taken)
    if not len(sought):
        return ""
    m = min(sought.tolist(), key=lambda k: view.views[k].price)
    return f"; jobs with less slack need {tables.taken[m]} in {live.names[m]} in later slots"


def _gain(view: MarketsView, wish: MovingHold) -> str:
    """What the other market has more of: instances, or dollars an hour."""
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
    """What the job comes to on sampled futures of its markets."""
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
    """A market as a job that may move sees it in the slot at hand.

    ``allocation`` is the best that it could hold there in the slot, and ``dearer_usd`` how much more the job is expected to
    pay in all if it does that than if it does the best of all, later moves priced in. ``chance`` is that of at least one
    slot's smallest size on spot in the next slot.
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
    """The markets of a job by what being there in the slot at hand is worth to it, the best first."""
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
    """What a market has for the job, in a few words."""
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
