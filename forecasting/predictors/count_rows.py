"""What the boosted count model is told: one row per slot and threshold n, about "at least n" (M6.2).

Rows are relative to the threshold (is the value at or above it, how far from it, how often of late), so that what is learned
of one level, market or year holds at another. Row t reads slots up to t only, in the series and in its peers.
"""

from __future__ import annotations

import numpy as np

from forecasting.laws import exceeded
from forecasting.panel import Panel
from forecasting.predictors.count_members import Situation, in_slots
from forecasting.recent import lagged, smoothed

#: At most so many thresholds are modelled; chances between them are interpolated.
MOST_THRESHOLDS = 24
_LAGS = (1, 2, 3)


def thresholds_of(states: int) -> np.ndarray:
    """The counts n whose "at least n" is modelled, ascending, the first 1 and the last the cap."""
    return np.unique(np.linspace(1, states - 1, min(MOST_THRESHOLDS, states - 1)).astype(int))


def peers_of(panel: Panel, which: int) -> np.ndarray:
    """Counts of the other series of the same source on this one's slots, as shares of their caps, shape (slots, peers)."""
    own = panel.series[which]
    columns = []
    for place, other in enumerate(panel.series):
        if place == which or other.source != own.source:
            continue
        column = np.full(len(own), np.nan)
        first, stop = max(own.first_slot, other.first_slot), min(own.end, other.end)
        if first < stop:
            theirs = slice(first - other.first_slot, stop - other.first_slot)
            share = other.values[theirs] / np.maximum(other.upper[theirs], 1.0)
            column[first - own.first_slot : stop - own.first_slot] = share
        columns.append(column)
    return np.stack(columns, axis=1) if columns else np.zeros((len(own), 0))


def count_rows(at: Situation, peers: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """What is known at ``at.places`` of every threshold, shape (places, thresholds, columns), float32."""
    series, places = at.series, at.places
    cap = np.maximum(series.upper, 1.0)
    above = exceeded(at.present, thresholds)
    columns = [above, *(lagged(above, lag) for lag in _LAGS)]
    levels = [at.present, *(lagged(at.present, lag) for lag in _LAGS), *_readings(at)]
    levels += [smoothed(series.values, in_slots(series, hours, 3)) for hours in (3.0, 12.0, 48.0)]
    columns += [level[:, None] - thresholds + 0.5 for level in levels]
    columns += [_wide(column, thresholds) for column in _swings(at)]
    changed = np.abs(above - lagged(above, 1))
    columns += [_since(changed), *(smoothed(changed, in_slots(series, hours, 8)) for hours in (12.0, 48.0))]
    columns += [
        np.broadcast_to(part, above.shape)
        for part in (thresholds / (at.states - 1), thresholds == thresholds[-1])
    ]
    columns += [*_peer_columns(at, peers, thresholds, cap), _wide(_hour(at), thresholds)]
    return np.stack([column[places] for column in columns], axis=-1).astype(np.float32)


def _wide(column: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    return np.broadcast_to(column[:, None], (column.shape[0], thresholds.size))


def _readings(at: Situation) -> list[np.ndarray]:
    """Two readings at thirds of the slot before, and the mean of all of it with the value."""
    within, m = at.series.within, at.series.within.shape[1]
    if m == 0:
        return [np.full(len(at.series), np.nan)] * 3
    both = np.concatenate([within, at.series.values[:, None]], axis=1)
    seen = ~np.isnan(both)
    mean = np.where(seen, both, 0.0).sum(axis=1) / np.where(seen.any(axis=1), seen.sum(axis=1), np.nan)
    first, second = (max(round((m + 1) * third / 3) - 1, 0) for third in (1, 2))
    return [within[:, first], within[:, second], mean]


def _swings(at: Situation) -> list[np.ndarray]:
    """Usual change over one, two and four slots, over four hours and over a day."""
    values = at.series.values
    changes = [np.abs(values - lagged(values, lag)) for lag in (1, 2, 4)]
    return [smoothed(change, in_slots(at.series, hours, 4)) for change in changes for hours in (4.0, 24.0)]


def _since(changed: np.ndarray) -> np.ndarray:
    """Logarithm of one plus the slots since the threshold was last crossed, shape of ``changed``."""
    slots = np.arange(changed.shape[0])[:, None]
    last = np.maximum.accumulate(np.where(changed > 0, slots, 0), axis=0)
    return np.asarray(np.log1p(slots - last))


def _peer_columns(
    at: Situation, peers: np.ndarray, thresholds: np.ndarray, cap: np.ndarray
) -> list[np.ndarray]:
    """Share of peers that are at or above the threshold (as shares of their caps), and that against its mean of late."""
    shape = (len(at.series), thresholds.size)
    if peers.shape[1] == 0:
        return [np.full(shape, np.nan)] * 2
    above = exceeded(peers * cap[:, None], thresholds - 1e-9)
    seen = ~np.isnan(above)
    count = seen.sum(axis=1)
    share = np.where(seen, above, 0.0).sum(axis=1) / np.where(count > 0, count, np.nan)
    return [share, share - smoothed(share, in_slots(at.series, 24.0, 8))]


def _hour(at: Situation) -> np.ndarray:
    """Slot of the day as a share of it, NaN without a real clock."""
    day, slots = at.series.slots_per_day, np.arange(len(at.series))
    return (slots + at.series.first_slot) % day / day if day > 1 else np.full(slots.shape, np.nan)
