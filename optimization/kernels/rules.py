"""The rules of a slot: efficiency, value, slots needed, ending, split, cost of a move (M2.4-M2.6, M3.2, M11.2).

Plain Python that numba compiles too (`compiling.kernel`): replays, policies and the Pyomo program call these functions as
they stand, the twin and the induction call them compiled. There is no other statement of these rules in
the product but the audit, which recomputes a plan on purpose by itself.

Work has a single tolerance: a job is finished at `slackwater.optimization.job.definition.work_needed` of its
workload, the line, which is a `slackwater.optimization.job.definition.TOLERANCE` of the workload below it.
Callers that need the slots for the remaining work measure it to the line; no other amount is
rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

#: Number of slots that represents "never": work that needs as many slots is not finished by any job
#: (M2.8).
MOST_SLOTS = 1_000_000_000
#: Share of a slot by which the first estimate of a number of slots may be too low; it is then
#: increased to the exact number.
GUESS = 1e-6


class Restart(NamedTuple):
    """Overhead of a change of size: shares of its slot that still make progress after growing and after shrinking (M2.4).

    Arrays (n_max + 1,) by the number of instances after the change. At most 1; negative if a change
    takes longer than a slot.
    """

    up: np.ndarray
    down: np.ndarray


class Value(NamedTuple):
    """Value function V of M2.5: ``usd`` until ``deadline`` slots, then falling linearly to 0 at ``gamma`` x ``deadline``."""

    usd: float
    deadline: int
    gamma: float


class OnDemandEnding(NamedTuple):
    """Best ending on on-demand alone: its value minus cost in USD, the index of its size, its slots (0, 0: no ending)."""

    usd: float
    size: int
    slots: int


def after_growing(restart: Restart, n: int) -> float:
    """Return mu of a slot on ``n`` instances after a slot on fewer (M2.4)."""
    return float(restart.up[n])


def after_shrinking(restart: Restart, n: int) -> float:
    """Return mu of a slot on ``n`` instances after a slot on more (M2.4)."""
    return float(restart.down[n])


def efficiency(restart: Restart, n: int, before: int) -> float:
    """Return mu of a slot on ``n`` instances after a slot on ``before`` (M2.4)."""
    if n > before:
        return after_growing(restart, n)
    if n < before:
        return after_shrinking(restart, n)
    return 1.0


def after_moving(restart: Restart, n: int, taken: float) -> float:
    """Return mu of a slot on ``n`` instances in another market, when the move takes the share ``taken`` of it (M11.2).

    The slot makes no progress if restart and move together take longer than the slot; it makes
    negative progress only if the restart alone does.
    """
    up = after_growing(restart, n)
    return max(min(up, 0.0), up - taken)


def least_efficiency(restart: Restart, n: int) -> float:
    """Return the least mu that a slot on ``n`` instances can have after any size (M2.4)."""
    return min(1.0, after_growing(restart, n), after_shrinking(restart, n))


def efficiency_table(restart: Restart, n_max: int) -> np.ndarray:
    """Return `efficiency` for every change up to ``n_max`` instances, shape (before, n)."""
    n = np.arange(n_max + 1)
    growing = np.array([after_growing(restart, size) for size in n.tolist()])
    shrinking = np.array([after_shrinking(restart, size) for size in n.tolist()])
    change = n - n[:, None]
    return np.where(change > 0, growing, np.where(change < 0, shrinking, 1.0))


def late_limit(value: Value) -> float:
    """Return gamma d in slots, from which on the value of a job is 0 (M2.5)."""
    return value.gamma * value.deadline


def value_at(value: Value, slots: float) -> float:
    """Return V(T) in USD of a job that finishes after ``slots`` slots (M2.5)."""
    if slots <= value.deadline:
        return value.usd
    limit = late_limit(value)
    if slots >= limit:
        return 0.0
    return value.usd * (limit - slots) / ((value.gamma - 1.0) * value.deadline)


def slots_needed(rest: float, first: float, gain: float) -> int:
    """Return the slots to do ``rest`` work units (to the line) at ``first`` in the first slot and ``gain`` in each later slot.

    This is the least k >= 1 with first + (k - 1) gain >= rest; `MOST_SLOTS` if that many are not
    enough.

    >>> slots_needed(10.0, 4.0, 5.0)
    3
    """
    if rest <= first:
        return 1
    if rest - first >= MOST_SLOTS * gain:
        return MOST_SLOTS
    k = 1 + max(0, math.ceil((rest - first) / gain - GUESS))
    while first + (k - 1) * gain < rest:
        k += 1
    return k


def slots_needed_each(rest: np.ndarray, first: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Return `slots_needed` for arrays that broadcast together, as whole floats."""
    k = 1.0 + np.maximum(0.0, np.ceil((rest - first) / gain - GUESS))
    # The estimate is too low by less than a slot.
    k += first + (k - 1.0) * gain < rest
    return np.where(rest <= first, 1.0, np.minimum(k, MOST_SLOTS))


def ending(
    sizes: Sequence[int] | np.ndarray,
    gain: Sequence[float] | np.ndarray,
    restart: Restart,
    value: Value,
    slot_usd: float,
    slot: int,
    rest: float,
    before: int,
) -> OnDemandEnding:
    """Return the ending that maximises V(slot + k) - k n ``slot_usd`` over constant n, or 0 if none is positive (M2.6, M3.3b).

    k is `slots_needed` for ``rest`` work units to the line, with the first slot at the efficiency
    after ``before`` instances. ``sizes`` ascend from 0, ``gain`` is their work in a slot;
    ``slot_usd`` is the price of an on-demand instance for a slot. Ties go to the smallest n. The
    value of a finished job (``rest`` <= 0) is V(slot).
    """
    if rest <= 0.0:
        return OnDemandEnding(value_at(value, slot), 0, 0)
    best, size, slots = 0.0, 0, 0
    for j in range(1, len(sizes)):
        n = sizes[j]
        k = slots_needed(rest, efficiency(restart, n, before) * gain[j], gain[j])
        if value.usd - k * n * slot_usd <= best:
            continue  # no better even if it finishes in time
        worth = value_at(value, slot + k) - k * n * slot_usd
        if worth > best:
            best, size, slots = worth, j, k
    return OnDemandEnding(best, size, slots)


def spot_is_cheaper(price: Any, on_demand: Any) -> Any:
    """Whether spot costs less than on-demand; element by element for arrays (M3.2). NaN is not cheaper."""
    return price < on_demand


def usable_spot(available: Any, price: Any, on_demand: Any) -> Any:
    """Return the spot instances worth running: all available ones where spot is cheaper, else 0; element by element (M3.2).

    The only comparison of a spot price with the on-demand price in the product: plain, of arrays and compiled.
    """
    return available * spot_is_cheaper(price, on_demand)


def spot_held(n: int, available: int, price: float, on_demand: float) -> int:
    """Return the number of spot instances among ``n``: all available if spot is cheaper than on-demand, else 0 (M3.2)."""
    usable: int = usable_spot(available, price, on_demand)
    return min(n, usable)


def on_demand_stays(spot: bool, short: bool) -> bool:
    """Return whether a uniform-progress job that runs on on-demand stays on it (M4.3).

    It does while it is ``short`` of two changeovers of lead, and where there is no ``spot``: it
    never leaves on-demand for nothing.
    """
    return short or not spot


def slot_cost(n: Any, spot: Any, price: Any, on_demand: Any) -> Any:
    """Return the cost of ``n`` instances, ``spot`` of them spot, in the unit of the two prices; element by element (M2.4)."""
    return (n - spot) * on_demand + spot * price


def move_table(usd: np.ndarray) -> np.ndarray:
    """Return costs (M, M) of all slots, or (S, M, M) by slot, as `move_usd` reads them: (S, M + 1, M).

    Staying costs nothing, and neither does the first start of a job without a market (row M).
    """
    by_slot = np.array(usd, dtype=float, ndmin=3)
    slots, markets, _ = by_slot.shape
    by_slot[:, range(markets), range(markets)] = 0.0
    return np.concatenate([by_slot, np.zeros((slots, 1, markets))], axis=1)


def move_usd(table: np.ndarray, slot: int, place: int, market: int) -> float:
    """Return the cost in USD of running in ``market`` in a slot with the checkpoint in ``place`` (M or -1: no market yet).

    The last slot of the table stands for all later slots.
    """
    return float(table[min(slot, table.shape[0] - 1), place, market])


#: Rules that kernels may call.
RULES = (
    after_growing,
    after_shrinking,
    after_moving,
    efficiency,
    least_efficiency,
    late_limit,
    value_at,
    slots_needed,
    ending,
    spot_is_cheaper,
    usable_spot,
    spot_held,
    on_demand_stays,
    slot_cost,
    move_usd,
)
