"""Forecasts of spot prices and available instances from market histories, without storage or solver (M6).

``forecast`` issues the forecast of the current turn, ``backtest`` the forecasts of past turns, and ``score`` measures
their accuracy. Predictors implement `slackwater.forecasting.predictor.Predictor`. Names are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slackwater.forecasting.accuracy.losses import score
    from slackwater.forecasting.origins import backtest, forecast
    from slackwater.forecasting.predictor import Predictor
    from slackwater.forecasting.quantiles import Forecast
    from slackwater.forecasting.series import Series

__all__ = ["Forecast", "Predictor", "Series", "backtest", "forecast", "score"]

_HOMES = {
    "Forecast": "slackwater.forecasting.quantiles",
    "Predictor": "slackwater.forecasting.predictor",
    "Series": "slackwater.forecasting.series",
    "backtest": "slackwater.forecasting.origins",
    "forecast": "slackwater.forecasting.origins",
    "score": "slackwater.forecasting.accuracy.losses",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
