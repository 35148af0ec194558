"""LightGBM for prices: whether, which way and how far the price will have moved, from all markets of a source (M6.2)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import lightgbm
import numpy as np
import pandas as pd

from forecasting.predictor import Outlook, Panel
from forecasting.predictors.last_value import is_stale
from forecasting.predictors.price_changes import (
    STATE_COLUMNS,
    ChangeProcess,
    FittedChangeProcess,
    PriceState,
    price_rows,
    price_state,
)
from forecasting.predictors.remembered import Remembered
from forecasting.quantiles import LEVELS
from forecasting.series import Series
from forecasting.state import stored

# ---
# What the trees of the price model are told of a pair of origin and step, and the pairs they are trained on (M6.2).

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


# ---
# LightGBM for prices over panels: whether and which way the price will have moved k slots ahead, and by how much (M6.2).
#
# A price mostly stands still, so its law is a point mass at the newest value between two tails. One multiclass model corrects the
# chances of the three, quantile models the size of the move in units of the series' recent changes, that the process of changes
# (`price_changes`) gives; both are told the step ahead and learn from every market of the panel at once.
# Directions are counted from that of the last change, so that momentum and reversal are learned once for rises and falls;
# the sign itself is told too (ours).

#: Fewer moves than this teach nothing that lasts.
FEWEST_MOVES = 50
SETTINGS: dict[str, Any] = {
    "num_threads": 1, "deterministic": True, "force_row_wise": True, "seed": 7, "verbosity": -1,
    "learning_rate": 0.05, "num_leaves": 7, "min_data_in_leaf": 200, "lambda_l2": 20.0, "feature_fraction": 0.7,
}  # fmt: skip
#: Rounds of a panel with hardly a change, those added to it for one with `MANY_MOVES` training pairs that moved, or more.
ROUNDS = 20
ROUNDS_MORE = 20
MANY_MOVES = 20_000
#: Classes of the way: against the last change, none, onwards.
AGAINST, NONE, ONWARDS = 0, 1, 2
#: A smaller change of the logarithm is none.
_SAME = 1e-9
_CHUNK_ROWS = 200_000
_SCORES = np.array([NormalDist().inv_cdf(level) for level in SIZE_LEVELS])
_GRID = np.linspace(0.001, 0.999, 999)
_GRID_SCORES = np.array([NormalDist().inv_cdf(share) for share in _GRID])


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostedPrice:
    """Model of the price over a panel; where the panel taught nothing, the process of changes answers, labelled."""

    def fit(self, panel: Panel) -> FittedBoostedPrice:
        """Fit the trees on the slots of all markets at which the price moves."""
        return _FITTED.of(panel, lambda: self._fit(panel))

    def _fit(self, panel: Panel) -> FittedBoostedPrice:
        process = ChangeProcess().fit(panel)
        moves = training_moves(panel, process)
        if moves is None:
            return FittedBoostedPrice(way=None, sizes=(), process=process)
        way = np.where(np.abs(moves.change) < _SAME, NONE, np.sign(moves.change) * moves.sign + 1)
        moved = np.count_nonzero(way != NONE)
        if moved < FEWEST_MOVES:
            return FittedBoostedPrice(way=None, sizes=(), process=process)
        rounds = ROUNDS + round(ROUNDS_MORE * min(1.0, moved / MANY_MOVES))
        start = moves.told.ways.ravel(order="F")  # class after class
        data = lightgbm.Dataset(moves.told.rows, way, weight=moves.weight, init_score=start)
        ways = lightgbm.train({**SETTINGS, "objective": "multiclass", "num_class": 3}, data, rounds)
        return FittedBoostedPrice(way=ways, sizes=_size_boosters(moves, way, rounds), process=process)


def _size_boosters(moves: Moves, way: np.ndarray, rounds: int) -> tuple[lightgbm.Booster, ...]:
    """Quantiles of the log size of a move, in recent changes, told its way; one booster per level of `SIZE_LEVELS`."""
    moved = np.flatnonzero(way != NONE)
    rows = np.hstack([moves.told.rows[moved], way[moved, None]])
    size = np.clip(np.log(np.abs(moves.change[moved]) / moves.unit[moved]), *SIZE_RANGE)
    starts = moves.told.sizes[moved, (way[moved] == ONWARDS).astype(int)]
    # The levels differ in where they start: the rows are sorted into bins once for all of them.
    data = lightgbm.Dataset(rows, size, weight=moves.weight[moved], init_score=starts[:, 0].copy())
    boosters = []
    for i, level in enumerate(SIZE_LEVELS):
        data.set_init_score(starts[:, i].copy())
        boosters.append(lightgbm.train({**SETTINGS, "objective": "quantile", "alpha": level}, data, rounds))
    return tuple(boosters)


@stored("lightgbm.price")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBoostedPrice:
    """The booster of the way (None where nothing could be learned), one per level of `SIZE_LEVELS`, and the process of changes."""

    way: lightgbm.Booster | None
    sizes: tuple[lightgbm.Booster, ...]
    process: FittedChangeProcess

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Quantiles of the law where the price moves, the newest value alone where it stands still (`PriceState.moves`)."""
        if self.way is None:
            given = self.process.outlook(panel, which, origins, horizon)
            reasons = tuple(f"too few moves to learn from{'; ' if why else ''}{why}" for why in given.reasons)
            return Outlook(quantiles=given.quantiles, mean=given.mean, reasons=reasons)
        series = panel.series[which]
        state = price_state(series)
        mean = np.repeat(series.last(origins)[:, None], horizon, axis=1)
        quantiles = np.repeat(mean[:, :, None], LEVELS.size, axis=2)
        lively = np.flatnonzero(state.moves[origins])
        chunk = max(1, _CHUNK_ROWS // horizon)
        for begin in range(0, lively.size, chunk):
            mine = lively[begin : begin + chunk]
            quantiles[mine] = self._quantiles(self.way, series, state, origins[mine], horizon)
        mean = np.where(quantiles[:, :, 0] < quantiles[:, :, -1], quantiles.mean(axis=2), mean)
        age = series.age(origins)
        reasons = tuple(
            f"newest value is {slots} slots old" if stale else ""
            for slots, stale in zip(age, is_stale(series, age), strict=True)
        )
        return Outlook(quantiles=quantiles, mean=mean, reasons=reasons)

    def _quantiles(
        self, way: lightgbm.Booster, series: Series, state: PriceState, origins: np.ndarray, horizon: int
    ) -> np.ndarray:
        """Quantiles of the price, shape (origins, horizon, 19)."""
        steps = np.minimum(series.age(origins)[:, None] + np.arange(1, horizon + 1), STEPS[-1])
        told = told_of(self.process, series, state, origins, steps)
        chances = np.exp(told.ways + np.asarray(way.predict(told.rows, raw_score=True, num_threads=1)))
        chances /= chances.sum(axis=1, keepdims=True)
        against, onwards = (self._sizes(told, one) for one in (AGAINST, ONWARDS))
        rose = np.repeat(state.last[origins] > 0, horizon)
        change = law_quantiles(
            falls=np.where(rose, chances[:, AGAINST], chances[:, ONWARDS]),
            rises=np.where(rose, chances[:, ONWARDS], chances[:, AGAINST]),
            down=np.where(rose[:, None], against, onwards),
            up=np.where(rose[:, None], onwards, against),
        ).reshape(origins.size, horizon, LEVELS.size)
        moved = state.level[origins][:, None, None] + change * state.size[origins][:, None, None]
        return np.where(change == 0, series.last(origins)[:, None, None], np.exp(np.minimum(moved, 30.0)))

    def _sizes(self, told: Told, way: int) -> np.ndarray:
        """Quantiles of the log size at `SIZE_LEVELS` of a move that way, shape (pairs, levels)."""
        rows = np.hstack([told.rows, np.full((told.rows.shape[0], 1), float(way))])
        shift = np.stack(
            [np.asarray(one.predict(rows, raw_score=True, num_threads=1)) for one in self.sizes], axis=1
        )
        return np.sort(told.sizes[:, int(way == ONWARDS)] + shift, axis=1)


def law_quantiles(*, falls: np.ndarray, rises: np.ndarray, down: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Quantiles at `LEVELS` of a law with chances of a fall and of a rise (n,), else 0; shape (n, 19).

    ``down`` and ``up`` (n, levels) are log sizes at `SIZE_LEVELS` of either.
    """
    out = np.zeros((falls.size, LEVELS.size))
    for i, level in enumerate(LEVELS):
        low = np.flatnonzero(level < falls)
        out[low, i] = -_size_at(1.0 - level / falls[low], down[low])
        high = np.flatnonzero(1.0 - level < rises)
        out[high, i] = _size_at(1.0 - (1.0 - level) / rises[high], up[high])
    return out


def _size_at(share: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Size at a share (n,) of a law given by log sizes (n, levels), linear in normal scores and beyond the outermost level."""
    score = np.clip(np.interp(share, _GRID, _GRID_SCORES), -2.0, 2.0)
    left = np.clip(np.searchsorted(_SCORES, score) - 1, 0, _SCORES.size - 2)
    rows = np.arange(share.size)
    low, high = logs[rows, left], logs[rows, left + 1]
    part = (score - _SCORES[left]) / (_SCORES[left + 1] - _SCORES[left])
    return np.asarray(np.exp(np.clip(low + part * (high - low), *SIZE_RANGE)))


#: The mixture is made of the same trees as the predictor `lightgbm`.
_FITTED: Remembered[FittedBoostedPrice] = Remembered()
