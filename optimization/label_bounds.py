"""The exact twin's program as arrays, and its optimistic bound: the value the work still to do must cost at least (M3.2), compiled.

Compiled functions call only those of their own file: numba's cache on disk does not notice a change in another one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

#: What the end of the window is worth, as a number the kernels read: `optimization.window.plan.EndRule` (M3.3 a, b, c).
TARGET, TO_GO, EXPECTED = 0, 1, 2


class Terms(NamedTuple):
    """A horizon program as arrays and numbers.

    ``sizes`` and ``gain`` (work units a slot at full efficiency) have shape (sizes,); ``line`` is the progress that finishes (or
    reaches the target), worth ``finish_usd``; ``slack`` is the rounding of work. ``rule`` says what ending short of the line is
    worth: nothing at all (`TARGET`), the rest on demand after slot ``end`` (`TO_GO`), or the table ``work`` (k,), ``value``
    (k, sizes) (`EXPECTED`; empty under the others).
    """

    sizes: np.ndarray
    gain: np.ndarray
    mu_up: float
    mu_down: float
    done: float
    n_previous: int
    line: float
    slack: float
    finish_usd: float
    rule: int
    end: int
    deadline: int
    late_limit: float
    on_demand_usd: float
    slot_hours: float
    work: np.ndarray
    value: np.ndarray


class Curves(NamedTuple):
    """Optimistic loss of value over the work still to do at the start of slots 0..w.

    Row i is convex and begins at (0, 0): corners ``work`` (work units) and ``loss`` (USD), shape (w + 1, most corners), of which
    ``corners[i]`` are used; ``slope[i, k]`` leads from corner k - 1 to k. ``floor_usd`` is what the worst ending is worth.
    """

    work: np.ndarray
    loss: np.ndarray
    slope: np.ndarray
    corners: np.ndarray
    floor_usd: float


class Prepared(NamedTuple):
    """What the search starts from: slot costs (w, sizes), the optimistic bound, size indices, the progress to reach.

    ``sound`` says whether the market is numbers: finite prices, no price or count below 0. If not, nothing else means anything.
    """

    cost: np.ndarray
    curves: Curves
    start: np.ndarray
    line: float
    sound: bool


@njit(cache=True)
def slot_money(terms: Terms, price: np.ndarray, available: np.ndarray) -> np.ndarray:
    """USD of one slot on each size, cheapest split, shape (w, sizes): `optimization.window.statement.slot_costs` (M3.2)."""
    cost = np.empty((price.size, terms.sizes.size))
    for i in range(price.size):
        spot = available[i] if price[i] < terms.on_demand_usd else 0
        for j in range(terms.sizes.size):
            held = min(terms.sizes[j], spot)
            dear = terms.sizes[j] - held
            cost[i, j] = (dear * terms.on_demand_usd + held * price[i]) * terms.slot_hours
    return cost


@njit(cache=True)
def furthest(terms: Terms, slots: int) -> tuple[float, np.ndarray]:
    """The most progress ``slots`` slots can make, and size indices that make it (M3.3a)."""
    m = terms.sizes.size
    z, parent = np.full((slots + 1, m), -np.inf), np.zeros((slots + 1, m), dtype=np.int64)
    for i in range(slots):
        for j in range(m):
            for p in range(m if i else 1):
                before = terms.sizes[p] if i else terms.n_previous
                n, start = terms.sizes[j], z[i, p] if i else terms.done
                mu = terms.mu_up if n > before else terms.mu_down if n < before else 1.0
                if start + mu * terms.gain[j] > z[i + 1, j]:
                    z[i + 1, j], parent[i + 1, j] = start + mu * terms.gain[j], p
    j = int(np.argmax(z[slots]))
    best, chosen = z[slots, j], np.zeros(slots, dtype=np.int64)
    for i in range(slots, 0, -1):
        chosen[i - 1], j = j, parent[i, j]
    return best, chosen


@njit(cache=True)
def ascending(x: np.ndarray) -> np.ndarray:
    """The order that sorts a few numbers, equal ones as they come; compiles in a fraction of the time of numpy's sort."""
    order = np.arange(x.size)
    for i in range(1, x.size):
        k, moved = i, order[i]
        while k > 0 and x[order[k - 1]] > x[moved]:
            order[k] = order[k - 1]
            k -= 1
        order[k] = moved
    return order


@njit(cache=True)
def lower_hull(x: np.ndarray, y: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and lengths, ascending, of the lower convex hull from (0, 0) through points with x >= 0, up to the largest x.

    ``order`` sorts ``x``.
    """
    hx, hy = np.zeros(x.size + 1), np.zeros(x.size + 1)
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
    lengths = hx[1 : k + 1] - hx[:k]
    return (hy[1 : k + 1] - hy[:k]) / lengths, lengths


@njit(cache=True)
def to_go_points(terms: Terms) -> tuple[np.ndarray, np.ndarray]:
    """Work left after the window and the value it loses at least, on demand: points whose hull never overstates the loss.

    Slots are taken as divisible and without reconfiguration.
    """
    m = terms.sizes.size - 1
    x, y = np.zeros(2 * m), np.zeros(2 * m)
    early, late = float(terms.deadline - terms.end), terms.late_limit - terms.end
    for j in range(m):
        price, gain = terms.sizes[j + 1] * terms.on_demand_usd * terms.slot_hours, terms.gain[j + 1]
        x[j], y[j] = early * gain, early * price
        x[m + j], y[m + j] = late * gain, terms.finish_usd + late * price
    return x, y


@njit(cache=True)
def expected_points(terms: Terms, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Work left after the window and the value it loses at least by the table: its points on the best size.

    One more point is the least progress ``slots`` slots can end with, where the table is constant: efficiencies may be below 0.
    """
    k = terms.work.size
    x, y = np.empty(k + 1), np.empty(k + 1)
    for p in range(k):
        x[k - p], y[k - p] = terms.line - terms.work[p], max(0.0, terms.finish_usd - terms.value[p].max())
    worst = min(0.0, terms.mu_up, terms.mu_down) * terms.gain.max()
    x[0], y[0] = max(x[k], terms.line - terms.done - slots * worst), y[k]
    return x, y


@njit(cache=True)
def merged(s1: np.ndarray, l1: np.ndarray, s2: np.ndarray, l2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two lists of segments, each by ascending slope, as one."""
    slope, length = np.empty(s1.size + s2.size), np.empty(s1.size + s2.size)
    a = b = 0
    for k in range(slope.size):
        if b == s2.size or (a < s1.size and s1[a] <= s2[b]):
            slope[k], length[k] = s1[a], l1[a]
            a += 1
        else:
            slope[k], length[k] = s2[b], l2[b]
            b += 1
    return slope, length


@njit(cache=True)
def least_loss(terms: Terms, cost: np.ndarray) -> Curves:
    """The optimistic loss of a program with slot costs ``cost``, shape (w, sizes).

    Every slot's cost of work, and the loss after the window, is replaced by its lower convex hull at full efficiency; the
    infimal convolution of convex piecewise linear curves is the merge of their segments by slope.
    """
    w, m = cost.shape
    segment, length, floor = np.zeros(0), np.zeros(0), -np.inf
    if terms.rule == TO_GO:
        x, y = to_go_points(terms)
        floor, (segment, length) = 0.0, lower_hull(x, y, ascending(x))
    elif terms.rule == EXPECTED:
        x, y = expected_points(terms, w)
        floor, (segment, length) = terms.value[0].max(), lower_hull(x, y, ascending(x))
    order, most = ascending(terms.gain), segment.size + w * (m - 1) + 1
    work, loss, slope = np.zeros((w + 1, most)), np.zeros((w + 1, most)), np.zeros((w + 1, most))
    corners = np.ones(w + 1, dtype=np.int64)
    for i in range(w, -1, -1):
        if i < w:
            s, lengths = lower_hull(terms.gain, cost[i], order)
            segment, length = merged(segment, length, s, lengths)
        corners[i] = segment.size + 1
        for k in range(segment.size):
            work[i, k + 1] = work[i, k] + length[k]
            loss[i, k + 1] = loss[i, k] + segment[k] * length[k]
            slope[i, k + 1] = segment[k]
    return Curves(work, loss, slope, corners, floor)


@njit(cache=True)
def prepare(terms: Terms, price: np.ndarray, available: np.ndarray) -> Prepared:
    """Costs and bound of a program, and what it has to reach.

    Under the target rule that is ``line`` or, if it is less, the most that can be reached, and ``start`` reaches it (M3.3a);
    under the other rules it is ``line``, and ``start`` holds nothing.
    """
    sound = True
    for i in range(price.size):
        sound = sound and 0.0 <= price[i] < np.inf and available[i] >= 0
    cost = slot_money(terms, price, available)
    curves, line, start = least_loss(terms, cost), terms.line, np.zeros(price.size, dtype=np.int64)
    if terms.rule == TARGET:
        most, start = furthest(terms, price.size)
        line = min(line, most - terms.slack)
    return Prepared(cost, curves, start, line, sound)
