"""Alarms: what is wrong enough to be told, told once, and cleared when it is gone.

An alarm has a ``kind`` (`flows.config.ALARM_KINDS`) and a ``subject`` (``market@source``, with the variable after a
blank where it is about one; a feed; "ingest"). `alarms_of` looks, `settle_alarms` keeps: the same look again writes nothing new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from flows.config import Settings
from flows.monitoring.checks import (
    AlarmFacts,
    Finding,
    coverage_out_of_band,
    drifts,
    empty_ingests,
    failing_feeds,
    flat_lines,
    impossible_prices,
    price_jumps,
    read_alarm_facts,
    rejected_rows,
    stale_sources,
)
from flows.show.formats import rows_of
from warehouse.issued import read_rows, write_rows
from warehouse.store.connection import Store
from warehouse.times import moment

#: What keeps plans from being right is serious; the rest is a warning.
SERIOUS: Final = ("stale source", "failing feed", "impossible price")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One alarm that stands.

    ``since`` is when what is wrong began, ``raised_at`` the look that first told it (None: not kept yet).
    """

    kind: str
    subject: str
    severity: str
    since: pd.Timestamp
    text: str
    raised_at: pd.Timestamp | None = None

    @property
    def market(self) -> str:
        """``provider/region/zone/type`` of the subject, "" where it is about no market."""
        key, mark, _ = self.subject.partition("@")
        return key if mark else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a look changed: alarms told for the first time, and those that are gone."""

    raised: tuple[Alarm, ...] = ()
    cleared: tuple[Alarm, ...] = ()


def alarms_of(
    store: Store, settings: Settings, markets: Sequence[tuple[str, str]], *, at: pd.Timestamp
) -> list[Alarm]:
    """What is wrong at ``at`` with some markets (key, source) and the ingest, by kind and subject; reads, never writes."""
    facts = read_alarm_facts(store, settings, markets, at=at)
    standing = {(one.kind, one.subject): one for one in standing_alarms(store, at=at)}
    found = [one for one in findings(facts) if one.kind not in settings.alarms.off]
    found.sort(key=lambda one: (one.kind not in SERIOUS, one.kind, one.subject))
    return [
        Alarm(
            kind=one.kind,
            subject=one.subject,
            severity="serious" if one.kind in SERIOUS else "warning",
            since=one.since,
            text=one.text,
            raised_at=standing[one.kind, one.subject].raised_at
            if (one.kind, one.subject) in standing
            else None,
        )
        for one in found
    ]


def findings(facts: AlarmFacts) -> list[Finding]:
    """Everything that the checks find, one a kind and subject."""
    found = [
        *empty_ingests(facts),
        *stale_sources(facts),
        *failing_feeds(facts),
        *flat_lines(facts),
        *impossible_prices(facts),
        *price_jumps(facts),
        *rejected_rows(facts),
        *drifts(facts),
        *coverage_out_of_band(facts),
    ]
    return list({(one.kind, one.subject): one for one in reversed(found)}.values())


def standing_alarms(store: Store, *, at: pd.Timestamp) -> list[Alarm]:
    """The alarms that were raised until ``at`` and not cleared by then, by kind and subject."""
    rows = read_rows(store, "alarms", order_by=["kind", "subject", "raised_at"])
    rows = rows[(rows["raised_at"] <= at) & (rows["cleared_at"].isna() | (rows["cleared_at"] > at))]
    return [
        Alarm(
            kind=row["kind"],
            subject=row["subject"],
            severity=row["severity"],
            since=row["began_at"],
            text=row["text"],
            raised_at=row["raised_at"],
        )
        for row in rows_of(rows)
    ]


def settle_alarms(store: Store, found: Sequence[Alarm], *, at: pd.Timestamp) -> Settled:
    """Keep what was found at ``at``: new alarms are raised, those that stood and are not found are cleared; all or nothing.

    A look at a time before the newest one that changed anything changes nothing: alarms go forward only.
    """
    with store.transaction():
        (latest,) = store.execute("SELECT epoch_us(greatest(max(raised_at), max(cleared_at))) FROM alarms")[0]
        if latest is not None and pd.Timestamp(latest, unit="us", tz="UTC") > at:
            return Settled()
        standing = {(one.kind, one.subject): one for one in standing_alarms(store, at=at)}
        now = {(one.kind, one.subject): one for one in found}
        raised = [one for key, one in now.items() if key not in standing]
        cleared = [one for key, one in standing.items() if key not in now]
        if raised:
            write_rows(store, "alarms", [_row(one, at) for one in raised])
        for one in cleared:
            store.execute(
                "UPDATE alarms SET cleared_at = ? WHERE kind = ? AND subject = ? AND cleared_at IS NULL",
                [moment(at, "at"), one.kind, one.subject],
            )
    return Settled(raised=tuple(raised), cleared=tuple(cleared))


def _row(alarm: Alarm, at: pd.Timestamp) -> dict[str, object]:
    return {
        "kind": alarm.kind,
        "subject": alarm.subject,
        "raised_at": moment(at, "at"),
        "cleared_at": None,
        "severity": alarm.severity,
        "text": alarm.text,
        "began_at": moment(alarm.since, "since"),
    }
