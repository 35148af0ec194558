"""Sums over moving windows in one fixed order, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def window_sums(losses: np.ndarray, ends: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums and counts, shapes (ends, steps, losses), of what is known of ``losses`` (origins, steps, losses), NaN where none is.

    Window i has the origins ``ends[i] - width`` to ``ends[i] - 1``; of origin o step k (from 0) is known if o + k + 1 <= ends[i].
    """
    steps, kinds = losses.shape[1], losses.shape[2]
    sums = np.zeros((ends.size, steps, kinds))
    counts = np.zeros((ends.size, steps, kinds), dtype=np.int64)
    for i in range(ends.size):
        for origin in range(max(0, ends[i] - width), ends[i]):
            for k in range(min(steps, ends[i] - origin)):
                for kind in range(kinds):
                    value = losses[origin, k, kind]
                    if not np.isnan(value):
                        sums[i, k, kind] += value
                        counts[i, k, kind] += 1
    return sums, counts
