"""Compiled kernels for a multi-market job: hindsight on known prices and counts, and mean-field induction (M11.6, M11.7) (ours).

Arrays with a first axis of markets are padded to the largest market. A market index equal to the
number of markets means that the job has no market yet.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slackwater.optimization.kernels.arrays import sort_order
from slackwater.optimization.kernels.compiling import fast_part, kernel, part
from slackwater.optimization.kernels.induction import (
    NEVER,
    TOGETHER,
    Ends,
    Firsts,
    Game,
    Row,
    Shifts,
    before_slot,
    by_cell,
    cell_costs,
    expected,
    fill,
    shifted,
    shifts_by,
    slot_shifts,
    value_with,
)
from slackwater.optimization.kernels.rules import (
    Restart,
    Value,
    after_growing,
    after_shrinking,
    efficiency,
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
    ``work_now`` is the credit in USD for a unit of work done in the present slot instead of a later
    slot.
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
    work_now: float


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
def _union(ways: np.ndarray, one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Merge the ids ``one`` and ``two``: most work first, each cheaper than those before it."""
    out = np.empty(one.size + two.size, np.int64)
    a, b, k, cheapest = 0, 0, 0, np.inf
    while a < one.size or b < two.size:
        if b == two.size or (a < one.size and ways[one[a], DONE] >= ways[two[b], DONE]):
            i, paid = one[a], ways[one[a], PAID]
            a += 1
        else:
            i, paid = two[b], ways[two[b], PAID]
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
    ways, trail = np.zeros((1024, 2)), np.zeros((1024, 3), np.int64)
    ways[0, DONE], ways[0, PAID], trail[0, CAME], trail[0, PLACE] = 0.0, 0.0, -1, start[0]
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
                    of_place[p] = _union(ways, of_place[p], now[p * most + j])
        then = [nothing for _ in range((markets + 1) * most)]
        worth = value_at(ground.value, t + 1)
        for m in range(markets + 1):
            if m == nowhere:
                if of_place[nowhere].size:
                    if used == ways.shape[0]:
                        ways = _roomier(ways, used + 1)
                        trail = _roomier(trail, used + 1)
                    ways[used, DONE], ways[used, PAID], trail[used, CAME] = 0.0, 0.0, of_place[nowhere][0]
                    trail[used, PLACE], trail[used, SIZE] = nowhere, 0
                    then[nowhere * most] = np.full(1, used)
                    used += 1
                continue
            count = ground.held[m]
            smaller, larger = [nothing for _ in range(count)], [nothing for _ in range(count)]
            for j in range(1, count):
                smaller[j] = _union(ways, smaller[j - 1], now[m * most + j - 1])
            for j in range(count - 2, -1, -1):
                larger[j] = _union(ways, larger[j + 1], now[m * most + j + 1])
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
                if used + total > ways.shape[0]:
                    ways = _roomier(ways, used + total)
                    trail = _roomier(trail, used + total)
                at = np.zeros(len(sources), np.int64)
                out, k, cheapest = np.empty(total, np.int64), 0, np.inf
                while True:
                    chosen, farthest = -1, -np.inf
                    for i in range(len(sources)):
                        if at[i] < sources[i].size:
                            done = ways[sources[i][at[i]], DONE] + works_of[i]
                            if done > farthest:
                                chosen, farthest = i, done
                    if chosen < 0:
                        break
                    came = sources[chosen][at[chosen]]
                    paid = ways[came, PAID] + usd_of[chosen]
                    at[chosen] += 1
                    if paid >= cheapest - CHEAPER:
                        continue
                    cheapest = paid
                    if farthest >= need:
                        if worth - paid > best:
                            best, last = worth - paid, used
                            ways[used, DONE], ways[used, PAID], trail[used, CAME] = farthest, paid, came
                            trail[used, PLACE], trail[used, SIZE] = m, j
                            used += 1
                            if used + total > ways.shape[0]:
                                ways = _roomier(ways, used + total)
                                trail = _roomier(trail, used + total)
                        continue
                    hope = ground.value.usd - paid - _at_least(units[t + 1], works[t + 1], need - farthest)
                    if max(hope, -paid) <= best:
                        continue
                    ways[used, DONE], ways[used, PAID], trail[used, CAME] = farthest, paid, came
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
                    ending_at(ground, p, before, ground.value.deadline, need - ways[i, DONE])[0]
                    - ways[i, PAID]
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


# ---
# The mean-field induction (M11.6). Each market has a separate table; in every later slot the states
# of the other markets are drawn again.


class MarketLaw(NamedTuple):
    """Belief about a market: counts (S,) and prices (K,) per slot of its states, transitions (T, S, S) and (T, K, K)."""

    available: np.ndarray
    price: np.ndarray
    chain: np.ndarray
    price_chain: np.ndarray


class WorkGrid(NamedTuple):
    """Grid of remaining work: ``points`` at distance ``step``; a job with ``slack`` left is finished.

    ``low`` and ``high`` (T + 1,) are the first and the end of the relevant points at the start of
    each slot and at the deadline; values above them are reduced by ``beyond``.
    """

    step: float
    points: int
    slack: float
    low: np.ndarray
    high: np.ndarray
    beyond: float


@fast_part
def _better(rows: np.ndarray, others: np.ndarray, upper: np.ndarray, spare: np.ndarray) -> None:
    """Compute rows[j, h] = mean over r of max(rows[j, h], others[r, h]) for rows (J, points).

    ``upper`` is the maximum of ``others`` over r; ``spare`` (1, 1, points) is scratch.
    """
    share = np.float32(1.0 / others.shape[0])
    for j in range(rows.shape[0]):
        # Whole rows: looking for the range with changes costs more than it saves.
        above = 0
        for h in range(upper.size):
            above += 1 if upper[h] > rows[j, h] else 0
        if above == 0:
            continue
        for h in range(upper.size):
            spare[0, 0, h] = np.float32(0.0)
        r = 0
        while r + 2 < others.shape[0]:
            # Three draws at a time, which reads and writes the sum a third as often.
            for h in range(upper.size):
                held = rows[j, h]
                a = others[r, h] if others[r, h] > held else held
                b = others[r + 1, h] if others[r + 1, h] > held else held
                c = others[r + 2, h] if others[r + 2, h] > held else held
                spare[0, 0, h] = spare[0, 0, h] + a + b + c
            r += 3
        while r < others.shape[0]:
            for h in range(upper.size):
                spare[0, 0, h] += others[r, h] if others[r, h] > rows[j, h] else rows[j, h]
            r += 1
        for h in range(upper.size):
            rows[j, h] = spare[0, 0, h] * share


@fast_part
def _raise(out: np.ndarray, row: np.ndarray, less: float) -> None:
    """Set out[h] to max(out[h], row[h] - less)."""
    usd = np.float32(less)
    for h in range(out.size):
        out[h] = row[h] - usd if row[h] - usd > out[h] else out[h]


@part
def arrivals(
    after: np.ndarray, cell: int, costs: np.ndarray, shifts: Shifts, ends: Ends, spare: np.ndarray, out: np.ndarray
) -> None:  # fmt: skip
    """Set out[h] to the best value of starting in a market that is in state ``cell``, without the cost of the move.

    ``after`` (cells, J, points) are the market's values after the slot, ``costs`` (cells, J) the
    cost of the slot in USD, ``shifts`` the work of its sizes in a slot that begins with a start.
    ``spare`` (1, 1, points) is scratch.
    """
    out[:] = NEVER
    for j in range(1, after.shape[1]):
        shifted(after, (cell, cell + 1), Row(j, j, 0), shifts, ends, costs, spare, 0)
        _raise(out, spare[0, 0], 0.0)


@part
def table(memory: np.ndarray, states: int, levels: int, held: int, width: int) -> np.ndarray:
    """Return the beginning of ``memory`` as values by states, levels, sizes and points."""
    return memory[: states * levels * held * width].reshape((states, levels, held, width))


@part
def last_worth(ground: Ground, grid: WorkGrid, out: list[np.ndarray]) -> None:
    """Compute `ending_at` the deadline per market, (S, K, J, points), for every previous size and every amount of work left.

    The value of moving to a market is computed once, since it is the same from all other markets
    except for the cost of the move.
    """
    count, slots = len(out), grid.high.size - 1
    deadline, low = ground.value.deadline, grid.low[slots]
    width = grid.high[slots] - low
    elsewhere = np.empty((count, width))
    for m in range(count):
        sizes, gain = ground.sizes[m, : ground.held[m]], ground.gain[m]
        restart = Restart(arrival(ground, 0, m), ground.down[m])
        for h in range(width):
            rest = float(low + h) * grid.step - grid.slack
            end = ending(sizes, gain, restart, ground.value, ground.on_demand[m], deadline, rest, 0)
            elsewhere[m, h] = end.usd if end.size > 0 or rest <= 0.0 else -np.inf
    moved = np.empty(width)
    for m in range(count):
        sizes, gain = ground.sizes[m, : ground.held[m]], ground.gain[m]
        restart = Restart(ground.up[m], ground.down[m])
        moved[:] = 0.0
        for k in range(count):
            if k != m:
                for h in range(width):
                    moved[h] = max(moved[h], elsewhere[k, h] - move_usd(ground.moves, deadline, m, k))
        now = out[m]
        for j in range(sizes.size):
            for h in range(width):
                rest = float(low + h) * grid.step - grid.slack
                end = ending(
                    sizes, gain, restart, ground.value, ground.on_demand[m], deadline, rest, sizes[j]
                )
                now[:, :, j, h] = max(moved[h], end.usd)


@kernel
def mean_field(
    ground: Ground,
    markets: list[MarketLaw],
    grid: WorkGrid,
    slot: int,
    draws: np.ndarray,
    with_nowhere: bool,
    keep: int,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return expected values after each of the first ``keep`` slots, per market and without a market.

    The shapes are (keep, S, K, J, points) and (keep, points).

    Backward induction per market over (slot, remaining work, previous size, count state, price
    level). At the start of a later slot the job observes the other markets, whose states are taken
    from ``draws`` (T, R, M, 2): count and price states in each of the coming slots by the present
    belief. It takes the better of staying and of moving to the best other market, net of the cost
    of the move. Slot 0 of ``draws`` is not read.
    """
    count, slots = len(markets), draws.shape[0]
    draw_count = draws.shape[1]
    deadline = ground.value.deadline
    width = grid.high[slots] - grid.low[slots]
    now = [np.empty((1, 1, 1, 1), np.float32) for _ in range(count)]
    widest, most, largest = 0, 0, 0
    for i in range(slots + 1):
        widest = max(widest, grid.high[i] - grid.low[i])
    begin = np.zeros(count + 1, np.int64)
    for m in range(count):
        cells = markets[m].available.size * markets[m].price.size * ground.held[m] * widest
        most, largest, begin[m + 1] = max(most, ground.held[m]), max(largest, cells), begin[m] + cells
    # Values before and after a slot, reused by every slot, in a single allocation: memory allocated
    # in many pieces is returned to the system and mapped again page by page.
    cells = begin[count]
    memory = np.empty(2 * cells + largest, np.float32)
    before, behind, spread = memory[:cells], memory[cells : 2 * cells], memory[2 * cells :]
    for m in range(count):
        now[m] = table(
            behind[begin[m] :], markets[m].available.size, markets[m].price.size, ground.held[m], width
        )
    last_worth(ground, grid, now)
    nowhere = np.empty(width, np.float32)
    for h in range(width):
        nowhere[h] = ending_at(
            ground, count, 0, deadline, float(grid.low[slots] + h) * grid.step - grid.slack
        )[0]
    kept = [np.empty((1, 1, 1, 1, 1), np.float32) for _ in range(count)]
    for m in range(count):
        kept[m] = np.empty(
            (keep, markets[m].available.size, markets[m].price.size, ground.held[m], grid.points), np.float32
        )
    alone = np.empty((keep, 1, 1, 1, grid.points), np.float32)
    costs = [
        cell_costs(
            ground.sizes[m, : ground.held[m]], markets[m].available, markets[m].price, ground.on_demand[m]
        )
        for m in range(count)
    ]
    for i in range(slots - 1, -1, -1):
        after = now
        if i < slots - 1:
            after = [np.empty((1, 1, 1, 1), np.float32) for _ in range(count)]
            for m in range(count):
                states, levels, held, known = now[m].shape
                after[m] = table(behind[begin[m] :], states, levels, held, known)
                expected(markets[m].chain[i], markets[m].price_chain[i], now[m], spread, after[m])
        if i < keep:
            for m in range(count):
                fill(after[m], grid.low[i + 1], kept[m][i])
            fill(nowhere.reshape((1, 1, 1, nowhere.size)), grid.low[i + 1], alone[i])
        if i == 0:
            break
        t, width = slot + i, grid.high[i] - grid.low[i]
        ends = Ends(value_at(ground.value, t), value_at(ground.value, t + 1), grid.beyond)
        first = Firsts(grid.low[i + 1], grid.low[i])
        best, spare = np.empty((TOGETHER, width), np.float32), np.empty((1, 1, width), np.float32)
        # Value of each market for a job that moves there, in each draw.
        coming = np.empty((count, draw_count, width), np.float32)
        starting = np.empty((count if with_nowhere else 0, draw_count, width), np.float32)
        for m in range(count):
            known = after[m].shape[3]
            moving, starts = (
                arrival(ground, 0, m)[ground.sizes[m]],
                arrival(ground, count, m)[ground.sizes[m]],
            )
            by_move = shifts_by(moving * ground.gain[m] / grid.step, first, known, width)
            by_start = shifts_by(starts * ground.gain[m] / grid.step, first, known, width)
            for r in range(draw_count):
                s, x = draws[i, r, m, 0], draws[i, r, m, 1]
                again = -1
                for q in range(r):
                    if draws[i, q, m, 0] == s and draws[i, q, m, 1] == x:
                        again = q
                if again >= 0:
                    for h in range(width):
                        coming[m, r, h] = coming[m, again, h]
                        if with_nowhere:
                            starting[m, r, h] = starting[m, again, h]
                    continue
                late, cell = by_cell(after[m]), s * after[m].shape[1] + x
                arrivals(late, cell, costs[m], by_move, ends, spare, coming[m, r])
                if with_nowhere:
                    arrivals(late, cell, costs[m], by_start, ends, spare, starting[m, r])
        now = [np.empty((1, 1, 1, 1), np.float32) for _ in range(count)]
        others = np.empty((draw_count, width), np.float32)
        upper = np.empty(width, np.float32)
        for m in range(count):
            states, levels, held, _ = after[m].shape
            game = Game(
                sizes=ground.sizes[m, :held].copy(),
                gain=ground.gain[m, :held].copy(),
                available=markets[m].available,
                chain=markets[m].chain,
                price=markets[m].price,
                price_chain=markets[m].price_chain,
                on_demand=ground.on_demand[m],
                restart=Restart(ground.up[m], ground.down[m]),
                value=ground.value,
                slot=slot,
                slack=grid.slack,
                step=grid.step,
                points=grid.points,
            )
            shifts = slot_shifts(game, first, after[m].shape[3], width)
            others[:] = NEVER
            for k in range(count):
                if k != m:
                    for r in range(draw_count):
                        _raise(others[r], coming[k, r], move_usd(ground.moves, t, m, k))
            upper[:] = NEVER
            for r in range(draw_count):
                _raise(upper, others[r], 0.0)
            now[m] = table(before[begin[m] :], states, levels, held, width)
            early = by_cell(now[m])
            before_slot(by_cell(after[m]), shifts, costs[m], ends, first.now, best, early)
            _better(early.reshape((states * levels * held, width)), others, upper, spare)
        if with_nowhere:
            others[:] = NEVER
            for k in range(count):
                for r in range(draw_count):
                    _raise(others[r], starting[k, r], 0.0)
            stay = np.empty(width, np.float32)
            idle = shifts_by(np.zeros(1), first, nowhere.size, width)
            here, out = nowhere.reshape((1, 1, nowhere.size)), stay.reshape((1, 1, width))
            shifted(here, (0, 1), Row(0, 0, 0), idle, ends, np.zeros((1, 1)), out, 0)
            if first.now == 0:
                stay[0] = ends.now
            upper = np.full(width, np.float32(np.inf))
            _better(stay.reshape((1, width)), others, upper, spare)
            nowhere = stay
    return kept, alone.reshape((keep, grid.points))


class Stand(NamedTuple):
    """Job state in a slot: market (their number: none yet), instances before, remaining work, slot, and V of finishing in it."""

    place: int
    before: int
    rest: float
    slot: int
    late: float


class MovingTable(NamedTuple):
    """Values after the first slots of `mean_field` for all sizes of a job: those of its markets, and without a market.

    ``after[m]`` (slots, S, K, J, points), ``nowhere`` (slots, points). ``near`` (M, A) is the index
    of the table's size that represents each size of the job. ``counts[m]`` (S,) are the counts of
    the states, ``now[m]`` (S,) their probabilities in the slot of the belief.
    """

    grid: WorkGrid
    after: list[np.ndarray]
    nowhere: np.ndarray
    near: np.ndarray
    counts: list[np.ndarray]
    now: list[np.ndarray]


class MarketsNow(NamedTuple):
    """Markets (M,) in a slot: available instances (-1: not observed), price per slot and its level.

    ``others`` are the instances that other jobs run in addition to those available.
    """

    available: np.ndarray
    others: np.ndarray
    price: np.ndarray
    levels: np.ndarray


class MovingPaths(NamedTuple):
    """A multi-market job on many paths in ``slot``: its state, arrays (paths,), and its markets, arrays (paths, M)."""

    slot: int
    place: np.ndarray
    before: np.ndarray
    rest: np.ndarray
    available: np.ndarray
    price: np.ndarray
    levels: np.ndarray


@part
def _worth(rows: np.ndarray, k: int, left: float, grid: WorkGrid, late: float) -> float:
    return late if left <= grid.slack else value_with(rows, k, left / grid.step)


@part
def _state_of(counts: np.ndarray, available: int) -> int:
    """Return the state with the largest count not above ``available``."""
    state = 0
    while state + 1 < counts.size and counts[state + 1] <= available:
        state += 1
    return state


@part
def _idle(table: MovingTable, m: int, at: int, seen: MarketsNow, stand: Stand) -> float:
    """Return the value in USD of running nothing in market ``m`` in a slot."""
    after, counts, level = table.after[m], table.counts[m], seen.levels[m]
    if seen.available[m] >= 0:
        state = _state_of(counts, seen.available[m] + seen.others[m])
        return _worth(after[at, state, level], 0, stand.rest, table.grid, stand.late)
    usd = 0.0
    for s in range(counts.size):
        usd += table.now[m][s] * _worth(after[at, s, level], 0, stand.rest, table.grid, stand.late)
    return usd


@kernel
def options(
    ground: Ground, table: MovingTable, at: int, stand: Stand, seen: MarketsNow
) -> tuple[np.ndarray, np.ndarray]:
    """Return the value in USD of each size in each market in this slot, (M + 1, A), net of its cost and the move.

    Row M is waiting, of a job without a market or in a market whose count is not observed.
    ``ground`` has all A sizes here, ``at`` is the index of the slot in the table. In a market whose
    count is not observed the first element of the row is the expected value of observing the count
    there and then running the best size.

    The second result, (M, S), is the best value in each state of a market whose count is not
    observed, -inf elsewhere. In the job's market the state changes the value of waiting too; that
    change is left out, because it is no gain of observing the count.
    """
    after, counts, now, near, grid = table.after, table.counts, table.now, table.near, table.grid
    available, others, price, levels = seen.available, seen.others, seen.price, seen.levels
    count = ground.on_demand.size
    out = np.full((count + 1, ground.sizes.shape[1]), -np.inf)
    most = 0
    for m in range(count):
        most = max(most, counts[m].size)
    by_state = np.full((count, most), -np.inf)
    if stand.place == count:
        out[count, 0] = _worth(table.nowhere, at, stand.rest, grid, stand.late)
    idle = out[count, 0]
    for i in range(count):
        # The present market first: the value of running nothing in it is used for the other
        # markets.
        m = i if stand.place == count else (stand.place if i == 0 else (i - 1 if i <= stand.place else i))
        moved = m != stand.place
        restart = Restart(arrival(ground, stand.place, m) if moved else ground.up[m], ground.down[m])
        before = 0 if moved else stand.before
        paid = move_usd(ground.moves, stand.slot, stand.place, m)
        known = available[m] >= 0
        if not moved:
            idle = _idle(table, m, at, seen, stand)
        states = 1 if known else counts[m].size
        total = 0.0
        for s in range(states):
            state = _state_of(counts[m], available[m] + others[m]) if known else s
            there = available[m] if known else counts[m][s]
            best = idle if moved else -np.inf
            for j in range(1 if moved else 0, ground.held[m]):
                n = ground.sizes[m, j]
                spot = spot_held(n, there, price[m], ground.on_demand[m])
                cost = slot_cost(n, spot, price[m], ground.on_demand[m]) + paid
                left = stand.rest - efficiency(restart, n, before) * ground.gain[m, j]
                rows = after[m][at, state, levels[m]]
                usd = _worth(rows, near[m, j], left, grid, stand.late) - cost
                if known:
                    out[m, j] = usd
                best = max(best, usd)
            if not known:
                total += now[m][s] * best
                by_state[m, s] = best
                if not moved:
                    waiting = _worth(after[m][at, s, levels[m]], 0, stand.rest, grid, stand.late)
                    by_state[m, s] += idle - waiting
        if not known:
            out[m, 0] = total
            if not moved:
                out[count, 0] = idle
    return out, by_state


class KeptDeadline(NamedTuple):
    """Rule that keeps the deadline while on-demand can meet it and finishing is worth its on-demand cost (M4, M11.6).

    ``reach`` (d + 1, M + 1, n) is the work that on-demand can do in a number of slots from each
    market and size; ``slack`` is the tolerance of work, and ``line`` the work below the workload at
    which a job counts as finished. With ``must`` the rule applies whatever the cost.
    """

    reach: np.ndarray
    slack: float
    line: float
    must: bool


@kernel
def choose(
    ground: Ground,
    worth: np.ndarray,
    promise: KeptDeadline,
    stand: Stand,
    seen: np.ndarray,
    committed: int,
    rounding: float,
) -> tuple[int, int]:
    """Return (market, index of the size) with the highest value, among choices that keep the deadline if ``promise`` applies.

    The rule applies if on-demand can still meet the deadline and `ending_at` in this slot would
    finish the job, which is computed only if a choice that endangers the deadline has a higher
    value. ``worth`` are the values of `options`; ``ground.work_now`` is added for work done in the
    slot. Among choices within ``rounding`` USD the first is taken: the job's market before the
    others, then the smallest size. If, owing to rounding, no choice keeps the deadline, the choice
    with the most work by d is taken.

    (M, 0) is waiting without a market, or in a market that is not ``seen``. Index 0 in a market that
    is not ``seen`` is observing its count there. ``committed`` is the market to which the job has moved in this slot,
    -1 if none.
    """
    left = ground.value.deadline - stand.slot
    in_reach = stand.rest <= promise.reach[left, stand.place, stand.before] + promise.slack
    market, index, tempted = pick(ground, worth, promise, in_reach, stand, seen, committed, rounding)
    if not (in_reach and tempted) or promise.must:
        return market, index
    rest = stand.rest - promise.line
    if ending_at(ground, stand.place, stand.before, stand.slot, rest)[2] > 0:
        return market, index
    market, index, _ = pick(ground, worth, promise, False, stand, seen, committed, rounding)
    return market, index


@part
def pick(
    ground: Ground,
    worth: np.ndarray,
    promise: KeptDeadline,
    keeping: bool,
    stand: Stand,
    seen: np.ndarray,
    committed: int,
    rounding: float,
) -> tuple[int, int, bool]:
    """Return market and size as `choose` does, with the deadline rule if ``keeping``, and whether an excluded choice is better."""
    reach, slack = promise.reach[ground.value.deadline - stand.slot - 1], promise.slack
    count = ground.on_demand.size
    best, market, index, loose = -np.inf, -1, 0, -np.inf
    idle_keeps = stand.rest <= reach[stand.place, 0] + slack
    if stand.place == count or not seen[stand.place]:
        if idle_keeps or not keeping:
            best, market = worth[count, 0], count
        else:
            loose = worth[count, 0]
    most, fastest, fastest_size = -np.inf, stand.place, 0
    for i in range(count):
        m = i if stand.place == count else (stand.place if i == 0 else (i - 1 if i <= stand.place else i))
        moved = m != stand.place
        restart = Restart(arrival(ground, stand.place, m) if moved else ground.up[m], ground.down[m])
        before = 0 if moved else stand.before
        if committed >= 0 and m != committed and moved:
            continue
        going = not seen[m]
        goes = idle_keeps
        for j in range(ground.held[m]):
            n = ground.sizes[m, j]
            if n > 0 and committed >= 0 and m != committed:
                continue
            done = efficiency(restart, n, before) * ground.gain[m, j]
            left, usd = stand.rest - done, worth[m, j]
            if ground.work_now > 0.0:
                usd += ground.work_now * min(done, stand.rest)
            kept = left <= (reach[m, n] if n > 0 else reach[stand.place, 0]) + slack
            goes = goes or kept
            if n > 0:
                work = reach[m, n] - left
                if work > most + slack:
                    most, fastest, fastest_size = work, m, 0 if going else j
            if going or (moved and j == 0):
                continue
            if keeping and not kept:
                loose = max(loose, usd)
            elif usd > best + rounding:
                best, market, index = usd, m, j
        if going and committed < 0:
            if keeping and not goes:
                loose = max(loose, worth[m, 0])
            elif worth[m, 0] > best + rounding:
                best, market, index = worth[m, 0], m, 0
    if market < 0:
        return fastest, fastest_size, loose > best
    return market, index, loose > best + rounding


@kernel
def choose_on_paths(
    full: Ground, table: MovingTable, at: int, paths: MovingPaths, promise: KeptDeadline, rounding: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return market and number of instances that `choose` takes on each path in a slot, (paths,); market M is none.

    ``at`` is the index of the slot in the table.
    """
    many, count = paths.price.shape
    market, size = np.zeros(many, np.int64), np.zeros(many, np.int64)
    seen, none = np.full(count, True), np.zeros(count, np.int64)
    late = value_at(full.value, paths.slot + 1)
    for p in range(many):
        stand = Stand(paths.place[p], paths.before[p], paths.rest[p], paths.slot, late)
        own = MarketsNow(paths.available[p].copy(), none, paths.price[p].copy(), paths.levels[p].copy())
        worth, _ = options(full, table, at, stand, own)
        m, j = choose(full, worth, promise, stand, seen, -1, rounding)
        market[p] = m
        size[p] = full.sizes[m, j] if m < count else 0
    return market, size
