"""Laws of what was seen of late: exponential smoothing of the distribution of a count, reading by reading (M6.2, ours).

The point forecast of simple exponential smoothing is a weighted mean of the past; here the whole past distribution is kept, with
the same weights, so that stays at 0 and at the cap and values that come back keep their mass.
"""

from __future__ import annotations

import numba
import numpy as np

from forecasting.series import Series

#: Weight that is spread evenly, so that no count is impossible.
_EVEN = 1e-3
#: Weight of a day against the day after it, in the law of a time of day.
_DAY_DECAY = 0.8
#: Days that must have been observed before a time of day says anything.
FEWEST_DAYS = 3


def readings(series: Series) -> tuple[np.ndarray, int]:
    """All readings in order of time, shape (slots x per_slot,), and how many there are per slot; the last of each is its value."""
    within = series.within
    return np.concatenate([within, series.values[:, None]], axis=1).ravel(), within.shape[1] + 1


def recent_laws(series: Series, half_life: float, states: int, *, parity: int = -1) -> np.ndarray:
    """The law of past readings at every slot, weights halved every ``half_life`` slots, shape (slots, states).

    ``parity`` 0 or 1 counts only every second reading: those an even or an odd number of readings before the slot's own
    (probes that use up what they find make neighbours unlike); -1 counts all.
    """
    seen, per_slot = readings(series)
    return np.asarray(_smooth(seen, per_slot, 0.5 ** (1.0 / (half_life * per_slot)), parity, states))


@numba.njit(cache=True, nogil=True)
def _smooth(seen: np.ndarray, per_slot: int, decay: float, parity: int, states: int) -> np.ndarray:
    slots = seen.size // per_slot
    mass = np.zeros((2, states))
    out = np.empty((slots, states))
    for i in range(seen.size):
        mass *= decay
        if not np.isnan(seen[i]) and seen[i] < states:
            mass[i % 2, int(seen[i])] += 1.0
        if i % per_slot == per_slot - 1:
            chosen = mass[0] + mass[1] if parity < 0 else mass[(i + parity) % 2]
            out[i // per_slot] = (chosen + _EVEN / states) / (chosen.sum() + _EVEN)
    return out


def lagged(values: np.ndarray, lag: int) -> np.ndarray:
    """The value ``lag`` slots before, NaN where there is none; the first axis is time."""
    out = np.full(values.shape, np.nan)
    if lag < values.shape[0]:
        out[lag:] = values[: values.shape[0] - lag]
    return out


def smoothed(values: np.ndarray, half_life: float) -> np.ndarray:
    """Exponentially weighted mean of the observed past of each column, NaN before the first; the first axis is time."""
    flat = np.ascontiguousarray(values.reshape(values.shape[0], -1), dtype=float)
    return np.asarray(_mean_so_far(flat, 0.5 ** (1.0 / half_life)).reshape(values.shape))


@numba.njit(cache=True, nogil=True)
def _mean_so_far(values: np.ndarray, decay: float) -> np.ndarray:
    out = np.full(values.shape, np.nan)
    for j in range(values.shape[1]):
        total, weight = 0.0, 0.0
        for t in range(values.shape[0]):
            total *= decay
            weight *= decay
            if not np.isnan(values[t, j]):
                total += values[t, j]
                weight += 1.0
            if weight > 0.0:
                out[t, j] = total / weight
    return out


def hour_laws(series: Series, seen: np.ndarray, places: np.ndarray, steps: np.ndarray) -> np.ndarray | None:
    """Laws of the target's time of day on earlier days, shape (places, steps, states); None without a clock.

    ``seen`` (slots, states) is the indicator of the values. A day's slots within an hour of the time count, a day
    weighs 0.8 of the next; nothing after a place is read. Rows of places with too few days before them are NaN.
    """
    day = series.slots_per_day
    if day < 8:
        return None
    half = max(1, day // 24)
    total = np.cumsum(np.vstack([np.zeros((1, seen.shape[1])), seen]), axis=0)
    slots = np.arange(seen.shape[0])
    high, low = np.minimum(slots + half + 1, seen.shape[0]), np.maximum(slots - half, 0)
    near = total[high] - total[low]
    for t in range(day, seen.shape[0]):
        near[t] += _DAY_DECAY * near[t - day]
    back = day * (-(-(steps + half) // day))
    source = places[:, None] + steps - back
    law = np.where((source >= 0)[..., None], near[np.maximum(source, 0)], 0.0) + _EVEN / seen.shape[1]
    known = np.cumsum(~np.isnan(series.values))[places] >= FEWEST_DAYS * day
    return np.where(known[:, None, None], law / law.sum(axis=-1, keepdims=True), np.nan)
