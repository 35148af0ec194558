"""The exact twin's program as arrays, and its optimistic bound: the value the work still to do must cost at least (M3.2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optimization.kernels.compiling import kernel
from optimization.kernels.rules import (
    Restart,
    Value,
    efficiency,
    late_limit,
    least_efficiency,
    slot_cost,
    spot_held,
)

#: What the end of the window is worth, as a number the kernels read: `EndRule` (M3.3 a, b, c).
TARGET, TO_GO, EXPECTED = 0, 1, 2


class Terms(NamedTuple):
    """A horizon program as arrays and numbers.

    ``sizes`` and ``gain`` (work units a slot at full efficiency) have shape (sizes,); ``line`` is the progress that
    finishes (or reaches the target), worth ``finish_usd``; ``slack`` is the rounding of work. ``rule`` says what ending
    short of the line is worth: nothing at all (`TARGET`), the rest on demand after slot ``end`` (`TO_GO`), or the table
    ``work`` (k,), ``table_usd`` (k, sizes) (`EXPECTED`; empty under the others). Prices are USD per instance-hour.
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
    """Optimistic loss of value over the work still to do at the start of slots 0..w.

    Row i is convex and begins at (0, 0): corners ``work`` (work units) and ``loss`` (USD), shape (w + 1, most corners), of
    which ``corners[i]`` are used; ``slope[i, k]`` leads from corner k - 1 to k. ``floor_usd`` is what the worst ending is
    worth.
    """

    work: np.ndarray
    loss: np.ndarray
    slope: np.ndarray
    corners: np.ndarray
    floor_usd: float


class Segments(NamedTuple):
    """A convex piecewise linear function from (0, 0): slopes in USD per work unit, ascending, and lengths in work units."""

    slope: np.ndarray
    length: np.ndarray


@kernel
def slot_costs(terms: Terms, price: np.ndarray, available: np.ndarray) -> np.ndarray:
    """USD of one slot on each size, cheapest split, shape (w, sizes) (M3.2)."""
    cost = np.empty((price.size, terms.sizes.size))
    for i in range(price.size):
        for j in range(terms.sizes.size):
            n = terms.sizes[j]
            spot = spot_held(n, available[i], price[i], terms.on_demand_usd)
            cost[i, j] = slot_cost(n, spot, price[i], terms.on_demand_usd) * terms.slot_hours
    return cost


@kernel
def furthest(terms: Terms, slots: int, chosen: np.ndarray) -> float:
    """The most progress ``slots`` slots can make; writes size indices that make it to ``chosen`` (slots,) (M3.3a)."""
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


@kernel
def ascending(x: np.ndarray) -> np.ndarray:
    """The order that sorts a few numbers, equal ones as they come; compiles in a fraction of the time of numpy's sort."""
    order = np.empty(x.size, np.int64)
    for i in range(x.size):
        k = i
        while k > 0 and x[order[k - 1]] > x[i]:
            order[k] = order[k - 1]
            k -= 1
        order[k] = i
    return order


@kernel
def lower_hull(x: np.ndarray, y: np.ndarray, order: np.ndarray) -> Segments:
    """The lower convex hull from (0, 0) through points with x >= 0, up to the largest x; ``order`` sorts ``x``."""
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


@kernel
def end_points(terms: Terms, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Work left after the window and the value it loses at least: points whose hull never overstates the loss.

    On demand: slots are taken as divisible and without restarts. By the table: its points on the best size; one more is the
    least progress ``slots`` slots can end with, where the table is constant: efficiencies may be below 0.
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


@kernel
def best_of(terms: Terms, p: int) -> float:
    """The largest value in row p of the table, USD."""
    best: float = terms.table_usd[p, 0]
    for value in terms.table_usd[p]:
        best = max(best, value)
    return best


@kernel
def merged(a: Segments, b: Segments) -> Segments:
    """The segments of two functions by ascending slope: their infimal convolution."""
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


@kernel
def least_loss(terms: Terms, cost: np.ndarray) -> Curves:
    """The optimistic loss of a program with slot costs ``cost``, shape (w, sizes).

    Every slot's cost of work, and the loss after the window, is replaced by its lower convex hull at full efficiency; the
    infimal convolution of convex piecewise linear curves is the merge of their segments by slope.
    """
    w, m = cost.shape
    floor = -np.inf if terms.rule == TARGET else 0.0 if terms.rule == TO_GO else best_of(terms, m - m)
    x, y = end_points(terms, w)
    segments = lower_hull(x, y, ascending(x))
    order, most = ascending(terms.gain), segments.slope.size + w * (m - 1) + 1
    work, loss, slope = np.empty((w + 1, most)), np.empty((w + 1, most)), np.empty((w + 1, most))
    corners = np.empty(w + 1, np.int64)
    for i in range(w, -1, -1):
        if i < w:
            segments = merged(segments, lower_hull(terms.gain, cost[i], order))
        corners[i] = segments.slope.size + 1
        work[i, 0] = loss[i, 0] = slope[i, 0] = 0.0
        for k in range(segments.slope.size):
            work[i, k + 1] = work[i, k] + segments.length[k]
            loss[i, k + 1] = loss[i, k] + segments.slope[k] * segments.length[k]
            slope[i, k + 1] = segments.slope[k]
    return Curves(work, loss, slope, corners, floor)


@kernel
def corner(curves: Curves, i: int, rest: float) -> int:
    """The first corner of row i at or beyond ``rest``."""
    low, high = 0, curves.corners[i]
    while low < high:
        middle = (low + high) // 2
        if curves.work[i, middle] < rest:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def optimistic(terms: Terms, curves: Curves, i: int, k: int, rest: float) -> float:
    """Bound on the worth of slots i.. when ``rest`` work is left; k is the first corner of row i at or beyond ``rest``."""
    if k >= curves.corners[i]:
        return curves.floor_usd
    if k == 0:
        return terms.finish_usd
    lost: float = curves.loss[i, k - 1] + curves.slope[i, k] * (rest - curves.work[i, k - 1])
    return max(terms.finish_usd - lost, curves.floor_usd)


@kernel
def optimistic_at(terms: Terms, curves: Curves, i: int, rest: float) -> float:
    """Bound on the worth of slots i.. when ``rest`` work is left."""
    return optimistic(terms, curves, i, corner(curves, i, rest), rest)
