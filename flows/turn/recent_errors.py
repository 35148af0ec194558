"""Errors of the stored forecasts of the last two weeks, pooled over markets, with how sure the comparison is (M6.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from flows.ledger.records import measured_errors
from forecasting.accuracy.tables import block_interval, sourced, with_common
from forecasting.predictors import FLOOR
from warehouse.store.connection import Store
from warehouse.times import moment, utc_index

#: How far back forecasts are compared, and the slots ahead that are shown.
RECENT = pd.Timedelta(days=14)
STEPS = (1, 4, 12)
#: Days below which nothing is said of which model is better.
LEAST_DAYS = 3


def recent_errors(
    store: Store, at: pd.Timestamp, *, window: pd.Timedelta, steps: Sequence[int] = STEPS
) -> list[dict[str, Any]]:
    """Return the errors per variable, model and lead time of forecasts issued in the two weeks before ``at``.

    Every turn has measured the ``window`` of origins before it; the windows of turns that far apart are taken, so that no forecast
    counts twice. ``skill_pinball`` is the share of last value's pinball loss that the model saves, with the ends of its 95 %
    interval over days; ``verdict`` is better, worse, even (the interval holds 0) or too few (fewer than `LEAST_DAYS` days).
    """
    parts = [measured_errors(store, time).assign(day=time.floor("D")) for time in _apart(store, at, window)]
    parts = [part for part in parts if len(part)]
    if not parts:
        return []
    rows = pd.concat([with_common(sourced(part)) for part in parts], ignore_index=True)
    rows = rows[rows["step"].isin(list(steps))]
    last = rows[rows["model"] == FLOOR].groupby(["variable", "step"])
    floor = {key: _mean(own, "mae") for key, own in last}
    found = [
        _row(str(variable), str(model), int(str(step)), own, floor.get((variable, step), math.nan))
        for (variable, model, step), own in rows.groupby(["variable", "model", "step"])
    ]
    return sorted(found, key=lambda row: (row["variable"], row["step"], row["model"]))


def _apart(store: Store, at: pd.Timestamp, window: pd.Timedelta) -> list[pd.Timestamp]:
    """Times at which turns measured errors, at least ``window`` apart, the newest first."""
    rows = store.execute(
        "SELECT DISTINCT epoch_us(measured_at) AS us FROM accuracy WHERE measured_at > ? AND measured_at <= ? ORDER BY us DESC",
        [moment(at - RECENT, "at"), moment(at, "at")],
    )
    times: list[pd.Timestamp] = []
    for time in utc_index(np.array([us for (us,) in rows], dtype=np.int64)):
        if not times or times[-1] - time >= window:
            times.append(time)
    return times


def _mean(rows: pd.DataFrame, name: str) -> float:
    weight = rows["n"].astype(float)
    return float((rows[name].astype(float) * weight).sum() / weight.sum())


def _row(variable: str, model: str, step: int, rows: pd.DataFrame, floor: float) -> dict[str, Any]:
    weight = rows["n_common"].astype(float) / rows["scale"].astype(float)
    compared = rows["pinball_floor"].notna() & rows["pinball_common"].notna() & weight.notna()
    losses = pd.DataFrame(
        {
            "day": rows["day"],
            "own": (rows["pinball_common"] * weight).where(compared, 0.0),
            "floor": (rows["pinball_floor"] * weight).where(compared, 0.0),
        }
    )
    days = losses.groupby("day")[["own", "floor"]].sum()
    own, base = days["own"].to_numpy()[:, None], days["floor"].to_numpy()[:, None]
    low, high = (float(end[0]) for end in block_interval(own, base))
    enough = len(days) >= LEAST_DAYS and math.isfinite(low) and model != FLOOR
    total = float(base.sum())
    skill = 1.0 - float(own.sum()) / total if enough and total > 0 else None
    return {
        "variable": variable,
        "model": model,
        "step": step,
        "n": int(rows["n"].sum()),
        "days": len(days),
        "mae": _mean(rows, "mae"),
        "mae_last": None if math.isnan(floor) else floor,
        "skill_pinball": skill,
        "skill_low": low if skill is not None else None,
        "skill_high": high if skill is not None else None,
        "verdict": _verdict(low, high) if skill is not None else "" if model == FLOOR else "too few",
    }


def _verdict(low: float, high: float) -> str:
    return "better" if low > 0 else "worse" if high < 0 else "even"


def compared(row: dict[str, Any]) -> str:
    """How a model compares with last value, in a few words.

    >>> compared({"verdict": "better", "skill_pinball": 0.21, "skill_low": 0.1, "skill_high": 0.3, "days": 9})
    '21 % better (10 to 30 %)'
    >>> compared({"verdict": "even", "skill_pinball": -0.02, "skill_low": -0.1, "skill_high": 0.06, "days": 9})
    'even (-10 to 6 %)'
    >>> compared({"verdict": "too few", "days": 1})
    'too few: 1 day'
    """
    if not row["verdict"]:
        return ""
    if row["verdict"] == "too few":
        return f"too few: {row['days']} day{'s' if row['days'] != 1 else ''}"
    span = f"({100 * row['skill_low']:.0f} to {100 * row['skill_high']:.0f} %)"
    if row["verdict"] == "even":
        return f"even {span}"
    return f"{100 * abs(row['skill_pinball']):.0f} % {row['verdict']} {span}"
