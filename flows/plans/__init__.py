"""Queries outside turns: forecasts, plans and replays that are computed for an answer and not stored."""
