"""The optimistic bound of the exact twin: how much value the work still to do must cost at least (M3.2), compiled.

Compiled functions call only those of their own file: numba's cache on disk does not notice a change in another one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit


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


class Curves(NamedTuple):
    """Optimistic loss of value over the work still to do at the start of slots 0..w: corners (work, USD) and their number.

    ``work`` and ``loss`` have shape (w + 1, most corners), ``corners`` (w + 1,); row i is convex and begins at (0, 0).
    """

    work: np.ndarray
    loss: np.ndarray
    corners: np.ndarray


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

    Every slot's cost of work is replaced by its lower convex hull at full efficiency; the infimal convolution of convex
    piecewise linear curves is the merge of their segments by slope.
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
    return Curves(work, loss, corners)
