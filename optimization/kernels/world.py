"""Compiled steps of the world of M12: readings, grants, losses, boots, restarts, checkpoints, moves and money, in seconds.

State of a run in three arrays: ``amounts`` (see `WORK` and below), ``counts`` (see `READING` and
below) and ``batches``, shape (2, room, 3): instances granted together, spot in row 0 and on-demand
in row 1, oldest first, each with its size, the time of its grant and the time it is up. A batch
that has joined the group has a negative size. All instances are in one market, ``counts[HERE]``.

Kernels take the arrays of `State` and of `Markets` as plain tuples, because numba unpacks a named
tuple slowly at the call from Python: 3.5 in place of 0.8 microseconds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from slackwater.optimization.kernels.compiling import kernel, part
from slackwater.optimization.kernels.rules import move_usd

#: Indices of ``amounts``: the time, work done, work saved by the last checkpoint, working seconds
#: since then, the time at which the group works again, the time it last formed, USD paid and
#: instance-seconds by kind, work lost, the time of the finish (infinity: not finished), the spot
#: price, the time at which the checkpoint is in its place, and USD paid for moves.
NOW, WORK, SAVED, SINCE, WORKS_AT, FORMED_AT = 0, 1, 2, 3, 4, 5
PAID, SECONDS = 6, 8
LOST_WORK, FINISH, PRICE = 10, 11, 12
ARRIVES, PAID_MOVES = 13, 14
AMOUNTS = 15
#: Indices of ``counts``: the next reading, batches by kind, target by kind, available spot
#: instances, instances lost, how often the group formed, the market of the instances, the market
#: of the checkpoint (-1: none yet), and moves.
READING, BATCHES, TARGET = 0, 1, 3
AVAILABLE, LOST, FORMED = 5, 6, 7
HERE, PLACE, MOVES = 8, 9, 10
COUNTS = 11
SPOT, ON_DEMAND = 0, 1
#: Columns of ``batches``.
SIZE, GRANTED, UP = 0, 1, 2
#: Rows of ``readings``.
TIME, COUNT, USD = 0, 1, 2
#: Indices of the ``terms`` of a market: seconds to boot, between checkpoints (0: every moment is one)
#: and until on-demand is granted; whether a lost instance saves first; the on-demand price in USD per
#: hour; the workload; whether on-demand is sold; the highest rate with the least number of instances
#: that has it; n_max; the seconds of a transfer to another market; and those of a slot of
#: `Markets.moves`.
BOOT, CHECKPOINT, WAIT, NOTICE, ON_DEMAND_USD, WORKLOAD = 0, 1, 2, 3, 4, 5
SOLD, FASTEST_RATE, FASTEST, N_MAX, TRANSFER, SLOT = 6, 7, 8, 9, 10, 11
HOUR = 3600.0
#: Seconds by which a checkpoint may be early: sums of seconds carry rounding errors.
MOMENT = 1e-9


class State(NamedTuple):
    """State of a run, changed in place."""

    amounts: np.ndarray
    counts: np.ndarray
    batches: np.ndarray


class Markets(NamedTuple):
    """Markets of a run, at least one.

    ``readings`` (3, R) has rows for time, available instances and price of all markets, those of
    market m in columns ``first[m]`` to ``first[m + 1]``, ascending. ``rates`` (M, n) are H(0..n_max)
    in work units per hour, 0 below n_min and beyond n_max. ``terms`` (M, terms) are indexed by
    `BOOT` and below. ``restarts`` (M, n) are the seconds until a group of n that are up works,
    ``moves`` the costs of moves as of `move_usd`.
    """

    readings: np.ndarray
    first: np.ndarray
    rates: np.ndarray
    terms: np.ndarray
    restarts: np.ndarray
    moves: np.ndarray


#: The arrays of `State` and of `Markets`, as kernels take them.
StateArrays = tuple[np.ndarray, np.ndarray, np.ndarray]
MarketArrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
#: A target: market, on-demand instances, spot instances.
Target = tuple[int, int, int]


@part
def requested_instances(state: State, kind: int) -> int:
    """Return the instances of a kind that are held or requested and not yet granted."""
    total = 0.0
    for b in range(state.counts[BATCHES + kind]):
        total += abs(state.batches[kind, b, SIZE])
    return int(total)


@part
def members(state: State) -> int:
    """Return the instances of the group."""
    total = 0.0
    for kind in range(2):
        for b in range(state.counts[BATCHES + kind]):
            if state.batches[kind, b, SIZE] < 0.0:
                total -= state.batches[kind, b, SIZE]
    return int(total)


@part
def drop(state: State, kind: int, over: int) -> bool:
    """Remove the newest ``over`` instances of a kind; return whether the group lost a member."""
    counts, batches = state.counts, state.batches
    left, joined = float(over), False
    while left > 0.0:
        b = counts[BATCHES + kind] - 1
        size = batches[kind, b, SIZE]
        taken = min(left, abs(size))
        joined = joined or size < 0.0
        left -= taken
        if taken == abs(size):
            counts[BATCHES + kind] -= 1
        else:
            batches[kind, b, SIZE] = size + taken if size < 0.0 else size - taken
    return joined


@part
def grant(state: State, markets: Markets, kind: int) -> None:
    """Request the instances of a kind that the target lacks; spot up to the available instances."""
    counts, batches = state.counts, state.batches
    wanted = counts[TARGET + kind]
    if kind == SPOT:
        wanted = min(wanted, counts[AVAILABLE])
    lacking = wanted - requested_instances(state, kind)
    if lacking <= 0:
        return
    b, terms = counts[BATCHES + kind], markets.terms[counts[HERE]]
    granted = state.amounts[NOW] + (terms[WAIT] if kind == ON_DEMAND else 0.0)
    batches[kind, b, SIZE] = lacking
    batches[kind, b, GRANTED] = granted
    batches[kind, b, UP] = granted + terms[BOOT]
    counts[BATCHES + kind] += 1


@part
def join(state: State) -> bool:
    """Let the instances that are up join the group; return whether any joined."""
    batches, joined = state.batches, False
    for kind in range(2):
        for b in range(state.counts[BATCHES + kind]):
            if batches[kind, b, SIZE] > 0.0 and batches[kind, b, UP] <= state.amounts[NOW]:
                batches[kind, b, SIZE] = -batches[kind, b, SIZE]
                joined = True
    return joined


@part
def move_usd_now(state: State, markets: Markets, market: int) -> float:
    """Return the cost in USD of a move of the checkpoint to a market that happens now."""
    slot = int(state.amounts[NOW] / markets.terms[market, SLOT] + MOMENT)
    return move_usd(markets.moves, slot, state.counts[PLACE], market)


@part
def form(state: State, markets: Markets, lost: bool) -> None:
    """Form the group anew: from the last checkpoint after a loss, else with the work saved (M12.4).

    The first group in another market than that of the checkpoint moves it there (M12.8).
    """
    amounts, counts = state.amounts, state.counts
    here, place = counts[HERE], counts[PLACE]
    if lost and markets.terms[here, NOTICE] == 0.0:
        amounts[LOST_WORK] += amounts[WORK] - amounts[SAVED]
        amounts[WORK] = amounts[SAVED]
    else:
        amounts[SAVED] = amounts[WORK]
    amounts[SINCE] = 0.0
    before = amounts[FORMED_AT] == amounts[NOW]
    group = members(state)
    exists = group > 0
    if exists and not before:
        counts[FORMED] += 1
    elif before and not exists:
        counts[FORMED] -= 1
    if exists and place != here:
        if place >= 0:
            amounts[PAID_MOVES] += move_usd_now(state, markets, here)
            amounts[ARRIVES] = max(amounts[NOW], amounts[ARRIVES]) + markets.terms[here, TRANSFER]
            counts[MOVES] += 1
        counts[PLACE] = here
    amounts[FORMED_AT] = amounts[NOW] if exists else -1.0
    amounts[WORKS_AT] = (
        max(amounts[NOW], amounts[ARRIVES])
        + markets.restarts[here, min(group, markets.restarts.shape[1] - 1)]
    )


@part
def apply_reading(state: State, markets: Markets) -> None:
    """Apply the next reading: losses, newest instances first, then grants."""
    counts = state.counts
    counts[AVAILABLE] = int(markets.readings[COUNT, counts[READING]])
    state.amounts[PRICE] = markets.readings[USD, counts[READING]]
    counts[READING] += 1
    over = requested_instances(state, SPOT) - counts[AVAILABLE]
    if over > 0:
        counts[LOST] += over
        if drop(state, SPOT, over):
            form(state, markets, True)
    grant(state, markets, SPOT)


@part
def next_event(state: State, markets: Markets, until: float) -> float:
    """Return the time of the next reading, grant or join, at most ``until``."""
    counts, batches = state.counts, state.batches
    then = until
    if counts[READING] < markets.first[counts[HERE] + 1]:
        then = min(then, markets.readings[TIME, counts[READING]])
    for kind in range(2):
        for b in range(counts[BATCHES + kind]):
            if batches[kind, b, SIZE] > 0.0:
                if batches[kind, b, GRANTED] > state.amounts[NOW]:
                    then = min(then, batches[kind, b, GRANTED])
                then = min(then, batches[kind, b, UP])
    return then


@part
def work_until(state: State, markets: Markets, then: float) -> None:
    """Work and pay up to ``then``, or up to the finish if that is earlier."""
    amounts, counts, batches = state.amounts, state.counts, state.batches
    rates, terms = markets.rates[counts[HERE]], markets.terms[counts[HERE]]
    rate = rates[min(members(state), len(rates) - 1)] / HOUR
    begin = max(amounts[NOW], amounts[WORKS_AT])
    if rate > 0.0 and then > begin:
        rest = terms[WORKLOAD] - amounts[WORK]
        if rate * (then - begin) >= rest:
            then = begin + max(0.0, rest) / rate
            amounts[FINISH] = then
        length = then - begin
        amounts[WORK] += rate * length
        if terms[CHECKPOINT] == 0.0:
            amounts[SAVED] = amounts[WORK]
        else:
            since = amounts[SINCE] + length
            passed = math.floor(since / terms[CHECKPOINT] + MOMENT)
            amounts[SINCE] = max(0.0, since - passed * terms[CHECKPOINT])
            if passed > 0:
                amounts[SAVED] = amounts[WORK] - rate * amounts[SINCE]
    span = then - amounts[NOW]
    for kind in range(2):
        held = 0.0
        for b in range(counts[BATCHES + kind]):
            if batches[kind, b, GRANTED] <= amounts[NOW]:
                held += abs(batches[kind, b, SIZE])
        if held > 0.0:
            usd = amounts[PRICE] if kind == SPOT else terms[ON_DEMAND_USD]
            amounts[PAID + kind] += held * span * usd / HOUR
            amounts[SECONDS + kind] += held * span
    amounts[NOW] = then


@part
def pass_time(state: State, markets: Markets, until: float) -> None:
    """Let time pass up to ``until``, with the readings and joins of that second, or up to the finish."""
    amounts, counts = state.amounts, state.counts
    while True:
        work_until(state, markets, next_event(state, markets, until))
        if amounts[FINISH] < math.inf:
            return
        end = markets.first[counts[HERE] + 1]
        while counts[READING] < end and markets.readings[TIME, counts[READING]] <= amounts[NOW]:
            apply_reading(state, markets)
        if join(state):
            form(state, markets, False)
        if amounts[NOW] >= until:
            return


@part
def leave(state: State, markets: Markets, market: int) -> None:
    """End all instances and go to another market, as of its newest reading."""
    amounts, counts = state.amounts, state.counts
    changed = False
    for kind in range(2):
        changed = drop(state, kind, requested_instances(state, kind)) or changed
    if changed:
        form(state, markets, False)
    counts[HERE] = market
    r, end = markets.first[market], markets.first[market + 1]
    while r < end and markets.readings[TIME, r] <= amounts[NOW]:
        r += 1
    counts[READING] = r
    seen = r > markets.first[market]
    counts[AVAILABLE] = int(markets.readings[COUNT, r - 1]) if seen else 0
    amounts[PRICE] = markets.readings[USD, r - 1] if seen else 0.0


@part
def change_target(state: State, markets: Markets, target: Target) -> None:
    """Change the target: end the newest instances above it, and request those that it lacks.

    A target of no instances stays in the present market.
    """
    market, on_demand, spot = target
    counts, changed = state.counts, False
    if market != counts[HERE] and on_demand + spot > 0:
        leave(state, markets, market)
    counts[TARGET + ON_DEMAND] = on_demand
    counts[TARGET + SPOT] = spot
    for kind in range(2):
        over = requested_instances(state, kind) - counts[TARGET + kind]
        if over > 0:
            changed = drop(state, kind, over) or changed
    grant(state, markets, ON_DEMAND)
    grant(state, markets, SPOT)
    changed = join(state) or changed
    if changed:
        form(state, markets, False)


# ---
# The exact guard (M12.7).


@part
def on_demand_ready(state: State, terms: np.ndarray, market: int, wanted: int) -> tuple[float, bool]:
    """Return when ``wanted`` on-demand instances of a market are up, if requested now, and whether that changes the group."""
    counts, batches, now = state.counts, state.batches, state.amounts[NOW]
    if market != counts[HERE]:
        return now + terms[WAIT] + terms[BOOT], True
    ready, left, changed = now, wanted, False
    for b in range(counts[BATCHES + ON_DEMAND]):
        size = batches[ON_DEMAND, b, SIZE]
        taken = min(left, int(abs(size)))
        left -= taken
        if size > 0.0 and taken > 0:
            ready, changed = max(ready, batches[ON_DEMAND, b, UP]), True
        elif size < 0.0 and taken < -size:
            changed = True  # members end
    if left > 0:
        ready, changed = max(ready, now + terms[WAIT] + terms[BOOT]), True
    for b in range(counts[BATCHES + SPOT]):
        changed = changed or batches[SPOT, b, SIZE] < 0.0  # spot members end
    return ready, changed


@part
def arrival(state: State, markets: Markets, market: int, formed: float) -> float:
    """Return when the checkpoint is in a market in which the group forms at the latest at ``formed``."""
    place, arrives = state.counts[PLACE], state.amounts[ARRIVES]
    if place < 0 or place == market:
        return float(arrives)
    return float(max(formed, arrives) + markets.terms[market, TRANSFER])


@part
def finish_anew(markets: Markets, place: int, arrives: float, requested_at: float, rest: float) -> float:
    """Return the earliest finish of ``rest`` on on-demand that is requested at ``requested_at``, in any market.

    The checkpoint is in ``place`` from ``arrives`` on. Infinity where nothing is sold on demand.
    """
    best = math.inf
    for m in range(len(markets.terms)):
        terms = markets.terms[m]
        if terms[SOLD] == 0.0:
            continue
        ready = max(requested_at + terms[WAIT] + terms[BOOT], arrives)
        if place >= 0 and place != m:
            ready += terms[TRANSFER]
        restart = markets.restarts[m, int(terms[FASTEST])]
        best = min(best, ready + restart + rest / terms[FASTEST_RATE] * HOUR)
    return best


@part
def ends_members(state: State, on_demand: int, spot: int) -> bool:
    """Return whether a target in the present market ends instances of the group, which saves its work (M12.4)."""
    for kind in range(2):
        up = 0.0
        for b in range(state.counts[BATCHES + kind]):
            up += max(0.0, -state.batches[kind, b, SIZE])
        if up > (on_demand if kind == ON_DEMAND else spot):
            return True
    return False


@part
def is_safe(state: State, markets: Markets, target: Target, next_at: float, deadline: float) -> bool:
    """Return whether a target held until ``next_at`` leaves the deadline in reach, whatever happens to spot.

    With spot in the target no work beyond the saved work is relied on, as a loss may come in any
    second, that of the next decision included, and restarts the group. A target that ends instances
    of the group saves first.
    """
    market, on_demand, spot = target
    amounts, place = state.amounts, state.counts[PLACE]
    terms, rates = markets.terms[market], markets.rates[market]
    rest = terms[WORKLOAD] - amounts[WORK]
    if on_demand + spot == 0:
        return bool(finish_anew(markets, place, amounts[ARRIVES], next_at, rest) <= deadline)
    rate = rates[on_demand] if terms[SOLD] > 0.0 else 0.0
    ready, changed = on_demand_ready(state, terms, market, on_demand)
    there = arrival(state, markets, market, ready)
    if spot > 0:
        stays_here = market == state.counts[HERE]
        if terms[NOTICE] == 0.0 and stays_here and not ends_members(state, on_demand, spot):
            rest = terms[WORKLOAD] - amounts[SAVED]
        if rate > 0.0:
            stays = max(next_at, ready, there) + markets.restarts[market, on_demand]
            if stays + rest / rate * HOUR <= deadline:
                return True
        there = arrival(state, markets, market, next_at)  # the group may form there until then, or not
        unmoved = place == market or (
            finish_anew(markets, place, amounts[ARRIVES], next_at, rest) <= deadline
        )
        moved = finish_anew(markets, market, there, next_at, rest) <= deadline
        return bool(unmoved and moved)
    unmoved = True
    if rate > 0.0:
        works_at = max(amounts[NOW], amounts[WORKS_AT])
        if changed:
            works_at = max(ready, there) + markets.restarts[market, on_demand]
        finish = works_at + rest / rate * HOUR
        if finish <= deadline or finish <= next_at:
            return bool(finish <= deadline)
        rest -= rate * max(0.0, next_at - works_at) / HOUR
    if place != market and ready > next_at:
        unmoved = finish_anew(markets, place, amounts[ARRIVES], next_at, rest) <= deadline
    moved = finish_anew(markets, market, there, next_at, rest) <= deadline
    return bool(unmoved and moved)


@part
def cheapest_safe(state: State, markets: Markets, next_at: float, deadline: float) -> tuple[int, int]:
    """Return the safe on-demand target, as market and size, that finishes the rest at the least cost, moves included.

    Ties go to the market of the checkpoint. The size is 0 if none is safe.
    """
    best, market, size = math.inf, 0, 0
    count, place = len(markets.terms), state.counts[PLACE]
    for i in range(count):
        m = i if place < 0 else (place + i) % count
        terms, rates = markets.terms[m], markets.rates[m]
        if terms[SOLD] == 0.0:
            continue
        rest = (terms[WORKLOAD] - state.amounts[WORK]) * terms[ON_DEMAND_USD]
        moved_usd = move_usd_now(state, markets, m)
        for o in range(1, len(rates)):
            usd = moved_usd + rest * o / rates[o] if rates[o] > 0.0 else math.inf
            if usd < best and is_safe(state, markets, (m, o, 0), next_at, deadline):
                best, market, size = usd, m, o
    return market, size


@part
def fastest_finish(state: State, markets: Markets) -> tuple[int, int]:
    """Return the on-demand target, as market and size, that finishes first; size 0 where nothing is sold."""
    best, market, size = math.inf, 0, 0
    for m in range(len(markets.terms)):
        terms = markets.terms[m]
        if terms[SOLD] == 0.0:
            continue
        n = int(terms[FASTEST])
        ready, changed = on_demand_ready(state, terms, m, n)
        works_at = max(state.amounts[NOW], state.amounts[WORKS_AT])
        if changed:
            works_at = max(ready, arrival(state, markets, m, ready)) + markets.restarts[m, n]
        finish = works_at + (terms[WORKLOAD] - state.amounts[WORK]) / terms[FASTEST_RATE] * HOUR
        if finish < best:
            best, market, size = finish, m, n
    return market, size


@part
def safe_target(state: State, markets: Markets, wish: Target, next_at: float, deadline: float) -> Target:
    """Return the wished target if it is safe, else a safe one.

    In the wished market that is the target with the least more on-demand, with spot before without;
    failing that the target with less, a start that saves the restart of a larger group. If no
    target there is safe, or the wish is to run nothing and there are several markets, the cheapest
    in any market; if none is, the fastest.
    """
    market, on_demand, spot = wish
    own, terms = markets.rates[market], markets.terms[market]
    n_max = int(terms[N_MAX])
    works = on_demand + spot == 0 or own[on_demand + spot] > 0.0
    if works and is_safe(state, markets, wish, next_at, deadline):
        return wish
    if terms[SOLD] > 0.0 and (on_demand + spot > 0 or len(markets.terms) == 1):
        for o in range(on_demand, n_max + 1):
            for s in (min(spot, n_max - o), 0):
                works = o + s > 0 and own[o + s] > 0.0
                if works and is_safe(state, markets, (market, o, s), next_at, deadline):
                    return market, o, s
        for o in range(on_demand - 1, 0, -1):
            if own[o] > 0.0 and is_safe(state, markets, (market, o, 0), next_at, deadline):
                return market, o, 0
    m, o = cheapest_safe(state, markets, next_at, deadline)
    if o == 0:
        m, o = fastest_finish(state, markets)
    return wish if o == 0 else (m, o, 0)


# ---
# Entry point of replays; others are in `kernels.paths`.


@kernel
def follow(
    run: StateArrays, markets: MarketArrays, wish: Target, until: float, deadline: float
) -> tuple[Target, tuple[int, int, float, float, float]]:
    """Aim at the guarded wish and let time pass to the next decision at ``until``.

    Return the target and, at ``until``, the instances that are held or requested, the available
    instances, the price, the work done and the USD paid. An infinite ``deadline`` is not guarded;
    without a safe target the wish stays.
    """
    state, places, target = State(*run), Markets(*markets), wish
    if deadline < math.inf:
        safe = safe_target(state, places, wish, until, deadline)
        if is_safe(state, places, safe, until, deadline):
            target = safe
    change_target(state, places, target)
    pass_time(state, places, until)
    amounts = state.amounts
    held = requested_instances(state, SPOT) + requested_instances(state, ON_DEMAND)
    paid = amounts[PAID + SPOT] + amounts[PAID + ON_DEMAND] + amounts[PAID_MOVES]
    return target, (held, state.counts[AVAILABLE], amounts[PRICE], amounts[WORK], paid)
