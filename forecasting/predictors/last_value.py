"""Last value: what is, stays; the spread is that of past changes over as many slots (M6.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecasting.predictor import ByVariable, Outlook, each_alone, stored
from forecasting.predictors.laws import MAX_STEP, ErrorQuantiles, ahead, error_quantiles
from forecasting.series import Series

#: A newest value older than this is no longer "the present" (ours); at least one slot.
STALE = pd.Timedelta(hours=6)


@stored("last_value.model")
@dataclass(frozen=True, slots=True, kw_only=True)
class LastValue:
    """Model of one variable: y(t+k) = y(t), median and mean; quantiles from the changes over k slots in the training part."""

    def fit(self, series: Series) -> FittedLastValue:
        """Tabulate the changes y(t+k) - y(t) of every pair of observed slots; gaps make no pair."""
        changes = ahead(series.values, MAX_STEP) - series.values[:, None]
        return FittedLastValue(spread=error_quantiles(changes, centred=True))


@stored("last_value.fitted")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLastValue:
    """The spread of changes by number of slots."""

    spread: ErrorQuantiles

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """The newest value at each origin; one that is g slots old is spread as over k + g slots, and labelled if stale."""
        last, age = series.last(origins), series.age(origins)
        steps = age[:, None] + np.arange(1, horizon + 1)
        return Outlook(
            quantiles=last[:, None, None] + self.spread.at(steps),
            mean=np.repeat(last[:, None], horizon, axis=1),
            reasons=self._reasons(series, age),
        )

    def _reasons(self, series: Series, age: np.ndarray) -> tuple[str, ...]:
        spread = self.spread.reason
        reasons = [spread] * age.size
        for i in np.flatnonzero(is_stale(series, age)):
            stale = f"newest value is {age[i]} slots old"
            reasons[i] = f"{stale}; {spread}" if spread else stale
        return tuple(reasons)


def is_stale(series: Series, age: np.ndarray) -> np.ndarray:
    """Whether values of these ages (slots) are too old to be taken for the present, same shape."""
    return np.asarray(age > max(1, STALE // series.step))


def last_value() -> ByVariable:
    """The last-value predictor, the floor every other model is compared with."""
    return each_alone("last_value", price=LastValue(), count=LastValue())
