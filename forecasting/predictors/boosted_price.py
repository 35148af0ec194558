"""LightGBM for prices over panels: whether and which way the price will have moved k slots ahead, and by how much (M6.2).

A price mostly stands still, so its law is a point mass at the newest value between two tails. One multiclass model gives the
chances of the three, quantile models give the size of the move in units of the series' recent changes; both are told the step
ahead and learn from every market of the panel at once. Directions are counted from that of the last change: that momentum
or reversal is learned once for rises and falls, while the sign itself is told too (ours).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import lightgbm
import numpy as np
import pandas as pd

from forecasting.forecast import LEVELS
from forecasting.panel import Panel
from forecasting.predictors.last_value import is_stale
from forecasting.predictors.price_changes import ChangeProcess, FittedChangeProcess
from forecasting.price_features import STATE_COLUMNS, PriceState, price_rows, price_state
from forecasting.series import Series
from forecasting.univariate import Outlook

#: Steps ahead that are trained on; the trees interpolate between them.
STEPS = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 36, 48])
#: Steps drawn for each origin in training.
DRAWN = 4
#: Rows trained on at most, spread evenly over the moving markets' slots.
MOST_ROWS = 40_000
#: Fewer rows, or changes, than this teach nothing that lasts.
FEWEST_ROWS = 500
FEWEST_CHANGES = 12
#: After so many days a row counts half.
HALF_LIFE = pd.Timedelta(days=21)
#: Levels of the size of a move that are modelled; others are interpolated on the scale of normal scores.
SIZE_LEVELS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
#: Log sizes (in units of recent changes) are kept within this.
SIZE_RANGE = (-9.0, 6.0)
SETTINGS: dict[str, Any] = {
    "num_threads": 1, "deterministic": True, "force_row_wise": True, "seed": 7, "verbosity": -1,
    "learning_rate": 0.05, "num_leaves": 7, "min_data_in_leaf": 200, "lambda_l2": 20.0, "feature_fraction": 0.7,
}  # fmt: skip
ROUNDS_WAY = 60
ROUNDS_SIZE = 50
#: Columns that have a direction, told from the last change's.
_SIGNED = [
    STATE_COLUMNS.index(name) for name in ("change_2", "change_4", "over_median_day", "over_median_week")
]
_CHUNK_ROWS = 200_000


def feature_rows(series: Series, state: PriceState, origins: np.ndarray) -> np.ndarray:
    """`price_rows`, the signed columns once more as seen from the last change, and its sign."""
    rows = price_rows(series, state, origins)
    sign = np.sign(state.last[origins])
    return np.hstack([rows, rows[:, _SIGNED] * sign[:, None], sign[:, None]])


def process_rows(
    process: FittedChangeProcess, series: Series, state: PriceState, origins: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """What the process of changes says of (origins, k) pairs: chance of no change, of one, where one and more would lead."""
    chances = process.chances(series, state, origins, int(steps.max()))
    at = np.take_along_axis(chances, (steps - 1)[:, :, None], axis=1)
    return np.stack([at[:, :, 0], at[:, :, 1], at @ np.arange(at.shape[2]), steps], axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Training pairs: features of the origins with the step as last column, log price change, its unit, weight; first axis pairs."""

    rows: np.ndarray
    change: np.ndarray
    weight: np.ndarray
    sign: np.ndarray
    unit: np.ndarray


def training_moves(panel: Panel, process: FittedChangeProcess) -> Moves | None:
    """Pairs of origins, within a week of a change, and steps; None where the panel has too few."""
    rng = np.random.default_rng(SETTINGS["seed"])
    states = [price_state(one) for one in panel.series]
    places = [
        np.flatnonzero(s.moves & (one.newest == np.arange(len(one))))
        for one, s in zip(panel.series, states, strict=True)
    ]
    total = sum(p.size for p in places) * DRAWN
    if total < FEWEST_ROWS or sum(s.when.size for s in states) < FEWEST_CHANGES:
        return None
    every = -(-total // MOST_ROWS)
    end = max(one.end for one in panel.series)
    parts = []
    for one, state, origins in zip(panel.series, states, places, strict=True):
        origins = origins[(origins + one.first_slot) % every == 0]
        if not origins.size:
            continue
        rows = feature_rows(one, state, origins)
        drawn = rng.choice(STEPS, (origins.size, DRAWN))
        told = process_rows(process, one, state, origins, drawn)
        for j in range(DRAWN):
            k = drawn[:, j]
            target = origins + k
            ok = target < len(one)
            ok[ok] = ~np.isnan(one.values[target[ok]])
            at, to, k = origins[ok], target[ok], k[ok]
            old = (end - one.first_slot - at) * (one.step / HALF_LIFE)
            parts.append((
                np.hstack([rows[ok], told[ok, j]]), state.level[to] - state.level[at], np.exp2(-old),
                np.sign(state.last[at]), state.size[at],
            ))  # fmt: skip
    made = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Moves(rows=made[0], change=made[1], weight=made[2], sign=made[3], unit=made[4])


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostedPrice:
    """Model of the price over a panel; what it cannot learn from is answered by the newest value alone, labelled."""

    def fit(self, panel: Panel) -> FittedBoostedPrice:
        """Fit the trees on all markets that moved."""
        process = ChangeProcess().fit(panel)
        moves = training_moves(panel, process)
        if moves is None:
            return FittedBoostedPrice(way=None, sizes=(), process=process)
        # 0: against the last change, 1: no move, 2: onwards.
        way = np.sign(moves.change) * moves.sign + 1
        way[np.abs(moves.change) < 1e-9] = 1
        data = lightgbm.Dataset(moves.rows, way, weight=moves.weight, free_raw_data=True)
        ways = lightgbm.train({**SETTINGS, "objective": "multiclass", "num_class": 3}, data, ROUNDS_WAY)
        moved = way != 1
        if moved.sum() < FEWEST_CHANGES:
            return FittedBoostedPrice(way=None, sizes=(), process=process)
        rows = np.hstack([moves.rows[moved], way[moved, None]])
        size = np.clip(np.log(np.abs(moves.change[moved]) / moves.unit[moved]), *SIZE_RANGE)
        sizes = []
        for level in SIZE_LEVELS:
            data = lightgbm.Dataset(rows, size, weight=moves.weight[moved])
            sizes.append(
                lightgbm.train({**SETTINGS, "objective": "quantile", "alpha": level}, data, ROUNDS_SIZE)
            )
        return FittedBoostedPrice(way=ways, sizes=tuple(sizes), process=process)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBoostedPrice:
    """The booster of the way and one per level of `SIZE_LEVELS`; None and () where nothing could be learned."""

    way: lightgbm.Booster | None
    sizes: tuple[lightgbm.Booster, ...]
    process: FittedChangeProcess

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        series = panel.series[which]
        state = price_state(series)
        last, age = series.last(origins), series.age(origins)
        mean = np.repeat(last[:, None], horizon, axis=1)
        quantiles = np.repeat(mean[:, :, None], LEVELS.size, axis=2)
        lively = np.flatnonzero(state.moves[origins])
        if self.way is not None and lively.size:
            chunk = max(1, _CHUNK_ROWS // horizon)
            for begin in range(0, lively.size, chunk):
                mine = lively[begin : begin + chunk]
                quantiles[mine] = self._quantiles(series, state, origins[mine], horizon)
            mean = np.where((quantiles[:, :, 0] < quantiles[:, :, -1]), quantiles.mean(axis=2), mean)
        return Outlook(quantiles=quantiles, mean=mean, reasons=("",) * origins.size)

    def _quantiles(self, series, state, origins, horizon):
        known = feature_rows(series, state, origins)
        age = series.age(origins)
        steps = np.minimum(age[:, None] + np.arange(1, horizon + 1), STEPS[-1])
        told = process_rows(self.process, series, state, origins, steps)
        rows = np.hstack([np.repeat(known, horizon, axis=0), told.reshape(-1, told.shape[2])])
        chances = np.asarray(self.way.predict(rows))
        sign = np.repeat(np.sign(state.last[origins]), horizon)
        unit = np.repeat(state.size[origins], horizon)
        size = []
        for way in (0.0, 2.0):
            told = np.hstack([rows, np.full((rows.shape[0], 1), way)])
            size.append(np.sort(np.stack([np.asarray(b.predict(told)) for b in self.sizes], axis=1), axis=1))
        up = sign > 0
        falls = np.where(up, chances[:, 0], chances[:, 2])
        rises = np.where(up, chances[:, 2], chances[:, 0])
        down_size = np.where(up[:, None], size[0], size[1])
        up_size = np.where(up[:, None], size[1], size[0])
        q = law_quantiles(falls, rises, down_size, up_size) * unit[:, None]
        level = np.repeat(state.level[origins], horizon)[:, None]
        base = np.repeat(series.last(origins), horizon)[:, None]
        out = np.where(q == 0, base, np.exp(np.minimum(level + q, 30)))
        return out.reshape(origins.size, horizon, LEVELS.size)


_SCORES = np.array([NormalDist().inv_cdf(level) for level in SIZE_LEVELS])


def law_quantiles(falls: np.ndarray, rises: np.ndarray, down: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Quantiles at `LEVELS` of a point mass at 0 between two tails, shape (n, 19)."""
    out = np.zeros((falls.size, LEVELS.size))
    for i, level in enumerate(LEVELS):
        low = np.flatnonzero(level < falls)
        out[low, i] = -_size(1.0 - level / falls[low], down[low])
        high = np.flatnonzero(1 - level < rises)
        out[high, i] = _size(1.0 - (1.0 - level) / rises[high], up[high])
    return out


def _size(share: np.ndarray, logs: np.ndarray) -> np.ndarray:
    score = np.clip(normal_score(share), -2.0, 2.0)
    j = np.clip(np.searchsorted(_SCORES, score) - 1, 0, _SCORES.size - 2)
    n = np.arange(share.size)
    low, high = logs[n, j], logs[n, j + 1]
    w = (score - _SCORES[j]) / (_SCORES[j + 1] - _SCORES[j])
    return np.exp(np.clip(low + w * (high - low), *SIZE_RANGE))


_GRID = np.linspace(0.001, 0.999, 999)
_GRID_SCORES = np.array([NormalDist().inv_cdf(p) for p in _GRID])


def normal_score(share: np.ndarray) -> np.ndarray:
    """Normal scores of shares in (0, 1), by a table."""
    return np.interp(share, _GRID, _GRID_SCORES)
