"""Decision of the present slot among several markets, its reason and expected outcome, and the ranking of markets (M11) (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slackwater.optimization.job.definition import Progress, never_finishes
from slackwater.optimization.kernels.rules import spot_held, spot_is_cheaper
from slackwater.optimization.moving.definition import (
    MarketsJob,
    MarketsView,
    MultiMarketPolicy,
    Placement,
    checked,
)
from slackwater.optimization.moving.policies import MeanField
from slackwater.optimization.moving.world_tables import WorldOptions, WorldTables, world_tables_in_force
from slackwater.optimization.policies.contract import Memoryless, View
from slackwater.optimization.policies.pace import LETS_GO, given_up_text, narrate, price_text, slack_slots
from slackwater.optimization.replay.ahead import Expected, place_and_size, run_to_end, summary
from slackwater.optimization.replay.decision import Decision, Effort, LiveJob, Reached
from slackwater.optimization.replay.guard import Guard, standby
from slackwater.optimization.window.plan import Allocation
from slackwater.optimization.world.paths import WorldPaths, later_readings
from slackwater.optimization.world.simulation import Targets, WorldRun
from slackwater.warehouse.amounts import price as usd_price
from slackwater.warehouse.amounts import usd

#: Policy that decides unless another policy leads, and that gives the expected outcome.
MEAN_FIELD = MeanField()


def tables_of(
    live: LiveJob, reached: Reached, taken: Sequence[int] | None = None
) -> tuple[MarketsView, WorldTables]:
    """Return the view of the present slot in the world, and the tables of this and all later slots.

    In later slots other jobs take ``taken`` instances of each market first.
    """
    view = Guard.of(live.view(reached.progress, live.slot), reached.run).in_world()
    return view, world_tables_in_force(view, MEAN_FIELD.forgetting, taken=taken, whole=True)


def decide_by_tables(
    live: LiveJob,
    reached: Reached,
    policy: MultiMarketPolicy[Any],
    view: MarketsView,
    tables: WorldTables,
    effort: Effort,
) -> Decision:
    """Decide market and instances of the slot of ``view``, with the reason and the expected outcome (M11.6, M11.9).

    Expected cost and lateness are those of the mean-field policy from the next slot on, whichever
    policy decides in this slot (`expected_ahead`).
    """
    progress, options, left = view.progress, tables.options(view), [own.available for own in view.views]
    before, planned = live.views_for(policy, reached.progress, reached.earlier)
    plan = view if live.plans_in_world(policy) else planned.left(left)
    state = policy.start(plan.job)
    for past in () if isinstance(policy, Memoryless) else before:
        _, state = policy.decide(state, past)
    wish = options.best()[0] if policy == MEAN_FIELD else policy.decide(state, plan)[0]
    wish = checked(wish, view, policy.name)
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
    return Decision(
        job=live.run.name,
        slot=live.slot,
        allocation=wish.allocation,
        policy=policy.name,
        reason=_reason(live, view, wish, options)
        + guard.reason(wished.allocation, wish.allocation)
        + _crowded(live, view, tables),
        expected=expected_ahead(view, tables, guard.run, wish, effort),
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
            key=lambda one: one.level,
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
        late = [one for one in found if one is not None]
        if len(late) == len(runs):
            return given_up_text(min(late, key=lambda one: one.slots))
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


def _crowded(live: LiveJob, view: MarketsView, tables: WorldTables) -> str:
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


def expected_ahead(
    view: MarketsView, tables: WorldTables, run: WorldRun, target: Placement, effort: Effort
) -> Expected:
    """Return the expected outcome of the job in the world, over sampled paths of its markets (M12.12).

    ``run`` is the job before the decision ``target``. In later slots the mean-field policy decides,
    with the tables of the present belief, under the exact guard.
    """
    rng, many = np.random.default_rng(effort.seed), effort.risk_paths
    seconds, later = view.slot_hours * 3600.0, view.slots_left - 1
    sampled = [
        own.belief(MEAN_FIELD.forgetting).sample(later, paths=many, rng=rng).left(taken)
        for own, taken in zip(view.views, tables.taken.tolist(), strict=True)
    ]
    rest = (view.slot + 1) * seconds - run.now
    paths = WorldPaths(run, later_readings(run, seconds, sampled, rng, first=rest))
    if any(one.present is not None for one in sampled):
        paths.advance(run.now)
    market = run.market if target.market is None else target.market
    first = market, target.allocation.on_demand, target.allocation.spot
    paths.decide(Targets(*(np.full(many, part) for part in first)))
    wishes = _Wishes(
        view=view,
        tables=tables,
        paths=paths,
        known=tables.read_paths(
            np.stack([one.price.T for one in sampled], axis=2),
            np.stack([one.count.T for one in sampled], axis=2),
        ),
        always=view.never_let_go,
    )
    ground = view.job.ground([own.on_demand_usd for own in view.views], view.slot_hours)
    cost, finish, value = run_to_end(paths, wishes, ground, slot=view.slot, start=0.0, seconds=seconds)
    return summary(view.job.job, cost=cost, finish=finish, utility=value - cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wishes:
    """Wishes of the mean-field policy on many paths, by the tables of the present belief.

    ``known`` are the markets as the tables read them, arrays of shape (slots, paths, M) that begin
    with the slot after that of ``view``. ``always``: the guard counts in every state.
    """

    view: MarketsView
    tables: WorldTables
    paths: WorldPaths
    known: tuple[np.ndarray, ...]
    always: bool

    @property
    def job(self) -> MarketsJob:
        """The job."""
        return self.view.job

    @property
    def sold(self) -> bool:
        """Whether on-demand is sold in some market."""
        return any(own.on_demand.sold for own in self.view.views)

    def at(self, slot: int, own: np.ndarray) -> Targets:
        """Return the targets on all paths in a slot: wishes on the paths ``own``, nothing on others."""
        at = slot - self.view.slot - 1
        known = tuple(part[at, own] for part in self.known)
        return self.tables.on_paths(self.view, slot, self.paths, own, known)

    def guarded(self, slot: int, own: np.ndarray, wished: Targets, safe: Targets) -> np.ndarray:
        """Return the paths on which the guard counts: all, or those it changes where finishing on demand pays (M4)."""
        if self.always:
            return own
        changed = np.zeros(len(wished.market), dtype=bool)
        for wish, guarded in zip(wished, safe, strict=True):
            changed |= wish != guarded
        place, before = place_and_size(self.job, self.paths)
        usd, work = [each.on_demand_usd for each in self.view.views], self.paths.work
        kept = [
            p
            for p in np.flatnonzero(changed).tolist()
            if self.job.worth_finishing(
                usd,
                self.view.slot_hours,
                slot,
                Progress(done=float(work[p]), n_previous=int(before[p]), place=int(place[p])),
            )
        ]
        return np.array(kept, dtype=np.int64)


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
    return sorted(found, key=lambda one: (one.dearer_usd is None, one.dearer_usd, one.market))


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
