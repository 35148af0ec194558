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

from optimization.kernels.compiling import kernel, part
from optimization.kernels.labels import longer
from optimization.kernels.rules import Value, slot_cost, slots_needed, value_at

#: Share of a cell that counts as rounding when progress is put on the grid, and the lead every cell is given for it.
CELL_ROUNDING, CELL_LEAD = 1e-9, 1e-6
#: Relative slack of comparisons of money; differences below it are rounding.
MONEY_SLACK = 1e-10
#: Labels there is room for at first.
ROOM = 4096
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


class SearchTerms(NamedTuple):
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


class InGroup(NamedTuple):
    """Instances in an allowed market (-1: in none of those)."""

    group: int
    n: int


class Onward(NamedTuple):
    """A step along the optimistic worths: its state, its optimistic worth, and work and priced cost after it."""

    state: int
    worth: float
    work: float
    paid: float


class Last(NamedTuple):
    """How a route ends on demand: priced worth, state (-1: finished or given up), slots."""

    worth: float
    state: int
    slots: int


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


@part
def way(terms: RouteTerms, k: int, before: InGroup) -> int:
    """How one comes into state ``k`` from what was held."""
    if before.n == 0:
        return BEGIN
    if terms.group[k] != before.group:
        return MOVE
    if terms.n[k] > before.n:
        return UP
    return DOWN if terms.n[k] < before.n else KEPT


@part
def share(terms: RouteTerms, k: int, came: int) -> float:
    """Share of a slot in state ``k`` that makes progress after coming there in a way (M2.4)."""
    if came == KEPT:
        return 1.0
    if came == DOWN:
        return float(terms.down[k])
    return float(terms.move[k]) if came == MOVE else float(terms.up[k])


@part
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


@part
def fill_ending(
    out: np.ndarray, terms: RouteTerms, asked: SearchTerms, k: int, mu: float, cell: float, lost: float
) -> None:
    """Raise ``out`` to the worth of going on after the window in state ``k``, on demand, its first slot at ``mu`` (M3.3b).

    ``lost`` is what a move costs. Cells go from the top down, so that `slots_needed` is counted up from cell to cell.
    """
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


@part
def fill(
    out: np.ndarray,
    terms: RouteTerms,
    asked: SearchTerms,
    later: np.ndarray,
    i: int,
    k: int,
    came: int,
    cell: float,
) -> None:
    """Raise ``out`` to the worth of coming into state ``k`` in a way in slot ``i`` (w: the ending)."""
    usd = asked.later_usd if i == terms.slots else asked.usd
    lost = usd * terms.move_usd if came == MOVE else 0.0
    mu = share(terms, k, came)
    if i == terms.slots:
        fill_ending(out, terms, asked, k, mu, cell, lost)
    else:
        fill_step(out, later[k], mu * terms.gain[k], cell, asked.cost[i, k] + lost)


@part
def induct(
    terms: RouteTerms,
    asked: SearchTerms,
    later: np.ndarray,
    now: np.ndarray,
    i: int,
    cell: float,
    top: float,
    room: np.ndarray,
) -> None:
    """Worth ``now`` (K + 1, cells) before slot ``i`` by the state held before it, from that of the slot after it.

    ``top`` is the worth of the top cell (NaN: as the others); ``room`` (2 groups + 2, cells) is scratch.
    """
    states, groups = terms.n.size, terms.first.size - 1
    idle, best, moved, after = now[states], room[0], room[1 : groups + 1], room[groups + 1 : 2 * groups + 1]
    if i < terms.slots:
        for z in range(idle.size):
            idle[z] = later[states, z]
    else:
        idle[:] = 0.0
    rest = room[2 * groups + 1]
    for z in range(rest.size):
        rest[z] = idle[z]
    for g in range(groups):
        best[:] = -np.inf
        for k in range(terms.first[g + 1] - 1, terms.first[g] - 1, -1):
            for z in range(rest.size):
                now[k, z] = max(rest[z], best[z])
            fill(best, terms, asked, later, i, k, UP, cell)
        for z in range(rest.size):
            idle[z] = max(idle[z], best[z])
        best[:] = -np.inf
        for k in range(terms.first[g], terms.first[g + 1]):
            fill(now[k], terms, asked, later, i, k, KEPT, cell)
            for z in range(rest.size):
                now[k, z] = max(now[k, z], best[z])
            fill(best, terms, asked, later, i, k, DOWN, cell)
    if groups > 1:
        for g in range(groups):
            moved[g] = -np.inf
            for k in range(terms.first[g], terms.first[g + 1]):
                fill(moved[g], terms, asked, later, i, k, MOVE, cell)
        after[groups - 1] = -np.inf
        for g in range(groups - 2, -1, -1):
            for z in range(rest.size):
                after[g, z] = np.maximum(after[g + 1, z], moved[g + 1, z])
        best[:] = -np.inf
        for g in range(groups):
            for k in range(terms.first[g], terms.first[g + 1]):
                for z in range(rest.size):
                    now[k, z] = max(now[k, z], best[z], after[g, z])
            for z in range(rest.size):
                best[z] = np.maximum(best[z], moved[g, z])
    if top == top:
        now[:, -1] = top


@kernel
def optimistic(terms: RouteTerms, asked: SearchTerms, room: np.ndarray) -> tuple[float, float]:
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
    induct(terms, asked, room[terms.slots], room[terms.slots], terms.slots, cell, top, scratch)
    for i in range(terms.slots - 1, 0, -1):
        induct(terms, asked, room[i + 1], room[i], i, cell, top, scratch)
    before, first = InGroup(terms.group_before, terms.n_before), terms.slots - terms.slots
    return cell, onward(terms, asked, room, cell, before, first, terms.done, 0.0).worth


@kernel
def best_ending(terms: RouteTerms, asked: SearchTerms, z: float, before: InGroup, paid: float) -> Last:
    """The best ending of a route that has done ``z`` and paid, within ``asked.most`` of priced cost in all."""
    if z >= terms.line:
        return Last(asked.weight * terms.value.usd, -1, 0)
    best, state, slots = 0.0, -1, 0
    for k in range(terms.n.size):
        came = way(terms, k, before)
        needed = slots_needed(terms.line - z, share(terms, k, came) * terms.gain[k], terms.gain[k])
        cost = asked.later_usd * (needed * terms.on_demand[k] + (terms.move_usd if came == MOVE else 0.0))
        worth = asked.weight * value_at(terms.value, terms.end + needed) - cost
        if worth > best and (paid + cost <= asked.most or not asked.later_counts):
            best, state, slots = worth, k, needed
    return Last(best, state, slots)


@part
def held_in(terms: RouteTerms, k: int | np.int64) -> InGroup:
    """What a state holds."""
    if k == terms.n.size:
        return InGroup(-1, 0)
    return InGroup(terms.group[k], terms.n[k])


@part
def looked_up(room: np.ndarray, i: int, k: int | np.int64, x: float) -> float:
    """The optimistic worth before slot ``i`` in state ``k`` at progress ``x`` cells."""
    top = room.shape[2] - 1
    worth: float = room[i, k, min(max(int(np.ceil(x - CELL_ROUNDING)), 0), top)]
    return worth


@part
def onward(
    terms: RouteTerms,
    asked: SearchTerms,
    room: np.ndarray,
    cell: float,
    before: InGroup,
    i: int,
    z: float,
    paid: float,
) -> Onward:
    """The step in slot ``i``, with ``z`` done and ``paid``, that has the best optimistic rest."""
    states = terms.n.size
    best, worth, reached, cost = states, looked_up(room, i + 1, states, (z - terms.done) / cell), z, 0.0
    for k in range(states):
        came = way(terms, k, before)
        later = z + share(terms, k, came) * terms.gain[k]
        lost = asked.cost[i, k] + (asked.usd * terms.move_usd if came == MOVE else 0.0)
        told = asked.weight * terms.value.usd - lost
        if later < terms.line:
            told = looked_up(room, i + 1, k, (later - terms.done) / cell) - lost
        if told > worth and paid + lost <= asked.most:
            best, worth, reached, cost = k, told, later, lost
    return Onward(best, worth, reached, paid + cost)


@part
def follow(terms: RouteTerms, asked: SearchTerms, room: np.ndarray, cell: float, chosen: np.ndarray) -> float:
    """Write the route that the optimistic worths point out, in exact progress, to ``chosen`` (w,); its true worth."""
    chosen[:] = terms.n.size
    z, before, paid = terms.done, InGroup(terms.group_before, terms.n_before), 0.0
    for i in range(terms.slots):
        if z >= terms.line:
            break
        step = onward(terms, asked, room, cell, before, i, z, paid)
        z, paid = step.work, step.paid
        chosen[i], before = step.state, held_in(terms, step.state)
    return best_ending(terms, asked, z, before, paid).worth - paid


class Labels(NamedTuple):
    """Work done, USD paid, number of the label before, index of the state, by number of the label."""

    work: np.ndarray
    paid: np.ndarray
    parent: np.ndarray
    size: np.ndarray


@part
def trace(labels: Labels, label: int | np.int64, chosen: np.ndarray, slots: int, nothing: int) -> None:
    """Write the states of the first ``slots`` slots that lead to a label, ``nothing`` for those later."""
    chosen[:] = nothing
    for i in range(slots - 1, -1, -1):
        chosen[i] = labels.size[label]
        label = labels.parent[label]


@part
def in_order(labels: Labels, low: int, high: int) -> np.ndarray:
    """Labels low..high-1 by state, then descending work, then cost: shell sort, which compiles quickly."""
    order = np.empty(high - low, np.int64)
    for i in range(order.size):
        order[i] = low + i
    gap = order.size // 2
    while gap > 0:
        for i in range(gap, order.size):
            b, k = order[i], i
            while k >= gap:
                a = order[k - gap]
                if labels.size[a] != labels.size[b]:
                    before = labels.size[a] < labels.size[b]
                elif labels.work[a] != labels.work[b]:
                    before = labels.work[a] > labels.work[b]
                else:
                    before = labels.paid[a] <= labels.paid[b]
                if before:
                    break
                order[k] = a
                k -= gap
            order[k] = b
        gap //= 2
    return order


@part
def extend(
    terms: RouteTerms,
    asked: SearchTerms,
    room: np.ndarray,
    cell: float,
    labels: Labels,
    i: int,
    label: int | np.int64,
    end: int,
    best: np.ndarray,
) -> tuple[int, int]:
    """Write what a label can become in slot ``i`` from number ``end`` on; the new end and the state that finishes best.

    ``best`` = [worth of the incumbent, slack of money] is raised by routes that finish here.
    """
    z, c, state = labels.work[label], labels.paid[label], np.int64(labels.size[label])
    states, finisher = terms.n.size, -1
    before = held_in(terms, state)
    if label == 0:
        before = InGroup(terms.group_before, terms.n_before)
    for k in range(states + 1):
        later, cost = z, c
        if k < states:
            came = way(terms, k, before)
            later = z + share(terms, k, came) * terms.gain[k]
            cost = c + asked.cost[i, k] + (asked.usd * terms.move_usd if came == MOVE else 0.0)
        if cost > asked.most:
            continue
        if later >= terms.line:
            if asked.weight * terms.value.usd - cost > best[0]:
                best[0], finisher = asked.weight * terms.value.usd - cost, k
            continue
        if looked_up(room, i + 1, k, (later - terms.done) / cell) - cost > best[0] + best[1]:
            labels.work[end], labels.paid[end], labels.parent[end], labels.size[end] = later, cost, label, k
            end += 1
    return end, finisher


@part
def promising(
    terms: RouteTerms, room: np.ndarray, cell: float, labels: Labels, i: int, layer: np.ndarray, width: int
) -> np.ndarray:
    """``width`` labels of a layer that slot ``i`` led to, those with the best optimistic worths."""
    told, best = np.empty(layer.size), np.empty(width)
    for place in range(layer.size):
        label = layer[place]
        x = (labels.work[label] - terms.done) / cell
        told[place] = looked_up(room, i + 1, np.int64(labels.size[label]), x) - labels.paid[label]
    # The best worths, descending: an insertion sort of few, from which most others are turned away at once.
    kept = width - width
    for place in range(layer.size):
        if kept == width and told[place] <= best[width - 1]:
            continue
        k = min(kept, width - 1)
        while k > 0 and best[k - 1] < told[place]:
            best[k] = best[k - 1]
            k -= 1
        best[k] = told[place]
        kept = min(kept + 1, width)
    chosen, k = np.empty(width, np.int64), 0
    for place in range(layer.size):
        if told[place] >= best[width - 1] and k < width:
            chosen[k] = layer[place]
            k += 1
    return chosen


@kernel
def search(
    terms: RouteTerms, asked: SearchTerms, room: np.ndarray, cell: float, width: int
) -> tuple[np.ndarray, float, bool]:
    """The states of the best route, its worth, and whether that is proved.

    Of each slot the ``width`` most promising labels are kept: what is dropped for that alone costs the proof.
    """
    states, chosen, best = terms.n.size, np.empty(terms.slots, np.int64), np.empty(2)
    best[0] = follow(terms, asked, room, cell, chosen)
    idle = best_ending(terms, asked, terms.done, InGroup(-1, 0), 0.0).worth
    if idle > best[0]:
        chosen[:], best[0] = states, idle
    dearest = terms.on_demand[0]
    for usd in terms.on_demand:
        dearest = max(dearest, usd)
    best[1] = MONEY_SLACK * (asked.weight * terms.value.usd + asked.usd * dearest)
    labels = Labels(np.empty(ROOM), np.empty(ROOM), np.empty(ROOM, np.int32), np.empty(ROOM, np.int32))
    labels.work[0], labels.paid[0], labels.parent[0], labels.size[0] = terms.done, 0.0, -1, states
    layer, proved = np.empty(1, np.int64), True
    layer[0], end = 0, layer.size
    for i in range(terms.slots):
        low = end
        for label in layer:
            more = end + states + 1
            if more > labels.work.size:
                labels = Labels(
                    longer(labels.work, more),
                    longer(labels.paid, more),
                    longer(labels.parent, more),
                    longer(labels.size, more),
                )
            end, finisher = extend(terms, asked, room, cell, labels, i, label, end, best)
            if finisher >= 0:
                trace(labels, label, chosen, i, states)
                chosen[i] = finisher
        order, kept, least, state = in_order(labels, low, end), 0, np.inf, -1
        for label in order:
            if labels.size[label] != state:
                state, least = int(labels.size[label]), np.inf
            if labels.paid[label] < least:
                order[kept], least = label, labels.paid[label]
                kept += 1
        layer = order[:kept]
        if kept > width:
            layer, proved = promising(terms, room, cell, labels, i, layer, width), False
    for label in layer:
        before, paid = held_in(terms, np.int64(labels.size[label])), labels.paid[label]
        worth = best_ending(terms, asked, labels.work[label], before, paid).worth
        if worth - paid > best[0]:
            best[0] = worth - paid
            trace(labels, label, chosen, terms.slots, states)
    return chosen, best[0], proved
