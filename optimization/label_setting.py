"""The label-setting search itself, compiled (M3.2); `optimization.label_kernels` holds the model it searches."""

from __future__ import annotations

import numpy as np
from numba import njit

from optimization.label_kernels import (
    MONEY_SLACK,
    Terms,
    dive,
    end_value,
    least_loss,
    optimistic,
    walk,
)


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
def bounded_front(
    terms: Terms,
    labels: tuple[np.ndarray, np.ndarray, np.ndarray],
    sources: tuple[np.ndarray, np.ndarray, np.ndarray],
    step: tuple[float, float, float, float],
    curve: tuple[np.ndarray, np.ndarray, int],
    position: int,
    best: np.ndarray,
    found: np.ndarray,
) -> int:
    """Write the front of one (slot, size) at ``position`` and return its end.

    ``sources`` are the fronts it is reached from (smaller, same, larger size), ``step`` the work each adds and the cost of the
    slot. ``best`` = [worth of the incumbent, slack]; ``found`` = [label before its last slot] if a label finishes better.
    """
    z, c, parent = labels
    work, loss, corners = curve
    p0 = p1 = p2 = 0
    least, k, end = np.inf, 0, position
    while True:
        zs = -np.inf
        source = -1
        if p0 < sources[0].size and z[sources[0][p0]] + step[0] > zs:
            zs, source = z[sources[0][p0]] + step[0], 0
        if p1 < sources[1].size and z[sources[1][p1]] + step[1] > zs:
            zs, source = z[sources[1][p1]] + step[1], 1
        if p2 < sources[2].size and z[sources[2][p2]] + step[2] > zs:
            zs, source = z[sources[2][p2]] + step[2], 2
        if source == -1:
            return end
        if source == 0:
            label, p0 = sources[0][p0], p0 + 1
        elif source == 1:
            label, p1 = sources[1][p1], p1 + 1
        else:
            label, p2 = sources[2][p2], p2 + 1
        cost = c[label] + step[3]
        if cost >= least - best[1]:
            continue
        least = cost
        rest = terms.line - zs
        if rest <= 0.0:
            if terms.finish_usd - cost > best[0]:
                best[0], found[0] = terms.finish_usd - cost, label
            continue
        while k < corners and work[k] < rest:
            k += 1
        if optimistic(terms, work, loss, k, corners, rest) - cost > best[0] + best[1]:
            z[end], c[end], parent[end] = zs, cost, label
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
def search(
    terms: Terms, cost: np.ndarray, start: np.ndarray, limit: int
) -> tuple[np.ndarray, float, float, int]:
    """The best sequence of size indices, its worth, an upper bound on it, and the number of labels.

    ``start`` is a sequence to begin with. The bound equals the worth unless more than ``limit`` labels were needed; then the
    best sequence so far comes back with the bound known beforehand.
    """
    w, m = cost.shape
    work, loss, corners = least_loss(terms, cost)
    bound = optimistic(
        terms,
        work[0],
        loss[0],
        np.searchsorted(work[0, : corners[0]], terms.line - terms.done),
        corners[0],
        terms.line - terms.done,
    )
    chosen = start.copy()
    best = np.array([walk(terms, cost, start), 0.0])
    trial = dive(terms, cost, work, loss, corners)
    if walk(terms, cost, trial) > best[0]:
        chosen, best[0] = trial, walk(terms, cost, trial)
    best[1] = MONEY_SLACK * (terms.finish_usd + cost[:, m - 1].sum())
    z, c, parent, size = np.empty(4096), np.empty(4096), np.empty(4096, np.int64), np.empty(4096, np.int64)
    z[0], c[0], parent[0], size[0] = terms.done, 0.0, -1, -1
    position, bounds, found = 1, np.ones(m + 1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    for i in range(w):
        smaller, same, larger = front_sources(terms, z, c, bounds, i == 0)
        begin = position
        for j in range(m):
            more = position + smaller[j].size + same[j].size + larger[j].size
            if more > limit:
                return chosen, best[0], bound, position
            z, c, parent, size = grown(z, more), grown(c, more), grown(parent, more), grown(size, more)
            before, gain = best[0], terms.gain[j]
            end = bounded_front(
                terms,
                (z, c, parent),
                (smaller[j], same[j], larger[j]),
                (terms.mu_up * gain, gain, terms.mu_down * gain, cost[i, j]),
                (work[i + 1], loss[i + 1], corners[i + 1]),
                position,
                best,
                found,
            )
            size[position:end] = j
            bounds[j] = position
            position = end
            if best[0] > before:
                chosen = traced(found[0], parent, size, w, i)
                chosen[i] = j
        bounds[m] = position
        if begin == position:
            return chosen, best[0], best[0], position
    for label in range(bounds[0], bounds[m]):
        value = end_value(terms, z[label], terms.sizes[size[label]]) - c[label]
        if value > best[0]:
            best[0], chosen = value, traced(label, parent, size, w, w)
    return chosen, best[0], best[0], position


@njit(cache=True)
def traced(label: int, parent: np.ndarray, size: np.ndarray, w: int, slots: int) -> np.ndarray:
    """The size indices of the first ``slots`` slots that lead to a label; nothing is held later."""
    chosen = np.zeros(w, dtype=np.int64)
    for i in range(slots - 1, -1, -1):
        chosen[i] = size[label]
        label = parent[label]
    return chosen
