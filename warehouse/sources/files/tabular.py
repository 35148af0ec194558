"""Tidy tables of prices and availability, CSV or Parquet: the form of the open data set and of our own exports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from warehouse.errors import SourceFileError
from warehouse.sources.contract import (
    NOT_UTF8,
    Batch,
    Options,
    batch_of,
    is_text,
    label_option,
    rejected_batch,
)
from warehouse.sources.files.reading import FileSource, csv_chunks, numbered_lines, shown

Form = Literal["price", "availability"]

_KEY = {"provider": "provider", "region": "region", "zone": "zone", "instance_type": "instance_type"}
#: Canonical column <- column of the file; the first group must be there, the second may be.
REQUIRED: dict[Form, dict[str, str]] = {
    "price": {**_KEY, "observed_at": "timestamp", "price_usd": "spot_price_usd_per_hour"},
    "availability": {**_KEY, "observed_at": "timestamp", "available": "available"},
}
#: The column that a form is about.
_VALUE: dict[Form, str] = {"price": "price_usd", "availability": "available"}
OPTIONAL: dict[Form, dict[str, str]] = {
    "price": {
        "product": "product",
        "on_demand_usd": "on_demand_price_usd_per_hour",
        "known_at": "known_at",
        "source": "source",
    },
    "availability": {
        "capacity": "capacity_probed",
        "gap_seconds": "gap_seconds",
        "kind": "kind",
        "truncated": "truncated",
        "known_at": "known_at",
        "source": "source",
    },
}
_EXPECTED = (
    "columns provider, region, zone, instance_type, timestamp and spot_price_usd_per_hour, available or both"
)
_REMEDY = "rename the columns, or name another source"
_SUFFIXES = (".parquet", ".csv", ".csv.gz", ".csv.zst")
_NAMED = ("prices", "availability")
_PARQUET_ROWS = 131_072


def forms_of(path: Path, columns: Sequence[str]) -> tuple[Form, ...]:
    """Whether a table with these columns holds prices, availability or both; raises `SourceFileError` if neither or ambiguous."""
    repeated = sorted(name for name, times in Counter(columns).items() if times > 1)
    if repeated:
        raise SourceFileError(
            path, 1, f"column {repeated[0]!r} occurs twice", expected=_EXPECTED, remedy=_REMEDY
        )
    forms = tuple(form for form, wanted in REQUIRED.items() if set(wanted.values()) <= set(columns))
    if forms:
        return forms
    found = f"columns {shown(columns)}" if any(columns) else "no column names"
    raise SourceFileError(path, 1, found, expected=_EXPECTED, remedy=_REMEDY)


class TabularOptions(Options):
    """Options of tidy tables."""

    source: str | None = label_option(None, "the file's source column, else tabular")


class Tabular(FileSource[TabularOptions]):
    """Tidy CSV (``.csv``, ``.csv.gz``, ``.csv.zst``) and Parquet; the columns say whether it holds prices or availability.

    One row of the file is one row of a batch, in file order; further columns are ignored. Of a table of both a row is one of
    each, but for the one whose cell is empty. ``line`` is the line of the CSV file, or the 1-based row of the Parquet file. A
    folder means its own ``prices.*`` and ``availability.*`` and any other table at its top level with these columns, not those of
    its subfolders. The label is the file's ``source`` column.
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
        """Tables named, and those at the top level of folders named, sorted; raises `SourceFileError` if none."""
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
        """By the name, else by the columns."""
        name = path.name.lower()
        if not name.endswith(_SUFFIXES):
            return False
        if name.split(".", 1)[0] in _NAMED:
            return True
        try:
            forms_of(path, _columns(path))
        except SourceFileError:
            return False
        return True

    def batches(self, path: Path, options: TabularOptions) -> Iterator[Batch]:
        """The rows of one table."""
        read = _read_parquet if path.suffix == ".parquet" else _read_csv
        return read(path, options.source)


def _columns(path: Path) -> list[str]:
    if path.suffix == ".parquet":
        return list(_open_parquet(path).schema_arrow.names)
    for _, text in numbered_lines(path):
        return [c.strip().strip('"') for c in text.split(",")]
    return []


def _open_parquet(path: Path, coded: Sequence[str] = ()) -> pq.ParquetFile:
    """The file; of the columns ``coded`` the codes that it stores in the place of texts are read, and no text twice."""
    try:
        file = pq.ParquetFile(path, read_dictionary=list(coded))
        _ = file.schema_arrow.names  # of bytes that are not UTF-8
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise _not_parquet(path, error) from error
    return file


def _coded(schema: pa.Schema) -> list[str]:
    """The columns of names that are text."""
    return [
        field.name
        for field in schema
        if field.name in (*_KEY.values(), "product", "source") and pa.types.is_string(field.type)
    ]


def _repeated(text: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, dtype=np.int32), [text])


def _not_parquet(path: Path, error: Exception) -> SourceFileError:
    return SourceFileError(
        path,
        0,
        f"not readable as Parquet ({error})",
        expected="a Parquet file",
        remedy="check that it is complete",
    )


def _canonical(form: Form, table: Mapping[str, Any], stated: str | None) -> dict[str, Any]:
    """Columns of the file under their canonical names; naive timestamps are UTC (M1.4)."""
    wanted = {**REQUIRED[form], **OPTIONAL[form]}
    columns = {ours: table[theirs] for ours, theirs in wanted.items() if theirs in table}
    for name in ("observed_at", "known_at"):
        values = columns.get(name)
        if values is not None and pa.types.is_timestamp(values.type) and values.type.tz is None:
            columns[name] = values.cast(pa.timestamp(values.type.unit, tz="UTC"))
    if stated or "source" not in columns:
        columns["source"] = stated or Tabular.name
    return columns


def _read_csv(path: Path, stated: str | None) -> Iterator[Batch]:
    forms: list[Form] = []
    for chunk in csv_chunks(path, check_header=lambda names: forms.extend(forms_of(path, names))):
        if chunk.rejected:
            yield chunk.rejected_batch(path)
        for form, table, lines in _by_form(forms, chunk.columns, chunk.lines):
            columns = _canonical(form, table, stated)
            yield batch_of(form, len(lines), {**columns, "file": str(path), "line": lines})


def _by_form(
    forms: Sequence[Form], table: Mapping[str, Any], lines: pa.Array
) -> Iterator[tuple[Form, Mapping[str, Any], pa.Array]]:
    """The rows that say something of each form; a row that says nothing of any is one of the first, which rejects it."""
    if len(forms) == 1:
        if len(lines):
            yield forms[0], table, lines
        return
    said = [_said(table[REQUIRED[form][_VALUE[form]]]) for form in forms]
    said[0] = pc.or_(said[0], pc.invert(said[1]))
    for form, rows in zip(forms, said, strict=True):
        kept = lines.filter(rows)
        if len(kept):
            yield form, {name: column.filter(rows) for name, column in table.items()}, kept


def _said(column: pa.Array) -> pa.Array:
    """Which cells are not empty."""
    there = column.is_valid()
    if not pa.types.is_string(column.type):
        return there
    return pc.and_(there, pc.not_equal(pc.fill_null(pc.utf8_trim_whitespace(column), ""), ""))


def _read_parquet(path: Path, stated: str | None) -> Iterator[Batch]:
    with _open_parquet(path) as file:
        forms, coded = forms_of(path, file.schema_arrow.names), _coded(file.schema_arrow)
    with _open_parquet(path, coded) as file:
        wanted = {name for form in forms for name in (*REQUIRED[form].values(), *OPTIONAL[form].values())}
        first = 1
        try:
            for record in file.iter_batches(
                batch_size=_PARQUET_ROWS, columns=[c for c in file.schema_arrow.names if c in wanted]
            ):
                rows = record.num_rows
                table = dict(zip(record.schema.names, record.columns, strict=True))
                lines = pa.array(np.arange(first, first + rows))
                first += rows
                loose = _not_utf8(table)
                if loose.any():
                    yield rejected_batch(
                        path,
                        [
                            (int(lines[i].as_py()), _raw(table, int(i)), NOT_UTF8)
                            for i in np.flatnonzero(loose)
                        ],
                    )
                    keep = pa.array(~loose)
                    table = {name: column.filter(keep) for name, column in table.items()}
                    lines = lines.filter(keep)
                for form, own, at in _by_form(forms, table, lines):
                    columns = _canonical(form, own, stated)
                    if isinstance(columns["source"], str):
                        columns["source"] = _repeated(columns["source"], len(at))
                    yield batch_of(
                        form, len(at), {**columns, "file": _repeated(str(path), len(at)), "line": at}
                    )
        except (pa.ArrowInvalid, OSError) as error:
            raise _not_parquet(path, error) from error


def _not_utf8(table: Mapping[str, pa.Array]) -> np.ndarray:
    """Which rows have a text with bytes that are not UTF-8: Parquet says what is text and holds nobody to it."""
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
    """A row as text, with bytes that are not UTF-8 in it."""
    words = []
    for column in table.values():
        one = column.slice(row, 1)
        try:
            words.append(str(one[0].as_py()))
        except UnicodeDecodeError:
            words.append(str(_texts(one)[0]))
    return ",".join(words)
