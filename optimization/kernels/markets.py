"""Backward induction of M4.12 in several markets of a job, and the choice among them (M11.6) (ours).

Each market has the tables of `kernels.holding`. At the start of a later slot the job also sees the
other markets, whose states are drawn, and may start in one of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slackwater.optimization.kernels.compiling import fast_part, kernel, part
from slackwater.optimization.kernels.holding import (
    NEVER,
    TIE,
    WAIT_GAIN,
    Held,
    HeldState,
    before_choice,
    before_reading,
    best_target,
    gain_of,
    last_values,
    on_demand_usd,
    over_prices,
    raise_to,
    spot_limit,
    until,
    value_of,
)
from slackwater.optimization.kernels.rules import late_limit, slot_cost, spot_held


class Market(NamedTuple):
    """A market of a job: ``game`` of a job that is there, ``moved`` of a job that comes from another market.

    ``sizes`` are all allowed sizes with their work in a slot ``gains``, ``near`` is the index of the
    nearest size of the grid.
    """

    game: Held
    moved: Held
    sizes: np.ndarray
    gains: np.ndarray
    near: np.ndarray


@part
def start_values(
    game: Held, left: float, low: int, high: int, rows: np.ndarray, s: int, x: int, out: np.ndarray
) -> None:
    """Compute ``out[0, low:high]``, the values of starting in a market in state (s, x) with ``left`` slots to go.

    ``rows`` (holdings, points) are the market's values after the choice in that state.
    """
    sizes, usd = game.sizes.size, game.value.usd
    for h in range(low, high):
        out[0, h] = NEVER
        if game.guarded:
            for n in range(1, sizes):
                paid = on_demand_usd(game, left, h * game.step, n, game.fresh + game.wait)
                out[0, h] = max(out[0, h], usd - paid)
    for n in range(1, sizes):
        rate = game.gain[n] / game.step
        spot = spot_held(game.sizes[n], game.available[s], game.price[x], game.on_demand)
        on_demand = game.sizes[n] - spot
        if spot > 0:
            limit = until(game, spot_limit(game, left, gain_of(game, on_demand)), low, high)
            gone = game.fresh + (game.wait if on_demand > 0 else 0.0)
            paid = slot_cost(game.sizes[n], spot, game.price[x], game.on_demand)
            raise_to(out, 0, rows, n, (1.0 - gone) * rate, rate, usd, paid, gone, low, limit)
        gone, paid = game.fresh + game.wait, game.sizes[n] * game.on_demand
        raise_to(out, 0, rows, sizes - 1 + n, (1.0 - gone) * rate, rate, usd, paid, gone, low, high)


@fast_part
def mean_of_better(
    rows: np.ndarray, others: np.ndarray, upper: np.ndarray, spare: np.ndarray, low: int, high: int
) -> None:
    """Compute rows[j, h] = mean over r of max(rows[j, h], others[r, h]) for h in [low, high), for rows (J, points).

    ``upper`` is the maximum of ``others`` over r, ``spare`` (points,) is scratch.
    """
    begin, end, share = np.uint64(low), np.uint64(high), np.float32(1.0 / others.shape[0])
    for j in range(rows.shape[0]):
        above = 0
        for h in range(begin, end):
            above += 1 if upper[h] > rows[j, h] else 0
        if above == 0:
            continue
        for h in range(begin, end):
            spare[h] = np.float32(0.0)
        for r in range(others.shape[0]):
            for h in range(begin, end):
                spare[h] += others[r, h] if others[r, h] > rows[j, h] else rows[j, h]
        for h in range(begin, end):
            rows[j, h] = spare[h] * share


@part
def flat(values: np.ndarray) -> np.ndarray:
    """Return values (S, K, holdings, points) as rows of points."""
    a, b, c, points = values.shape
    return values.reshape((a * b * c, points))


@kernel
def induct_markets(
    markets: list[Market],
    draws: np.ndarray,
    move_usd: np.ndarray,
    keep: int,
    low: np.ndarray,
    high: np.ndarray,
    fastest: int,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return expected values after the choice of each of the first ``keep`` slots, per market and without a market.

    The shapes are (keep, S, K, holdings, points), as of `induct_held`, and (keep, points). At the
    start of a later slot the other markets are in the states of ``draws`` (T, R, M, 2), each draw
    equally likely; without draws the job stays where it is. ``move_usd`` (M, M) is the cost of a
    move. Without a market the deadline is kept by on-demand in market ``fastest``.
    """
    count, slots, draw_count = len(markets), draws.shape[0], draws.shape[1]
    first_game = markets[fastest].game
    value, points = first_game.value, first_game.points
    kept = [np.empty((1, 1, 1, 1, 1), np.float32) for _ in range(count)]
    now = [np.empty((1, 1, 1, 1), np.float32) for _ in range(count)]
    after = [np.empty((1, 1, 1, 1), np.float32) for _ in range(count)]
    mixed = [np.empty((1, 1, 1, 1), np.float32) for _ in range(count)]
    lost = [np.empty((1, 1, 1, 1), np.float32) for _ in range(count)]
    gone = [np.empty((1, 1, 1, 1), np.float32) for _ in range(count)]
    dearest = 0.0
    for m in range(count):
        game = markets[m].game
        states, levels, sizes = game.available.size, game.price.size, game.sizes.size
        holdings = 2 * sizes - 1
        kept[m] = np.empty((keep, states, levels, holdings, points), np.float32)
        now[m] = np.empty((states, levels, holdings, points), np.float32)
        after[m] = np.empty((states, levels, holdings, points), np.float32)
        mixed[m] = np.empty((states, levels, holdings, points), np.float32)
        lost[m] = np.full((states, levels, sizes, points), NEVER, np.float32)
        gone[m] = np.empty((states, levels, sizes, points), np.float32)
        dearest = max(dearest, float(game.sizes[-1]) * game.on_demand)
    beyond = value.usd + dearest * late_limit(value) + float(move_usd.max())
    alone, nowhere = np.empty((keep, points), np.float32), np.full((1, points), NEVER, np.float32)
    for m in range(count):
        last_values(markets[m].game, int(low[slots]), int(high[slots]), beyond, now[m])
        lost[m][:] = now[m][:, :, : markets[m].game.sizes.size]
        for h in range(low[slots], high[slots]):
            nowhere[0, h] = max(nowhere[0, h], now[m][0, 0, 0, h])
    coming = np.empty((count, draw_count, points), np.float32)
    starting = np.empty((count, draw_count, points), np.float32)
    one, others = np.empty((1, points), np.float32), np.empty((draw_count, points), np.float32)
    upper, spare = np.empty(points, np.float32), np.empty(points, np.float32)
    for i in range(slots - 1, -1, -1):
        begin, end = low[i + 1], high[i + 1]
        for m in range(count):
            game = markets[m].game
            over_prices(game.price_chain[i], now[m], mixed[m])
            over_prices(game.price_chain[i], lost[m], gone[m])
            before_reading(game, game.chain[i], begin, end, mixed[m], gone[m], after[m])
            rows = flat(after[m])
            for k in range(rows.shape[0]):
                rows[k, :begin] = rows[k, begin]
                rows[k, end:] = rows[k, end - 1] - np.float32(beyond)
            if i < keep:
                kept[m][i] = after[m]
        nowhere[0, :begin] = nowhere[0, begin]
        nowhere[0, end:] = nowhere[0, end - 1] - np.float32(beyond)
        if i < keep:
            alone[i] = nowhere[0]
        if i == 0:
            break
        begin, end, left = low[i], high[i], float(value.deadline - first_game.slot - i)
        for m in range(count):
            for r in range(draw_count):
                s, x = draws[i, r, m, 0], draws[i, r, m, 1]
                same = -1
                for q in range(r):
                    if draws[i, q, m, 0] == s and draws[i, q, m, 1] == x:
                        same = q
                if same >= 0:
                    coming[m, r], starting[m, r] = coming[m, same], starting[m, same]
                    continue
                start_values(markets[m].moved, left, begin, end, after[m][s, x], s, x, one)
                coming[m, r] = one[0]
                start_values(markets[m].game, left, begin, end, after[m][s, x], s, x, one)
                starting[m, r] = one[0]
        stay = np.full((1, points), NEVER, np.float32)
        idle = until(first_game, spot_limit(first_game, left, 0.0), begin, end)
        raise_to(stay, 0, nowhere, 0, 0.0, 0.0, value.usd, 0.0, 0.0, begin, idle)
        for m in range(count):
            before_choice(markets[m].game, first_game.slot + i, begin, end, after[m], now[m], lost[m])
        for m in range(count + 1):
            if draw_count == 0:
                break
            upper[begin:end] = NEVER
            for r in range(draw_count):
                others[r, begin:end] = NEVER
                for k in range(count):
                    if k == m:
                        continue
                    paid = np.float32(move_usd[m, k]) if m < count else np.float32(0.0)
                    for h in range(begin, end):
                        worth = (coming[k, r, h] if m < count else starting[k, r, h]) - paid
                        others[r, h] = max(others[r, h], worth)
                for h in range(begin, end):
                    upper[h] = max(upper[h], others[r, h])
            if m < count:
                mean_of_better(flat(now[m]), others, upper, spare, begin, end)
                mean_of_better(flat(lost[m]), others, upper, spare, begin, end)
            else:
                mean_of_better(stay, others, upper, spare, begin, end)
        nowhere[:] = stay
        if begin == 0:
            nowhere[0, 0] = value.usd
    return kept, alone


@part
def best_start(
    market: Market, game: Held, rows: np.ndarray, at: HeldState, least: float
) -> tuple[float, int, int]:
    """Return (value, on-demand, spot) of the best start in a market, (``least``, 0, 0) if none is worth more."""
    slack = TIE * abs(game.value.usd)
    best, on_demand, spot = least, 0, 0
    for j in range(1, market.sizes.size):
        n = market.sizes[j]
        first = spot_held(n, at.available, at.price, game.on_demand)
        for s in (first, 0):
            worth = value_of(game, rows, market.sizes, market.gains, market.near, at, n - s, s)
            if worth > best + slack:
                best, on_demand, spot = worth, n - s, s
            if first == 0:
                break
    return best, on_demand, spot


@kernel
def choose_market(
    markets: list[Market],
    after: list[np.ndarray],
    alone: np.ndarray,
    slot: int,
    move_usd: np.ndarray,
    fastest: int,
    place: np.ndarray,
    here: np.ndarray,
    own: np.ndarray,
    held: np.ndarray,
    available: np.ndarray,
    price: np.ndarray,
    cells: np.ndarray,
    share: float,
    left: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets of highest value on many paths in a slot, and the value of the best in each market.

    Targets are (market, on-demand, spot), (paths, 3).

    ``slot`` is the index of the slot in the tables ``after`` and ``alone``. ``place`` and ``here``
    (paths,) are the markets of the checkpoint (M: none) and of the instances. ``own`` (paths, 3)
    are work left, work not saved and slots until the instances ``held`` (paths, 2; on-demand, spot)
    work. ``available``, ``price`` per slot and ``cells`` (count state, price level; paths, M, 2)
    are those of each market. Ties: the present market and instances, then the least size.

    The values (paths, M + 1) include the cost of a move; column M is running nothing.
    """
    paths, count = available.shape
    chosen, worths = np.empty((paths, 3), np.int64), np.full((paths, count + 1), -np.inf)
    for p in range(paths):
        at = HeldState(own[p, 0], 0.0, 0, 0, 0.0, 0, 0.0, share, left)
        place_p, here_p = place[p], here[p]
        market, on_demand, spot = here_p, 0, 0
        if here_p < count:
            there = markets[here_p]
            rows = after[here_p][slot, cells[p, here_p, 0], cells[p, here_p, 1]]
            at = HeldState(
                own[p, 0], own[p, 1], held[p, 0], held[p, 1], own[p, 2],
                available[p, here_p], price[p, here_p], share, left,
            )  # fmt: skip
            on_demand, spot = best_target(there.game, rows, there.sizes, there.gains, there.near, at)
            waits = value_of(there.game, rows, there.sizes, there.gains, there.near, at, 0, 0)
            worths[p, count] = waits
            paid = move_usd[place_p, here_p] if place_p < count and place_p != here_p else 0.0
            if on_demand + spot > 0:
                worths[p, here_p] = (
                    value_of(there.game, rows, there.sizes, there.gains, there.near, at, on_demand, spot)
                    - paid
                )
        else:
            there = markets[fastest]
            rows = alone[slot : slot + 1]
            worths[p, count] = value_of(there.game, rows, there.sizes, there.gains, there.near, at, 0, 0)
        slack = TIE * abs(markets[fastest].game.value.usd)
        best = worths[p, count] - WAIT_GAIN * markets[fastest].game.on_demand
        if on_demand + spot > 0:
            best = worths[p, here_p]
        for m in range(count):
            if m == here_p:
                continue
            moves = place_p < count and place_p != m
            game = markets[m].moved if moves else markets[m].game
            rows = after[m][slot, cells[p, m, 0], cells[p, m, 1]]
            at = HeldState(own[p, 0], 0.0, 0, 0, 0.0, available[p, m], price[p, m], share, left)
            worth, o, s = best_start(markets[m], game, rows, at, -np.inf)
            worths[p, m] = worth - (move_usd[place_p, m] if moves else 0.0)
            if worths[p, m] > best + slack:
                best, market, on_demand, spot = worths[p, m], m, o, s
        chosen[p, 0], chosen[p, 1], chosen[p, 2] = market, on_demand, spot
    return chosen, worths
