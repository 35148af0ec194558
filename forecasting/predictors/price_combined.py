"""The price models in one: their quantiles weighted by what each lost of late, per market, step and part of the law (M6.2).

The newest value without spread is a member, so a price that stands still is forecast to stand still; and where nothing moved
for long (`PriceState.moves`) no other is asked. Weights are learned from forecasts that were made without knowing what
came: those of models estimated on the panel less its newest days, and, after the estimation, the models' own (ours).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pandas as pd

from forecasting.forecast import LEVELS
from forecasting.panel import FittedPanelModel, Panel, PanelModel
from forecasting.predictors.boosted_price import BoostedPrice, FittedBoostedPrice
from forecasting.predictors.last_value import is_stale
from forecasting.predictors.price_adaptive import AdaptiveLastValue, FittedAdaptiveLastValue
from forecasting.predictors.price_changes import ChangeProcess, FittedChangeProcess
from forecasting.predictors.price_coverage import BINS, POOLED, corrected_quantiles, price_transforms
from forecasting.predictors.price_weights import (
    HALF_LIFE_DAYS,
    SCORED_STEPS,
    Record,
    Scores,
    combined,
    empty_record,
    part_losses,
    pooled,
    records,
)
from forecasting.price_features import price_state
from forecasting.series import Series
from forecasting.univariate import Outlook

#: Name -> how the member is made. The newest value without spread is a member besides, always the first.
PRICE_MEMBERS: dict[str, Callable[[], PanelModel]] = {
    "adaptive": AdaptiveLastValue,
    "changes": ChangeProcess,
    "lightgbm": BoostedPrice,
}
_RESTORE: dict[str, Callable[[dict[str, Any]], FittedPanelModel]] = {
    "adaptive": FittedAdaptiveLastValue.restore,
    "changes": FittedChangeProcess.restore,
    "lightgbm": FittedBoostedPrice.restore,
}
#: The newest part of a panel on which the members are weighed; of a shorter panel a third.
WEIGHED = pd.Timedelta(days=12)
#: No forecast scored.
_NONE = Scores(
    at=np.zeros(0, dtype=int),
    losses=np.zeros((1, 0, SCORED_STEPS, BINS)),
    changes=np.zeros((0, SCORED_STEPS)),
)
#: Past forecasts are scored every so many slots since the epoch.
EVERY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedPrice:
    """Model of the price over a panel: the members of these names in `PRICE_MEMBERS`, weighted."""

    names: tuple[str, ...] = tuple(PRICE_MEMBERS)
    recalibrated: bool = True

    def fit(self, panel: Panel) -> FittedCombinedPrice:
        """Weigh members estimated without the newest days on those days, then estimate them on all."""
        begins = [one.first_slot for one in panel.series if len(one)]
        end = max((one.end for one in panel.series), default=0)
        fitted = {name: PRICE_MEMBERS[name]().fit(panel) for name in self.names}
        if not begins:
            return FittedCombinedPrice(members=fitted, kept={}, prior=_even(len(fitted)), end=end)
        width = min(int(WEIGHED / panel.series[0].step), (end - min(begins)) // 3)
        before = panel.until(end - 1 - width)
        earlier = {name: PRICE_MEMBERS[name]().fit(before) for name in self.names}
        first, stop = end - 1 - width, end - 1
        told: dict[int, np.ndarray] = {}
        kept: dict[str, Record] = {}
        for which, one in enumerate(panel.series):
            origins = scored_origins(one, (first, stop))
            if origins.size:
                told[which] = member_quantiles(earlier, panel, which, origins, SCORED_STEPS)
                start = empty_record(len(fitted) + 1, first)
                scores = scores_of(one, origins, told[which])
                losses, changes = records(scores, start, np.array([stop]), _half_life(one))
                kept[one.key] = Record(losses=losses[:, 0], changes=changes[0], slot=stop)
        prior = pooled(list(kept.values())) if kept else _even(len(fitted))
        fallen = {}
        for which, made in told.items():
            one = panel.series[which]
            start = empty_record(len(fitted) + 1, first)
            origins = scored_origins(one, (first, stop))
            seen = _fallen(one, origins, made, start, prior)
            sums, _ = records(seen, _nothing_fallen(first), np.array([stop]), _half_life(one))
            fallen[one.key] = Record(losses=sums[:, 0], changes=np.zeros(SCORED_STEPS), slot=stop)
        return FittedCombinedPrice(
            members=fitted, kept=kept, prior=prior, end=end, fallen=fallen, recalibrated=self.recalibrated
        )


def _fallen(
    series: Series, origins: np.ndarray, told: np.ndarray, start: Record, prior: np.ndarray
) -> Scores:
    """Where prices fell in the quantiles issued at ``origins`` by the weights of that time, in the form of scores."""
    scores = scores_of(series, origins, told)
    losses, changes = records(scores, start, origins + series.first_slot, _half_life(series))
    issued = combined(told[:, :, :SCORED_STEPS], losses, changes, prior)
    target = origins[:, None] + np.arange(1, SCORED_STEPS + 1)
    inside = np.minimum(target, len(series) - 1)
    truth = np.where(target < len(series), series.values[inside], np.nan)
    share = price_transforms(issued, truth)
    return Scores(at=scores.at, losses=share[None], changes=np.zeros(share.shape[:2]))


def _nothing_fallen(slot: int) -> Record:
    return Record(losses=np.zeros((1, SCORED_STEPS, BINS)), changes=np.zeros(SCORED_STEPS), slot=slot)


def _even(members: int) -> np.ndarray:
    return np.ones_like(empty_record(members + 1, 0).losses)


def _half_life(series: Series) -> float:
    """The weights' half-life in slots."""
    return max(1.0, pd.Timedelta(days=HALF_LIFE_DAYS) / series.step)


def scored_origins(series: Series, span: tuple[int, int]) -> np.ndarray:
    """Origins in [first, stop) (slots since the epoch), every `EVERY` slots of them, at which the price moves; as indices."""
    low, high = (min(max(slot - series.first_slot, 0), len(series)) for slot in span)
    origins = np.arange(low, high)
    origins = origins[(origins + series.first_slot) % EVERY == 0]
    return np.asarray(origins[price_state(series).moves[origins]])


def scores_of(series: Series, origins: np.ndarray, told: np.ndarray) -> Scores:
    """Losses of quantiles ``told`` (members, origins, `SCORED_STEPS` or more, 19) as far as their values are in the series."""
    target = origins[:, None] + np.arange(1, SCORED_STEPS + 1)
    inside = np.minimum(target, len(series) - 1)
    there = target < len(series)
    truth = np.where(there, series.values[inside], np.nan)
    changed = there & (price_state(series).age[inside] == 0)
    losses = part_losses(told[:, :, :SCORED_STEPS], truth)
    return Scores(at=origins + series.first_slot, losses=losses, changes=changed * float(EVERY))


def member_quantiles(
    members: dict[str, FittedPanelModel], panel: Panel, which: int, origins: np.ndarray, horizon: int
) -> np.ndarray:
    """Quantiles of the newest value alone and of every member, shape (members + 1, origins, horizon, 19)."""
    told = [model.outlook(panel, which, origins, horizon).quantiles for model in members.values()]
    return np.stack([standing(panel.series[which], origins, horizon), *told])


def standing(series: Series, origins: np.ndarray, horizon: int) -> np.ndarray:
    """The newest value at every step and level, shape (origins, horizon, 19)."""
    return np.broadcast_to(series.last(origins)[:, None, None], (origins.size, horizon, LEVELS.size))


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCombinedPrice:
    """The fitted members, every market's record of losses, the panel's, and the slot since the epoch after the last fitted on."""

    members: dict[str, FittedPanelModel]
    kept: dict[str, Record]
    prior: np.ndarray
    end: int
    fallen: dict[str, Record] = field(default_factory=dict)
    recalibrated: bool = True

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Weighted quantiles where the price moves, the newest value alone where it stands still."""
        series = panel.series[which]
        state = price_state(series)
        age = series.age(origins)
        quantiles = np.array(standing(series, origins, horizon))
        mean = quantiles[:, :, 0].copy()
        lively = np.flatnonzero(state.moves[origins])
        if lively.size:
            quantiles[lively] = self._weighted(panel, which, origins[lively], horizon)
            spread = quantiles[lively, :, 0] < quantiles[lively, :, -1]
            mean[lively] = np.where(spread, quantiles[lively].mean(axis=2), mean[lively])
        stale = is_stale(series, age)
        reasons = tuple(
            f"newest value is {g} slots old" if s else "" for g, s in zip(age, stale, strict=True)
        )
        return Outlook(quantiles=quantiles, mean=mean, reasons=reasons)

    def _weighted(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> np.ndarray:
        series = panel.series[which]
        start = self.kept.get(series.key, empty_record(len(self.members) + 1, self.end - 1))
        asked = np.maximum(origins + series.first_slot, start.slot)
        past = scored_origins(series, (self.end - 1, int(origins[-1]) + series.first_slot))
        every = np.union1d(past, origins)
        told = member_quantiles(self.members, panel, which, every, max(horizon, SCORED_STEPS))
        # Values after the last origin are not known there; `records` leaves out those after each of the others.
        known = series.part(0, int(origins[-1]) + 1)
        scores = scores_of(known, past, told[:, np.searchsorted(every, past)])
        losses, changes = records(scores, start, asked, _half_life(series))
        made = combined(told[:, np.searchsorted(every, origins), :horizon], losses, changes, self.prior)
        if not self.recalibrated:
            return made
        before = self.fallen.get(series.key, _nothing_fallen(start.slot))
        at_past = told[:, np.searchsorted(every, past)]
        since = _fallen(known, past, at_past, start, self.prior) if past.size else _NONE
        sums, _ = records(since, before, asked, _half_life(series))
        steps = np.minimum(np.arange(horizon), SCORED_STEPS - 1)
        shared = np.mean([one.losses[0] for one in self.fallen.values()], axis=0) if self.fallen else 0.0
        return corrected_quantiles(made, (sums[0] + POOLED * shared)[:, steps])

    def state(self) -> dict[str, Any]:
        """What `restore` needs, for JSON."""
        return {
            "members": {name: cast(Any, model).state() for name, model in self.members.items()},
            "kept": {key: record.state() for key, record in self.kept.items()},
            "prior": self.prior.tolist(),
            "end": self.end,
            "recalibrated": self.recalibrated,
            "fallen": {key: record.state() for key, record in self.fallen.items()},
        }

    @staticmethod
    def restore(state: dict[str, Any]) -> FittedCombinedPrice:
        """The model whose `state` this is."""
        return FittedCombinedPrice(
            members={name: _RESTORE[name](own) for name, own in state["members"].items()},
            kept={key: Record.restore(own) for key, own in state["kept"].items()},
            prior=np.array(state["prior"]),
            end=state["end"],
            recalibrated=state["recalibrated"],
            fallen={key: Record.restore(own) for key, own in state["fallen"].items()},
        )
