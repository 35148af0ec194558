"""What the alarms look at: a few reads of the warehouse, as it was known at one time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pandas as pd

from flows.alarm_settings import AlarmSettings
from flows.config import Settings
from flows.freshness import Promise, feed_freshness, promises_of
from flows.markets import Followed, read_histories, step_of
from forecasting.drift import RULE
from warehouse.errors import MarketError
from warehouse.history import History, Market
from warehouse.queries import read_sql
from warehouse.store import Store
from warehouse.times import microseconds, moment

_DAY = pd.Timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmFacts:
    """Everything that the checks read, as known at ``at``.

    ``runs``: how long each series has kept its value (``warehouse/sql/alarm_runs.sql``); ``prices``: its recent prices
    (``alarm_prices.sql``); both by sid. ``ingests``: slot, added (rows) of the ingest runs of the recent hours, ascending.
    ``feeds``: `flows.freshness.feed_freshness`. ``imports``: reader, rows, rejected, reason of recent imports.
    ``issued``: the planner's one-step intervals (``alarm_coverage.sql``). ``histories``: every market's last weeks.
    """

    at: pd.Timestamp
    rules: AlarmSettings
    promises: tuple[Promise, ...]
    runs: pd.DataFrame
    prices: pd.DataFrame
    ingests: pd.DataFrame
    feeds: pd.DataFrame
    imports: pd.DataFrame
    issued: pd.DataFrame
    histories: tuple[History, ...]


def read_alarm_facts(
    store: Store, settings: Settings, markets: Sequence[tuple[str, str]], *, at: pd.Timestamp
) -> AlarmFacts:
    """The facts of some markets (key, source) at ``at``; nothing is read that was not known then."""
    rules = settings.alarms
    promises = promises_of(store, markets, at=at, step=step_of(settings))
    recent = at - pd.Timedelta(hours=rules.recent_hours)
    known = {"sid": [one.sid for one in promises], "known_at": moment(at, "at")}
    priced = {**known, "sid": [one.sid for one in promises if one.kind == "price"]}
    priced |= {"recent_us": microseconds(recent, "recent"), "times": rules.price_times_on_demand}
    return AlarmFacts(
        at=at,
        rules=rules,
        promises=promises,
        runs=store.arrow(read_sql("alarm_runs"), known).to_pandas().set_index("sid"),
        prices=store.arrow(read_sql("alarm_prices"), priced).to_pandas().set_index("sid"),
        ingests=_ingests(store, recent, at),
        feeds=feed_freshness(store, settings, at=at),
        imports=_imports(store, recent, at),
        issued=_issued(store, settings, at),
        histories=_histories(store, settings, markets, at),
    )


def _ingests(store: Store, recent: pd.Timestamp, at: pd.Timestamp) -> pd.DataFrame:
    rows = store.execute(
        "SELECT epoch_us(logical_at), details FROM runs WHERE stage = 'ingest' AND status = 'done' "
        "AND logical_at > ? AND logical_at <= ? ORDER BY logical_at",
        [moment(recent, "recent"), moment(at, "at")],
    )
    found = [
        {
            "slot": pd.Timestamp(slot, unit="us", tz="UTC"),
            "added": sum(int(counts.get("added", 0)) for counts in json.loads(details).values()
                         if isinstance(counts, dict)),
        }
        for slot, details in rows
    ]  # fmt: skip
    return pd.DataFrame(found, columns=["slot", "added"])


def _imports(store: Store, recent: pd.Timestamp, at: pd.Timestamp) -> pd.DataFrame:
    """Recent imports by reader, with one reason of a rejected row."""
    frame: pd.DataFrame = store.arrow(
        "SELECT reader, CAST(sum(added + repeated + rejected) AS BIGINT) AS rows, "
        "CAST(sum(rejected) AS BIGINT) AS rejected, "
        "epoch_us(min(imported_at) FILTER (WHERE rejected > 0)) AS since_us, "
        "(SELECT mode(reason) FROM rejected JOIN imports AS own USING (batch) WHERE own.reader = imports.reader "
        "AND own.imported_at > $1 AND own.imported_at <= $2) AS reason "
        "FROM imports WHERE imported_at > $1 AND imported_at <= $2 GROUP BY reader ORDER BY reader",
        [moment(recent, "recent"), moment(at, "at")],
    ).to_pandas()
    return frame


def _issued(store: Store, settings: Settings, at: pd.Timestamp) -> pd.DataFrame:
    step = step_of(settings)
    frame: pd.DataFrame = store.arrow(
        read_sql("alarm_coverage"),
        {
            "planner": settings.planner,
            "step_seconds": int(step.total_seconds()),
            "first": moment(at - pd.Timedelta(days=settings.alarms.coverage_days), "first"),
            "last": moment(at, "at"),
        },
    ).to_pandas()
    frame["slot"] = pd.to_datetime(frame["slot"], unit="us", utc=True)
    return frame[frame["slot"] <= at]


def _histories(
    store: Store, settings: Settings, markets: Sequence[tuple[str, str]], at: pd.Timestamp
) -> tuple[History, ...]:
    """As much of each market as drift and coverage look at; markets that cannot be read are left out (ingest says why)."""
    slot = at.floor(step_of(settings))
    days = max(RULE.reference_days + 2 * max(RULE.recent_days), settings.alarms.coverage_days + 1)
    asked = {
        Followed(market=Market.parse(market), source=source, at=slot): slot - days * _DAY
        for market, source in markets
    }
    try:
        return tuple(read_histories(store, asked, settings=settings).values())
    except MarketError:  # one of them: the others are read one by one
        return tuple(_readable(store, settings, asked))


def _readable(store: Store, settings: Settings, asked: dict[Followed, pd.Timestamp]) -> list[History]:
    found: list[History] = []
    for followed, start in asked.items():
        with suppress(MarketError):
            found += read_histories(store, {followed: start}, settings=settings).values()
    return found
