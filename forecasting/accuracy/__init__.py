"""Losses, sums of them, tables and pooling: how right forecasts were (M6.5)."""
