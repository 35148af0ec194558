"""LightGBM for prices over panels: whether and which way the price will have moved k slots ahead, and by how much (M6.2).

A price mostly stands still, so its law is a point mass at the newest value between two tails. One multiclass model corrects the
chances of the three, quantile models the size of the move in units of the series' recent changes, that the process of changes
(`price_changes`) gives; both are told the step ahead and learn from every market of the panel at once.
Directions are counted from that of the last change, so that momentum and reversal are learned once for rises and falls;
the sign itself is told too (ours).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import lightgbm
import numpy as np

from forecasting.forecast import LEVELS
from forecasting.panel import Panel
from forecasting.predictors.boosted_price_rows import (
    SIZE_LEVELS,
    SIZE_RANGE,
    STEPS,
    Moves,
    Told,
    told_of,
    training_moves,
)
from forecasting.predictors.last_value import is_stale
from forecasting.predictors.price_changes import ChangeProcess, FittedChangeProcess
from forecasting.price_features import PriceState, price_state
from forecasting.remembered import Remembered
from forecasting.series import Series
from forecasting.univariate import Outlook

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

    def state(self) -> dict[str, Any]:
        """What `restore` needs, for JSON."""
        return {
            "way": None if self.way is None else self.way.model_to_string(),
            "sizes": [one.model_to_string() for one in self.sizes],
            "process": self.process.state(),
        }

    @staticmethod
    def restore(state: dict[str, Any]) -> FittedBoostedPrice:
        """The model whose `state` this is."""
        return FittedBoostedPrice(
            way=None if state["way"] is None else lightgbm.Booster(model_str=state["way"]),
            sizes=tuple(lightgbm.Booster(model_str=one) for one in state["sizes"]),
            process=FittedChangeProcess.restore(state["process"]),
        )


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
