"""Rolling-origin backtest: forecasts as they would have been issued, kept by vintage, and their scores (M6.4, M6.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecasting.accuracy import score
from forecasting.forecast import Forecast
from forecasting.predictor import Predictor
from forecasting.predictors import make_predictor
from warehouse.errors import SettingsError
from warehouse.history import History

__all__ = ["REFERENCES", "BacktestResult", "backtest", "refit_groups", "score", "second_half"]

#: Models that every backtest includes: nothing is judged without them.
REFERENCES = ("last_value", "seasonal_naive")


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestResult:
    """``forecasts`` per model in the order of their origins, and the ``history`` they are scored on."""

    forecasts: Mapping[str, list[Forecast]]
    history: History

    def issued(self) -> list[Forecast]:
        """All forecasts of all models, the form in which they are stored."""
        return [forecast for made in self.forecasts.values() for forecast in made]

    def scores(self) -> pd.DataFrame:
        """The table of `forecasting.accuracy.score`."""
        return score(self.issued(), self.history)


def backtest(
    predictors: Sequence[str | Predictor],
    history: History,
    *,
    origins: Sequence[pd.Timestamp],
    horizon: int,
    refit_every: pd.Timedelta | None = None,
    progress: Callable[[str], None] | None = None,
) -> BacktestResult:
    """Forecast from every origin with every predictor, and with `REFERENCES` beside them.

    ``origins`` are ascending slots of ``history``. Parameters are estimated at the first origin and again at the first
    origin at least ``refit_every`` after the last estimation (None: never again); in between the state moves on alone (M6.4).
    A predictor is handed ``history.until(...)`` and nothing else. Raises `SettingsError` on origins that are not ascending slots.
    """
    at = pd.DatetimeIndex(list(origins))
    if not at.is_monotonic_increasing or not at.is_unique or not at.isin(history.slots).all():
        raise SettingsError(
            f"{len(at)} origins, {int((~at.isin(history.slots)).sum())} of them outside the history",
            expected="ascending slots of the history without repeats",
        )
    made = [make_predictor(p) if isinstance(p, str) else p for p in predictors]
    made += [make_predictor(name) for name in REFERENCES if name not in {p.name for p in made}]
    groups = refit_groups(at, refit_every)
    forecasts: dict[str, list[Forecast]] = {}
    for predictor in made:
        if progress is not None:
            progress(predictor.name)
        forecasts[predictor.name] = _roll(predictor, history, groups, horizon)
    return BacktestResult(forecasts=forecasts, history=history)


def refit_groups(origins: pd.DatetimeIndex, refit_every: pd.Timedelta | None) -> list[pd.DatetimeIndex]:
    """Origins grouped by the estimation they use; each group's first origin is when that estimation is made."""
    if len(origins) == 0:
        return []
    if refit_every is None:
        return [origins]
    starts = [0]
    while True:
        due = max(int(origins.searchsorted(origins[starts[-1]] + refit_every)), starts[-1] + 1)
        if due >= len(origins):
            break
        starts.append(due)
    return [origins[a:b] for a, b in zip(starts, [*starts[1:], len(origins)], strict=True)]


def _roll(
    predictor: Predictor, history: History, groups: Sequence[pd.DatetimeIndex], horizon: int
) -> list[Forecast]:
    forecasts: list[Forecast] = []
    for group in groups:
        fitted = predictor.fit(history.until(group[0]))
        forecasts += fitted.forecast_many(history.until(group[-1]), list(group), horizon=horizon)
    return forecasts


def second_half(history: History) -> list[pd.Timestamp]:
    """The usual test origins: the last slot of the first half to the one before the last."""
    n = len(history.slots)
    return [pd.Timestamp(slot) for slot in history.slots[np.arange(max(0, n // 2 - 1), max(0, n - 1))]]
