"""The predictors by name; heavy libraries are imported when one is made, not before."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from forecasting.predictor import Predictor
from warehouse.errors import SettingsError


def _lazily(module: str, factory: str) -> Callable[[], Predictor]:
    def make() -> Predictor:
        made: Predictor = getattr(import_module(f"forecasting.predictors.{module}"), factory)()
        return made

    return make


#: Name -> how the predictor is made, with its default settings.
PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "last_value": _lazily("last_value", "last_value"),
    "seasonal_naive": _lazily("seasonal_naive", "seasonal_naive"),
    "arima": _lazily("arima", "arima"),
    "lightgbm": _lazily("lightgbm", "lightgbm_predictor"),
    "markov": _lazily("markov", "markov"),
    "smoothing": _lazily("combined", "smoothing"),
    "combined": _lazily("combined", "combined"),
}


def make_predictor(name: str) -> Predictor:
    """The predictor of that name with its default settings; raises `SettingsError` on an unknown one."""
    if name not in PREDICTORS:
        raise SettingsError(f"predictor {name!r}", expected=f"one of {', '.join(PREDICTORS)}")
    return PREDICTORS[name]()


__all__ = ["PREDICTORS", "make_predictor"]
