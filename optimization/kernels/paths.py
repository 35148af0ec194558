"""Compiled steps of many runs of a job in the world of M12, a run for each sampled path.

The arrays of a run in `slackwater.optimization.kernels.world` get a first axis: the path.
"""

from __future__ import annotations

import math

import numpy as np

from slackwater.optimization.kernels.compiling import kernel
from slackwater.optimization.kernels.world import FINISH, advance, aim, guarded, is_safe


@kernel
def advance_paths(
    amounts: np.ndarray,
    counts: np.ndarray,
    batches: np.ndarray,
    times: np.ndarray,
    available: np.ndarray,
    price: np.ndarray,
    rates: np.ndarray,
    terms: np.ndarray,
    until: float,
) -> None:
    """Let time pass on every path up to ``until`` seconds, or up to its finish.

    ``times``, ``available`` and ``price`` are the readings of each path, shape (paths, readings).
    """
    for p in range(len(amounts)):
        if amounts[p, FINISH] == math.inf:
            advance(amounts[p], counts[p], batches[p], times[p], available[p], price[p], rates, terms, until)


@kernel
def guard_paths(
    amounts: np.ndarray,
    counts: np.ndarray,
    batches: np.ndarray,
    rates: np.ndarray,
    terms: np.ndarray,
    on_demand: np.ndarray,
    spot: np.ndarray,
    next_at: float,
    deadline: float,
) -> np.ndarray:
    """Replace wished targets, shapes (paths,), by those of the guard (M12.7); return where the result is safe.

    Without a safe target the wish stays.
    """
    safe = np.zeros(len(amounts), dtype=np.bool_)
    for p in range(len(amounts)):
        if amounts[p, FINISH] < math.inf:
            continue
        o, s = guarded(
            amounts[p], counts[p], batches[p], rates, terms, on_demand[p], spot[p], next_at, deadline
        )
        if is_safe(amounts[p], counts[p], batches[p], rates, terms, o, s, next_at, deadline):
            on_demand[p], spot[p], safe[p] = o, s, True
    return safe


@kernel
def aim_paths(
    amounts: np.ndarray,
    counts: np.ndarray,
    batches: np.ndarray,
    terms: np.ndarray,
    on_demand: np.ndarray,
    spot: np.ndarray,
) -> None:
    """Aim on every path that has not finished at a target, shapes (paths,)."""
    for p in range(len(amounts)):
        if amounts[p, FINISH] == math.inf:
            aim(amounts[p], counts[p], batches[p], terms, on_demand[p], spot[p])
