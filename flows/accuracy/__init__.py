"""Accuracy report: every forecaster measured on the forecasts that turns issue, compared with last value."""
