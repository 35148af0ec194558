"""Data and charts of forecasts and policies: errors, the leaderboard, and the weights over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.show.blocks import Figure, Notes, Section
from slackwater.flows.show.charts import Axis, lines
from slackwater.flows.show.formats import utc
from slackwater.flows.show.skills import ABOUT_VERDICTS
from slackwater.flows.turn.recent_errors import RECENT, errors_of, market_errors, measured_window, recent_rows
from slackwater.flows.turn.report import (
    LAST_VALUE,
    TITLES,
    accuracy_rows,
    learned,
    market_rows,
    measured_rows,
    model_names,
    movers_section,
    policies_section,
    pooled,
    variable_parts,
    weights_section,
)
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
    return recent_rows(reading.store, at, window=measured_window(reading.turn.settings))


def accuracy_data(reading: Reading, table: pd.DataFrame) -> dict[str, Any]:
    """Return errors by market, variable, model and step and pooled over markets, 80 % coverage, and the times of measurement."""
    return {
        "at": reading.at,
        "measured_at": None if table.empty else pd.Timestamp(table["measured_at"].max()),
        "measured": measured_times(reading),
        "models": sorted(set(table["model"])),
        "coverage_80": {v: coverage(table, v) for v in ("price", "count")},
        "pooled": errors_of(table),
        "accuracy": accuracy_rows(market_errors(table)),
    }


def coverage(table: pd.DataFrame, variable: str) -> list[dict[str, Any]]:
    """Return the share of slots inside the 80 % band by model and lead time; all forecasts of all markets count equally."""
    rows = table[(table["variable"] == variable) & (table["n"] > 0)]
    if rows.empty:
        return []
    (shares,) = pooled(
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
    """Return the leaderboard, the weights after each round (rows) of each policy (columns), the job of each round, and findings."""
    found = learned(reading.turn)
    rounds, after = found.pool.rounds, found.pool.weights_after()
    return {
        "at": reading.at,
        "learner": reading.turn.settings.learner,
        "leaderboard": found.leaderboard,
        "movers": found.movers,
        "policies": list(rounds.names),
        "round_jobs": list(rounds.jobs),
        "weights": np.array(after).reshape(len(after), len(rounds.names)).tolist(),
        "findings": found.findings,
    }


def accuracy_values(data: Mapping[str, Any], table: pd.DataFrame) -> dict[str, Any]:
    """Return the charts of errors, skill and coverage by lead time, and the errors per market."""
    blocks: list[dict[str, Any]] = []
    markets: dict[str, list[dict[str, Any]]] = {}
    if len(table):
        table = measured_rows(table)
        names = model_names(table["model"])
        for variable, rows in data["coverage_80"].items():
            own = table[table["variable"] == variable]
            if len(own):
                parts = variable_parts(own, variable, names)
                cover = _coverage_shown(rows, names, variable)
                blocks.append(
                    {"variable": variable, "title": TITLES[variable], "parts": parts,
                     "figures": [*parts.figures, cover.pop("figure")], "cover": cover}
                )  # fmt: skip
        for row in market_rows(table):
            markets.setdefault(row["market"], []).append(row)
    times = data["measured"]
    place = times.index(data["measured_at"]) if data["measured_at"] in times else None
    return {
        "about": f"Forecasts of the {RECENT.days} days up to {utc(data['measured_at'])}, each compared with what was observed "
        f"later. “Last value” predicts that nothing will change. {ABOUT_VERDICTS}"
        if blocks
        else "",
        "blocks": blocks,
        "markets": list(markets.items()),
        "older": times[place + 1] if place is not None and place + 1 < len(times) else None,
        "newer": times[place - 1] if place else None,
    }


def _coverage_shown(rows: Sequence[Mapping[str, Any]], names: Sequence[str], variable: str) -> dict[str, Any]:
    """Return the coverage chart, and a table of the coverage at the first, middle and last lead time."""
    title, label = "Truth inside the 80 % band, % (80 is right)", f"coverage of the {variable}"
    if not rows:
        why = "Not measured on any market with every model."
        return {
            "figure": Figure(specs=[], label=label, title=title, why=why, width=0),
            "steps": [],
            "rows": [],
        }
    steps = sorted(rows[0]["by_step"])
    shares = {row["model"]: [row["by_step"][step] for step in steps] for row in rows}
    points = [
        {"x": step, "y": 100 * value, "series": model}
        for model, values in shares.items()
        for step, value in zip(steps, values, strict=True)
        if value is not None
    ]
    seen = [80.0, *(point["y"] for point in points)]
    ends = Axis(low=max(0.0, min(70.0, min(seen) - 2.0)), high=min(100.0, max(90.0, max(seen) + 2.0)))
    spec = lines(
        points, [name for name in names if name in shares], order=names, reference=LAST_VALUE, rule=80.0, height=190,
        x=Axis(title="slots ahead", whole=True, zero=False), y=ends,
    )  # fmt: skip
    named = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    return {
        "figure": Figure(specs=[spec], label=label, title=title, width=0),
        "steps": named,
        "rows": [(model, [values[steps.index(step)] for step in named]) for model, values in shares.items()],
    }


def policies_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections on policies, the same as on the page of a turn; none before the first job has ended."""
    rows, movers = data["leaderboard"], data["movers"]
    weights = pd.DataFrame(data["weights"], columns=data["policies"])
    sections = [
        *([policies_section(rows), weights_section(weights, data["round_jobs"])] if rows else []),
        *([movers_section(movers)] if movers else []),
    ]
    found = [Section("Findings", [Notes(data["findings"])], "findings")] if sections else []
    return {"sections": [*sections, *found]}
