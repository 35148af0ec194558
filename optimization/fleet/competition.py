"""Decisions of jobs that compete for the spot of a slot, by the value of less spot to each, or by slack (M3.7) (ours)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from slackwater.optimization.fan import Fan, in_turn
from slackwater.optimization.job.definition import Allocation, never_finishes, rates
from slackwater.optimization.kernels.rules import spot_is_cheaper
from slackwater.optimization.moving.adapter import for_markets
from slackwater.optimization.moving.decision import capped_worth, decide_by_tables, slack_of, tables_of
from slackwater.optimization.moving.definition import (
    IDLE,
    MarketsView,
    MultiMarketPolicy,
    Placement,
    in_its_markets,
    is_multi_market,
)
from slackwater.optimization.moving.world_tables import WorldTables
from slackwater.optimization.policies.contract import Policy, forgetting_of
from slackwater.optimization.policies.pace import slot_gain, work_left
from slackwater.optimization.policies.stochastic import tables_in_force
from slackwater.optimization.replay.decision import RAISED, Decision, Effort, LiveJob, UndecidedJob, decide
from slackwater.optimization.replay.guard import Guard
from slackwater.optimization.replay.run import catch_up, check_allocation
from slackwater.warehouse.amounts import usd
from slackwater.warehouse.errors import why_raised

ROUNDING = 1e-9  # Share of the value at stake by which an allocation must exceed another to replace it
ROUNDS = 20  # Maximal number of rounds in which every multi-market job is reassigned to its best market


@dataclass(frozen=True, slots=True)
class Claim:
    """Possible use by a job of ``spot`` instances of ``market`` (None: none) in the slot, with its value, USD."""

    market: str | None
    spot: int
    value_usd: float


NO_SPOT = Claim(None, 0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Job in a slot, of ``slack`` slots: its ``wish`` among acceptable ``claims``, of which the first is no spot."""

    job: str
    slack: int
    wish: Claim
    claims: tuple[Claim, ...]

    @property
    def markets(self) -> list[str]:
        """Names of the markets in which the job could use spot."""
        return sorted({claim.market for claim in self.claims if claim.market is not None})


def contender(job: str, slack: int, wish: tuple[str | None, int], found: Sequence[Claim]) -> Contender:
    """Return the contender of a job from its policy's choices under caps on its spot.

    ``found`` has the choices in any order, including no spot. No claim has more value than the
    wish, and a claim with no more value than a smaller claim of the same market is omitted.
    """
    top = max(claim.value_usd for claim in found)
    market, spot = wish
    if market is None or not spot:
        own = Claim(None, 0, top)
        return Contender(job=job, slack=slack, wish=own, claims=(own,))
    own = Claim(market, spot, top)
    nothing = max(claim.value_usd for claim in found if not claim.spot)
    claims = [Claim(None, 0, nothing)]
    for name in sorted({claim.market for claim in found if claim.market is not None}):
        best = nothing
        for claim in sorted((claim for claim in found if claim.market == name), key=lambda claim: claim.spot):
            if claim.value_usd > best and not (name == market and claim.spot >= spot):
                best = claim.value_usd
                claims.append(claim)
    return Contender(job=job, slack=slack, wish=own, claims=(*claims, own))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Allocation for each contender, in their order.

    ``prices`` by market, in USD per instance in the slot, are the value of an additional instance
    if allocated by price; empty if allocated by slack.
    """

    claims: tuple[Claim, ...]
    prices: Mapping[str, float]


def short_of(wishes: Sequence[tuple[str | None, int]], there: Mapping[str, int]) -> set[str]:
    """Return the markets in which the requested spot exceeds the available spot."""
    requested: dict[str, int] = {}
    for market, spot in wishes:
        if market is not None and spot:
            requested[market] = requested.get(market, 0) + spot
    return {market for market, spot in requested.items() if spot > there[market]}


def share_out(contenders: Sequence[Contender], there: Mapping[str, int]) -> Shares:
    """Allocate ``there``, the spot instances of each market; the order of ``contenders`` does not matter.

    If there is enough, everyone gets its wish. Otherwise the sum of the jobs' values is never lower
    than in order of slack, and no job falls short of its wish while the missing instances are
    unused. Groups of jobs without common markets, directly or through other jobs, are independent.
    """
    claims, prices = [job.wish for job in contenders], dict[str, float]()
    for group in connected_groups([set(job.markets) for job in contenders]):
        own = sorted((contenders[j] for j in group), key=lambda job: (job.slack, job.job))
        if short_of([(job.wish.market, job.wish.spot) for job in own], there):
            shared, paid = _share_among(own, there)
            by_name = {job.job: claim for job, claim in zip(own, shared, strict=True)}
            for j in group:
                claims[j] = by_name[contenders[j].job]
            prices |= paid
    return Shares(claims=tuple(claims), prices=prices)


def connected_groups(sets: Sequence[AbstractSet[Any]]) -> list[list[int]]:
    """Return the groups of indices of sets with common elements, directly or through others; an empty set is alone."""
    first: dict[Any, int] = {}
    group = list(range(len(sets)))

    def root(k: int) -> int:
        while group[k] != k:
            k = group[k]
        return k

    for k, own in enumerate(sets):
        for market in own:
            a, b = sorted((root(first.setdefault(market, k)), root(k)))
            group[b] = a
    found: dict[int, list[int]] = {}
    for k in range(len(sets)):
        found.setdefault(root(k), []).append(k)
    return list(found.values())


def _share_among(
    ordered: Sequence[Contender], there: Mapping[str, int]
) -> tuple[list[Claim], dict[str, float]]:
    by_slack = in_order(ordered, there)
    by_price, prices = at_prices(ordered, there, by_slack)
    worth, other = (sum(claim.value_usd for claim in claims) for claims in (by_price, by_slack))
    stake = sum(contender.wish.value_usd - contender.claims[0].value_usd for contender in ordered)
    if worth > other + ROUNDING * stake:
        return by_price, prices
    return by_slack, {}


def in_order(contenders: Sequence[Contender], there: Mapping[str, int]) -> list[Claim]:
    """Return the best claim of each contender in turn on the spot left by the previous contenders."""
    left = dict(there)
    return [_best_claim(job, left) for job in contenders]


def at_prices(
    contenders: Sequence[Contender], there: Mapping[str, int], begin: Sequence[Claim]
) -> tuple[list[Claim], dict[str, float]]:
    """Return the claims of highest total value, and the price of each market: the value of another instance, USD.

    Exact for jobs that use a single market, by dynamic programming over its count. A job that may use several
    starts in the market of ``begin`` and moves to the market where it adds most value, until no job improves
    elsewhere. Remaining instances go, in the order of ``contenders``, to jobs that gain from them.
    """
    place = [
        job.markets[0] if len(job.markets) == 1 else claim.market
        for job, claim in zip(contenders, begin, strict=True)
    ]
    choosing = [j for j, job in enumerate(contenders) if len(job.markets) > 1]
    # The jobs together could not use more than this, so no table needs to be longer.
    wanted: Counter[str] = Counter()
    for job in contenders:
        for market in job.markets:
            wanted[market] += max(claim.spot for claim in job.claims if claim.market == market)
    room = {market: min(there[market], wanted[market]) for market in wanted}
    stake = sum(job.wish.value_usd - job.claims[0].value_usd for job in contenders)
    for _ in range(ROUNDS if choosing else 0):
        before = list(place)
        for j in choosing:
            place[j] = None
            gain = dict[str | None, float]({None: 0.0})
            for market in contenders[j].markets:
                others = _gain_tables(
                    [job for job, at in zip(contenders, place, strict=True) if at == market],
                    market,
                    room[market],
                )[-1]
                gain[market] = float(_extend_table(others, contenders[j], market)[-1] - others[-1])
            held = before[j]
            best = max(gain, key=lambda market: gain[market])
            place[j] = best if gain[best] > gain[held] + ROUNDING * stake else held
        if place == before:
            break
    taken, prices = [job.claims[0] for job in contenders], dict[str, float]()
    for market, count in sorted(room.items()):
        group = [j for j, at in enumerate(place) if at == market]
        own = [contenders[j] for j in group]
        if own:
            tables = _gain_tables(own, market, count + 1)
            prices[market] = float(tables[-1][-1] - tables[-1][-2])
            for j, claim in zip(group, _trace_claims(own, market, tables, count), strict=True):
                taken[j] = claim
    return _fill_remaining(contenders, taken, there), prices


def _gain_tables(own: Sequence[Contender], market: str, count: int) -> list[np.ndarray]:
    """Return the highest gain of the first 0, 1, ... of ``own`` on 0..``count`` instances, USD, each (count + 1,)."""
    tables = [np.zeros(count + 1)]
    for job in own:
        tables.append(_extend_table(tables[-1], job, market))
    return tables


def _extend_table(table: np.ndarray, job: Contender, market: str) -> np.ndarray:
    """Return the table extended by another job."""
    best = table.copy()
    for claim in job.claims:
        if claim.market == market and claim.spot < len(table):
            gain = claim.value_usd - job.claims[0].value_usd
            best[claim.spot :] = np.maximum(best[claim.spot :], table[: len(table) - claim.spot] + gain)
    return best


def _trace_claims(
    own: Sequence[Contender], market: str, tables: Sequence[np.ndarray], count: int
) -> list[Claim]:
    """Return the claims of highest value on ``count`` instances, job by job."""
    found: list[Claim] = []
    for job, table in zip(reversed(own), reversed(tables[:-1]), strict=True):
        fitting = [c for c in job.claims if c.market in (None, market) and c.spot <= count]
        best = max(fitting, key=lambda c: (table[count - c.spot] + c.value_usd, c == job.wish))
        found.append(best)
        count -= best.spot
    return found[::-1]


def _fill_remaining(
    contenders: Sequence[Contender], taken: Sequence[Claim], there: Mapping[str, int]
) -> list[Claim]:
    """Give remaining instances to jobs that gain from them, in their order, until none does."""
    left, found = dict(there), list(taken)
    for claim in found:
        if claim.market is not None:
            left[claim.market] -= claim.spot
    changed = True
    while changed:
        changed = False
        for j, job in enumerate(contenders):
            before = found[j]
            if before.market is not None:
                left[before.market] += before.spot
            found[j] = _best_claim(job, left, before)
            changed = changed or found[j] != before
    return found


def _best_claim(job: Contender, left: dict[str, int], before: Claim | None = None) -> Claim:
    """Take the claim of highest value that fits into ``left``; on ties the wish, then ``before``."""
    fitting = [c for c in job.claims if c.market is None or c.spot <= left[c.market]]
    best = max(fitting, key=lambda c: (c.value_usd, c == job.wish, c == before))
    if best.market is not None:
        left[best.market] -= best.spot
    return best


# ---
# Value of a job with fewer spot instances under its policy, in USD.

MOST_CAPS = 24  # Maximal number of caps on a job's spot to evaluate; a larger range is sampled evenly


def claims_of(entry: Entry, decision: Decision) -> Contender:
    """Return the claims of a job in one market that was decided alone: its policy decides again under each cap on its spot.

    Allocations are valued with the value tables of M4.6; a policy with its own belief uses the
    tables of that belief.
    """
    live, (market,), policy = entry.live, entry.markets, in_its_markets(entry.policy, 1)
    reached = live.reached()
    now = live.view(reached.progress, live.slot)
    (view,) = now.views
    slack, spot = slack_of(now), decision.allocation.spot
    if not spot:
        return Contender(job=decision.job, slack=slack, wish=NO_SPOT, claims=(NO_SPOT,))
    before, _ = live.views_for(policy, reached.progress, reached.earlier)
    state = catch_up(policy, live.run, [past.views[0] for past in before])
    seen = view
    if live.plans_in_world(policy):
        (seen,) = Guard.of(now, reached.run).in_world().views
    tables = tables_in_force(view, forgetting_of(policy))
    found = []
    for cap in [*np.unique(np.linspace(0, spot - 1, min(spot, MOST_CAPS)).astype(int)).tolist(), spot]:
        held = decision.allocation
        if cap < spot:
            capped = seen.left(cap)
            held = check_allocation(policy.decide(state, capped)[0], capped, policy.name)
        rest = work_left(view) - slot_gain(view, held.total)
        found.append(Claim(market if held.spot else None, held.spot, tables.worth(view, held, rest)))
    return contender(decision.job, slack, (market, spot), found)


def claims_by_tables(
    names: Sequence[str], view: MarketsView, tables: WorldTables, decision: Decision
) -> Contender:
    """Return the claims of a multi-market job: its value under every cap on the spot of each of ``names`` (M11.6)."""
    spot = decision.allocation.spot
    found = [Claim(None if m is None else names[m], held, usd) for m, held, usd in capped_worth(view, tables)]
    return contender(decision.job, slack_of(view), (names[decision.market] if spot else None, spot), found)


# ---
# Later use by other jobs, which a multi-market job must expect, since it could wait for its best market.


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Instances that a job of ``slack`` slots needs in each of its ``slots``, in ``markets`` by price for it."""

    job: str
    slack: int
    slots: int
    markets: tuple[tuple[str, int], ...]


def come_first(needs: Sequence[Need], there: Mapping[str, int], slots: int) -> dict[str, int]:
    """Return the instances of each market that the jobs of ``needs`` request in a slot, mean over the next ``slots``.

    Each job requests its cheapest market, and its next market for the part that earlier jobs leave
    it short of. The order of ``needs`` does not matter: the least slack goes first.
    """
    come, left = dict.fromkeys(there, 0.0), {market: float(count) for market, count in there.items()}
    for need in sorted(needs, key=lambda need: (need.slack, need.job)):
        share = min(1.0, need.slots / slots)
        for market, spot in need.markets:
            wanted = share * spot
            got = min(wanted, left[market])
            come[market] += wanted
            left[market] -= got
            share -= got / spot
            if got == wanted:
                break
    return {market: round(spot) for market, spot in come.items()}


def taken_later(needs: Sequence[Need], there: Mapping[str, int]) -> list[dict[str, int]]:
    """Return, for each job of ``needs``, the instances of each market used in later slots by jobs with less slack."""
    return [
        come_first(
            [need for need in needs if (need.slack, need.job) < (own.slack, own.job)], there, own.slots
        )
        for own in needs
    ]


# ---
# Decisions of competing jobs, slot after slot.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Job at ascending slots without a decision, and the policy that decides each of them.

    ``keys`` are the markets of the job in each slot, which may differ; ``markets`` names the shared
    spot of each: jobs with the same name in a slot share its spot.
    """

    slots: tuple[LiveJob, ...]
    policies: tuple[Policy[Any] | MultiMarketPolicy[Any] | None, ...]
    keys: tuple[tuple[str, ...], ...]
    markets: tuple[tuple[str, ...], ...]


#: Result of a job in a slot; None if it has finished its work or its place is unknown.
SlotResult = Decision | UndecidedJob | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Job in a slot with its earlier decisions: the input of `decide_one`."""

    live: LiveJob
    markets: tuple[str, ...]
    policy: Any

    @property
    def by_tables(self) -> bool:
        """Whether the job is decided among several markets, with the tables of all of them (`decide`)."""
        return len(self.markets) > 1 or is_multi_market(in_its_markets(self.policy, 1))


def decide_one(
    entry: Entry, effort: Effort, *, left: tuple[int, ...] | None = None, taken: tuple[int, ...] | None = None
) -> Decision | UndecidedJob:
    """Decide a job on the spot that others leave in each market (None: all), and take in later slots (``taken``)."""
    try:
        return decide(entry.live, entry.policy, effort, left=left, taken=taken)
    except RAISED as error:
        return _undecided_job(entry.live, error)


def decide_among(
    entry: Entry, effort: Effort, *, taken: tuple[int, ...] | None = None
) -> tuple[Decision, Contender] | tuple[UndecidedJob, None]:
    """Return the decision of a job alone in the slot, and its claims; ``taken`` as in `decide_one`."""
    try:
        if entry.by_tables:
            reached = entry.live.reached()
            view, tables = tables_of(entry.live, reached, taken)
            decision = decide_by_tables(entry.live, reached, for_markets(entry.policy), view, tables, effort)
            return decision, claims_by_tables(entry.markets, view, tables, decision)
        decision = decide(entry.live, entry.policy, effort)
        return decision, claims_of(entry, decision)
    except RAISED as error:
        return _undecided_job(entry.live, error), None


def need_of(entry: Entry) -> Need:
    """Return the need of a job: the least instances of each market that do its work by d, or ``n_max``.

    Omitted are markets whose spot is no cheaper than on-demand, or would cost more than the job is
    worth, and all markets of a job that finishes only when it is worth nothing any more.
    """
    live = entry.live
    view = live.view(live.progress(), live.slot)
    found = []
    for market, own, run in zip(entry.markets, view.views, live.job.runs, strict=True):
        rate = rates(run.throughput, run.n_max)
        at_full_speed = own.price * run.n_max * view.work_left / float(rate[run.n_max])
        pays = run.must_finish or at_full_speed < run.value
        ends = not never_finishes(run, view.progress, slot=live.slot, slot_hours=own.slot_hours)
        if pays and ends and spot_is_cheaper(own.price, own.on_demand_usd):
            enough = np.flatnonzero(rate[run.n_min :] * view.slots_left * own.slot_hours >= view.work_left)
            n = run.n_min + int(enough[0]) if len(enough) else run.n_max
            found.append((own.price * run.n_max / float(rate[run.n_max]), market, n))
    return Need(
        job=live.run.name,
        slack=slack_of(view),
        slots=view.slots_left,
        markets=tuple((market, n) for _, market, n in sorted(found)),
    )


def _undecided_job(live: LiveJob, error: Exception) -> UndecidedJob:
    return UndecidedJob(job=live.run.name, slot=live.slot, why=why_raised(error))


class _Run:
    """Trajectory with its decisions so far."""

    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        self.results: list[SlotResult] = []
        self._decided: dict[int, tuple[str | None, Allocation]] = {}

    @property
    def next_at(self) -> pd.Timestamp | None:
        """Start of the next slot without a decision, None after the last."""
        slots = self.trajectory.slots
        return slots[len(self.results)].now if len(self.results) < len(slots) else None

    def entry(self) -> Entry | None:
        """Return the job in the next slot; None if there is nothing to decide."""
        k, trajectory = len(self.results), self.trajectory
        keys, live = trajectory.keys[k], trajectory.slots[k]
        if any(key is not None and key not in keys for key, _ in self._decided.values()):
            return None  # the place of the job is unknown here
        fresh = {
            slot: IDLE if key is None else Placement(keys.index(key), allocation)
            for slot, (key, allocation) in self._decided.items()
        }
        live = replace(live, decided={**live.decided, **fresh})
        if live.is_finished:
            return None
        return Entry(live=live, markets=trajectory.markets[k], policy=trajectory.policies[k])

    def add(self, result: SlotResult) -> None:
        """Add the result of the slot."""
        if isinstance(result, Decision):
            key = self.trajectory.keys[len(self.results)][result.market] if result.allocation.total else None
            self._decided[result.slot] = (key, result.allocation)
        self.results.append(result)


def decide_trajectory(trajectory: Trajectory, effort: Effort) -> list[SlotResult]:
    """Decide the slots of a job alone in its markets in sequence, each with the earlier decisions."""
    run = _Run(trajectory)
    for _ in trajectory.slots:
        entry = run.entry()
        run.add(None if entry is None else decide_one(entry, effort))
    return run.results


#: Spot of a market in a slot that earlier decisions have allocated, by start of the slot and market.
Promised = Mapping[tuple[pd.Timestamp, str], int]


def decide_all(
    trajectories: Sequence[Trajectory],
    effort: Effort,
    *,
    promised: Promised | None = None,
    fan: Fan = in_turn,
) -> list[list[SlotResult]]:
    """Decide every job's slots; jobs in the same market and slot never get more spot than available (M3.7).

    Jobs that never share a market are decided independently, in parallel. Spot in ``promised`` is
    already allocated.
    """
    promised = promised or {}
    together = _sharing(trajectories, promised)
    alone = [k for k in range(len(trajectories)) if not any(k in group for group in together)]
    calls = [{"trajectory": trajectories[k], "effort": effort} for k in alone]
    found: dict[int, list[SlotResult]] = dict(
        zip(alone, fan(decide_trajectory, calls) if alone else [], strict=True)
    )
    for group in together:
        runs = {k: _Run(trajectories[k]) for k in group}
        while True:
            times = [run.next_at for run in runs.values() if run.next_at is not None]
            if not times:
                break
            _decide_slot([run for run in runs.values() if run.next_at == min(times)], effort, promised, fan)
        found |= {k: run.results for k, run in runs.items()}
    return [found[k] for k in range(len(trajectories))]


def _sharing(trajectories: Sequence[Trajectory], promised: Promised) -> list[list[int]]:
    """Return groups of jobs that share a market in a slot, or use spot allocated earlier, directly or through others."""
    where = [
        {(live.now, name) for live, names in zip(own.slots, own.markets, strict=True) for name in names}
        for own in trajectories
    ]
    return [
        group
        for group in connected_groups(where)
        if len(group) > 1 or any(promised.get(place, 0) for place in where[group[0]])
    ]


def _decide_slot(runs: Sequence[_Run], effort: Effort, promised: Promised, fan: Fan) -> None:
    """Decide a common slot of some jobs; jobs that get less than their request are decided again."""
    entries = [run.entry() for run in runs]
    competing = [entry for entry in entries if entry is not None]
    there: dict[str, int] = {}
    hours = 1.0
    for entry in competing:
        for name, seen in zip(entry.markets, entry.live.seen, strict=True):
            free = seen.available[entry.live.slot] - promised.get((entry.live.now, name), 0)
            there[name] = max(0, min(free, there.get(name, free)))
            hours = seen.slot_hours
    later = _taken_later(competing, there)
    result = fan(
        decide_among,
        [
            {"entry": entry, "effort": effort, "taken": taken}
            for entry, taken in zip(competing, later, strict=True)
        ],
    )
    decided: list[SlotResult] = [decision for decision, _ in result]
    contenders = {i: contender for i, (_, contender) in enumerate(result) if contender is not None}
    shares = share_out(list(contenders.values()), there)
    again: dict[int, dict[str, Any]] = {}
    reasons = []
    for (i, wished), claim in zip(contenders.items(), shares.claims, strict=True):
        if claim != wished.wish:
            entry = competing[i]
            left = tuple(claim.spot if name == claim.market else 0 for name in entry.markets)
            again[i] = {"entry": entry, "effort": effort, "left": left, "taken": later[i]}
            reasons.append(
                _sharing_reason(wished, claim, there[wished.wish.market or ""], shares.prices, hours)
            )
    anew = fan(decide_one, list(again.values())) if again else []
    for i, decision, why in zip(again, anew, reasons, strict=True):
        if isinstance(decision, Decision):
            decision = replace(decision, reason=f"{decision.reason}; {why}")
        decided[i] = decision
    results = iter(decided)
    for run, candidate in zip(runs, entries, strict=True):
        run.add(None if candidate is None else next(results))


def _taken_later(entries: Sequence[Entry], there: Mapping[str, int]) -> list[tuple[int, ...] | None]:
    """Return the use of each job's markets by others in later slots; None for jobs that stay, and for a job alone."""
    if len(entries) < 2 or not any(entry.by_tables for entry in entries):
        return [None] * len(entries)
    later = taken_later([_need_or_empty(entry) for entry in entries], there)
    return [
        tuple(
            _taken_of_request(entry, m, taken[market], there[market])
            for m, market in enumerate(entry.markets)
        )
        if entry.by_tables
        else None
        for entry, taken in zip(entries, later, strict=True)
    ]


def _taken_of_request(entry: Entry, m: int, taken: int, there: int) -> int:
    """Return the instances of the job's own request that are missing in market ``m`` after others take ``taken`` of ``there``.

    A count that is read is shared as it is. Where it is assumed, the belief is about the request
    (M13.3), so others take part of it only where all requests exceed the assumed count.
    """
    seen = entry.live.seen[m]
    if seen.availability_observed:
        return taken
    return max(0, taken - max(0, there - entry.live.job.runs[m].n_max))


def _need_or_empty(entry: Entry) -> Need:
    """Return `need_of`, or an empty need if the job raises: its decision then reports the error."""
    try:
        return need_of(entry)
    except RAISED:
        return Need(job=entry.live.run.name, slack=0, slots=1, markets=())


def _sharing_reason(
    job: Contender, claim: Claim, count: int, prices: Mapping[str, float], hours: float
) -> str:
    """Return the reason why a job got less spot than its request."""
    market = job.wish.market or ""
    kept = claim.spot if claim.market == market else 0
    where = "here" if kept else f"in {market.partition('@')[0]}"
    text = f"gets {kept} of {count} spot instances {where}"
    price = prices.get(market, 0.0) / hours
    if price > 0.0:
        return f"{text}: competing jobs value the others above ${usd(price)} per instance-hour"
    return (
        f"{text}: competing jobs need the others more"
        if prices
        else f"{text}: jobs with less slack come first"
    )
