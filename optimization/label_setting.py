"""Compiled inner loops of the exact twin: label setting with Pareto pruning and a concave bound (M3.2).

A label is (slot, size, work z, cost c). On one size more work for less cost is at least as good under every continuation,
so only the Pareto front of each (slot, size) is kept, sorted by work, descending. The gain of the next slot depends on the size
before only through "smaller, same, larger" (M2.4): the fronts of all smaller sizes are merged once, those of all larger ones
once, and each new front is a three-way merge. A label is dropped when even an optimistic completion (`optimization.label_bounds`)
is not worth more than the best one known. Compiled functions call only those of their own file: numba's cache on disk does not
notice a change in another one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from optimization.label_bounds import Curves, Terms

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
def optimistic(terms: Terms, curves: Curves, i: int, k: int, rest: float) -> float:
    """Bound on the worth of slots i.. when ``rest`` work is left; k is the first corner of row i at or beyond ``rest``."""
    if k >= curves.corners[i]:
        return 0.0 if terms.to_go else -np.inf
    if k == 0:
        return terms.finish_usd
    x0, y0 = curves.work[i, k - 1], curves.loss[i, k - 1]
    share = (rest - x0) / (curves.work[i, k] - x0)
    value: float = terms.finish_usd - (y0 + share * (curves.loss[i, k] - y0))
    return max(value, 0.0) if terms.to_go else value


@njit(cache=True)
def optimistic_at(terms: Terms, curves: Curves, i: int, z: float) -> float:
    """Bound on the worth of slots i.. from progress z."""
    rest = max(terms.line - z, 0.0)
    k = int(np.searchsorted(curves.work[i, : curves.corners[i]], rest))
    return optimistic(terms, curves, i, k, rest)


@njit(cache=True)
def dive(terms: Terms, curves: Curves, cost: np.ndarray) -> np.ndarray:
    """A good first sequence of size indices: each slot the size with the best optimistic worth."""
    chosen = np.zeros(cost.shape[0], dtype=np.int64)
    z, before = terms.done, terms.n_previous
    for i in range(cost.shape[0]):
        best, took = -np.inf, 0
        for j in range(terms.sizes.size):
            reached = z + efficiency(terms, terms.sizes[j], before) * terms.gain[j]
            ahead = optimistic_at(terms, curves, i + 1, reached) - cost[i, j]
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


@njit(cache=True)
def grown(a: np.ndarray, size: int) -> np.ndarray:
    """The array, or a copy with room for ``size`` elements and as many again."""
    if size <= a.size:
        return a
    b = np.empty(2 * size, dtype=a.dtype)
    b[: a.size] = a
    return b


@njit(cache=True)
def pareto_union(z: np.ndarray, c: np.ndarray, known: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Pareto front of the labels ``known`` and start..stop-1, both by descending work: label numbers, in that order."""
    out = np.empty(known.size + stop - start, dtype=np.int64)
    a, b, k, least = 0, start, 0, np.inf
    while a < known.size or b < stop:
        first = b == stop or (a < known.size and z[known[a]] >= z[b])
        label = known[a] if first else b
        a, b = (a + 1, b) if first else (a, b + 1)
        if c[label] < least:
            out[k], least = label, c[label]
            k += 1
    return out[:k]


@njit(cache=True)
def furthest_source(
    z: np.ndarray, sources: tuple[np.ndarray, np.ndarray, np.ndarray], at: np.ndarray, adds: np.ndarray
) -> int:
    """Which of three fronts holds the label that reaches furthest next, -1 if all are used up; ``at`` counts the labels used."""
    found, furthest_z = -1, -np.inf
    for s in range(3):
        if at[s] < sources[s].size and z[sources[s][at[s]]] + adds[s] > furthest_z:
            found, furthest_z = s, z[sources[s][at[s]]] + adds[s]
    return found


@njit(cache=True)
def write_front(
    terms: Terms,
    curves: Curves,
    labels: tuple[np.ndarray, np.ndarray, np.ndarray],
    sources: tuple[np.ndarray, np.ndarray, np.ndarray],
    step: tuple[int, int, int, float],
    best: np.ndarray,
) -> tuple[int, int]:
    """Write the front of one (slot, size): the end of the labels, and the label that finishes better than ``best`` (-1: none does).

    ``sources`` are the fronts it is reached from (smaller, same, larger sizes), ``step`` the slot, the index of the size, the
    position to write to and the cost; ``best`` = [worth of the incumbent, slack of money] is updated.
    """
    z, c, parent = labels
    i, j, end, price = step
    adds = np.array([terms.mu_up, 1.0, terms.mu_down]) * terms.gain[j]
    at = np.zeros(3, dtype=np.int64)
    least, k, found = np.inf, 0, -1
    while True:
        s = furthest_source(z, sources, at, adds)
        if s == -1:
            return end, found
        label = sources[s][at[s]]
        at[s] += 1
        cost = c[label] + price
        if cost >= least - best[1]:
            continue
        least = cost
        rest = terms.line - z[label] - adds[s]
        if rest <= 0.0:
            if terms.finish_usd - cost > best[0]:
                best[0], found = terms.finish_usd - cost, label
            continue
        while k < curves.corners[i + 1] and curves.work[i + 1, k] < rest:
            k += 1
        if optimistic(terms, curves, i + 1, k, rest) - cost > best[0] + best[1]:
            z[end], c[end], parent[end] = z[label] + adds[s], cost, label
            end += 1


@njit(cache=True)
def front_sources(
    terms: Terms, z: np.ndarray, c: np.ndarray, bounds: np.ndarray, first: bool
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """For every size the labels it is reached from: those of smaller sizes, of the same, of larger ones.

    ``bounds[j]..bounds[j + 1]`` are the labels of size j in the slot before; in the first slot there is one label only.
    """
    m = terms.sizes.size
    none, root = np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    smaller, same, larger = [none] * m, [none] * m, [none] * m
    if first:
        for j in range(m):
            smaller[j] = root if terms.n_previous < terms.sizes[j] else none
            same[j] = root if terms.n_previous == terms.sizes[j] else none
            larger[j] = root if terms.n_previous > terms.sizes[j] else none
        return smaller, same, larger
    for j in range(m):
        same[j] = np.arange(bounds[j], bounds[j + 1])
        if j > 0:
            smaller[j] = pareto_union(z, c, smaller[j - 1], bounds[j - 1], bounds[j])
    for j in range(m - 2, -1, -1):
        larger[j] = pareto_union(z, c, larger[j + 1], bounds[j + 1], bounds[j + 2])
    return smaller, same, larger


@njit(cache=True)
def first_best(
    terms: Terms, curves: Curves, cost: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The better of ``start`` and a dive, and [its worth, slack of comparisons of money]."""
    trial = dive(terms, curves, cost)
    given, dived = walk(terms, cost, start), walk(terms, cost, trial)
    slack = MONEY_SLACK * (terms.finish_usd + cost[:, -1].sum())
    return (trial.copy() if dived > given else start.copy()), np.array([max(given, dived), slack])


@njit(cache=True)
def search(
    terms: Terms, curves: Curves, cost: np.ndarray, start: np.ndarray, limit: int
) -> tuple[np.ndarray, float, bool]:
    """The best sequence of size indices, its worth, and whether that is proved.

    ``start`` is a sequence to begin with. If more than ``limit`` labels are needed nothing is proved and the best so far is given.
    """
    w, m = cost.shape
    chosen, best = first_best(terms, curves, cost, start)
    z, c, parent, size = np.empty(4096), np.empty(4096), np.empty(4096, np.int64), np.empty(4096, np.int64)
    z[0], c[0], parent[0], size[0] = terms.done, 0.0, -1, -1
    end, bounds = 1, np.zeros(m + 1, dtype=np.int64)
    for i in range(w):
        smaller, same, larger = front_sources(terms, z, c, bounds, i == 0)
        bounds[0] = end
        for j in range(m):
            more = end + smaller[j].size + same[j].size + larger[j].size
            if more > limit:
                return chosen, best[0], False
            z, c, parent, size = grown(z, more), grown(c, more), grown(parent, more), grown(size, more)
            sources, step = (smaller[j], same[j], larger[j]), (i, j, end, cost[i, j])
            end, found = write_front(terms, curves, (z, c, parent), sources, step, best)
            size[bounds[j] : end] = j
            bounds[j + 1] = end
            if found >= 0:
                chosen = traced(found, parent, size, w, i)
                chosen[i] = j
    for label in range(bounds[0], bounds[m]):
        value = end_value(terms, z[label], terms.sizes[size[label]]) - c[label]
        if value > best[0]:
            best[0], chosen = value, traced(label, parent, size, w, w)
    return chosen, best[0], True


@njit(cache=True)
def traced(label: int, parent: np.ndarray, size: np.ndarray, w: int, slots: int) -> np.ndarray:
    """The size indices of the first ``slots`` slots that lead to a label; nothing is held later."""
    chosen = np.zeros(w, dtype=np.int64)
    for i in range(slots - 1, -1, -1):
        chosen[i] = size[label]
        label = parent[label]
    return chosen
