"""Jobs that compete for the spot of one slot, and their decisions (M3.7) (ours).

Every job is first decided as if it were alone. Where there is enough for all that is it. Else each says what it would be
worth with fewer spot instances (`Contender`), and `share_out` gives the counts to where they are worth most, at a price for each
market, or by slack if that is worth no less. Whoever gets less than it asked for is decided again by its own policy, on what
is left to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from optimization.job.definition import rates
from optimization.kernels.rules import spot_is_cheaper
from optimization.moving.definition import MarketsView, MovingHold
from optimization.moving.live import (
    LiveMovable,
    MovedDecision,
    capped_worth,
    decide_moving,
    decided_by_tables,
    seen_by_mover,
    slack_of,
)
from optimization.moving.tables import MovingTables
from optimization.policies.contract import Policy, forgetting_of
from optimization.policies.pace import slack_slots, slot_gain, work_left
from optimization.policies.stochastic import tables_in_force
from optimization.replay.decision import (
    RAISED,
    Decision,
    Effort,
    Fan,
    LiveJob,
    Undecided,
    decide,
    in_turn,
)
from optimization.replay.run import catch_up, checked
from optimization.window.plan import Allocation
from warehouse.amounts import usd
from warehouse.errors import PolicyError, why_raised

# ---
# Who may have how many: a pure function of what each job makes of fewer.

#: Share of all that is at stake by which a way to share must be worth more to be taken before another.
ROUNDING = 1e-9
#: Times at most that every job of several markets is asked again which of them is best for all.
ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Claim:
    """``spot`` instances of ``market`` in the slot (None: no spot anywhere), and what the job is worth with them, USD."""

    market: str | None
    spot: int
    value_usd: float


NO_SPOT = Claim(None, 0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A job in a slot: ``wish`` is what its policy asks for, ``claims`` all that it could make do with, ``wish`` among them.

    The first claim is no spot. ``slack`` is in slots.
    """

    job: str
    slack: int
    wish: Claim
    claims: tuple[Claim, ...]

    @property
    def markets(self) -> list[str]:
        """Where it could use spot, by name."""
        return sorted({one.market for one in self.claims if one.market is not None})


def contender(job: str, slack: int, wish: tuple[str | None, int], found: Sequence[Claim]) -> Contender:
    """A job from what its policy makes of caps on its spot: ``found`` in any order, no spot among them.

    Nothing is worth more than the wish, and having more than one uses no less than having less: a claim that is worth no more
    than a smaller one of the same market is left out.
    """
    top = max(one.value_usd for one in found)
    market, spot = wish
    if market is None or not spot:
        own = Claim(None, 0, top)
        return Contender(job=job, slack=slack, wish=own, claims=(own,))
    own = Claim(market, spot, top)
    nothing = max(one.value_usd for one in found if not one.spot)
    claims = [Claim(None, 0, nothing)]
    for name in sorted({one.market for one in found if one.market is not None}):
        best = nothing
        for one in sorted((one for one in found if one.market == name), key=lambda one: one.spot):
            if one.value_usd > best and not (name == market and one.spot >= spot):
                best = one.value_usd
                claims.append(one)
    return Contender(job=job, slack=slack, wish=own, claims=(*claims, own))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What each contender may have, in their order.

    ``prices`` in USD per instance of the slot, by market, are what one more instance would be worth, where counts went by price;
    where they went by slack there is none.
    """

    claims: tuple[Claim, ...]
    prices: Mapping[str, float]


def short_of(wishes: Sequence[tuple[str | None, int]], there: Mapping[str, int]) -> set[str]:
    """The markets of which more spot is asked for than there is."""
    asked: dict[str, int] = {}
    for market, spot in wishes:
        if market is not None and spot:
            asked[market] = asked.get(market, 0) + spot
    return {market for market, spot in asked.items() if spot > there[market]}


def share_out(contenders: Sequence[Contender], there: Mapping[str, int]) -> Shares:
    """Who may have how much of ``there``, the spot instances of each market; the order of ``contenders`` does not matter.

    Where there is enough everyone gets its wish. Else the sum of the jobs' values is never less than in the order of slack, and no
    job is left short of its wish where what it lacks is left over. Jobs that have no market in common, also by way of
    others, have no part in one another.
    """
    claims, prices = [one.wish for one in contenders], dict[str, float]()
    for group in connected([set(one.markets) for one in contenders]):
        own = sorted((contenders[j] for j in group), key=lambda one: (one.slack, one.job))
        if short_of([(one.wish.market, one.wish.spot) for one in own], there):
            shared, paid = _share_among(own, there)
            by_name = {one.job: claim for one, claim in zip(own, shared, strict=True)}
            for j in group:
                claims[j] = by_name[contenders[j].job]
            prices |= paid
    return Shares(claims=tuple(claims), prices=prices)


def connected(sets: Sequence[AbstractSet[Any]]) -> list[list[int]]:
    """The places of sets that have something in common, also by way of others; those of an empty one by themselves."""
    first: dict[Any, int] = {}
    group = list(range(len(sets)))

    def root(k: int) -> int:
        while group[k] != k:
            k = group[k]
        return k

    for k, own in enumerate(sets):
        for one in own:
            a, b = sorted((root(first.setdefault(one, k)), root(k)))
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
    worth, other = (sum(one.value_usd for one in claims) for claims in (by_price, by_slack))
    stake = sum(one.wish.value_usd - one.claims[0].value_usd for one in ordered)
    if worth > other + ROUNDING * stake:
        return by_price, prices
    return by_slack, {}


def in_order(contenders: Sequence[Contender], there: Mapping[str, int]) -> list[Claim]:
    """The best claim of each in turn on what those before it have left."""
    left = dict(there)
    return [_taken(one, left) for one in contenders]


def at_prices(
    contenders: Sequence[Contender], there: Mapping[str, int], begin: Sequence[Claim]
) -> tuple[list[Claim], dict[str, float]]:
    """The claims of most worth together, and the price of each market: what one more instance there would be worth, USD.

    It is exact for jobs that may use one market, by dynamic programming over its count. A job that may use several begins where
    ``begin`` has it and is then put where it adds most, until none is better off elsewhere. What is left over in the
    end goes in the order of ``contenders`` to those who can do more with it.
    """
    place = [_only_market(one, claim) for one, claim in zip(contenders, begin, strict=True)]
    movers = [j for j, one in enumerate(contenders) if len(one.markets) > 1]
    # No table reaches beyond what all of them together could take.
    wanted: Counter[str] = Counter()
    for one in contenders:
        for market in one.markets:
            wanted[market] += max(claim.spot for claim in one.claims if claim.market == market)
    room = {market: min(there[market], wanted[market]) for market in wanted}
    stake = sum(one.wish.value_usd - one.claims[0].value_usd for one in contenders)
    for _ in range(ROUNDS if movers else 0):
        before = list(place)
        for j in movers:
            place[j] = None
            gain = dict[str | None, float]({None: 0.0})
            for market in contenders[j].markets:
                others = _worths(
                    [one for one, at in zip(contenders, place, strict=True) if at == market],
                    market,
                    room[market],
                )[-1]
                gain[market] = float(_with(others, contenders[j], market)[-1] - others[-1])
            held = before[j]
            best = max(gain, key=lambda market: gain[market])
            place[j] = best if gain[best] > gain[held] + ROUNDING * stake else held
        if place == before:
            break
    taken, prices = [one.claims[0] for one in contenders], dict[str, float]()
    for market, count in sorted(room.items()):
        group = [j for j, at in enumerate(place) if at == market]
        own = [contenders[j] for j in group]
        if own:
            tables = _worths(own, market, count + 1)
            prices[market] = float(tables[-1][-1] - tables[-1][-2])
            for j, claim in zip(group, _traced(own, market, tables, count), strict=True):
                taken[j] = claim
    return _filled(contenders, taken, there), prices


def _only_market(one: Contender, claim: Claim) -> str | None:
    """Where a job begins: in the market of ``claim``; one that has no spot there in its only market, if it has one."""
    return one.markets[0] if len(one.markets) == 1 else claim.market


def _worths(own: Sequence[Contender], market: str, count: int) -> list[np.ndarray]:
    """The most that the first 0, 1, ... of ``own`` gain on 0..``count`` instances of a market, USD, each (count + 1,)."""
    tables = [np.zeros(count + 1)]
    for one in own:
        tables.append(_with(tables[-1], one, market))
    return tables


def _with(table: np.ndarray, one: Contender, market: str) -> np.ndarray:
    """The table with one job more."""
    best = table.copy()
    for claim in one.claims:
        if claim.market == market and claim.spot < len(table):
            gain = claim.value_usd - one.claims[0].value_usd
            best[claim.spot :] = np.maximum(best[claim.spot :], table[: len(table) - claim.spot] + gain)
    return best


def _traced(own: Sequence[Contender], market: str, tables: Sequence[np.ndarray], count: int) -> list[Claim]:
    """The claims that ``count`` instances are worth most by, job by job."""
    found: list[Claim] = []
    for one, table in zip(reversed(own), reversed(tables[:-1]), strict=True):
        fitting = [c for c in one.claims if c.market in (None, market) and c.spot <= count]
        best = max(fitting, key=lambda c: (table[count - c.spot] + c.value_usd, c == one.wish))
        found.append(best)
        count -= best.spot
    return found[::-1]


def _filled(contenders: Sequence[Contender], taken: Sequence[Claim], there: Mapping[str, int]) -> list[Claim]:
    """``taken`` with what is left over given to those who can do more with it, in their order, until nobody can."""
    left, found = dict(there), list(taken)
    for claim in found:
        if claim.market is not None:
            left[claim.market] -= claim.spot
    changed = True
    while changed:
        changed = False
        for j, one in enumerate(contenders):
            before = found[j]
            if before.market is not None:
                left[before.market] += before.spot
            found[j] = _taken(one, left, before)
            changed = changed or found[j] != before
    return found


def _taken(one: Contender, left: dict[str, int], before: Claim | None = None) -> Claim:
    """The claim of most worth that fits into ``left``, which it is taken from; of equal ones the wish, then ``before``."""
    fitting = [c for c in one.claims if c.market is None or c.spot <= left[c.market]]
    best = max(fitting, key=lambda c: (c.value_usd, c == one.wish, c == before))
    if best.market is not None:
        left[best.market] -= best.spot
    return best


# ---
# What a job would make of fewer spot instances, by its own policy, in USD.

#: Caps on the spot of one job that its policy is asked about at most; of more, about as many evenly spread ones.
MOST_CAPS = 24


def claims_of(live: LiveJob, policy: Policy[Any], market: str, decision: Decision) -> Contender:
    """A job that was decided alone: its policy is asked again with every cap below the spot it wants.

    What it then holds is worth what the tables of M4.6 say, whoever decides: those of the policy itself where it has them.
    """
    progress, views = live.standing()
    view = live.seen.view(live.job, progress, live.slot)
    slack, spot = slack_slots(view), decision.allocation.spot
    if not spot:
        return Contender(job=decision.job, slack=slack, wish=NO_SPOT, claims=(NO_SPOT,))
    state = catch_up(policy, live.job, views)
    tables = tables_in_force(view, forgetting_of(policy))
    found = []
    for cap in [*np.unique(np.linspace(0, spot - 1, min(spot, MOST_CAPS)).astype(int)).tolist(), spot]:
        held = decision.allocation
        if cap < spot:
            capped = view.left(cap)
            held = checked(policy.decide(state, capped)[0], capped, policy.name)
        rest = work_left(view) - slot_gain(view, held.total)
        found.append(Claim(market if held.spot else None, held.spot, tables.worth(view, held, rest)))
    return contender(decision.job, slack, (market, spot), found)


def claims_of_mover(
    names: Sequence[str], view: MarketsView, tables: MovingTables, decision: MovedDecision
) -> Contender:
    """A job that may move: what it is worth with every cap on the spot of each of its markets, called ``names``, by M11.6."""
    spot = decision.allocation.spot
    found = [Claim(None if m is None else names[m], held, usd) for m, held, usd in capped_worth(view, tables)]
    return contender(decision.job, slack_of(view), (names[decision.market] if spot else None, spot), found)


# ---
# What the others take later: what a job that may move reckons with, for it could wait for the best of its markets.


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a job needs in each of the ``slots`` that it has left: so many instances in any one of ``markets``.

    The cheapest for it is the first of them. ``slack`` is in slots.
    """

    job: str
    slack: int
    slots: int
    markets: tuple[tuple[str, int], ...]


def come_first(needs: Sequence[Need], there: Mapping[str, int], slots: int) -> dict[str, int]:
    """Instances of each market that jobs of ``needs`` come for in a slot, in the mean over the next ``slots``.

    Each comes to the cheapest of its markets, and for what those before it leave it lacking there to its next one. The order of
    ``needs`` does not matter: the least slack comes first.
    """
    come, left = dict.fromkeys(there, 0.0), {market: float(count) for market, count in there.items()}
    for one in sorted(needs, key=lambda one: (one.slack, one.job)):
        share = min(1.0, one.slots / slots)
        for market, spot in one.markets:
            wanted = share * spot
            got = min(wanted, left[market])
            come[market] += wanted
            left[market] -= got
            share -= got / spot
            if got == wanted:
                break
    return {market: round(spot) for market, spot in come.items()}


def taken_later(needs: Sequence[Need], there: Mapping[str, int]) -> list[dict[str, int]]:
    """Instances of each market that each job of ``needs`` leaves to the others in every later slot: to those with less slack."""
    return [
        come_first([one for one in needs if (one.slack, one.job) < (own.slack, own.job)], there, own.slots)
        for own in needs
    ]


# ---
# The decisions of jobs that compete, slot after slot.


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A job of one market at ascending slots that lack a decision, and who decides each of them.

    ``markets`` says whose count it is in each slot: jobs with the same name there share it.
    """

    slots: tuple[LiveJob, ...]
    policies: tuple[Policy[Any], ...]
    markets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingCourse:
    """A job that may move at ascending slots that lack a decision.

    ``keys`` names its markets in each of them, which may differ, and ``markets`` says whose counts they are.
    """

    slots: tuple[LiveMovable, ...]
    keys: tuple[tuple[str, ...], ...]
    markets: tuple[tuple[str, ...], ...]


#: What becomes of a job in a slot; None where it has finished its work, and where its place is not known.
Made = Decision | Undecided | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A job in one slot, knowing what was decided for it before: what `decide_one` takes.

    ``policy`` is None for a job that may move.
    """

    live: LiveJob | LiveMovable
    markets: tuple[str, ...]
    policy: Policy[Any] | None = None

    @property
    def seen(self) -> tuple[LiveJob, ...]:
        """The job as each of its markets sees it."""
        return (self.live,) if isinstance(self.live, LiveJob) else self.live.lives


def decide_one(
    standing: Standing,
    effort: Effort,
    *,
    left: tuple[int, ...] | None = None,
    taken: tuple[int, ...] | None = None,
) -> Decision | Undecided:
    """The decision of a job on what others leave to it in each of its markets (None: everything).

    ``taken`` is what they are expected to take in each later slot, for a job that may move.
    """
    live = standing.live
    try:
        if isinstance(live, LiveMovable):
            return decide_moving(live, effort, left=left, taken=taken)
        return decide(live, _policy(standing), effort, left=None if left is None else left[0])
    except RAISED as error:
        return _undecided(live, error)


def decide_among(
    standing: Standing, effort: Effort, *, taken: tuple[int, ...] | None = None
) -> tuple[Decision, Contender] | tuple[Undecided, None]:
    """The decision of a job that has the slot to itself, and what it would make of less; ``taken`` as in `decide_one`."""
    live = standing.live
    try:
        if isinstance(live, LiveMovable):
            view, tables = seen_by_mover(live, taken)
            moved = decided_by_tables(live, view, tables, effort)
            return moved, claims_of_mover(standing.markets, view, tables, moved)
        decision = decide(live, _policy(standing), effort)
        return decision, claims_of(live, _policy(standing), standing.markets[0], decision)
    except RAISED as error:
        return _undecided(live, error), None


def need_of(standing: Standing) -> Need:
    """What a job needs from the slot at hand on: the least instances of each market that do its work by d, or ``n_max``.

    Markets whose spot is no cheaper than on-demand are left out.
    """
    live = standing.live
    if isinstance(live, LiveMovable):
        runs, moving = live.job.runs, live.view(live.progress(), live.slot)
        slack, rest = slack_of(moving), moving.work_left
    else:
        runs, view = (live.job,), live.seen.view(live.job, live.progress(), live.slot)
        slack, rest = slack_slots(view), work_left(view)
    slots = runs[0].deadline_slots - live.slot
    found = []
    for market, own, run in zip(standing.markets, standing.seen, runs, strict=True):
        price = own.seen.price[own.slot]
        if spot_is_cheaper(price, own.seen.on_demand_usd):
            rate = rates(run.throughput, run.n_max)
            enough = np.flatnonzero(rate[run.n_min :] * slots * own.seen.slot_hours >= rest)
            n = run.n_min + int(enough[0]) if len(enough) else run.n_max
            found.append((price * run.n_max / float(rate[run.n_max]), market, n))
    return Need(
        job=runs[0].name,
        slack=slack,
        slots=slots,
        markets=tuple((market, n) for _, market, n in sorted(found)),
    )


def _policy(standing: Standing) -> Policy[Any]:
    if standing.policy is None:
        raise PolicyError("a job of one market without a policy", expected="who decides it")
    return standing.policy


def _undecided(live: LiveJob | LiveMovable, error: Exception) -> Undecided:
    job = live.job.job if isinstance(live, LiveMovable) else live.job
    return Undecided(job=job.name, slot=live.slot, why=why_raised(error))


class _Run:
    """A course as far as it has been decided."""

    def __init__(self, course: Course | MovingCourse) -> None:
        self.course = course
        self.made: list[Made] = []
        self._plain: dict[int, Allocation] = {}
        self._moved: dict[int, tuple[str | None, Allocation]] = {}

    @property
    def next_at(self) -> pd.Timestamp | None:
        """The next slot that lacks a decision, None after the last."""
        slots = self.course.slots
        return slots[len(self.made)].now if len(self.made) < len(slots) else None

    def standing(self) -> Standing | None:
        """The job in that slot; None where there is nothing to decide."""
        k, course = len(self.made), self.course
        if isinstance(course, Course):
            live = course.slots[k]
            at = replace(live, decided={**live.decided, **self._plain})
            asked = Standing(live=at, markets=(course.markets[k],), policy=course.policies[k])
            return None if at.is_finished else asked
        keys = course.keys[k]
        if any(key is not None and key not in keys for key, _ in self._moved.values()):
            return None  # where it is, is not known here
        fresh = {
            slot: MovingHold(None if key is None else keys.index(key), allocation)
            for slot, (key, allocation) in self._moved.items()
        }
        moving = course.slots[k]
        there = replace(moving, decided={**moving.decided, **fresh})
        return None if there.is_finished else Standing(live=there, markets=course.markets[k])

    def add(self, made: Made) -> None:
        """What became of the slot."""
        if isinstance(made, MovedDecision) and isinstance(self.course, MovingCourse):
            key = self.course.keys[len(self.made)][made.market] if made.allocation.total else None
            self._moved[made.slot] = (key, made.allocation)
        elif isinstance(made, Decision):
            self._plain[made.slot] = made.allocation
        self.made.append(made)


def decide_course(course: Course | MovingCourse, effort: Effort) -> list[Made]:
    """Decide the slots of a job alone in its markets one after the other, each knowing those before it."""
    run = _Run(course)
    for _ in course.slots:
        standing = run.standing()
        run.add(None if standing is None else decide_one(standing, effort))
    return run.made


#: Spot of a market in a slot that is promised by decisions that were issued before: the start of the slot, and the market.
Promised = Mapping[tuple[pd.Timestamp, str], int]


def decide_all(
    courses: Sequence[Course | MovingCourse],
    effort: Effort,
    *,
    promised: Promised | None = None,
    fan: Fan = in_turn,
) -> list[list[Made]]:
    """Decide every job's slots; those that share a market in a slot are never promised more spot of it than there is (M3.7).

    Jobs that never share one are decided each for itself, side by side. ``promised`` is taken already.
    """
    promised = promised or {}
    together = _sharing(courses, promised)
    alone = [k for k in range(len(courses)) if not any(k in group for group in together)]
    found: dict[int, list[Made]] = dict(
        zip(
            alone,
            fan(decide_course, [{"course": courses[k], "effort": effort} for k in alone]) if alone else [],
            strict=True,
        )
    )
    for group in together:
        runs = {k: _Run(courses[k]) for k in group}
        while True:
            times = [run.next_at for run in runs.values() if run.next_at is not None]
            if not times:
                break
            _decide_slot([run for run in runs.values() if run.next_at == min(times)], effort, promised, fan)
        found |= {k: run.made for k, run in runs.items()}
    return [found[k] for k in range(len(courses))]


def _markets_at(course: Course | MovingCourse) -> set[tuple[pd.Timestamp, str]]:
    named = [(one,) for one in course.markets] if isinstance(course, Course) else course.markets
    slots: Sequence[LiveJob | LiveMovable] = course.slots
    return {(live.now, name) for live, names in zip(slots, named, strict=True) for name in names}


def _sharing(courses: Sequence[Course | MovingCourse], promised: Promised) -> list[list[int]]:
    """The courses that share a market in some slot, or find some of it promised, directly or by way of others."""
    where = [_markets_at(course) for course in courses]
    return [
        group
        for group in connected(where)
        if len(group) > 1 or any(promised.get(one, 0) for one in where[group[0]])
    ]


def _decide_slot(runs: Sequence[_Run], effort: Effort, promised: Promised, fan: Fan) -> None:
    """Decide the next slot of some jobs, which is the same one, each once more where it gets less than it asked for."""
    asked = [(run, standing) for run in runs if (standing := run.standing()) is not None]
    there: dict[str, int] = {}
    hours = 1.0
    for _, standing in asked:
        for name, live in zip(standing.markets, standing.seen, strict=True):
            free = live.seen.available[live.slot] - promised.get((live.now, name), 0)
            there[name] = max(0, min(free, there.get(name, free)))
            hours = live.seen.slot_hours
    later = _taken_later([standing for _, standing in asked], there)
    made = fan(
        decide_among,
        [
            {"standing": standing, "effort": effort, "taken": taken}
            for (_, standing), taken in zip(asked, later, strict=True)
        ],
    )
    contenders = [found for _, found in made if found is not None]
    shares = share_out(contenders, there)
    given = iter(zip(contenders, shares.claims, strict=True))
    again: list[tuple[int, dict[str, Any], str]] = []
    for i, (_, own) in enumerate(made):
        if own is None:
            continue
        one, claim = next(given)
        if claim != one.wish:
            standing = asked[i][1]
            left = tuple(claim.spot if name == claim.market else 0 for name in standing.markets)
            count = there[one.wish.market or ""]
            why = _told(one, claim, count, shares.prices, hours)
            again.append((i, {"standing": standing, "effort": effort, "left": left, "taken": later[i]}, why))
    decided: dict[int, Made] = {i: decision for i, (decision, _) in enumerate(made)}
    for (i, _, why), decision in zip(
        again, fan(decide_one, [call for _, call, _ in again]) if again else [], strict=True
    ):
        if isinstance(decision, Decision):
            decision = replace(decision, reason=f"{decision.reason}; {why}")
        decided[i] = decision
    became = {id(run): decided[i] for i, (run, _) in enumerate(asked)}
    for run in runs:
        run.add(became.get(id(run)))


def _taken_later(standings: Sequence[Standing], there: Mapping[str, int]) -> list[tuple[int, ...] | None]:
    """What is taken later of the markets of each job that may move; None of a job of one market, and of one by itself."""
    if len(standings) < 2 or not any(isinstance(one.live, LiveMovable) for one in standings):
        return [None] * len(standings)
    later = taken_later([_needed(one) for one in standings], there)
    return [
        tuple(taken[market] for market in one.markets) if isinstance(one.live, LiveMovable) else None
        for one, taken in zip(standings, later, strict=True)
    ]


def _needed(standing: Standing) -> Need:
    """`need_of`; nothing where the job cannot be read: then it has no decision either, which says why."""
    try:
        return need_of(standing)
    except RAISED as error:
        return Need(job=_undecided(standing.live, error).job, slack=0, slots=1, markets=())


def _told(one: Contender, claim: Claim, count: int, prices: Mapping[str, float], hours: float) -> str:
    """Why a job got less spot than it asked for."""
    market = one.wish.market or ""
    kept = claim.spot if claim.market == market else 0
    where = "here" if kept else f"in {market.partition('@')[0]}"
    text = f"{kept} of {count} on spot {where}"
    price = prices.get(market, 0.0) / hours
    if price > 0.0:
        return f"{text}: others pay more than {usd(price)} USD an instance-hour"
    return f"{text}: others need more of it" if prices else f"{text}: jobs with less slack come first"
