"""The report page: one HTML file that needs no network, and the same bytes for the same turn."""

from __future__ import annotations

from pathlib import Path

from flows.html_file import render_template, write_html
from flows.inline_svg import PALETTE, house_style
from flows.report_accuracy import accuracy_view
from flows.report_data import ReportData
from flows.report_format import utc
from flows.report_policies import leaderboard_view, weights_view
from flows.report_sections import (
    decisions_view,
    ingest_view,
    line_swatch,
    markets_view,
    slot_length,
)


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
