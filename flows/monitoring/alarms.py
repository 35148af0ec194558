"""Alarms: the checks behind them, and how they are stored (M6.4, M6.5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.config import ALARM_KINDS, AlarmSettings, Settings
from slackwater.flows.following import FollowedMarket, step_of
from slackwater.flows.histories import Reads, history_request
from slackwater.flows.monitoring.completeness import (
    ExpectedUpdate,
    expected_updates,
    feed_freshness,
    freshness,
    span_text,
)
from slackwater.flows.monitoring.job_alarms import Finding, job_findings
from slackwater.flows.show.formats import rows_of
from slackwater.forecasting.diagnosis.drift import RECENT_DAYS, REFERENCE_DAYS, drift_table
from slackwater.forecasting.series import series_of
from slackwater.warehouse.documents import read_object, read_sql
from slackwater.warehouse.history import AVAILABLE, PRICE, History, Market
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import microseconds, moment

_DAY = pd.Timedelta(days=1)
SIMULATED: Final = "simulated:"  # Prefix of the sources of simulated markets


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmFacts:
    """Input of the checks, as known at ``at``.

    ``runs``: how long each series has had the same value (``flows/monitoring/sql/alarm_runs.sql``);
    ``prices``: its recent prices (``alarm_prices.sql``); both by sid. ``ingests``: slot and
    added (number of rows) of the ingest runs of the recent hours, ascending. ``feeds``:
    `slackwater.flows.monitoring.completeness.feed_freshness`. ``imports``: reader, rows, rejected, reason of
    recent imports. ``issued``: the planner's one-step intervals (``alarm_coverage.sql``).
    ``histories``: the last weeks of every market.
    """

    at: pd.Timestamp
    step: pd.Timedelta
    rules: AlarmSettings
    promises: tuple[ExpectedUpdate, ...]
    runs: Mapping[int, Mapping[str, Any]]
    prices: Mapping[int, Mapping[str, Any]]
    ingests: Sequence[tuple[pd.Timestamp, int]]
    feeds: Sequence[Mapping[str, Any]]
    imports: pd.DataFrame
    issued: pd.DataFrame
    histories: tuple[History, ...]

    def without_simulated(self) -> AlarmFacts:
        """Return the facts without simulated markets: a generator neither repeats old responses nor changes its distribution."""
        return replace(
            self,
            promises=tuple(promise for promise in self.promises if not promise.source.startswith(SIMULATED)),
            histories=tuple(
                history for history in self.histories if not history.source.startswith(SIMULATED)
            ),
        )


def read_alarm_facts(
    store: Store, settings: Settings, markets: Sequence[tuple[str, str]], *, at: pd.Timestamp
) -> AlarmFacts:
    """Return the facts of some markets (key, source), using only data known at ``at``."""
    rules = settings.alarms
    promises = expected_updates(store, markets, at=at, step=step_of(settings))
    recent = at - pd.Timedelta(hours=rules.recent_hours)
    known = {"sid": [promise.sid for promise in promises], "known_at": moment(at, "at")}
    priced = {**known, "sid": [promise.sid for promise in promises if promise.kind == "price"]}
    priced |= {"recent_us": microseconds(recent, "recent"), "times": rules.price_times_on_demand}
    return AlarmFacts(
        at=at,
        step=step_of(settings),
        rules=rules,
        promises=promises,
        runs=_by_sid(store, "alarm_runs", known),
        prices=_by_sid(store, "alarm_prices", priced),
        ingests=_ingests(store, recent, at),
        feeds=feed_freshness(store, settings, at=at),
        imports=_imports(store, recent, at),
        issued=_issued_intervals(store, settings, at),
        histories=_histories(store, settings, markets, at),
    )


def _by_sid(store: Store, name: str, parameters: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    rows = rows_of(store.arrow(read_sql(__package__, name), parameters).to_pandas())
    return {int(row["sid"]): row for row in rows}


def _ingests(store: Store, recent: pd.Timestamp, at: pd.Timestamp) -> list[tuple[pd.Timestamp, int]]:
    rows = store.execute(
        "SELECT epoch_us(logical_at), details FROM runs WHERE stage = 'ingest' AND status = 'done' "
        "AND logical_at > ? AND logical_at <= ? ORDER BY logical_at",
        [moment(recent, "recent"), moment(at, "at")],
    )
    sources = [(_time(slot), (read_object(details) or {}).values()) for slot, details in rows]
    return [
        (slot, sum(int(counts.get("added", 0)) for counts in own if isinstance(counts, dict)))
        for slot, own in sources
    ]


def _imports(store: Store, recent: pd.Timestamp, at: pd.Timestamp) -> pd.DataFrame:
    """Return the recent imports by reader, with the most frequent reason of rejection."""
    frame: pd.DataFrame = store.arrow(
        "SELECT reader, CAST(sum(added + repeated + rejected) AS BIGINT) AS rows, CAST(sum(rejected) AS BIGINT) AS rejected, "
        "epoch_us(min(imported_at) FILTER (WHERE rejected > 0)) AS since_us, (SELECT mode(reason) FROM rejected JOIN imports "
        "AS own USING (batch) WHERE own.reader = imports.reader AND own.imported_at > $1 AND own.imported_at <= $2) AS reason "
        "FROM imports WHERE imported_at > $1 AND imported_at <= $2 GROUP BY reader ORDER BY reader",
        [moment(recent, "recent"), moment(at, "at")],
    ).to_pandas()
    return frame


def _issued_intervals(store: Store, settings: Settings, at: pd.Timestamp) -> pd.DataFrame:
    step = step_of(settings)
    frame: pd.DataFrame = store.arrow(
        read_sql(__package__, "alarm_coverage"),
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
    """Return the history that drift and coverage checks need; unreadable markets are omitted (ingest reports them)."""
    slot = at.floor(step_of(settings))
    days = max(REFERENCE_DAYS + 2 * max(RECENT_DAYS), settings.alarms.coverage_days + 1)
    followed = (FollowedMarket(market=Market.parse(key), source=source, at=slot) for key, source in markets)
    requests = [
        history_request(followed_market, settings, start=slot - days * _DAY) for followed_market in followed
    ]
    return tuple(history for history in Reads(store).histories(requests) if isinstance(history, History))


def _time(us: Any) -> pd.Timestamp:
    return pd.Timestamp(int(us), unit="us", tz="UTC")


def _minute(at: pd.Timestamp) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def stale_sources(facts: AlarmFacts) -> Iterator[Finding]:
    """Yield the markets whose newest count or price was older than its maximum age (M1.3) when it was last read or due.

    Data are read once a slot: between two turns they age without a fault of their source.
    """
    due = (facts.at - pd.Timedelta(minutes=facts.rules.grace_minutes)).floor(facts.step)
    read_at = max([due, *(slot for slot, _ in facts.ingests)])
    for row in freshness(facts.promises, at=read_at):
        if row["stale"]:
            yield Finding(
                subject=f"{row['market']}@{row['source']} {row['kind']}",
                since=row["newest"] + row["max_age"],
                text=f"the newest {row['kind']} is of {_minute(row['newest'])}, {span_text(facts.at - row['newest'])} old; "
                f"expected at most {span_text(row['max_age'])}; check whether its source still responds and is still ingested",
            )


def empty_ingests(facts: AlarmFacts) -> Iterator[Finding]:
    """Yield a finding if the recent ingests added nothing although every market with counts is overdue by several gaps."""
    counts = [
        promise
        for promise in facts.promises
        if promise.kind == "count" and promise.newest is not None and promise.every
    ]
    if not facts.ingests or not counts or facts.ingests[-1][1] > 0:
        return
    slot = facts.ingests[-1][0]
    fed = max((slot for slot, added in facts.ingests if added > 0), default=None)
    empty = [slot for slot, _ in facts.ingests if fed is None or slot > fed]
    youngest = max(count.newest for count in counts if count.newest is not None)
    gap = max(count.every for count in counts if count.every is not None)
    if slot - youngest <= facts.rules.empty_gaps * gap:
        return
    since = empty[0]
    yield Finding(
        subject="ingest",
        since=since,
        text=f"{len(empty)} ingest run{'s' if len(empty) > 1 else ''} since {_minute(since)} added nothing; the newest count "
        f"of all {len(counts)} markets is of {_minute(youngest)}, expected a new count every {span_text(gap)}; "
        "check the source and its credentials",
    )


#: Number of consecutive partial fetches that raises an alarm; the next fetch often completes a single one.
_MOST_PARTIAL = 2


def failing_feeds(facts: AlarmFacts) -> Iterator[Finding]:
    """Yield the live feeds whose last fetch failed, was partial again, is overdue by an interval, or never took place."""
    for row in facts.feeds:
        name, status, count = str(row["feed"]), str(row["status"]), int(row["failing"])
        if status == "failed" or count >= _MOST_PARTIAL:
            text = (
                f"{count} fetch{'es' if count > 1 else ''} since {_minute(row['failing_since'])} were incomplete, the last "
                f"({status}) because: {row['reason'] or 'no reason stored'}; check the network, the credentials and the limits"
            )
            yield Finding(subject=name, since=row["failing_since"], text=text)
        elif pd.notna(row["late_by"]) and pd.notna(row["every"]) and row["late_by"] > row["every"]:
            text = (
                f"last fetched {_minute(row['fetched'])}, {span_text(facts.at - row['fetched'])} ago; expected every "
                f"{span_text(row['every'])}; check that the schedule is running"
            )
            yield Finding(subject=name, since=row["expected_by"], text=text)
        elif status == "never fetched" and facts.ingests:
            since = facts.ingests[0][0]
            text = f"never fetched, although ingest has run since {_minute(since)}; check the settings of the ingest"
            yield Finding(subject=name, since=since, text=text)


def flat_lines(facts: AlarmFacts) -> Iterator[Finding]:
    """Yield the series that have had the same value far longer than ever before (our rule).

    The current run of equal values, up to the newest observation, is compared with the longest
    earlier run of the same type. Runs at the minimum or maximum so far form the first type, all others the
    second type, because a market may stay at its floor for weeks, but rarely elsewhere.
    """
    for promise in facts.promises:
        if promise.sid not in facts.runs:
            continue
        row = facts.runs[promise.sid]
        lasted, longest = int(row["newest_us"]) - int(row["since_us"]), int(row["longest_us"])
        if row["stretches"] < facts.rules.flat_least or lasted <= facts.rules.flat_factor * longest:
            continue
        now, before = pd.Timedelta(lasted, unit="us"), pd.Timedelta(longest, unit="us")
        yield Finding(
            subject=f"{promise.subject} {promise.kind}",
            since=_time(row["since_us"]),
            text=f"the {promise.kind} has been {row['value']:g} for {span_text(now)}; the longest of {int(row['stretches'])} "
            f"earlier constant stretches lasted {span_text(before)}; check whether the source repeats an old answer",
        )


def _prices(facts: AlarmFacts) -> list[tuple[ExpectedUpdate, Mapping[str, Any]]]:
    return [
        (promise, facts.prices[promise.sid])
        for promise in facts.promises
        if promise.kind == "price" and promise.sid in facts.prices
    ]


def impossible_prices(facts: AlarmFacts) -> Iterator[Finding]:
    """Yield the recent prices that are not positive, or above a multiple of on-demand."""
    limit = facts.rules.price_times_on_demand
    for promise, row in _prices(facts):
        subject = f"{promise.subject} price"
        if pd.notna(row["lowest"]) and row["lowest"] <= 0:
            text = f"a price of {row['lowest']:g} USD per hour; expected more than 0; check the units of the source"
            yield Finding(subject=subject, since=facts.at, text=text)
        elif pd.notna(row["ratio"]) and row["ratio"] > limit:
            text = (
                f"a spot price of {row['ratio_price']:g} USD per hour, compared with {row['ratio_on_demand']:g} on demand, "
                f"{row['ratio']:.3g} times; expected at most {limit:g} times; check the units and the product of the source"
            )
            yield Finding(subject=subject, since=_time(row["ratio_us"]), text=text)


def price_jumps(facts: AlarmFacts) -> Iterator[Finding]:
    """Yield the recent price changes that are far larger than any before (our rule), in logarithms."""
    for promise, row in _prices(facts):
        if pd.isna(row["jump"]) or row["past_changes"] < facts.rules.jump_least:
            continue
        if row["jump"] <= facts.rules.jump_factor * row["past_jump"]:
            continue
        yield Finding(
            subject=f"{promise.subject} price",
            since=_time(row["jump_us"]),
            text=f"the price went from {row['jump_from']:g} to {row['jump_to']:g} USD per hour at once, a factor of "
            f"{math.exp(row['jump']):.3g}; the largest of {int(row['past_changes'])} earlier changes was "
            f"{math.exp(row['past_jump']):.3g}; check the units and the product of the source",
        )


def rejected_rows(facts: AlarmFacts) -> Iterator[Finding]:
    """Yield the readers that rejected more than a given share of their recent rows."""
    for row in rows_of(facts.imports):
        if row["rejected"] > facts.rules.rejected_share * row["rows"]:
            text = (
                f"{int(row['rejected'])} of {int(row['rows'])} rows of the last {facts.rules.recent_hours:g} h were rejected, "
                f"most frequent reason: {row['reason']}; expected at most {100 * facts.rules.rejected_share:g} %; "
                "`slackwater rejected` shows the rejected rows"
            )
            subject = f"reader {row['reader']}"
            yield Finding(subject=subject, since=_time(row["since_us"]), text=text)


#: Intervals are too wide if even these contain more than `_NOMINAL` of the observations.
_INNER = "50 %"
_NOMINAL = 0.8
#: Upper limit of the autocorrelation of hits; above it the effective number of values would be close to 0.
_MOST_CARRIED = 0.95


def drifts(facts: AlarmFacts) -> Iterator[Finding]:
    """Yield the series with a change of distribution in the recent hours (`slackwater.forecasting.diagnosis.drift`)."""
    series = [series_of(history, variable) for history in facts.histories for variable in ("price", "count")]
    recent = facts.at - pd.Timedelta(hours=facts.rules.recent_hours)
    for own in series:
        marks = drift_table([own])
        for mark in rows_of(marks[marks["at"] > recent]):
            yield Finding(
                subject=f"{own.key} {own.variable}",
                since=mark["since"],
                text=f"{own.variable}: {mark['found']}; expected no such difference by chance in 30 days; forecasts adapt, "
                "but check whether the source or the market has changed",
            )


def coverage_out_of_band(facts: AlarmFacts) -> Iterator[Finding]:
    """Yield the series whose recent one-step intervals contained too few or too many observations.

    Too few: the number of observations inside the 80 % intervals is improbably low under a binomial
    distribution with the effective number of independent values. Too many: even the 50 % intervals contain
    more than 80 %, equally improbable. Intervals of zero width are correct for a constant value, so they do
    not count as too wide. Rounding to integers alone makes 80 % intervals of counts contain more than 80 %.
    """
    actual = {f"{history.market.key}@{history.source}": history for history in facts.histories}
    for (market, source, variable), own in facts.issued.groupby(["market", "source", "variable"], sort=True):
        history = actual.get(f"{market}@{source}")
        if history is None:
            continue
        scored = _with_observations(own, history, str(variable))
        for text in _coverage_sentence(scored, facts):
            subject = f"{market}@{source} {variable}"
            yield Finding(subject=subject, since=scored["slot"].iloc[0], text=text)


def _with_observations(own: pd.DataFrame, history: History, variable: str) -> pd.DataFrame:
    """Return the forecasts with an observation for their slot, with the observed value."""
    column = history.frame[PRICE if variable == "price" else AVAILABLE]
    observed = column.reindex(pd.DatetimeIndex(own["slot"])).to_numpy(dtype=float)
    scored: pd.DataFrame = own.assign(came=observed)[~np.isnan(observed)].sort_values("slot")
    return scored


def _coverage_sentence(scored: pd.DataFrame, facts: AlarmFacts) -> list[str]:
    """Return a sentence if the coverage is out of range, as a list of at most one."""
    rules = facts.rules
    came = scored["came"].to_numpy(dtype=float)
    low, high = scored["q10"].to_numpy(dtype=float), scored["q90"].to_numpy(dtype=float)
    inside = (low - 1e-9 <= came) & (came <= high + 1e-9)
    n, share = effective(inside), float(inside.mean()) if inside.size else float("nan")
    if n >= rules.coverage_least and improbable(share, n, below=True) < rules.coverage_chance:
        return [
            f"80 % intervals one slot ahead contained {100 * share:.0f} % of {inside.size} values ({n:.0f} effectively "
            "independent); "
            f"expected {100 * band(n, rules.coverage_chance)[0]:.0f} % or more; check whether the market has changed"
        ]
    low, high = scored["q25"].to_numpy(dtype=float), scored["q75"].to_numpy(dtype=float)
    wide = high - low > 1e-9
    inner = ((low <= came) & (came <= high))[wide]
    n, share = effective(inner), float(inner.mean()) if inner.size else float("nan")
    if n >= rules.coverage_least and improbable(share, n, below=False) < rules.coverage_chance:
        return [
            f"{_INNER} intervals one slot ahead contained {100 * share:.0f} % of {inner.size} values ({n:.0f} effectively "
            "independent): far too wide; expected about 50 %, at most 80 %; check whether the market has become calmer"
        ]
    return []


def effective(hits: np.ndarray) -> float:
    """Return the effective number of independent hits (n,): n (1 - r) / (1 + r) with their lag-1
    autocorrelation r, at least 0.

    >>> effective(np.array([True, False] * 10)), round(effective(np.array([True] * 10 + [False] * 10)), 2)
    (20.0, 1.62)
    """
    n = hits.size
    if n < 3 or hits.all() or not hits.any():
        return float(n)
    apart = hits - hits.mean()
    carried = float(np.clip((apart[1:] * apart[:-1]).sum() / np.square(apart).sum(), 0.0, _MOST_CARRIED))
    return n * (1 - carried) / (1 + carried)


def improbable(share: float, n: float, *, below: bool) -> float:
    """Return the probability that ``n`` independent values, inside with probability 0.8, give a share as extreme as this."""
    # Avoid importing scipy.stats, which takes longer than all checks of a turn.
    from scipy.special import bdtr, bdtrc

    whole = int(n)
    hits = round(share * whole)
    return float(bdtr(hits, whole, _NOMINAL) if below else bdtrc(hits - 1, whole, _NOMINAL))


def band(n: float, chance: float) -> tuple[float, float]:
    """Return the range of the coverage of ``n`` independent values, exceeded with probability ``chance`` on each side."""
    from scipy.stats import binom

    whole = int(n)
    return float(binom.ppf(chance, whole, _NOMINAL)) / whole, float(
        binom.isf(chance, whole, _NOMINAL)
    ) / whole


# ---
# Alarms: reported once, and cleared when the problem is gone.
#
# An alarm has a ``kind`` (`slackwater.flows.config.ALARM_KINDS`) and a ``subject``: ``job NAME``;
# ``market@source``, followed by a space and the variable if it is about a variable; a feed; "ingest".
# `alarms_of` runs the checks, `settle_alarms` stores the changes: the same alarms again change nothing.


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """An active alarm, a problem since ``since``, first found by the check at ``raised_at`` (None: not stored yet)."""

    kind: str
    subject: str
    severity: str
    since: pd.Timestamp
    text: str
    raised_at: pd.Timestamp | None = None

    def row(self) -> dict[str, Any]:
        """Return the alarm as a row of pages and of the JSON answer."""
        return asdict(self)

    @property
    def market(self) -> str:
        """Market of the subject as ``provider/region/zone/type``, "" if the subject is not a market."""
        key, mark, _ = self.subject.partition("@")
        return key if mark else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmChanges:
    """Changes made by a check: alarms raised and alarms cleared."""

    raised: tuple[Alarm, ...] = ()
    cleared: tuple[Alarm, ...] = ()


def alarms_of(
    store: Store, settings: Settings, markets: Sequence[tuple[str, str]], *, at: pd.Timestamp
) -> list[Alarm]:
    """Return the alarms at ``at`` about jobs, some markets (key, source) and ingest, most serious first; writes nothing."""
    facts = read_alarm_facts(store, settings, markets, at=at)
    standing = {(alarm.kind, alarm.subject): alarm for alarm in standing_alarms(store, at=at)}
    found = {(kind, finding.subject): finding for kind, finding in job_findings(store, settings, at=at)}
    for kind, check in CHECKS.items():
        for finding in check(facts):
            found.setdefault((kind, finding.subject), finding)
    order = {kind: place for place, kind in enumerate(ALARM_KINDS)}
    keys = [key for key in found if key[0] not in settings.alarms.off]
    keys.sort(key=lambda key: (not ALARM_KINDS[key[0]].serious, order[key[0]], key[1]))
    return [
        Alarm(
            kind=kind,
            subject=subject,
            severity="serious" if ALARM_KINDS[kind].serious else "warning",
            since=found[kind, subject].since,
            text=found[kind, subject].text,
            raised_at=standing[kind, subject].raised_at if (kind, subject) in standing else None,
        )
        for kind, subject in keys
    ]


#: Checks of observations by kind of alarm; `slackwater.flows.config.ALARM_KINDS` has meaning and severity of each.
CHECKS: Mapping[str, Callable[[AlarmFacts], Iterator[Finding]]] = {
    "empty ingest": empty_ingests,
    "stale source": stale_sources,
    "failing feed": failing_feeds,
    "flat line": lambda facts: flat_lines(facts.without_simulated()),
    "impossible price": impossible_prices,
    "price jump": lambda facts: price_jumps(facts.without_simulated()),
    "rejected rows": rejected_rows,
    "drift": lambda facts: drifts(facts.without_simulated()),
    "coverage": coverage_out_of_band,
}


def standing_alarms(store: Store, *, at: pd.Timestamp) -> list[Alarm]:
    """Return the alarms active at ``at``, ordered by kind and subject."""
    rows = read_rows(store, "alarms", order_by=["kind", "subject", "raised_at"])
    rows = rows[(rows["raised_at"] <= at) & (rows["cleared_at"].isna() | (rows["cleared_at"] > at))]
    rows = rows.rename(columns={"began_at": "since"})[[own.name for own in fields(Alarm)]]
    return [Alarm(**row) for row in rows_of(rows)]


def settle_alarms(store: Store, found: Sequence[Alarm], *, at: pd.Timestamp) -> AlarmChanges:
    """Raise the new alarms found at ``at`` and clear the others, atomically; nothing after a later check."""
    with store.transaction():
        (latest,) = store.execute("SELECT epoch_us(greatest(max(raised_at), max(cleared_at))) FROM alarms")[0]
        if latest is not None and pd.Timestamp(latest, unit="us", tz="UTC") > at:
            return AlarmChanges()
        standing = {(alarm.kind, alarm.subject): alarm for alarm in standing_alarms(store, at=at)}
        now = {(active.kind, active.subject): active for active in found}
        raised = [active for key, active in now.items() if key not in standing]
        cleared = [active for key, active in standing.items() if key not in now]
        if raised:
            write_rows(
                store,
                "alarms",
                [
                    {"kind": active.kind, "subject": active.subject, "raised_at": moment(at, "at"), "cleared_at": None,
                     "severity": active.severity, "text": active.text, "began_at": moment(active.since, "since")}
                    for active in raised
                ],
            )  # fmt: skip
        for active in cleared:
            store.execute(
                "UPDATE alarms SET cleared_at = ? WHERE kind = ? AND subject = ? AND cleared_at IS NULL",
                [moment(at, "at"), active.kind, active.subject],
            )
    return AlarmChanges(raised=tuple(raised), cleared=tuple(cleared))
