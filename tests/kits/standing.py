"""A predictor fitted once on a history and advanced by hand, for tests of its forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from slackwater.forecasting.origins import Basis, OriginBatch, forecasts_from
from slackwater.forecasting.predictor import FittedEachAlone, Panel
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.quantiles import Forecast
from slackwater.forecasting.series import series_of
from slackwater.warehouse.history import History

#: Before every slot: these forecasts look back over the whole history.
ALL = -(10**9)


@dataclass(frozen=True)
class Standing:
    """Both variables of a predictor, fitted at ``at``'s end, and the history up to there."""

    name: str
    fits: dict[str, Any]
    at: int
    history: History

    @property
    def price(self):
        return self._of("price")

    @property
    def count(self):
        return self._of("count")

    def _of(self, variable):
        """Return the fitted model of the only series, unwrapped from its panel model."""
        fitted = self.fits[variable]
        return next(iter(fitted.fitted.values())) if isinstance(fitted, FittedEachAlone) else fitted

    def extend(self, history: History) -> Standing:
        return replace(self, history=history)

    def forecast(self, *, horizon: int) -> Forecast:
        last = self.history.slots[-1] if len(self.history.slots) else self.history.known_at
        return self.forecast_many(self.history, [last], horizon=horizon)[0]

    def forecast_many(
        self, history: History, origins: Sequence[pd.Timestamp], *, horizon: int
    ) -> list[Forecast]:
        basis = {
            variable: Basis(predictor=self.name, at=self.at, start=ALL, fitted=fitted)
            for variable, fitted in self.fits.items()
        }
        at = sorted(set(origins))
        if not at:
            return []
        made = dict(
            zip(
                at,
                forecasts_from(history, OriginBatch(origins=tuple(at), basis=basis), horizon=horizon),
                strict=True,
            )
        )
        return [made[origin] for origin in origins]


def standing(predictor, history: History) -> Standing:
    """Fit a predictor, given as an object or by name, on everything known in a history."""
    model = make_predictor(predictor) if isinstance(predictor, str) else predictor
    series = {variable: series_of(history, variable) for variable in ("price", "count")}
    fits = {variable: model.fit(Panel(series=(one.as_of(10**12),))) for variable, one in series.items()}
    return Standing(name=model.name, fits=fits, at=series["price"].end - 1, history=history)
