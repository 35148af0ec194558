"""Compiled steps of many runs of a job in the world of M12, a run for each sampled path.

The arrays of the state of a run, and its readings, in `slackwater.optimization.kernels.world` get a
first axis: the path.
"""

from __future__ import annotations

import math

import numpy as np

from slackwater.optimization.kernels.compiling import kernel
from slackwater.optimization.kernels.world import (
    FINISH,
    Markets,
    State,
    change_target,
    is_safe,
    pass_time,
    safe_target,
)


@kernel
def advance_paths(
    amounts: np.ndarray,
    counts: np.ndarray,
    batches: np.ndarray,
    readings: np.ndarray,
    first: np.ndarray,
    rates: np.ndarray,
    terms: np.ndarray,
    until: float,
) -> None:
    """Let time pass on every path up to ``until`` seconds, or up to its finish."""
    for p in range(len(amounts)):
        if amounts[p, FINISH] == math.inf:
            state = State(amounts[p], counts[p], batches[p])
            markets = Markets(readings[p], first, rates, terms)
            pass_time(state, markets, until)


@kernel
def guard_paths(
    amounts: np.ndarray,
    counts: np.ndarray,
    batches: np.ndarray,
    readings: np.ndarray,
    first: np.ndarray,
    rates: np.ndarray,
    terms: np.ndarray,
    market: np.ndarray,
    on_demand: np.ndarray,
    spot: np.ndarray,
    next_at: float,
    deadline: float,
) -> None:
    """Replace wished targets, shapes (paths,), by those of the guard (M12.7); without a safe target the wish stays."""
    for p in range(len(amounts)):
        if amounts[p, FINISH] < math.inf:
            continue
        state = State(amounts[p], counts[p], batches[p])
        markets = Markets(readings[p], first, rates, terms)
        m, o, s = safe_target(state, markets, market[p], on_demand[p], spot[p], next_at, deadline)
        if is_safe(state, markets, m, o, s, next_at, deadline):
            market[p], on_demand[p], spot[p] = m, o, s


@kernel
def aim_paths(
    amounts: np.ndarray,
    counts: np.ndarray,
    batches: np.ndarray,
    readings: np.ndarray,
    first: np.ndarray,
    rates: np.ndarray,
    terms: np.ndarray,
    market: np.ndarray,
    on_demand: np.ndarray,
    spot: np.ndarray,
) -> None:
    """Aim at a target on every path that has not finished, shapes (paths,)."""
    for p in range(len(amounts)):
        if amounts[p, FINISH] == math.inf:
            state = State(amounts[p], counts[p], batches[p])
            markets = Markets(readings[p], first, rates, terms)
            change_target(state, markets, market[p], on_demand[p], spot[p])
