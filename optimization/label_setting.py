"""Compiled inner loops of the exact twin: label setting with Pareto pruning and a concave bound (M3.2).

A label is (slot, size, work z, cost c). On one size more work for less cost is at least as good under every continuation,
so only the Pareto front of each (slot, size) is kept, sorted by work, descending. The gain of the next slot depends on the size
before only through "smaller, same, larger" (M2.4): the fronts of all smaller sizes are merged once, those of all larger ones
once, and each new front is a three-way merge. A label is dropped when even an optimistic completion (`optimization.label_bounds`)
is not worth more than the best one known; a good one is known from the start, because a beam of one label a size is run first
(`optimization.label_beam`). Compiled functions call only those of their own file: numba's cache on disk does not notice a
change in another one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from optimization.label_beam import Beam
from optimization.label_bounds import EXPECTED, TARGET, Curves, Prepared, Terms

#: Relative slack of comparisons of money; differences below it are rounding.
MONEY_SLACK = 1e-11


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
def on_demand_value(terms: Terms, rest: float, before: int) -> float:
    """`optimization.job.termination.on_demand_to_go` for ``rest`` work units left, in USD (M3.3b)."""
    best = 0.0
    for j in range(1, terms.sizes.size):
        n, gain = terms.sizes[j], terms.gain[j]
        first = efficiency(terms, n, before) * gain
        k = 1
        if rest > first:
            k = 1 + max(0, int(np.ceil((rest - first) / gain - 1e-6)))
            while first + (k - 1) * gain < rest:
                k += 1
        best = max(best, value_at(terms, terms.end + k) - k * n * terms.on_demand_usd * terms.slot_hours)
    return best


@njit(cache=True)
def expected_value(terms: Terms, z: float, j: int) -> float:
    """The table of M3.3 (c) at ``z`` work units and size index ``j``: linear between its points, constant beyond them."""
    k = int(np.searchsorted(terms.work, z))
    value: float = terms.value[min(k, terms.work.size - 1), j]
    if 0 < k < terms.work.size:
        share = (terms.work[k] - z) / (terms.work[k] - terms.work[k - 1])
        value -= share * (value - terms.value[k - 1, j])
    return value


@njit(cache=True)
def end_value(terms: Terms, line: float, z: float, j: int) -> float:
    """W(z, n_end, t + w) of M3.3 on size index ``j``; short of ``line`` the target rule gives minus infinity."""
    if z >= line:
        return terms.finish_usd
    if terms.rule == TARGET:
        return -np.inf
    if terms.rule == EXPECTED:
        return expected_value(terms, z, j)
    return on_demand_value(terms, line - z, terms.sizes[j])


@njit(cache=True)
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


@njit(cache=True)
def optimistic(terms: Terms, curves: Curves, i: int, k: int, rest: float) -> float:
    """Bound on the worth of slots i.. when ``rest`` work is left; k is the first corner of row i at or beyond ``rest``."""
    if k >= curves.corners[i]:
        return curves.floor_usd
    if k == 0:
        return terms.finish_usd
    lost: float = curves.loss[i, k - 1] + curves.slope[i, k] * (rest - curves.work[i, k - 1])
    return max(terms.finish_usd - lost, curves.floor_usd)


@njit(cache=True)
def walk(terms: Terms, line: float, cost: np.ndarray, chosen: np.ndarray) -> float:
    """Worth of a sequence of size indices, end value minus cost; those after the line is reached become 0."""
    z, before, paid = terms.done, terms.n_previous, 0.0
    for i in range(cost.shape[0]):
        if z >= line:
            chosen[i:] = 0
            break
        z += efficiency(terms, terms.sizes[chosen[i]], before) * terms.gain[chosen[i]]
        before = terms.sizes[chosen[i]]
        paid += cost[i, chosen[i]]
    return end_value(terms, line, z, chosen[-1]) - paid


@njit(cache=True)
def grown(a: np.ndarray, size: int) -> np.ndarray:
    """The array, or a copy with room for ``size`` elements and as many again."""
    if size <= a.size:
        return a
    b = np.empty(2 * size, dtype=a.dtype)
    b[: a.size] = a
    return b


@njit(cache=True)
def pareto_union(
    labels: tuple[np.ndarray, np.ndarray], known: np.ndarray, start: int, stop: int, out: np.ndarray
) -> int:
    """Write to ``out`` the Pareto front of the labels ``known`` and start..stop-1, both by descending work; how many there are."""
    z, c = labels
    a, b, k, least = 0, start, 0, np.inf
    while a < known.size or b < stop:
        first = b == stop or (a < known.size and z[known[a]] >= z[b])
        label = known[a] if first else b
        a, b = (a + 1, b) if first else (a, b + 1)
        if c[label] < least:
            out[k], least = label, c[label]
            k += 1
    return k


@njit(cache=True)
def fronts_above(
    labels: tuple[np.ndarray, np.ndarray], bounds: np.ndarray, room: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """For every size index j the front of the labels on larger sizes: ``[ends[j + 1]:ends[j]]`` of the array returned.

    ``bounds[j]..bounds[j + 1]`` are the labels of size j, ``room`` is an array to write to, replaced when it is too small.
    """
    m = bounds.size - 1
    ends[:] = 0
    for j in range(m - 2, -1, -1):
        begin, end = ends[j + 2], ends[j + 1]
        room = grown(room, 2 * end - begin + bounds[j + 2] - bounds[j + 1])
        ends[j] = end + pareto_union(labels, room[begin:end], bounds[j + 1], bounds[j + 2], room[end:])
    return room


@njit(cache=True)
def write_front(
    terms: Terms,
    curves: Curves,
    labels: tuple[np.ndarray, np.ndarray, np.ndarray],
    sources: tuple[np.ndarray, int, int, np.ndarray],
    step: tuple[int, int, int, float, float],
    best: np.ndarray,
) -> tuple[int, int]:
    """Write the front of one (slot, size): the end of the labels, and the label that finishes better than ``best`` (-1: none does).

    ``sources`` are what it is reached from: labels of smaller sizes, the first and last of the same, labels of larger sizes.
    ``step`` is the slot, the index of the size, the position to write to, the cost and the line; ``best`` = [worth of the
    incumbent, slack of money] is updated.
    """
    z, c, parent = labels
    below, same, same_end, above = sources
    i, j, end, price, line = step
    up, kept, down = terms.mu_up * terms.gain[j], terms.gain[j], terms.mu_down * terms.gain[j]
    a = b = 0
    least, k, found = np.inf, -1, -1
    z_up = z[below[0]] + up if below.size else -np.inf
    z_kept = z[same] + kept if same < same_end else -np.inf
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
            z_kept = z[same] + kept if same < same_end else -np.inf
        else:
            label, b = above[b], b + 1
            z_down = z[above[b]] + down if b < above.size else -np.inf
        cost = c[label] + price
        if cost >= least - best[1]:
            continue
        least, rest = cost, line - reached
        if rest <= 0.0:
            if terms.finish_usd - cost > best[0]:
                best[0], found = terms.finish_usd - cost, label
            continue
        if k < 0:
            k = corner(curves, i + 1, rest)
        while k < curves.corners[i + 1] and curves.work[i + 1, k] < rest:
            k += 1
        if optimistic(terms, curves, i + 1, k, rest) - cost > best[0] + best[1]:
            z[end], c[end], parent[end] = reached, cost, label
            end += 1


@njit(cache=True)
def first_best(
    terms: Terms, line: float, cost: np.ndarray, start: np.ndarray, beamed: Beam
) -> tuple[np.ndarray, np.ndarray]:
    """The better of ``start`` and the best sequence of the beam, and [its worth, slack of comparisons of money]."""
    best, j, trial = -np.inf, 0, np.zeros(cost.shape[0], dtype=np.int64)
    for last in range(terms.sizes.size):
        if beamed.paid[last] < np.inf:
            told = end_value(terms, line, line - beamed.rest[last], last) - beamed.paid[last]
            if told > best:
                best, j = told, last
    for i in range(cost.shape[0] - 1, -1, -1):
        trial[i], j = j, beamed.parent[i, j]
    given, found = walk(terms, line, cost, start), walk(terms, line, cost, trial)
    slack = MONEY_SLACK * (terms.finish_usd + cost[:, -1].sum())
    return (trial if found > given else start), np.array([max(given, found), slack])


@njit(cache=True)
def search(terms: Terms, prepared: Prepared, beamed: Beam, limit: int) -> tuple[np.ndarray, float, bool]:
    """The best sequence of size indices, its worth, and whether that is proved.

    If more than ``limit`` labels are needed nothing is proved and the best so far is given.
    """
    cost, curves, line = prepared.cost, prepared.curves, prepared.line
    w, m = cost.shape
    chosen, best = first_best(terms, line, cost, prepared.start, beamed)
    z, c, parent, size = np.empty(1024), np.empty(1024), np.empty(1024, np.int32), np.empty(1024, np.int32)
    below, spare, room = np.empty(256, np.int32), np.empty(256, np.int32), np.empty(1024, np.int32)
    z[0], c[0], parent[0], size[0] = terms.done, 0.0, -1, -1
    root, end = np.zeros(1, np.int32), 1
    bounds, ends = np.zeros(m + 1, dtype=np.int64), np.zeros(m + 1, dtype=np.int64)
    for i in range(w):
        room = fronts_above((z, c), bounds, room, ends)
        before, smaller, bounds[0] = bounds.copy(), 0, end
        for j in range(m):
            if i == 0:
                n, held = terms.sizes[j], terms.n_previous
                sources = (root[: int(held < n)], 0, int(held == n), root[: int(held > n)])
            else:
                sources = (below[:smaller], before[j], before[j + 1], room[ends[j + 1] : ends[j]])
            more = end + sources[0].size + sources[2] - sources[1] + sources[3].size
            if more > limit:
                return chosen, best[0], False
            z, c, parent, size = grown(z, more), grown(c, more), grown(parent, more), grown(size, more)
            end, found = write_front(
                terms, curves, (z, c, parent), sources, (i, j, end, cost[i, j], line), best
            )
            size[bounds[j] : end], bounds[j + 1] = j, end
            if found >= 0:
                chosen = traced(found, parent, size, w, i)
                chosen[i] = j
            if i > 0:
                spare = grown(spare, smaller + before[j + 1] - before[j])
                smaller = pareto_union((z, c), below[:smaller], before[j], before[j + 1], spare)
                below, spare = spare, below
    for label in range(bounds[0], bounds[m]):
        value = end_value(terms, line, z[label], size[label]) - c[label]
        if value > best[0]:
            best[0], chosen = value, traced(label, parent, size, w, w)
    return chosen, best[0], True


@njit(cache=True)
def answer(
    terms: Terms, prepared: Prepared, beamed: Beam, price: np.ndarray, available: np.ndarray, limit: int
) -> tuple[np.ndarray, float, float, float, float, bool]:
    """What `search` finds for what `label_bounds.prepare` and `label_beam.beam` made.

    Instances held, shape (w, 2), on demand and on spot; USD paid, progress, worth, a bound above it, whether it is proved.
    """
    chosen, worth, proved = search(terms, prepared, beamed, limit)
    held, paid, z, before = np.zeros((price.size, 2), dtype=np.int64), 0.0, terms.done, terms.n_previous
    for i in range(price.size):
        n = terms.sizes[chosen[i]]
        held[i, 1] = min(n, available[i]) if price[i] < terms.on_demand_usd else 0
        held[i, 0] = n - held[i, 1]
        paid += prepared.cost[i, chosen[i]]
        z += efficiency(terms, n, before) * terms.gain[chosen[i]]
        before = n
    rest = prepared.line - terms.done
    bound = optimistic(terms, prepared.curves, 0, corner(prepared.curves, 0, rest), rest)
    return held, paid, z, worth, worth if proved else max(worth, bound), proved


@njit(cache=True)
def traced(label: int, parent: np.ndarray, size: np.ndarray, w: int, slots: int) -> np.ndarray:
    """The size indices of the first ``slots`` slots that lead to a label; nothing is held later."""
    chosen = np.zeros(w, dtype=np.int64)
    for i in range(slots - 1, -1, -1):
        chosen[i] = size[label]
        label = parent[label]
    return chosen
