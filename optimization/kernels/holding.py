"""Backward induction of M4.12 over (slot, work left, instances held, count state, price level) in the world (ours).

Unlike `kernels.induction` a slot knows which instances are held: every new instance costs a boot and
a restart of the group, on-demand in place of spot too, and instances that are lost cost the restart
of the others. The line of the exact guard is a constraint of every choice.

*Holdings* are numbered: 0 holds nothing, 1 to M - 1 are the grid's sizes spot first, M to 2 M - 2
the sizes on demand.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slackwater.optimization.kernels.arrays import copy_row, interpolate, place_of
from slackwater.optimization.kernels.compiling import fast_part, kernel, part
from slackwater.optimization.kernels.induction import NEVER, ROUNDING, Choices, mix, value_with
from slackwater.optimization.kernels.rules import (
    Value,
    late_limit,
    slot_cost,
    spot_held,
    spot_is_cheaper,
    usable_spot,
)

#: Share of a job's value by which a target must be better: the tables are in single precision.
TIE = 1e-7
#: On-demand instance-slots by which waiting must be better than running.
WAIT_GAIN = 0.01


class HeldJob(NamedTuple):
    """A job and its market as the kernels read them; money in USD per slot, work in work units, times in slots.

    ``sizes`` (M,) ascend from 0, ``gain`` (M,) is their work in a slot. ``available`` (S,) and
    ``price`` (K,) are the states of count and price, ``chain`` (T, S, S) and ``price_chain``
    (T, K, K) their transitions from each slot to the next. By number of instances, (n_max + 1,),
    ``fresh`` passes until a group with new spot works (boot and restart) and ``restart`` until one
    works that only lost instances; ``wait`` passes more until one with new on-demand does.
    ``unsaved`` is the working time that a loss takes in the mean. ``gap`` passes until the next
    decision at the latest. Where ``guarded``, the deadline is kept whatever becomes of spot (M12.7).
    In another market ``other_gain`` is done in a slot on demand (0: in none), ``other_wait`` after
    the request. Spot does the share ``stands`` of its work, as it is lost within slots. ``slack`` is
    the tolerance of work, ``step`` the distance of the ``points`` of work left.
    """

    sizes: np.ndarray
    gain: np.ndarray
    available: np.ndarray
    chain: np.ndarray
    price: np.ndarray
    price_chain: np.ndarray
    on_demand: float
    fresh: np.ndarray
    wait: float
    restart: np.ndarray
    unsaved: float
    gap: float
    guarded: bool
    value: Value
    slot: int
    slack: float
    step: float
    points: int
    other_gain: float = 0.0
    other_wait: float = 0.0
    stands: float = 1.0


@part
def idle_limit(game: HeldJob, left: float) -> float:
    """Return the most saved work left with which nothing may run on demand with ``left`` slots to go (M12.7)."""
    if not game.guarded:
        return np.inf
    j = np.argmax(game.gain)
    most = float(game.gain[j]) * (left - game.gap - game.wait - game.fresh[game.sizes[j]])
    return float(max(most, game.other_gain * (left - game.gap - game.other_wait)))


@part
def spot_limit(idle: float, left: float, first: float, restart: float, gain: float) -> float:
    """Return the most saved work left with which spot may run with ``left`` slots to go (M12.7).

    ``idle`` is `idle_limit`. The on-demand instances of the target do ``gain`` in a slot, ``first`` slots from now and
    after a ``restart``.
    """
    return float(max(idle, gain * (left - first - restart)))


@part
def gain_of(sizes: np.ndarray, gain: np.ndarray, n: int) -> float:
    """Return the work in a slot of ``n`` instances, between the sizes of the grid by interpolation; 0 below n_min."""
    return interpolate(sizes, gain, n) if n >= sizes[1] else 0.0


class SlotRun(NamedTuple):
    """A slot of a choice: grid steps of work, their rate per slot, its cost in USD, and the part of it lost before work."""

    steps: float
    rate: float
    cost: float
    lost: float


@part
def run_after(lost: float, rate: float, cost: float) -> SlotRun:
    """Return the slot of a choice that works at ``rate`` grid steps a slot after ``lost`` slots."""
    return SlotRun((1.0 - lost) * rate, rate, cost, lost)


@fast_part
def raise_to(
    out: np.ndarray, i: int, rows: np.ndarray, k: int, usd: float, run: SlotRun, begin: int, end: int
) -> None:
    """Raise ``out[i, begin:end]`` to row ``k`` of ``rows`` after the slot ``run``.

    Where the slot finishes the job it is worth ``usd`` and paid until then. Arrays are indexed in
    full, since slicing a row would count references.
    """
    steps, rate, cost, lost = run.steps, run.rate, run.cost, run.lost
    last = rows.shape[1] - 1
    whole = int(np.floor(steps + ROUNDING))
    share = np.float32(max(0.0, steps - whole))
    paid = np.float32(cost)
    done = min(end, max(begin, whole + 1))
    if rate > 0.0:
        first, slope = np.float32(usd - cost * lost), np.float32(cost / rate)
        for h in range(begin, done):
            worth = first - slope * np.float32(h)
            out[i, h] = worth if worth > out[i, h] else out[i, h]
    inside = max(done, min(end, last + whole + 1))
    # Unsigned: an index that might be negative prevents vector instructions.
    up, one = np.uint64(-whole), np.uint64(1)
    for h in range(np.uint64(done), np.uint64(inside)):
        high = rows[k, h + up]
        worth = high + share * (rows[k, h + up - one] - high) - paid
        out[i, h] = worth if worth > out[i, h] else out[i, h]
    for h in range(inside, end):
        worth = rows[k, last] - paid
        out[i, h] = worth if worth > out[i, h] else out[i, h]


@fast_part
def raise_from(
    start: np.ndarray,
    j: int,
    out: np.ndarray,
    i: int,
    rows: np.ndarray,
    k: int,
    usd: float,
    run: SlotRun,
    begin: int,
    end: int,
    high: int,
) -> None:
    """Write row ``j`` of ``start`` to ``out[i, begin:high]``, raised up to ``end`` as by `raise_to`.

    A copy and a raise would pass twice over the row.
    """
    steps, rate, cost, lost = run.steps, run.rate, run.cost, run.lost
    last = rows.shape[1] - 1
    whole = int(np.floor(steps + ROUNDING))
    share = np.float32(max(0.0, steps - whole))
    paid = np.float32(cost)
    done = min(end, max(begin, whole + 1)) if rate > 0.0 else begin
    if rate > 0.0:
        first, slope = np.float32(usd - cost * lost), np.float32(cost / rate)
        for h in range(np.uint64(begin), np.uint64(done)):
            worth = first - slope * np.float32(np.int64(h))
            out[i, h] = worth if worth > start[j, h] else start[j, h]
    inside = max(done, min(end, last + whole + 1))
    up, one = np.uint64(-whole), np.uint64(1)
    for h in range(np.uint64(done), np.uint64(inside)):
        above = rows[k, h + up]
        worth = above + share * (rows[k, h + up - one] - above) - paid
        out[i, h] = worth if worth > start[j, h] else start[j, h]
    for h in range(np.uint64(inside), np.uint64(end)):
        worth = rows[k, last] - paid
        out[i, h] = worth if worth > start[j, h] else start[j, h]
    for h in range(np.uint64(end), np.uint64(high)):
        out[i, h] = start[j, h]


@part
def until(step: float, points: int, limit: float, low: int, high: int) -> int:
    """Return the end of the grid points with at most ``limit`` work left, in [low, high]."""
    if limit >= points * step:
        return high
    return min(high, max(low, int(np.floor(limit / step + ROUNDING)) + 1))


class OnDemandRun(NamedTuple):
    """A size that runs on demand to the end: USD and work per slot, and the slots before it works."""

    cost: float
    gain: float
    lost: float


@part
def to_the_end(game: HeldJob, n: int, lost: float) -> OnDemandRun:
    """Return size ``n`` of the grid on demand to the end after ``lost`` slots."""
    return OnDemandRun(game.sizes[n] * game.on_demand, float(game.gain[n]), lost)


@fast_part
def raise_to_end(
    out: np.ndarray, i: int, usd: float, run: OnDemandRun, left: float, step: float, low: int, high: int
) -> None:
    """Raise ``out[i, low:high]`` to the values of a run to the end, where it is in time with ``left`` slots to go."""
    cost, gain, lost, most = run.cost, run.gain, run.lost, left + ROUNDING
    end = min(high, max(low, int((most - lost) * gain / step) + 2))
    for h in range(np.uint64(low), np.uint64(end)):
        takes = lost + np.int64(h) * step / gain
        worth = np.float32(usd - cost * takes) if takes <= most else NEVER
        out[i, h] = worth if worth > out[i, h] else out[i, h]


@fast_part
def raise_row(out: np.ndarray, i: int, rows: np.ndarray, k: int, low: int, high: int) -> None:
    """Raise ``out[i, low:high]`` to row ``k`` of ``rows``."""
    for h in range(np.uint64(low), np.uint64(high)):
        out[i, h] = rows[k, h] if rows[k, h] > out[i, h] else out[i, h]


@part
def last_values(game: HeldJob, low: int, high: int, beyond: float, out: np.ndarray) -> None:
    """Write the values at the deadline, (S, K, holdings, points): of a late ending on demand where nothing is guarded."""
    limit = late_limit(game.value) - game.value.deadline
    for h in range(low, high):
        rest = h * game.step
        usd = game.value.usd
        if rest > game.slack:
            usd = -beyond
            if not game.guarded:
                usd = 0.0
                for n in range(1, game.sizes.size):
                    late = game.wait + game.fresh[game.sizes[n]] + rest / game.gain[n]
                    worth = game.value.usd * max(0.0, 1.0 - late / limit)
                    usd = max(usd, worth - late * game.sizes[n] * game.on_demand)
        out[:, :, :, h] = usd


@part
def start_values(
    game: HeldJob,
    left: float,
    low: int,
    high: int,
    ended: np.ndarray,
    rows: np.ndarray,
    s: int,
    x: int,
    out: np.ndarray,
) -> None:
    """Compute ``out[0, low:high]``, the values of new instances in state (s, x) of the market with ``left`` slots to go.

    ``rows`` (holdings, points) are the values after the choice in that state, ``ended`` those of
    `end_values`.
    """
    sizes, gains, fresh, restart = game.sizes, game.gain, game.fresh, game.restart
    usd, step, price, count = game.value.usd, game.step, game.price[x], game.available[s]
    idle = idle_limit(game, left)
    copy_row(ended, 0, out, 0, low, high)
    for n in range(1, sizes.size):
        rate = gains[n] / step
        spot = spot_held(sizes[n], count, price, game.on_demand)
        on_demand = sizes[n] - spot
        if spot > 0:
            first = max(game.gap, game.wait + fresh[on_demand])
            most = spot_limit(idle, left, first, restart[on_demand], gain_of(sizes, gains, on_demand))
            limit = until(step, game.points, most, low, high)
            lost = fresh[sizes[n]] + (game.wait if on_demand > 0 else 0.0)
            paid = slot_cost(sizes[n], spot, price, game.on_demand)
            raise_to(out, 0, rows, n, usd, run_after(lost, game.stands * rate, paid), low, limit)
        run = run_after(fresh[sizes[n]] + game.wait, rate, sizes[n] * game.on_demand)
        raise_to(out, 0, rows, sizes.size - 1 + n, usd, run, low, high)


@part
def end_values(game: HeldJob, left: float, low: int, high: int, out: np.ndarray) -> None:
    """Compute ``out[0, low:high]``, the values of new on-demand instances to the end; only a guarded job is certain to have it."""
    out[0, low:high] = NEVER
    for n in range(1, game.sizes.size if game.guarded else 1):
        run = to_the_end(game, n, game.fresh[game.sizes[n]] + game.wait)
        raise_to_end(out, 0, game.value.usd, run, left, game.step, low, high)


@part
def before_choice(game: HeldJob, t: int, low: int, high: int, after: np.ndarray, start: np.ndarray) -> None:
    """Compute the values at the start of a slot, ``start`` (S, K, holdings + M, points), from ``after``, those after its choice.

    The last M rows are those of spot-first sizes whose group has just lost instances.
    """
    sizes, gains, fresh, restart = game.sizes, game.gain, game.fresh, game.restart
    most_sizes, left = sizes.size, float(game.value.deadline - t)
    usd, step, points = game.value.usd, game.step, game.points
    holdings = 2 * most_sizes - 1
    old = np.empty((1, points), np.float32)
    ended = np.full((most_sizes, points), NEVER, np.float32)
    end_values(game, left, low, high, ended)
    for n in range(1, most_sizes if game.guarded else 1):
        raise_to_end(ended, n, usd, to_the_end(game, n, 0.0), left, step, low, high)
    idle = idle_limit(game, left)
    waits = until(step, points, idle, low, high)
    for s in range(game.available.size):
        for x in range(game.price.size):
            rows, out = after[s, x], start[s, x]
            price, count = game.price[x], game.available[s]
            start_values(game, left, low, high, ended, rows, s, x, out)
            raise_to(out, 0, rows, 0, usd, SlotRun(0.0, 0.0, 0.0, 0.0), low, waits)
            copy_row(out, 0, out, holdings, low, high)
            for n in range(1, most_sizes):
                size = sizes[n]
                spot = min(size, count)
                lost = holdings + n
                if spot > 0 and not spot_is_cheaper(price, game.on_demand):
                    copy_row(out, 0, out, n, low, high)  # expensive spot is let go
                    copy_row(out, 0, out, lost, low, high)
                    continue
                rate = gains[n] / step * (game.stands if spot > 0 else 1.0)
                limit, unsaved = high, high
                if spot > 0:
                    on_demand = size - spot
                    first = max(game.gap, game.wait + fresh[on_demand])
                    most = spot_limit(idle, left, first, restart[on_demand], gain_of(sizes, gains, on_demand))
                    limit = until(step, points, most, low, high)
                    unsaved = until(step, points, most - game.unsaved * gains[n], low, high)
                paid = slot_cost(size, spot, price, game.on_demand)
                kept, again = run_after(0.0, rate, paid), run_after(restart[size], rate, paid)
                raise_from(out, lost - 1, out, n, rows, n, usd, kept, low, unsaved, high)
                # Smaller groups keep their instances and restart.
                raise_from(out, lost - 1, out, lost, rows, n, usd, again, low, limit, high)
            copy_row(out, 0, old, 0, low, high)
            for n in range(1, most_sizes):
                k, rate, paid = n + most_sizes - 1, gains[n] / step, sizes[n] * game.on_demand
                raise_from(old, 0, out, k, rows, k, usd, run_after(0.0, rate, paid), low, high, high)
                raise_row(out, k, ended, n, low, high)
                raise_to(old, 0, rows, k, usd, run_after(restart[sizes[n]], rate, paid), low, high)
            if low == 0:
                out[:, 0] = usd


@part
def remaining_size(game: HeldJob, n: int, s: int, then: int) -> int:
    """Return the size in the grid that is left of the spot-first size ``n`` when the count goes from state ``s`` to ``then``.

    Negative: other instances are left than a spot-first size would have, as more spot came.
    """
    size = game.sizes[n]
    spot = min(size, game.available[s])
    if game.available[then] >= spot:
        return n if size <= game.available[s] or then == s else -1
    left = size - spot + game.available[then]
    return place_of(game.sizes, left + 1) - 1


@part
def rows_read(game: HeldJob) -> np.ndarray:
    """Return the row of `before_choice` that is read after a holding, from a state of the count to the next, (holdings, S, S4).

    Rows count from the first of all states. S4 is the number of states rounded up to a multiple of 4; the rest repeats.
    """
    states, sizes, levels = game.available.size, game.sizes.size, game.price.size
    holdings, each = 2 * sizes - 1, (3 * sizes - 1) * levels
    found = np.empty((holdings, states, (states + 3) // 4 * 4), np.int64)
    for k in range(holdings):
        for s in range(states):
            for then in range(found.shape[2]):
                state, row = min(then, states - 1), k
                if 0 < k < sizes and game.available[s] == 0:  # no spot is held
                    row = k + sizes - 1
                elif 0 < k < sizes:
                    left = remaining_size(game, k, s, state)
                    row = k if left == k else holdings + left if left > 0 else 0
                found[k, s, then] = state * each + row
    return found


@fast_part
def before_reading(
    reads: np.ndarray, chain: np.ndarray, low: int, high: int, start: np.ndarray, out: np.ndarray
) -> None:
    """Compute the values ``out`` (S, K, holdings, points) after a choice, before the next reading's count.

    ``start`` (S, K, holdings + M, points) are those at the start of the next slot as of `before_choice`, already expected
    over prices; ``chain`` (S, S) are the transitions of the count, ``reads`` the `rows_read`.

    Four rows are added in a pass, in order, to save reads and writes of the result.
    """
    states, levels, holdings, points = out.shape
    each, begin, end = start.shape[2], np.uint64(low), np.uint64(high)
    rows = start.reshape((states * levels * each, points))
    after = out.reshape((states * levels * holdings, points))
    weight = np.zeros((states, reads.shape[2]), np.float32)
    for s in range(states):
        for then in range(states):
            weight[s, then] = chain[s, then]
    for k in range(holdings):
        for s in range(states):
            for x in range(levels):
                o, first = (s * levels + x) * holdings + k, x * each
                for b in range(0, reads.shape[2], 4):
                    p, q, r, t = weight[s, b], weight[s, b + 1], weight[s, b + 2], weight[s, b + 3]
                    i, j = first + reads[k, s, b], first + reads[k, s, b + 1]
                    m, n = first + reads[k, s, b + 2], first + reads[k, s, b + 3]
                    if b == 0:
                        for h in range(begin, end):
                            after[o, h] = p * rows[i, h] + q * rows[j, h] + r * rows[m, h] + t * rows[n, h]
                        continue
                    for h in range(begin, end):
                        added = after[o, h] + p * rows[i, h] + q * rows[j, h]
                        after[o, h] = added + r * rows[m, h] + t * rows[n, h]


@part
def over_prices(chain: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Compute the values ``out`` before the next price from those ``rows`` after it, both (S, K, sizes, points)."""
    states, levels, sizes, points = rows.shape
    for s in range(states):
        mix(chain, rows[s].reshape((levels, sizes * points)), out[s].reshape((levels, sizes * points)))


@part
def fill_outside(rows: np.ndarray, low: int, high: int, begin: int, end: int, beyond: float) -> None:
    """Fill ``rows`` (n, points) around [low, high): from ``begin`` as the first there, to ``end`` as the last less ``beyond``."""
    less = np.float32(beyond)
    for k in range(rows.shape[0]):
        first, last = rows[k, low], rows[k, high - 1] - less
        for h in range(np.uint64(begin), np.uint64(low)):
            rows[k, h] = first
        for h in range(np.uint64(high), np.uint64(end)):
            rows[k, h] = last


@kernel
def induct_held(game: HeldJob, keep: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return expected values after the choice of each of the first ``keep`` slots, shape (keep, S, K, holdings, points).

    ``low`` and ``high``, shapes (T + 1,), bound the points that matter at the start of each slot and
    at the deadline; states with more work left are penalised. Single precision.
    """
    slots, states, _ = game.chain.shape
    levels, sizes, points = game.price.size, game.sizes.size, game.points
    holdings = 2 * sizes - 1
    beyond = game.value.usd + float(game.sizes[-1]) * game.on_demand * late_limit(game.value)
    kept = np.empty((keep, states, levels, holdings, points), np.float32)
    start = np.full((states, levels, holdings + sizes, points), NEVER, np.float32)
    after = np.empty((states, levels, holdings, points), np.float32)
    mixed = start
    if levels > 1:
        mixed = np.empty((states, levels, holdings + sizes, points), np.float32)
    most, reads = int(np.ceil(game.gain.max() / game.step)) + 2, rows_read(game)
    last_values(game, int(low[slots]), int(high[slots]), beyond, start)
    for i in range(slots - 1, -1, -1):
        first, end = low[i + 1], high[i + 1]
        if i < keep:
            after = kept[i]
        if levels > 1:
            over_prices(game.price_chain[i], start, mixed)
        before_reading(reads, game.chain[i], first, end, mixed, after)
        rows = after.reshape((states * levels * holdings, points))
        if i < keep:
            fill_outside(rows, first, end, 0, points, beyond)
        else:
            fill_outside(rows, first, end, max(0, low[i] - most), points, beyond)
        if i == 0:
            break
        before_choice(game, game.slot + i, low[i], high[i], after, start)
    return kept


class HeldState(NamedTuple):
    """A decision: work left and the part of it that is not saved, instances held, slots until they work, count, price per slot.

    ``share`` is the share of the slot that is left, ``left`` the slots to the deadline.
    """

    rest: float
    unsaved: float
    on_demand: int
    spot: int
    pending: float
    available: int
    price: float
    share: float
    left: float


class HeldStates(NamedTuple):
    """`HeldState` on many paths, arrays (paths,), in one slot, with the cell of each path: count state and price level."""

    rest: np.ndarray
    unsaved: np.ndarray
    on_demand: np.ndarray
    spot: np.ndarray
    pending: np.ndarray
    available: np.ndarray
    price: np.ndarray
    share: float
    left: float
    states: np.ndarray
    levels: np.ndarray


class SlotTerms(NamedTuple):
    """Terms of `HeldJob` for the choice in one slot: numbers only, since a call with arrays counts their references.

    ``idle`` is `idle_limit`, ``usd`` the value of a finish; the others as in `HeldJob`.
    """

    usd: float
    on_demand: float
    wait: float
    gap: float
    guarded: bool
    idle: float
    slack: float
    step: float
    stands: float


@part
def slot_terms(game: HeldJob, left: float) -> SlotTerms:
    """Return the terms of a choice with ``left`` slots to go."""
    return SlotTerms(
        float(game.value.usd),
        float(game.on_demand),
        float(game.wait),
        float(game.gap),
        bool(game.guarded),
        float(idle_limit(game, left)),
        float(game.slack),
        float(game.step),
        float(game.stands),
    )


class Target(NamedTuple):
    """A target in numbers: instances, their work in a slot, `most_left`, and ``fresh`` and ``restart`` of `HeldJob` for them."""

    on_demand: int
    spot: int
    gain: float
    most: float
    fresh: float
    restart: float


@part
def most_left(game: SlotTerms, spot: int, left: float, gain: float, fresh: float, restart: float) -> float:
    """Return the most saved work left with which the guard allows a target with ``left`` slots to go (M12.7).

    ``gain``, ``fresh`` and ``restart`` are those of its on-demand instances alone.
    """
    if not game.guarded or spot == 0:
        return np.inf
    most = spot_limit(game.idle, left, max(game.gap, game.wait + fresh), restart, gain)
    return float(most + game.slack + ROUNDING * game.step)


@part
def slot_work(game: SlotTerms, at: HeldState, to: Target, present_gain: float) -> tuple[float, float]:
    """Return the work left after the slot of a target, and the slots lost before it works.

    ``present_gain`` is the work in a slot of the instances held. The work left is infinite where
    the guard would not allow the target, and where new on-demand would not come by the deadline.
    """
    same = to.on_demand == at.on_demand and to.spot == at.spot
    lost = at.pending if same else to.restart
    if to.spot > at.spot or to.on_demand > at.on_demand:
        lost = to.fresh + (game.wait if to.on_demand > at.on_demand else 0.0)
    never = to.on_demand > at.on_demand and game.wait >= at.left
    if never or at.rest + (at.unsaved if same else 0.0) > to.most:
        return np.inf, lost
    work = (at.share - lost) * to.gain
    if to.on_demand >= at.on_demand and to.spot >= at.spot and not same and present_gain > 0.0:
        # The present group works until the new instances are up.
        booting = min(at.share, to.fresh - to.restart)
        work += max(0.0, booting - at.pending) * present_gain
    return at.rest - work, lost


@part
def slot_value(game: SlotTerms, at: HeldState, to: Target, left: float, lost: float, after: float) -> float:
    """Return the value of a target less its cost in the slot; ``after`` is the value with ``left`` work left."""
    cost = to.on_demand * game.on_demand + to.spot * at.price
    if left <= game.slack:
        takes = at.share + min(0.0, left) / to.gain if to.gain > 0.0 else at.share
        return game.usd - cost * takes
    worth = after - cost * at.share
    if to.on_demand > 0 and to.spot == 0 and game.guarded:
        # On demand to the end, paid to the second.
        takes = lost + at.rest / to.gain
        if takes <= at.left + ROUNDING:
            worth = max(worth, game.usd - cost * takes)
    return worth


@part
def nothing_value(game: SlotTerms, rows: np.ndarray, at: HeldState) -> float:
    """Return the value of running nothing, minus infinity where the guard would not allow it."""
    unsaved = 0.0 if at.on_demand + at.spot > 0 else at.unsaved
    if game.guarded and at.rest + unsaved > max(game.idle, 0.0) + game.slack + ROUNDING * game.step:
        return -np.inf
    return game.usd if at.rest <= game.slack else value_with(rows, 0, at.rest / game.step)


@part
def best_target(
    game: SlotTerms, fresh: np.ndarray, restart: np.ndarray, rows: np.ndarray, choices: Choices, at: HeldState
) -> tuple[float, int, int, float]:
    """Return (value, on-demand, spot) of the best target, and the value of running nothing.

    Choices are the present instances, every allowed size spot first or on demand, and nothing,
    which must be better by `WAIT_GAIN`. Ties: the present instances, then the least size. A value
    of minus infinity is not allowed. ``fresh`` and ``restart`` are those of `HeldJob`.

    One loop with the look-up in it: a call with arrays counts their references.
    """
    sizes, gains, near = choices.sizes, choices.gain, choices.near
    slack, wait_usd = TIE * abs(game.usd), WAIT_GAIN * game.on_demand
    last, on_demand_rows = rows.shape[1] - 1, (rows.shape[0] - 1) // 2
    usable = usable_spot(at.available, at.price, game.on_demand)
    present = at.on_demand + at.spot
    held = place_of(sizes, present)
    is_size = held < sizes.size and sizes[held] == present
    present_gain = gains[held] if is_size else 0.0
    idle = nothing_value(game, rows, at)
    best, on_demand, spot = -np.inf if present > 0 else idle - wait_usd, 0, 0
    keeps = present > 0 and is_size and at.spot <= usable
    for c in range(0 if keeps else 1, 2 * sizes.size - 1):
        j = (c + 1) // 2 if c > 0 else held
        n = sizes[j]
        first = min(n, usable)
        s = first if c % 2 else 0
        if c == 0:
            s = at.spot
        elif c % 2 == 0 and first == 0:
            continue
        mixed = s > 0 and n - s >= sizes[1]
        gain = gains[j] * (game.stands if s > 0 else 1.0)
        part_gain = gains[place_of(sizes, n - s)] if mixed else 0.0
        most = most_left(game, s, at.left, part_gain, fresh[n - s], restart[n - s])
        to = Target(n - s, s, gain, most, fresh[n], restart[n])
        left, lost = slot_work(game, at, to, present_gain)
        if left == np.inf:
            continue
        k = near[j] if s > 0 else near[j] + on_demand_rows
        steps = max(0.0, left / game.step)
        low = min(int(steps), last)
        after = float(rows[k, low])
        if low < last:
            after += (steps - low) * (float(rows[k, low + 1]) - after)
        worth = slot_value(game, at, to, left, lost, after)
        if worth > best + slack:
            best, on_demand, spot = worth, n - s, s
    if idle - wait_usd > best + slack:
        best, on_demand, spot = idle, 0, 0
    return best, on_demand, spot, idle


@kernel
def chosen_targets(
    game: HeldJob, columns: np.ndarray, choices: Choices, at: HeldStates
) -> tuple[np.ndarray, np.ndarray]:
    """Return `best_target` on many paths in a slot, shapes (paths,); ``columns`` has shape (S, K, holdings, points)."""
    chosen = np.empty((2, at.rest.size), np.int64)
    terms, fresh, restart = slot_terms(game, at.left), game.fresh, game.restart
    for p in range(at.rest.size):
        state = HeldState(
            at.rest[p], at.unsaved[p], at.on_demand[p], at.spot[p], at.pending[p], at.available[p], at.price[p],
            at.share, at.left,
        )  # fmt: skip
        rows = columns[at.states[p], at.levels[p]]
        _, chosen[0, p], chosen[1, p], _ = best_target(terms, fresh, restart, rows, choices, state)
    return chosen[0], chosen[1]
