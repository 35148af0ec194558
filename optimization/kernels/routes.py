"""Compiled search for one job's best route over (market, instances, progress) when spot counts and money have prices (ours).

Two parts. `optimistic` is backward induction on a grid of progress that rounds every gain up: its first value is never below the
worth of the best route, which makes it a bound by itself and the compass of the other part. `search` is label setting forward in
exact progress: a label is dropped when another in its state has done at least as much for no more, or when even the optimistic
rest is not worth more than the best route known; what is left over is the optimum.

A state is one size in one market, numbered k = 0..K-1 with the sizes of a market next to each other, ascending; K is holding
nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optimization.kernels.compiling import kernel
from optimization.kernels.rules import Value, slot_cost, slots_needed, value_at

#: Share of a cell that counts as rounding when progress is put on the grid, and the lead every cell is given for it.
CELL_ROUNDING, CELL_LEAD = 1e-9, 1e-6
#: Relative slack of comparisons of money; differences below it are rounding.
MONEY_SLACK = 1e-10
#: Ways to come into a state: from nothing, from fewer, as many or more instances of its market, from another market.
BEGIN, UP, KEPT, DOWN, MOVE = 0, 1, 2, 3, 4


class RouteTerms(NamedTuple):
    """One job as arrays: per state (K,) its market, instances, work a slot at full efficiency, the shares of a slot that
    make progress after a change up, a change down and a move, and USD a slot if all of it is on demand.

    ``first`` (groups + 1,) bounds the states of each allowed market, ``group`` (K,) says which one a state is of. ``before`` is
    the state held before the window, K for nothing, -1 for instances in a market that is not allowed any more, and
    ``group_before``, ``n_before`` what it was (a size that is none of the states is known by its number alone).
    """

    market: np.ndarray
    n: np.ndarray
    gain: np.ndarray
    up: np.ndarray
    down: np.ndarray
    move: np.ndarray
    on_demand: np.ndarray
    first: np.ndarray
    group: np.ndarray
    group_before: int
    n_before: int
    slots: int
    done: float
    line: float
    value: Value
    end: int
    move_usd: float
    may_use_spot: bool


class Asked(NamedTuple):
    """What a search is asked under: the worth of the job's value, what a USD paid counts, and what the states of a slot cost.

    ``weight`` is the priority, ``usd`` the priority plus the prices of the budgets it draws on, ``later_usd`` what a USD paid
    after the window counts (only the priority where caps do not count it, and then ``most`` does not either); ``cost`` and
    ``spot`` (w, K) are the priced cost of each state by slot and the spot instances in it; ``most`` bounds the priced cost of a
    whole route.
    """

    weight: float
    usd: float
    later_usd: float
    later_counts: bool
    cost: np.ndarray
    spot: np.ndarray
    most: float


@kernel
def priced_states(
    terms: RouteTerms, price: np.ndarray, available: np.ndarray, toll: np.ndarray, usd: float
) -> tuple[np.ndarray, np.ndarray]:
    """Cheapest priced cost of every state by slot and the spot instances in it, shapes (w, K).

    ``price`` is USD a slot of a spot instance, ``toll`` the price of its count, both (w, markets), like ``available``.
    """
    states = terms.n.size
    cost, spot = np.empty((terms.slots, states)), np.zeros((terms.slots, states), dtype=np.int64)
    for i in range(terms.slots):
        for k in range(states):
            m, dear = terms.market[k], terms.on_demand[k] / terms.n[k]
            if terms.may_use_spot and usd * price[i, m] + toll[i, m] < usd * dear and price[i, m] < dear:
                spot[i, k] = min(terms.n[k], available[i, m])
            held = spot[i, k]
            cost[i, k] = usd * slot_cost(terms.n[k], held, price[i, m], dear) + held * toll[i, m]
    return cost, spot


@kernel
def way(terms: RouteTerms, k: int, group_before: int, n_before: int) -> int:
    """How one comes into state ``k`` from instances of a market."""
    if n_before == 0:
        return BEGIN
    if terms.group[k] != group_before:
        return MOVE
    if terms.n[k] > n_before:
        return UP
    return DOWN if terms.n[k] < n_before else KEPT


@kernel
def share(terms: RouteTerms, k: int, came: int) -> float:
    """Share of a slot in state ``k`` that makes progress after coming there in a way (M2.4)."""
    if came == KEPT:
        return 1.0
    if came == DOWN:
        return float(terms.down[k])
    return float(terms.move[k]) if came == MOVE else float(terms.up[k])


@kernel
def fill_step(out: np.ndarray, later: np.ndarray, gained: float, cell: float, lost: float) -> None:
    """Raise ``out`` to one slot on the grid: the worth ``later`` after ``gained`` work units, rounded up to cells, less ``lost``.

    Three plain loops instead of one that clips its index: they compile to vector instructions.
    """
    size = out.size
    shift = int(np.ceil(gained / cell - CELL_ROUNDING)) if cell > 0.0 else 0
    begin, end = min(max(-shift, 0), size), max(min(size - shift, size), 0)
    low, high = later[0] - lost, later[size - 1] - lost
    for z in range(begin):
        out[z] = max(out[z], low)
    span, moved = out[begin:end], later[begin + shift : end + shift]
    for z in range(span.size):
        span[z] = max(span[z], moved[z] - lost)
    for z in range(max(begin, end), size):
        out[z] = max(out[z], high)


@kernel
def fill_ending(
    out: np.ndarray, terms: RouteTerms, asked: Asked, at: tuple[int, float, float, float]
) -> None:
    """Raise ``out`` to the worth of going on after the window in a state, on demand, at the share of its first slot (M3.3b).

    ``at`` is the state, the share, the cell and what a move costs. Cells go from the top down, so that the slots needed only grow.
    """
    k, mu, cell, lost = at
    needed, price, start = 1, asked.later_usd * terms.on_demand[k], terms.done + cell * CELL_LEAD
    worth = asked.weight * value_at(terms.value, terms.end + 1) - price - lost
    for z in range(out.size - 1, -1, -1):
        rest = terms.line - (start + z * cell)
        while mu * terms.gain[k] + (needed - 1) * terms.gain[k] < rest:
            needed += 1
            worth = asked.weight * value_at(terms.value, terms.end + needed) - needed * price - lost
            if worth <= 0.0:
                break
        if worth <= 0.0:
            return
        out[z] = max(out[z], worth)


@kernel
def fill(
    out: np.ndarray, terms: RouteTerms, asked: Asked, later: np.ndarray, at: tuple[int, int, int, float]
) -> None:
    """Raise ``out`` to the worth of coming into a state: ``at`` is the slot (w: the ending), the state, the way, the cell."""
    i, k, came, cell = at
    usd = asked.later_usd if i == terms.slots else asked.usd
    lost = usd * terms.move_usd if came == MOVE else 0.0
    mu = share(terms, k, came)
    if i == terms.slots:
        fill_ending(out, terms, asked, (k, mu, cell, lost))
    else:
        fill_step(out, later[k], mu * terms.gain[k], cell, asked.cost[i, k] + lost)


@kernel
def induct(
    terms: RouteTerms,
    asked: Asked,
    later: np.ndarray,
    now: np.ndarray,
    at: tuple[int, float, float],
    room: np.ndarray,
) -> None:
    """Worth ``now`` (K + 1, cells) before slot ``at[0]`` by the state held before it, from that of the slot after it.

    ``at`` is the slot, the cell, and the worth of the top cell (NaN: as the others); ``room`` (2 groups + 2, cells) is scratch.
    """
    i, cell, top = at
    states, groups = terms.n.size, terms.first.size - 1
    idle, best, moved, after = now[states], room[0], room[1 : groups + 1], room[groups + 1 : 2 * groups + 1]
    if i < terms.slots:
        idle[:] = later[states]
    else:
        idle[:] = 0.0
    rest = room[2 * groups + 1]
    rest[:] = idle
    for g in range(groups):
        best[:] = -np.inf
        for k in range(terms.first[g + 1] - 1, terms.first[g] - 1, -1):
            for z in range(rest.size):
                now[k, z] = max(rest[z], best[z])
            fill(best, terms, asked, later, (i, k, UP, cell))
        for z in range(rest.size):
            idle[z] = max(idle[z], best[z])
        best[:] = -np.inf
        for k in range(terms.first[g], terms.first[g + 1]):
            fill(now[k], terms, asked, later, (i, k, KEPT, cell))
            for z in range(rest.size):
                now[k, z] = max(now[k, z], best[z])
            fill(best, terms, asked, later, (i, k, DOWN, cell))
    if groups > 1:
        for g in range(groups):
            moved[g] = -np.inf
            for k in range(terms.first[g], terms.first[g + 1]):
                fill(moved[g], terms, asked, later, (i, k, MOVE, cell))
        after[groups - 1] = -np.inf
        for g in range(groups - 2, -1, -1):
            after[g] = np.maximum(after[g + 1], moved[g + 1])
        best[:] = -np.inf
        for g in range(groups):
            for k in range(terms.first[g], terms.first[g + 1]):
                for z in range(rest.size):
                    now[k, z] = max(now[k, z], best[z], after[g, z])
            best[:] = np.maximum(best, moved[g])
    if top == top:
        now[:, -1] = top


@kernel
def optimistic(terms: RouteTerms, asked: Asked, room: np.ndarray) -> tuple[float, float]:
    """Fill ``room`` (w + 1, K + 1, cells): worth before slots 1..w by the state held before and progress, never too low.

    Returns the cell in work units, and the bound of the whole search: the best first step with its optimistic rest.
    """
    fastest, span = 0.0, terms.line - terms.done
    for k in range(terms.n.size):
        fastest = max(fastest, terms.gain[k] * max(1.0, terms.up[k]))
    reach = terms.slots * fastest
    cells = room.shape[2] - 1
    top = asked.weight * terms.value.usd if reach >= span * (1.0 - 1e-9) else np.nan
    cell = min(span, reach) / cells
    scratch = np.empty((2 * (terms.first.size - 1) + 2, cells + 1))
    induct(terms, asked, room[terms.slots], room[terms.slots], (terms.slots, cell, top), scratch)
    for i in range(terms.slots - 1, 0, -1):
        induct(terms, asked, room[i + 1], room[i], (i, cell, top), scratch)
    before, start = (terms.group_before, terms.n_before), (0, terms.done, 0.0)
    return cell, next_step(terms, asked, room, cell, before, start)[1]


@kernel
def best_ending(
    terms: RouteTerms, asked: Asked, z: float, before: tuple[int, int], paid: float
) -> tuple[float, int, int]:
    """The best worth after the window, its state (-1: none) and slots, within ``asked.most`` of priced cost in all."""
    if z >= terms.line:
        return asked.weight * terms.value.usd, -1, 0
    best, state, slots = 0.0, -1, 0
    for k in range(terms.n.size):
        came = way(terms, k, before[0], before[1])
        needed = slots_needed(terms.line - z, share(terms, k, came) * terms.gain[k], terms.gain[k])
        cost = asked.later_usd * (needed * terms.on_demand[k] + (terms.move_usd if came == MOVE else 0.0))
        worth = asked.weight * value_at(terms.value, terms.end + needed) - cost
        if worth > best and (paid + cost <= asked.most or not asked.later_counts):
            best, state, slots = worth, k, needed
    return best, state, slots


@kernel
def stand(terms: RouteTerms, k: int) -> tuple[int, int]:
    """(group, instances) of a state."""
    return (-1, 0) if k == terms.n.size else (terms.group[k], terms.n[k])


@kernel
def looked_up(room: np.ndarray, i: int, k: int, x: float) -> float:
    """The optimistic worth before slot ``i`` in state ``k`` at progress ``x`` cells."""
    top = room.shape[2] - 1
    worth: float = room[i, k, min(max(int(np.ceil(x - CELL_ROUNDING)), 0), top)]
    return worth


@kernel
def next_step(
    terms: RouteTerms,
    asked: Asked,
    room: np.ndarray,
    cell: float,
    before: tuple[int, int],
    start: tuple[int, float, float],
) -> tuple[int, float, float, float]:
    """The step from ``start`` = (slot, work, paid) with the best optimistic rest: state, worth, work and cost after it."""
    i, z, paid = start
    states = terms.n.size
    best, worth, reached, cost = states, looked_up(room, i + 1, states, (z - terms.done) / cell), z, 0.0
    for k in range(states):
        came = way(terms, k, before[0], before[1])
        later = z + share(terms, k, came) * terms.gain[k]
        lost = asked.cost[i, k] + (asked.usd * terms.move_usd if came == MOVE else 0.0)
        told = asked.weight * terms.value.usd - lost
        if later < terms.line:
            told = looked_up(room, i + 1, k, (later - terms.done) / cell) - lost
        if told > worth and paid + lost <= asked.most:
            best, worth, reached, cost = k, told, later, lost
    return best, worth, reached, paid + cost


@kernel
def follow(terms: RouteTerms, asked: Asked, room: np.ndarray, cell: float) -> tuple[np.ndarray, float]:
    """The route that the optimistic worths point out, in exact progress: its states, shape (w,), and its true worth."""
    chosen = np.full(terms.slots, terms.n.size)
    z, before, paid = terms.done, (terms.group_before, terms.n_before), 0.0
    for i in range(terms.slots):
        if z >= terms.line:
            break
        k, _, z, paid = next_step(terms, asked, room, cell, before, (i, z, paid))
        chosen[i], before = k, stand(terms, k)
    return chosen, best_ending(terms, asked, z, before, paid)[0] - paid


@kernel
def in_order(z: np.ndarray, c: np.ndarray, state: np.ndarray, low: int, high: int) -> np.ndarray:
    """Labels low..high-1 by state, then descending work, then cost: shell sort, which compiles quickly."""
    order = np.arange(low, high)
    gap = order.size // 2
    while gap > 0:
        for i in range(gap, order.size):
            moved, k = order[i], i
            while k >= gap:
                a = order[k - gap]
                if state[a] != state[moved]:
                    before = state[a] < state[moved]
                elif z[a] != z[moved]:
                    before = z[a] > z[moved]
                else:
                    before = c[a] <= c[moved]
                if before:
                    break
                order[k] = a
                k -= gap
            order[k] = moved
        gap //= 2
    return order


@kernel
def grown(a: np.ndarray, size: int) -> np.ndarray:
    """The array, or a copy with room for ``size`` elements and as many again."""
    if size <= a.size:
        return a
    b = np.empty(2 * size, dtype=a.dtype)
    b[: a.size] = a
    return b


@kernel
def extended(
    terms: RouteTerms,
    asked: Asked,
    room: np.ndarray,
    at: tuple[int, float, float, float, int, int],
    found: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    end: int,
    best: np.ndarray,
) -> tuple[int, int]:
    """Write what label ``at`` = (slot, cell, work, cost, state, number) can become; the new end and the state that finishes best.

    ``best`` = [worth of the incumbent, slack of money] is raised by routes that finish here.
    """
    i, cell, z, c, state, label = at
    states, finisher = terms.n.size, -1
    before = (terms.group_before, terms.n_before) if label == 0 else stand(terms, state)
    zs, cs, parents, ks = found
    for k in range(states + 1):
        later, cost = z, c
        if k < states:
            came = way(terms, k, before[0], before[1])
            later = z + share(terms, k, came) * terms.gain[k]
            cost = c + asked.cost[i, k] + (asked.usd * terms.move_usd if came == MOVE else 0.0)
        if cost > asked.most:
            continue
        if later >= terms.line:
            if asked.weight * terms.value.usd - cost > best[0]:
                best[0], finisher = asked.weight * terms.value.usd - cost, k
            continue
        if looked_up(room, i + 1, k, (later - terms.done) / cell) - cost > best[0] + best[1]:
            zs[end], cs[end], parents[end], ks[end] = later, cost, label, k
            end += 1
    return end, finisher


@kernel
def promising(
    terms: RouteTerms,
    room: np.ndarray,
    at: tuple[int, float],
    labels: tuple[np.ndarray, np.ndarray, np.ndarray],
    layer: np.ndarray,
    width: int,
) -> np.ndarray:
    """``width`` labels of a layer with the best optimistic worths; ``at`` is the slot that led to them and the cell."""
    z, c, state = labels
    told = np.empty(layer.size)
    for place in range(layer.size):
        label = layer[place]
        told[place] = looked_up(room, at[0] + 1, state[label], (z[label] - terms.done) / at[1]) - c[label]
    best: np.ndarray = layer[told >= np.partition(told, layer.size - width)[layer.size - width]][:width]
    return best


@kernel
def search(
    terms: RouteTerms, asked: Asked, room: np.ndarray, cell: float, width: int
) -> tuple[np.ndarray, float, bool]:
    """The states of the best route, its worth, and whether that is proved.

    Of each slot the ``width`` most promising labels are kept: what is dropped for that alone costs the proof.
    """
    states = terms.n.size
    chosen, told = follow(terms, asked, room, cell)
    idle = best_ending(terms, asked, terms.done, (-1, 0), 0.0)[0]
    if idle > told:
        chosen[:], told = states, idle
    best = np.array(
        [told, MONEY_SLACK * (asked.weight * terms.value.usd + asked.usd * terms.on_demand.max())]
    )
    z, c, parent = np.empty(4096), np.empty(4096), np.empty(4096, np.int64)
    state = np.empty(4096, np.int64)
    z[0], c[0], parent[0], state[0] = terms.done, 0.0, -1, states
    layer, end, proved = np.zeros(1, dtype=np.int64), 1, True
    for i in range(terms.slots):
        low = end
        for label in layer:
            z, c = grown(z, end + states + 1), grown(c, end + states + 1)
            parent, state = grown(parent, end + states + 1), grown(state, end + states + 1)
            end, finisher = extended(
                terms, asked, room, (i, cell, z[label], c[label], int(state[label]), int(label)),
                (z, c, parent, state), end, best,
            )  # fmt: skip
            if finisher >= 0:
                chosen = traced(int(label), parent, state, terms.slots, i, states)
                chosen[i] = finisher
        order, kept, least, held = in_order(z, c, state, low, end), 0, np.inf, -1
        for label in order:
            if state[label] != held:
                held, least = state[label], np.inf
            if c[label] < least:
                order[kept], least = label, c[label]
                kept += 1
        layer = order[:kept]
        if kept > width:
            layer, proved = promising(terms, room, (i, cell), (z, c, state), layer, width), False
    for label in layer:
        ending = best_ending(terms, asked, z[label], stand(terms, state[label]), c[label])[0]
        if ending - c[label] > best[0]:
            best[0] = ending - c[label]
            chosen = traced(int(label), parent, state, terms.slots, terms.slots, states)
    return chosen, best[0], proved


@kernel
def traced(
    label: int, parent: np.ndarray, state: np.ndarray, slots: int, upto: int, states: int
) -> np.ndarray:
    """The states of the first ``upto`` slots that lead to a label; nothing is held later."""
    chosen = np.full(slots, states)
    for i in range(upto - 1, -1, -1):
        chosen[i] = state[label]
        label = parent[label]
    return chosen
