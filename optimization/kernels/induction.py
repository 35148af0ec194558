"""Backward induction of M4.6 over (slot, remaining work, previous size, count state, price level) (ours).

The value after a slot is piecewise linear on an even grid of remaining work. The gain of a slot
depends on the previous size only through "smaller, same, larger" (M2.4), so running maxima over
sizes replace the pairs of sizes. The work of a slot shifts the grid by the same amount everywhere,
so the inner loops run along the grid.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slackwater.optimization.kernels.compiling import fast_part, kernel, part
from slackwater.optimization.kernels.rules import (
    Restart,
    Value,
    after_growing,
    after_shrinking,
    efficiency,
    ending,
    late_limit,
    slot_cost,
    spot_held,
    value_at,
)

#: Fraction of a grid step, or of an amount of work, that is rounding, and the fraction of a step that
#: is left out when a slot's work is put on the grid: a step is at most a twentieth of an instance's
#: work in a slot, and the tables are in single precision.
ROUNDING, STEP_PART = 1e-6, 1e-5
#: Value of a choice that is not allowed or not computed yet, USD.
NEVER = np.float32(-1e30)


class Game(NamedTuple):
    """A job and its market in the form that the kernels read; money in USD per slot, work in work units.

    ``sizes`` (M,) ascend from 0, and ``gain`` (M,) is their work in a slot. ``available`` (S,) and
    ``price`` (K,) are the states of the count and of the price, ``chain`` (T, S, S) and
    ``price_chain`` (T, K, K) or (K, K) their transitions from each slot to the next. ``slack`` is
    the tolerance of work: a job with no more work left is finished. ``step`` is the distance
    between the ``points`` of remaining work.
    """

    sizes: np.ndarray
    gain: np.ndarray
    available: np.ndarray
    chain: np.ndarray
    price: np.ndarray
    price_chain: np.ndarray
    on_demand: float
    restart: Restart
    value: Value
    slot: int
    slack: float
    step: float
    points: int


class Ends(NamedTuple):
    """Values in USD of finishing now and after this slot, and the penalty where more work is left than the grid covers."""

    now: float
    after: float
    beyond: float


class Choices(NamedTuple):
    """Sizes (n,) that a job may run, ascending from 0, their work in a slot, and the index of the nearest size of the grid."""

    sizes: np.ndarray
    gain: np.ndarray
    near: np.ndarray


class Firsts(NamedTuple):
    """First stored point of the grid after the slot, and at its start."""

    after: int
    now: int


class SlotState(NamedTuple):
    """Remaining work, previous size, count, price per slot, and the value of finishing in this slot."""

    rest: float
    before: int
    available: int
    price: float
    late: float


class Shifts(NamedTuple):
    """Shifts of a row of values by the work done in a slot, for each of n amounts of work.

    A row of ``width`` points is shifted by whole steps and by the fraction ``part`` (n,) of a step.
    ``at`` (n, 4): points before the first bound are finished, points up to the second read the
    lowest known value, points up to the third are inside. An inside point h reads the point h + the
    fourth value and, for the fraction, the point below it.
    """

    part: np.ndarray
    at: np.ndarray


@part
def shift_by(steps: float, first: Firsts, known: int, width: int) -> tuple[np.float32, int, int, int, int]:
    """Return a row of `Shifts` for ``steps`` of work, from ``known`` points after the slot to ``width`` points at its start."""
    whole = int(np.floor(steps + ROUNDING))
    part = np.float32(max(0.0, steps - whole))
    if part < STEP_PART:
        part = np.float32(0.0)
    finished = min(width, max(0, whole + 1 - first.now))
    base = first.now - whole - first.after
    inside = min(width, max(finished, known - base))
    return part, finished, min(inside, max(finished, 1 - base)), inside, base


@part
def shifts_by(steps: np.ndarray, first: Firsts, known: int, width: int) -> Shifts:
    """Return `shift_by` for each of ``steps`` (n,)."""
    part, at = np.empty(steps.size, np.float32), np.empty((steps.size, 4), np.int64)
    for i in range(steps.size):
        part[i], at[i, 0], at[i, 1], at[i, 2], at[i, 3] = shift_by(steps[i], first, known, width)
    return Shifts(part, at)


class Row(NamedTuple):
    """A row of values to be shifted: its size ``source``, the index ``by`` of its shift, and the row ``to`` of the result."""

    source: int
    by: int
    to: int


#: Cells of count and price whose rows are shifted in a single call: the call costs as much as
#: shifting a short row.
TOGETHER = 16


@fast_part
def write_shifted(
    rows: np.ndarray,
    cells: tuple[int, int],
    row: Row,
    shifts: Shifts,
    ends: Ends,
    costs: np.ndarray,
    out: np.ndarray,
    first: int,
) -> None:
    """Write a row of ``rows``, shifted and minus ``costs`` (cells, sizes), to ``out[first:]``.

    Both arrays have shape (cells, sizes, points); the cells from ``cells[0]`` up to but not
    including ``cells[1]`` are shifted. Arrays are indexed in full, since slicing a row would count
    references, which costs as much as the row.
    """
    j, i, k = row.source, row.by, row.to
    part, last, width = shifts.part[i], rows.shape[2] - 1, out.shape[2]
    finished, low, inside, base = shifts.at[i, 0], shifts.at[i, 1], shifts.at[i, 2], shifts.at[i, 3]
    # Unsigned: an index that might be negative prevents vector instructions.
    up, one = np.uint64(base), np.uint64(1)
    for c in range(cells[0], cells[1]):
        cost, to = np.float32(costs[c, j]), first + c - cells[0]
        usd = np.float32(ends.after) - cost
        for h in range(finished):
            out[to, k, h] = usd
        for h in range(finished, low):
            out[to, k, h] = rows[c, j, max(0, h + base)] - cost
        for h in range(np.uint64(low), np.uint64(inside)):
            high = rows[c, j, h + up]
            out[to, k, h] = high + part * (rows[c, j, h + up - one] - high) - cost
        usd = rows[c, j, last] - cost - np.float32(ends.beyond)
        for h in range(inside, width):
            out[to, k, h] = usd


@fast_part
def raise_to_best(
    rows: np.ndarray,
    cells: tuple[int, int],
    row: Row,
    shifts: Shifts,
    ends: Ends,
    costs: np.ndarray,
    best: np.ndarray,
    now: np.ndarray,
) -> None:
    """Raise a row of ``now`` to ``best`` (cells, points), and ``best`` to the row of ``rows`` shifted as by `write_shifted`.

    The loops of the four ranges are repeated from there, since writing and rereading a row would
    take half as long again.
    """
    j, i = row.source, row.by
    part, last, width = shifts.part[i], rows.shape[2] - 1, now.shape[2]
    finished, low, inside, base = shifts.at[i, 0], shifts.at[i, 1], shifts.at[i, 2], shifts.at[i, 3]
    up, one = np.uint64(base), np.uint64(1)
    for c in range(cells[0], cells[1]):
        cost, b = np.float32(costs[c, j]), c - cells[0]
        usd = np.float32(ends.after) - cost
        for h in range(finished):
            top = best[b, h]
            now[c, j, h] = now[c, j, h] if now[c, j, h] > top else top
            best[b, h] = usd if usd > top else top
        for h in range(finished, low):
            usd = rows[c, j, max(0, h + base)] - cost
            top = best[b, h]
            now[c, j, h] = now[c, j, h] if now[c, j, h] > top else top
            best[b, h] = usd if usd > top else top
        for h in range(np.uint64(low), np.uint64(inside)):
            high = rows[c, j, h + up]
            usd = high + part * (rows[c, j, h + up - one] - high) - cost
            top = best[b, h]
            now[c, j, h] = now[c, j, h] if now[c, j, h] > top else top
            best[b, h] = usd if usd > top else top
        usd = rows[c, j, last] - cost - np.float32(ends.beyond)
        for h in range(inside, width):
            top = best[b, h]
            now[c, j, h] = now[c, j, h] if now[c, j, h] > top else top
            best[b, h] = usd if usd > top else top


@part
def by_cell(values: np.ndarray) -> np.ndarray:
    """Return values (S, K, M, points) reshaped to (S K, M, points)."""
    states, levels, sizes, width = values.shape
    return values.reshape((states * levels, sizes, width))


@part
def cell_costs(sizes: np.ndarray, available: np.ndarray, price: np.ndarray, on_demand: float) -> np.ndarray:
    """Return the cost in USD of a slot of each of M sizes in each cell of count and price, shape (S K, M)."""
    costs = np.empty((available.size * price.size, sizes.size))
    for s in range(available.size):
        for x in range(price.size):
            for j in range(sizes.size):
                spot = spot_held(sizes[j], available[s], price[x], on_demand)
                costs[s * price.size + x, j] = slot_cost(sizes[j], spot, price[x], on_demand)
    return costs


@part
def slot_shifts(game: Game, first: Firsts, known: int, width: int) -> Shifts:
    """Return the shifts of a slot of each of M sizes after the same size, after a larger and after a smaller size (3 M,)."""
    sizes = game.sizes.size
    steps = np.empty(3 * sizes)
    for j in range(sizes):
        steps[j] = game.gain[j] / game.step
        steps[sizes + j] = after_shrinking(game.restart, game.sizes[j]) * steps[j]
        steps[2 * sizes + j] = after_growing(game.restart, game.sizes[j]) * game.gain[j] / game.step
    return shifts_by(steps, first, known, width)


@fast_part
def before_slot(
    after: np.ndarray,
    shifts: Shifts,
    costs: np.ndarray,
    ends: Ends,
    first: int,
    best: np.ndarray,
    now: np.ndarray,
) -> None:
    """Compute values ``now`` (cells, M, points) at the start of a slot with known count and price from ``after``, those after it.

    ``shifts`` are those of `slot_shifts`, ``costs`` (cells, M) the cost of the slot in USD.
    ``first`` is the first point of ``now`` on the grid; ``best`` (`TOGETHER`, points) is scratch.
    """
    count, sizes, _ = now.shape
    for begin in range(0, count, TOGETHER):
        cells = (begin, min(count, begin + TOGETHER))
        best[:] = NEVER
        for j in range(sizes):
            write_shifted(after, cells, Row(j, j, j), shifts, ends, costs, now, begin)
            raise_to_best(after, cells, Row(j, sizes + j, j), shifts, ends, costs, best, now)
        best[:] = NEVER
        for j in range(sizes - 1, -1, -1):
            raise_to_best(after, cells, Row(j, 2 * sizes + j, j), shifts, ends, costs, best, now)
            if first == 0:
                for c in range(begin, cells[1]):
                    now[c, j, 0] = ends.now


#: Block length of the rows mixed together: blocks of a dozen rows fit into the fastest cache.
BLOCK = 512


@fast_part
def mix(weights: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Compute out[a] = sum over b of weights[a, b] rows[b], for arrays (size, width) in single precision.

    The first 8 or 4 rows are summed in a single pass and further rows in fours, to save reads and
    writes of the result.
    """
    size, width = rows.shape
    for begin in range(0, width, BLOCK):
        # Unsigned: an index that might be negative prevents vector instructions.
        start, stop = np.uint64(begin), np.uint64(min(width, begin + BLOCK))
        for a in range(out.shape[0]):
            b = 0
            if size >= 8:
                p, q, r, s = weights[a, 0], weights[a, 1], weights[a, 2], weights[a, 3]
                t, u, v, w = weights[a, 4], weights[a, 5], weights[a, 6], weights[a, 7]
                for h in range(start, stop):
                    low = p * rows[0, h] + q * rows[1, h] + r * rows[2, h] + s * rows[3, h]
                    high = t * rows[4, h] + u * rows[5, h] + v * rows[6, h] + w * rows[7, h]
                    out[a, h] = low + high
                b = 8
            elif size >= 4:
                p, q, r, s = weights[a, 0], weights[a, 1], weights[a, 2], weights[a, 3]
                for h in range(start, stop):
                    out[a, h] = p * rows[0, h] + q * rows[1, h] + r * rows[2, h] + s * rows[3, h]
                b = 4
            else:
                for h in range(start, stop):
                    out[a, h] = np.float32(0.0)
            while b + 3 < size:
                p, q, r, s = weights[a, b], weights[a, b + 1], weights[a, b + 2], weights[a, b + 3]
                for h in range(start, stop):
                    out[a, h] += p * rows[b, h] + q * rows[b + 1, h] + r * rows[b + 2, h] + s * rows[b + 3, h]
                b += 4
            if b + 1 < size:
                p, q = weights[a, b], weights[a, b + 1]
                for h in range(start, stop):
                    out[a, h] = out[a, h] + p * rows[b, h] + q * rows[b + 1, h]
                b += 2
            if b < size:
                p = weights[a, b]
                for h in range(start, stop):
                    out[a, h] += p * rows[b, h]


@fast_part
def expected_before(
    chain: np.ndarray, price_chain: np.ndarray, now: np.ndarray, spare: np.ndarray, out: np.ndarray
) -> None:
    """Compute values ``out`` (S, K, M, points) before the transitions of count and price from those after them, ``now``.

    ``chain`` (S, S) and ``price_chain`` (K, K) are the transitions; ``spare`` is scratch for as
    many numbers.
    """
    states, levels, sizes, width = now.shape
    rows, level = levels * sizes * width, sizes * width
    source, there = now.reshape((states, rows)), out.reshape((states, rows))
    if levels == 1:
        mix(chain, source, there)
        return
    later = spare[: states * rows].reshape((states, rows))
    mix(chain, source, later)
    for s in range(states):
        mix(price_chain, later[s].reshape((levels, level)), there[s].reshape((levels, level)))


@part
def fill(after: np.ndarray, low: int, kept: np.ndarray) -> None:
    """Copy values at points low.. to the whole grid; points outside take the nearest value."""
    states, levels, sizes, width = after.shape
    for s in range(states):
        for x in range(levels):
            for j in range(sizes):
                source, out = after[s, x, j], kept[s, x, j]
                out[:low] = source[0]
                inside = out[low:]
                for h in range(width):
                    inside[h] = source[h]
                inside[width:] = source[width - 1]


@kernel
def induct_band(game: Game, keep: int, low: np.ndarray, high: np.ndarray, beyond: float) -> np.ndarray:
    """Run `induct` on the points low[i]..high[i] - 1 only at the start of slot i, shapes (T + 1,)."""
    slots, states, _ = game.chain.shape
    levels, sizes = game.price.size, game.sizes.size
    kept = np.empty((keep, states, levels, sizes, game.points), np.float32)
    now = np.empty((states, levels, sizes, high[slots] - low[slots]), np.float32)
    for j in range(sizes):
        for h in range(now.shape[3]):
            rest = float(low[slots] + h) * game.step - game.slack
            now[:, :, j, h] = ending(
                game.sizes, game.gain, game.restart, game.value, game.on_demand, game.value.deadline, rest,
                game.sizes[j],
            ).usd  # fmt: skip
    costs = cell_costs(game.sizes, game.available, game.price, game.on_demand)
    # Buffers shared by all slots, since newly allocated memory is mapped page by page.
    cells, widest = states * levels * sizes, 0
    for i in range(slots + 1):
        widest = max(widest, high[i] - low[i])
    one, two, spare = (
        np.empty(cells * widest, np.float32),
        np.empty(cells * widest, np.float32),
        np.empty(cells * widest if levels > 1 else 0, np.float32),
    )
    for i in range(slots - 1, -1, -1):
        after = now
        if i < slots - 1:
            after = two[: now.size].reshape(now.shape)
            expected_before(game.chain[i], game.price_chain[i], now, spare, after)
        if i < keep:
            fill(after, low[i + 1], kept[i])
        if i == 0:
            break
        t = game.slot + i
        ends, first = (
            Ends(value_at(game.value, t), value_at(game.value, t + 1), beyond),
            Firsts(low[i + 1], low[i]),
        )
        shifts = slot_shifts(game, first, now.shape[3], high[i] - low[i])
        width = high[i] - low[i]
        now = one[: cells * width].reshape((states, levels, sizes, width))
        best = np.empty((TOGETHER, width), np.float32)
        before_slot(by_cell(after), shifts, costs, ends, first.now, best, by_cell(now))
    return kept


def induct(game: Game, keep: int, band: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
    """Return expected values after each of the first ``keep`` slots given its state and size, shape (keep, S, K, M, points).

    W_i(s, x, n, r) = E[V_{i+1}(s', x', n, r) | s, x] with V_i(s, x, m, r) = max_n W_i(s, x, n, r -
    mu(n, m) H(n) Delta) - cost, and M2.6's ending for V_T. ``band`` gives the first and the end of
    the relevant points at the start of each slot and at the deadline, shapes (T + 1,); states with
    more work left are penalised. Without it all points are relevant. Single precision.
    """
    slots, levels = game.chain.shape[0], game.price.size
    low, high, beyond = np.zeros(slots + 1, np.int64), np.full(slots + 1, game.points), 0.0
    if band is not None:
        # More than any possible cost, so that the optimum never goes above the band.
        low, high = band
        beyond = game.value.usd + float(game.sizes[-1]) * game.on_demand * late_limit(game.value)
    return induct_band(one_kind(game, (slots, levels, levels)), keep, low, high, beyond)


def one_kind(game: Game, shape: tuple[int, int, int]) -> Game:
    """Return the game with fixed dtypes and layout: numba compiles a version for each kind of array."""
    return game._replace(
        sizes=np.array(game.sizes, dtype=np.int64),
        gain=np.array(game.gain, dtype=np.float64),
        available=np.array(game.available, dtype=np.int64),
        chain=np.array(game.chain, dtype=np.float32, order="C"),
        price=np.array(game.price, dtype=np.float64),
        price_chain=np.array(np.broadcast_to(game.price_chain, shape), dtype=np.float32, order="C"),
    )


@part
def value_with(rows: np.ndarray, k: int, steps: float) -> float:
    """Return row ``k`` of ``rows`` (n, points) with ``steps`` grid steps of work left, linear between the points."""
    low, last = int(steps), rows.shape[1] - 1
    if low >= last:
        return float(rows[k, last])
    here = float(rows[k, low])
    return here + (steps - low) * (float(rows[k, low + 1]) - here)


@kernel
def chosen_size(game: Game, rows: np.ndarray, choices: Choices, at: SlotState) -> int:
    """Return the size with the largest value after the slot minus cost; ties go to the first.

    ``rows`` (M, points) are the values after the slot in the state of the market.
    """
    best, chosen, slack = -np.inf, 0, 1e-12 * abs(game.value.usd)
    for j in range(choices.sizes.size):
        n = choices.sizes[j]
        spot = spot_held(n, at.available, at.price, game.on_demand)
        cost = slot_cost(n, spot, at.price, game.on_demand)
        left = at.rest - efficiency(game.restart, n, at.before) * choices.gain[j]
        worth = at.late if left <= game.slack else value_with(rows, choices.near[j], left / game.step)
        if worth - cost > best + slack:
            best, chosen = worth - cost, j
    size: int = choices.sizes[chosen]
    return size


# ---
# Reweighting of a chain to given marginals (M6.9).


@kernel
def tilt(
    onward: np.ndarray, now: np.ndarray, distribution: np.ndarray, rounds: int, close: float
) -> np.ndarray:
    """Return ``onward`` (S, S) times column factors per slot, (h, S, S), with marginals ``distribution`` (h, S) from ``now`` (S,).

    Row i of a slot is onward[i, j] f[j] / sum over j. f is fitted by at most ``rounds`` rounds of
    f[j] *= distribution[j] / marginal[j], which end early when no probability is off by more than ``close``
    (Deming and Stephan 1940, with row sums of 1). A remaining error is moved from states with too
    much probability to states with too little, equally for every row, so that the marginals are met
    even where no factors could (ours).
    """
    slots, states = distribution.shape
    out = np.empty((slots, states, states))
    here = now.copy()
    for k in range(slots):
        factor = np.ones(states)
        row = out[k]
        there = np.zeros(states)
        for turn in range(rounds):
            there[:] = 0.0
            for i in range(states):
                total = 0.0
                for j in range(states):
                    row[i, j] = onward[i, j] * factor[j]
                    total += row[i, j]
                for j in range(states):
                    row[i, j] = row[i, j] / total if total > 0.0 else distribution[k, j]
                    there[j] += here[i] * row[i, j]
            if np.abs(there - distribution[k]).max() <= close:
                break
            if turn < rounds - 1:
                for j in range(states):
                    factor[j] = factor[j] * distribution[k, j] / there[j] if there[j] > 0.0 else factor[j]
                factor /= factor.max()
        lack = np.maximum(distribution[k] - there, 0.0)
        if lack.sum() > 0.0:
            lack /= lack.sum()
            for j in range(states):
                share = (there[j] - distribution[k, j]) / there[j] if there[j] > distribution[k, j] else 0.0
                for i in range(states):
                    moved = row[i, j] * share
                    row[i, j] -= moved
                    for to in range(states):
                        row[i, to] += moved * lack[to]
        here = distribution[k].copy()
    return out
