"""Compiled kernels for a multi-market job: its best ending, and hindsight on known prices and counts (M2.6, M11.7) (ours).

Arrays with a first axis of markets are padded to the largest market. A market index equal to the
number of markets means that the job has no market yet.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slackwater.optimization.kernels.arrays import sort_order
from slackwater.optimization.kernels.compiling import kernel, part
from slackwater.optimization.kernels.rules import (
    Restart,
    Value,
    after_growing,
    after_shrinking,
    ending,
    move_usd,
    slot_cost,
    spot_held,
    value_at,
)

#: USD by which a trajectory must be cheaper than another that does as much work, to be stored too.
CHEAPER = 1e-9


class Ground(NamedTuple):
    """The markets of a job in the form that kernels read; money in USD per slot, work in work units.

    ``sizes`` (M, J) ascend from 0 in each market, where the first ``held`` (M,) are valid; ``gain``
    (M, J) is their work in a slot. ``on_demand`` (M,) are the on-demand prices. ``up``, ``down`` and
    ``moved`` (M, n_max + 1) are the efficiencies after a change to n instances (M2.4) and after a
    move from another market (M11.2). ``moves`` (S, M + 1, M) are the costs as of `move_usd`.
    """

    sizes: np.ndarray
    held: np.ndarray
    gain: np.ndarray
    on_demand: np.ndarray
    up: np.ndarray
    down: np.ndarray
    moved: np.ndarray
    moves: np.ndarray
    value: Value


@part
def arrival(ground: Ground, place: int, m: int) -> np.ndarray:
    """Return mu of the first slot in market ``m`` of a job from another market, or without one, by size (M11.2)."""
    shares: np.ndarray = ground.moved[m] if place < ground.on_demand.size else ground.up[m]
    return shares


@kernel
def ending_at(ground: Ground, place: int, before: int, slot: int, rest: float) -> tuple[float, int, int, int]:
    """Return the best on-demand ending from market ``place``, with at most one move (M2.6, M11.2).

    The result is (value minus costs in USD, market, index of the size, slots).
    """
    best, market, size, slots = 0.0, place, 0, 0
    for i in range(ground.on_demand.size):
        # The present market first, so that ties go to the ending without a move.
        m = i if place == ground.on_demand.size else (place if i == 0 else (i - 1 if i <= place else i))
        moved = m != place
        up = arrival(ground, place, m) if moved else ground.up[m]
        end = ending(
            ground.sizes[m, : ground.held[m]],
            ground.gain[m],
            Restart(up, ground.down[m]),
            ground.value,
            ground.on_demand[m],
            slot,
            rest,
            0 if moved else before,
        )
        usd = end.usd - move_usd(ground.moves, slot, place, m)
        if (end.size > 0 or rest <= 0.0) and usd > best:
            best, market, size, slots = usd, m, end.size, end.slots
    return best, market, size, slots


# ---
# Hindsight over markets: all undominated trajectories, slot by slot (M11.7). A trajectory is
# dominated if another in the same market with the same number of instances has done as much work at
# a lower cost.


#: Columns of the trajectories: work done and USD paid; predecessor, market, and index of the size.
DONE, PAID = 0, 1
CAME, PLACE, SIZE = 0, 1, 2


@part
def _roomier(table: np.ndarray, least: int) -> np.ndarray:
    """Return a copy of ``table`` with at least ``least`` rows."""
    more = np.zeros((max(least, 2 * table.shape[0]), table.shape[1]), table.dtype)
    # Element by element, here and in the other kernels: assigning an array to a slice makes numba
    # compile the error message for unequal shapes, which takes seconds.
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            more[i, j] = table[i, j]
    return more


@part
def _union(states: np.ndarray, one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Merge the ids ``one`` and ``two``: most work first, each cheaper than those before it."""
    out = np.empty(one.size + two.size, np.int64)
    a, b, k, cheapest = 0, 0, 0, np.inf
    while a < one.size or b < two.size:
        if b == two.size or (a < one.size and states[one[a], DONE] >= states[two[b], DONE]):
            i, paid = one[a], states[one[a], PAID]
            a += 1
        else:
            i, paid = two[b], states[two[b], PAID]
            b += 1
        if paid < cheapest - CHEAPER:
            out[k], cheapest, k = i, paid, k + 1
    return out[:k].copy()


@part
def _least_cost(
    ground: Ground, price: np.ndarray, available: np.ndarray, slots: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each slot t, unit costs, ascending, and the work at each, as a lower bound on the cost of work from t on.

    Both arrays have shape (T + 1, T + 1). In every slot the bound allows the work of the best size
    of any market at the lowest unit cost of any market; after the deadline it allows unlimited work
    at the lowest on-demand unit cost.
    """
    markets = ground.on_demand.size
    unit, most = np.empty(slots), np.empty(slots)
    late = np.inf
    for m in range(markets):
        for j in range(1, ground.held[m]):
            late = min(late, ground.sizes[m, j] * ground.on_demand[m] / ground.gain[m, j])
    for t in range(slots):
        unit[t], most[t] = np.inf, 0.0
        for m in range(markets):
            for j in range(1, ground.held[m]):
                n = ground.sizes[m, j]
                spot = spot_held(n, available[m, t], price[m, t], ground.on_demand[m])
                cost = slot_cost(n, spot, price[m, t], ground.on_demand[m])
                unit[t] = min(unit[t], cost / ground.gain[m, j])
                most[t] = max(most[t], ground.gain[m, j])
    units, works = np.empty((slots + 1, slots + 1)), np.empty((slots + 1, slots + 1))
    order = sort_order(unit)
    for t in range(slots + 1):
        i = 0
        for place in order:
            if place >= t:
                units[t, i], works[t, i] = unit[place], most[place]
                i += 1
        units[t, slots - t :], works[t, slots - t :] = late, np.inf
    return units, works


@part
def _at_least(units: np.ndarray, works: np.ndarray, rest: float) -> float:
    """Return a lower bound on the cost in USD of ``rest`` work units."""
    usd, i = 0.0, 0
    while rest > 0.0:
        part = min(rest, works[i])
        usd += part * units[i]
        rest -= part
        i += 1
    return usd


@kernel
def hindsight_ways(
    ground: Ground,
    price: np.ndarray,
    available: np.ndarray,
    need: float,
    start: tuple[int, int],
    known: float,
    beam: int,
) -> tuple[float, bool, np.ndarray, np.ndarray, int]:
    """Return the best utility over all decisions of slots 0..T-1, for arrays (M, T), and the ending after them.

    ``need`` is the work at which the job is finished; ``start`` is (market, instances).
    Trajectories that cannot exceed the utility ``known`` are dropped; with ``beam`` > 0 only so
    many are stored per state. Returns (utility, whether the search is exact, markets and sizes (T,)
    of the best trajectory, its slots). If no trajectory is better than ``known``, the utility is
    ``known`` and the slots are -1.
    """
    markets, slots = price.shape
    nowhere, most = markets, ground.sizes.shape[1]
    units, works = _least_cost(ground, price, available, slots)
    states, trail = np.zeros((1024, 2)), np.zeros((1024, 3), np.int64)
    states[0, DONE], states[0, PAID], trail[0, CAME], trail[0, PLACE] = 0.0, 0.0, -1, start[0]
    held0 = 0
    if start[0] < markets:
        for j in range(ground.held[start[0]]):
            if ground.sizes[start[0], j] <= start[1]:
                held0 = j
    trail[0, SIZE] = held0
    used = 1
    nothing = np.empty(0, np.int64)
    now = [nothing for _ in range((markets + 1) * most)]
    now[start[0] * most + held0] = np.zeros(1, np.int64)
    best, last, whole = known, -1, True
    for t in range(slots):
        # Trajectories of each market, merged over the numbers of instances.
        of_place = [nothing for _ in range(markets + 1)]
        for p in range(markets + 1):
            for j in range(most):
                if now[p * most + j].size:
                    of_place[p] = _union(states, of_place[p], now[p * most + j])
        then = [nothing for _ in range((markets + 1) * most)]
        worth = value_at(ground.value, t + 1)
        for m in range(markets + 1):
            if m == nowhere:
                if of_place[nowhere].size:
                    if used == states.shape[0]:
                        states = _roomier(states, used + 1)
                        trail = _roomier(trail, used + 1)
                    states[used, DONE], states[used, PAID], trail[used, CAME] = 0.0, 0.0, of_place[nowhere][0]
                    trail[used, PLACE], trail[used, SIZE] = nowhere, 0
                    then[nowhere * most] = np.full(1, used)
                    used += 1
                continue
            count = ground.held[m]
            smaller, larger = [nothing for _ in range(count)], [nothing for _ in range(count)]
            for j in range(1, count):
                smaller[j] = _union(states, smaller[j - 1], now[m * most + j - 1])
            for j in range(count - 2, -1, -1):
                larger[j] = _union(states, larger[j + 1], now[m * most + j + 1])
            # Arrivals from each other market, at the price of moving from there.
            comes = [of_place[p] for p in range(markets + 1) if p != m and of_place[p].size]
            froms = [p for p in range(markets + 1) if p != m and of_place[p].size]
            restart = Restart(ground.up[m], ground.down[m])
            for j in range(count):
                n = ground.sizes[m, j]
                spot = spot_held(n, available[m, t], price[m, t], ground.on_demand[m])
                cost = slot_cost(n, spot, price[m, t], ground.on_demand[m])
                sources, works_of, usd_of = [now[m * most + j]], [ground.gain[m, j]], [cost]
                sources.append(smaller[j])
                works_of.append(after_growing(restart, n) * ground.gain[m, j])
                usd_of.append(cost)
                sources.append(larger[j])
                works_of.append(after_shrinking(restart, n) * ground.gain[m, j])
                usd_of.append(cost)
                if j:
                    for i in range(len(froms)):
                        sources.append(comes[i])
                        works_of.append(arrival(ground, froms[i], m)[n] * ground.gain[m, j])
                        usd_of.append(cost + move_usd(ground.moves, t, froms[i], m))
                total = 0
                for source in sources:
                    total += source.size
                if used + total > states.shape[0]:
                    states = _roomier(states, used + total)
                    trail = _roomier(trail, used + total)
                at = np.zeros(len(sources), np.int64)
                out, k, cheapest = np.empty(total, np.int64), 0, np.inf
                while True:
                    chosen, farthest = -1, -np.inf
                    for i in range(len(sources)):
                        if at[i] < sources[i].size:
                            done = states[sources[i][at[i]], DONE] + works_of[i]
                            if done > farthest:
                                chosen, farthest = i, done
                    if chosen < 0:
                        break
                    came = sources[chosen][at[chosen]]
                    paid = states[came, PAID] + usd_of[chosen]
                    at[chosen] += 1
                    if paid >= cheapest - CHEAPER:
                        continue
                    cheapest = paid
                    if farthest >= need:
                        if worth - paid > best:
                            best, last = worth - paid, used
                            states[used, DONE], states[used, PAID], trail[used, CAME] = farthest, paid, came
                            trail[used, PLACE], trail[used, SIZE] = m, j
                            used += 1
                            if used + total > states.shape[0]:
                                states = _roomier(states, used + total)
                                trail = _roomier(trail, used + total)
                        continue
                    hope = ground.value.usd - paid - _at_least(units[t + 1], works[t + 1], need - farthest)
                    if max(hope, -paid) <= best:
                        continue
                    states[used, DONE], states[used, PAID], trail[used, CAME] = farthest, paid, came
                    trail[used, PLACE], trail[used, SIZE] = m, j
                    out[k] = used
                    k, used = k + 1, used + 1
                if 0 < beam < k:
                    whole = False
                    kept = np.empty(beam, np.int64)
                    for i in range(beam):
                        kept[i] = out[(i * (k - 1)) // max(1, beam - 1)]
                    then[m * most + j] = kept
                else:
                    then[m * most + j] = out[:k].copy()
        now = then
    for p in range(markets + 1):
        for j in range(most):
            for i in now[p * most + j]:
                before = ground.sizes[p, j] if p < markets else 0
                usd = (
                    ending_at(ground, p, before, ground.value.deadline, need - states[i, DONE])[0]
                    - states[i, PAID]
                )
                if usd > best:
                    best, last = usd, i
    places, sizes = np.full(slots, nowhere, np.int64), np.zeros(slots, np.int64)
    if last < 0:
        return best, whole, places, sizes, -1
    count, i = 0, last
    while trail[i, CAME] >= 0:
        count, i = count + 1, trail[i, CAME]
    i = last
    for k in range(count - 1, -1, -1):
        places[k] = trail[i, PLACE]
        sizes[k] = ground.sizes[trail[i, PLACE], trail[i, SIZE]] if trail[i, PLACE] < markets else 0
        i = trail[i, CAME]
    return best, whole, places, sizes, count
