"""Compiled inner loops of the exact twin: label setting with Pareto pruning and a concave bound (M3.2).

A label is (slot, size, work z, cost c). On one size more work for less cost is at least as good under every continuation,
so only the Pareto front of each (slot, size) is kept, sorted by work, descending. The gain of the next slot depends on the size
before only through "smaller, same, larger" (M2.4): the fronts of all smaller sizes are merged once, those of all larger ones once,
and each new front is a three-way merge. A label is dropped when even an optimistic completion is not worth more than the best one known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

#: Relative slack of comparisons of money; differences below it are rounding.
MONEY_SLACK = 1e-11


class Terms(NamedTuple):
    """A horizon program as arrays.

    ``sizes`` and ``gain`` (work units a slot at full efficiency) have shape (sizes,); ``line`` is the progress that finishes (or
    reaches the target), worth ``finish_usd``. With ``to_go`` the rest may be done on demand after slot ``end`` at
    ``on_demand_slot_usd`` per instance and slot (M3.3b); without, ending short of the line is worth nothing at all (M3.3a).
    """

    sizes: np.ndarray
    gain: np.ndarray
    mu_up: float
    mu_down: float
    done: float
    n_previous: int
    line: float
    finish_usd: float
    to_go: bool
    end: int
    deadline: int
    late_limit: float
    on_demand_slot_usd: float


@njit(cache=True)
def efficiency(terms: Terms, n: int, before: int) -> float:
    """mu of M2.4."""
    if n > before:
        return terms.mu_up
    return terms.mu_down if n < before else 1.0


@njit(cache=True)
def value_at(terms: Terms, slots: float) -> float:
    """V(T) of M2.5; the finish value is v."""
    if slots <= terms.deadline:
        return terms.finish_usd
    if slots >= terms.late_limit:
        return 0.0
    return terms.finish_usd * (terms.late_limit - slots) / (terms.late_limit - terms.deadline)


@njit(cache=True)
def end_value(terms: Terms, z: float, before: int) -> float:
    """W(z, n_end, t + w) of M3.3: `optimization.termination.on_demand_to_go` for (b), 0 or minus infinity for (a)."""
    if z >= terms.line:
        return terms.finish_usd
    if not terms.to_go:
        return -np.inf
    best, rest = 0.0, terms.line - z
    for j in range(1, terms.sizes.size):
        n, gain = terms.sizes[j], terms.gain[j]
        first = efficiency(terms, n, before) * gain
        k = 1
        if rest > first:
            k = 1 + max(0, int(np.ceil((rest - first) / gain - 1e-6)))
            while first + (k - 1) * gain < rest:
                k += 1
        value = value_at(terms, terms.end + k) - k * n * terms.on_demand_slot_usd
        best = max(best, value)
    return best


@njit(cache=True)
def lower_hull(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and lengths, ascending, of the lower convex hull from (0, 0) through points with x >= 0, up to the largest x."""
    order = np.argsort(x)
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
def end_hull(terms: Terms) -> tuple[np.ndarray, np.ndarray]:
    """Least value lost against finishing now, over the work left to do after the window: slopes and lengths of its convex hull.

    Slots are taken as divisible and without reconfiguration, so it never overstates the loss.
    """
    if not terms.to_go:
        return np.zeros(0), np.zeros(0)
    m = terms.sizes.size - 1
    x, y = np.zeros(2 * m), np.zeros(2 * m)
    early, late = float(terms.deadline - terms.end), terms.late_limit - terms.end
    for j in range(m):
        price, gain = terms.sizes[j + 1] * terms.on_demand_slot_usd, terms.gain[j + 1]
        x[j], y[j] = early * gain, early * price
        x[m + j], y[m + j] = late * gain, terms.finish_usd + late * price
    return lower_hull(x, y)


@njit(cache=True)
def least_loss(terms: Terms, cost: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Optimistic loss of the work still to do at the start of slot i = 0..w: corners (work, USD) per slot, and their number.

    Every slot's cost of work is replaced by its lower convex hull at full efficiency; the infimal convolution of convex
    piecewise linear curves is the merge of their segments by slope. Shapes (w + 1, corners), (w + 1,).
    """
    w = cost.shape[0]
    slope, length = end_hull(terms)
    most = slope.size + w * (terms.sizes.size - 1) + 1
    work, loss, corners = np.zeros((w + 1, most)), np.zeros((w + 1, most)), np.ones(w + 1, dtype=np.int64)
    for i in range(w, -1, -1):
        if i < w:
            s, lengths = lower_hull(terms.gain, cost[i])
            slope, length = merged(slope, length, s, lengths)
        corners[i] = slope.size + 1
        for k in range(slope.size):
            work[i, k + 1] = work[i, k] + length[k]
            loss[i, k + 1] = loss[i, k] + slope[k] * length[k]
    return work, loss, corners


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
def optimistic(terms: Terms, work: np.ndarray, loss: np.ndarray, k: int, corners: int, rest: float) -> float:
    """Bound on the worth of the rest of the program when ``rest`` work is left and corner k is the first at or beyond it."""
    if k >= corners:
        return 0.0 if terms.to_go else -np.inf
    if k == 0:
        return terms.finish_usd
    share = (rest - work[k - 1]) / (work[k] - work[k - 1])
    value = terms.finish_usd - (loss[k - 1] + share * (loss[k] - loss[k - 1]))
    return max(value, 0.0) if terms.to_go else value


@njit(cache=True)
def dive(
    terms: Terms, cost: np.ndarray, work: np.ndarray, loss: np.ndarray, corners: np.ndarray
) -> np.ndarray:
    """A good first sequence of size indices: each slot the size with the best optimistic worth."""
    chosen = np.zeros(cost.shape[0], dtype=np.int64)
    z, before = terms.done, terms.n_previous
    for i in range(cost.shape[0]):
        best, took = -np.inf, 0
        for j in range(terms.sizes.size):
            rest = terms.line - z - efficiency(terms, terms.sizes[j], before) * terms.gain[j]
            k = np.searchsorted(work[i + 1, : corners[i + 1]], max(rest, 0.0))
            ahead = (
                optimistic(terms, work[i + 1], loss[i + 1], k, corners[i + 1], max(rest, 0.0)) - cost[i, j]
            )
            if ahead > best:
                best, took = ahead, j
        chosen[i] = took
        z += efficiency(terms, terms.sizes[took], before) * terms.gain[took]
        before = terms.sizes[took]
        if z >= terms.line:
            break
    return chosen


@njit(cache=True)
def walk(terms: Terms, cost: np.ndarray, chosen: np.ndarray) -> float:
    """Worth of a sequence of size indices: end value minus cost."""
    z, before, paid = terms.done, terms.n_previous, 0.0
    for i in range(cost.shape[0]):
        z += efficiency(terms, terms.sizes[chosen[i]], before) * terms.gain[chosen[i]]
        before = terms.sizes[chosen[i]]
        paid += cost[i, chosen[i]]
    return end_value(terms, z, before) - paid


@njit(cache=True)
def furthest(terms: Terms, slots: int) -> tuple[float, np.ndarray]:
    """The most progress ``slots`` slots can make, and size indices that make it (M3.3a)."""
    m = terms.sizes.size
    z, parent = np.full((slots + 1, m), -np.inf), np.zeros((slots + 1, m), dtype=np.int64)
    for i in range(slots):
        for j in range(m):
            for p in range(m if i else 1):
                before = terms.sizes[p] if i else terms.n_previous
                start = z[i, p] if i else terms.done
                reached = start + efficiency(terms, terms.sizes[j], before) * terms.gain[j]
                if reached > z[i + 1, j]:
                    z[i + 1, j], parent[i + 1, j] = reached, p
    j = int(np.argmax(z[slots]))
    best, chosen = z[slots, j], np.zeros(slots, dtype=np.int64)
    for i in range(slots, 0, -1):
        chosen[i - 1], j = j, parent[i, j]
    return best, chosen
