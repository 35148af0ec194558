"""Last-value forecast: the newest value persists, spread by past changes over the same number of slots (M6.2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat

import numpy as np
import pandas as pd

from slackwater.forecasting.predictor import ByVariable, Outlook, each_alone, join_reasons, stored
from slackwater.forecasting.predictors.distributions import (
    MAX_STEP,
    ErrorQuantiles,
    ahead,
    error_quantiles,
    indicator,
)
from slackwater.forecasting.series import Series
from slackwater.warehouse.amounts import plural

#: Maximal age of a newest value used as the present value (ours); at least one slot.
STALE = pd.Timedelta(hours=6)


@stored("last_value.model")
@dataclass(frozen=True, slots=True, kw_only=True)
class LastValue:
    """Model of a variable: y(t+k) = y(t) as median and mean; quantiles from changes over k slots in the training part."""

    def fit(self, series: Series) -> FittedLastValue:
        """Tabulate the changes y(t+k) - y(t) of all pairs of observed slots; gaps form no pair."""
        changes = ahead(series.values, MAX_STEP) - series.values[:, None]
        return FittedLastValue(spread=error_quantiles(changes, centred=True))


@stored("last_value.fitted")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLastValue:
    """Quantiles of changes by number of slots."""

    spread: ErrorQuantiles

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast the newest value at each origin.

        A value that is g slots old has the spread of changes over k + g slots; a stale value adds a reason.
        """
        last, age = series.last(origins), series.age(origins)
        steps = age[:, None] + np.arange(1, horizon + 1)
        return Outlook(
            quantiles=last[:, None, None] + self.spread.at(steps),
            mean=np.repeat(last[:, None], horizon, axis=1),
            reasons=join_reasons(stale_reasons(series, origins), repeat(self.spread.reason, origins.size)),
        )

    def distributions(
        self, series: Series, origins: np.ndarray, steps: np.ndarray, states: int
    ) -> np.ndarray:
        """Return distributions (origins, steps, states) of a count, equal mass a level; steps count from the newest value."""
        quantiles = np.floor(series.last(origins)[:, None, None] + self.spread.at(steps) + 0.5 + 1e-9)
        return np.asarray(indicator(np.clip(quantiles, 0.0, states - 1.0), states).mean(axis=2))


def is_stale(series: Series, age: np.ndarray) -> np.ndarray:
    """Return whether values of these ages (slots) are too old to be used as the present value, same shape."""
    return np.asarray(age > max(1, STALE // series.step))


def stale_reasons(series: Series, origins: np.ndarray) -> tuple[str, ...]:
    """Return a reason for each origin whose newest value is stale, "" for the others."""
    age = series.age(origins)
    return tuple(
        f"newest value is {plural(slots, 'slot')} old" if stale else ""
        for slots, stale in zip(age, is_stale(series, age), strict=True)
    )


def last_value() -> ByVariable:
    """Return the last-value predictor, the reference for all other models."""
    return each_alone("last_value", price=LastValue(), count=LastValue())
