"""The answers on recent forecasts and on the policies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pandas as pd

from slackwater.flows.command import Answer
from slackwater.flows.show.accuracy import Scores, accuracy_blocks
from slackwater.flows.show.formats import utc
from slackwater.flows.turn.report.leaderboard import leaderboard_answer, policy_results, read_board_facts
from slackwater.flows.turn.report.recent_errors import (
    RECENT,
    accuracy_rows,
    errors_of,
    market_errors,
    measured_window,
    recent_rows,
    recent_scores,
)
from slackwater.flows.ui.reading import Reading, UiPage, page_of_answer

MOST_MEASURED: Final = 96  # Number of measurements that can be selected


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


def accuracy(reading: Reading, at: pd.Timestamp | None) -> UiPage:
    """Return errors by market, variable, model and step and pooled over markets, 80 % coverage, and the times of measurement."""
    table, times = accuracy_table(reading, at), measured_times(reading)
    scores = recent_scores(table, reading.settings.planner)
    by_variable = {score.variable: score for score in scores}
    when = None if table.empty else pd.Timestamp(table["measured_at"].max())
    value = {
        "at": reading.at,
        "measured_at": when,
        "measured": times,
        "models": sorted(set(table["model"])),
        "coverage_80": {
            variable: _coverage(by_variable[variable]) if variable in by_variable else []
            for variable in ("price", "count")
        },
        "pooled": errors_of(table),
        "accuracy": accuracy_rows(market_errors(table)),
    }
    none = "No forecast has been measured yet: the predicted slots are in the future, or there is no turn yet (`slackwater run`)."
    about = f"Forecasts of the {RECENT.days} days up to {utc(when)}, compared with the observations."
    answer = Answer(
        title="Forecast accuracy",
        value=value,
        about=about if scores else "",
        blocks=accuracy_blocks(scores) if scores else [none],
    )
    place = times.index(when) if when in times else None
    return page_of_answer(
        answer,
        empty=not scores,
        older=times[place + 1] if place is not None and place + 1 < len(times) else None,
        newer=times[place - 1] if place else None,
    )


def _coverage(scores: Scores) -> list[dict[str, Any]]:
    """Return the share of observations inside the 80 % interval by model and step."""
    return [
        {"model": model, "by_step": {int(row["step"]): row["coverage_80"] for row in scores_of_model}}
        for model in sorted(scores.models)
        if (scores_of_model := scores.of(model))
    ]


def policies(reading: Reading) -> UiPage:
    """Return the leaderboard, the weights after each round (rows) of each policy (columns), the job of each round, and findings."""
    found = policy_results(reading.turn, read_board_facts(reading.turn))
    value = {
        "at": reading.at,
        "learner": found.learner,
        "leaderboard": found.leaderboard,
        "movers": found.movers,
        "policies": list(found.policies),
        "round_jobs": list(found.round_jobs),
        "weights": [list(row) for row in found.weights],
        "findings": found.findings,
    }
    empty = not found.leaderboard and not found.movers
    return page_of_answer(replace(leaderboard_answer(found), value=value), empty=empty)
