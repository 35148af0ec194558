"""Answers on a turn: its report, the leaderboard, and the recent errors of forecasts."""
