"""Kernels of the exact twin: label setting with Pareto pruning and an optimistic, concave bound (M3.2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slackwater.optimization.kernels.arrays import first_from, sort_order
from slackwater.optimization.kernels.compiling import kernel, part
from slackwater.optimization.kernels.rules import (
    Restart,
    Value,
    after_growing,
    after_shrinking,
    efficiency,
    ending,
    late_limit,
    least_efficiency,
    slot_cost,
    spot_held,
)

#: The end rules as numbers for the kernels, see `EndRule` (M3.3 a, b, c).
TARGET, TO_GO, EXPECTED = 0, 1, 2
#: Relative tolerance in comparisons of money; smaller differences are rounding.
MONEY_SLACK = 1e-11


class HorizonProgram(NamedTuple):
    """A horizon program as arrays and numbers.

    ``sizes`` and ``gain`` (work units per slot at full efficiency) have shape (sizes,). ``line`` is
    the progress that finishes the job or reaches the target, with the value ``finish_usd``;
    ``slack`` is the tolerance of work. ``rule`` gives the value of an ending short of the line: not
    allowed (`TARGET`), the on-demand ending after slot ``end`` (`TO_GO`), or the table ``work``
    (k,), ``table_usd`` (k, sizes) (`EXPECTED`; empty for the other rules). Prices are in USD per
    instance-hour.
    """

    sizes: np.ndarray
    gain: np.ndarray
    restart: Restart
    value: Value
    done: float
    n_previous: int
    line: float
    slack: float
    finish_usd: float
    rule: int
    end: int
    on_demand_usd: float
    slot_hours: float
    work: np.ndarray
    table_usd: np.ndarray


class Curves(NamedTuple):
    """Optimistic loss of value as a function of the remaining work at the start of slots 0..w.

    Row i is convex and begins at (0, 0), with corners ``work`` (work units) and ``loss`` (USD),
    shape (w + 1, most corners), of which ``corners[i]`` are used; ``slope[i, k]`` is the slope from
    corner k - 1 to k. ``floor_usd`` is the value of the worst ending.

    ``priced`` (w + 1, sizes) is an upper bound on the value of slots i.. after each size with no
    work left, if work is bought and sold at ``work_usd`` per unit. It accounts for the overhead of
    changes of size, which the curves do not.
    """

    work: np.ndarray
    loss: np.ndarray
    slope: np.ndarray
    corners: np.ndarray
    floor_usd: float
    work_usd: float
    priced: np.ndarray


class Segments(NamedTuple):
    """Convex piecewise linear function from (0, 0): slopes in USD per work unit, ascending, and lengths in work units."""

    slope: np.ndarray
    length: np.ndarray


@part
def slot_costs(terms: HorizonProgram, price: np.ndarray, available: np.ndarray) -> np.ndarray:
    """Return the cost in USD of each size in each slot with the cheapest split, shape (w, sizes) (M3.2)."""
    cost = np.empty((price.size, terms.sizes.size))
    for i in range(price.size):
        for j in range(terms.sizes.size):
            n = terms.sizes[j]
            spot = spot_held(n, available[i], price[i], terms.on_demand_usd)
            cost[i, j] = slot_cost(n, spot, price[i], terms.on_demand_usd) * terms.slot_hours
    return cost


@part
def furthest(terms: HorizonProgram, slots: int, chosen: np.ndarray) -> float:
    """Return the maximal progress after ``slots`` slots; writes size indices that reach it to ``chosen`` (slots,) (M3.3a)."""
    m = terms.sizes.size
    z, parent = np.empty((slots + 1, m)), np.empty((slots + 1, m), np.int64)
    z[:] = -np.inf
    for i in range(slots):
        for j in range(m):
            for p in range(m if i else 1):
                before = terms.sizes[p] if i else terms.n_previous
                reached = z[i, p] if i else terms.done
                reached += efficiency(terms.restart, terms.sizes[j], before) * terms.gain[j]
                if reached > z[i + 1, j]:
                    z[i + 1, j], parent[i + 1, j] = reached, p
    j = m - m
    for p in range(m):
        if z[slots, p] > z[slots, j]:
            j = p
    most: float = z[slots, j]
    for i in range(slots, 0, -1):
        chosen[i - 1], j = j, parent[i, j]
    return most


@part
def lower_hull(x: np.ndarray, y: np.ndarray, order: np.ndarray) -> Segments:
    """Return the lower convex hull from (0, 0) through points with x >= 0, up to the largest x; ``order`` sorts ``x``."""
    hx, hy = np.empty(x.size + 1), np.empty(x.size + 1)
    hx[0] = hy[0] = 0.0
    k = 0
    for i in order:
        if x[i] <= 0.0 or (x[i] == hx[k] and y[i] >= hy[k]):
            continue
        if x[i] == hx[k]:
            k -= 1
        while k > 0 and (hy[k] - hy[k - 1]) * (x[i] - hx[k - 1]) >= (y[i] - hy[k - 1]) * (hx[k] - hx[k - 1]):
            k -= 1
        k += 1
        hx[k], hy[k] = x[i], y[i]
    slope, length = np.empty(k), np.empty(k)
    for i in range(k):
        length[i] = hx[i + 1] - hx[i]
        slope[i] = (hy[i + 1] - hy[i]) / length[i]
    return Segments(slope, length)


@part
def end_points(terms: HorizonProgram, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points (work left after the window, least loss of value) whose hull never overestimates the loss.

    On demand: slots count as divisible and without restarts. Table: its points for the best size,
    and a point at the least progress possible after ``slots`` slots, up to which the table is
    constant, since efficiencies may be negative.
    """
    m = terms.sizes.size - 1
    size = 2 * m if terms.rule == TO_GO else terms.work.size + 1
    if terms.rule == TARGET:
        size = 0
    x, y = np.empty(size), np.empty(size)
    if terms.rule == TO_GO:
        early = float(terms.value.deadline - terms.end)
        late = late_limit(terms.value) - terms.end
        for j in range(m):
            price = terms.sizes[j + 1] * terms.on_demand_usd * terms.slot_hours
            x[j], y[j] = early * terms.gain[j + 1], early * price
            x[m + j], y[m + j] = late * terms.gain[j + 1], terms.finish_usd + late * price
    if terms.rule == EXPECTED:
        k, worst = terms.work.size, 0.0
        for p in range(k):
            x[k - p], y[k - p] = terms.line - terms.work[p], max(0.0, terms.finish_usd - best_of(terms, p))
        for j in range(terms.sizes.size):
            worst = min(worst, least_efficiency(terms.restart, terms.sizes[j]) * terms.gain[j])
        x[0], y[0] = max(x[k], terms.line - terms.done - slots * worst), y[k]
    return x, y


@part
def best_of(terms: HorizonProgram, p: int) -> float:
    """Return the largest value in row p of the table, USD."""
    best: float = terms.table_usd[p, 0]
    for value in terms.table_usd[p]:
        best = max(best, value)
    return best


@part
def merge_segments(a: Segments, b: Segments) -> Segments:
    """Return the segments of two functions merged by ascending slope, which is their infimal convolution."""
    slope, length = np.empty(a.slope.size + b.slope.size), np.empty(a.slope.size + b.slope.size)
    i = k = 0
    for p in range(slope.size):
        if k == b.slope.size or (i < a.slope.size and a.slope[i] <= b.slope[k]):
            slope[p], length[p] = a.slope[i], a.length[i]
            i += 1
        else:
            slope[p], length[p] = b.slope[k], b.length[k]
            k += 1
    return Segments(slope, length)


@part
def priced_worth(terms: HorizonProgram, cost: np.ndarray, end_usd: float, work_usd: float) -> np.ndarray:
    """Return `Curves.priced` at ``work_usd`` per unit: the dual of a program, whose slots are linked by the previous size only.

    ``end_usd`` is an upper bound on the value of the window's end with no work left, if work is
    bought and sold.
    """
    w, m = cost.shape
    worth = np.empty((w + 1, m))
    worth[w] = end_usd
    for i in range(w - 1, -1, -1):
        larger = smaller = -np.inf
        for j in range(m - 1, -1, -1):
            made, then = work_usd * terms.gain[j], worth[i + 1, j] - cost[i, j]
            worth[i, j] = max(larger, then + made)
            larger = max(larger, then + after_growing(terms.restart, terms.sizes[j]) * made)
        for j in range(m):
            made, then = work_usd * terms.gain[j], worth[i + 1, j] - cost[i, j]
            worth[i, j] = max(smaller, worth[i, j])
            smaller = max(smaller, then + after_shrinking(terms.restart, terms.sizes[j]) * made)
    return worth


@part
def least_loss(terms: HorizonProgram, cost: np.ndarray, rest: float) -> Curves:
    """Return the optimistic loss of a program with slot costs ``cost``, shape (w, sizes), and ``rest`` work left.

    The cost of work in every slot, and the loss after the window, are replaced by their lower
    convex hulls at full efficiency; the infimal convolution of convex piecewise linear curves
    merges their segments by slope. The price of work is the slope of the resulting curve at
    ``rest``.
    """
    w, m = cost.shape
    floor = -np.inf if terms.rule == TARGET else 0.0 if terms.rule == TO_GO else best_of(terms, m - m)
    x, y = end_points(terms, w)
    segments = lower_hull(x, y, sort_order(x))
    order, most = sort_order(terms.gain), segments.slope.size + w * (m - 1) + 1
    work, loss, slope = np.empty((w + 1, most)), np.empty((w + 1, most)), np.empty((w + 1, most))
    corners = np.empty(w + 1, np.int64)
    for i in range(w, -1, -1):
        if i < w:
            segments = merge_segments(segments, lower_hull(terms.gain, cost[i], order))
        corners[i] = segments.slope.size + 1
        work[i, 0] = loss[i, 0] = slope[i, 0] = 0.0
        for k in range(segments.slope.size):
            work[i, k + 1] = work[i, k] + segments.length[k]
            loss[i, k + 1] = loss[i, k] + segments.slope[k] * segments.length[k]
            slope[i, k + 1] = segments.slope[k]
    last = corners[0] - 1
    work_usd = slope[0, min(first_from(work[0], corners[0], rest), last)]
    end_usd = -np.inf
    for k in range(corners[w]):
        end_usd = max(end_usd, terms.finish_usd - loss[w, k] + work_usd * work[w, k])
    # At a very high price of work, its rounding error exceeds the value of a plan: add it to the
    # bound.
    end_usd += MONEY_SLACK * work_usd * (work[0, last] + rest)
    return Curves(work, loss, slope, corners, floor, work_usd, priced_worth(terms, cost, end_usd, work_usd))


@part
def corner(curves: Curves, i: int, rest: float) -> int:
    """Return the first corner of row i at or beyond ``rest``."""
    return first_from(curves.work[i], curves.corners[i], rest)


@part
def optimistic(terms: HorizonProgram, curves: Curves, i: int, k: int, rest: float) -> float:
    """Return a bound on the value of slots i.. with ``rest`` work left; k is the first corner of row i at or beyond ``rest``."""
    if k >= curves.corners[i]:
        return curves.floor_usd
    if k == 0:
        return terms.finish_usd
    lost: float = curves.loss[i, k - 1] + curves.slope[i, k] * (rest - curves.work[i, k - 1])
    return max(terms.finish_usd - lost, curves.floor_usd)


@part
def optimistic_at(terms: HorizonProgram, curves: Curves, i: int, rest: float) -> float:
    """Return a bound on the value of slots i.. with ``rest`` work left."""
    return optimistic(terms, curves, i, corner(curves, i, rest), rest)


@part
def priced_at(curves: Curves, i: int, j: int, rest: float) -> float:
    """Return a bound on the value of slots i.. after size index ``j`` with ``rest`` work left; `floor_usd` not included."""
    worth: float = curves.priced[i, j] - curves.work_usd * rest
    return worth


# ---
# The exact twin: label setting with Pareto pruning and a concave bound (M3.2).
#
# A label is (slot, size, work z, cost c). On the same size, more work at a lower cost is at least
# as good under every continuation, so only the Pareto front of each (slot, size) is stored, sorted
# by work, descending. The gain of the next slot depends on the previous size only through "smaller,
# same, larger" (M2.4): the fronts of all smaller sizes are merged once, those of all larger sizes
# once, and each new front is a three-way merge. A label is dropped if its optimistic completion has
# no higher value than the best known plan, by either of two bounds: `optimistic` assumes changes of
# size without overhead, `priced_at` lets work be bought and sold at a single price. The second
# bound leaves a third of the labels of the benchmark's programs of 12 slots with on-demand to go;
# alone it leaves twice as many as both.
#
# A good plan is known from the start: a beam search with a single label per size, guided by the
# same bound, runs first. On the benchmark's programs the value of its plan was on average 0.2 % (w
# = 5) and 0.4 % (w = 12) below the optimum, and the search took a half and a fifth of the time. If
# the search grows large, it starts again with a lower bound from a search with few labels per size.

#: Tie-break: among plans of equal value, the least cost in the window wins, then the earliest
#: payment. Costs are increased by this share, in the window's last slot by almost twice as much.
TIE = 1e-7
#: Initial capacity in labels.
ROOM = 1024
#: Number of labels above which a narrow search pays off, and the labels per size that it stores for
#: each slot of the window.
LARGE, NARROW = 4096, 0.25
#: Result states: optimum proved; best plan found within the label limit; nothing to do before the
#: window begins; not solved, because a price or count is invalid.
PROVED, BEST_FOUND, NOTHING_TO_DO, UNSOUND = 0, 1, 2, 3


class Solution(NamedTuple):
    """Result of `solve`: ``held`` (w, 2) on-demand and spot instances, their cost in USD and progress in work units.

    ``worth`` is W minus the cost, ``bound`` an upper bound on it for all plans; ``state`` is the
    result state.
    """

    state: int
    held: np.ndarray
    paid: float
    reached: float
    worth: float
    bound: float


class Layer(NamedTuple):
    """Work done and USD paid of the labels of a slot."""

    work: np.ndarray
    paid: np.ndarray


class Trail(NamedTuple):
    """Predecessors of labels: the number of the previous label by label number, and the first label of each size after each slot.

    ``first`` has shape (w, sizes + 1).
    """

    parent: np.ndarray
    first: np.ndarray


class Sources(NamedTuple):
    """Labels from which a size is reached: those of smaller sizes, the first and end of the same size, those of larger sizes."""

    below: np.ndarray
    same: int
    same_end: int
    above: np.ndarray


class Step(NamedTuple):
    """Parameters of a front to write: slot, index of the size, its first position, cost of the slot in USD, and the line of work.

    ``before`` and ``first`` are the numbers of the first label before and after the slot; labels
    whose value cannot exceed ``floor`` USD are dropped.
    """

    slot: int
    size: int
    end: int
    cost: float
    line: float
    before: int
    first: int
    floor: float


class Beam(NamedTuple):
    """A label for each slot and size: remaining work, USD paid, optimistic value, all (w + 1, sizes), and the previous size."""

    rest: np.ndarray
    paid: np.ndarray
    hope: np.ndarray
    parent: np.ndarray


@part
def expected_value(terms: HorizonProgram, z: float, j: int | np.int64) -> float:
    """Return the table of M3.3 (c) at ``z`` work units and size index ``j``: linear between its points, constant beyond them."""
    low = first_from(terms.work, terms.work.size, z)
    value: float = terms.table_usd[min(low, terms.work.size - 1), j]
    if 0 < low < terms.work.size:
        share = (terms.work[low] - z) / (terms.work[low] - terms.work[low - 1])
        value -= share * (value - terms.table_usd[low - 1, j])
    return value


@part
def end_value(terms: HorizonProgram, line: float, z: float, j: int | np.int64) -> float:
    """Return W(z, n_end, t + w) of M3.3 for size index ``j``; the target rule gives minus infinity short of ``line``."""
    if z >= line:
        return terms.finish_usd
    if terms.rule == TARGET:
        return -np.inf
    if terms.rule == EXPECTED:
        return expected_value(terms, z, j)
    slot_usd = terms.on_demand_usd * terms.slot_hours
    return ending(
        terms.sizes, terms.gain, terms.restart, terms.value, slot_usd, terms.end, line - z, terms.sizes[j]
    ).usd


@part
def walk(terms: HorizonProgram, line: float, cost: np.ndarray, chosen: np.ndarray) -> float:
    """Return the value of a sequence of size indices, end value minus cost; sets those after the line is reached to 0."""
    z, before, paid = terms.done, terms.n_previous, 0.0
    for i in range(cost.shape[0]):
        if z >= line:
            chosen[i:] = 0
            break
        n = terms.sizes[chosen[i]]
        z += efficiency(terms.restart, n, before) * terms.gain[chosen[i]]
        before = n
        paid += cost[i, chosen[i]]
    return end_value(terms, line, z, chosen[-1]) - paid


@part
def try_label(
    terms: HorizonProgram,
    curves: Curves,
    beam: Beam,
    i: int,
    j: int,
    p: int,
    rest: float,
    paid: float,
    before: int,
) -> None:
    """Store a label in the beam if its optimistic value is higher than that of the present label of size j after slot i.

    It comes from size index ``p`` with ``rest`` work left, ``paid`` USD (including slot i) and
    ``before`` instances.
    """
    rest -= efficiency(terms.restart, terms.sizes[j], before) * terms.gain[j]
    hope = optimistic_at(terms, curves, i + 1, rest) - paid
    if hope > beam.hope[i + 1, j]:
        beam.rest[i + 1, j], beam.paid[i + 1, j] = rest, paid
        beam.hope[i + 1, j], beam.parent[i + 1, j] = hope, p


@part
def first_plan(
    terms: HorizonProgram, cost: np.ndarray, curves: Curves, line: float, chosen: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return the better of ``chosen`` and the beam's best sequence of size indices, and its value.

    The beam stores, for every slot and size, the label with the highest optimistic value.
    """
    w, m = cost.shape
    trial = np.empty(w, np.int64)
    beam = Beam(
        np.empty((w + 1, m)), np.empty((w + 1, m)), np.empty((w + 1, m)), np.empty((w + 1, m), np.int64)
    )
    beam.paid[:], beam.hope[:], beam.parent[:] = np.inf, -np.inf, 0
    for i in range(w):
        if i == 0:
            for j in range(m):
                try_label(terms, curves, beam, i, j, j, line - terms.done, cost[i, j], terms.n_previous)
            continue
        for down in range(2):
            lead = m - 1 if down else 0
            for turn in range(m):
                j = m - 1 - turn if down else turn
                if not down:
                    paid = beam.paid[i, j] + cost[i, j]
                    try_label(terms, curves, beam, i, j, j, beam.rest[i, j], paid, terms.sizes[j])
                if turn > 0:
                    paid = beam.paid[i, lead] + cost[i, j]
                    try_label(terms, curves, beam, i, j, lead, beam.rest[i, lead], paid, terms.sizes[lead])
                if beam.hope[i, j] > beam.hope[i, lead]:
                    lead = j
    best, j = -np.inf, m - m
    for last in range(m):
        if beam.paid[w, last] < np.inf:
            value = end_value(terms, line, line - beam.rest[w, last], last) - beam.paid[w, last]
            if value > best:
                best, j = value, last
    for i in range(w - 1, -1, -1):
        trial[i], j = j, beam.parent[i + 1, j]
    given, found = walk(terms, line, cost, chosen), walk(terms, line, cost, trial)
    return (trial, found) if found > given else (chosen, given)


@part
def longer(a: np.ndarray, size: int) -> np.ndarray:
    """Return the array, or a copy of it with room for 2 ``size`` elements if it has fewer than ``size``."""
    if size <= a.size:
        return a
    b = np.empty(2 * size, a.dtype)
    for i in range(a.size):
        b[i] = a[i]
    return b


@part
def pareto_union(labels: Layer, known: np.ndarray, start: int, stop: int, out: np.ndarray) -> int:
    """Write the front of the labels ``known`` and start..stop-1, both by descending work, to ``out``; returns its length."""
    z, c = labels.work, labels.paid
    a, b, k, least = 0, start, 0, np.inf
    while a < known.size or b < stop:
        first = b == stop or (a < known.size and z[known[a]] >= z[b])
        label = known[a] if first else b
        a, b = (a + 1, b) if first else (a, b + 1)
        if c[label] < least:
            out[k], least = label, c[label]
            k += 1
    return k


@part
def fronts_above(labels: Layer, bounds: np.ndarray, room: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the fronts of the labels on sizes larger than j, for every size index j: ``[ends[j + 1]:ends[j]]`` of the array.

    ``bounds[j]..bounds[j + 1]`` are the labels of size j. ``room`` is the array to write to,
    replaced if too small.
    """
    m = bounds.size - 1
    ends[:] = 0
    for j in range(m - 2, -1, -1):
        begin, end = ends[j + 2], ends[j + 1]
        room = longer(room, 2 * end - begin + bounds[j + 2] - bounds[j + 1])
        ends[j] = end + pareto_union(labels, room[begin:end], bounds[j + 1], bounds[j + 2], room[end:])
    return room


@part
def write_front(
    terms: HorizonProgram,
    curves: Curves,
    labels: Layer,
    sources: Sources,
    step: Step,
    best: np.ndarray,
    out: Layer,
    parent: np.ndarray,
) -> tuple[int, int]:
    """Write the front of a (slot, size); returns the end of the labels and the label that finishes better than ``best`` (-1: none).

    The front is computed from ``labels``, those before the slot, and written to ``out`` and
    ``parent``. ``best`` = [value of the incumbent, tolerance of money], USD, is updated.
    """
    z, c, below, above = labels.work, labels.paid, sources.below, sources.above
    n, kept = terms.sizes[step.size], terms.gain[step.size]
    up, down = after_growing(terms.restart, n) * kept, after_shrinking(terms.restart, n) * kept
    a, b, same, end = 0, 0, sources.same, step.end
    least, k, found = np.inf, -1, -1
    enough = max(best[0], step.floor) + best[1]
    z_up = z[below[0]] + up if below.size else -np.inf
    z_kept = z[same] + kept if same < sources.same_end else -np.inf
    z_down = z[above[0]] + down if above.size else -np.inf
    while True:
        reached = max(z_up, z_kept, z_down)
        if reached == -np.inf:
            return end, found
        if reached == z_up:
            label, a = below[a], a + 1
            z_up = z[below[a]] + up if a < below.size else -np.inf
        elif reached == z_kept:
            label, same = same, same + 1
            z_kept = z[same] + kept if same < sources.same_end else -np.inf
        else:
            label, b = above[b], b + 1
            z_down = z[above[b]] + down if b < above.size else -np.inf
        paid = c[label] + step.cost
        if paid >= least - best[1]:
            continue
        least, rest = paid, step.line - reached
        if rest <= 0.0:
            if terms.finish_usd - paid > best[0]:
                best[0], found = terms.finish_usd - paid, label
                enough = max(best[0], step.floor) + best[1]
            continue
        if max(priced_at(curves, step.slot + 1, step.size, rest), curves.floor_usd) - paid <= enough:
            continue
        if k < 0:
            k = corner(curves, step.slot + 1, rest)
        while k < curves.corners[step.slot + 1] and curves.work[step.slot + 1, k] < rest:
            k += 1
        if optimistic(terms, curves, step.slot + 1, k, rest) - paid > enough:
            out.work[end], out.paid[end], parent[step.first + end] = reached, paid, step.before + label
            end += 1


@part
def thin_front(
    terms: HorizonProgram, curves: Curves, step: Step, out: Layer, parent: np.ndarray, end: int, width: int
) -> int:
    """Reduce a front that ends at ``end`` to the ``width`` labels with the highest optimistic value; returns its new end."""
    count = end - step.end
    hope, top = np.empty(count), np.empty(width)
    top[:] = -np.inf
    for k in range(count):
        label = step.end + k
        hope[k] = optimistic_at(terms, curves, step.slot + 1, step.line - out.work[label]) - out.paid[label]
        place = width - 1
        if hope[k] > top[place]:
            while place > 0 and top[place - 1] < hope[k]:
                top[place] = top[place - 1]
                place -= 1
            top[place] = hope[k]
    kept = step.end
    for k in range(count):
        if hope[k] >= top[width - 1] and kept < step.end + width:
            label = step.end + k
            out.work[kept], out.paid[kept] = out.work[label], out.paid[label]
            parent[step.first + kept] = parent[step.first + label]
            kept += 1
    return kept


@part
def retrace(trail: Trail, label: int | np.int64, chosen: np.ndarray, slots: int, nothing: int) -> None:
    """Write the size indices of the first ``slots`` slots that lead to a label, and ``nothing`` for later slots."""
    chosen[:] = nothing
    for i in range(slots - 1, -1, -1):
        j = trail.first.shape[1] - 2
        while trail.first[i, j] > label:
            j -= 1
        chosen[i], label = j, trail.parent[label]


@part
def with_ties(cost: np.ndarray) -> np.ndarray:
    """Return slot costs (w, sizes) with weights by slot, so that plans with different payments differ by more than rounding."""
    w = cost.shape[0]
    weighed = np.empty(cost.shape)
    for i in range(w):
        for j in range(cost.shape[1]):
            weighed[i, j] = cost[i, j] * (1.0 + TIE * (1.0 + i / w))
    return weighed


@part
def write_allocations(
    terms: HorizonProgram,
    cost: np.ndarray,
    price: np.ndarray,
    available: np.ndarray,
    chosen: np.ndarray,
    held: np.ndarray,
) -> tuple[float, float]:
    """Write the allocations of a sequence of size indices to ``held`` (w, 2); returns the USD paid and the progress reached."""
    paid, z, before = 0.0, terms.done, terms.n_previous
    for i in range(price.size):
        n = terms.sizes[chosen[i]]
        held[i, 1] = spot_held(n, available[i], price[i], terms.on_demand_usd)
        held[i, 0] = n - held[i, 1]
        paid += cost[i, chosen[i]]
        z += efficiency(terms.restart, n, before) * terms.gain[chosen[i]]
        before = n
    return paid, z


@part
def search(
    terms: HorizonProgram,
    cost: np.ndarray,
    curves: Curves,
    line: float,
    chosen: np.ndarray,
    best: np.ndarray,
    floor: float,
    width: int,
    limit: int,
) -> bool:
    """Improve the known plan ``chosen`` and ``best`` = [its value, tolerance of money] to the optimum; False: too many labels.

    Labels whose value cannot exceed ``floor`` are left out. With ``width`` > 0 only so many labels
    per size are stored after each slot, and the plan found need not be optimal.
    """
    w, m = cost.shape
    zero = m - m
    now, then = Layer(np.empty(ROOM), np.empty(ROOM)), Layer(np.empty(ROOM), np.empty(ROOM))
    trail = Trail(np.empty(ROOM, np.int32), np.empty((w, m + 1), np.int64))
    below, spare, room = np.empty(ROOM, np.int32), np.empty(ROOM, np.int32), np.empty(ROOM, np.int32)
    bounds, before, ends = np.empty(m + 1, np.int64), np.empty(m + 1, np.int64), np.empty(m + 1, np.int64)
    root = np.empty(1, np.int32)
    now.work[0], now.paid[0], trail.parent[0], root[0], bounds[:] = terms.done, 0.0, -1, 0, 0
    come, first = zero, root.size
    for i in range(w):
        room = fronts_above(now, bounds, room, ends)
        for j in range(m + 1):
            before[j] = bounds[j]
        smaller, end, bounds[0], trail.first[i, 0] = 0, zero, 0, first
        for j in range(m):
            if i == 0:
                n, previous = terms.sizes[j], terms.n_previous
                sources = Sources(
                    root[: int(previous < n)], zero, zero + int(previous == n), root[: int(previous > n)]
                )
            else:
                sources = Sources(below[:smaller], before[j], before[j + 1], room[ends[j + 1] : ends[j]])
            more = end + sources.below.size + sources.same_end - sources.same + sources.above.size
            if first + more > limit:
                return False
            if more > then.work.size:
                then = Layer(longer(then.work, more), longer(then.paid, more))
            if first + more > trail.parent.size:
                trail = Trail(longer(trail.parent, first + more), trail.first)
            step = Step(i, j, end, cost[i, j], line, come, first, floor)
            end, found = write_front(terms, curves, now, sources, step, best, then, trail.parent)
            if found >= 0:
                retrace(trail, come + found, chosen, i, zero)
                chosen[i] = j
            if 0 < width < end - step.end:
                end = thin_front(terms, curves, step, then, trail.parent, end, width)
            bounds[j + 1], trail.first[i, j + 1] = end, first + end
            if i > 0:
                spare = longer(spare, smaller + before[j + 1] - before[j])
                smaller = pareto_union(now, below[:smaller], before[j], before[j + 1], spare)
                below, spare = spare, below
        now, then, come, first = then, now, first, first + end
    for j in range(m):
        # The end value does not fall with work, and labels come by descending work: the last
        # computed end value is a bound that rules out most labels.
        worth = np.inf
        for label in range(bounds[j], bounds[j + 1]):
            if worth - now.paid[label] <= best[0] - best[1]:
                continue
            worth = end_value(terms, line, now.work[label], np.int64(j))
            if worth - now.paid[label] > best[0]:
                best[0] = worth - now.paid[label]
                retrace(trail, come + label, chosen, w, zero)
    return True


@kernel
def solve(terms: HorizonProgram, price: np.ndarray, available: np.ndarray, limit: int) -> Solution:
    """Return the best plan of a program; if it needs more than ``limit`` labels, the best found by then.

    Under the target rule the line is lowered to the maximal progress if the target is out of reach
    (M3.3a). Ties are broken by `TIE`.
    """
    w, m = price.size, terms.sizes.size
    held, chosen = np.empty((w, 2), np.int64), np.empty(w, np.int64)
    held[:], chosen[:] = 0, 0
    for i in range(w):
        if not (0.0 <= price[i] < np.inf and available[i] >= 0):
            return Solution(UNSOUND, held, 0.0, terms.done, 0.0, 0.0)
    line = terms.line
    if terms.rule == TARGET:
        line = min(line, furthest(terms, w, chosen) - terms.slack)
    if terms.done >= line:
        return Solution(NOTHING_TO_DO, held, 0.0, terms.done, terms.finish_usd, terms.finish_usd)
    usd = slot_costs(terms, price, available)
    cost = with_ties(usd)
    curves = least_loss(terms, cost, line - terms.done)
    best = np.empty(2)
    chosen, best[0] = first_plan(terms, cost, curves, line, chosen)
    best[1] = terms.finish_usd
    for i in range(w):
        best[1] += cost[i, m - 1]
    best[1] *= MONEY_SLACK
    good, known = chosen.copy(), best.copy()
    proved = search(terms, cost, curves, line, good, known, -np.inf, 0, min(limit, LARGE))
    if proved:
        chosen, best = good, known
    elif limit > LARGE:
        # The narrow search's plan is used only if no better plan is found, since it may differ from
        # the tie-break's choice among equal plans. Labels below its value by more than the
        # accumulated rounding are part of no optimal plan.
        search(terms, cost, curves, line, good, known, -np.inf, max(2, int(NARROW * w)), limit)
        floor = known[0] - 2.0 * (w + 2) * best[1]
        proved = search(terms, cost, curves, line, chosen, best, floor, 0, limit)
    if not proved and known[0] > best[0]:
        chosen, best = good, known
    paid, reached = write_allocations(terms, usd, price, available, chosen, held)
    worth = walk(terms, line, usd, chosen)
    if proved:
        return Solution(PROVED, held, paid, reached, worth, worth)
    bound = max(best[0], optimistic_at(terms, curves, m - m, line - terms.done))
    for k in range(w):
        bound += 2.0 * TIE * usd[k, m - 1]
    return Solution(BEST_FOUND, held, paid, reached, worth, max(bound, worth))
