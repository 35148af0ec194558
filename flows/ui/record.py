"""Accuracy of recent forecasts and the leaderboard of policies, as data and as blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pandas as pd

from slackwater.flows.show.accuracy import Scores, accuracy_blocks
from slackwater.flows.show.formats import utc
from slackwater.flows.turn.leaderboard import leaderboard_blocks, learned
from slackwater.flows.turn.recent_errors import (
    RECENT,
    errors_of,
    market_errors,
    measured_window,
    recent_rows,
    recent_scores,
)
from slackwater.flows.turn.report import accuracy_rows
from slackwater.flows.ui.reading import Reading

#: Number of measurements that can be selected.
MOST_MEASURED: Final = 96


def measured_times(reading: Reading) -> list[pd.Timestamp]:
    """Return the logical times at which errors were measured, newest first."""
    rows = reading.store.execute(
        "SELECT DISTINCT measured_at FROM accuracy ORDER BY measured_at DESC LIMIT ?", [MOST_MEASURED]
    )
    return [pd.Timestamp(row[0]).tz_convert("UTC") for row in rows]


def accuracy_table(reading: Reading, at: pd.Timestamp | None) -> pd.DataFrame:
    """Return the errors measured in the two weeks up to ``at`` (None: up to the newest measurement); empty if there are none."""
    times = measured_times(reading)
    if at not in times:
        at = times[0] if times else reading.now
    return recent_rows(reading.store, at, window=measured_window(reading.settings))


def accuracy_data(reading: Reading, table: pd.DataFrame) -> dict[str, Any]:
    """Return errors by market, variable, model and step and pooled over markets, 80 % coverage, and the times of measurement."""
    scores = {one.variable: one for one in recent_scores(table, reading.settings.planner)}
    return {
        "at": reading.at,
        "measured_at": None if table.empty else pd.Timestamp(table["measured_at"].max()),
        "measured": measured_times(reading),
        "models": sorted(set(table["model"])),
        "coverage_80": {
            variable: _coverage(scores[variable]) if variable in scores else []
            for variable in ("price", "count")
        },
        "pooled": errors_of(table),
        "accuracy": accuracy_rows(market_errors(table)),
    }


def _coverage(scores: Scores) -> list[dict[str, Any]]:
    """Return the share of observations inside the 80 % interval by model and step."""
    return [
        {"model": model, "by_step": {int(row["step"]): row["coverage_80"] for row in own}}
        for model in sorted(scores.models)
        if (own := scores.of(model))
    ]


def accuracy_values(reading: Reading, data: Mapping[str, Any], table: pd.DataFrame) -> dict[str, Any]:
    """Return the blocks of the accuracy of recent forecasts, and the measurements before and after."""
    scores = recent_scores(table, reading.settings.planner)
    times = data["measured"]
    place = times.index(data["measured_at"]) if data["measured_at"] in times else None
    return {
        "about": f"Forecasts of the {RECENT.days} days up to {utc(data['measured_at'])}, compared with the observations."
        if scores
        else "",
        "blocks": accuracy_blocks(scores) if scores else [],
        "older": times[place + 1] if place is not None and place + 1 < len(times) else None,
        "newer": times[place - 1] if place else None,
    }


def policies_data(reading: Reading) -> dict[str, Any]:
    """Return the leaderboard, the weights after each round (rows) of each policy (columns), the job of each round, and findings."""
    found = learned(reading.turn)
    return {
        "at": reading.at,
        "learner": found.learner,
        "leaderboard": found.leaderboard,
        "movers": found.movers,
        "policies": list(found.policies),
        "round_jobs": list(found.round_jobs),
        "weights": [list(row) for row in found.weights],
        "findings": found.findings,
    }


def policies_values(reading: Reading) -> dict[str, Any]:
    """Return the blocks of the leaderboard; none before the first job has ended."""
    found = learned(reading.turn)
    return {"blocks": leaderboard_blocks(found) if found.leaderboard or found.movers else []}
