"""The page itself: what the template is given, and writing it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from flows.ledger.runs import STAGES
from flows.monitoring.completeness import STATES, told_span
from flows.monitoring.status import Status
from flows.monitoring.strips import LETTERS, MEANINGS, css_name, market_strips, ticks
from flows.show.drawing import PALETTE
from flows.show.formats import MISSING
from flows.show.page import render_template, write_html
from flows.show.table import rows_of


def write_status_page(found: Status, path: Path) -> Path:
    """Write the page of a status; returns ``path``. Raises `InputError` if it cannot be written."""
    return write_html(render_status_page(found), path, option="--html")


def render_status_page(found: Status) -> str:
    """The page as text: complete in itself, every name escaped."""
    done = found.completeness
    return render_template(
        "status.html",
        {
            "palette": PALETTE,
            "at": f"{found.at:%Y-%m-%d %H:%M}",
            "first": f"{done.start:%Y-%m-%d %H:%M}",
            "last": f"{done.end:%Y-%m-%d %H:%M}",
            "step": told_span(done.step),
            "note": found.note,
            "sentence": found.sentence(),
            "well": found.exit_code == 0,
            "markets": market_strips(done) if len(done.frame) else [],
            "ticks": ticks(done),
            "legend": [
                {"state": state, "css": css_name(state), "letter": LETTERS[state], "meaning": MEANINGS[state]}
                for state in STATES
            ],
            "summary": _summary(found),
            "freshness": [_fresh(row) for row in rows_of(found.freshness)],
            "feeds": [_feed(row) for row in rows_of(found.feeds)],
            "alarms": [
                {"kind": one.kind, "subject": one.subject, "severity": one.severity, "since": _time(one.since),
                 "text": one.text}
                for one in found.alarms
            ],
        },
    )  # fmt: skip


def _summary(found: Status) -> list[dict[str, Any]]:
    """Slots by stage and state over all markets."""
    counts = found.completeness.frame.groupby(["stage", "state"]).size()
    return [
        {"stage": stage, "counts": [int(counts.get((stage, state), 0)) for state in STATES]}
        for stage in STAGES
    ]


def _time(at: Any) -> str:
    return MISSING if pd.isna(at) else f"{at:%Y-%m-%d %H:%M}"


def _span(span: Any) -> str:
    return MISSING if pd.isna(span) else told_span(span)


def _fresh(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "market": row["market"],
        "source": row["source"],
        "kind": row["kind"],
        "newest": _time(row["newest"]),
        "age": _span(row["age"]),
        "every": "on change" if pd.isna(row["every"]) else told_span(row["every"]),
        "expected": _time(row["expected_by"]),
        "late": MISSING if pd.isna(row["late_by"]) or not row["late_by"] else told_span(row["late_by"]),
        "stale": bool(row["stale"]),
    }


def _feed(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "feed": row["feed"],
        "fetched": _time(row["fetched"]),
        "status": row["status"],
        "added": row["added"],
        "rejected": row["rejected"],
        "every": _span(row["every"]),
        "expected": _time(row["expected_by"]),
        "late": MISSING if pd.isna(row["late_by"]) or not row["late_by"] else told_span(row["late_by"]),
        "reason": row["reason"],
    }


# ---
# The page of a pipeline's status: the completeness map drawn, freshness, alarms; one file that loads nothing.

__all__ = ["render_status_page", "write_status_page"]
