"""The single-instance benchmark: its rules, its published heuristics, and its tables; all times in ticks (M4.3, M4.6).

Tables are computed by backward induction over (slots left, slack, holding, state of the market). The slack x, time left minus
work left, replaces the work left. It decreases only by a slot without an instance and by the overhead of a start, so that its
grid is exact. A *holding* is the running instance and its remaining overhead: 0 is no instance, 1..r spot and r+1..2r
on-demand, in the order of the levels of remaining overhead (zero at the last).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from slackwater.optimization.kernels.compiling import kernel, part
from slackwater.optimization.kernels.rules import on_demand_stays

#: The three actions: the instance that runs in a slot.
NONE: Final = 0
SPOT: Final = 1
ON_DEMAND: Final = 2


class Ticks(NamedTuple):
    """Setting of the benchmark for the kernels: times in ticks, cost of a slot in USD.

    ``loses_last``: the last slot of a spot instance that is lost does no work.
    """

    work: int
    slot: int
    overhead: int
    spot_usd: float
    on_demand_usd: float
    loses_last: bool = True


@part
def pass_slot(ticks: Ticks, instance: int, owed: int, action: int) -> tuple[int, int]:
    """Return the remaining overhead after a slot of ``action``, and the work done in the slot.

    ``instance`` is the running instance at the time of the choice (NONE if it was just lost), ``owed`` its remaining overhead.
    """
    if action == NONE:
        return 0, 0
    due = owed if action == instance else ticks.overhead
    eaten = min(due, ticks.slot)
    return due - eaten, ticks.slot - eaten


@kernel
def play(ticks: Ticks, up: np.ndarray, actions: np.ndarray) -> tuple[int, int, int]:
    """Return the slots used (-1: work is left), the starts, and the first slot with spot chosen while it is down (-1: none)."""
    left, instance, owed, done, starts = ticks.work, NONE, 0, 0, 0
    for t in range(actions.size):
        if instance == SPOT and not up[t]:
            left += done * ticks.loses_last
            instance, owed = NONE, 0
        if left <= 0:
            return t, starts, -1
        action = actions[t]
        if action == SPOT and not up[t]:
            return -1, starts, t
        if action not in (NONE, instance):
            starts += 1
        owed, done = pass_slot(ticks, instance, owed, action)
        left -= done
        instance = action
    return (actions.size if left <= 0 else -1), starts, -1


@part
def whole_slots(ticks: Ticks, work: int) -> int:
    """Return the number of whole slots that contain ``work`` ticks."""
    return (work + ticks.slot - 1) // ticks.slot


@part
def guarded(ticks: Ticks, slots: int, work: int, eaten: int) -> bool:
    """Return whether the exact guard (M4.3) allows spot, or no instance, in the first of ``slots``.

    If the slot does no work, on-demand must still finish the ``work``. A start of spot also leaves the overhead
    ``eaten`` in the slot: the simulators' own net keeps running spot where nothing is to spare, and might miss the deadline.
    """
    return (slots - 1) * ticks.slot - work >= ticks.overhead + eaten


@kernel
def greedy(ticks: Ticks, up: np.ndarray) -> np.ndarray:
    """Return the actions of M4.2 on a single instance, shape (slots,).

    Spot runs while it is up, otherwise nothing. On-demand runs to the end as soon as another slot without it could miss the
    deadline.
    """
    left, instance, owed, did, forced = ticks.work, NONE, 0, 0, False
    actions = np.zeros(up.size, dtype=np.int8)
    for t in range(up.size):
        if instance == SPOT and not up[t]:
            left += did * ticks.loses_last
            instance, owed = NONE, 0
        if left <= 0:
            break
        due = owed if instance == SPOT else ticks.overhead
        # Most work that on-demand can do if it starts in the next slot, in ticks.
        last = (up.size - t - 1) * ticks.slot - ticks.overhead
        spot_does = 0 if ticks.loses_last else max(0, ticks.slot - due)
        spot_leaves = left - spot_does
        if up[t] and not forced and (spot_leaves <= 0 or spot_leaves <= last):
            action = SPOT
        elif left <= last and not forced:
            action = NONE
        else:
            action, forced = ON_DEMAND, True
        actions[t] = action
        owed, did = pass_slot(ticks, instance, owed, action)
        left -= did
        instance = action
    return actions


@kernel
def uniform_progress(ticks: Ticks, up: np.ndarray, hysteresis: bool) -> np.ndarray:
    """Return the actions of M4.3, the single-cluster form of the UP paper, shape (slots,).

    d is the overhead, c(t) the work done, e(t) = t work / deadline. Spot runs whenever it is up, even behind schedule. An idle job
    with spot down and c(t) < e(t) starts on-demand. On-demand continues while spot is down, and with ``hysteresis`` until
    c(t) >= e(t + 2 d) even if spot is up. A running spot instance runs until it is lost.

    Safety net: without spot and without a whole slot to spare beyond work + 2 d, on-demand runs. Without a slot to spare beyond
    work + d, on-demand runs, unless a spot instance without remaining overhead runs.
    """
    left, instance, owed, did, n = ticks.work, NONE, 0, 0, up.size
    actions = np.zeros(n, dtype=np.int8)
    for t in range(n):
        if instance == SPOT and not up[t]:
            left += did * ticks.loses_last
            instance, owed = NONE, 0
        if left <= 0:
            break
        done = ticks.work - left
        action = SPOT if up[t] else NONE
        if done * n < t * ticks.work and not up[t]:
            action = ON_DEMAND
        behind = done * n * ticks.slot < (t * ticks.slot + 2 * ticks.overhead) * ticks.work
        if instance == ON_DEMAND and on_demand_stays(up[t], behind and hysteresis):
            action = ON_DEMAND
        if instance != SPOT and whole_slots(ticks, left + 2 * ticks.overhead) >= n - t:
            action = ON_DEMAND
        if whole_slots(ticks, left + ticks.overhead) >= n - t:
            action = SPOT if instance == SPOT and owed == 0 else ON_DEMAND
        actions[t] = action
        owed, did = pass_slot(ticks, instance, owed, action)
        left -= did
        instance = action
    return actions


@part
def owed_levels(ticks: Ticks) -> np.ndarray:
    """Return the remaining overhead after 1, 2, ... slots of an instance, down to 0."""
    slots = max(1, (ticks.overhead + ticks.slot - 1) // ticks.slot)
    return np.maximum(ticks.overhead - ticks.slot * np.arange(1, slots + 1), 0)


@part
def move(ticks: Ticks, owed: np.ndarray, holding: int, action: int) -> tuple[int, int]:
    """Return the holding after a slot of ``action``, and the slack that the slot uses."""
    r = owed.size
    if action == NONE:
        return 0, ticks.slot
    first = 1 if action == SPOT else r + 1
    if first <= holding < first + r:
        return min(holding + 1, first + r - 1), min(owed[holding - first], ticks.slot)
    return first, min(ticks.overhead, ticks.slot)


@part
def expected(
    value: np.ndarray,
    up: np.ndarray,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    out: tuple[np.ndarray, np.ndarray],
) -> None:
    """Compute the sums over the next states of state k of probability times value.

    The first sum of ``out`` (k, m, x) has, for a spot holding m, only the next states that are ``up``; the second (k, x) has
    the others, in which spot is lost and no instance is left.
    """
    ahead, lost = out
    start, to, chance = rows
    spot = (value.shape[1] - 1) // 2
    ahead[:] = 0.0
    lost[:] = 0.0
    for k in range(start.size - 1):
        for i in range(start[k], start[k + 1]):
            p, source = chance[i], value[to[i]]
            for m in range(source.shape[0]):
                if up[to[i]] or not 0 < m <= spot:
                    for x in range(source.shape[1]):
                        ahead[k, m, x] += p * source[m, x]
            if not up[to[i]]:
                for x in range(source.shape[1]):
                    lost[k, x] += p * source[0, x]


@part
def choose(
    ticks: Ticks,
    left: int,
    stays: int,
    guard: bool,
    up: np.ndarray,
    sums: tuple[np.ndarray, np.ndarray],
    out: tuple[np.ndarray, np.ndarray],
) -> None:
    """Compute the least cost to go and its action in every (state, holding, slack) with ``left`` slots to go.

    ``sums`` are those of `expected`; cost and action are written to ``out``. ``stays``: spot is up in the next slot, 1 or 0 if
    the future is known, else -1. Then no instance and spot are allowed only where on-demand started in the next slot still meets
    the deadline, and with ``guard`` only where `guarded` holds. On-demand needs only enough slack for its overhead. A state that
    cannot meet the deadline has infinite cost.
    """
    ahead, lost = sums
    value, action = out
    owed = owed_levels(ticks)
    r, rest = owed.size, (left - 1) * ticks.slot
    room = 0 if stays >= 0 else min(ticks.overhead, rest)
    for k in range(up.size):
        for m in range(1 + 2 * r):
            if 0 < m <= r and not up[k]:  # spot is lost before the choice
                continue
            to_spot, spot_eats = move(ticks, owed, m, SPOT)
            to_demand, demand_eats = move(ticks, owed, m, ON_DEMAND)
            loss = ticks.slot if ticks.loses_last and stays < 1 else spot_eats
            for x in range(value.shape[2]):
                if x >= left * ticks.slot:
                    value[k, m, x], action[k, m, x] = 0.0, NONE
                    continue
                best, took = np.inf, ON_DEMAND
                if x >= demand_eats:
                    best = ticks.on_demand_usd + ahead[k, to_demand, x - demand_eats]
                waits = not guard or guarded(ticks, left, left * ticks.slot - x, 0)
                if waits and x - ticks.slot >= room and ahead[k, 0, x - ticks.slot] < best:
                    best, took = ahead[k, 0, x - ticks.slot], NONE
                runs = not guard or guarded(ticks, left, left * ticks.slot - x, spot_eats)
                if runs and up[k] and x - loss >= room:
                    cost = ticks.spot_usd + ahead[k, to_spot, x - spot_eats] + lost[k, x - loss]
                    if cost <= best:
                        best, took = cost, SPOT
                value[k, m, x], action[k, m, x] = best, took


@kernel
def induct(
    ticks: Ticks,
    slots: int,
    slack: int,
    guard: bool,
    up: np.ndarray,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Return actions (slots + 1, states, holdings, slack + 1) by slots left on a Markov chain, and the costs at the first slot."""
    holdings = 1 + 2 * owed_levels(ticks).size
    value = np.zeros((up.size, holdings, slack + 1))
    sums = (np.zeros_like(value), np.zeros((up.size, slack + 1)))
    action = np.zeros((slots + 1, up.size, holdings, slack + 1), dtype=np.int8)
    for left in range(1, slots + 1):
        expected(value, up, rows, sums)
        choose(ticks, left, -1, guard, up, sums, (value, action[left]))
    return action, value


@kernel
def induct_known(ticks: Ticks, slack: int, up: np.ndarray) -> np.ndarray:
    """Return actions (slots + 1, 1, holdings, slack + 1) by slots left if every slot is known beforehand."""
    holdings = 1 + 2 * owed_levels(ticks).size
    value = np.zeros((1, holdings, slack + 1))
    sums = (np.zeros_like(value), np.zeros((1, slack + 1)))
    action = np.zeros((up.size + 1, 1, holdings, slack + 1), dtype=np.int8)
    rows = (np.array([0, 1]), np.array([0]), np.array([1.0]))
    after = np.ones(1, dtype=np.bool_)  # no loss at the deadline itself
    for left in range(1, up.size + 1):
        seen = up[up.size - left : up.size - left + 1]
        expected(value, after, rows, sums)
        choose(ticks, left, int(after[0]), False, seen, sums, (value, action[left]))
        after = seen
    return action


@kernel
def follow(
    ticks: Ticks, first: np.ndarray, then: np.ndarray, states: np.ndarray, up: np.ndarray
) -> np.ndarray:
    """Return the actions of a table along a run; ``states`` (slots,) is the observed state of the market in every slot.

    The table is ``first`` until a spot instance is lost whose last slot has done its work, and ``then`` afterwards. The slack is
    computed from the work really done.
    """
    levels = owed_levels(ticks)
    taken = np.zeros(up.size, dtype=np.int8)
    left, instance, owed, done, holding = ticks.work, NONE, 0, 0, 0
    table = first
    for t in range(up.size):
        if instance == SPOT and not up[t]:
            if ticks.loses_last:
                left += done
            elif done > 0:
                table = then
            instance, owed, holding = NONE, 0, 0
        if left <= 0:
            break
        x = min(max((up.size - t) * ticks.slot - left, 0), first.shape[3] - 1)
        taken[t] = table[up.size - t, states[t], holding, x]
        holding, _ = move(ticks, levels, holding, taken[t])
        owed, done = pass_slot(ticks, instance, owed, taken[t])
        left -= done
        instance = taken[t]
    return taken
