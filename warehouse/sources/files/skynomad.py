"""SkyNomad histories: a CSV of dates and 0/1 availability, and JSON records of probe rounds over many zones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from warehouse.errors import SourceFileError
from warehouse.sources.contract import Batch, Kind, SourceOptions
from warehouse.sources.files.places import check_options, instance_type_in, market_of, region_of, whole_option
from warehouse.sources.files.reading import (
    Row,
    batch_of,
    collect,
    csv_chunks,
    head,
    numbered_lines,
    pack,
    read_json,
    rejection,
    require_rows,
    shown,
)

EXPECTED = "a CSV with the columns date,availability or the JSON of a probe round with zone_results"
REMEDY = "name another source"
_GAP_SAMPLE = 1000
_LONGEST_GAP_SECONDS = 31 * 86_400


class SkyNomad:
    """Every line of the CSV is one availability row (capacity 1); every zone of a probe round is one (its ``line``: 1-based
    place among the zones, by name).

    A round was observed when it was scheduled and known when it ended. Its instance type is not in the file: it comes from the
    file or folder name (``h100`` = a3-highgpu-1g) or the option. Zones probed without a result are rejected rows.
    """

    name = "skynomad"
    options: Mapping[str, str] = {
        "zone": "zone of a CSV (default: from the file name)",
        "instance_type": "instance type probed (default: from the file or folder name)",
        "capacity": "instances a line of the CSV asked for (default: 1)",
        "gap_seconds": "nominal seconds between lines of a CSV (default: the median of the first 1,000)",
        "source": "label of all rows (default: skynomad)",
    }

    def files(self, paths: Sequence[Path]) -> list[Path]:
        """Files named, and those anywhere below folders named, sorted; raises `SourceFileError` if none."""
        return collect(paths, _recognised, source=self.name, expected=EXPECTED)

    def read(self, path: Path, options: SourceOptions) -> Iterator[Batch]:
        """Yield the rows of one file; raises `SourceFileError` if it is of neither form."""
        check_options(self, options)
        label = options.get("source") or self.name
        reader = _read_round if path.suffix == ".json" else _read_csv
        batches = reader(path, options, label)
        return require_rows(batches, path, expected=EXPECTED, remedy=REMEDY)

    def assumptions(self, path: Path, options: SourceOptions) -> tuple[str, ...]:
        """None: times are real, and the capacity is what was asked for."""
        return ()


def _recognised(path: Path) -> bool:
    start = head(path)
    if path.suffix == ".json":
        return b'"zone_results"' in start or b'"total_instances_requested"' in start
    return path.suffix == ".csv" and start.removeprefix(b"\xef\xbb\xbf").startswith(b"date,availability")


def _read_csv(path: Path, options: SourceOptions, label: str) -> Iterator[Batch]:
    def check(names: Sequence[str]) -> None:
        if list(names) != ["date", "availability"]:
            raise SourceFileError(path, 1, f"columns {shown(names)}", expected=EXPECTED, remedy=REMEDY)

    constants: dict[str, Any] | None = None
    for chunk in csv_chunks(path, check_header=check):
        if constants is None:
            constants = {
                **market_of(path, options),
                "source": label,
                "capacity": whole_option(options, "capacity") or 1,
                "gap_seconds": whole_option(options, "gap_seconds") or _nominal_gap(path),
                "kind": "probe",
                "truncated": False,
                "file": str(path),
            }
        if chunk.rejected:
            yield chunk.rejected_batch(path)
        if len(chunk):
            found = {"observed_at": chunk.columns["date"], "available": chunk.columns["availability"]}
            yield batch_of("availability", len(chunk), {**constants, **found, "line": chunk.lines})


def _nominal_gap(path: Path) -> int | None:
    """Median seconds between the first lines of a CSV, None if fewer than two of them are dates."""
    times = []
    for _, text in islice(numbered_lines(path), 1, _GAP_SAMPLE + 1):
        try:
            times.append(datetime.fromisoformat(text.split(",")[0]).replace(tzinfo=None))
        except ValueError:
            continue
    gaps = [(b - a).total_seconds() for a, b in pairwise(times)]
    return round(median(gaps)) if gaps else None


def _read_round(path: Path, options: SourceOptions, label: str) -> Iterator[Batch]:
    content = read_json(path, expected=EXPECTED, remedy=REMEDY)
    results = content.get("zone_results") if isinstance(content, dict) else None
    if not isinstance(results, dict) or not isinstance(content.get("scheduled_at"), str):
        found = "JSON without zone_results and scheduled_at"
        raise SourceFileError(path, 1, found, expected=EXPECTED, remedy=REMEDY)
    ended, gap = content.get("ended_at"), content.get("interval_sec")
    constants = {
        "source": label,
        "observed_at": content["scheduled_at"],
        "known_at": ended if isinstance(ended, str) else None,
        "gap_seconds": gap if isinstance(gap, int) and 0 < gap <= _LONGEST_GAP_SECONDS else None,
        "kind": "probe",
        "truncated": False,
        "file": str(path),
    }
    return pack(_round_rows(path, options, content), constants)


def _round_rows(path: Path, options: SourceOptions, content: Mapping[str, Any]) -> Iterator[tuple[Kind, Row]]:
    results = content["zone_results"]
    probed = content.get("zones_probed")
    zones = sorted(
        {*results, *(z for z in (probed if isinstance(probed, list) else []) if isinstance(z, str))}
    )
    # Counts of a round that broke off are not what the market would have given.
    status = content.get("status", "success")
    for line, zone in enumerate(zones, start=1):
        result = results.get(zone)
        place = region_of(zone)
        if status != "success":
            yield rejection(line, zone, f"the probe round ended with status {status!r}")
        elif not isinstance(result, dict) or "instances_created" not in result:
            yield rejection(line, zone, "zone probed without a result")
        elif place is None:
            yield rejection(line, zone, f"zone {zone!r} is neither an AWS nor a Google Cloud zone")
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


def _round_type(path: Path, options: SourceOptions, provider: str) -> str:
    found = options.get("instance_type") or instance_type_in(path, provider)
    if found is None:
        remedy = "give it with the option instance_type=a3-highgpu-1g"
        raise SourceFileError(path, 0, "no instance type in the file or folder name", remedy=remedy)
    return found
