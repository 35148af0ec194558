"""Compiled steps of runs of a job in the world of M12: of one run, or of a run for each sampled path.

The arrays of the state of a run, and its readings, in `slackwater.optimization.kernels.world` get a
first axis: the path.
"""

from __future__ import annotations

import math

import numpy as np

from slackwater.optimization.kernels.compiling import kernel, part
from slackwater.optimization.kernels.world import (
    BATCHES,
    FINISH,
    HERE,
    NOTICE,
    NOW,
    SAVED,
    SIZE,
    UP,
    WORK,
    WORKS_AT,
    MarketArrays,
    Markets,
    State,
    StateArrays,
    change_target,
    is_safe,
    pass_time,
    requested_instances,
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


@part
def show_instances(state: State, markets: Markets, shown: np.ndarray, p: int) -> None:
    """Write to ``shown[p]`` the instances of each kind, the seconds until all work, and the work that a loss would leave."""
    amounts, up, here = state.amounts, -math.inf, state.counts[HERE]
    for kind in range(2):
        shown[p, kind] = requested_instances(state, kind)
        for b in range(state.counts[BATCHES + kind]):
            if state.batches[kind, b, SIZE] > 0.0:
                up = max(up, state.batches[kind, b, UP])
    works_at, size = amounts[WORKS_AT], int(shown[p, 0] + shown[p, 1])
    if up > -math.inf:
        works_at = up + markets.restarts[here, min(size, markets.restarts.shape[1] - 1)]
    shown[p, 2] = max(0.0, works_at - amounts[NOW])
    shown[p, 3] = amounts[WORK] if markets.terms[here, NOTICE] > 0.0 else amounts[SAVED]


@kernel
def step_paths(
    runs: StateArrays, markets: MarketArrays, targets: TargetArrays, until: float, shown: np.ndarray
) -> None:
    """Aim at a target on every path that has not finished, then let time pass up to ``until`` seconds, or up to its finish.

    A target in market -1 is left out; no time passes up to a second before the present. ``shown`` (paths, 4) gets the
    instances as of `show_instances`.
    """
    market, on_demand, spot = targets
    for p in range(len(runs[0])):
        state, places = on_path(runs, markets, p)
        if state.amounts[FINISH] == math.inf:
            if market[p] >= 0:
                change_target(state, places, (market[p], on_demand[p], spot[p]))
            if until >= state.amounts[NOW]:
                pass_time(state, places, until)
        show_instances(state, places, shown, p)


@kernel
def guard_paths(
    runs: StateArrays, markets: MarketArrays, targets: TargetArrays, next_at: float, deadline: float
) -> np.ndarray:
    """Replace wished targets by those of `safe_target` (M12.7).

    Return whether each wish is safe, and whether its replacement is, shape (paths, 2). A run that has finished is safe.
    """
    market, on_demand, spot = targets
    found = np.empty((len(runs[0]), 2), np.bool_)
    for p in range(len(found)):
        state, places = on_path(runs, markets, p)
        wish = (market[p], on_demand[p], spot[p])
        if state.amounts[FINISH] < math.inf:
            found[p] = True
            continue
        safe = safe_target(state, places, wish, next_at, deadline)
        found[p] = is_safe(state, places, safe, next_at, deadline)
        if safe != wish:
            found[p, 0] = is_safe(state, places, wish, next_at, deadline)
        market[p], on_demand[p], spot[p] = safe
    return found
