"""What a boosted model is told at an origin, all of it known then; gaps stay NaN (M6.2).

Counts are told threshold by threshold: for "at least n" the features are those of the 0/1 series [y(t) >= n],
so that what is learned of one level holds at every other. Levels themselves are left out: a model that knew
them learned the training part's regime and failed in the next one.
"""

from __future__ import annotations

import numpy as np

from forecasting.series import Series

#: Rolling windows in slots, the origin's included.
WINDOWS = (6, 16, 48)

#: Columns of `exceedance_features`, in order, and how each may move the chance of "at least n" (1 = only up).
EXCEEDANCE_COLUMNS = ("now", "one_before", *(f"share_{w}" for w in WINDOWS), "day_before")
EXCEEDANCE_SIGNS = (1,) * len(EXCEEDANCE_COLUMNS)
#: Columns of `price_features`, in order.
PRICE_COLUMNS = (
    "change_1", "change_3", "change_12", *(f"{what}_{w}" for w in WINDOWS for what in ("mean", "low", "high")),
    "since_change", "last_change", "companion_share",
)  # fmt: skip
#: Columns of `target_features`, in order.
TARGET_COLUMNS = ("step", "hour_sin", "hour_cos", "weekend")


def exceedance_features(series: Series, thresholds: np.ndarray) -> np.ndarray:
    """Features of [y >= n] at every slot and threshold, shape (slots, thresholds, columns without the last).

    Row t reads slots up to t only. The column "day_before" belongs to the target slot: see `exceeded_a_day_before`.
    """
    above = exceeded(series.values, thresholds)
    columns = [above, lagged(above, 1), *(rolling(above, w, "mean") for w in WINDOWS)]
    return np.stack(columns, axis=-1)


def exceeded(values: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """[value >= n] as 0 or 1, NaN in gaps, shape (*values.shape, thresholds)."""
    known = np.isfinite(values)[..., None]
    return np.where(known, (values[..., None] >= thresholds).astype(float), np.nan)


def value_a_day_before(series: Series, origins: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The value of the target slot's time of day on the newest day the origin knows, NaN without a clock, shape of the inputs."""
    day = series.slots_per_day
    if day < 2:
        return np.full(np.broadcast(origins, steps).shape, np.nan)
    before = origins + steps - day * (-(-steps // day))
    return np.where(before >= 0, series.values[np.maximum(before, 0)], np.nan)


def target_features(series: Series, origins: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Step, time of day and weekend of the target slot, shape (*pairs, 4); the clock's three are NaN without a real clock."""
    target, steps = np.broadcast_arrays(origins + steps, np.asarray(steps, dtype=float))
    day = series.slots_per_day
    if day < 2:
        unknown = np.full(target.shape, np.nan)
        return np.stack([steps, unknown, unknown, unknown], axis=-1)
    slot = target + series.first_slot
    phase = 2 * np.pi * (slot % day) / day
    weekend = ((slot // day + 3) % 7 >= 5).astype(float)  # the epoch's first day was a Thursday
    return np.stack([steps, np.sin(phase), np.cos(phase), weekend], axis=-1)


def price_features(series: Series) -> np.ndarray:
    """One row per slot, shape (slots, len(PRICE_COLUMNS)); prices relative to the slot's own, row t reads slots up to t only."""
    values = series.values
    own = np.where(values > 0, values, np.nan)
    columns = [1.0 - lagged(values, lag) / own for lag in (1, 3, 12)]
    for window in WINDOWS:
        columns += [rolling(values, window, what) / own - 1.0 for what in ("mean", "low", "high")]
    since, change = changes(values)
    most = np.fmax.accumulate(np.append(1.0, series.companion))[1:]
    return np.stack([*columns, since, change / own, series.companion / most], axis=1)


def lagged(values: np.ndarray, lag: int) -> np.ndarray:
    """The value ``lag`` slots before, NaN where there is none; the first axis is time."""
    out = np.full(values.shape, np.nan)
    if lag < values.shape[0]:
        out[lag:] = values[: values.shape[0] - lag]
    return out


def rolling(values: np.ndarray, window: int, what: str) -> np.ndarray:
    """Mean, low or high of the observed values of the last ``window`` slots, NaN where all are gaps; the first axis is time."""
    before = np.full((window - 1, *values.shape[1:]), np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([before, values]), window, axis=0)
    seen = ~np.isnan(windows)
    if what == "mean":
        count = seen.sum(axis=-1)
        return np.where(count > 0, np.where(seen, windows, 0.0).sum(axis=-1) / np.maximum(count, 1), np.nan)
    filled = np.where(seen, windows, np.inf if what == "low" else -np.inf)
    extreme = filled.min(axis=-1) if what == "low" else filled.max(axis=-1)
    return np.where(seen.any(axis=-1), extreme, np.nan)


def changes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slots since the value last changed (or was first observed), and the size of that change; shapes (slots,)."""
    since = np.full(values.shape[0], np.nan)
    change = np.full(values.shape[0], np.nan)
    last, began, size = np.nan, 0, 0.0
    for slot, value in enumerate(values):
        if not np.isnan(value):
            if np.isnan(last):
                began = slot
            elif value != last:
                began, size = slot, value - last
            last = value
        if not np.isnan(last):
            since[slot], change[slot] = slot - began, size
    return since, change
