"""The arithmetic of a slot: efficiency, value, slots needed, ending, split (M2.4-M2.6, M3.2).

Plain Python that numba compiles too (`compiling.kernel`): replays, policies and the Pyomo program call these functions as
they stand, the twin and the induction call them compiled. There is no other statement of these rules in
the product but the audit, which recomputes a plan on purpose by itself.

One tolerance of work: a job is finished at its *line*, `progress.needed` of its workload, a `progress.TOLERANCE` of the workload
below it. Whoever asks for the slots of a rest measures the rest to the line; nothing else is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

#: Slots that stand for "never": a rest that needs as many is not done by any job (M2.8).
MOST_SLOTS = 1_000_000_000
#: Share of a slot by which the first guess at a number of slots may be too low; it is then counted up to the exact one.
GUESS = 1e-6


class Restart(NamedTuple):
    """What a change of size costs: the shares of its slot that still make progress on growing and on shrinking (M2.4).

    At most 1; below 0 where a change lasts longer than a slot.
    """

    up: float
    down: float


class Value(NamedTuple):
    """V of M2.5: ``usd`` until ``deadline`` slots, from there falling to 0 at ``gamma`` x ``deadline``."""

    usd: float
    deadline: int
    gamma: float


class OnDemandEnding(NamedTuple):
    """The best ending on on-demand alone: its worth net of cost in USD, the index of its size, its slots (0, 0: none)."""

    usd: float
    size: int
    slots: int


def after_growing(restart: Restart, n: int) -> float:
    """mu of a slot on ``n`` instances after one on fewer (M2.4)."""
    return restart.up


def after_shrinking(restart: Restart, n: int) -> float:
    """mu of a slot on ``n`` instances after one on more (M2.4)."""
    return restart.down


def efficiency(restart: Restart, n: int, before: int) -> float:
    """mu of a slot on ``n`` instances after one on ``before`` (M2.4)."""
    if n > before:
        return after_growing(restart, n)
    if n < before:
        return after_shrinking(restart, n)
    return 1.0


def after_moving(restart: Restart, n: int, taken: float) -> float:
    """mu of a slot on ``n`` instances of another market than before, of which the move takes the share ``taken`` (M3.6, M11.2).

    It makes no progress where restart and move together last longer than the slot; only a restart that does so by itself owes some.
    """
    up = after_growing(restart, n)
    return max(min(up, 0.0), up - taken)


def least_efficiency(restart: Restart, n: int) -> float:
    """The least mu that a slot on ``n`` instances can have, whatever was held before (M2.4)."""
    return min(1.0, after_growing(restart, n), after_shrinking(restart, n))


def efficiency_table(restart: Restart, n_max: int) -> np.ndarray:
    """`efficiency` of every change up to ``n_max`` instances, shape (before, n)."""
    n = np.arange(n_max + 1)
    growing = np.array([after_growing(restart, size) for size in n.tolist()])
    shrinking = np.array([after_shrinking(restart, size) for size in n.tolist()])
    change = n - n[:, None]
    return np.where(change > 0, growing, np.where(change < 0, shrinking, 1.0))


def late_limit(value: Value) -> float:
    """gamma d in slots: from here on a job is worth nothing (M2.5)."""
    return value.gamma * value.deadline


def value_at(value: Value, slots: float) -> float:
    """V(T) in USD of a job finished after ``slots`` slots (M2.5)."""
    if slots <= value.deadline:
        return value.usd
    limit = late_limit(value)
    if slots >= limit:
        return 0.0
    return value.usd * (limit - slots) / ((value.gamma - 1.0) * value.deadline)


def slots_needed(rest: float, first: float, gain: float) -> int:
    """Slots to do ``rest`` work units (to the line) at ``first`` in the first slot and ``gain`` in each later one.

    The least k >= 1 with first + (k - 1) gain >= rest; `MOST_SLOTS` where that many do not do.

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
    """`slots_needed` of arrays that broadcast together, as whole floats."""
    k = 1.0 + np.maximum(0.0, np.ceil((rest - first) / gain - GUESS))
    # The guess is too low by less than one slot.
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
    """max over constant n of V(slot + k) - k n ``slot_usd``, or 0 where none is positive (M2.6, M3.3b).

    k is `slots_needed` for ``rest`` work units to the line, the first slot at the efficiency after ``before`` instances.
    ``sizes`` ascend from 0, ``gain`` is their work in a slot; ``slot_usd`` is an instance on demand for one slot. Of equal
    endings the least n is taken. A finished job (``rest`` <= 0) is worth V(slot).
    """
    if rest <= 0.0:
        return OnDemandEnding(value_at(value, slot), 0, 0)
    best, size, slots = 0.0, 0, 0
    for j in range(1, len(sizes)):
        n = sizes[j]
        k = slots_needed(rest, efficiency(restart, n, before) * gain[j], gain[j])
        if value.usd - k * n * slot_usd <= best:
            continue  # not even on time
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
    """Return how many of ``n`` instances run on spot: as many as are usable (M3.2)."""
    usable: int = usable_spot(available, price, on_demand)
    return min(n, usable)


def on_demand_stays(spot: bool, short: bool) -> bool:
    """Whether a job of uniform progress that runs on on-demand stays on it (M4.3).

    It does while it is ``short`` of two changeovers of lead, and wherever there is no ``spot``: it is never left for nothing.
    """
    return short or not spot


def slot_cost(n: int, spot: int, price: float, on_demand: float) -> float:
    """What ``n`` instances cost, ``spot`` of them on spot, in the unit of the two prices (M2.4)."""
    return (n - spot) * on_demand + spot * price


#: What kernels may call.
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
)
