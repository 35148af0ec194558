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
#: Fewer pairs than this teach nothing that lasts.
FEWEST_PAIRS = 500
#: After so long a pair counts half.
HALF_LIFE = pd.Timedelta(days=21)
#: Levels of the size of a move that are modelled.
SIZE_LEVELS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
#: Log sizes (in units of recent changes) are kept within this.
SIZE_RANGE = (-9.0, 6.0)
#: No way is less likely than this.
SMALLEST_CHANCE = 1e-3
#: Columns that have a direction, told from the last change's too.
_SIGNED = [
    STATE_COLUMNS.index(name) for name in ("change_2", "change_4", "over_median_day", "over_median_week")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is known of n pairs: features ``rows`` (n, columns), and what the process of changes makes of them.

    ``ways`` (n, 3) are logs of the chances that the price will have moved against the last change, not at all, or onwards;
    ``sizes`` (n, 2, levels) the logs of the size of a move, in recent changes, against and onwards, at `SIZE_LEVELS`.
    """

    rows: np.ndarray
    ways: np.ndarray
    sizes: np.ndarray


def told_of(
    process: FittedChangeProcess, series: Series, state: PriceState, origins: np.ndarray, steps: np.ndarray
) -> Told:
    """Features and the process's law of origins (m,) with steps ahead (m, k), as m k pairs.

    Features are `price_rows`, its signed columns once more as seen from the last change, and that change's sign; then the
    process's chance of no change by the step, of one, the mean number; and the step itself.
    """
    rows = price_rows(series, state, origins)
    sign = np.sign(state.last[origins])[:, None]
    known = np.hstack([rows, rows[:, _SIGNED] * sign, sign])
    chances = process.chances(series, state, origins, int(steps.max()))
    at = np.take_along_axis(chances, (steps - 1)[:, :, None], axis=1)
    of_step = np.stack([at[:, :, 0], at[:, :, 1], at @ np.arange(at.shape[2]), steps], axis=-1)
    wide = np.broadcast_to(known[:, None, :], (*steps.shape, known.shape[1]))
    value, weight = process.mixture(state, origins, at)
    # Seen from the last change: what comes against it is below 0, ascending, for rises and falls alike.
    fell = sign[:, 0] < 0
    value = np.where(fell[:, None], -value[:, ::-1], value) / state.size[origins][:, None]
    weight = np.where(fell[:, None, None], weight[:, :, ::-1], weight)
    ways, sizes = _law_of(value, weight)
    return Told(
        rows=np.concatenate([wide, of_step], axis=-1).reshape(-1, wide.shape[2] + of_step.shape[2]),
        ways=ways.reshape(-1, 3),
        sizes=sizes.reshape(-1, 2, SIZE_LEVELS.size),
    )


def _law_of(value: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log chances of a value below, at and above 0, shape (m, k, 3), and log sizes below and above, shape (m, k, 2, levels).

    ``value`` (m, p) ascends, ``weight`` is (m, k, p).
    """
    below, above = (value < 0)[:, None, :], (value > 0)[:, None, :]
    sides = [np.where(side, weight, 0.0) for side in (below, above)]
    falls, rises = (side.sum(axis=2) for side in sides)
    least = np.maximum(np.stack([falls, 1.0 - falls - rises, rises], axis=-1), SMALLEST_CHANCE)
    sizes = np.zeros((*falls.shape, 2, SIZE_LEVELS.size))
    rows = np.arange(value.shape[0])[:, None]
    logs = np.clip(np.log(np.maximum(np.abs(value), 1e-9)), *SIZE_RANGE)
    for i, (side, total) in enumerate(zip(sides, (falls, rises), strict=True)):
        share = np.cumsum(side, axis=2) / np.maximum(total, 1e-12)[:, :, None]
        for j, level in enumerate(SIZE_LEVELS):
            # Below 0 small sizes come last.
            place = np.argmax(share >= (1.0 - level if i == 0 else level) - 1e-9, axis=2)
            sizes[:, :, i, j] = np.where(total > 1e-12, logs[rows, place], 0.0)
    return np.log(least / least.sum(axis=-1, keepdims=True)), sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Training pairs: what is told of them; log price change, its unit, weight and the sign of the last change before, (n,)."""

    told: Told
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
    if total < FEWEST_PAIRS or not process.sizes:
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
    told = Told(rows=made[0], ways=made[1], sizes=made[2])
    return Moves(told=told, change=made[3], unit=made[4], weight=made[5], sign=made[6])


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
    told = told_of(process, series, state, origins, steps)
    ways, sizes, rows = (part[known.ravel()] for part in (told.ways, told.sizes, told.rows))
    change = state.level[target[known]] - state.level[at]
    return rows, ways, sizes, change, state.size[at], np.exp2(-old), np.sign(state.last[at])
