"""Backward induction of M4.12 in several markets of a job, and the choice among them (M11.6) (ours).

Each market has the tables of `kernels.holding`. At the start of a later slot the job also sees the
other markets, whose states are drawn, and may start in one of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slackwater.optimization.kernels.arrays import copy_between, copy_row, place_of
from slackwater.optimization.kernels.compiling import fast_part, kernel, part
from slackwater.optimization.kernels.holding import (
    TIE,
    WAIT_GAIN,
    HeldJob,
    HeldState,
    SlotTerms,
    Target,
    before_choice,
    before_reading,
    best_target,
    end_values,
    fill_outside,
    idle_limit,
    last_values,
    most_left,
    nothing_value,
    over_prices,
    raise_row,
    raise_to,
    rows_read,
    run_after,
    slot_terms,
    slot_value,
    start_values,
    until,
)
from slackwater.optimization.kernels.induction import NEVER, Choices
from slackwater.optimization.kernels.rules import late_limit, move_usd, usable_spot


class Market(NamedTuple):
    """A market of a job: ``game`` of a job already there, ``moved`` of a job that moves there."""

    game: HeldJob
    moved: HeldJob
    choices: Choices


@fast_part
def mean_of_better(
    rows: np.ndarray, others: np.ndarray, upper: np.ndarray, spare: np.ndarray, low: int, high: int
) -> None:
    """Compute rows[j, h] = mean over r of max(rows[j, h], others[r, h]) for h in [low, high), for rows (J, points).

    ``upper`` (1, points) is the maximum of ``others`` over r, ``spare`` (points,) is scratch.
    """
    begin, end, share = np.uint64(low), np.uint64(high), np.float32(1.0 / others.shape[0])
    for j in range(rows.shape[0]):
        above = 0
        for h in range(begin, end):
            above += 1 if upper[0, h] > rows[j, h] else 0
        if above == 0:
            continue
        for h in range(begin, end):
            spare[h] = np.float32(0.0)
        for r in range(others.shape[0]):
            for h in range(begin, end):
                spare[h] += others[r, h] if others[r, h] > rows[j, h] else rows[j, h]
        for h in range(begin, end):
            rows[j, h] = spare[h] * share


@fast_part
def raise_less(
    out: np.ndarray, i: int, rows: np.ndarray, k: int, r: int, less: float, low: int, high: int
) -> None:
    """Raise ``out[i, low:high]`` to the values ``rows[k, r]`` minus ``less``."""
    usd = np.float32(less)
    for h in range(np.uint64(low), np.uint64(high)):
        worth = rows[k, r, h] - usd
        out[i, h] = worth if worth > out[i, h] else out[i, h]


@part
def flat(values: np.ndarray) -> np.ndarray:
    """Return values (S, K, holdings, points) as rows of points."""
    a, b, c, points = values.shape
    return values.reshape((a * b * c, points))


@kernel
def induct_markets(
    markets: list[Market],
    draws: np.ndarray,
    moves: np.ndarray,
    keep: int,
    low: np.ndarray,
    high: np.ndarray,
    fastest: int,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return expected values after the choice of each of the first ``keep`` slots, per market and without a market.

    The shapes are (keep, S, K, holdings, points), as of `induct_held`, and (keep, points). At the
    start of a later slot the other markets are in the states of ``draws`` (T, R, M, 2), each draw
    equally likely; without draws the job stays where it is. ``moves`` are the costs as of
    `move_usd`. Without a market the deadline is kept by on-demand in market ``fastest``.
    """
    count, slots, draw_count = len(markets), draws.shape[0], draws.shape[1]
    first_game = markets[fastest].game
    value, points = first_game.value, first_game.points
    kept = [np.empty((1, 1, 1, 1, 1), np.float32) for _ in range(count)]
    start = [np.empty((1, 1, 1, 1), np.float32) for _ in range(count)]
    after = [np.empty((1, 1, 1, 1), np.float32) for _ in range(count)]
    mixed = [np.empty((1, 1, 1, 1), np.float32) for _ in range(count)]
    reads = [np.empty((1, 1, 1), np.int64) for _ in range(count)]
    dearest, most_gain = 0.0, 0.0
    for m in range(count):
        game = markets[m].game
        states, levels, sizes = game.available.size, game.price.size, game.sizes.size
        holdings = 2 * sizes - 1
        kept[m] = np.empty((keep, states, levels, holdings, points), np.float32)
        start[m] = np.full((states, levels, holdings + sizes, points), NEVER, np.float32)
        after[m] = np.empty((states, levels, holdings, points), np.float32)
        mixed[m], reads[m] = start[m], rows_read(game)
        if levels > 1:
            mixed[m] = np.empty((states, levels, holdings + sizes, points), np.float32)
        dearest = max(dearest, float(game.sizes[-1]) * game.on_demand)
        most_gain = max(most_gain, float(game.gain.max()))
    beyond = value.usd + dearest * late_limit(value) + float(moves.max())
    alone, nowhere = np.empty((keep, points), np.float32), np.full((1, points), NEVER, np.float32)
    for m in range(count):
        last_values(markets[m].game, int(low[slots]), int(high[slots]), beyond, start[m])
        for h in range(low[slots], high[slots]):
            nowhere[0, h] = max(nowhere[0, h], start[m][0, 0, 0, h])
    coming = np.empty((count, draw_count, points), np.float32)
    starting = np.empty((count, draw_count, points), np.float32)
    one, others = np.empty((1, points), np.float32), np.empty((draw_count, points), np.float32)
    upper, spare = np.empty((1, points), np.float32), np.empty(points, np.float32)
    most = int(np.ceil(most_gain / first_game.step)) + 2
    moved_end, stayed_end = np.empty((1, points), np.float32), np.empty((1, points), np.float32)
    for i in range(slots - 1, -1, -1):
        begin, end = low[i + 1], high[i + 1]
        # All points of a stored slot, of others those that the slot before reads: a restart longer than a slot adds work left.
        least = 0 if i < keep else max(0, low[i] - most)
        for m in range(count):
            game = markets[m].game
            if game.price.size > 1:
                over_prices(game.price_chain[i], start[m], mixed[m])
            if i < keep:
                after[m] = kept[m][i]
            before_reading(reads[m], game.chain[i], begin, end, mixed[m], after[m])
            fill_outside(flat(after[m]), begin, end, least, points, beyond)
        fill_outside(nowhere, begin, end, least, points, beyond)
        if i < keep:
            copy_row(nowhere, 0, alone, i, 0, points)
        if i == 0:
            break
        begin, end, left = low[i], high[i], float(value.deadline - first_game.slot - i)
        for m in range(count):
            end_values(markets[m].moved, left, begin, end, moved_end)
            end_values(markets[m].game, left, begin, end, stayed_end)
            for r in range(draw_count):
                s, x = draws[i, r, m, 0], draws[i, r, m, 1]
                same = -1
                for q in range(r):
                    if draws[i, q, m, 0] == s and draws[i, q, m, 1] == x:
                        same = q
                if same >= 0:
                    copy_between(coming[m, same], coming[m, r], begin, end)
                    copy_between(starting[m, same], starting[m, r], begin, end)
                    continue
                rows = after[m][s, x]
                start_values(markets[m].moved, left, begin, end, moved_end, rows, s, x, one)
                copy_between(one[0], coming[m, r], begin, end)
                start_values(markets[m].game, left, begin, end, stayed_end, rows, s, x, one)
                copy_between(one[0], starting[m, r], begin, end)
        stay = np.full((1, points), NEVER, np.float32)
        idle = until(first_game.step, points, idle_limit(first_game, left), begin, end)
        raise_to(stay, 0, nowhere, 0, value.usd, run_after(0.0, 0.0, 0.0), begin, idle)
        for m in range(count):
            before_choice(markets[m].game, first_game.slot + i, begin, end, after[m], start[m])
        for m in range(count + 1):
            if draw_count == 0:
                break
            upper[0, begin:end] = NEVER
            for r in range(draw_count):
                others[r, begin:end] = NEVER
                for k in range(count):
                    if k == m:
                        continue
                    paid = move_usd(moves, first_game.slot + i, m, k)
                    raise_less(others, r, coming if m < count else starting, k, r, paid, begin, end)
                raise_row(upper, 0, others, r, begin, end)
            if m < count:
                mean_of_better(flat(start[m]), others, upper, spare, begin, end)
            else:
                mean_of_better(stay, others, upper, spare, begin, end)
        copy_row(stay, 0, nowhere, 0, 0, points)
        if begin == 0:
            nowhere[0, 0] = value.usd
    return kept, alone


class Plan(NamedTuple):
    """Values after the choice, ``after`` per market and ``alone`` without one, and the terms of moves as of `induct_markets`."""

    markets: list[Market]
    after: list[np.ndarray]
    alone: np.ndarray
    moves: np.ndarray
    fastest: int


class MarketPaths(NamedTuple):
    """A job in one slot on many paths, arrays (paths,), of markets (paths, M).

    ``place`` and ``here`` are the markets of the checkpoint (M: none) and of the instances; the
    others as in `HeldStates`, of the instances ``here`` and of each market.
    """

    place: np.ndarray
    here: np.ndarray
    rest: np.ndarray
    unsaved: np.ndarray
    on_demand: np.ndarray
    spot: np.ndarray
    pending: np.ndarray
    available: np.ndarray
    price: np.ndarray
    states: np.ndarray
    levels: np.ndarray
    share: float
    left: float


class Starts(NamedTuple):
    """Targets of a job that starts in a market in a slot, by usable spot; computed at first use (`fill_starts`).

    The first axis is 0 for a job already there, 1 for one that moves there. ``targets`` (2, U) is their number, 0
    before. ``held`` (2, U, C, 3) are on-demand, spot and row of the tables, ``terms`` (2, U, C, 4) work per slot, work in
    this slot, slots lost before it, and `most_left`.
    """

    targets: np.ndarray
    held: np.ndarray
    terms: np.ndarray


@part
def no_starts(choices: Choices) -> Starts:
    """Return targets that are not computed yet."""
    usable, most = choices.sizes[-1] + 1, 2 * choices.sizes.size
    return Starts(
        np.zeros((2, usable), np.int64),
        np.empty((2, usable, most, 3), np.int64),
        np.empty((2, usable, most, 4)),
    )


@part
def fill_starts(
    game: SlotTerms, own: HeldJob, choices: Choices, at: HeldState, moved: int, u: int, out: Starts
) -> None:
    """Compute the targets with ``u`` usable spot instances: every size spot first, and on demand."""
    sizes, c, on_demand_rows = choices.sizes, 0, own.sizes.size - 1
    for j in range(1, sizes.size):
        n = sizes[j]
        first = min(n, u)
        for kind in range(2 if first > 0 else 1):
            s = first if kind == 0 else 0
            o, gain = n - s, choices.gain[j] * (game.stands if s > 0 else 1.0)
            part_gain = choices.gain[place_of(sizes, o)] if s > 0 and o >= sizes[1] else 0.0
            most = most_left(game, s, at.left, part_gain, own.fresh[o], own.restart[o])
            lost = own.fresh[n] + (game.wait if o > 0 else 0.0)
            out.held[moved, u, c, 0], out.held[moved, u, c, 1] = o, s
            out.held[moved, u, c, 2] = choices.near[j] + (0 if s > 0 else on_demand_rows)
            out.terms[moved, u, c, 0], out.terms[moved, u, c, 1] = gain, (at.share - lost) * gain
            never = o > 0 and game.wait >= at.left
            out.terms[moved, u, c, 2], out.terms[moved, u, c, 3] = lost, -np.inf if never else most
            c += 1
    out.targets[moved, u] = c


@part
def best_start(
    game: SlotTerms, rows: np.ndarray, at: HeldState, moved: int, u: int, starts: Starts
) -> tuple[float, int, int]:
    """Return (value, on-demand, spot) of the best target of a job without instances, as `best_target` of the others."""
    held, terms = starts.held, starts.terms
    slack, last = TIE * abs(game.usd), rows.shape[1] - 1
    best, on_demand, spot = -np.inf, 0, 0
    for c in range(starts.targets[moved, u]):
        if at.rest > terms[moved, u, c, 3]:
            continue
        o, s, k = held[moved, u, c, 0], held[moved, u, c, 1], held[moved, u, c, 2]
        left = at.rest - terms[moved, u, c, 1]
        steps = max(0.0, left / game.step)
        low = min(int(steps), last)
        after = float(rows[k, low])
        if low < last:
            after += (steps - low) * (float(rows[k, low + 1]) - after)
        to = Target(o, s, terms[moved, u, c, 0], np.inf, 0.0, 0.0)
        worth = slot_value(game, at, to, left, terms[moved, u, c, 2], after)
        if worth > best + slack:
            best, on_demand, spot = worth, o, s
    return best, on_demand, spot


@part
def value_market(
    own: Market,
    after: np.ndarray,
    m: int,
    at: MarketPaths,
    moves: np.ndarray,
    slot: int,
    best_in: np.ndarray,
    worths: np.ndarray,
) -> None:
    """Write the best target in market ``m`` on each path to ``best_in`` (paths, M, 2), and its value to ``worths``.

    Where the instances are in this market, the value of nothing goes to the last column of
    ``worths`` (paths, M + 1). ``after`` are the values of ``slot``, ``moves`` the costs as of `move_usd`.
    """
    count, largest = moves.shape[2], own.choices.sizes[-1]
    stays, comes = slot_terms(own.game, at.left), slot_terms(own.moved, at.left)
    starts, fresh, restart = no_starts(own.choices), own.game.fresh, own.game.restart
    filled, places, heres, rests = starts.targets, at.place, at.here, at.rest
    counts, prices, states, levels = at.available, at.price, at.states, at.levels
    for p in range(rests.size):
        place, is_here = places[p], heres[p] == m
        rows = after[states[p, m], levels[p, m]]
        here = at.unsaved[p], at.on_demand[p], at.spot[p], at.pending[p]
        unsaved, on_demand, spot, pending = here if is_here else (0.0, 0, 0, 0.0)
        state = HeldState(
            rests[p], unsaved, on_demand, spot, pending, counts[p, m], prices[p, m], at.share, at.left
        )  # fmt: skip
        if is_here:
            usd, o, s, worths[p, count] = best_target(stays, fresh, restart, rows, own.choices, state)
        else:
            moved = 1 if place < count and place != m else 0
            u = min(usable_spot(counts[p, m], prices[p, m], stays.on_demand), largest)
            if filled[moved, u] == 0 and moved:
                fill_starts(comes, own.moved, own.choices, state, moved, u, starts)
            elif filled[moved, u] == 0:
                fill_starts(stays, own.game, own.choices, state, moved, u, starts)
            usd, o, s = best_start(stays, rows, state, moved, u, starts)
        if o + s > 0:
            worths[p, m] = usd - move_usd(moves, slot, place, m)
            best_in[p, m, 0], best_in[p, m, 1] = o, s


@kernel
def choose_market(
    markets: list[Market],
    afters: list[np.ndarray],
    alone: np.ndarray,
    moves: np.ndarray,
    fastest: int,
    i: int,
    at: MarketPaths,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the targets of highest value in the slot of index ``i``, the best in each market, and their values.

    The first arguments are a `Plan`: numba finds the type of a tuple that contains lists slowly.
    Targets are (market, on-demand, spot), (paths, 3), and (on-demand, spot), (paths, M, 2). Values
    (paths, M + 1) include the cost of a move; the last column is running nothing, which must be
    better by `WAIT_GAIN`. Ties: the present market and instances, then the least size.
    """
    paths, count = at.available.shape
    chosen, best_in = np.empty((paths, 3), np.int64), np.zeros((paths, count, 2), np.int64)
    worths = np.full((paths, count + 1), -np.inf)
    own = markets[fastest]
    terms, rows = slot_terms(own.game, at.left), alone[i : i + 1]
    for p in range(paths):
        if at.here[p] == count:
            nothing = HeldState(at.rest[p], 0.0, 0, 0, 0.0, 0, 0.0, at.share, at.left)
            worths[p, count] = nothing_value(terms, rows, nothing)
    # A market at a time: reading an entry of a list counts the references of its arrays.
    for m in range(count):
        value_market(markets[m], afters[m][i], m, at, moves, own.game.slot + i, best_in, worths)
    slack, wait_usd = TIE * abs(terms.usd), WAIT_GAIN * terms.on_demand
    for p in range(paths):
        market, best = at.here[p], worths[p, count] - wait_usd
        if market < count and worths[p, market] > -np.inf:
            best = worths[p, market]
        for m in range(count):
            if m != at.here[p] and worths[p, m] > best + slack:
                best, market = worths[p, m], m
        chosen[p, 0], chosen[p, 1], chosen[p, 2] = market, 0, 0
        if market < count:
            chosen[p, 1], chosen[p, 2] = best_in[p, market]
    return chosen, best_in, worths
