"""Compiled backward induction over (slots left, slack, holding, state of the market); all times in ticks.

The slack x, time left minus work left, takes the place of the work left: it falls by a slot when nothing runs and by what a start
eats, and never otherwise, so that its grid is exact. A *holding* is what is held and what it still owes: 0 is nothing, 1..r spot
and r+1..2r on-demand, in the order of the levels of overhead owed (the last owes nothing).

Compiled functions call only those of their own file: numba's cache on disk does not notice a change in another one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from optimization.single_instance.setting import NONE, ON_DEMAND, SPOT, Ticks


@njit(cache=True)
def owed_levels(ticks: Ticks) -> np.ndarray:
    """Overhead still owed after 1, 2, ... slots of an instance, down to 0."""
    slots = max(1, (ticks.overhead + ticks.slot - 1) // ticks.slot)
    return np.maximum(ticks.overhead - ticks.slot * np.arange(1, slots + 1), 0)


@njit(cache=True)
def move(ticks: Ticks, owed: np.ndarray, holding: int, action: int) -> tuple[int, int]:
    """The holding after a slot of ``action``, and the slack it takes."""
    r = owed.size
    if action == NONE:
        return 0, ticks.slot
    first = 1 if action == SPOT else r + 1
    if first <= holding < first + r:
        return min(holding + 1, first + r - 1), min(owed[holding - first], ticks.slot)
    return first, min(ticks.overhead, ticks.slot)


@njit(cache=True)
def expected(value: np.ndarray, rows: tuple[np.ndarray, np.ndarray, np.ndarray], out: np.ndarray) -> None:
    """out[k, m, x] = sum over the next states of state k of chance times value."""
    start, to, chance = rows
    for k in range(start.size - 1):
        out[k] = 0.0
        for i in range(start[k], start[k + 1]):
            p, source = chance[i], value[to[i]]
            for m in range(source.shape[0]):
                for x in range(source.shape[1]):
                    out[k, m, x] += p * source[m, x]


@njit(cache=True)
def choose(
    ticks: Ticks,
    left: int,
    guarded: bool,
    up: np.ndarray,
    ahead: np.ndarray,
    out: tuple[np.ndarray, np.ndarray],
) -> None:
    """Least cost to go and its action in every (state, holding, slack) with ``left`` slots to go.

    ``ahead`` holds the expected costs after this slot, ``out`` takes cost and action. ``guarded``: nothing and spot are only
    allowed where on-demand started in the next slot would still meet the deadline; on-demand itself keeps what can be met so. A
    state from which the deadline cannot be met has infinite cost.
    """
    value, action = out
    owed = owed_levels(ticks)
    r, rest = owed.size, (left - 1) * ticks.slot
    room = min(ticks.overhead, rest) if guarded else 0
    for k in range(up.size):
        for m in range(1 + 2 * r):
            if 0 < m <= r and not up[k]:
                value[k, m], action[k, m] = value[k, 0], action[k, 0]
                continue
            to_spot, spot_eats = move(ticks, owed, m, SPOT)
            to_demand, demand_eats = move(ticks, owed, m, ON_DEMAND)
            for x in range(value.shape[2]):
                if x >= left * ticks.slot:
                    value[k, m, x], action[k, m, x] = 0.0, NONE
                    continue
                best, took = np.inf, ON_DEMAND
                if x >= demand_eats:
                    best = ticks.on_demand_usd + ahead[k, to_demand, x - demand_eats]
                if x - ticks.slot >= room and ahead[k, 0, x - ticks.slot] < best:
                    best, took = ahead[k, 0, x - ticks.slot], NONE
                if up[k] and x - spot_eats >= room:
                    cost = ticks.spot_usd + ahead[k, to_spot, x - spot_eats]
                    if cost <= best:
                        best, took = cost, SPOT
                value[k, m, x], action[k, m, x] = best, took


@njit(cache=True)
def induct(
    ticks: Ticks, slots: int, slack: int, up: np.ndarray, rows: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Actions (slots + 1, states, holdings, slack + 1) by slots left on a Markov chain, and the costs with all slots left."""
    holdings = 1 + 2 * owed_levels(ticks).size
    value = np.zeros((up.size, holdings, slack + 1))
    ahead = np.zeros_like(value)
    action = np.zeros((slots + 1, up.size, holdings, slack + 1), dtype=np.int8)
    for left in range(1, slots + 1):
        expected(value, rows, ahead)
        choose(ticks, left, True, up, ahead, (value, action[left]))
    return action, value


@njit(cache=True)
def induct_known(ticks: Ticks, slack: int, up: np.ndarray) -> np.ndarray:
    """Actions (slots + 1, 1, holdings, slack + 1) by slots left when every slot is known beforehand."""
    holdings = 1 + 2 * owed_levels(ticks).size
    value = np.zeros((1, holdings, slack + 1))
    action = np.zeros((up.size + 1, 1, holdings, slack + 1), dtype=np.int8)
    for left in range(1, up.size + 1):
        choose(
            ticks, left, False, up[up.size - left : up.size - left + 1], value.copy(), (value, action[left])
        )
    return action


@njit(cache=True)
def follow(ticks: Ticks, action: np.ndarray, states: np.ndarray, up: np.ndarray) -> np.ndarray:
    """The actions of a table along one run; ``states`` (slots,) is the market's state as seen in every slot."""
    owed = owed_levels(ticks)
    taken = np.zeros(up.size, dtype=np.int8)
    holding, x = 0, up.size * ticks.slot - ticks.work
    for t in range(up.size):
        left = up.size - t
        if x >= left * ticks.slot:
            break
        if 0 < holding <= owed.size and not up[t]:
            holding = 0
        taken[t] = action[left, states[t], holding, x]
        holding, lost = move(ticks, owed, holding, taken[t])
        x -= lost
    return taken
