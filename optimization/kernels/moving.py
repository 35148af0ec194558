"""Compiled kernel of the best ending of a multi-market job (M2.6, M11.2) (ours).

Arrays with a first axis of markets are padded to the largest market. A market index equal to the
number of markets means that the job has no market yet.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slackwater.optimization.kernels.compiling import kernel
from slackwater.optimization.kernels.rules import Restart, Value, ending, move_usd


class Ground(NamedTuple):
    """The markets of a job in the form that kernels read; money in USD per slot, work in work units.

    ``sizes`` (M, J) ascend from 0 in each market, where the first ``held`` (M,) are valid; ``gain``
    (M, J) is their work in a slot. ``on_demand`` (M,) are the on-demand prices. ``up``, ``down`` and
    ``moved`` (M, n_max + 1) are the efficiencies after a change to n instances (M2.4) and after a
    move from another market (M11.2). ``moves`` (S, M + 1, M) are the costs as of `move_usd`.
    """

    sizes: np.ndarray
    held: np.ndarray
    gain: np.ndarray
    on_demand: np.ndarray
    up: np.ndarray
    down: np.ndarray
    moved: np.ndarray
    moves: np.ndarray
    value: Value


@kernel
def ending_at(ground: Ground, place: int, before: int, slot: int, rest: float) -> tuple[float, int, int, int]:
    """Return the best on-demand ending from market ``place``, with at most one move (M2.6, M11.2).

    The result is (value minus costs in USD, market, index of the size, slots).
    """
    best, market, size, slots = 0.0, place, 0, 0
    nowhere = ground.on_demand.size
    for i in range(nowhere):
        # The present market first, so that ties go to the ending without a move.
        m = i if place == nowhere else (place if i == 0 else (i - 1 if i <= place else i))
        moved = m != place
        up = ground.moved[m] if moved and place < nowhere else ground.up[m]
        end = ending(
            ground.sizes[m, : ground.held[m]],
            ground.gain[m],
            Restart(up, ground.down[m]),
            ground.value,
            ground.on_demand[m],
            slot,
            rest,
            0 if moved else before,
        )
        usd = end.usd - move_usd(ground.moves, slot, place, m)
        if (end.size > 0 or rest <= 0.0) and usd > best:
            best, market, size, slots = usd, m, end.size, end.slots
    return best, market, size, slots
