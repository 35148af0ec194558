"""The parts of monitoring that need the engine: alarms as Prefect events, and the flow ``status``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event
from pydantic import Field

from slackwater.flows.clock import now
from slackwater.flows.command import DEFAULT_DB, say
from slackwater.flows.config import read_settings
from slackwater.flows.monitoring.alarms import Alarm, AlarmChanges, settle_alarms, standing_alarms
from slackwater.flows.monitoring.alerts import send_alerts
from slackwater.flows.monitoring.status import status_of, status_page
from slackwater.flows.runs import (
    Db,
    SettingsFile,
    artifact_key,
    has_warehouse,
    named_flow,
    run_name,
    utc_time,
)
from slackwater.flows.show.formats import plain
from slackwater.flows.show.page import write_page
from slackwater.warehouse.store.connection import open_reader, open_store

RAISED, CLEARED = "slackwater.alarm.raised", "slackwater.alarm.cleared"  # Names of the events


def emit_alarms(settled: AlarmChanges, *, run: str = "") -> None:
    """Emit an event for every alarm raised or cleared; the alarms are already stored, so a lost event loses no alarm."""
    for name, alarms in ((RAISED, settled.raised), (CLEARED, settled.cleared)):
        for alarm in alarms:
            emit_event(event=name, resource=resource_of(alarm), payload=payload_of(alarm, run=run))


def resource_of(alarm: Alarm) -> dict[str, str]:
    """Return the Prefect resource of an event, with kind and severity as labels that a trigger can match."""
    about = f"market.{alarm.market}" if alarm.market else alarm.subject.replace(" ", ".")
    return {
        "prefect.resource.id": f"slackwater.{about}",
        "prefect.resource.name": alarm.subject,
        "slackwater.alarm.kind": alarm.kind,
        "slackwater.alarm.severity": alarm.severity,
    }


def payload_of(alarm: Alarm, *, run: str) -> dict[str, str]:
    """Return the content of the event: the alarm and the run."""
    return {
        "kind": alarm.kind,
        "subject": alarm.subject,
        "severity": alarm.severity,
        "since": alarm.since.isoformat(),
        "text": alarm.text,
        "run": run,
    }


@named_flow("status", run_name=run_name("status", slots=False), timeout_seconds=600)
def status(
    db: Db = DEFAULT_DB,
    at: Annotated[datetime | None, Field(description="Time of the status; default: now.")] = None,
    settings: SettingsFile = None,
    html: Annotated[Path | None, Field(description="HTML page to write; default: none.")] = None,
) -> dict[str, Any]:
    """Report the status at ``at`` (default: now) like ``slackwater status``; store and emit alarms,
    and write a page to ``html``. Before the first turn the answer is empty.

    The warehouse is opened for reading, so that a running turn is not disturbed, and for writing
    only if an alarm has changed or alerts are due.
    """
    chosen = read_settings(settings)
    if not has_warehouse(db):
        return {}
    when = now() if at is None else utc_time(at)
    with open_reader(db) as reader:
        found = status_of(reader, chosen, at=when)
    if (
        any(alarm.raised_at is None for alarm in found.alarms)
        or found.gone
        or (found.alarms and chosen.alerts)
    ):
        with open_store(db, say=say) as store:
            emit_alarms(settle_alarms(store, found.alarms, at=when))
            send_alerts(store, chosen.alerts, standing_alarms(store, at=when), at=when, say=say)
    say(found.sentence())
    if html is not None:
        write_page(status_page(found), html, option="--html")
    create_markdown_artifact(
        key=artifact_key(db, "status"),
        markdown="\n".join(
            [f"**{found.sentence()}**", "", *(f"* {alarm.kind}: {alarm.text}" for alarm in found.alarms)]
        ),
        description=f"status at {when:%Y-%m-%d %H:%M} UTC",
    )
    answer: dict[str, Any] = plain(found.answer())
    return answer
