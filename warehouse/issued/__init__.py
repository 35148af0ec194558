"""Forecasts, estimations and decisions as they were issued; never overwritten."""
