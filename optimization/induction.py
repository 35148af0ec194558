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
def after_work(
    column: np.ndarray,
    first: tuple[int, int],
    shift: float,
    ends: tuple[float, float, float],
    out: np.ndarray,
) -> None:
    """out[h] = value of the work left after doing ``shift`` steps of it, less the slot's cost, at points first[1] + h of the grid.

    ``column`` holds the values at points first[0] + h; ``ends`` is the worth of having finished, the slot's cost, and what is
    taken off the column's last value where more work is left than that.
    """
    whole = int(np.floor(shift + 1e-6))
    part = np.float32(max(0.0, shift - whole))
    if part < 1e-5:
        part = np.float32(0.0)
    paid = np.float32(ends[1])
    done = min(out.size, max(0, whole + 1 - first[1]))
    out[:done] = np.float32(ends[0]) - paid
    base = first[1] - whole - first[0]
    inside = min(out.size, max(done, column.size - base))
    low = min(inside, max(done, 1 - base))
    for h in range(done, low):
        out[h] = column[max(0, h + base)] - paid
    for h in range(low, inside):
        high = column[h + base]
        out[h] = high + part * (column[h + base - 1] - high) - paid
    out[inside:] = column[column.size - 1] - paid - np.float32(ends[2])


@njit(cache=True, fastmath={"nnan", "nsz"})
def before_slot(
    game: Game,
    after: np.ndarray,
    costs: np.ndarray,
    ends: tuple[float, float, float],
    first: tuple[int, int],
    now: np.ndarray,
) -> None:
    """Values ``now`` (M, points) at the start of a slot whose count and price are known, from those after it, ``after``.

    ``ends`` is the worth of having finished now and after this slot and the penalty of `after_work`; ``first`` are the grid's
    first points in the two arrays.
    """
    sizes, width = now.shape
    best, moved = np.full(width, np.float32(-1e30)), np.empty(width, dtype=np.float32)
    for j in range(sizes):
        steps, then = game.gain[j] / game.step, (ends[1], costs[j], ends[2])
        here = now[j]
        after_work(after[j], first, steps, then, here)
        after_work(after[j], first, game.mu_down * steps, then, moved)
        for h in range(width):
            held = here[h]
            here[h] = held if held > best[h] else best[h]
            best[h] = moved[h] if moved[h] > best[h] else best[h]
    best[:] = np.float32(-1e30)
    for j in range(sizes - 1, -1, -1):
        here, then = now[j], (ends[1], costs[j], ends[2])
        after_work(after[j], first, game.mu_up * game.gain[j] / game.step, then, moved)
        for h in range(width):
            held = here[h]
            here[h] = held if held > best[h] else best[h]
            best[h] = moved[h] if moved[h] > best[h] else best[h]
        if first[1] == 0:
            here[0] = ends[0]


@njit(cache=True, fastmath={"nnan", "nsz"})
def expected(game: Game, i: int, now: np.ndarray) -> np.ndarray:
    """Values after slot i, from those at the start of the next, both (S, K, M, points)."""
    states, levels, sizes, width = now.shape
    chain = game.chain[i].astype(np.float32)
    after = np.dot(chain, now.reshape((states, levels * sizes * width))).reshape(
        (states, levels, sizes * width)
    )
    if levels == 1:
        alone: np.ndarray = after.reshape((states, levels, sizes, width))
        return alone
    mixed = np.zeros_like(after)
    for s in range(states):
        for x in range(levels):
            for y in range(levels):
                share = np.float32(game.price_chain[x, y])
                if share > 0.0:
                    for h in range(sizes * width):
                        mixed[s, x, h] += share * after[s, y, h]
    together: np.ndarray = mixed.reshape((states, levels, sizes, width))
    return together


@njit(cache=True)
def fill(after: np.ndarray, low: int, kept: np.ndarray) -> None:
    """Copy values at points low.. to the whole grid; what lies outside takes the nearest."""
    states, levels, sizes, width = after.shape
    for s in range(states):
        for x in range(levels):
            for j in range(sizes):
                kept[s, x, j, :low] = after[s, x, j, 0]
                kept[s, x, j, low : low + width] = after[s, x, j]
                kept[s, x, j, low + width :] = after[s, x, j, width - 1]


@njit(cache=True)
def induct_band(game: Game, keep: int, low: np.ndarray, high: np.ndarray, beyond: float) -> np.ndarray:
    """`induct` with points low[i]..high[i] - 1 only at the start of slot i, shapes (T + 1,); ``beyond`` is taken off above them."""
    slots, states, _ = game.chain.shape
    levels, sizes = game.price.size, game.sizes.size
    kept = np.empty((keep, states, levels, sizes, game.points), dtype=np.float32)
    now = np.empty((states, levels, sizes, high[slots] - low[slots]), dtype=np.float32)
    for j in range(sizes):
        for h in range(now.shape[3]):
            now[:, :, j, h] = ending(game, float(low[slots] + h) * game.step, game.sizes[j])
    costs = np.empty(sizes)
    for i in range(slots - 1, -1, -1):
        after = expected(game, i, now) if i < slots - 1 else now
        if i < keep:
            fill(after, low[i + 1], kept[i])
        if i == 0:
            break
        ends = (value_at(game, game.slot + i), value_at(game, game.slot + i + 1), beyond)
        now = np.empty((states, levels, sizes, high[i] - low[i]), dtype=np.float32)
        for s in range(states):
            for x in range(levels):
                for j in range(sizes):
                    costs[j] = slot_cost(game, game.sizes[j], game.available[s], game.price[x])
                before_slot(game, after[s, x], costs, ends, (low[i + 1], low[i]), now[s, x])
    return kept


def induct(game: Game, keep: int, band: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
    """Expected values after each of the first ``keep`` slots, shape (keep, S, K, M, points), given the slot's state and size.

    W_i(s, x, n, r) = E[V_{i+1}(s', x', n, r) | s, x] with V_i(s, x, m, r) = max_n W_i(s, x, n, r - mu(n, m) H(n) Delta) - cost,
    and M2.6's ending for V_T. ``band`` gives the first and the end of the points that matter at the start of each slot and at
    the deadline, shapes (T + 1,), and work above them is not sought; without it all do. Single precision.
    """
    slots = game.chain.shape[0]
    low, high, beyond = np.zeros(slots + 1, np.int64), np.full(slots + 1, game.points), 0.0
    if band is not None:
        # Dearer than anything that could happen: what lies above the band is not sought.
        low, high = band
        beyond = game.value + float(game.sizes[-1]) * game.on_demand * game.late_limit
    kept: np.ndarray = induct_band(game, keep, low, high, beyond)
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


@njit(cache=True)
def chosen_size(
    game: Game,
    column: np.ndarray,
    held: np.ndarray,
    gains: np.ndarray,
    near: np.ndarray,
    asked: tuple[float, int, int, float, float],
) -> int:
    """`best_size` among the sizes ``held`` (n,) with their work in a slot ``gains``, by what is ``asked``.

    That is (work left, size before, count, price per slot, worth of finishing in this slot).
    """
    rest, before, available, price, late = asked
    costs, work = np.empty(held.size), np.empty(held.size)
    for j in range(held.size):
        n = held[j]
        spot = min(n, available) if price < game.on_demand else 0
        costs[j] = spot * price + (n - spot) * game.on_demand
        work[j] = (game.mu_up if n > before else (game.mu_down if n < before else 1.0)) * gains[j]
    return int(held[best_size(game, column, costs, work, near, rest, late)])


@njit(cache=True)
def chosen_sizes(
    game: Game,
    columns: np.ndarray,
    held: np.ndarray,
    gains: np.ndarray,
    near: np.ndarray,
    asked: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float],
    cells: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """`chosen_size` of many paths in one slot: ``columns`` (S, K, M, points), ``cells`` the count state and price level of each."""
    rest, before, available, price, late = asked
    states, levels = cells
    chosen = np.empty(rest.size, dtype=np.int64)
    for p in range(rest.size):
        column = columns[states[p], levels[p]]
        own = (rest[p], before[p], available[p], price[p], late)
        chosen[p] = chosen_size(game, column, held, gains, near, own)
    return chosen
