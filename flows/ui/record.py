"""The record of forecasts and policies as plain values: errors by model and step, the leaderboard, the weights over rounds."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd

from flows.ledger.records import measured_errors
from flows.turn.page import pooled
from flows.turn.report import accuracy_rows, learned
from flows.ui.reading import Reading

#: Turns whose measured errors can be chosen.
MOST_MEASURED: Final = 96


def measured_times(reading: Reading) -> list[pd.Timestamp]:
    """Logical times at which errors were measured, the newest first."""
    rows = reading.store.execute(
        "SELECT DISTINCT measured_at FROM accuracy ORDER BY measured_at DESC LIMIT ?", [MOST_MEASURED]
    )
    return [pd.Timestamp(row[0]).tz_convert("UTC") for row in rows]


def accuracy_table(reading: Reading, at: pd.Timestamp | None) -> pd.DataFrame:
    """The errors measured at ``at``, the newest ones if None; without rows if there are none."""
    times = measured_times(reading)
    if at not in times:
        at = times[0] if times else None
    return measured_errors(reading.store, at)


def accuracy_data(reading: Reading, table: pd.DataFrame) -> dict[str, Any]:
    """Errors by market, variable, model and step, the coverage of the 80 % band pooled over markets, and the times measured."""
    return {
        "at": reading.at,
        "measured_at": None if table.empty else pd.Timestamp(table["measured_at"].iloc[0]),
        "measured": measured_times(reading),
        "models": sorted(set(table["model"])),
        "coverage_80": {v: coverage(table, v) for v in ("price", "count")},
        "accuracy": accuracy_rows(table),
    }


def coverage(table: pd.DataFrame, variable: str) -> list[dict[str, Any]]:
    """Share of slots inside the 80 % band by model and step ahead, every forecast of every market counting the same."""
    rows = table[(table["variable"] == variable) & (table["n"] > 0)]
    if rows.empty:
        return []
    shares = pooled(
        rows.assign(market=rows["market"].astype(str) + "@" + rows["source"].astype(str)), "coverage_80"
    )
    return [
        {
            "model": str(model),
            "by_step": {int(step): _number(shares.loc[step, model]) for step in shares.index},
        }
        for model in shares.columns
    ]


def _number(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def policies_data(reading: Reading) -> dict[str, Any]:
    """The leaderboard, the weights after each round (rows) of each policy (columns), the job of each round, and findings."""
    found = learned(reading.turn)
    rounds, after = found.pool.rounds, found.weights_after()
    return {
        "at": reading.at,
        "learner": reading.turn.settings.learner,
        "leaderboard": found.leaderboard,
        "policies": list(rounds.names),
        "round_jobs": list(rounds.jobs),
        "weights": np.array(after).reshape(len(after), len(rounds.names)).tolist(),
        "findings": found.findings,
    }
