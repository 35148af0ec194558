"""What the report page shows: plain values, gathered by the flow and drawn by `flows.turn.page`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from flows.show.drawing import PALETTE, house_style
from flows.show.drawings import MarketPanel
from flows.show.format import utc
from flows.show.page import render_template, write_html
from flows.turn.page_accuracy import accuracy_view
from flows.turn.page_policies import leaderboard_view, weights_view
from flows.turn.page_sections import decisions_view, ingest_view, line_swatch, markets_view, slot_length


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


# ---
# The report page: one HTML file that needs no network, and the same bytes for the same turn.


def render_report(data: ReportData) -> str:
    """The whole page as text: sections decisions, markets, accuracy, policies, weights, ingest and notes.

    Every name, reason and note is escaped. No clock is read, so that the same data give the same bytes. Raises `InputError` if the
    accuracy table or the weights break the contract of `ReportData`.
    """
    with house_style():  # set once for all drawings
        return render_template(
            "report.html",
            {
                "at": utc(data.at),
                "run_id": data.run_id,
                "simulated": data.simulated,
                "palette": PALETTE,
                "decisions": decisions_view(data.decisions),
                "slot": slot_length(data.panels),
                "markets": markets_view(data.panels, data.decisions, data.at),
                "accuracy": accuracy_view(data.accuracy),
                "board": leaderboard_view(data.leaderboard),
                "weights": weights_view(data.weights, data.round_jobs),
                "ingest": ingest_view(data.ingested),
                "notes": data.notes,
                "swatch": line_swatch,
            },
        )


def write_report(data: ReportData, path: Path) -> Path:
    """Render ``data`` to ``path`` so that a reader sees the old page or the new one, never half of one; returns ``path``.

    Folders are made. Raises `InputError` if the file cannot be written.
    """
    return write_html(render_report(data), path, option="--out")
