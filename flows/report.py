"""The report page: one HTML file that needs no network, and the same bytes for the same turn."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

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
from warehouse.errors import InputError


def render_report(data: ReportData) -> str:
    """The whole page as text: sections decisions, markets, accuracy, policies, weights, ingest and notes.

    Every name, reason and note is escaped. No clock is read, so that the same data give the same bytes. Raises `InputError` if the
    accuracy table or the weights break the contract of `ReportData`.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("flows", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawing"] = Markup  # the drawings are our own markup, escaped where they were made
    environment.globals["swatch"] = line_swatch
    with house_style():  # set once for all drawings
        return environment.get_template("report.html").render(
            at=utc(data.at),
            run_id=data.run_id,
            simulated=data.simulated,
            palette=PALETTE,
            decisions=decisions_view(data.decisions),
            slot=slot_length(data.panels),
            markets=markets_view(data.panels, data.decisions, data.at),
            accuracy=accuracy_view(data.accuracy),
            board=leaderboard_view(data.leaderboard),
            weights=weights_view(data.weights, data.round_jobs),
            ingest=ingest_view(data.ingested),
            notes=data.notes,
        )


def write_report(data: ReportData, path: Path) -> Path:
    """Render ``data`` to ``path`` so that a reader sees the old page or the new one, never half of one; returns ``path``.

    Folders are made. Raises `InputError` if the file cannot be written.
    """
    page = render_report(data)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(page)
            os.chmod(temporary, 0o644)  # mkstemp's own mode would hide the page from a web server
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(
            f"report {path}: {error.strerror}",
            expected="a writable file",
            remedy="choose another path with --out",
        ) from error
    return path
