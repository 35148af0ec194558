"""Tidy tables of prices and availability, CSV or Parquet: the format of the open data set and of our own exports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, field_validator

from slackwater.warehouse.amounts import is_number
from slackwater.warehouse.catalogue import gpus_of, named_gpus, provider_names
from slackwater.warehouse.columns import BOTH, COLUMNS, because, columns_of
from slackwater.warehouse.columns import Kind as Form
from slackwater.warehouse.errors import SourceFileError
from slackwater.warehouse.sources.column_facts import (
    PER_GPU,
    counts_by_name,
    counts_gpus,
    currency_of,
    distinct_texts,
    ending_columns,
    gpus_in,
    is_flag,
    is_text_type,
    non_spot_columns,
    non_utc_zones,
    plain_name,
    price_unit,
    time_of,
    usage_column,
    with_points,
    zone_of,
)
from slackwater.warehouse.sources.contract import (
    NOT_UTF8,
    Batch,
    Moment,
    Options,
    Table,
    batch_of,
    is_text,
    iso_of_epoch,
    label_option,
    rejected_batch,
)
from slackwater.warehouse.sources.files.reading import (
    FileSource,
    column_names_text,
    csv_chunks,
    head,
    header_of,
    region_of,
)

_KEY = ("provider", "region", "zone", "instance_type")
#: Canonical column -> names recognised without a map, the tidy name first; compared after `plain_name`.
NAMES: dict[str, tuple[str, ...]] = {column.name: column.names for column in COLUMNS if column.names}
#: Additional names accepted in a map, where the user states their meaning.
_IN_A_MAP = {"price": "price_usd", "spot": "price_usd", "count": "available", "type": "instance_type"}
#: Names of a price that do not state which price it is.
_BARE_PRICES = ("price", "cost", "rate", "hourly_price", "price_per_hour", "usd_per_hour", "usd")
#: The value column of each form, and all its columns.
_VALUE: dict[Form, str] = {form: columns_of(form, "value")[0].name for form in BOTH}
_OF_FORM = {form: {column.name for column in columns_of(form)} for form in BOTH}
_TIMES = [column.name for column in COLUMNS if column.type == "time"]
_NUMBERS = [column.name for column in COLUMNS if column.type in ("number", "whole")]
_EXPECTED = (
    "columns provider, region, zone, instance_type, timestamp and spot_price_usd_per_hour, available or both"
)
_REMEDY = "name the columns with --map (--map price=SpotPrice), state what is missing with --set (--set provider=aws)"
_OTHER_FORM = "save it as CSV, with pandas or jq; `slackwater ingest --list` names the sources that read JSON"
_SUFFIXES = (".parquet", ".csv", ".csv.gz", ".csv.zst")
_NAMED = ("prices", "availability")
_PARQUET_ROWS = 131_072
_MEMORY = re.compile(r"^(\d+(?:\.\d+)?) *(?:[gm]i?b)?$", re.I)


class TabularOptions(Options):
    """Options of tidy tables."""

    map: Table = Field({}, description="table: column of ours -> column of the file (--map NAME=COLUMN)")
    provider: str | None = Field(None, description="provider of all rows, where no column has it")
    region: str | None = Field(
        None, description="region of all rows, where no column has it (of aws and gcp: from the zone)"
    )
    zone: str | None = Field(None, description="zone of all rows, where no column has it")
    instance_type: str | None = Field(None, description="instance type of all rows, where no column has it")
    product: str | None = Field(
        None, description="product of all rows, where no column has it, such as Linux/UNIX"
    )
    kind: str | None = Field(
        None, description="kind of all counts, where no column has it: probe, held, offers, score or band"
    )
    timestamp: Moment = Field(None, description="time of all rows, where no column has it")
    time: Literal["iso", "epoch_s", "epoch_ms"] = Field(
        "iso", description="how times are written: iso (default, UTC without an offset), epoch_s or epoch_ms"
    )
    decimal: Literal[".", ","] | None = Field(
        None,
        description="decimal separator of numbers; the other separates thousands (default: a point, without thousands)",
    )
    source: str | None = label_option(None, "the file's source column, else tabular")

    @field_validator("map")
    @classmethod
    def _check_names(cls, columns: dict[str, str]) -> dict[str, str]:
        found = {_ours(name): column for name, column in columns.items()}
        if None in found:
            unknown = next(name for name in columns if _ours(name) is None)
            raise ValueError(
                f"names of ours: timestamp, price, on_demand, {', '.join(NAMES)} (not {unknown!r})"
            )
        return {str(name): column for name, column in found.items()}


def _ours(name: str) -> str | None:
    """Return the canonical column with this name, None if there is none."""
    plain = plain_name(name)
    if plain in _IN_A_MAP:
        return _IN_A_MAP[plain]
    return next(
        (ours for ours, names in NAMES.items() if plain in {ours.replace("_", ""), *map(plain_name, names)}),
        None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Mapping from a file's columns to canonical columns, with constant values for all rows.

    ``region_from_zone``: the provider whose zone names determine the region. ``names``: (instance
    type, GPU memory, number of GPUs) as found -> unambiguous instance type.
    """

    forms: tuple[Form, ...]
    columns: Mapping[str, str]
    stated: Mapping[str, Any]
    time: str = "iso"
    decimal: str = ""
    region_from_zone: str = ""
    names: Mapping[tuple[str, str, str], str] = field(default_factory=dict)

    @property
    def distinguishing(self) -> list[str]:
        """Columns that distinguish instance types of the same name."""
        return [name for name in ("gpu_memory", "gpus") if name in self.columns]


def layout_of(path: Path, names: Sequence[str], options: TabularOptions) -> Layout:
    """Map the columns; raises `SourceFileError` if a column is missing or ambiguous."""
    repeated = sorted(name for name, times in Counter(names).items() if times > 1 and name)
    if repeated:
        raise _option_error(path, f"column {repeated[0]!r} occurs twice")
    columns = {ours: _column_of(path, ours, names, options.map) for ours in NAMES}
    columns = {ours: column for ours, column in columns.items() if column}
    stated = {
        name: value for name in (*_KEY, "product", "kind") if (value := getattr(options, name)) is not None
    }
    if options.timestamp is not None:
        stated["observed_at"] = options.timestamp
    for ours in stated:
        if ours in columns:
            raise _option_error(
                path, f"a column {columns[ours]!r} and a stated {ours}", f"leave out `--set {ours}=...`"
            )
    if options.source or "source" not in columns:
        columns.pop("source", None)
        stated["source"] = options.source or Tabular.name
    gap = columns.get("gap_seconds", "")
    if time_of(gap) not in ("", "second"):
        raise _option_error(
            path, f"column {gap!r} is not in seconds", "convert it to seconds, and name it gap_seconds"
        )
    forms = tuple(form for form, value in _VALUE.items() if value in columns)
    if not forms:
        bare = [name for name in names if plain_name(name) in map(plain_name, _BARE_PRICES)]
        if bare and set(_KEY) & set(columns):
            raise _option_error(
                path,
                f"column {bare[0]!r} does not say which price it is",
                f"if it is the spot price of an instance and hour: --map price={bare[0]}",
            )
        raise _option_error(path, f"columns {column_names_text(names)}" if any(names) else "no column names")
    zone_provider = str(stated.get("provider", ""))
    zone_provider = provider_names().get(zone_provider.lower(), zone_provider)
    from_zone = zone_provider if "zone" in columns and zone_provider in ("aws", "gcp") else ""
    missing = [
        name
        for name in (*_KEY, "observed_at")
        if name not in columns and name not in stated and not (name == "region" and from_zone)
    ]
    if missing:
        name = missing[0].replace("observed_at", "timestamp")
        lack = f"no column for {', '.join(missing).replace('observed_at', 'timestamp')} among {column_names_text(names)}"
        raise _option_error(
            path, lack, f"name it with --map {name}=COLUMN, or state it with --set {name}=..."
        )
    derived = from_zone if "region" not in columns and "region" not in stated else ""
    return Layout(
        forms=forms,
        columns=columns,
        stated=stated,
        time=options.time,
        decimal=options.decimal or "",
        region_from_zone=derived,
    )


def _option_error(path: Path, found: str, remedy: str = _REMEDY) -> SourceFileError:
    return SourceFileError(path, 1, found, expected=_EXPECTED, remedy=remedy)


def _column_of(path: Path, ours: str, names: Sequence[str], mapped: Mapping[str, str]) -> str:
    """Return the file's column for a canonical column, "" if it has none."""
    if ours in mapped:
        if mapped[ours] not in names:
            raise _option_error(
                path, f"no column {mapped[ours]!r} among {column_names_text(names)}", "correct --map"
            )
        return mapped[ours]
    free = [name for name in names if name not in mapped.values()]
    if NAMES[ours][0] in free:
        return NAMES[ours][0]
    found = [name for name in free if plain_name(name) in map(plain_name, NAMES[ours])]
    if len(found) > 1:
        raise _option_error(
            path,
            f"columns {column_names_text(found)} could all be {NAMES[ours][0]}",
            f"say which: --map {NAMES[ours][0]}={found[0]}",
        )
    return found[0] if found else ""


class Tabular(FileSource[TabularOptions]):
    """Tidy CSV (``.csv``, ``.csv.gz``, ``.csv.zst``) and Parquet; the columns show whether a table has prices or availability.

    Columns are found by the names of `NAMES` or by a map; a missing column may be given as a constant. Each
    row of the file becomes a row of a batch, in file order; other columns are ignored. The store checks the
    columns of purchase option, unit, currency and validity. If an instance type has rows with several GPU
    memories or numbers of GPUs, these become part of its name (``A100_80GB_x8``). A row of a table with both
    prices and availability yields a row of each, except for an empty cell. ``line`` is the line of the CSV
    file, or the 1-based row of the Parquet file. For a folder, its ``prices.*`` and ``availability.*`` and
    other tables with these columns are read, without subfolders. The label is the file's ``source`` column.
    """

    name = "tabular"
    form = TabularOptions
    expected = _EXPECTED
    remedy = "check that the export is complete"
    examples: Mapping[str, str] = {
        "availability.csv": "provider,region,zone,instance_type,timestamp,available\n"
        "aws,us-east-1,us-east-1a,p3.2xlarge,2021-03-02,3\n",
        "prices.csv": "provider,region,zone,instance_type,timestamp,spot_price_usd_per_hour\n"
        "aws,us-east-1,us-east-1a,p3.2xlarge,2021-03-02,0.918\n",
    }

    def files(self, paths: Sequence[Path]) -> list[Path]:
        """Return the tables named, and those in folders named (without subfolders), sorted; raises `SourceFileError` if none."""
        found: set[Path] = set()
        for path in paths:
            if path.is_dir():
                found |= {p for p in path.iterdir() if p.is_file() and self.recognised(p)}
            elif path.exists():
                found.add(path)
            else:
                raise SourceFileError(
                    path, 0, "does not exist", expected="a CSV or Parquet file", remedy="check the path"
                )
        if not found:
            where = ", ".join(str(p) for p in paths) or "(no path given)"
            remedy = "put prices.parquet or availability.csv there, or name the files"
            raise SourceFileError(where, 0, "no tidy table", expected=_EXPECTED, remedy=remedy)
        return sorted(found)

    def recognised(self, path: Path) -> bool:
        """Recognise a table by its name, else by its columns."""
        name = path.name.lower()
        if not name.endswith(_SUFFIXES):
            return False
        if name.split(".", 1)[0] in _NAMED:
            return True
        try:
            layout_of(path, _columns(path), TabularOptions.model_validate({}))
        except SourceFileError:
            return False
        return True

    def batches(self, path: Path, options: TabularOptions) -> Iterator[Batch]:
        """Return the rows of a table."""
        if head(path).lstrip()[:1] in (b"{", b"["):
            raise SourceFileError(path, 1, "JSON", expected="a CSV or Parquet file", remedy=_OTHER_FORM)
        read = _read_parquet if _is_parquet(path) else _read_csv
        return read(path, options)

    def assumed(self, path: Path, options: TabularOptions) -> Iterator[str]:
        """Yield a note if the time of all rows is a constant, which no row states."""
        if options.timestamp is not None:
            yield f"time of all rows stated as {options.timestamp.isoformat()}"


def _is_parquet(path: Path) -> bool:
    return path.suffix == ".parquet" or head(path).startswith(b"PAR1")


def _columns(path: Path) -> list[str]:
    return list(_open_parquet(path).schema_arrow.names) if _is_parquet(path) else header_of(path)[0]


def _open_parquet(path: Path, coded: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a file; columns in ``coded`` are read as dictionaries, so that repeated texts are decoded once."""
    try:
        file = pq.ParquetFile(path, read_dictionary=list(coded))
        _ = file.schema_arrow.names  # raises for names that are not UTF-8
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise _not_parquet(path, error) from error
    return file


def _text_columns(schema: pa.Schema, layout: Layout) -> list[str]:
    """Return the text columns with names of places, products and sources, and those that are not read."""
    names = {layout.columns[ours] for ours in (*_KEY, "product", "source") if ours in layout.columns}
    names |= set(schema.names) - set(layout.columns.values())
    return [field.name for field in schema if field.name in names and pa.types.is_string(field.type)]


def _repeat(text: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, dtype=np.int32), [text])


def _not_parquet(path: Path, error: Exception) -> SourceFileError:
    return SourceFileError(
        path,
        0,
        f"not readable as Parquet ({error})",
        expected="a Parquet file",
        remedy="check that it is complete",
    )


def _canonical(form: Form, table: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Rename the file's columns to canonical names and add constants; timestamps without zone are UTC (M1.4)."""
    columns: dict[str, Any] = {name: value for name, value in layout.stated.items() if name in _OF_FORM[form]}
    columns |= {ours: table[column] for ours, column in layout.columns.items() if ours in _OF_FORM[form]}
    for name in _TIMES:
        values = columns.get(name)
        if not isinstance(values, pa.Array):
            continue
        if pa.types.is_timestamp(values.type) and values.type.tz is None:
            columns[name] = values.cast(pa.timestamp(values.type.unit, tz="UTC"))
        elif layout.time != "iso":
            columns[name] = pa.array(
                [iso_of_epoch(value, layout.time) for value in values.to_pylist()], pa.string()
            )
    return columns


def _read_csv(path: Path, options: TabularOptions) -> Iterator[Batch]:
    names, delimiter = header_of(path)
    found: list[Layout] = []

    def check(names: Sequence[str]) -> None:
        found[:] = [layout_of(path, names, options)]

    if found_apart := _apart(names, path, options):
        chunks = csv_chunks(path, check_header=check, delimiter=delimiter)
        tables = (_with_plain_numbers(chunk.columns, found_apart)[0] for chunk in chunks if len(chunk))
        kinds = _kinds(tables, found_apart)
        found_apart = replace(found_apart, names=kinds)
    for chunk in csv_chunks(path, check_header=check, delimiter=delimiter):
        if chunk.rejected:
            yield chunk.rejected_batch(path)
        if len(chunk):
            yield from _batches(path, found_apart or found[0], chunk.columns, chunk.lines)


def _apart(names: Sequence[str], path: Path, options: TabularOptions) -> Layout | None:
    """Return the layout of a table with columns that distinguish instance types of the same name, else None."""
    try:
        layout = layout_of(path, names, options)
    except SourceFileError:  # raised again when the file is read
        return None
    return layout if layout.distinguishing and "instance_type" in layout.columns else None


def _kinds(tables: Iterable[Mapping[str, Any]], layout: Layout) -> dict[tuple[str, str, str], str]:
    """Return unambiguous instance types, with GPU memory or number of GPUs if a type has several; "" if not stated.

    Names that differ in capitals only are one type.
    """
    found: set[tuple[str, str, str]] = set()
    for table in tables:
        found |= set(_parts_of(table, layout))
    memories: dict[str, set[str]] = {}
    numbers: dict[str, set[str]] = {}
    whole = {part for part in found if not _wrong_gpus(part[0], part[2])}
    for name, memory, gpus in whole:
        memories.setdefault(name.lower(), set()).add(memory)
        numbers.setdefault(name.lower(), set()).add("" if len(gpus_of(name)) == 1 else gpus)
    kinds = {part: part[0] for part in found - whole}  # these rows are set aside
    for name, memory, gpus in whole:
        parts = [name]
        if len(memories[name.lower()]) > 1:
            parts.append(f"{memory}GB" if memory else "")
        if len(numbers[name.lower()]) > 1:
            parts.append(f"x{gpus}" if gpus else "")
        kinds[name, memory, gpus] = "_".join(parts) if all(parts) else ""
    return kinds


def _parts_of(table: Mapping[str, Any], layout: Layout) -> list[tuple[str, str, str]]:
    """Return instance type, GPU memory in GB and number of GPUs of every row; "" where not stated."""
    rows = len(next(iter(table.values())))
    names, memories, gpus = (
        ["" if value is None else str(value).strip() for value in table[layout.columns[ours]].to_pylist()]
        if ours in layout.columns
        else [str(layout.stated.get(ours, ""))] * rows
        for ours in ("instance_type", "gpu_memory", "gpus")
    )
    return list(zip(names, map(_gigabytes, memories), map(_whole, gpus), strict=True))


def _gigabytes(text: str) -> str:
    """Return a GPU memory in GB, rounded; values of at least 1,000 are in MB."""
    match = _MEMORY.match(text)
    if match is None:
        return ""
    size = float(match[1])
    return f"{round(size / 1024 if size >= 1000 else size)}"


def _whole(text: str) -> str:
    return text.removesuffix(".0")


def _batches(path: Path, layout: Layout, table: Mapping[str, Any], lines: pa.Array) -> Iterator[Batch]:
    """Yield the rows, and rejected rows for ambiguous instance types, zones without a known region, and times of other zones."""
    table, unread = _with_plain_numbers(table, layout)
    table, layout = _with_other_values(table, layout)
    reasons = [reason or other for reason, other in zip(unread, _refused(table, layout), strict=True)]
    parts = _parts_of(table, layout) if layout.distinguishing and "instance_type" in layout.columns else []
    for ours, part_of in (("gpu_memory", 1), ("gpus", 2)):
        if parts and ours in layout.columns:
            table[f"\0{ours}"] = pa.array([part[part_of] or None for part in parts], pa.string())
            layout = replace(layout, columns={**layout.columns, ours: f"\0{ours}"})
    if layout.names:
        named = [layout.names[part] for part in parts]
        table[layout.columns["instance_type"]] = pa.array(named, pa.string())
        lack = " or ".join(layout.distinguishing)
        reasons = [
            reason or (None if name or not part[0] else because("record.ambiguous_type", lack, repr(part[0])))
            for reason, part, name in zip(reasons, parts, named, strict=True)
        ]
    if layout.region_from_zone:
        zones = [str(zone).strip() for zone in table[layout.columns["zone"]].to_pylist()]
        places = {zone: region_of(zone) for zone in set(zones)}
        regions = [
            place[1] if (place := places[zone]) and place[0] == layout.region_from_zone else None
            for zone in zones
        ]
        table["\0region"] = pa.array(regions, pa.string())
        layout = replace(layout, columns={**layout.columns, "region": "\0region"})
        unknown = f"of {layout.region_from_zone}, whose region is not stated"
        reasons = [
            reason or (None if region is not None else because("zone.unknown", repr(zone), unknown))
            for reason, region, zone in zip(reasons, regions, zones, strict=True)
        ]
    refused = [i for i, reason in enumerate(reasons) if reason is not None]
    if refused:
        rejected = [(int(lines[i].as_py()), _raw(table, i), reasons[i] or "") for i in refused]
        yield rejected_batch(path, rejected)
        keep = pa.array([reason is None for reason in reasons])
        table = {name: column.filter(keep) for name, column in table.items()}
        lines = lines.filter(keep)
    for form, own, at in _by_form(layout, table, lines):
        columns = {**_canonical(form, own, layout), "file": str(path), "line": at}
        repeated = {
            name: _repeat(value, len(at)) for name, value in columns.items() if isinstance(value, str)
        }
        yield batch_of(form, len(at), {**columns, **repeated})


def _with_plain_numbers(table: Mapping[str, Any], layout: Layout) -> tuple[dict[str, Any], list[str | None]]:
    """Return the table with numbers as the store reads them, and for every row why it has another number, else None."""
    plain = dict(table)
    reasons: list[str | None] = [None] * len(next(iter(table.values())))
    for ours in _NUMBERS if layout.decimal else ():
        column = layout.columns.get(ours, "")
        if column not in table or not pa.types.is_string(table[column].type):
            continue
        plain[column], bad = with_points(table[column], layout.decimal)
        for row in pc.indices_nonzero(bad).to_pylist():
            found = table[column][row].as_py()
            reasons[row] = reasons[row] or because("value.not_separated", f"{ours} {found}")
    return plain, reasons


def _with_other_values(table: dict[str, Any], layout: Layout) -> tuple[dict[str, Any], Layout]:
    """Add the columns that headings, and values of unread columns, state for rows that are no spot prices (`non_spot_columns`)."""
    columns = dict(layout.columns)
    prices = [columns[ours] for ours in ("price_usd", "on_demand_usd") if ours in columns]
    for ours, texts in _by_heading(table, layout, prices).items():
        columns.setdefault(ours, f"\0{ours}")
        table.setdefault(f"\0{ours}", texts)
    name = columns.get("on_demand_usd", "")
    if plain_name(name) == "ondemand" and is_flag(distinct_texts(table[name])):
        del columns["on_demand_usd"]  # whether a row is sold on demand
    kinds = table.get(columns.get("instance_type", ""))
    by_ending = {} if kinds is None else ending_columns(kinds)
    for ours, texts in (non_spot_columns(table, columns.values()) | by_ending).items():
        if ours not in columns and ours not in layout.stated:
            columns[ours] = f"\0{ours}"
            table[columns[ours]] = texts
    return table, replace(layout, columns=columns)


def _by_heading(table: Mapping[str, Any], layout: Layout, prices: Iterable[str]) -> dict[str, pa.Array]:
    """Return unit and currency of every row, as the headings of its prices state them; null for an instance-hour in USD.

    A price per GPU is that of an instance with one GPU.
    """
    found: dict[str, pa.Array] = {}
    for heading in prices:
        if currency := currency_of(heading):
            found["currency"] = _repeat(currency, len(table[heading]))
        unit = price_unit(heading)
        if unit == PER_GPU:
            single = [gpus_in(part[0], part[2]) == 1 for part in _parts_of(table, layout)]
            found["unit"] = pa.array([None if is_single else unit for is_single in single], pa.string())
        elif unit:
            found["unit"] = _repeat(unit, len(table[heading]))
        elif used := usage_column(heading, (name for name in table if name not in layout.columns.values())):
            amounts = ["" if text is None else str(text).strip() for text in table[used].to_pylist()]
            found["unit"] = pa.array(
                [None if _is_one(text) else f"for {text}" for text in amounts], pa.string()
            )
    return found


def _is_one(text: str) -> bool:
    return is_number(text) and float(text) == 1


def _refused(table: Mapping[str, Any], layout: Layout) -> list[str | None]:
    """Return why a row cannot be used: its time is in another zone, or its GPUs are not those of its type; else None."""
    reasons: list[str | None] = [None] * len(next(iter(table.values())))
    times = table.get(layout.columns.get("observed_at", ""))
    if times is not None and layout.time == "iso":
        zones = non_utc_zones(table, times, zone_of(layout.columns["observed_at"]))
        reasons = [None if zone is None else because("time.other_zone", repr(zone)) for zone in zones]
    if any(counts_gpus(layout.columns.get(ours, "")) for ours in ("available", "capacity")):
        numbers = [gpus_in(part[0], part[2]) or 1 for part in _parts_of(table, layout)]
        reasons = [
            reason or (because("record.counts_gpus", f"{gpus:g}") if gpus != 1 else None)
            for reason, gpus in zip(reasons, numbers, strict=True)
        ]
    if "gpus" in layout.columns and "instance_type" in layout.columns:
        parts = _parts_of(table, layout)
        wrong = {part: _wrong_gpus(part[0], part[2]) for part in set(parts)}
        reasons = [reason or wrong[part] for reason, part in zip(reasons, parts, strict=True)]
    return reasons


def _wrong_gpus(instance_type: str, gpus: str) -> str | None:
    """Return a reason if a type has another number of GPUs, by the catalogue or its name: no price of the whole instance."""
    named = named_gpus(instance_type)
    listed = gpus_of(instance_type) or {*([named] if named else [])}
    if not listed or not is_number(gpus) or float(gpus) < 1 or float(gpus) in listed:
        return None
    return because("record.other_gpus", gpus, instance_type, " or ".join(map(str, sorted(listed))))


def _by_form(
    layout: Layout, table: Mapping[str, Any], lines: pa.Array
) -> Iterator[tuple[Form, Mapping[str, Any], pa.Array]]:
    """Yield the rows with a value of each form; rows without any value go to the first form, which rejects them."""
    forms = layout.forms
    if len(forms) == 1:
        if len(lines):
            yield forms[0], table, lines
        return
    counts = [_nonempty_cells(table[layout.columns[_VALUE[form]]]) for form in forms]
    counts[0] = pc.or_(counts[0], pc.invert(counts[1]))
    for form, rows in zip(forms, counts, strict=True):
        kept = lines.filter(rows)
        if len(kept):
            yield form, {name: column.filter(rows) for name, column in table.items()}, kept


def _nonempty_cells(column: pa.Array) -> pa.Array:
    """Return which cells are not empty."""
    there = column.is_valid()
    if not pa.types.is_string(column.type):
        return there
    return pc.and_(there, pc.not_equal(pc.fill_null(pc.utf8_trim_whitespace(column), ""), ""))


def _read_parquet(path: Path, options: TabularOptions) -> Iterator[Batch]:
    with _open_parquet(path) as file:
        layout = layout_of(path, file.schema_arrow.names, options)
        coded = _text_columns(file.schema_arrow, layout)
        needed = set(layout.columns.values())
        wanted = [
            field.name
            for field in file.schema_arrow
            if field.name in needed or is_text_type(field.type) or counts_by_name(field.name)
        ]
    try:
        if layout.distinguishing and "instance_type" in layout.columns:
            with _open_parquet(path) as file:
                apart = [layout.columns[name] for name in ("instance_type", *layout.distinguishing)]
                records = file.iter_batches(batch_size=_PARQUET_ROWS, columns=apart)
                tables = (dict(zip(batch.schema.names, batch.columns, strict=True)) for batch in records)
                tables = (_with_plain_numbers(table, layout)[0] for table in tables)
                layout = replace(layout, names=_kinds(tables, layout))
        with _open_parquet(path, coded) as file:
            first = 1
            for record in file.iter_batches(batch_size=_PARQUET_ROWS, columns=wanted):
                table = dict(zip(record.schema.names, record.columns, strict=True))
                table = {name: _as_text(table[name]) if name not in needed else table[name] for name in table}
                lines = pa.array(np.arange(first, first + record.num_rows))
                first += record.num_rows
                loose = _not_utf8(table)
                if loose.any():
                    names = [
                        (int(lines[i].as_py()), _raw(table, int(i)), NOT_UTF8) for i in np.flatnonzero(loose)
                    ]
                    yield rejected_batch(path, names)
                    keep = pa.array(~loose)
                    table = {name: column.filter(keep) for name, column in table.items()}
                    lines = lines.filter(keep)
                yield from _batches(path, layout, table, lines)
    except (pa.ArrowInvalid, OSError) as error:
        raise _not_parquet(path, error) from error


def _as_text(column: pa.Array) -> pa.Array:
    """Return numbers as a CSV file has them; other columns are unchanged."""
    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return column.cast(pa.string()) if is_number else column


def _not_utf8(table: Mapping[str, pa.Array]) -> np.ndarray:
    """Return which rows have a text that is not UTF-8: Parquet does not validate the texts of its files."""
    found = np.zeros(len(next(iter(table.values()))), dtype=bool)
    for column in table.values():
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            found |= np.array([text is not None and not is_text(text) for text in _texts(column)])
    return found


def _texts(column: pa.Array) -> list[str | None]:
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kind = pa.large_binary() if pa.types.is_large_string(plain.type) else pa.binary()
    return [
        None if value is None else value.decode("utf-8", "surrogateescape")
        for value in plain.view(kind).to_pylist()
    ]


def _raw(table: Mapping[str, pa.Array], row: int) -> str:
    """Return a row as text, with bytes that are not UTF-8 as surrogates."""
    words = []
    for name, column in table.items():
        if name.startswith("\0"):
            continue  # added by us
        cell = column.slice(row, 1)
        try:
            words.append(str(cell[0].as_py()))
        except UnicodeDecodeError:
            words.append(str(_texts(cell)[0]))
    return ",".join(words)
