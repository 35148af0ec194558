"""AWS spot price history: the JSON of ``aws ec2 describe-spot-price-history`` and the TSV archives made from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from warehouse.errors import SourceFileError
from warehouse.packaged import read_data
from warehouse.sources.contract import Batch, Kind, SourceOptions
from warehouse.sources.files.places import check_options, region_of
from warehouse.sources.files.reading import (
    CsvChunk,
    Row,
    batch_of,
    collect,
    csv_chunks,
    head,
    pack,
    read_json,
    rejected_batch,
    rejection,
    require_rows,
)

EXPECTED_JSON = 'the JSON of describe-spot-price-history: {"SpotPriceHistory": [{"AvailabilityZone": ...}]}'
EXPECTED_TSV = "five fields separated by tabs: zone ID, instance type, product, price, time"
REMEDY = "name another source"
_FIELDS = ("AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice", "Timestamp")
_TSV_COLUMNS = ("zone", "instance_type", "product", "price_usd", "observed_at")
_TSV_LINE = re.compile(rb"^[a-z0-9-]+\t[a-z0-9.-]+\t[^\t\n]+\t[0-9.]+\t\S+\r?$")


class Aws:
    """Every record is one price row, in file order (AWS answers newest first).

    JSON (any name, also without an extension): ``line`` is the record number, the zone letter of the asking account
    is the zone. TSV without header (``.tsv``, ``.tsv.zst``, ``.tsv.gz``): ``line`` is the line, the zone ID (``use1-az6``) stays
    the zone, its region comes from ``data/aws_zone_ids.toml``; an unknown prefix is a rejected row. On-demand
    prices are in neither.
    """

    name = "aws"
    options: Mapping[str, str] = {"source": "label of all rows (default: aws)"}

    def files(self, paths: Sequence[Path]) -> list[Path]:
        """Files named, and those anywhere below folders named, sorted; raises `SourceFileError` if none."""
        return collect(paths, _recognised, source=self.name, expected=f"{EXPECTED_JSON}, or {EXPECTED_TSV}")

    def read(self, path: Path, options: SourceOptions) -> Iterator[Batch]:
        """Yield the prices of one file; raises `SourceFileError` if it is of neither form or holds no record."""
        check_options(self, options)
        label = options.get("source") or self.name
        if ".tsv" in path.suffixes:
            return require_rows(_read_tsv(path, label), path, expected=EXPECTED_TSV, remedy=REMEDY)
        return require_rows(_read_json(path, label), path, expected=EXPECTED_JSON, remedy=REMEDY)

    def assumptions(self, path: Path, options: SourceOptions) -> tuple[str, ...]:
        """None: every record says what it is."""
        return ()


def _recognised(path: Path) -> bool:
    if ".tsv" in path.suffixes:
        return bool(_TSV_LINE.match(head(path).split(b"\n", 1)[0]))
    # Files are often named after the instance type, so the name tells nothing.
    start = head(path).removeprefix(b"\xef\xbb\xbf").lstrip()
    return start.startswith(b"{") and b'"SpotPriceHistory"' in start


def _read_json(path: Path, label: str) -> Iterator[Batch]:
    content = read_json(path, expected=EXPECTED_JSON, remedy=REMEDY)
    records = content.get("SpotPriceHistory") if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise SourceFileError(path, 1, "JSON without SpotPriceHistory", expected=EXPECTED_JSON, remedy=REMEDY)
    if not records:
        raise SourceFileError(
            path,
            1,
            "no record: AWS answered with an empty SpotPriceHistory",
            expected="at least one record",
            remedy="check the instance type and region of the request, and ask again",
        )
    constants = {"source": label, "provider": "aws", "file": str(path)}
    return pack(_json_rows(records), constants)


def _json_rows(records: Sequence[Any]) -> Iterator[tuple[Kind, Row]]:
    for line, record in enumerate(records, start=1):
        if not isinstance(record, dict) or not all(isinstance(record.get(f), str) for f in _FIELDS):
            missing = [
                f for f in _FIELDS if not isinstance(record, dict) or not isinstance(record.get(f), str)
            ]
            yield rejection(line, repr(record), f"record without {missing[0]} as text")
            continue
        place = region_of(record["AvailabilityZone"])
        if place is None or place[0] != "aws":
            yield rejection(line, repr(record), f"zone {record['AvailabilityZone']!r} is not an AWS zone")
            continue
        yield (
            "price",
            {
                "region": place[1],
                "zone": record["AvailabilityZone"],
                "instance_type": record["InstanceType"],
                "product": record["ProductDescription"],
                "price_usd": record["SpotPrice"],
                "observed_at": record["Timestamp"],
                "line": line,
            },
        )


def region_of_zone_id(zone_id: str) -> str | None:
    """Region of an AWS zone ID by its prefix, None if the prefix is unknown.

    >>> region_of_zone_id("use1-az6"), region_of_zone_id("moon1-az1")
    ('us-east-1', None)
    """
    prefix, separator, _ = zone_id.partition("-")
    found = read_data(__package__, "aws_zone_ids")["prefixes"].get(prefix)
    return str(found) if found and separator else None


def _read_tsv(path: Path, label: str) -> Iterator[Batch]:
    chunks = csv_chunks(path, check_header=lambda _: None, names=_TSV_COLUMNS, delimiter="\t")
    for chunk in chunks:
        if chunk.rejected:
            yield chunk.rejected_batch(path)
        if len(chunk):
            yield from _tsv_batches(path, chunk, label)


def _tsv_batches(path: Path, chunk: CsvChunk, label: str) -> Iterator[Batch]:
    # A file has few zones: look each up once, and spread the answer over the rows.
    zones = chunk.columns["zone"].dictionary_encode()
    regions = pa.array([region_of_zone_id(z) for z in zones.dictionary.to_pylist()], pa.string())
    region = regions.take(zones.indices)
    table = pa.table({**chunk.columns, "region": region, "line": chunk.lines})
    unknown = table.filter(pc.is_null(region))
    if unknown.num_rows:
        rejected = [
            (
                row["line"],
                "\t".join(row[c] for c in _TSV_COLUMNS),
                f"zone ID {row['zone']!r} has a prefix that aws_zone_ids.toml does not know",
            )
            for row in unknown.to_pylist()
        ]
        yield rejected_batch(path, rejected)
        table = table.filter(pc.is_valid(region))
    columns = {name: table[name] for name in table.column_names}
    constants = {"source": label, "provider": "aws", "file": str(path)}
    yield batch_of("price", table.num_rows, {**constants, **columns})
