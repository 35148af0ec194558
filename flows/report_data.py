"""What the report page shows: plain values, gathered by the flow and drawn by `flows.report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from forecasting.forecast import Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketPanel:
    """One market's recent past and its forecast: ``price`` and ``available`` have shape (slots,), NaN in gaps."""

    title: str
    source: str
    slots: pd.DatetimeIndex
    price: np.ndarray
    available: np.ndarray
    on_demand_usd: float
    capacity: int
    forecast: Forecast | None
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """One turn, ready to be drawn.

    ``decisions``, ``leaderboard`` and ``ingested`` are as in the JSON answer of ``slackwater run``. ``accuracy`` is a
    long table with columns market, variable ("price" | "count"), model, step (1-based), n, mae, rmse, mase, pinball,
    skill_mae, skill_pinball, coverage_80, brier, fallback_share. ``weights`` has one row per round (in order) and one
    column per policy, each row summing to 1; ``round_jobs`` names the job of each round. ``simulated`` says that the
    market is simulated; ``notes`` are findings worth a sentence.
    """

    at: pd.Timestamp
    run_id: str
    simulated: bool
    decisions: list[dict[str, Any]]
    accuracy: pd.DataFrame
    leaderboard: list[dict[str, Any]]
    weights: pd.DataFrame
    round_jobs: list[str]
    ingested: dict[str, dict[str, int]]
    panels: list[MarketPanel]
    notes: list[str]
