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

    ``lost`` is the additional loss of a start, unknown to the policies; 0 by the benchmark's rules.
    """

    work: int
    slot: int
    overhead: int
    spot_usd: float
    on_demand_usd: float
    lost: int = 0


@part
def pass_slot(ticks: Ticks, instance: int, owed: int, action: int) -> tuple[int, int]:
    """Return the remaining overhead after a slot of ``action``, and the work done in the slot.

    ``instance`` is the running instance at the time of the choice (NONE if it was just lost), ``owed`` its remaining overhead.
    """
    if action == NONE:
        return 0, 0
    due = owed if action == instance else ticks.lost + ticks.overhead
    eaten = min(due, ticks.slot)
    return due - eaten, ticks.slot - eaten


@kernel
def play(ticks: Ticks, up: np.ndarray, actions: np.ndarray) -> tuple[int, int, int]:
    """Return the slots used (-1: work is left), the starts, and the first slot with spot chosen while it is down (-1: none)."""
    left, instance, owed, starts = ticks.work, NONE, 0, 0
    for t in range(actions.size):
        if instance == SPOT and not up[t]:
            instance, owed = NONE, 0
        action = actions[t]
        if action == SPOT and not up[t]:
            return -1, starts, t
        if action not in (NONE, instance):
            starts += 1
        owed, done = pass_slot(ticks, instance, owed, action)
        left -= done
        instance = action
        if left <= 0:
            return t + 1, starts, -1
    return -1, starts, -1


@part
def whole_slots(ticks: Ticks, work: int) -> int:
    """Return the number of whole slots that contain ``work`` ticks."""
    return (work + ticks.slot - 1) // ticks.slot


@part
def guarded(ticks: Ticks, slots: int, work: int, eaten: int) -> bool:
    """Return whether M4.3's guard allows a choice that loses ``eaten`` ticks of the first of ``slots``.

    A slot and an overhead must remain beyond the ``work``, unless the work finishes in the slot. A slot without an instance, or
    with a spot start, is assumed to do no work; a running spot instance loses its remaining overhead.
    """
    return work + eaten <= ticks.slot or slots * ticks.slot - work - eaten >= ticks.slot + ticks.overhead


@kernel
def greedy(ticks: Ticks, up: np.ndarray, guard: bool) -> np.ndarray:
    """Return the actions of M4.2 on a single instance, shape (slots,).

    Spot runs while it is up, otherwise nothing. On-demand runs to the end as soon as another slot without it could miss the
    deadline. With ``guard``, spot and waiting also require `guarded`.
    """
    left, instance, owed, forced = ticks.work, NONE, 0, False
    actions = np.zeros(up.size, dtype=np.int8)
    for t in range(up.size):
        if left <= 0:
            break
        if instance == SPOT and not up[t]:
            instance, owed = NONE, 0
        due = owed if instance == SPOT else ticks.overhead
        # Most work that on-demand can do if it starts in the next slot, in ticks.
        last = (up.size - t - 1) * ticks.slot - ticks.overhead
        spot_leaves = left - max(0, ticks.slot - due)
        eaten = min(owed, ticks.slot) if instance == SPOT else ticks.slot
        may_take = not forced and (not guard or guarded(ticks, up.size - t, left, eaten))
        may_wait = not forced and (not guard or guarded(ticks, up.size - t, left, ticks.slot))
        if up[t] and may_take and (spot_leaves <= 0 or spot_leaves <= last):
            action = SPOT
        elif may_wait and left <= last:
            action = NONE
        else:
            action, forced = ON_DEMAND, True
        actions[t] = action
        owed, done = pass_slot(ticks, instance, owed, action)
        left -= done
        instance = action
    return actions


@kernel
def uniform_progress(ticks: Ticks, up: np.ndarray, hysteresis: bool, guard: bool) -> np.ndarray:
    """Return the actions of M4.3, the single-cluster form of the UP paper, shape (slots,).

    d is the overhead, c(t) the work done, e(t) = t work / deadline. Spot runs whenever it is up, even behind schedule. An idle job
    with spot down and c(t) < e(t) starts on-demand. On-demand continues while spot is down, and with ``hysteresis`` until
    c(t) >= e(t + 2 d) even if spot is up. A running spot instance runs until it is lost.

    Safety net: without spot and without a whole slot to spare beyond work + 2 d, on-demand runs. Without a slot to spare beyond
    work + d, on-demand runs, unless a spot instance without remaining overhead runs. With ``guard``, on-demand replaces choices
    that `guarded` rejects.
    """
    left, instance, owed, n = ticks.work, NONE, 0, up.size
    actions = np.zeros(n, dtype=np.int8)
    for t in range(n):
        if left <= 0:
            break
        if instance == SPOT and not up[t]:
            instance, owed = NONE, 0
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
        kept = action == SPOT and instance == SPOT
        if guard and not guarded(ticks, n - t, left, min(owed, ticks.slot) if kept else ticks.slot):
            action = ON_DEMAND
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
def expected(value: np.ndarray, rows: tuple[np.ndarray, np.ndarray, np.ndarray], out: np.ndarray) -> None:
    """Compute out[k, m, x], the sum over the next states of state k of probability times value."""
    start, to, chance = rows
    for k in range(start.size - 1):
        out[k] = 0.0
        for i in range(start[k], start[k + 1]):
            p, source = chance[i], value[to[i]]
            for m in range(source.shape[0]):
                for x in range(source.shape[1]):
                    out[k, m, x] += p * source[m, x]


@part
def choose(
    ticks: Ticks,
    left: int,
    known: bool,
    guard: bool,
    up: np.ndarray,
    ahead: np.ndarray,
    out: tuple[np.ndarray, np.ndarray],
) -> None:
    """Compute the least cost to go and its action in every (state, holding, slack) with ``left`` slots to go.

    ``ahead`` has the expected costs after this slot; cost and action are written to ``out``. Unless the future is ``known``, no
    instance and spot are allowed only where on-demand started in the next slot still meets the deadline, and with ``guard`` only
    where `guarded` holds for a start that loses its slot. On-demand needs only enough slack for its overhead. A state that
    cannot meet the deadline has infinite cost.
    """
    value, action = out
    owed = owed_levels(ticks)
    r, rest = owed.size, (left - 1) * ticks.slot
    room = 0 if known else min(ticks.overhead, rest)
    for k in range(up.size):
        for m in range(1 + 2 * r):
            if 0 < m <= r and not up[k]:
                for x in range(value.shape[2]):
                    value[k, m, x], action[k, m, x] = value[k, 0, x], action[k, 0, x]
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
                work = left * ticks.slot - x
                may_wait = not guard or guarded(ticks, left, work, ticks.slot)
                if may_wait and x - ticks.slot >= room and ahead[k, 0, x - ticks.slot] < best:
                    best, took = ahead[k, 0, x - ticks.slot], NONE
                # Running spot whose start lost its slot has the remaining overhead that the table assigns one slot earlier.
                eaten = (
                    min(max(ticks.overhead - ticks.slot * (m - 1), 0), ticks.slot)
                    if 0 < m <= r
                    else ticks.slot
                )
                may_take = not guard or guarded(ticks, left, work, eaten)
                if up[k] and may_take and x - spot_eats >= room:
                    cost = ticks.spot_usd + ahead[k, to_spot, x - spot_eats]
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
    ahead = np.zeros_like(value)
    action = np.zeros((slots + 1, up.size, holdings, slack + 1), dtype=np.int8)
    for left in range(1, slots + 1):
        expected(value, rows, ahead)
        choose(ticks, left, False, guard, up, ahead, (value, action[left]))
    return action, value


@kernel
def induct_known(ticks: Ticks, slack: int, up: np.ndarray) -> np.ndarray:
    """Return actions (slots + 1, 1, holdings, slack + 1) by slots left if every slot is known beforehand."""
    holdings = 1 + 2 * owed_levels(ticks).size
    value = np.zeros((1, holdings, slack + 1))
    action = np.zeros((up.size + 1, 1, holdings, slack + 1), dtype=np.int8)
    for left in range(1, up.size + 1):
        seen = up[up.size - left : up.size - left + 1]
        choose(ticks, left, True, False, seen, value.copy(), (value, action[left]))
    return action


@kernel
def follow(
    ticks: Ticks, first: np.ndarray, then: np.ndarray, states: np.ndarray, up: np.ndarray
) -> np.ndarray:
    """Return the actions of a table along a run; ``states`` (slots,) is the observed state of the market in every slot.

    The table is ``first`` until a start has done the work that the overhead leaves, and ``then`` afterwards; if the first start
    did less, ``first`` remains in use. The slack is computed from the work really done, the remaining overhead by the table's
    rules.
    """
    levels = owed_levels(ticks)
    stated = Ticks(ticks.work, ticks.slot, ticks.overhead, ticks.spot_usd, ticks.on_demand_usd, 0)
    taken = np.zeros(up.size, dtype=np.int8)
    left, instance, owed, due, holding = ticks.work, NONE, 0, 0, 0
    seen, keeps = False, False
    for t in range(up.size):
        if left <= 0:
            break
        if instance == SPOT and not up[t]:
            instance, owed, due, holding = NONE, 0, 0, 0
        x = min(max((up.size - t) * ticks.slot - left, 0), first.shape[3] - 1)
        table = then if keeps else first
        taken[t] = table[up.size - t, states[t], holding, x]
        holding, _ = move(ticks, levels, holding, taken[t])
        due, should = pass_slot(stated, instance, due, taken[t])
        owed, done = pass_slot(ticks, instance, owed, taken[t])
        if not seen and should > 0:
            seen, keeps = True, done >= should
        left -= done
        instance = taken[t]
    return taken
