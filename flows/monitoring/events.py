"""Alarms as Prefect events, so that automations can react; the only part of the alarms that needs the engine."""

from __future__ import annotations

from prefect.events import emit_event

from flows.monitoring.alarms import Alarm, Settled, alarms_of, settle_alarms
from flows.monitoring.completeness import followed_markets, window_of
from flows.turn.context import Turn
from warehouse.errors import SlackwaterError

#: Names of the events.
RAISED, CLEARED = "slackwater.alarm.raised", "slackwater.alarm.cleared"


def raise_alarms(turn: Turn) -> Settled:
    """Look for alarms at the end of a turn, keep what changed, and emit an event for each; the turn's work stands whatever comes.

    A turn that takes every market at the end of its own record looks at histories: nothing in them is late, so it raises nothing.
    """
    if turn.own_end:
        return Settled()
    try:
        window = window_of(turn.store, turn.settings, start=None, end=None, at=turn.at)
        markets = followed_markets(turn.store, turn.settings, window)
        found = alarms_of(turn.store, turn.settings, markets, at=turn.at)
        settled = settle_alarms(turn.store, found, at=turn.at)
    except SlackwaterError as error:
        turn.say(f"alarms could not be looked for: {error}")
        return Settled()
    emit_alarms(settled, run=turn.run_id)
    return settled


def emit_alarms(settled: Settled, *, run: str = "") -> None:
    """An event for every alarm raised or cleared. They were kept before: one that is lost on its way is still in the table."""
    for name, alarms in ((RAISED, settled.raised), (CLEARED, settled.cleared)):
        for alarm in alarms:
            emit_event(event=name, resource=resource_of(alarm), payload=payload_of(alarm, run=run))


def resource_of(alarm: Alarm) -> dict[str, str]:
    """What an event is about: ``slackwater.market.<key>``, or ``slackwater.<subject>`` where it is about no market.

    Kind and severity are labels of the resource, so that a trigger can match them.
    """
    about = f"market.{alarm.market}" if alarm.market else alarm.subject.replace(" ", ".")
    return {
        "prefect.resource.id": f"slackwater.{about}",
        "prefect.resource.name": alarm.subject,
        "slackwater.alarm.kind": alarm.kind,
        "slackwater.alarm.severity": alarm.severity,
    }


def payload_of(alarm: Alarm, *, run: str) -> dict[str, str]:
    """The alarm in full."""
    return {
        "kind": alarm.kind,
        "subject": alarm.subject,
        "severity": alarm.severity,
        "since": alarm.since.isoformat(),
        "text": alarm.text,
        "run": run,
    }
