"""What a source of observations is: files in, canonical Arrow tables out, nothing lost on the way.

A source only translates. It does no casting, no de-duplication and no filtering of its own: every row it finds goes into
a `Batch` as found (text where the file has text), with the file and line it came from. The store casts, validates,
counts and keeps the rows that cannot be used. A file that is not of the source's format at all is refused with
`SourceFileError`, which names the file, the line and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa

Kind = Literal["price", "availability", "rejected"]

#: Columns of a ``price`` batch. All may be text; ``observed_at`` ISO 8601 text or a timestamp (naive text = UTC).
PRICE_COLUMNS = (
    "source", "provider", "region", "zone", "instance_type", "product", "observed_at",
    "price_usd", "on_demand_usd", "known_at", "file", "line",
)  # fmt: skip
#: Columns of an ``availability`` batch. ``kind``: probe, held, offers; or score, a placement score that is no count of instances
#: and is kept apart from them (``available`` = the score, ``capacity`` = its best value).
AVAILABILITY_COLUMNS = (
    "source", "provider", "region", "zone", "instance_type", "observed_at", "available", "capacity",
    "gap_seconds", "kind", "truncated", "known_at", "file", "line",
)  # fmt: skip
#: Columns of a ``rejected`` batch: rows that could not even be taken apart.
REJECTED_COLUMNS = ("file", "line", "raw", "reason")
#: Most rows of a batch built row by row; files read through Arrow are cut by bytes instead.
CHUNK_ROWS = 50_000

COLUMNS: dict[Kind, tuple[str, ...]] = {
    "price": PRICE_COLUMNS,
    "availability": AVAILABILITY_COLUMNS,
    "rejected": REJECTED_COLUMNS,
}
_TIMESTAMP = pa.timestamp("us", tz="UTC")
#: Types of columns that a source leaves out, and of Python values it hands over.
_TYPES: dict[str, pa.DataType] = {
    "observed_at": _TIMESTAMP,
    "known_at": _TIMESTAMP,
    "price_usd": pa.float64(),
    "on_demand_usd": pa.float64(),
    "available": pa.int64(),
    "capacity": pa.int64(),
    "gap_seconds": pa.int64(),
    "truncated": pa.bool_(),
    "line": pa.int64(),
}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One chunk of rows of one kind, with the columns named above (missing optional ones are null)."""

    kind: Kind
    table: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the user says about files that do not say it themselves.

    ``values`` holds the source's own named options (``zone``, ``instance_type``, ``start``, ...), each documented by the source.
    """

    values: Mapping[str, str]

    def get(self, name: str) -> str | None:
        """The option's text, or None if it was not given."""
        return self.values.get(name)


class Source(Protocol):
    """A reader of one file format, or of what stands for files."""

    name: str
    """The word used on the command line."""
    has_files: bool
    """False where rows come from no file: then there are no bytes to tell one import from another by."""
    examples: Mapping[str, str]
    """File name -> the smallest file of that form, text only: shown with the options, and held to the contract by the tests."""

    @property
    def options(self) -> Mapping[str, str]:
        """Option name -> one sentence of help, for the options it understands."""
        ...

    def files(self, paths: Sequence[Path]) -> list[Path]:
        """The files this source reads below ``paths`` (files or folders), sorted; raises `SourceFileError` if none."""
        ...

    def read(self, path: Path, options: SourceOptions) -> Iterator[Batch]:
        """Yield the rows of one file in chunks of bounded size; raises `SourceFileError` if it is not of this format."""
        ...

    def assumptions(self, path: Path, options: SourceOptions) -> tuple[str, ...]:
        """In words, what had to be assumed to read this file (for example an undated trace counting from 1970-01-01)."""
        ...


def batch_of(kind: Kind, rows: int, columns: Mapping[str, Any]) -> Batch:
    """A batch of ``rows`` rows: Arrow arrays go in with their own type, lists are typed, scalars repeated, absent ones null."""
    arrays = [_column(name, columns.get(name), rows) for name in COLUMNS[kind]]
    return Batch(kind=kind, table=pa.table(arrays, names=list(COLUMNS[kind])))


def _column(name: str, value: Any, rows: int) -> pa.Array | pa.ChunkedArray:
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value
    wanted = _TYPES.get(name, pa.string())
    if value is None:
        return pa.nulls(rows, wanted)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return _typed(list(value), wanted)
    return pa.repeat(_typed([value], wanted)[0], rows)


def _typed(values: list[Any], wanted: pa.DataType) -> pa.Array:
    if not any(isinstance(value, str) for value in values):
        try:
            return pa.array(values, wanted)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            pass
    # Text, and what is not of the type, goes on as text: the store casts it and counts what cannot be cast.
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def pack(rows: Iterable[tuple[Kind, Row]], constants: Mapping[str, Any]) -> Iterator[Batch]:
    """Chunk (kind, row) pairs into batches, one buffer per kind; ``constants`` fill columns that rows leave out."""
    waiting: dict[Kind, list[Row]] = {"price": [], "availability": [], "rejected": []}
    for kind, row in rows:
        waiting[kind].append(row)
        if len(waiting[kind]) >= CHUNK_ROWS:
            yield _pack_one(kind, waiting[kind], constants)
            waiting[kind] = []
    for kind, left in waiting.items():
        if left:
            yield _pack_one(kind, left, constants)


def _pack_one(kind: Kind, rows: list[Row], constants: Mapping[str, Any]) -> Batch:
    columns: dict[str, Any] = {}
    for name in COLUMNS[kind]:
        default = constants.get(name)
        if any(name in row for row in rows):
            columns[name] = [row.get(name, default) for row in rows]
        else:
            columns[name] = default
    return batch_of(kind, len(rows), columns)


def rejection(line: int, raw: str, reason: str) -> tuple[Kind, Row]:
    """A line that cannot be taken apart, as a row of a ``rejected`` batch."""
    return "rejected", {"line": line, "raw": raw, "reason": reason}


def rejected_batch(path: Path, rejected: Sequence[tuple[int, str, str]]) -> Batch:
    """A ``rejected`` batch of (line, raw text, reason) triples."""
    lines, raw, reasons = zip(*rejected, strict=True) if rejected else ((), (), ())
    return batch_of(
        "rejected", len(rejected), {"file": str(path), "line": lines, "raw": raw, "reason": reasons}
    )
