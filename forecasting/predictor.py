"""What a predictor is: a History in, a Forecast out; it sees nothing else (M6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pandas as pd

from forecasting.forecast import Forecast
from warehouse.history import History


class FittedPredictor(Protocol):
    """A predictor with its parameters estimated, standing at the last slot of the history it knows."""

    def extend(self, history: History) -> FittedPredictor:
        """Move the state to the end of a longer history of the same market without estimating again (M6.4)."""
        ...

    def forecast(self, *, horizon: int) -> Forecast:
        """Forecast the ``horizon`` slots after the last slot of the known history; never fails, falls back with a label."""
        ...

    def forecast_many(
        self, history: History, origins: Sequence[pd.Timestamp], *, horizon: int
    ) -> list[Forecast]:
        """One forecast per origin, equal to ``extend(history.until(origin)).forecast(...)`` but made in one pass."""
        ...


class Predictor(Protocol):
    """A model with its settings, not yet estimated."""

    @property
    def name(self) -> str:
        """What its forecasts are kept under."""

    def fit(self, history: History) -> FittedPredictor:
        """Estimate on everything in ``history`` (which ends at the decision time); never fails, falls back with a label."""
        ...
