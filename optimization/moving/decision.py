"""Decision of the present slot among several markets, its reason and expected outcome, and the ranking of markets (M11) (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slackwater.optimization.job.definition import never_finishes
from slackwater.optimization.kernels.rules import spot_held, spot_is_cheaper
from slackwater.optimization.market.belief import Belief, MarketPaths
from slackwater.optimization.moving.definition import MarketsView, MultiMarketPolicy, Placement, check_target
from slackwater.optimization.moving.policies import MeanField
from slackwater.optimization.moving.world_tables import (
    MOST_CELLS,
    WorldOptions,
    WorldTables,
    world_tables_apart,
    world_tables_in_force,
)
from slackwater.optimization.policies.contract import Memoryless, View
from slackwater.optimization.policies.pace import LETS_GO, given_up_text, narrate, price_text, slack_slots
from slackwater.optimization.replay.ahead import PresentJob, Wishes, look_ahead, nothing
from slackwater.optimization.replay.decision import Decision, Effort, LiveJob, ReachedState
from slackwater.optimization.replay.guard import Guard, standby
from slackwater.optimization.window.plan import Allocation
from slackwater.optimization.world.paths import WorldPaths
from slackwater.optimization.world.simulation import Targets
from slackwater.warehouse.amounts import price as usd_price
from slackwater.warehouse.amounts import usd

#: Policy that decides unless another policy leads, and that gives the expected outcome.
MEAN_FIELD = MeanField()


def tables_of(
    live: LiveJob, reached: ReachedState, taken: Sequence[int] | None = None
) -> tuple[MarketsView, WorldTables]:
    """Return the view of the present slot in the world, and the tables of this and all later slots.

    In later slots other jobs take ``taken`` instances of each market first.
    """
    view = Guard.of(live.view(reached.progress, live.slot), reached.run).in_world()
    return view, world_tables_in_force(view, MEAN_FIELD.forgetting, taken=taken, whole=True)


def decide_by_tables(
    live: LiveJob,
    reached: ReachedState,
    policy: MultiMarketPolicy[Any],
    view: MarketsView,
    tables: WorldTables,
    effort: Effort,
) -> Decision:
    """Decide market and instances of the slot of ``view``, with the reason and the expected outcome (M11.6, M11.9).

    Expected cost and lateness are those of the mean-field policy from the next slot on, whichever
    policy decides in this slot.
    """
    progress, options, left = view.progress, tables.options(view), [own.available for own in view.views]
    before, planned = live.views_for(policy, reached.progress, reached.earlier)
    plan = view if live.plans_in_world(policy) else planned.left(left)
    state = policy.start(plan.job)
    for past in () if isinstance(policy, Memoryless) else before:
        _, state = policy.decide(state, past)
    wish = options.best()[0] if policy == MEAN_FIELD else policy.decide(state, plan)[0]
    wish = check_target(wish, view, policy.name)
    guard = Guard.of(view, reached.run)
    wished, wish = wish, guard.allow(wish)
    guarded = guard.holds(wish)
    market = progress.place if wish.market is None else wish.market
    lost = standby(
        guard,
        plan,
        wish,
        lambda left: (
            tables.options(left).best()[0] if policy == MEAN_FIELD else policy.decide(state, left)[0]
        ),
    )
    moved = wish.market is not None and progress.place not in (wish.market, live.job.nowhere)
    now = PresentJob(
        view=view,
        run=guard.run,
        beliefs=[own.belief(MEAN_FIELD.forgetting) for own in view.views],
        planner=MarketsPlan(view=view, tables=tables),
        target=wish,
        standby=lost,
        taken=tables.taken.tolist(),
        elapsed=live.elapsed_seconds,
    )
    return Decision(
        job=live.run.name,
        slot=live.slot,
        allocation=wish.allocation,
        policy=policy.name,
        reason=_reason(live, view, wish, options)
        + guard.reason(wished.allocation, wish.allocation)
        + _expected_use(live, view, tables),
        expected=look_ahead(now, paths=effort.risk_paths, rng=np.random.default_rng(effort.seed)),
        solver="",
        progress=progress,
        planned=None,
        market=market,
        moved_from=progress.place if moved else None,
        move_usd=view.move_usd(market) if moved else 0.0,
        probe_next=tables.probe(replace(view, views=tuple(map(_as_believed, view.views)))),
        risk_known=guarded or live.run.must_finish or any(own.evidence.is_known for own in view.views),
        guarded=guarded,
        standby=None if lost is None else lost.allocation,
        standby_market=None if lost is None else lost.market,
        evidence=min(
            (own.evidence for own in (view.views if market == live.job.nowhere else [view.views[market]])),
            key=lambda candidate: candidate.level,
        ),
    )


def capped_worth(view: MarketsView, tables: WorldTables) -> list[tuple[int | None, int, float]]:
    """Return (market, spot instances, value in USD) of the best option under each cap on the spot of a single market.

    All other markets have no spot. The first entry is the best option without any spot.
    """
    most = [
        spot_held(run.n_max, own.available, own.price, own.on_demand_usd)
        for own, run in zip(view.views, view.job.runs, strict=True)
    ]
    none: Any = tables.options(view.left([0] * len(most)))
    found: list[tuple[int | None, int, float]] = [(None, 0, none.best()[1])]
    for cap in range(1, max(most) + 1):
        capped = tables.options(view.left([cap] * len(most)))
        for m, there in enumerate(most):
            if cap > there:
                continue
            held, usd = none.with_market(m, capped).best()
            if held.market == m and held.allocation.total:
                found.append((m, min(cap, held.allocation.spot), usd))
    return found


def slack_of(view: MarketsView) -> int:
    """Return the idle slots that remain before only the fastest on-demand of all markets meets d; negative if none does."""
    if len(view.views) == 1:
        return slack_slots(view.views[0])
    reach = view.job.pace(view.slot_hours).reach[: view.slots_left + 1, view.place, view.progress.n_previous]
    enough = np.flatnonzero(reach >= view.work_left * (1.0 - 1e-9))
    return view.slots_left - int(enough[0]) if len(enough) else -1


def _as_believed(own: View) -> View:
    """Return an unobserved market at its expected price under the belief; its view has no price."""
    if own.observed:
        return own
    belief = own.belief(MEAN_FIELD.forgetting)
    return replace(own, price=float(belief.price_now @ belief.prices.level_usd))


def _reason(live: LiveJob, view: MarketsView, wish: Placement, options: WorldOptions) -> str:
    """Return the reason for market and allocation, including that the deadline is given up where it is."""
    rule = LETS_GO if view.deadline_in_reach and not view.keeps_deadline(wish) else ""
    if wish.market is None:
        runs, hours = view.job.runs, view.slot_hours
        found = [never_finishes(run, view.progress, slot=view.slot, slot_hours=hours) for run in runs]
        late = [shortfall for shortfall in found if shortfall is not None]
        if len(late) == len(runs):
            return given_up_text(min(late, key=lambda shortfall: shortfall.slots))
        if view.place == live.job.nowhere:
            return f"no instances yet: {_waiting(live, options)}"
        return f"stay in {live.names[view.place]} with {narrate(view.views[view.place], wish.allocation, rule=rule)}"
    own, name = view.views[wish.market], live.names[wish.market]
    why = narrate(own, wish.allocation, rule=rule)
    if view.place == wish.market:
        return f"stay in {name} with {why}"
    if view.place == live.job.nowhere:
        return f"start in {name}, the best of {len(live.names)} markets, with {why}"
    move = f"the move {_gain(view, wish)} and costs ${usd(view.move_usd(wish.market))}"
    return f"move from {live.names[view.place]} to {name} with {why}; {move}"


def _waiting(live: LiveJob, options: WorldOptions) -> str:
    """Return the total cost of the best start in this slot compared with waiting for a later slot."""
    starts = [options.in_market(m) for m in range(len(live.names))]
    m = int(np.argmax([usd for _, usd in starts]))
    start, dearer = starts[m][0], options.waiting_usd - starts[m][1]
    if not start.total or not dearer > 0.0:
        return f"no market is worth a start in this slot, {len(live.names)} looked at"
    there = " and ".join(
        f"{count} {kind}" for count, kind in ((start.on_demand, "on-demand"), (start.spot, "spot")) if count
    )
    return (
        f"waiting is expected to cost ${usd(dearer)} less in all than the best start in this slot, {there} in {live.names[m]}, "
        f"of {len(live.names)} markets"
    )


def _expected_use(live: LiveJob, view: MarketsView, tables: WorldTables) -> str:
    """Return the expected later use by other jobs in the cheapest of the markets they use first."""
    sought = np.flatnonzero(tables.taken)
    if not len(sought):
        return ""
    m = min(sought.tolist(), key=lambda k: view.views[k].price)
    return f"; jobs with less slack need {tables.taken[m]} in {live.names[m]} in later slots"


def _gain(view: MarketsView, wish: Placement) -> str:
    """Return the advantage of the other market as a verb: it brings more instances, or saves dollars per hour."""
    here, there = view.views[view.place], view.views[wish.market or 0]
    most = view.job.runs[wish.market or 0].n_max
    more = min(there.available, most) - min(here.available, most)
    if more > 0 and wish.allocation.spot:
        return f"brings {more} more spot instance{'s' if more > 1 else ''}"
    if not here.available and not here.on_demand.known:
        return "brings a better outlook"
    less = (here.price if here.available else here.on_demand_usd) - (
        there.price if wish.allocation.spot else there.on_demand_usd
    )
    if less > 0:
        return f"saves ${usd(less)} an instance-hour"
    return "brings a better outlook"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketsPlan:
    """The mean-field policy in the later slots; ``tables`` are those of the present beliefs in the slot of ``view``."""

    view: MarketsView
    tables: WorldTables

    def wishes(
        self,
        believed: Sequence[Sequence[Belief]],
        which: np.ndarray,
        paths: WorldPaths,
        sampled: Sequence[MarketPaths],
    ) -> Wishes:
        """Return the wishes by the tables of the present beliefs; where beliefs change, by those of the markets apart (M11.9)."""
        prices = np.stack([own.price.T for own in sampled], axis=2)
        counts = np.stack([own.count.T for own in sampled], axis=2)
        if len(believed[0]) == 1:
            known = self.tables.read_paths(prices, counts)
            return _Wishes(view=self.view, tables=self.tables, paths=paths, known=known)
        under = []
        for beliefs in zip(*believed, strict=True):
            tables = world_tables_apart(
                self.view,
                beliefs,
                MEAN_FIELD.forgetting,
                taken=self.tables.taken.tolist(),
                cells=MOST_CELLS // len(believed[0]),
            )
            under.append((tables, tables.read_paths(prices, counts)))
        return _LearningWishes(view=self.view, under=under, which=which, paths=paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wishes:
    """Wishes of the mean-field policy on many paths, by ``tables``.

    ``known`` are the markets as the tables read them, arrays of shape (slots, paths, M) that begin
    with the slot after that of ``view``.
    """

    view: MarketsView
    tables: WorldTables
    paths: WorldPaths
    known: tuple[np.ndarray, ...]

    def at(self, slot: int, own: np.ndarray) -> Targets:
        """Return the targets on all paths in a slot: wishes on the paths ``own``, nothing on others."""
        at = slot - self.view.slot - 1
        known = tuple(part[at] if len(own) == part.shape[1] else part[at, own] for part in self.known)
        return self.tables.on_paths(slot, self.paths, own, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LearningWishes:
    """Wishes of a policy that learns what each market is: it values a market as if the job then stayed there.

    ``under`` are the tables under each possible belief, with the markets as they read them (`_Wishes`), and
    ``which`` (paths, slots, M) of them apply to each market.
    """

    view: MarketsView
    under: Sequence[tuple[WorldTables, tuple[np.ndarray, ...]]]
    which: np.ndarray
    paths: WorldPaths

    def at(self, slot: int, own: np.ndarray) -> Targets:
        """Return the targets on all paths in a slot: wishes on the paths ``own``, nothing on others."""
        at = slot - self.view.slot - 1
        which = self.which[own, at]
        target, worth = np.zeros((*which.shape, 2), dtype=np.int64), np.full(which.shape, -np.inf)
        idle = worth.copy()
        for k in np.unique(which).tolist():
            tables, known = self.under[k]
            some = np.flatnonzero((which == k).any(axis=1))
            found = tables.each_on_paths(
                slot, self.paths, own[some], tuple(part[at, own[some]] for part in known)
            )
            p, m = np.nonzero(which[some] == k)
            for whole, part in zip((target, worth, idle), found, strict=True):
                whole[some[p], m] = part[p, m]
        return self._best(own, target, worth, idle.max(axis=1))

    def _best(self, own: np.ndarray, target: np.ndarray, worth: np.ndarray, idle: np.ndarray) -> Targets:
        """Return the targets of highest value; running nothing is worth ``idle``. On ties the present market."""
        wished, tables = nothing(self.paths), self.under[0][0]
        market, rows = wished.market[own], np.arange(len(own))
        worth[rows, market] += tables.tie_usd
        best = worth.argmax(axis=1)
        runs = worth[rows, best] > idle - tables.wait_usd(self.view)
        wished.market[own] = np.where(runs, best, market)
        wished.on_demand[own], wished.spot[own] = np.where(runs, target[rows, best].T, 0)
        return wished


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedMarket:
    """Market as seen by a multi-market job in the present slot.

    ``allocation`` is the best allocation there in the slot. ``dearer_usd`` is the increase of the
    job's expected total cost over the best option of all markets, including later moves (None:
    nothing can run there). ``chance`` is the probability of spot for at least the smallest size in the next slot.
    """

    market: int
    allocation: Allocation
    dearer_usd: float | None
    move_usd: float
    price_usd: float | None
    available: int | None
    on_demand_usd: float | None
    chance: float | None
    reason: str


def ranked_markets(live: LiveJob) -> list[RankedMarket]:
    """Return the markets of a job by the value of running there in the present slot, best first."""
    view, tables = tables_of(live, live.reached())
    options = tables.options(view)
    each = [options.in_market(m) for m in range(len(view.views))]
    best = max(options.waiting_usd, *(usd for _, usd in each))
    found = []
    for m, own in enumerate(view.views):
        held, usd = each[m]
        moves = view.place not in (m, live.job.nowhere)
        found.append(
            RankedMarket(
                market=m,
                allocation=held,
                dearer_usd=best - usd if held.total else None,
                move_usd=view.move_usd(m) if moves else 0.0,
                price_usd=own.price if own.observed else None,
                available=own.available if own.observed and own.availability_observed else None,
                on_demand_usd=own.on_demand_usd if own.on_demand.known else None,
                chance=own.belief(MEAN_FIELD.forgetting).chance_of_spot(live.job.runs[m].n_min)
                if own.observed and own.evidence.is_known
                else None,
                reason=_why_there(live, view, m, held),
            )
        )
    return sorted(found, key=lambda ranked: (ranked.dearer_usd is None, ranked.dearer_usd, ranked.market))


def _why_there(live: LiveJob, view: MarketsView, m: int, held: Allocation) -> str:
    """Return the spot situation of a market in a few words."""
    own, most = view.views[m], live.job.runs[m].n_max
    if not own.observed:
        return "not seen in this slot"
    there = min(own.available, most)
    if not there:
        return "no spot now"
    if not own.availability_observed:
        return f"spot at {price_text(own)}; {own.evidence}"
    if own.above_ceiling:
        return f"spot costs {usd_price(own.quoted)} USD, above the job's highest of {usd_price(own.job.max_spot_usd)}"
    if not spot_is_cheaper(own.price, own.on_demand_usd):
        return "spot is dearer than on-demand"
    text = f"{there} of {most} on spot at {price_text(own)}"
    return text if held.total else f"{text}; waiting is worth more"
