"""SkyPilot spot traces: JSON with ``metadata.gap_seconds``, ``data`` (counts) and sometimes ``prices``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeGuard

from pydantic import Field

from slackwater.studies.sources.places import UNDATED, market_of, nodes_in, start_in
from slackwater.warehouse.amounts import LARGEST_COUNT
from slackwater.warehouse.columns import because
from slackwater.warehouse.errors import SourceFileError
from slackwater.warehouse.sources.contract import (
    Batch,
    Kind,
    Moment,
    Options,
    Row,
    label_option,
    pack,
    rejection,
)
from slackwater.warehouse.sources.files.reading import FileSource, head, read_json

_HUGE = 1e300
_LONGEST_GAP_SECONDS = 31 * 86_400
_LONGEST_SECONDS = 100 * 366 * 86_400


class SkyPilotOptions(Options):
    """Options of traces, whose files contain no zone, instance type or date."""

    start: Moment = Field(
        None, description="time of the first sample, ISO 8601 (default: from a folder such as aws-08-27-2023)"
    )
    zone: str | None = Field(None, description="zone of the trace (default: from the file name)")
    instance_type: str | None = Field(
        None, description="instance type of the trace (default: from the file name, v100_1 = p3.2xlarge)"
    )
    capacity: int | None = Field(
        None,
        ge=1,
        description="instances that were asked for (default: from a name such as 16-node, else the largest count)",
    )
    kind: Literal["probe", "held"] | None = Field(
        None, description="probe or held (default: from the folder availability or preemption)"
    )
    source: str | None = label_option(None, "skypilot, nodes and date as names give them")


class SkyPilot(FileSource[SkyPilotOptions]):
    """Each trace covers a single market: sample i (1-based, the ``line``) was taken at start + (i - 1) gap_seconds.

    Every sample yields an availability row and, if there are prices, a price row. The file contains
    no zone, instance type or date: they come from file and folder names
    (``16-node/aws-08-27-2023/us-west-2a_v100_1.json``) or from options. Kind: "probe" in a folder
    ``availability``, "held" in a folder ``preemption`` or with prices (only preemption traces have
    them), else "probe". The label is ``skypilot``, followed by nodes and date if names contain
    them: ``skypilot:16node:2023-08-27``.
    """

    name = "skypilot"
    form = SkyPilotOptions
    expected = 'a SkyPilot trace: {"metadata": {"gap_seconds": N}, "data": [counts], "prices": [optional]}'
    examples: Mapping[str, str] = {
        "us-west-2a_v100_1.json": '{"metadata": {"gap_seconds": 300}, "data": [1], "prices": [0.9]}'
    }

    def recognised(self, path: Path) -> bool:
        """Recognise the format by the suffix and a field near the start."""
        return path.suffix == ".json" and b'"gap_seconds"' in head(path)

    def batches(self, path: Path, options: SkyPilotOptions) -> Iterator[Batch]:
        """Return all samples of a trace; raises `SourceFileError` if its market is unknown."""
        trace = self._load(path)
        constants = {
            **market_of(path, zone=options.zone, instance_type=options.instance_type),
            "source": options.source or _label(path),
            "capacity": _capacity(path, options, trace)[0],
            "gap_seconds": round(trace["gap"]),
            "kind": options.kind or _kind(path, trace),
            "truncated": False,
            "product": "Linux/UNIX",
            "file": str(path),
        }
        return pack(_rows(trace, options.start or start_in(path) or UNDATED), constants)

    def assumed(self, path: Path, options: SkyPilotOptions) -> Iterator[str]:
        """Yield notes if date or capacity come neither from names nor from options (the time of day is never known)."""
        if options.start is None and start_in(path) is None:
            yield "undated trace, counted from 1970-01-01 00:00 UTC: hour and weekday mean nothing"
        capacity, assumed = _capacity(path, options, self._load(path))
        if assumed:
            yield f"capacity taken as {capacity}, the largest count in the trace"

    def _load(self, path: Path) -> dict[str, Any]:
        """Return gap (seconds), data and prices (None if absent) of a trace, after checking its form."""
        content = read_json(path, expected=self.expected, remedy=self.remedy)
        metadata = content.get("metadata") if isinstance(content, dict) else None
        gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
        if not _is_number(gap) or not 0 < gap <= _LONGEST_GAP_SECONDS:
            raise self.wrong(path, 1, "JSON without metadata.gap_seconds")
        data, prices = content.get("data"), content.get("prices")
        if not isinstance(data, list) or not (prices is None or isinstance(prices, list)):
            raise self.wrong(path, 1, "no list of counts under data")
        if not data:
            raise SourceFileError(
                path, 1, "a trace without samples", expected=self.expected, remedy="check that it is complete"
            )
        if len(data) * gap > _LONGEST_SECONDS:
            found = f"{len(data)} samples {gap:g} s apart, which is more than a century"
            raise SourceFileError(path, 1, found, expected=self.expected, remedy="check metadata.gap_seconds")
        if prices is not None and len(prices) != len(data):
            found = f"{len(prices)} prices for {len(data)} counts"
            raise SourceFileError(
                path, 1, found, expected="one price per count", remedy="check that it is complete"
            )
        return {"gap": float(gap), "data": data, "prices": prices}


def _is_number(value: object) -> TypeGuard[int | float]:
    # Compared, not converted: whole numbers in JSON may exceed any float. NaN fails both comparisons.
    return isinstance(value, int | float) and not isinstance(value, bool) and -_HUGE < value < _HUGE


def _rows(trace: Mapping[str, Any], start: datetime) -> Iterator[tuple[Kind, Row]]:
    step = timedelta(seconds=trace["gap"])
    prices = trace["prices"] or []
    for i, count in enumerate(trace["data"]):
        at = start + i * step
        if _is_number(count) and count == int(count):
            yield "availability", {"observed_at": at, "available": int(count), "line": i + 1}
        else:
            yield rejection(i + 1, repr(count), because("count.not_whole"))
        if i < len(prices):
            if _is_number(prices[i]):
                yield "price", {"observed_at": at, "price_usd": float(prices[i]), "line": i + 1}
            else:
                yield rejection(i + 1, repr(prices[i]), because("value.not_number", "price"))


def _label(path: Path) -> str:
    nodes, start = nodes_in(path), start_in(path)
    parts = ["skypilot", f"{nodes}node" if nodes else "", f"{start:%Y-%m-%d}" if start else ""]
    return ":".join(part for part in parts if part)


def _kind(path: Path, trace: Mapping[str, Any]) -> str:
    folders = {part.lower() for part in path.parts[:-1]}
    if "availability" in folders:
        return "probe"
    return "held" if "preemption" in folders or trace["prices"] is not None else "probe"


def _capacity(path: Path, options: SkyPilotOptions, trace: Mapping[str, Any]) -> tuple[int, bool]:
    """Return (capacity, whether it was assumed)."""
    stated = options.capacity or nodes_in(path)
    if stated:
        return stated, False
    return max((int(c) for c in trace["data"] if _is_number(c) and c <= LARGEST_COUNT), default=0), True
