"""What the report page shows: plain values, gathered by the flow and drawn by `flows.turn.page`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from flows.show.blocks import Banner, Block, Notes, Page, Section
from flows.show.formats import utc
from flows.show.page import write_page
from flows.turn.page_accuracy import accuracy_section
from flows.turn.page_policies import policies_section, weights_section
from flows.turn.page_sections import decisions_section, ingest_section, markets_section, slot_length
from flows.turn.panels import MarketPanel


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


def report_page(data: ReportData) -> Page:
    """The page of a turn: sections decisions, markets, accuracy, policies, weights, ingest and notes.

    No clock is read, so that the same data give the same page. Raises `InputError` if the accuracy table or the weights break the
    contract of `ReportData`.
    """
    simulated = Banner(
        "Simulated market.",
        "The prices and instance counts on this page come from a random generator, not from any provider. Do not rent by them.",
    )
    notes: Block = Notes(data.notes) if data.notes else "Nothing out of the ordinary."
    return Page(
        title="Slackwater: GPUs to hold in the next slot",
        short=f"report, {utc(data.at)}",
        about=f"As of {utc(data.at)}, run {data.run_id}. All times are UTC, all prices and costs in USD.",
        banner=simulated if data.simulated else None,
        blocks=[
            decisions_section(data.decisions),
            markets_section(data.panels, data.decisions, data.at),
            accuracy_section(data.accuracy, slot=slot_length(data.panels)),
            policies_section(data.leaderboard),
            weights_section(data.weights, data.round_jobs),
            ingest_section(data.ingested),
            Section("Notes", [notes], "notes"),
        ],
    )


def write_report(data: ReportData, path: Path) -> Path:
    """Write the page of a turn so that a reader sees the old one or the new one, never half of one; returns ``path``.

    Folders are made. Raises `InputError` if the file cannot be written.
    """
    return write_page(report_page(data), path, option="--out")
