"""The flow ``status``: look, keep the alarms that changed, emit them as events, write the page. For a schedule of its own."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from flows.clock import now
from flows.command.session import DEFAULT_DB
from flows.config import read_settings
from flows.monitoring.alarms import settle_alarms
from flows.monitoring.events import emit_alarms
from flows.monitoring.page import status_page
from flows.monitoring.status import status_of
from flows.show.formats import plain
from flows.show.page import write_page
from warehouse.store.connection import open_reader, open_store


@flow(name="status", timeout_seconds=600)
def status(
    db: Path = DEFAULT_DB,
    at: datetime | None = None,
    settings: Path | None = None,
    html: Path | None = None,
) -> dict[str, Any]:
    """What ``slackwater status`` shows, at ``at`` or now; alarms are kept and emitted, and a page is written if ``html`` names one.

    It looks as a reader does, so a turn that is under way is not disturbed; only if an alarm has changed does it write.
    """
    import pandas as pd

    chosen = read_settings(settings)
    when = now() if at is None else pd.Timestamp(at)
    when = when.tz_localize("UTC") if when.tzinfo is None else when.tz_convert("UTC")
    with open_reader(db) as reader:
        found = status_of(reader, chosen, at=when)
    if any(one.raised_at is None for one in found.alarms) or found.gone:
        with open_store(db) as store:
            emit_alarms(settle_alarms(store, found.alarms, at=when))
    if html is not None:
        write_page(status_page(found), html, option="--html")
    create_markdown_artifact(
        key="slackwater-status",
        markdown="\n".join(
            [f"**{found.sentence()}**", "", *(f"* {one.kind}: {one.text}" for one in found.alarms)]
        ),
        description=f"status at {when:%Y-%m-%d %H:%M} UTC",
    )
    answer: dict[str, Any] = plain(found.answer())
    return answer
