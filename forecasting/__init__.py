"""History in, forecast out; no storage, no solver."""

from forecasting.forecast import LEVELS, Forecast

__all__ = ["LEVELS", "Forecast"]
