"""Forecasts of spot prices and available instances from market histories, without storage or solver (M6).

``forecast`` issues the forecast of the current turn, ``backtest`` the forecasts of past turns, and ``score`` measures
their accuracy. Predictors implement `forecasting.predictor.Predictor`. Names are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forecasting.accuracy.losses import score
    from forecasting.origins import backtest, forecast
    from forecasting.predictor import Predictor
    from forecasting.quantiles import Forecast
    from forecasting.series import Series

__all__ = ["Forecast", "Predictor", "Series", "backtest", "forecast", "score"]

_HOMES = {
    "Forecast": "forecasting.quantiles",
    "Predictor": "forecasting.predictor",
    "Series": "forecasting.series",
    "backtest": "forecasting.origins",
    "forecast": "forecasting.origins",
    "score": "forecasting.accuracy.losses",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'forecasting' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
