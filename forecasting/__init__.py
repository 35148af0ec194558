"""History in, forecast out; no storage, no solver (M6).

``forecast`` and ``backtest`` say what a turn issues now or would have issued then, ``score`` how good that was. What a
predictor has to be is `forecasting.predictor.Predictor`. Names are loaded when they are first used.
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
