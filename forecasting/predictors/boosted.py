"""The predictor `lightgbm`: trees over all markets of a panel, for counts and for prices (M6.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forecasting.laws import MOST_STATES, indicator, outlook_of
from forecasting.panel import NEVER_SEEN, Panel
from forecasting.panel_predictor import PanelPredictor
from forecasting.predictors.boosted_count import STEPS, CountTrees, fit_trees, trees_laws
from forecasting.predictors.boosted_price import BoostedPrice
from forecasting.predictors.count_members import situation_of
from forecasting.predictors.count_rows import peers_of
from forecasting.predictors.expected import Expectations, expectations
from forecasting.predictors.last_value import LastValue, is_stale
from forecasting.univariate import Outlook, mixed

#: Why the laws that the trees would have corrected answer by themselves.
UNTAUGHT = "too little to train trees on"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostedCount:
    """Model of the count over a panel: a mean of simple laws corrected by trees (`boosted_count`)."""

    def fit(self, panel: Panel) -> FittedBoostedCount:
        """Estimate expectations and trees on all of the panel."""
        expected = expectations(panel, STEPS)
        seen = tuple(series.key for series in panel.series if series.observed.size)
        return FittedBoostedCount(expected=expected, trees=fit_trees(panel, expected), seen=seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBoostedCount:
    """The trees, the expectations they are told, and the keys of the series ``seen`` in training."""

    expected: Expectations
    trees: CountTrees
    seen: tuple[str, ...]

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Corrected laws; last value answers, labelled, if the newest value is stale or there are too many states."""
        series = panel.series[which]
        states = int(series.upper[origins].max()) + 1
        simpler = LastValue().fit(series.part(0, int(origins[0]) + 1)).outlook(series, origins, horizon)
        if states > MOST_STATES:
            return labelled(simpler, f"{states} states, at most {MOST_STATES} are used")
        steps = np.arange(1, horizon + 1)
        at = situation_of(series, origins, steps, states, self.expected.of)
        law = trees_laws(self.trees.loaded(), at, peers_of(panel, which))
        why = UNTAUGHT if not self.trees.boosters else "" if series.key in self.seen else NEVER_SEEN
        own = outlook_of(law, (why,) * origins.size)
        stale = is_stale(series, series.age(origins))
        return mixed(own, with_law(simpler, states), stale) if stale.any() else own


def with_law(given: Outlook, states: int) -> Outlook:
    """An outlook of quantiles with the rough law they stand for: each level the same mass."""
    return replace(given, law=indicator(np.floor(given.quantiles + 0.5), states).mean(axis=2))


def labelled(given: Outlook, why: str) -> Outlook:
    """The outlook with a reason of its own before the ones it has."""
    return replace(given, reasons=tuple(f"{why}; {own}" if own else why for own in given.reasons))


def lightgbm_predictor() -> PanelPredictor:
    """The LightGBM predictor."""
    return PanelPredictor(name="lightgbm", price=BoostedPrice(), count=BoostedCount())
