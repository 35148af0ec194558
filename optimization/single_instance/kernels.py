"""Compiled rules of the benchmark and its published heuristics; all times in ticks.

Compiled functions call only those of their own file: numba's cache on disk does not notice a change in another one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from optimization.single_instance.setting import NONE, ON_DEMAND, SPOT, Ticks


@njit(cache=True)
def pass_slot(ticks: Ticks, instance: int, owed: int, action: int) -> tuple[int, int]:
    """Overhead still owed after a slot of ``action``, and the work done in it.

    ``instance`` is what is held when the choice is made (NONE if it was just lost) and ``owed`` what that one still owes.
    """
    if action == NONE:
        return 0, 0
    due = owed if action == instance else ticks.overhead
    eaten = min(due, ticks.slot)
    return due - eaten, ticks.slot - eaten


@njit(cache=True)
def play(ticks: Ticks, up: np.ndarray, actions: np.ndarray) -> tuple[int, int, int]:
    """Slots used until done (-1: work is left), starts, and the first slot with spot chosen while it is down (-1: none)."""
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


@njit(cache=True)
def slots_needed(ticks: Ticks, work: int) -> int:
    """Whole slots that hold ``work`` ticks."""
    return (work + ticks.slot - 1) // ticks.slot


@njit(cache=True)
def greedy(ticks: Ticks, up: np.ndarray) -> np.ndarray:
    """M4.2 on one instance: spot while it is up, else nothing, on-demand to the end once one more slot without it could miss."""
    left, instance, owed, forced = ticks.work, NONE, 0, False
    actions = np.zeros(up.size, dtype=np.int8)
    for t in range(up.size):
        if left <= 0:
            break
        if instance == SPOT and not up[t]:
            instance, owed = NONE, 0
        due = owed if instance == SPOT else ticks.overhead
        # Slots to spare if on-demand starts in the next slot: after a slot of spot, after a slot of nothing.
        last = (up.size - t - 1) * ticks.slot - ticks.overhead
        spot_leaves = left - max(0, ticks.slot - due)
        on_spot = up[t] and not forced and (spot_leaves <= 0 or spot_leaves <= last)
        if on_spot:
            action = SPOT
        elif not forced and left <= last:
            action = NONE
        else:
            action, forced = ON_DEMAND, True
        actions[t] = action
        owed, done = pass_slot(ticks, instance, owed, action)
        left -= done
        instance = action
    return actions


@njit(cache=True)
def uniform_progress(ticks: Ticks, up: np.ndarray, hysteresis: bool) -> np.ndarray:
    """M4.3, the single-cluster form of the UP paper: d is the overhead, c(t) the work done, e(t) = t work / deadline.

    Spot whenever it is up, also when behind; idle, spot down and c(t) < e(t): on-demand; on on-demand: stay until
    c(t) >= e(t + 2 d), where ``hysteresis`` even if spot is up, else only while it is down; a running spot instance is kept until
    it is lost. Safety net: without spot and no whole slot to spare beyond work + 2 d: on-demand; none beyond work + d: on-demand,
    unless on a spot instance that owes nothing.
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
        if instance == ON_DEMAND and behind and (hysteresis or not up[t]):
            action = ON_DEMAND
        if instance != SPOT and slots_needed(ticks, left + 2 * ticks.overhead) >= n - t:
            action = ON_DEMAND
        if slots_needed(ticks, left + ticks.overhead) >= n - t:
            action = SPOT if instance == SPOT and owed == 0 else ON_DEMAND
        actions[t] = action
        owed, did = pass_slot(ticks, instance, owed, action)
        left -= did
        instance = action
    return actions
