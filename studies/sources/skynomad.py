"""SkyNomad histories: a CSV of dates and 0/1 availability, and JSON records of probe rounds over many zones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import Field

from slackwater.studies.sources.places import instance_type_in, market_of
from slackwater.warehouse.columns import because
from slackwater.warehouse.errors import SourceFileError
from slackwater.warehouse.sources.contract import (
    Batch,
    Kind,
    Options,
    Row,
    SourceOptions,
    batch_of,
    label_option,
    pack,
    rejection,
)
from slackwater.warehouse.sources.files.reading import (
    FileSource,
    column_names_text,
    csv_chunks,
    head,
    numbered_lines,
    read_json,
    region_of,
)

_LONGEST_GAP_SECONDS = 31 * 86_400


class SkyNomadOptions(Options):
    """Options of histories and probe rounds."""

    zone: str | None = Field(None, description="zone of a CSV (default: from the file name)")
    instance_type: str | None = Field(
        None, description="instance type probed (default: from the file or folder name)"
    )
    capacity: int = Field(1, ge=1, description="instances a line of the CSV asked for (default: 1)")
    gap_seconds: int | None = Field(
        None, ge=1, description="nominal seconds between lines of a CSV (default: the median)"
    )
    source: str = label_option("skynomad")


class SkyNomad(FileSource[SkyNomadOptions]):
    """Availability of a CSV (a row per line, capacity 1) or of a probe round (a row per zone).

    ``line`` of a round is the 1-based index of the zone, sorted by name. A round is observed when it was
    scheduled and known when it ended. Its instance type is not in the file: it comes from the file or folder
    name (``h100`` = a3-highgpu-1g) or the option. Zones probed without a result are rejected rows.
    """

    name = "skynomad"
    form = SkyNomadOptions
    expected = "a CSV with the columns date,availability or the JSON of a probe round with zone_results"
    examples: Mapping[str, str] = {
        "us-west-2a_v100_1.csv": "date,availability\n2023-02-15 22:08:16,1\n",
        "h100_round.json": """{"scheduled_at": "2025-10-03T17:10:00-07:00", "ended_at": "2025-10-03", "interval_sec": 600,
 "zones_probed": ["us-east4-a"], "zone_results": {"us-east4-a": {"instances_created": 3, "instances_requested": 16}}}""",
    }

    def recognised(self, path: Path) -> bool:
        """Recognise the format by the suffix and fields near the start."""
        start = head(path)
        if path.suffix == ".json":
            return b'"zone_results"' in start or b'"total_instances_requested"' in start
        return path.suffix == ".csv" and start.removeprefix(b"\xef\xbb\xbf").startswith(b"date,availability")

    def time_zone(self, path: Path, options: SourceOptions) -> str:
        """Return "UTC" for a CSV, "" for a round, whose times have the offset of the prober's location."""
        return "" if _is_round(path) else "UTC"

    def batches(self, path: Path, options: SkyNomadOptions) -> Iterator[Batch]:
        """Return the rows of a file."""
        return self._read_round(path, options) if _is_round(path) else self._read_csv(path, options)

    def _read_csv(self, path: Path, options: SkyNomadOptions) -> Iterator[Batch]:
        def check(names: Sequence[str]) -> None:
            if list(names) != ["date", "availability"]:
                raise self.wrong(path, 1, f"columns {column_names_text(names)}")

        constants: dict[str, Any] | None = None
        for chunk in csv_chunks(path, check_header=check):
            if constants is None:
                constants = {
                    **market_of(path, zone=options.zone, instance_type=options.instance_type),
                    "source": options.source,
                    "capacity": options.capacity,
                    "gap_seconds": options.gap_seconds or _nominal_gap(path),
                    "kind": "probe",
                    "truncated": False,
                    "file": str(path),
                }
            if chunk.rejected:
                yield chunk.rejected_batch(path)
            if len(chunk):
                found = {"observed_at": chunk.columns["date"], "available": chunk.columns["availability"]}
                yield batch_of("availability", len(chunk), {**constants, **found, "line": chunk.lines})

    def _read_round(self, path: Path, options: SkyNomadOptions) -> Iterator[Batch]:
        content = read_json(path, expected=self.expected, remedy=self.remedy)
        results = content.get("zone_results") if isinstance(content, dict) else None
        if not isinstance(results, dict) or not isinstance(content.get("scheduled_at"), str):
            raise self.wrong(path, 1, "JSON without zone_results and scheduled_at")
        ended, gap = content.get("ended_at"), content.get("interval_sec")
        constants = {
            "source": options.source,
            "observed_at": content["scheduled_at"],
            "known_at": ended if isinstance(ended, str) else None,
            "gap_seconds": gap if isinstance(gap, int) and 0 < gap <= _LONGEST_GAP_SECONDS else None,
            "kind": "probe",
            "truncated": False,
            "file": str(path),
        }
        return pack(_round_rows(path, options, content), constants)


def _is_round(path: Path) -> bool:
    return head(path).lstrip()[:1] in (b"{", b"[") or path.suffix == ".json"


def _nominal_gap(path: Path) -> int | None:
    """Return the median seconds between the times of a CSV, sorted; None if fewer than two lines have a time."""
    times = []
    for _, text in islice(numbered_lines(path), 1, None):
        try:
            times.append(datetime.fromisoformat(text.split(",")[0]).replace(tzinfo=None))
        except ValueError:
            continue
    gaps = [(b - a).total_seconds() for a, b in pairwise(sorted(times))]
    return round(median(gaps)) if gaps else None


def _round_rows(
    path: Path, options: SkyNomadOptions, content: Mapping[str, Any]
) -> Iterator[tuple[Kind, Row]]:
    results = content["zone_results"]
    probed = content.get("zones_probed")
    zones = sorted(
        {*results, *(z for z in (probed if isinstance(probed, list) else []) if isinstance(z, str))}
    )
    # Counts of an interrupted round do not describe the market.
    status = content.get("status", "success")
    for line, zone in enumerate(zones, start=1):
        result = results.get(zone)
        place = region_of(zone)
        if status != "success":
            yield rejection(line, zone, because("probe.interrupted", repr(status)))
        elif not isinstance(result, dict) or "instances_created" not in result:
            yield rejection(line, zone, because("probe.no_result"))
        elif place is None:
            yield rejection(line, zone, because("zone.other_cloud", repr(zone)))
        else:
            yield (
                "availability",
                {
                    "provider": place[0],
                    "region": place[1],
                    "zone": zone,
                    "instance_type": _round_type(path, options, place[0]),
                    "available": result["instances_created"],
                    "capacity": result.get("instances_requested"),
                    "line": line,
                },
            )


def _round_type(path: Path, options: SkyNomadOptions, provider: str) -> str:
    found = options.instance_type or instance_type_in(path, provider)
    if found is None:
        remedy = "give it with the option instance_type=a3-highgpu-1g"
        raise SourceFileError(path, 0, "no instance type in the file or folder name", remedy=remedy)
    return found
