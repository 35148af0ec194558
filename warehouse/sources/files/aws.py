"""AWS spot price history: the output of ``aws ec2 describe-spot-price-history``, and tables and archives made from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from slackwater.warehouse.amounts import is_number, parsed_number
from slackwater.warehouse.catalogue import UNSPECIFIED, highest_likely_price
from slackwater.warehouse.columns import COLUMN, StatedReason, because, columns_of
from slackwater.warehouse.documents import read_data
from slackwater.warehouse.errors import SourceFileError
from slackwater.warehouse.sources.column_facts import (
    non_spot_columns,
    non_spot_fields,
    non_utc_zone,
    non_utc_zones,
    plain_name,
)
from slackwater.warehouse.sources.contract import (
    MILLISECONDS,
    NOT_UTF8,
    Batch,
    Kind,
    Options,
    Row,
    batch_of,
    is_text,
    label_option,
    pack,
    rejected_batch,
    rejection,
)
from slackwater.warehouse.sources.files.reading import (
    BadLine,
    CsvChunk,
    FileSource,
    column_names_text,
    csv_chunks,
    head,
    header_of,
    numbered_lines,
    read_json_values,
    region_of,
)

_EXPECTED = (
    "the output of `aws ec2 describe-spot-price-history` as JSON, JSON lines or --output text, a CSV with the columns "
    "AvailabilityZone, InstanceType, ProductDescription, SpotPrice and Timestamp, or five fields separated by tabs"
)
#: Columns of a text record, in the order of the AWS CLI -> field of the API.
_RECORD = {
    "zone": "AvailabilityZone",
    "instance_type": "InstanceType",
    "product": "ProductDescription",
    "price_usd": "SpotPrice",
    "observed_at": "Timestamp",
}
#: Other names of the fields: the zone ID if the zone is left out, and the price in AWS Tools for PowerShell.
_OTHER_NAMES = {"zone": ("AvailabilityZoneId",), "price_usd": ("Price",)}
#: Fields of tables made from the answer: the on-demand price, and columns that state another unit, currency or purchase option.
_ADDED = {column.name: column.names for column in (COLUMN["on_demand_usd"], *columns_of("price", "judged"))}
_TSV_LINE = re.compile(rb"^[a-z0-9-]+\t[a-z0-9.-]+\t[^\t\n]+\t[0-9.]+\t\S+\r?$")
_PREFIX, _TOKEN = "SPOTPRICEHISTORY", "NEXTTOKEN"
#: First bytes of AWS CLI output that is no record -> description and remedy.
_OTHER_OUTPUT: dict[tuple[bytes, ...], tuple[str, str]] = {
    (b"--", b"|", b"+-"): ("output of `--output table`", "ask again with `--output json` or `--output text`"),
    (b"An error occurred", b"Unable to locate credentials", b"usage: aws", b"aws: error"): (
        "an error message of the AWS CLI",
        "look at what the aws command says",
    ),
}
#: A field of a record in a line, as `--output yaml` and PowerShell's Format-List write it.
_FIELD_LINE = re.compile(rb"(- +)?[A-Za-z]+ *:\s")
_MORE_PAGES = because("answer.more_pages")
#: A page's token on a separate line; None means no further page.
_TOKEN_FORM = re.compile(r"^(None|[A-Za-z0-9+/=_-]{24,})$")
_TIME_FORM = re.compile(r"^\d{4}-\d{2}-\d{2}[T ]\S+")
#: Milliseconds in .NET's form, or seconds or milliseconds.
_EPOCH_FORM = re.compile(r"^(?:/Date\((\d{12,14})[+-]?\d*\)/|(\d{10}(?:\d{3})?(?:\.\d+)?))$")
#: Names of times of requests and instances.
_OTHER_TIME = re.compile(r"creat|launch|valid|expir|updat")
#: Multiple of on-demand from which a number without a name is taken for a fee: capacity blocks cost a third of on-demand or
#: more, for a day or longer.
_FEE = 5.0
_PRICE_FORM = re.compile(r"^\d*\.?\d+$")
_TYPE_FORM = re.compile(r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$")
_PRODUCTS = tuple(
    name + suffix
    for name in ("Linux/UNIX", "Red Hat Enterprise Linux", "SUSE Linux", "Windows")
    for suffix in ("", " (Amazon VPC)")
)


class AwsOptions(Options):
    """Options of AWS price histories."""

    instance_type: str | None = Field(
        None, description="instance type of all rows, where the file leaves it out (--query)"
    )
    product: str | None = Field(
        None, description="product of all rows, where the file leaves it out, such as Linux/UNIX"
    )
    source: str = label_option("aws")


class Aws(FileSource[AwsOptions]):
    """Price rows, a row per record, in file order (AWS returns newest first); without on-demand prices.

    - JSON (any name): the whole answer, several answers in sequence, a list of records, or a record
      per line; ``line`` is the number of the record.
    - ``--output text``, also with commas or spaces in place of tabs: a record per line, with or
      without the word SPOTPRICEHISTORY; the fields of a ``--query`` are recognised by their form,
      those of JSON objects with other names too.
    - CSV with the API's names for columns, in any order, with further columns.
    - Archives without header (``.tsv``, ``.tsv.zst``, ``.tsv.gz``): five fields.

    A zone letter is that of the requesting account and remains the zone. A zone ID (``use1-az6``) remains the
    zone too; its region comes from ``data/aws_zone_ids.toml``. Any other zone gives a rejected row with the
    zone's name. Prices of regions in mainland China are in yuan, so their rows are rejected unless the
    record states another currency. AWS states times in UTC. Records without a product get ``unspecified``.
    """

    name = "aws"
    form = AwsOptions
    expected = _EXPECTED
    examples: Mapping[str, str] = {
        "history.json": """{"SpotPriceHistory": [{"AvailabilityZone": "us-east-1a", "InstanceType": "p3.2xlarge",
 "ProductDescription": "Linux/UNIX", "SpotPrice": "0.9180", "Timestamp": "2021-05-30T20:47:31+00:00"}]}""",
        "prices.tsv": "use1-az6\tp3.2xlarge\tLinux/UNIX\t0.918\t2022-05-31T18:20:41+00:00\n",
        "history.txt": "SPOTPRICEHISTORY\tus-east-1a\tp3.2xlarge\tLinux/UNIX\t0.918\t2022-05-31T18:20:41+00:00\n",
        "history.csv": "Timestamp,AvailabilityZone,InstanceType,ProductDescription,SpotPrice\n"
        "2022-05-31 18:20:41+00:00,us-east-1a,p3.2xlarge,Linux/UNIX,0.918\n",
        "history.jsonl": '{"AvailabilityZone": "us-east-1a", "InstanceType": "p3.2xlarge", "ProductDescription": "Linux/UNIX", '
        '"SpotPrice": "0.918", "Timestamp": "2022-05-31T18:20:41+00:00"}\n',
    }

    def recognised(self, path: Path) -> bool:
        """Recognise the format by the first bytes: names are unreliable, often they are instance types."""
        start = head(path).lstrip()
        if start[:1] in (b"{", b"["):
            return b'"SpotPriceHistory"' in start or (b'"AvailabilityZone' in start and b'"Spot' in start)
        first = start.split(b"\n", 1)[0]
        if first.startswith(_PREFIX.encode()) or _TSV_LINE.match(first):
            return True
        if {"zone", "price_usd", "observed_at"} <= _fields(
            _split_line(first.decode("utf-8", "replace"))
        ).keys():
            return True  # `--output text` of a --query has no header
        return _columns(header_of(path)[0]) is not None

    def batches(self, path: Path, options: AwsOptions) -> Iterator[Batch]:
        """Return the prices of a file, whose form is recognised by its first bytes."""
        start = head(path).lstrip()
        for beginnings, (found, remedy) in _OTHER_OUTPUT.items():
            if start.startswith(beginnings):
                raise SourceFileError(path, 1, found, expected=self.expected, remedy=remedy)
        if _FIELD_LINE.match(start):
            found = "a line per field, as of `--output yaml` or Format-List"
            remedy = "ask again with `--output json`, or pipe PowerShell's objects into ConvertTo-Json"
            raise SourceFileError(path, 1, found, expected=self.expected, remedy=remedy)
        constants = {
            "source": options.source,
            "provider": "aws",
            "instance_type": options.instance_type,
            "product": options.product or UNSPECIFIED,
            "file": str(path),
        }
        if start[:1] in (b"{", b"["):
            return pack(self._json_rows(path, options), constants)
        first = start.split(b"\n", 1)[0]
        if ".tsv" in path.suffixes and _TSV_LINE.match(first):
            return _table(
                path,
                constants,
                csv_chunks(path, check_header=lambda _: None, names=list(_RECORD), delimiter="\t"),
            )
        names, delimiter = header_of(path)
        if (columns := _columns(names)) is not None:
            if "instance_type" not in columns and options.instance_type is None:
                raise SourceFileError(
                    path,
                    1,
                    f"no column InstanceType among {column_names_text(names)}",
                    remedy="state it with --set instance_type=NAME",
                )
            chunks = csv_chunks(path, check_header=lambda _: None, delimiter=delimiter)
            return _table(path, constants, chunks, columns)
        if delimiter in first.decode("utf-8", "replace") and not any(map(_known_form, names)):
            raise self.wrong(path, 1, f"columns {column_names_text(names)}")
        return pack(_text_rows(path, options), constants)

    def _json_rows(self, path: Path, options: AwsOptions) -> Iterator[tuple[Kind, Row]]:
        line = 0
        tokens: list[object] = []
        for value in read_json_values(path, expected=self.expected, remedy=self.remedy):
            for record, token in _records(value):
                if token is not None:
                    tokens.append(token)
                    continue
                line += 1
                yield _json_row(line, record, options)
        if line == 0 and tokens:
            raise SourceFileError(
                path,
                1,
                "no record: AWS answered with an empty SpotPriceHistory",
                expected="at least one record",
                remedy="check the instance type and region of the request, and ask again",
            )
        if tokens and tokens[-1] and all(tokens):
            yield rejection(line, f"NextToken: {tokens[-1]}", _MORE_PAGES)


def _records(value: Any) -> Iterator[tuple[Any, object | None]]:
    """Yield (record, None) for the records of a JSON value, and (None, token) per page ("" for the last page)."""
    if isinstance(value, list):
        if (
            value
            and all(isinstance(field, str | int | float) for field in value)
            and any(isinstance(field, str) and _TIME_FORM.match(field) for field in value)
        ):
            yield value, None  # from `--query 'SpotPriceHistory[*].[AvailabilityZone,SpotPrice,Timestamp]'`
            return
        for inner in value:
            yield from _records(inner)
    elif isinstance(value, dict) and isinstance(value.get("SpotPriceHistory"), list):
        for record in value["SpotPriceHistory"]:
            yield record, None
        yield None, value.get("NextToken") or ""
    else:
        yield value, None


def _json_row(line: int, record: Any, options: AwsOptions) -> tuple[Kind, Row]:
    if isinstance(record, BadLine):
        return rejection(line, record.raw, record.reason)
    if isinstance(record, list):
        return _row(line, repr(record), _by_form([str(field) for field in record]), options)
    if not isinstance(record, dict):
        return rejection(line, repr(record), because("record.not_price"))
    plain = {plain_name(str(name)): _scalar(value) for name, value in record.items()}
    found: dict[str, str] = {}
    for column, name in _RECORD.items():
        # In a record with a field SpotPrice, empty or not, Price is another price.
        others = () if column == "price_usd" and plain_name(name) in plain else _OTHER_NAMES.get(column, ())
        for spelling in (name, *others):
            if value := plain.pop(plain_name(spelling), ""):
                found.setdefault(column, value)
    # Names of a --query, as in {az: AvailabilityZone, price: SpotPrice}. A number without a name of
    # the spot price may be another price; a request or an instance has times, and its SpotPrice is the bid.
    named = [value for name, value in plain.items() if not _OTHER_TIME.search(name)]
    found = (
        non_spot_fields(plain)
        | _by_form([value for value in named if _known_form(value) not in ("", "price_usd", *found)])
        | found
        | {column: plain[name] for column, name in _added_columns(plain).items() if plain[name]}
    )
    if "observed_at" in found:
        found["observed_at"] = _time_text(found["observed_at"])
        if zone := non_utc_zone(plain, found["observed_at"]):
            return rejection(line, repr(record), because("time.other_zone", repr(zone)))
    return _row(line, repr(record), found, options, named=True)


def _added_columns(plain: Iterable[str]) -> dict[str, str]:
    """Return canonical column -> plain name of the fields of `_ADDED` among plain names."""
    names = set(plain)
    return {
        column: found[0]
        for column, known in _ADDED.items()
        if (found := [name for name in map(plain_name, known) if name in names])
    }


def _scalar(value: Any) -> str:
    """Return a JSON value as text, "" if it has no single value."""
    if isinstance(value, dict):  # from PowerShell's ConvertTo-Json
        value = value.get("Value")
    single = isinstance(value, str | int | float) and not isinstance(value, bool)
    return str(value).strip() if single else ""


def _time_text(text: str) -> str:
    """Return ISO 8601 for seconds or milliseconds since 1970, as pandas and PowerShell write times; other texts unchanged.

    >>> _time_text("1743298200000"), _time_text("/Date(1743298200000)/"), _time_text("2025-03-30")
    ('2025-03-30T01:30:00+00:00', '2025-03-30T01:30:00+00:00', '2025-03-30')
    """
    match = _EPOCH_FORM.match(text)
    if match is None:
        return text
    since = float(match[1] or match[2])
    return datetime.fromtimestamp(since / 1000 if since >= MILLISECONDS else since, UTC).isoformat()


def _row(
    line: int, raw: str, found: Mapping[str, str], options: AwsOptions, *, named: bool = False
) -> tuple[Kind, Row]:
    """Return the price row of a record's fields, or a rejection; ``named``: a field name says that it is the spot price."""
    for column, name in _RECORD.items():
        if column not in found and column != "product" and getattr(options, column, None) is None:
            remedy = "; state it with --set instance_type=NAME" if column == "instance_type" else ""
            return rejection(line, raw, because("record.lacks", f"{name}{remedy}"))
    region = region_in(found["zone"])
    if region is None:
        return rejection(line, raw, _unknown_zone(found["zone"]))
    if not named and "product" not in found and _is_fee(found):
        return rejection(line, raw, because("price.fee", found["price_usd"], f"{_FEE:g}"))
    return "price", {"currency": currency_of(region), **found, "region": region, "line": line}


def _is_fee(found: Mapping[str, str]) -> bool:
    """Return whether a number without a name is far above on-demand, as the fee of a capacity block for its days is."""
    usd = parsed_number(found["price_usd"]) if is_number(found["price_usd"]) else 0.0
    return usd > _FEE * highest_likely_price("aws", found.get("instance_type", ""))


def _unknown_zone(zone: str) -> StatedReason:
    return because("zone.unknown", f"{zone!r}:", "no AWS zone or zone ID of a known region")


def _text_rows(path: Path, options: AwsOptions) -> Iterator[tuple[Kind, Row]]:
    """Yield the records of `--output text`, one per line."""
    more = ""
    for line, text in numbered_lines(path):
        fields = _split_line(text)
        if fields[0].upper() == _PREFIX:
            fields = fields[1:]
        if not any(fields):
            yield rejection(line, text, because("line.empty"))
        elif fields[0].upper() == _TOKEN or (len(fields) == 1 and _TOKEN_FORM.match(fields[0])):
            more = "" if fields[-1] in ("None", "") else text
        elif not is_text(text):
            yield rejection(line, text, NOT_UTF8)
        else:
            yield _row(line, text, _fields(fields), options)
    if more:
        yield rejection(line, more, _MORE_PAGES)


def _split_line(text: str) -> list[str]:
    """Split a line at tabs, else at commas (``jq -r @csv``), else at spaces (``awk``)."""
    if "\t" in text:
        fields = text.split("\t")
    elif "," in text:
        fields = [field.strip().strip('"') for field in text.split(",")]  # no field of a record has a comma
    else:
        fields = text.split()
    return [field.strip() for field in fields] or [""]


def _fields(fields: Sequence[str]) -> dict[str, str]:
    """Assign the fields of a text record to columns: by position for a complete record, else by form."""
    if len(fields) == len(_RECORD) + 1 and region_of_zone_id(fields[1]):
        fields = [fields[0], *fields[2:]]  # the zone ID follows the zone
    in_place = zip(_RECORD, map(_known_form, fields), strict=False)
    if len(fields) == len(_RECORD) and all(form in ("", column) for column, form in in_place):
        return dict(zip(_RECORD, fields, strict=True))
    return _by_form(fields)


def _by_form(fields: Sequence[str]) -> dict[str, str]:
    """Assign fields in any order to columns by their form; empty if a field is unknown or two fields match the same column."""
    found: dict[str, str] = {}
    for field in fields:
        column = _known_form(field)
        if not column or column in found:
            return {}
        found[column] = field
    return found


def _known_form(field: str) -> str:
    """Return the column that matches the form of a field, "" if none."""
    if region_in(field) is not None:
        return "zone"
    if field in _PRODUCTS:
        return "product"
    forms = {"observed_at": _TIME_FORM, "price_usd": _PRICE_FORM, "instance_type": _TYPE_FORM}
    return next((column for column, form in forms.items() if form.match(field)), "")


def _columns(names: Sequence[str]) -> dict[str, str] | None:
    """Return canonical column -> name in a header, None if it is no header of spot prices."""
    plain = {plain_name(name): name for name in names}
    found: dict[str, str] = {}
    for column, name in _RECORD.items():
        for spelling in (name, *_OTHER_NAMES.get(column, ())):
            if plain_name(spelling) in plain:
                found.setdefault(column, plain[plain_name(spelling)])
    if not {"zone", "price_usd", "observed_at"} <= set(found):
        return None
    return found | {column: plain[name] for column, name in _added_columns(plain).items()}


def region_in(zone: str) -> str | None:
    """Return the region of an AWS zone or zone ID, None if it is neither.

    >>> region_in("us-east-1a"), region_in("use1-az6"), region_in("us-east1-b")
    ('us-east-1', 'us-east-1', None)
    """
    place = region_of(zone)
    return place[1] if place is not None and place[0] == "aws" else region_of_zone_id(zone)


def currency_of(region: str) -> str:
    """Return the currency of AWS's prices in a region: the regions of mainland China have theirs in yuan.

    >>> currency_of("cn-north-1"), currency_of("ca-central-1")
    ('CNY', 'USD')
    """
    return "CNY" if region.startswith("cn-") else "USD"


def region_of_zone_id(zone_id: str) -> str | None:
    """Return the region of an AWS zone ID by its prefix, None if the prefix is unknown.

    >>> region_of_zone_id("use1-az6"), region_of_zone_id("moon1-az1")
    ('us-east-1', None)
    """
    prefix, separator, _ = zone_id.partition("-")
    found = read_data(__package__, "aws_zone_ids")["prefixes"].get(prefix)
    return str(found) if found and separator else None


def _table(
    path: Path,
    constants: Mapping[str, Any],
    chunks: Iterator[CsvChunk],
    columns: Mapping[str, str] | None = None,
) -> Iterator[Batch]:
    """Yield the rows of a table; ``columns``: canonical column -> column of the table, if they differ."""
    for chunk in chunks:
        if chunk.rejected:
            yield chunk.rejected_batch(path)
        if len(chunk):
            known = columns or dict(zip(_RECORD, _RECORD, strict=True))
            own = non_spot_columns(chunk.columns, known.values()) | {
                name: chunk.columns[column] for name, column in known.items()
            }
            zones = non_utc_zones(chunk.columns, own["observed_at"])
            yield from _table_batches(path, own, chunk.lines, constants, zones)


def _table_batches(
    path: Path,
    columns: Mapping[str, pa.Array],
    lines: pa.Array,
    constants: Mapping[str, Any],
    other: Sequence[str | None],
) -> Iterator[Batch]:
    """Yield the rows of a table; ``other``: zones of times that are not in UTC."""
    # A file has few zones: look up each once and assign the result to its rows.
    zones = columns["zone"].dictionary_encode()
    regions = pa.array([region_in(zone.strip()) for zone in zones.dictionary.to_pylist()], pa.string())
    region = regions.take(zones.indices)
    currencies = [currency_of(region or "") for region in regions.to_pylist()]
    if set(currencies) - {"USD"}:
        columns = {"currency": pa.array(currencies, pa.string()).take(zones.indices), **columns}
    table = pa.table({**columns, "region": region, "line": lines})
    usable = pc.and_(pc.is_valid(region), pc.is_null(pa.array(other, pa.string())))
    if not pc.all(usable).as_py():
        zones_of_time = pa.array(other, pa.string()).filter(pc.invert(usable)).to_pylist()
        rejected = [
            (
                row["line"],
                "\t".join(row[name] or "" for name in columns),
                _unknown_zone(row["zone"]) if zone is None else because("time.other_zone", repr(zone)),
            )
            for row, zone in zip(table.filter(pc.invert(usable)).to_pylist(), zones_of_time, strict=True)
        ]
        yield rejected_batch(path, rejected)
        table = table.filter(usable)
    found = {name: table[name] for name in table.column_names}
    yield batch_of("price", table.num_rows, {**constants, **found})
