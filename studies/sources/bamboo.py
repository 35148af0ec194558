"""Bamboo traces: a list of times and counts (Google Cloud), and a list of nodes added and removed (AWS p3)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from pydantic import Field

from slackwater.studies.sources.places import UNDATED, instance_type_in, market_of, zone_in
from slackwater.warehouse.columns import because
from slackwater.warehouse.sources.contract import (
    Batch,
    Kind,
    Moment,
    Options,
    Row,
    is_text,
    label_option,
    pack,
    rejection,
)
from slackwater.warehouse.sources.files.reading import FileSource, head, numbered_lines

_USUAL_TYPE = "p3.2xlarge"  # The instance type used by the authors of the event traces

_COUNT = re.compile(r"^(\d{4}-\d{2}-\d{2})\s*,\s*(\d{2}:\d{2}:\d{2})\s*,\s*(\d+)\s*$")
_EVENT = re.compile(r"^(\d+)\s*,\s*(add|remove)\s*,\s*(\S+)\s*$")
# Bamboo shortens Google Cloud zones: east1c is us-east1-c.
_SHORT_ZONE = re.compile(r"(?<![a-z0-9])((?:east|west|central)\d)([a-z])(?![a-z0-9])")
_MINUTE_MS = 60_000
# An event list becomes a count per minute up to its last event: a mistyped time must not fill the disk.
_LONGEST_MS = 366 * 24 * 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True)
class _Event:
    line: int
    at_ms: int
    node: str
    change: int


class BambooOptions(Options):
    """Options of both forms."""

    start: Moment = Field(
        None, description="time of minute 0 of an event list, ISO 8601 (default: 1970-01-01)"
    )
    zone: str | None = Field(
        None,
        description="zone (default of a count list: from a name such as east1c; of an event list: unknown)",
    )
    instance_type: str | None = Field(
        None, description="instance type (default: from a name such as v100x1; of an event list: p3.2xlarge)"
    )
    capacity: int | None = Field(
        None, ge=1, description="instances that were asked for (default: the largest count)"
    )
    source: str | None = label_option(None, "bamboo:counts or bamboo:events, the latter without a real clock")


class Bamboo(FileSource[BambooOptions]):
    """Availability from a list of counts or a list of events.

    Counts: every line is a row, in file order, which is not chronological; two counts at the same
    second contradict each other.

    Events: the nodes alive at every whole minute from 0 to the minute of the last event, including
    the events at that time; ``line`` is the last line counted so far. Events of the same node in
    the same millisecond are applied in the feasible order. An event that adds a present node or
    removes an absent node is rejected. Undated events count from 1970-01-01, in the market
    ``aws/unknown/unknown/p3.2xlarge`` unless options or names state more.
    """

    name = "bamboo"
    form = BambooOptions
    expected = "lines such as `2021-12-10, 13:07:45, 80` or `60000,add,node19`"
    examples: Mapping[str, str] = {
        "v100x1-east1c.txt": "2021-12-10, 13:07:45, 80\n",
        "events.csv": "0,add,node1\n",
    }

    def recognised(self, path: Path) -> bool:
        """Recognise the format by the suffix and the first line."""
        first = head(path).split(b"\n", 1)[0].decode("utf-8", errors="replace").strip()
        return path.suffix in (".txt", ".csv") and bool(_COUNT.match(first) or _EVENT.match(first))

    def batches(self, path: Path, options: BambooOptions) -> Iterator[Batch]:
        """Return the rows of a file of either form."""
        events = self._is_event_list(path)
        constants: dict[str, Any] = {
            **(_event_market(path, options) if events else _count_market(path, options)),
            "source": options.source or f"{self.name}:{'events' if events else 'counts'}",
            "capacity": options.capacity or self._largest(path, options),
            "gap_seconds": 60 if events else None,
            "kind": "held",
            "truncated": False,
            "file": str(path),
        }
        rows = _event_rows(path, options) if events else _count_rows(path)
        return pack(rows, constants)

    def assumed(self, path: Path, options: BambooOptions) -> Iterator[str]:
        """Yield notes on missing date, time zone, place and capacity."""
        if not self._is_event_list(path):
            yield "no time zone in the file: times taken as UTC"
        else:
            if options.start is None:
                yield "undated events, counted from 1970-01-01 00:00 UTC: hour and weekday mean nothing"
            if options.zone is None:
                yield "zone and region unknown"
            if options.instance_type is None:
                yield "instance type taken as p3.2xlarge, the type the trace's authors used"
        if options.capacity is None:
            yield f"capacity taken as {self._largest(path, options)}, the largest count in the file"

    def _is_event_list(self, path: Path) -> bool:
        """Return whether the first line of a known form is an event; raises `SourceFileError` if no line has a known form."""
        lines = 0
        for lines, text in numbered_lines(path):  # noqa: B007 (how many there were is told below)
            if _EVENT.match(text):
                return True
            if _COUNT.match(text):
                return False
        found = "no line of the format" if lines else "an empty file"
        raise self.wrong(path, min(lines, 1), found)

    def _largest(self, path: Path, options: BambooOptions) -> int:
        rows = _event_rows(path, options) if self._is_event_list(path) else _count_rows(path)
        return max((int(row["available"]) for kind, row in rows if kind == "availability"), default=0)


def _count_market(path: Path, options: BambooOptions) -> dict[str, str]:
    zone = options.zone
    if zone is None and zone_in(path) is None and (match := _SHORT_ZONE.search(path.name.lower())):
        zone = f"us-{match[1]}-{match[2]}"
    return market_of(path, zone=zone, instance_type=options.instance_type)


def _event_market(path: Path, options: BambooOptions) -> dict[str, str]:
    if options.zone is not None:
        return market_of(path, zone=options.zone, instance_type=options.instance_type or _USUAL_TYPE)
    found = options.instance_type or instance_type_in(path, "aws") or _USUAL_TYPE
    return {"provider": "aws", "region": "unknown", "zone": "unknown", "instance_type": found}


def _count_rows(path: Path) -> Iterator[tuple[Kind, Row]]:
    for line, text in numbered_lines(path):
        match = _COUNT.match(text)
        if match is None:
            yield rejection(line, text, because("line.not_count" if text.strip() else "line.empty"))
        else:
            yield (
                "availability",
                {"observed_at": f"{match[1]} {match[2]}", "available": int(match[3]), "line": line},
            )


def _events(path: Path) -> tuple[list[_Event], list[tuple[Kind, Row]]]:
    """Return the usable events in time order, and the rejected lines."""
    found, rejected = [], []
    for line, text in numbered_lines(path):
        match = _EVENT.match(text) if is_text(text) else None
        if match is None:
            reason = because("line.not_event" if text.strip() else "line.empty")
            rejected.append(rejection(line, text, reason))
        elif int(match[1]) > _LONGEST_MS:
            rejected.append(rejection(line, text, because("event.too_late")))
        else:
            change = 1 if match[2] == "add" else -1
            found.append(_Event(line, int(match[1]), match[3], change))
    alive: set[str] = set()
    usable = []
    for event in _in_time_order(found):
        if (event.change > 0) == (event.node in alive):
            why = because("event.added_twice" if event.change > 0 else "event.removed_twice")
            raw = f"{event.at_ms},{'add' if event.change > 0 else 'remove'},{event.node}"
            rejected.append(rejection(event.line, raw, why))
            continue
        alive.symmetric_difference_update({event.node})
        usable.append(event)
    return usable, rejected


def _in_time_order(events: Sequence[_Event]) -> Iterator[_Event]:
    """Yield events by time; events of the same node in the same millisecond follow in the feasible order."""
    alive: set[str] = set()
    ordered = sorted(events, key=lambda event: (event.at_ms, event.node, event.change, event.line))
    for (_, node), group in groupby(ordered, key=lambda event: (event.at_ms, event.node)):
        removed: list[_Event] = []
        added: list[_Event] = []
        for event in group:
            (added if event.change > 0 else removed).append(event)
        first, second = (removed, added) if node in alive else (added, removed)
        for pair in zip_longest(first, second):
            for event in pair:
                if event is not None:
                    yield event
                    (alive.add if event.change > 0 else alive.discard)(node)


def _event_rows(path: Path, options: BambooOptions) -> Iterator[tuple[Kind, Row]]:
    events, rejected = _events(path)
    yield from rejected
    if not events:
        return
    start = options.start or UNDATED
    count, line, taken = 0, events[0].line, 0
    for minute in range(-(-events[-1].at_ms // _MINUTE_MS) + 1):
        while taken < len(events) and events[taken].at_ms <= minute * _MINUTE_MS:
            count += events[taken].change
            line = max(line, events[taken].line)
            taken += 1
        yield (
            "availability",
            {"observed_at": start + timedelta(minutes=minute), "available": count, "line": line},
        )
