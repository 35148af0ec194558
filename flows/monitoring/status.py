"""The state of a pipeline at one time: completeness, freshness and alarms in one value, for the command, the page and programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from flows.config import Settings
from flows.monitoring.alarms import Alarm, alarms_of, standing_alarms
from flows.monitoring.completeness import (
    DEFAULT_SPAN,
    NOT_DONE,
    Completeness,
    classify,
    read_facts,
    window_of,
)
from flows.monitoring.freshness import feed_freshness, freshness
from flows.show.formats import rows_of
from warehouse.errors import MarketError
from warehouse.store.connection import Store

#: Exit codes of ``slackwater status`` (2 is a user's error): something is not done, an alarm stands, both.
WELL, NOT_ALL_DONE, ALARMED, BOTH = 0, 3, 4, 5
#: What the JSON object is, so that its readers can tell when it changes.
SCHEMA: Final = "slackwater.status/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What could be told at ``at``; ``note`` says how that time was chosen, "" if it was given.

    ``freshness`` and ``feeds`` are the tables of `flows.monitoring.freshness`. ``gone``: alarms that were kept as standing
    and stand no longer.
    """

    at: pd.Timestamp
    completeness: Completeness
    freshness: pd.DataFrame
    feeds: pd.DataFrame
    alarms: tuple[Alarm, ...]
    gone: tuple[Alarm, ...] = ()
    note: str = ""

    @property
    def exit_code(self) -> int:
        """0 all well, 3 something is missing or failed (or no market is followed), 4 an alarm stands, 5 both."""
        lacking = self.completeness.frame.empty or self.completeness.count(*NOT_DONE) > 0
        if lacking and self.alarms:
            return BOTH
        return NOT_ALL_DONE if lacking else ALARMED if self.alarms else WELL

    def sentence(self) -> str:
        """The whole in one sentence."""
        done = self.completeness
        if done.frame.empty:
            return "No market was followed in these slots: no forecast was issued and no job ran."
        lacking = {state: done.count(state) for state in NOT_DONE if done.count(state)}
        told = " and ".join(f"{count:,} {state}" for state, count in lacking.items())
        due = len(done.frame) - done.count("not due")
        work = (
            f"{told} of {due:,} pieces of work that were due"
            if told
            else f"All {due:,} pieces of work are done"
        )
        count = len(self.alarms)
        alarms = f"{count} alarm{'s' if count > 1 else ''}" if count else "no alarm"
        return f"{work}; {alarms}."

    def answer(self) -> dict[str, Any]:
        """The object that ``slackwater status --json`` prints."""
        done = self.completeness
        return {
            "schema": SCHEMA,
            "at": self.at,
            "note": self.note,
            "exit_code": self.exit_code,
            "since": done.start,
            "until": done.end,
            "step_minutes": done.step / pd.Timedelta(minutes=1),
            "completeness": [
                {**row, "complete": None if pd.isna(row["complete"]) else round(row["complete"], 6)}
                for row in rows_of(done.summary())
            ],
            "not_done": rows_of(done.stretches(NOT_DONE)),
            "doubtful": rows_of(done.stretches(("stale", "fallback"))),
            "freshness": [_minutes(row) for row in rows_of(self.freshness)],
            "feeds": [_minutes(row) for row in rows_of(self.feeds)],
            "alarms": [
                {
                    "kind": one.kind,
                    "subject": one.subject,
                    "severity": one.severity,
                    "since": one.since,
                    "raised_at": one.raised_at,
                    "text": one.text,
                }
                for one in self.alarms
            ],
        }


def _minutes(row: dict[str, Any]) -> dict[str, Any]:
    """Durations as minutes, named so; times that are not there as None."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("age", "every", "late_by", "max_age"):
            plain[f"{name}_minutes"] = None if pd.isna(value) else value / pd.Timedelta(minutes=1)
        else:
            plain[name] = None if value is pd.NaT else value
    return plain


def status_of(
    store: Store,
    settings: Settings,
    *,
    at: pd.Timestamp,
    since: pd.Timestamp | None = None,
    until: pd.Timestamp | None = None,
    market: str = "",
    note: str = "",
) -> Status:
    """The status of a warehouse as it could be told at ``at``; reads, never writes.

    ``since`` and ``until`` bound the slots of the map (see `flows.monitoring.completeness.completeness_of`); freshness and
    alarms are those at ``at``. ``market`` keeps one (``key`` or ``key@source``); raises `MarketError` if it is not followed.
    """
    window = window_of(store, settings, start=since, end=until, at=at)
    facts = read_facts(store, settings, window, pattern=market)
    markets = list(dict.fromkeys(zip(facts.seen["market"], facts.seen["source"], strict=True)))
    if market and not markets:
        raise MarketError(
            f"market {market!r} has no forecast and no job around {window.first} to {window.last}",
            expected="a market that a turn followed",
            remedy="`slackwater status` without --market shows those that were",
        )
    found = alarms_of(store, settings, markets, at=at)
    stand = {(one.kind, one.subject) for one in found}
    return Status(
        at=at,
        completeness=classify(facts, settings),
        freshness=freshness(facts.promises, at=at),
        feeds=feed_freshness(store, settings, at=at),
        alarms=tuple(found),
        gone=tuple(one for one in standing_alarms(store, at=at) if (one.kind, one.subject) not in stand),
        note=note,
    )


def present_of(store: Store, settings: Settings, *, clock: pd.Timestamp) -> tuple[pd.Timestamp, str]:
    """The time of a status that was given none, and a note where that is not the clock's.

    The clock's, where the newest turn is of the last days or live feeds are there; else the newest turn's, as befits a warehouse
    of histories. Raises `MarketError` on a warehouse in which no turn has run.
    """
    (newest,) = store.execute("SELECT epoch_us(max(logical_at)) FROM runs")[0]
    if newest is None:
        raise MarketError(
            "no turn has run in this warehouse",
            remedy="`slackwater run` makes one; --at gives a time to look at",
        )
    turn = pd.Timestamp(newest, unit="us", tz="UTC")
    (fetched,) = store.execute("SELECT count(*) FROM fetches")[0]
    if abs(clock - turn) <= DEFAULT_SPAN or fetched or settings.feeds:
        return clock, ""
    return turn, (
        f"as at the newest turn, {turn:%Y-%m-%d %H:%M} UTC: it is long past and no live feed is set up; --at now is the present"
    )
