"""The error of a path of counts when an instance at the wrong time is not two errors (M6.5, M10).

"A universal error measure for input predictions" (Bernardini, Lindermayr, Marchetti-Spaccamela, Megow, Stougie and Sweering,
2022) covers predicted and actual requests at least cost: what is absent and what is unpredicted is paid for, and the rest is
matched at its distance. Here a request is an instance in a slot, the distance is time, and one absent or unpredicted
costs 1; absent plus unpredicted, slot by slot, is the same measure with an endless distance. A forecast that says a market comes
back at ten is then nearer to one that says eleven than to one that says never (ours: the price of a slot of distance).
"""

from __future__ import annotations

import numpy as np

#: Cost of matching an instance with one a slot away: four slots apart is as bad as absent and unpredicted.
SLOT_DISTANCE = 0.5


def cover_errors(predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """By how much each further slot raises the cover error of a path, shape (m, h); may be negative, where a match is found late.

    ``predicted`` (m, h) whole instances, ``actual`` the same with NaN in gaps, which match nothing. Row sums are the cover error
    of the whole path, between |sum predicted - sum actual| and absent plus unpredicted.

    With e_t = predicted - actual and f_t the instances carried from slot t to t + 1 (negative: backwards), it is min over
    whole f with f_h = 0 of sum_t |e_t + f_{t-1} - f_t| + SLOT_DISTANCE |f_t|: a dynamic program over f, for all rows at once.
    """
    error = np.where(np.isnan(actual), 0.0, predicted - np.nan_to_num(actual)).round().astype(np.int64)
    rows, steps = error.shape
    # Carried further than this an instance costs as much as two errors, so no more are under way than three slots hold.
    reach = max(1, (int(2.0 / SLOT_DISTANCE) - 1) * int(np.abs(error).max(initial=0)))
    carried = np.arange(-reach, reach + 1)
    value = np.where(carried == 0, 0.0, np.inf) + np.zeros((rows, 1))
    total = np.zeros((rows, steps))
    for t in range(steps):
        place = np.arange(carried.size) - error[:, t, None]
        inside = (place >= 0) & (place < carried.size)
        moved = np.where(inside, np.take_along_axis(value, place.clip(0, carried.size - 1), axis=1), np.inf)
        # min over f' of moved(f') + |f - f'|: one sweep up and one down.
        up = np.minimum.accumulate(moved - carried, axis=1) + carried
        down = np.minimum.accumulate((moved + carried)[:, ::-1], axis=1)[:, ::-1] - carried
        value = np.minimum(up, down)
        total[:, t] = value[:, reach]
        value = value + SLOT_DISTANCE * np.abs(carried)
    return np.diff(total, axis=1, prepend=0.0)
