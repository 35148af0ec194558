"""Errors of the stored forecasts of the last two weeks, and the significance of the skill over last value (M6.5)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.ledger.errors import measured_errors
from slackwater.flows.show.accuracy import Scores, market_scores
from slackwater.flows.show.formats import plural
from slackwater.forecasting.accuracy.intervals import SKILL_COLUMNS, TOO_FEW, skills_by_block
from slackwater.forecasting.accuracy.tables import (
    COMMON,
    POOLED_COLUMNS,
    name_by_source,
    pooled_by,
    scaled_losses,
    shared_scores,
    with_common,
)
from slackwater.forecasting.predictors import FLOOR
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import moment, utc_index

#: Period over which forecasts are compared, and the lead times in the table of a turn.
RECENT = pd.Timedelta(days=14)
STEPS = (1, 4, 12)
#: Key of an error row, apart from the time of measurement.
ROW: Final = ("market", "source", "variable", "model", "step")

#: Keys of an error row in the JSON answer, in order.
ACCURACY_KEYS: Final = (
    "market", "source", "variable", "model", "step", "n", "mae", "rmse", "mase", "pinball",
    "skill_mae", "skill_pinball", "coverage_80", "brier", "fallback_share", "scale", "skill_low", "skill_high", "days", "verdict",
)  # fmt: skip


def measured_window(settings: Settings) -> pd.Timedelta:
    """Return the period over which a turn measures errors."""
    return max(1, settings.measured_origins) * pd.Timedelta(minutes=settings.step_minutes)


def recent_rows(store: Store, at: pd.Timestamp, *, window: pd.Timedelta) -> pd.DataFrame:
    """Return the errors measured in the two weeks up to ``at``, by time, market, variable, model and lead time.

    Column ``day`` is the day of measurement. Every turn measures the ``window`` of origins before it; only
    turns that are at least ``window`` apart are used, so that no forecast counts twice. Losses compared with
    last value (`COMMON`) come from the same measurement. The table is empty if nothing was measured.
    """
    parts = [
        measured_errors(store, time).assign(day=time.floor("D"))
        for time in _measured_times(store, at, window)
    ]
    # Two sources of the same market are each compared with their own last value.
    parts = [with_common(name_by_source(part)).assign(market=part["market"]) for part in parts if len(part)]
    if not parts:
        none = measured_errors(store, None)
        return none.reindex(columns=[*none.columns, "day", *COMMON])
    return pd.concat(parts, ignore_index=True)


def errors_of(rows: pd.DataFrame, *, steps: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return the errors per variable, model and lead time of rows as `recent_rows` returns them, pooled over markets.

    ``skill_pinball`` is the share of last value's pinball loss that the model saves, with the ends
    of its 95 % interval over days and their `slackwater.forecasting.accuracy.intervals.verdict`. ``steps`` are
    the requested lead times, None for all.
    """
    rows = rows if steps is None else rows[rows["step"].isin(list(steps))]
    if rows.empty:
        return []
    found = _pool_errors(rows, ["variable", "model", "step"])
    floor = {(row["variable"], row["step"]): row["mae"] for row in _records(found) if row["model"] == FLOOR}
    table = [_row(row, floor.get((row["variable"], row["step"]), math.nan)) for row in _records(found)]
    return sorted(table, key=lambda row: (row["variable"], row["step"], row["model"]))


def market_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return mean errors and skill per market, source, variable, model and lead time of the rows of `recent_rows`."""
    return _pool_errors(rows, list(ROW))


def accuracy_rows(accuracy: pd.DataFrame) -> list[dict[str, Any]]:
    """Return error rows as plain values, with None for undefined values."""
    if accuracy.empty:
        return []
    keys = [key for key in ACCURACY_KEYS if key in accuracy.columns]
    rows: list[dict[str, Any]] = json.loads(accuracy[keys].to_json(orient="records", double_precision=6))
    return rows


def _pool_errors(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return mean errors by ``keys``, and the skill over last value with days as blocks."""
    if rows.empty:
        return pd.DataFrame(columns=[*keys, *POOLED_COLUMNS[3:]])
    means = pooled_by(rows, keys).drop(columns=list(SKILL_COLUMNS), errors="ignore").set_index(keys)
    return means.join(skills_by_block(scaled_losses(rows), keys)).reset_index()


def recent_scores(rows: pd.DataFrame, default: str) -> list[Scores]:
    """Return the accuracy of each variable of `recent_rows`, pooled over markets and steps that every model has."""
    rows = by_source(rows[rows["n"] > 0]) if len(rows) else rows
    found = []
    for variable in ("count", "price"):
        of_variable = rows[rows["variable"] == variable] if len(rows) else rows
        if of_variable.empty:
            continue
        shared = shared_scores(of_variable)
        losses = scaled_losses(shared)
        daily = losses.groupby(["model", "day"])[["loss", "n_common"]].sum().reset_index()
        among, markets = of_variable["market"].nunique(), shared["market"].nunique()
        found.append(
            Scores(
                variable=variable,
                default=default,
                pooled=_pool_errors(shared, ["model", "step"]),
                markets=market_scores(
                    of_variable, skills_by_block(scaled_losses(of_variable), ["market", "model"])
                ),
                daily=daily.assign(loss=daily["loss"] / daily["n_common"])[["model", "day", "loss"]],
                note=_pooling_note(among, markets),
            )
        )
    return found


def by_source(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the markets measured in several sources named ``market@source``, each with all columns for pooling."""
    if "source" in rows:
        several = rows.groupby("market")["source"].transform("nunique") > 1
        rows = rows.assign(market=rows["market"].where(~several, name_by_source(rows)["market"]))
    return with_common(rows if "day" in rows else rows.assign(day=0))


def _pooling_note(among: int, markets: int) -> str:
    if not markets:
        return "No market was measured with every model, so errors are not pooled; the table has each market."
    left = among - markets
    return f"Pooled over {plural(markets, 'market')}." + (
        f" Left out: {plural(left, 'market')} where not every model was measured." if left else ""
    )


def _records(table: pd.DataFrame) -> list[dict[Any, Any]]:
    return table.to_dict("records")


def _measured_times(store: Store, at: pd.Timestamp, window: pd.Timedelta) -> list[pd.Timestamp]:
    """Return times at which turns measured errors, at least ``window`` apart, newest first."""
    rows = store.execute(
        "SELECT DISTINCT epoch_us(measured_at) AS us FROM accuracy WHERE measured_at > ? AND measured_at <= ? ORDER BY us DESC",
        [moment(at - RECENT, "at"), moment(at, "at")],
    )
    times: list[pd.Timestamp] = []
    for time in utc_index(np.array([us for (us,) in rows], dtype=np.int64)):
        if not times or times[-1] - time >= window:
            times.append(time)
    return times


def _row(row: dict[Any, Any], floor: float) -> dict[str, Any]:
    decided = row["verdict"] not in ("", TOO_FEW)
    return {
        "variable": str(row["variable"]),
        "model": str(row["model"]),
        "step": int(row["step"]),
        "n": int(row["n"]),
        "days": int(row["days"]),
        "mae": float(row["mae"]),
        "mae_last": None if math.isnan(floor) else float(floor),
        **{name: float(row[name]) if decided else None for name in SKILL_COLUMNS[:3]},
        "verdict": str(row["verdict"]),
    }
