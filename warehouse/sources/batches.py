"""Rows found in a file -> Arrow batches of bounded size in the columns of `warehouse.source`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from warehouse.errors import SourceFileError
from warehouse.source import AVAILABILITY_COLUMNS, PRICE_COLUMNS, REJECTED_COLUMNS, Batch, Kind

#: Most rows of a batch built row by row; files read through Arrow are cut by bytes instead.
CHUNK_ROWS = 50_000
#: A file none of whose first lines is of the format is refused without reading on.
HOPELESS_ROWS = 10_000

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


def require_rows(batches: Iterable[Batch], path: Path, *, expected: str, remedy: str) -> Iterator[Batch]:
    """Pass batches on, but refuse a file that has no usable row at all.

    Rejected batches are held back until the first usable row. Raises `SourceFileError` with the first rejected line when the
    file ends, or `HOPELESS_ROWS` lines have gone by, without one.
    """
    held: list[Batch] = []
    good = False
    for batch in batches:
        if not good and batch.kind == "rejected":
            held.append(batch)
            if sum(b.table.num_rows for b in held) >= HOPELESS_ROWS:
                break
            continue
        if not good and batch.table.num_rows:
            good = True
            yield from held
        if batch.table.num_rows:
            yield batch
    if good:
        return
    if not held:
        raise SourceFileError(path, 0, "no record in the file", expected=expected, remedy=remedy)
    first = held[0].table.slice(0, 1).to_pylist()[0]
    found = f"{first['reason']}, and no other line can be used"
    raise SourceFileError(path, int(first["line"]), found, expected=expected, remedy=remedy)
