"""The exact twin's first plan: a beam of one label for each slot and size, led by the optimistic bound (M3.2), compiled.

With a good plan known the search keeps a fraction of the labels: on programs of the benchmark the beam's plan was worth 0.2 %
(w = 5) and 0.4 % (w = 12) less than the best on average, and the search took a half and a fifth of the time. Compiled functions
call only those of their own file, which is why three are as in `optimization.label_setting`: numba's cache on disk does not
notice a change in another one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from optimization.label_bounds import Curves, Prepared, Terms


class Beam(NamedTuple):
    """Where the beam ends on each size: work left and USD paid (infinite: no label), shape (sizes,).

    ``parent`` (w, sizes) is the size index of the slot before the label of each slot and size.
    """

    rest: np.ndarray
    paid: np.ndarray
    parent: np.ndarray


@njit(cache=True)
def efficiency(terms: Terms, n: int, before: int) -> float:
    """mu of M2.4."""
    if n > before:
        return terms.mu_up
    return terms.mu_down if n < before else 1.0


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
def optimistic_at(terms: Terms, curves: Curves, i: int, rest: float) -> float:
    """Bound on the worth of slots i.. when ``rest`` work is left."""
    return optimistic(terms, curves, i, corner(curves, i, rest), rest)


@njit(cache=True)
def try_label(
    terms: Terms,
    curves: Curves,
    state: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    step: tuple[int, int, int, float],
    label: tuple[float, float, int],
) -> None:
    """Keep a label of a beam if it is more hopeful than the one its size has.

    ``step`` is the slot, the index of the size, the parent's index and the cost; ``label`` the parent's work left, cost and size.
    """
    left, c, hope, parent = state
    i, j, p, price = step
    rest, paid, before = label
    rest -= efficiency(terms, terms.sizes[j], before) * terms.gain[j]
    ahead = optimistic_at(terms, curves, i + 1, rest) - paid - price
    if ahead > hope[i + 1, j]:
        left[i + 1, j], c[i + 1, j], hope[i + 1, j], parent[i + 1, j] = rest, paid + price, ahead, p


@njit(cache=True)
def beam(terms: Terms, prepared: Prepared) -> Beam:
    """One label for each size of the last slot: in every slot the one whose optimistic worth is best."""
    cost, curves, line = prepared.cost, prepared.curves, prepared.line
    w, m = cost.shape
    left, c, hope = np.zeros((w + 1, m)), np.full((w + 1, m), np.inf), np.full((w + 1, m), -np.inf)
    parent = np.zeros((w + 1, m), dtype=np.int64)
    state = (left, c, hope, parent)
    for j in range(m):
        try_label(terms, curves, state, (0, j, 0, cost[0, j]), (line - terms.done, 0.0, terms.n_previous))
    for i in range(1, w):
        for down in range(2):
            lead = m - 1 if down else 0
            for turn in range(m):
                j = m - 1 - turn if down else turn
                if not down:
                    here = (left[i, j], c[i, j], terms.sizes[j])
                    try_label(terms, curves, state, (i, j, j, cost[i, j]), here)
                if turn > 0:
                    there = (left[i, lead], c[i, lead], terms.sizes[lead])
                    try_label(terms, curves, state, (i, j, lead, cost[i, j]), there)
                if hope[i, j] > hope[i, lead]:
                    lead = j
    return Beam(left[w], c[w], parent[1:])
