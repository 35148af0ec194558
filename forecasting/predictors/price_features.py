"""What is known of a price at a slot: when and by how much it changed last, how often it does, where it stands (M6.2).

A price stands still between changes, so its history is the list of its changes: all features are read off that list and off
rolling windows that end at the slot. Sizes are changes of the logarithm, in units of the series' own recent ones, so that
markets of any price level can be learned from together (ours).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecasting.series import Series

#: A price that did not change for so long is taken to stand still (ours).
DORMANT = pd.Timedelta(days=7)
#: Fewer changes within that time than this, and the price is taken to stand still too: the next is then too rare for a quantile.
FEWEST_RECENT = 2
#: So many recent intervals without a change, and at least a day, and it stands still as well.
PATIENCE = 4.0
#: Changes that "recent" means: of the size of changes, and of the time between them.
RECENT = 8
#: Smallest price that has a logarithm here, USD per instance-hour.
LEAST_PRICE = 1e-6
#: Two prices closer than this share of themselves are one price.
_SAME = 1e-9

#: Columns of `PriceState.rows`, in order.
STATE_COLUMNS = (
    "age", "age_of_interval", "last_interval", "mean_interval", "change_1", "change_2", "change_4", "same_sign",
    "size", "size_1", "over_median_day", "over_low_day", "over_high_day", "over_median_week", "range_week", "of_on_demand",
    "rate_quarter", "rate_day", "rate_week", "move_day",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceState:
    """What was known of a price at each slot; every array has shape (slots,), row t reads slots up to t only.

    ``level`` is the newest observed price's logarithm; ``age`` the slots since it last changed, inf if it never did; ``interval``
    the mean slots between the recent changes, inf before the second; ``last`` the last change of the logarithm (0 if none);
    ``size`` the mean size of the recent changes (0 if none), ``usual``
    the median level of a day; ``moves`` whether `FEWEST_RECENT` changes lie within `DORMANT`. ``when`` and
    ``by`` list the slots of all changes and their sizes, ``count`` (slots,) how many of them had been seen.
    """

    level: np.ndarray
    age: np.ndarray
    interval: np.ndarray
    last: np.ndarray
    size: np.ndarray
    usual: np.ndarray
    moves: np.ndarray
    when: np.ndarray
    by: np.ndarray
    count: np.ndarray


def price_state(series: Series) -> PriceState:
    """Read the changes of a price; slots before the first observed value have level NaN."""
    n = len(series)
    held = np.where(series.newest >= 0, series.values[np.maximum(series.newest, 0)], np.nan)
    level = np.log(np.maximum(held, LEAST_PRICE))
    step = np.diff(level, prepend=level[:1])
    step[~(np.abs(step) > _SAME)] = 0.0
    when = np.flatnonzero(step)
    by = step[when]
    count = np.searchsorted(when, np.arange(n), side="right")
    has = count > 0
    newest = np.where(has, when[np.maximum(count - 1, 0)] if when.size else 0, 0)
    age = np.where(has, np.arange(n) - newest, np.inf)
    total = np.concatenate([[0.0], np.cumsum(np.abs(by))])
    first = np.maximum(count - RECENT, 0)
    size = (total[count] - total[first]) / np.maximum(count - first, 1)
    slots = np.append(when, 0)
    spans = np.maximum(count - 1 - first, 0)
    interval = np.where(spans > 0, (newest - slots[first]) / np.maximum(spans, 1), np.inf)
    day = slots_of(series, 24.0)
    usual = pd.Series(level).rolling(day, min_periods=1).median().to_numpy() if when.size else level
    window = max(1, DORMANT // series.step)
    recent = count - count[np.maximum(np.arange(n) - window, 0)]
    patience = np.maximum(day, PATIENCE * interval)
    return PriceState(
        level=level, age=age, interval=interval, last=np.append(by, 0.0)[np.where(has, count - 1, -1)], size=size, usual=usual,
        moves=(recent >= FEWEST_RECENT) & (age <= patience), when=when, by=by, count=count,
    )  # fmt: skip


def slots_of(series: Series, hours: float) -> int:
    """How many slots make so many hours, at least one."""
    return max(1, round(pd.Timedelta(hours=hours) / series.step))


def price_rows(series: Series, state: PriceState, origins: np.ndarray) -> np.ndarray:
    """Features of a price at ``origins`` (at least one), shape (origins, len(`STATE_COLUMNS`)); unknown ones are NaN."""
    day, week, quarter = (slots_of(series, hours) for hours in (24.0, 168.0, 6.0))
    unit = np.where(state.size > 0, state.size, np.nan)[origins]
    age, interval = state.age[origins], state.interval[origins]
    back = [_change_before(state, origins, i) for i in range(RECENT)]
    # Windows reach back a week and a quarter of a day; what lies before need not be read.
    begin = max(0, int(origins.min()) - week - day)
    level = pd.Series(state.level[begin:])
    windows = {
        "median_day": level.rolling(day, min_periods=1).median(),
        "low_day": level.rolling(day, min_periods=1).min(),
        "high_day": level.rolling(day, min_periods=1).max(),
        "median_week": level.rolling(week, min_periods=1).median(),
        "low_week": level.rolling(week, min_periods=1).min(),
        "high_week": level.rolling(week, min_periods=1).max(),
    }
    at = {name: window.to_numpy()[origins - begin] for name, window in windows.items()}
    here = state.level[origins]
    with np.errstate(invalid="ignore", divide="ignore"):
        columns = [
            np.minimum(age, week), np.minimum(age / interval, 20.0), _interval_before(state, origins), interval,
            back[0] / unit, back[1] / unit, np.sum(back[:4], axis=0) / unit,
            np.mean([np.sign(b) == np.sign(back[0]) for b in back[1:]], axis=0),
            np.log(unit), np.log(np.abs(back[0]) / unit),
            *((here - at[name]) / unit for name in ("median_day", "low_day", "high_day", "median_week")),
            (at["high_week"] - at["low_week"]) / unit,
            here - np.log(series.on_demand_usd),
            *(_rate(state, origins, width) for width in (quarter, day, week)),
            _moved(state.level[begin:], day)[origins - begin] / unit,
        ]  # fmt: skip
    return np.stack([np.where(np.isfinite(column), column, np.nan) for column in columns], axis=1)


def _change_before(state: PriceState, origins: np.ndarray, back: int) -> np.ndarray:
    """The change ``back`` before the last, NaN where there were not so many."""
    place = state.count[origins] - 1 - back
    return np.where(place >= 0, np.append(state.by, 0.0)[np.maximum(place, -1)], np.nan)


def _interval_before(state: PriceState, origins: np.ndarray) -> np.ndarray:
    """Slots between the last change and the one before it, NaN if there were fewer than two."""
    place = state.count[origins] - 1
    when = np.append(state.when, 0).astype(float)
    return np.where(place >= 1, when[np.maximum(place, 0)] - when[np.maximum(place - 1, 0)], np.nan)


def _rate(state: PriceState, origins: np.ndarray, width: int) -> np.ndarray:
    """Changes per slot of the last ``width`` slots."""
    before = np.maximum(origins - width, 0)
    return np.asarray((state.count[origins] - state.count[before]) / np.maximum(origins - before, 1))


def _moved(level: np.ndarray, width: int) -> np.ndarray:
    """Mean distance of the newest ``width`` slots' logarithms from those a quarter of it earlier, shape (slots,)."""
    lag = max(1, width // 4)
    far = np.full(level.shape[0], np.nan)
    far[lag:] = np.abs(level[lag:] - level[:-lag])
    return pd.Series(far).rolling(width, min_periods=1).mean().to_numpy()
