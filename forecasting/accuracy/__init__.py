"""Accuracy of forecasts: losses, their sums, tables and pooling (M6.5)."""
