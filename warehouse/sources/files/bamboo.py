"""Bamboo traces: a list of times and counts (Google Cloud), and a list of nodes added and removed (AWS p3)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from warehouse.errors import SourceFileError
from warehouse.sources.contract import Batch, Kind, SourceOptions
from warehouse.sources.files.places import (
    UNDATED,
    check_options,
    instance_type_in,
    market_of,
    time_option,
    whole_option,
    zone_in,
)
from warehouse.sources.files.reading import Row, collect, head, numbered_lines, pack, rejection, require_rows

EXPECTED = "lines such as `2021-12-10, 13:07:45, 80` or `60000,add,node19`"
REMEDY = "name another source"
_COUNT = re.compile(r"^(\d{4}-\d{2}-\d{2})\s*,\s*(\d{2}:\d{2}:\d{2})\s*,\s*(\d+)\s*$")
_EVENT = re.compile(r"^(\d+)\s*,\s*(add|remove)\s*,\s*(\S+)\s*$")
# Bamboo shortens Google Cloud zones: east1c is us-east1-c.
_SHORT_ZONE = re.compile(r"(?<![a-z0-9])((?:east|west|central)\d)([a-z])(?![a-z0-9])")
_MINUTE_MS = 60_000
# A count a minute is written out up to the last event: a mistyped time must not fill the disk.
_LONGEST_MS = 366 * 24 * 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True)
class _Event:
    line: int
    at_ms: int
    node: str
    change: int


class Bamboo:
    """Counts: every line is one row, in file order (the file is not in time order and repeats times: the last line wins).

    Events: the nodes alive at every whole minute from 0 to the minute of the last event, all events up to and including it
    counted; ``line`` is the last line counted so far. An event that adds a node that is there, or removes one that is not, is
    rejected and does not count. Undated events count from 1970-01-01, market
    ``aws/unknown/unknown/p3.2xlarge`` unless options say more.
    """

    name = "bamboo"
    options: Mapping[str, str] = {
        "start": "time of minute 0 of an event list, ISO 8601 (default: 1970-01-01)",
        "zone": "zone (default of a count list: from a name such as east1c; of an event list: unknown)",
        "instance_type": "instance type (default: from a name such as v100x1; of an event list: p3.2xlarge)",
        "capacity": "instances that were asked for (default: the largest count)",
        "source": "label of all rows (default: bamboo:counts or bamboo:events, the latter without a real clock)",
    }

    def files(self, paths: Sequence[Path]) -> list[Path]:
        """Files named, and those anywhere below folders named, sorted; raises `SourceFileError` if none."""
        return collect(paths, _recognised, source=self.name, expected=EXPECTED)

    def read(self, path: Path, options: SourceOptions) -> Iterator[Batch]:
        """Yield the rows of one file; raises `SourceFileError` if no line of it is of either form."""
        check_options(self, options)
        events = _is_event_list(path)
        constants: dict[str, Any] = {
            **(_event_market(path, options) if events else _count_market(path, options)),
            "source": options.get("source") or f"{self.name}:{'events' if events else 'counts'}",
            "capacity": whole_option(options, "capacity") or _largest(path, options),
            "gap_seconds": 60 if events else None,
            "kind": "held",
            "truncated": False,
            "file": str(path),
        }
        rows = _event_rows(path, options) if events else _count_rows(path)
        return require_rows(pack(rows, constants), path, expected=EXPECTED, remedy=REMEDY)

    def assumptions(self, path: Path, options: SourceOptions) -> tuple[str, ...]:
        """The missing date, time zone, place and capacity."""
        said = []
        if not _is_event_list(path):
            said.append("no time zone in the file: times taken as UTC")
        else:
            if time_option(options, "start") is None:
                said.append(
                    "undated events, counted from 1970-01-01 00:00 UTC: hour and weekday mean nothing"
                )
            if options.get("zone") is None:
                said.append("zone and region unknown")
            if options.get("instance_type") is None:
                said.append("instance type taken as p3.2xlarge, the type the trace's authors used")
        if whole_option(options, "capacity") is None:
            said.append(f"capacity taken as {_largest(path, options)}, the largest count in the file")
        return tuple(said)


def _recognised(path: Path) -> bool:
    first = head(path).split(b"\n", 1)[0].decode("utf-8", errors="replace").strip()
    return path.suffix in (".txt", ".csv") and bool(_COUNT.match(first) or _EVENT.match(first))


def _is_event_list(path: Path) -> bool:
    """Which of the two forms a file has, by its first line that has either; raises `SourceFileError` if none has."""
    lines = 0
    for lines, text in numbered_lines(path):  # noqa: B007 (how many there were is told below)
        if _EVENT.match(text):
            return True
        if _COUNT.match(text):
            return False
    found = "no line of the format" if lines else "an empty file"
    raise SourceFileError(path, min(lines, 1), found, expected=EXPECTED, remedy=REMEDY)


def _count_market(path: Path, options: SourceOptions) -> dict[str, str]:
    values = dict(options.values)
    if "zone" not in values and zone_in(path) is None:
        match = _SHORT_ZONE.search(path.name.lower())
        if match:
            values["zone"] = f"us-{match[1]}-{match[2]}"
    return market_of(path, SourceOptions(values=values))


def _event_market(path: Path, options: SourceOptions) -> dict[str, str]:
    if options.get("zone") is not None:
        values = {"instance_type": "p3.2xlarge", **options.values}
        return market_of(path, SourceOptions(values=values))
    found = options.get("instance_type") or instance_type_in(path, "aws") or "p3.2xlarge"
    return {"provider": "aws", "region": "unknown", "zone": "unknown", "instance_type": found}


def _count_rows(path: Path) -> Iterator[tuple[Kind, Row]]:
    for line, text in numbered_lines(path):
        match = _COUNT.match(text)
        if match is None:
            yield rejection(line, text, "not `date, time, count`" if text.strip() else "empty line")
        else:
            yield (
                "availability",
                {"observed_at": f"{match[1]} {match[2]}", "available": int(match[3]), "line": line},
            )


def _events(path: Path) -> tuple[list[_Event], list[tuple[Kind, Row]]]:
    """Usable events in time order (file order within a millisecond) and the rejected lines."""
    found, rejected = [], []
    for line, text in numbered_lines(path):
        match = _EVENT.match(text)
        if match is None:
            reason = "not `milliseconds,add|remove,node`" if text.strip() else "empty line"
            rejected.append(rejection(line, text, reason))
        elif int(match[1]) > _LONGEST_MS:
            rejected.append(rejection(line, text, "event more than a year after the start"))
        else:
            change = 1 if match[2] == "add" else -1
            found.append(_Event(line, int(match[1]), match[3], change))
    alive: set[str] = set()
    usable = []
    for event in sorted(found, key=lambda e: e.at_ms):
        if (event.change > 0) == (event.node in alive):
            what = "adds a node that is there" if event.change > 0 else "removes a node that is not there"
            raw = f"{event.at_ms},{'add' if event.change > 0 else 'remove'},{event.node}"
            rejected.append(rejection(event.line, raw, f"event {what}"))
            continue
        alive.symmetric_difference_update({event.node})
        usable.append(event)
    return usable, rejected


def _event_rows(path: Path, options: SourceOptions) -> Iterator[tuple[Kind, Row]]:
    events, rejected = _events(path)
    yield from rejected
    if not events:
        return
    start = time_option(options, "start") or UNDATED
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


def _largest(path: Path, options: SourceOptions) -> int:
    rows = _event_rows(path, options) if _is_event_list(path) else _count_rows(path)
    return max((int(row["available"]) for kind, row in rows if kind == "availability"), default=0)
