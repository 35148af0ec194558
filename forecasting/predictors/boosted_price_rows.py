"""What the trees of `boosted_price` are told of a pair of origin and step, and the pairs they are trained on (M6.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecasting.panel import Panel
from forecasting.predictors.price_changes import FittedChangeProcess
from forecasting.price_features import STATE_COLUMNS, PriceState, price_rows, price_state
from forecasting.series import Series

#: Steps ahead that are trained on; the trees interpolate between them.
STEPS = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 36, 48])
#: Steps drawn for each origin in training, and the seed they are drawn from.
DRAWN = 4
SEED = 7
#: Pairs trained on at most, spread evenly over the slots at which prices move.
MOST_PAIRS = 40_000
#: Fewer pairs, or changes of price, than this teach nothing that lasts.
FEWEST_PAIRS = 500
FEWEST_CHANGES = 12
#: After so long a pair counts half.
HALF_LIFE = pd.Timedelta(days=21)
#: Columns that have a direction, told from the last change's too.
_SIGNED = [
    STATE_COLUMNS.index(name) for name in ("change_2", "change_4", "over_median_day", "over_median_week")
]


def pair_rows(
    process: FittedChangeProcess, series: Series, state: PriceState, origins: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """Features of origins (n,) with steps ahead (n, k), shape (n, k, columns).

    `price_rows`, its signed columns once more as seen from the last change, that change's sign; then, of the step, what the process
    of changes says: the chance of no change, of one, the mean number; and the step itself.
    """
    rows = price_rows(series, state, origins)
    sign = np.sign(state.last[origins])[:, None]
    known = np.hstack([rows, rows[:, _SIGNED] * sign, sign])
    chances = process.chances(series, state, origins, int(steps.max()))
    at = np.take_along_axis(chances, (steps - 1)[:, :, None], axis=1)
    told = np.stack([at[:, :, 0], at[:, :, 1], at @ np.arange(at.shape[2]), steps], axis=-1)
    return np.concatenate([np.broadcast_to(known[:, None, :], (*steps.shape, known.shape[1])), told], axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Training pairs: features (n, columns); log price change, its unit, weight and the sign of the last change before, (n,)."""

    rows: np.ndarray
    change: np.ndarray
    unit: np.ndarray
    weight: np.ndarray
    sign: np.ndarray


def training_moves(panel: Panel, process: FittedChangeProcess) -> Moves | None:
    """Pairs of observed origins at which the price moves with drawn steps; None where the panel has too few."""
    states = [price_state(one) for one in panel.series]
    places = [
        np.flatnonzero(state.moves & (one.newest == np.arange(len(one))))
        for one, state in zip(panel.series, states, strict=True)
    ]
    total = sum(place.size for place in places) * DRAWN
    if total < FEWEST_PAIRS or sum(state.when.size for state in states) < FEWEST_CHANGES:
        return None
    every = -(-total // MOST_PAIRS)
    end = max(one.end for one in panel.series)
    rng = np.random.default_rng(SEED)
    parts = []
    for one, state, place in zip(panel.series, states, places, strict=True):
        origins = place[(place + one.first_slot) % every == 0]
        if origins.size:
            steps = rng.choice(STEPS, (origins.size, DRAWN))
            parts.append(_pairs(process, one, state, (origins, steps), end))
    made = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Moves(rows=made[0], change=made[1], unit=made[2], weight=made[3], sign=made[4])


def _pairs(
    process: FittedChangeProcess,
    series: Series,
    state: PriceState,
    drawn: tuple[np.ndarray, np.ndarray],
    end: int,
) -> tuple[np.ndarray, ...]:
    """The columns of `Moves` for origins (n,) and steps (n, k) whose target was observed; ``end`` is the panel's."""
    origins, steps = drawn
    target = origins[:, None] + steps
    inside = np.minimum(target, len(series) - 1)
    known = (target < len(series)) & ~np.isnan(series.values[inside])
    at = np.broadcast_to(origins[:, None], steps.shape)[known]
    old = (end - series.first_slot - at) * (series.step / HALF_LIFE)
    rows = pair_rows(process, series, state, origins, steps)
    change = state.level[target[known]] - state.level[at]
    return rows[known], change, state.size[at], np.exp2(-old), np.sign(state.last[at])
