"""Compiled backward induction of M4.6 over (slot, work left, size before, count state, price level) (ours).

The value after a slot is linear between the points of an even grid of work left. The gain of a slot depends on the size before
only through "smaller, same, larger" (M2.4), so running maxima over sizes replace the pairs of sizes; a move shifts the grid by the
same amount everywhere, so the inner loops run along it. Compiled functions call only those of their own file: numba's cache on disk
does not notice a change in another one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit


class Game(NamedTuple):
    """A job and its market as the kernel reads them; money in USD per slot, work in work units.

    ``sizes`` (M,) ascending from 0 and ``gain`` (M,) their work in a slot; ``available`` (S,), ``chain`` (T, S, S) the transitions
    from each slot to the next; ``price`` (K,) and ``price_chain`` (K, K); ``step`` between the ``points`` of work left.
    """

    sizes: np.ndarray
    gain: np.ndarray
    available: np.ndarray
    chain: np.ndarray
    price: np.ndarray
    price_chain: np.ndarray
    on_demand: float
    mu_up: float
    mu_down: float
    value: float
    deadline: int
    late_limit: float
    slot: int
    step: float
    points: int


@njit(cache=True)
def value_at(game: Game, slots: float) -> float:
    """V(T) of M2.5."""
    if slots <= game.deadline:
        return game.value
    if slots >= game.late_limit:
        return 0.0
    return game.value * (game.late_limit - slots) / (game.late_limit - game.deadline)


@njit(cache=True)
def ending(game: Game, rest: float, before: int) -> float:
    """The termination of M2.6 at the deadline, with ``rest`` work left."""
    if rest <= 0.0:
        return value_at(game, game.deadline)
    best = 0.0
    for j in range(1, game.sizes.size):
        n, gain = game.sizes[j], game.gain[j]
        mu = game.mu_up if n > before else (game.mu_down if n < before else 1.0)
        k = 1
        if rest > mu * gain:
            if gain <= 0.0:
                continue
            k = 1 + int(np.ceil((rest - mu * gain) / gain - 1e-6))
        worth = value_at(game, game.deadline + k) - k * n * game.on_demand
        best = max(best, worth)
    return best


@njit(cache=True)
def slot_cost(game: Game, n: int, count: int, price: float) -> float:
    """USD of one slot on ``n`` instances: spot first if it is cheaper (M3.2)."""
    spot = min(n, count) if price < game.on_demand else 0
    return spot * price + (n - spot) * game.on_demand


@njit(cache=True)
def after_work(game: Game, column: np.ndarray, work: float, finished: float, out: np.ndarray) -> None:
    """out[g] = value of work left g * step - work, ``finished`` where that is none; held level beyond the grid."""
    shift = work / game.step
    whole = int(np.floor(shift + 1e-9))
    part = shift - whole
    last = game.points - 1
    first = max(0, int(np.floor(shift + 1e-9)) + 1)
    for g in range(min(first, game.points)):
        out[g] = finished
    # Only work below 0 (a restart longer than the slot) leads beyond the grid.
    inside = min(game.points, last + whole + 1)
    if part < 1e-9:
        for g in range(first, inside):
            out[g] = column[g - whole]
    else:
        for g in range(first, inside):
            high = column[g - whole]
            out[g] = high + part * (column[g - whole - 1] - high)
    for g in range(max(inside, first), game.points):
        out[g] = column[last]


@njit(cache=True)
def before_slot(
    game: Game, column: np.ndarray, costs: np.ndarray, finish: tuple[float, float], out: np.ndarray
) -> None:
    """Values out (M, points) at the start of a slot whose count and price are known, from those after it, ``column`` (M, points).

    ``finish`` is the worth of having finished now and after this slot.
    """
    sizes = game.sizes.size
    up, down = np.empty((sizes, game.points)), np.empty((sizes, game.points))
    for j in range(sizes):
        after_work(game, column[j], game.gain[j], finish[1], out[j])
        after_work(game, column[j], game.mu_up * game.gain[j], finish[1], up[j])
        after_work(game, column[j], game.mu_down * game.gain[j], finish[1], down[j])
        for g in range(game.points):
            out[j, g] -= costs[j]
            up[j, g] -= costs[j]
            down[j, g] -= costs[j]
    best = np.full(game.points, -np.inf)
    for j in range(sizes):
        for g in range(game.points):
            out[j, g] = max(out[j, g], best[g])
            best[g] = max(best[g], down[j, g])
    best[:] = -np.inf
    for j in range(sizes - 1, -1, -1):
        for g in range(game.points):
            out[j, g] = max(out[j, g], best[g])
            best[g] = max(best[g], up[j, g])
        out[j, 0] = finish[0]


@njit(cache=True)
def induct(game: Game, keep: int) -> np.ndarray:
    """Expected values after each of the first ``keep`` slots, shape (keep, S, K, M, points), given the slot's state and size.

    W_i(s, x, n, r) = E[V_{i+1}(s', x', n, r) | s, x] with V_i(s, x, m, r) = max_n W_i(s, x, n, r - mu(n, m) H(n) Delta) - cost,
    and M2.6's ending for V_T.
    """
    slots, states, _ = game.chain.shape
    levels, sizes, points = game.price.size, game.sizes.size, game.points
    wide = levels * sizes * points
    kept = np.empty((keep, states, levels, sizes, points), dtype=np.float32)
    now = np.empty((states, levels, sizes, points))
    after = np.empty((states, levels, sizes, points))
    for j in range(sizes):
        for g in range(points):
            now[:, :, j, g] = ending(game, g * game.step, game.sizes[j])
    costs = np.empty(sizes)
    for i in range(slots - 1, -1, -1):
        if i < slots - 1:
            mixed = np.zeros((states, levels, sizes, points))
            for s in range(states):
                for x in range(levels):
                    for y in range(levels):
                        mixed[s, x] += game.price_chain[x, y] * now[s, y]
            chain = np.ascontiguousarray(game.chain[i])
            after = np.dot(chain, mixed.reshape((states, wide))).reshape((states, levels, sizes, points))
        else:
            after[:] = now
        if i < keep:
            kept[i] = after
        if i == 0:
            break
        finish = (value_at(game, game.slot + i), value_at(game, game.slot + i + 1))
        for s in range(states):
            for x in range(levels):
                for j in range(sizes):
                    costs[j] = slot_cost(game, game.sizes[j], game.available[s], game.price[x])
                before_slot(game, after[s, x], costs, finish, now[s, x])
    return kept


@njit(cache=True)
def best_size(
    game: Game,
    column: np.ndarray,
    costs: np.ndarray,
    work: np.ndarray,
    near: np.ndarray,
    rest: float,
    late: float,
) -> int:
    """The index of the size with the largest cost-free value after the slot minus cost; of equal ones the first.

    ``costs`` and ``work`` (n,) are those of every size the job may hold, ``near`` (n,) the index of the grid's size that
    stands for it, ``late`` the worth of finishing in this slot.
    """
    best, chosen, slack = -np.inf, 0, 1e-12 * abs(game.value)
    for j in range(costs.size):
        left = rest - work[j]
        if left <= 1e-9 * abs(rest):
            worth = late
        else:
            at = left / game.step
            low = int(at)
            if low >= game.points - 1:
                worth = float(column[near[j], game.points - 1])
            else:
                here = float(column[near[j], low])
                worth = here + (at - low) * (float(column[near[j], low + 1]) - here)
        if worth - costs[j] > best + slack:
            best, chosen = worth - costs[j], j
    return chosen
