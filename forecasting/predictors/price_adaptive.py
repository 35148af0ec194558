"""Last value with the spread of late: changes over as many slots in the newest days, older ones counting less (M6.2).

The spread of a whole training part says little of a price whose rest and unrest take turns; that of the last days does (ours).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from forecasting.forecast import LEVELS
from forecasting.panel import Panel
from forecasting.predictors.last_value import is_stale
from forecasting.residuals import ahead
from forecasting.series import Series
from forecasting.univariate import Outlook

#: After so long a change counts half, and after four times as long not at all (ours, on the first quarters of the open series).
HALF_LIFE = pd.Timedelta(days=2)
#: The spread is worked out anew every so many slots.
EVERY = 4
#: Numbers sorted at once.
_CHUNK = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveLastValue:
    """Model of a price: y(t+k) = y(t), quantiles from the changes over k slots of late; nothing of it is estimated beforehand."""

    half_life: pd.Timedelta = HALF_LIFE

    def fit(self, panel: Panel) -> FittedAdaptiveLastValue:
        """The model itself: all that it needs it reads from the series up to each origin."""
        return FittedAdaptiveLastValue(half_life=self.half_life)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedAdaptiveLastValue:
    """The time after which a change counts half."""

    half_life: pd.Timedelta

    def state(self) -> dict[str, Any]:
        """What `restore` needs, for JSON."""
        return {"half_life_seconds": self.half_life.total_seconds()}

    @staticmethod
    def restore(state: dict[str, Any]) -> FittedAdaptiveLastValue:
        """The model whose `state` this is."""
        return FittedAdaptiveLastValue(half_life=pd.Timedelta(seconds=state["half_life_seconds"]))

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Spread as of the newest multiple of `EVERY` slots since the epoch; a newest value g slots old is spread over k + g."""
        series = panel.series[which]
        last, age = series.last(origins), series.age(origins)
        mean = np.repeat(last[:, None], horizon, axis=1)
        quantiles = np.repeat(mean[:, :, None], LEVELS.size, axis=2)
        half = max(1.0, self.half_life / series.step)
        width = int(4 * half)
        asked = origins - (origins + series.first_slot) % EVERY
        blocks, place = np.unique(asked, return_inverse=True)
        moved = np.concatenate([[0], np.cumsum(np.nan_to_num(np.diff(_held(series))) != 0)])
        seen = np.maximum(blocks, 0)
        lively = moved[seen] > moved[np.maximum(seen - width, 0)]
        shown = np.minimum(age, width // 2)
        changes = Changes(series=series, width=width, half=half)
        for extra in np.unique(shown):
            mine = np.flatnonzero((shown == extra) & lively[place])
            if mine.size:
                needed, back = np.unique(place[mine], return_inverse=True)
                quantiles[mine] += changes.spread(blocks[needed], horizon, int(extra))[back]
        stale = is_stale(series, age)
        reasons = tuple(
            f"newest value is {g} slots old" if s else "" for g, s in zip(age, stale, strict=True)
        )
        return Outlook(quantiles=quantiles, mean=mean, reasons=reasons)


def _held(series: Series) -> np.ndarray:
    """The newest observed value at each slot, NaN before the first, shape (slots,)."""
    return np.where(series.newest >= 0, series.values[np.maximum(series.newest, 0)], np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of a series over k slots within a window of ``width`` slots, each counting half after ``half`` slots."""

    series: Series
    width: int
    half: float

    def spread(self, ends: np.ndarray, horizon: int, extra: int) -> np.ndarray:
        """Weighted quantiles, with median 0, of the changes over extra+1..extra+horizon slots that had come about at each of
        the ``ends`` (slots), shape (ends, horizon, 19)."""
        out = np.zeros((ends.size, horizon, LEVELS.size))
        chunk = max(1, _CHUNK // self.width)
        for k in range(extra + 1, extra + horizon + 1):
            change = ahead(self.series.values, k)[:, -1] - self.series.values
            padded = np.concatenate([np.full(self.width, np.nan), change])
            windows = np.lib.stride_tricks.sliding_window_view(padded, self.width)
            for begin in range(0, ends.size, chunk):
                part = ends[begin : begin + chunk]
                # The newest change over k slots that is known at slot t began at t - k; row r ends with change r - 1.
                rows = windows[np.clip(part - k + 1, 0, change.size)]
                weights = np.exp2((np.arange(self.width) - self.width + 1) / self.half)
                out[begin : begin + chunk, k - extra - 1] = weighted_quantiles(rows, weights)
        return out


def weighted_quantiles(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Quantiles at `LEVELS` less the median of each row (n, m), NaN counting nothing; rows without a number give 0, shape (n, 19).

    ``weights`` is (m,). The least value whose share of the weight reaches the level, so a point mass stays one.
    """
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    weight = np.where(np.isnan(ordered), 0.0, weights[order])
    total = np.cumsum(weight, axis=1)
    share = total / np.maximum(total[:, -1:], 1e-300)
    out = np.zeros((values.shape[0], LEVELS.size))
    known = np.flatnonzero(~np.isnan(values).all(axis=1))
    for i, level in enumerate(LEVELS):
        place = np.argmax(share[known] >= level - 1e-9, axis=1)
        out[known, i] = ordered[known, place]
    return out - out[:, LEVELS.size // 2][:, None]
