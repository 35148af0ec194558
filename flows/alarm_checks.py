"""The checks behind the alarms that look at observations and at the ledger: pure functions over `flows.alarm_facts.AlarmFacts`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from flows.completeness_stages import told_span
from flows.frames import rows_of
from flows.freshness import Promise, freshness

if TYPE_CHECKING:
    from flows.alarm_facts import AlarmFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong: what kind, about what, since when, and a sentence with what was found, what was expected, what to do."""

    kind: str
    subject: str
    since: pd.Timestamp
    text: str


def _time(us: Any) -> pd.Timestamp:
    return pd.Timestamp(int(us), unit="us", tz="UTC")


def _told(at: pd.Timestamp) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def stale_sources(facts: AlarmFacts) -> list[Finding]:
    """Markets whose newest count or price is older than its maximal age (M1.3)."""
    found = []
    for row in rows_of(freshness(facts.promises, at=facts.at)):
        if row["stale"]:
            found.append(
                Finding(
                    kind="stale source",
                    subject=f"{row['market']}@{row['source']} {row['kind']}",
                    since=row["newest"] + row["max_age"],
                    text=f"the newest {row['kind']} is of {_told(row['newest'])}, {told_span(row['age'])} old; expected at most "
                    f"{told_span(row['max_age'])}; check whether its source still answers and is still ingested",
                )
            )
    return found


def empty_ingests(facts: AlarmFacts) -> list[Finding]:
    """The newest ingest added nothing, although every market with counts was due to be read again, some gaps ago."""
    counts = [one for one in facts.promises if one.kind == "count" and one.newest is not None and one.every]
    if facts.ingests.empty or not counts or facts.ingests["added"].iloc[-1] > 0:
        return []
    slot = facts.ingests["slot"].iloc[-1]
    fed = facts.ingests[facts.ingests["added"] > 0]
    empty = facts.ingests if fed.empty else facts.ingests[facts.ingests["slot"] > fed["slot"].iloc[-1]]
    youngest = max(one.newest for one in counts if one.newest is not None)
    gap = max(one.every for one in counts if one.every is not None)
    if slot - youngest <= facts.rules.empty_gaps * gap:
        return []
    since = empty["slot"].iloc[0]
    return [
        Finding(
            kind="empty ingest",
            subject="ingest",
            since=since,
            text=f"{len(empty)} ingest run{'s' if len(empty) > 1 else ''} since {_told(since)} added nothing; the newest count "
            f"of all {len(counts)} markets is of {_told(youngest)}, expected one every {told_span(gap)}; "
            "check the source and its credentials",
        )
    ]


#: Fetches in a row that brought only some of a feed's parts; one is often mended by the next.
_MOST_PARTIAL = 2


def failing_feeds(facts: AlarmFacts) -> list[Finding]:
    """Live feeds whose last fetch failed, or brought a part only again; that are late by their interval, or were never fetched."""
    found = []
    for row in rows_of(facts.feeds):
        name, status, count = str(row["feed"]), str(row["status"]), int(row["failing"])
        if status == "failed" or count >= _MOST_PARTIAL:
            text = (
                f"{count} fetch{'es' if count > 1 else ''} since {_told(row['failing_since'])} did not bring everything, "
                f"the last one ({status}) for: {row['reason'] or 'no reason was kept'}; "
                "check the network, the credentials and the limits"
            )
            found.append(Finding(kind="failing feed", subject=name, since=row["failing_since"], text=text))
        elif pd.notna(row["late_by"]) and pd.notna(row["every"]) and row["late_by"] > row["every"]:
            text = (
                f"last fetched {_told(row['fetched'])}, {told_span(facts.at - row['fetched'])} ago; expected every "
                f"{told_span(row['every'])}; check that the schedule is running"
            )
            found.append(Finding(kind="failing feed", subject=name, since=row["expected_by"], text=text))
        elif status == "never fetched" and len(facts.ingests):
            since = facts.ingests["slot"].iloc[0]
            text = f"never fetched, though ingest has run since {_told(since)}; check the settings that it runs with"
            found.append(Finding(kind="failing feed", subject=name, since=since, text=text))
    return found


def _by_sid(frame: pd.DataFrame) -> dict[int, dict[str, Any]]:
    return {int(row["sid"]): row for row in rows_of(frame.reset_index())}


def flat_lines(facts: AlarmFacts) -> list[Finding]:
    """Series that have kept their value far longer than they ever did (ours).

    The present stretch, up to the newest observation, against the longest past one of its sort: stretches at the least or the
    greatest value so far are one sort, the others the other (a market may rest at its floor for weeks, hardly elsewhere).
    """
    found = []
    kept = _by_sid(facts.runs)
    for one in facts.promises:
        if one.sid not in kept:
            continue
        row = kept[one.sid]
        lasted, longest = int(row["newest_us"]) - int(row["since_us"]), int(row["longest_us"])
        if row["stretches"] < facts.rules.flat_least or lasted <= facts.rules.flat_factor * longest:
            continue
        now, before = pd.Timedelta(lasted, unit="us"), pd.Timedelta(longest, unit="us")
        found.append(
            Finding(
                kind="flat line",
                subject=f"{one.subject} {one.kind}",
                since=_time(row["since_us"]),
                text=f"the {one.kind} has been {row['value']:g} for {told_span(now)}; the longest of "
                f"{int(row['stretches'])} earlier such stretches lasted {told_span(before)}; "
                "check whether the source repeats an old answer",
            )
        )
    return found


def _prices(facts: AlarmFacts) -> list[tuple[Promise, dict[str, Any]]]:
    rows = _by_sid(facts.prices)
    return [(one, rows[one.sid]) for one in facts.promises if one.kind == "price" and one.sid in rows]


def impossible_prices(facts: AlarmFacts) -> list[Finding]:
    """Recent prices that are not positive, or above a multiple of on-demand."""
    found, limit = [], facts.rules.price_times_on_demand
    for one, row in _prices(facts):
        subject = f"{one.subject} price"
        if pd.notna(row["lowest"]) and row["lowest"] <= 0:
            text = f"a price of {row['lowest']:g} USD per hour; expected more than 0; check the units of the source"
            found.append(Finding(kind="impossible price", subject=subject, since=facts.at, text=text))
        elif pd.notna(row["ratio"]) and row["ratio"] > limit:
            text = (
                f"a spot price of {row['ratio_price']:g} USD per hour beside {row['ratio_on_demand']:g} on demand, "
                f"{row['ratio']:.3g} times; expected at most {limit:g} times; check the units and the product of the source"
            )
            found.append(
                Finding(kind="impossible price", subject=subject, since=_time(row["ratio_us"]), text=text)
            )
    return found


def price_jumps(facts: AlarmFacts) -> list[Finding]:
    """Recent changes of a price that are far larger than any before (ours), in the logarithm."""
    found = []
    for one, row in _prices(facts):
        if pd.isna(row["jump"]) or row["past_changes"] < facts.rules.jump_least:
            continue
        if row["jump"] <= facts.rules.jump_factor * row["past_jump"]:
            continue
        found.append(
            Finding(
                kind="price jump",
                subject=f"{one.subject} price",
                since=_time(row["jump_us"]),
                text=f"the price went from {row['jump_from']:g} to {row['jump_to']:g} USD per hour at once, a factor of "
                f"{math.exp(row['jump']):.3g}; the largest of {int(row['past_changes'])} changes before was "
                f"{math.exp(row['past_jump']):.3g}; "
                "check the units and the product of the source",
            )
        )
    return found


def rejected_rows(facts: AlarmFacts) -> list[Finding]:
    """Readers of whose recent rows more than a share could not be used."""
    found = []
    for row in rows_of(facts.imports):
        if row["rejected"] > facts.rules.rejected_share * row["rows"]:
            text = (
                f"{int(row['rejected'])} of {int(row['rows'])} rows of the last {facts.rules.recent_hours:g} h were rejected, "
                f"most for: {row['reason']}; expected at most {100 * facts.rules.rejected_share:g} %; "
                "the table `rejected` has them as found"
            )
            subject = f"reader {row['reader']}"
            found.append(
                Finding(kind="rejected rows", subject=subject, since=_time(row["since_us"]), text=text)
            )
    return found
