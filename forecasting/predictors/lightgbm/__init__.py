"""The predictor `lightgbm`: trees over all markets of a panel, for counts and for prices (M6.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from forecasting.predictor import NEVER_SEEN, ByVariable, Outlook, Panel, mixed
from forecasting.predictors.count_members import Expectations, expectations, situation_of
from forecasting.predictors.last_value import LastValue, is_stale
from forecasting.predictors.laws import MOST_STATES, indicator, outlook_of
from forecasting.predictors.lightgbm.count import STEPS, CountTrees, fit_trees, peers_of, trees_laws
from forecasting.predictors.lightgbm.price import BoostedPrice
from forecasting.series import Series
from forecasting.state import stored

#: Why the laws that the trees would have corrected answer by themselves.
UNTAUGHT = "too little to train trees on"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostedCount:
    """Model of the count over a panel: a mean of simple laws corrected by trees (`boosted_count`)."""

    def fit(self, panel: Panel) -> FittedBoostedCount:
        """Estimate expectations and trees on all of the panel."""
        expected = expectations(panel, STEPS)
        seen = tuple(series.key for series in panel.series if series.observed.size)
        end = max((series.end for series in panel.series), default=0)
        return FittedBoostedCount(expected=expected, trees=fit_trees(panel, expected), seen=seen, end=end)


@stored("lightgbm.count")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBoostedCount:
    """The trees, the expectations they are told, the keys of the series ``seen`` in training, and the slot after the last."""

    expected: Expectations
    trees: CountTrees
    seen: tuple[str, ...]
    end: int

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Corrected laws; last value answers, labelled, if the newest value is stale or there are too many states."""
        series = panel.series[which]
        why = UNTAUGHT if not self.trees.boosters else "" if series.key in self.seen else NEVER_SEEN

        def laws(part: np.ndarray, states: int) -> np.ndarray:
            steps = np.arange(1, horizon + 1)
            at = situation_of(series, part, steps, states, self.expected.of)
            return trees_laws(self.trees.loaded(), at, peers_of(panel, which))

        return answered(laws, series, origins, horizon, end=self.end, why=why)


def answered(
    laws: Callable[[np.ndarray, int], np.ndarray],
    series: Series,
    origins: np.ndarray,
    horizon: int,
    *,
    end: int,
    why: str,
) -> Outlook:
    """The outlook of ``laws(origins, states)``; last value answers, labelled, where the newest value is stale or states too many.

    Origins with another bound known at them are asked about apart: what a model says at one does not depend on the others.
    ``end``: the slot after the last that the model was estimated on, which last value's spread is of as well.
    """
    bounds = series.upper[origins]
    most = int(bounds.max()) + 1
    law = np.zeros((origins.size, horizon, min(most, MOST_STATES)))
    for bound in np.unique(bounds[bounds < MOST_STATES]):
        part = bounds == bound
        law[part, :, : int(bound) + 1] = laws(origins[part], int(bound) + 1)
    own = outlook_of(law, (why,) * origins.size)
    many, stale = bounds >= MOST_STATES, is_stale(series, series.age(origins))
    if not (many | stale).any():
        return own
    simpler = LastValue().fit(series.until(end - 1)).outlook(series, origins, horizon)
    said = (f"{bound:.0f} instances at most, fewer than {MOST_STATES} are modelled" for bound in bounds)
    reasons = tuple(
        "; ".join(part for part in (what if large else "", own) if part)
        for what, large, own in zip(said, many, simpler.reasons, strict=True)
    )
    simpler = replace(with_law(simpler, law.shape[2]), reasons=reasons)
    given = mixed(own, simpler, many | stale)
    return replace(given, law=None) if many.any() else given


def with_law(given: Outlook, states: int) -> Outlook:
    """An outlook of quantiles with the rough law they stand for: each level the same mass."""
    return replace(given, law=indicator(np.floor(given.quantiles + 0.5), states).mean(axis=2))


def lightgbm_predictor() -> ByVariable:
    """The LightGBM predictor."""
    return ByVariable(name="lightgbm", pooled=True, price=BoostedPrice(), count=BoostedCount())
