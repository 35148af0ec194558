"""Compiled steps of many runs of a job in the world of M12, a run for each sampled path.

The arrays of the state of a run, and its readings, in `slackwater.optimization.kernels.world` get a
first axis: the path.
"""

from __future__ import annotations

import math

import numpy as np

from slackwater.optimization.kernels.compiling import kernel, part
from slackwater.optimization.kernels.world import (
    FINISH,
    MarketArrays,
    Markets,
    State,
    StateArrays,
    change_target,
    is_safe,
    pass_time,
    safe_target,
)

#: Wished or decided targets: market, on-demand and spot instances, arrays of shape (paths,).
TargetArrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@part
def on_path(runs: StateArrays, markets: MarketArrays, p: int) -> tuple[State, Markets]:
    """Return the state of the run on path ``p`` and its markets."""
    amounts, counts, batches = runs
    readings, first, rates, terms, restarts, moves = markets
    return State(amounts[p], counts[p], batches[p]), Markets(
        readings[p], first, rates, terms, restarts, moves
    )


@kernel
def advance_paths(runs: StateArrays, markets: MarketArrays, until: float) -> None:
    """Let time pass on every path up to ``until`` seconds, or up to its finish."""
    for p in range(len(runs[0])):
        state, places = on_path(runs, markets, p)
        if state.amounts[FINISH] == math.inf:
            pass_time(state, places, until)


@kernel
def guard_paths(
    runs: StateArrays, markets: MarketArrays, targets: TargetArrays, next_at: float, deadline: float
) -> None:
    """Replace wished targets by those of the guard (M12.7); without a safe target the wish stays."""
    market, on_demand, spot = targets
    for p in range(len(runs[0])):
        state, places = on_path(runs, markets, p)
        if state.amounts[FINISH] < math.inf:
            continue
        safe = safe_target(state, places, (market[p], on_demand[p], spot[p]), next_at, deadline)
        if is_safe(state, places, safe, next_at, deadline):
            market[p], on_demand[p], spot[p] = safe


@kernel
def aim_paths(runs: StateArrays, markets: MarketArrays, targets: TargetArrays) -> None:
    """Aim at a target on every path that has not finished."""
    market, on_demand, spot = targets
    for p in range(len(runs[0])):
        state, places = on_path(runs, markets, p)
        if state.amounts[FINISH] == math.inf:
            change_target(state, places, (market[p], on_demand[p], spot[p]))
