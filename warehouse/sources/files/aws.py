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
from warehouse.sources.contract import (
    Batch,
    Kind,
    Options,
    Row,
    batch_of,
    label_option,
    pack,
    rejected_batch,
    rejection,
)
from warehouse.sources.files.reading import CsvChunk, FileSource, csv_chunks, head, read_json, region_of

_JSON = 'the JSON of describe-spot-price-history: {"SpotPriceHistory": [{"AvailabilityZone": ...}]}'
_TSV = "five fields separated by tabs: zone ID, instance type, product, price, time"
_FIELDS = ("AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice", "Timestamp")
_TSV_COLUMNS = ("zone", "instance_type", "product", "price_usd", "observed_at")
_TSV_LINE = re.compile(rb"^[a-z0-9-]+\t[a-z0-9.-]+\t[^\t\n]+\t[0-9.]+\t\S+\r?$")


class AwsOptions(Options):
    """Options of AWS price histories."""

    source: str = label_option("aws")


class Aws(FileSource[AwsOptions]):
    """Every record is one price row, in file order (AWS answers newest first).

    JSON (any name, also without an extension): ``line`` is the record number, the zone letter of the asking account
    is the zone. TSV without header (``.tsv``, ``.tsv.zst``, ``.tsv.gz``): ``line`` is the line, the zone ID (``use1-az6``) stays
    the zone, its region comes from ``data/aws_zone_ids.toml``; an unknown prefix is a rejected row. On-demand
    prices are in neither.
    """

    name = "aws"
    form = AwsOptions
    expected = f"{_JSON}, or {_TSV}"
    examples: Mapping[str, str] = {
        "history.json": """{"SpotPriceHistory": [{"AvailabilityZone": "us-east-1a", "InstanceType": "p3.2xlarge",
 "ProductDescription": "Linux/UNIX", "SpotPrice": "0.9180", "Timestamp": "2021-05-30T20:47:31+00:00"}]}""",
        "prices.tsv": "use1-az6\tp3.2xlarge\tLinux/UNIX\t0.918\t2022-05-31T18:20:41+00:00\n",
    }

    def recognised(self, path: Path) -> bool:
        """By the first line of an archive, or the start of the JSON: names tell nothing, often they are instance types."""
        if ".tsv" in path.suffixes:
            return bool(_TSV_LINE.match(head(path).split(b"\n", 1)[0]))
        start = head(path).removeprefix(b"\xef\xbb\xbf").lstrip()
        return start.startswith(b"{") and b'"SpotPriceHistory"' in start

    def batches(self, path: Path, options: AwsOptions) -> Iterator[Batch]:
        """The prices of one file."""
        if ".tsv" in path.suffixes:
            return _read_tsv(path, options.source)
        return self._read_json(path, options.source)

    def _read_json(self, path: Path, source: str) -> Iterator[Batch]:
        content = read_json(path, expected=_JSON, remedy=self.remedy)
        records = content.get("SpotPriceHistory") if isinstance(content, dict) else None
        if not isinstance(records, list):
            raise self.wrong(path, 1, "JSON without SpotPriceHistory")
        if not records:
            raise SourceFileError(
                path,
                1,
                "no record: AWS answered with an empty SpotPriceHistory",
                expected="at least one record",
                remedy="check the instance type and region of the request, and ask again",
            )
        constants = {"source": source, "provider": "aws", "file": str(path)}
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


def _read_tsv(path: Path, source: str) -> Iterator[Batch]:
    chunks = csv_chunks(path, check_header=lambda _: None, names=_TSV_COLUMNS, delimiter="\t")
    for chunk in chunks:
        if chunk.rejected:
            yield chunk.rejected_batch(path)
        if len(chunk):
            yield from _tsv_batches(path, chunk, source)


def _tsv_batches(path: Path, chunk: CsvChunk, source: str) -> Iterator[Batch]:
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
    constants = {"source": source, "provider": "aws", "file": str(path)}
    yield batch_of("price", table.num_rows, {**constants, **columns})
