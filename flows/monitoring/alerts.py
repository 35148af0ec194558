"""Notification of people about alarms by Slack, webhook, mail or command, once per raised alarm."""

from __future__ import annotations

import json
import os
import smtplib
import ssl
import subprocess
from collections.abc import Callable, Mapping, Sequence
from email.message import EmailMessage
from urllib.parse import unquote, urlsplit

import pandas as pd

from slackwater.flows.config import Alert, Sink
from slackwater.flows.delivery import (
    FAILED,
    GIVEN_UP,
    SENT,
    CannotSendError,
    Delivery,
    DeliveryResult,
    known_deliveries,
    post,
    remember,
    variable_in,
)
from slackwater.flows.ledger.decisions import program_version
from slackwater.flows.monitoring.alarms import Alarm, AlarmChanges, alarms_of, settle_alarms, standing_alarms
from slackwater.flows.monitoring.completeness import followed_markets, window_of
from slackwater.flows.turn.context import Turn
from slackwater.warehouse.errors import SlackwaterError
from slackwater.warehouse.store.connection import Store

SCHEMA = "slackwater.alert/1"  # Name and version of the JSON sent to webhooks and commands
#: Prefix of alert names in the table of deliveries, so that they cannot collide with names of sinks.
PREFIX = "alert:"
LOOK_BACK = pd.Timedelta(hours=24)  # Time for which failed notifications are retried


def raise_alarms(turn: Turn, *, emit: Callable[[AlarmChanges], None] = lambda _: None) -> AlarmChanges:
    """Check for alarms at the end of a turn, store and ``emit`` the changes, and send the alerts.

    Errors do not affect the turn. A turn that takes every market at the end of its own record reads
    histories, in which nothing is late, so it raises no alarms.
    """
    if turn.own_end:
        return AlarmChanges()
    try:
        window = window_of(turn.store, turn.settings, start=None, end=None, at=turn.at)
        markets = followed_markets(turn.store, turn.settings, window)
        found = alarms_of(turn.store, turn.settings, markets, at=turn.at)
        settled = settle_alarms(turn.store, found, at=turn.at)
    except SlackwaterError as error:
        turn.say(f"alarms could not be checked: {error}")
        return AlarmChanges()
    emit(settled)
    send_alerts(
        turn.store, turn.settings.alerts, standing_alarms(turn.store, at=turn.at), at=turn.at, say=turn.say
    )
    return settled


def send_alerts(
    store: Store,
    alerts: Sequence[Alert],
    alarms: Sequence[Alarm],
    *,
    at: pd.Timestamp,
    say: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
) -> list[Delivery]:
    """Send the active ``alarms`` to every alert that subscribes to them and has not received them yet.

    Each delivery is recorded immediately, by kind, subject and time of raising. Failures are reported with
    ``say`` and retried by later checks for a day. An unreachable address raises no exception.
    """
    done: list[Delivery] = []
    for alert in alerts:
        known = known_deliveries(store, {"sink": PREFIX + alert.name})
        for alarm in alarms:
            if alarm.raised_at is None or not alert.wants(alarm.kind, alarm.severity):
                continue
            before = known.get((f"{alarm.kind}: {alarm.subject}", alarm.raised_at))
            if before is not None and before.status != FAILED:
                continue
            answer = _send(alert, alarm, environment)
            old = at - alarm.raised_at > LOOK_BACK
            delivery = Delivery(
                sink=PREFIX + alert.name,
                job=f"{alarm.kind}: {alarm.subject}",
                slot=alarm.raised_at,
                status=SENT if not answer.reason else GIVEN_UP if old else FAILED,
                attempts=(before.attempts if before else 0) + 1,
                reason=answer.reason,
            )
            remember(store, delivery, at)
            done.append(delivery)
            if delivery.status != SENT:
                say(f"alert {alert.name} was not sent: {delivery.reason}")
    return done


def headline(alarm: Alarm) -> str:
    """Return the alarm as a line of text.

    >>> import pandas as pd
    >>> at = pd.Timestamp("2026-03-10T06:00Z")
    >>> headline(Alarm(kind="job missed", subject="job lora", severity="serious", since=at, text="missed: 6 % done"))
    'job lora: missed: 6 % done'
    """
    about = alarm.subject if alarm.subject.startswith("job ") else f"{alarm.kind}, {alarm.subject}"
    return f"{about}: {alarm.text}"


def payload(alarm: Alarm) -> dict[str, str]:
    """Return the JSON sent to webhooks and commands."""
    return {
        "schema": SCHEMA,
        "program": "slackwater",
        "version": program_version(),
        "kind": alarm.kind,
        "subject": alarm.subject,
        "severity": alarm.severity,
        "since": alarm.since.isoformat(),
        "raised_at": "" if alarm.raised_at is None else alarm.raised_at.isoformat(),
        "text": alarm.text,
        "headline": headline(alarm),
    }


def _send(alert: Alert, alarm: Alarm, environment: Mapping[str, str]) -> DeliveryResult:
    try:
        return _SENDERS[alert.kind](alert, alarm, environment)
    except CannotSendError as error:
        return DeliveryResult(reason=str(error))


def _post(alert: Alert, address: str, body: Mapping[str, object]) -> DeliveryResult:
    try:
        sink = Sink.model_validate({"name": alert.name, "kind": "webhook", "url": address})
    except ValueError:
        raise CannotSendError(f"environment variable {alert.address_env} is not a web address") from None
    text = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "User-Agent": f"slackwater/{program_version()}"}
    return post(sink, text, headers, seconds=alert.timeout_seconds)


def _slack(alert: Alert, alarm: Alarm, environment: Mapping[str, str]) -> DeliveryResult:
    address = variable_in(environment, alert.address_env)
    # Slack would interpret these characters in foreign text as links and mentions.
    safe = headline(alarm).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _post(alert, address, {"text": f"slackwater, {alarm.severity}: {safe}"})


def _email(alert: Alert, alarm: Alarm, environment: Mapping[str, str]) -> DeliveryResult:
    """Send a mail through the server in ``smtp_env``: smtps://user:password@host or smtp://host (with STARTTLS)."""
    to = variable_in(environment, alert.address_env)
    parts = urlsplit(variable_in(environment, alert.smtp_env))
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname:
        raise CannotSendError(f"environment variable {alert.smtp_env} is not an smtp:// or smtps:// address")
    message = EmailMessage()
    message["Subject"] = " ".join(f"slackwater: {alarm.kind}: {alarm.subject}".split())
    message["From"] = unquote(parts.username or "") or to.split(",")[0].strip()
    message["To"] = to
    message.set_content(
        f"{headline(alarm)}\n\nseverity: {alarm.severity}\nsince: {alarm.since.isoformat()}\n"
    )
    try:
        if parts.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                parts.hostname,
                parts.port or 465,
                timeout=alert.timeout_seconds,
                context=ssl.create_default_context(),
            )
        else:
            server = smtplib.SMTP(parts.hostname, parts.port or 25, timeout=alert.timeout_seconds)
        with server:
            if parts.scheme == "smtp" and server.has_extn("starttls"):
                server.starttls(context=ssl.create_default_context())
            if parts.username:
                server.login(unquote(parts.username), unquote(parts.password or ""))
            server.send_message(message)
    except (OSError, smtplib.SMTPException) as error:
        return DeliveryResult(reason=f"the mail server answered {type(error).__name__}", again=True)
    return DeliveryResult()


def _command(alert: Alert, alarm: Alarm, environment: Mapping[str, str]) -> DeliveryResult:
    """Run the command with the alarm as JSON on its standard input; exit code 0 means success."""
    try:
        done = subprocess.run(
            list(alert.command),
            input=json.dumps(payload(alarm)) + "\n",
            text=True,
            capture_output=True,
            timeout=alert.timeout_seconds,
            check=False,
            env=dict(environment),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return DeliveryResult(reason=f"{alert.command[0]}: {type(error).__name__}", again=True)
    return (
        DeliveryResult()
        if done.returncode == 0
        else DeliveryResult(reason=f"{alert.command[0]} ended with {done.returncode}")
    )


_SENDERS: Mapping[str, Callable[[Alert, Alarm, Mapping[str, str]], DeliveryResult]] = {
    "slack": _slack,
    "webhook": lambda alert, alarm, given: _post(
        alert, variable_in(given, alert.address_env), payload(alarm)
    ),
    "email": _email,
    "command": _command,
}
