"""Reader for the table files of an exported folder, which checks every row before use.

A folder may come from any source. Its files are read by Arrow, never by SQL; columns must have the names and
types of the warehouse's schema. An unusable row is set aside with a reason and does not affect other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from pyarrow import types

from slackwater.warehouse.columns import BOTH, stored_checks
from slackwater.warehouse.documents import why_unreadable
from slackwater.warehouse.errors import InputError
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.store.folders import EXPORT_AGAIN
from slackwater.warehouse.store.schema import TABLES

Judge = Callable[[str], str]  # Function that returns why a text is unusable, "" if it is usable

#: Limits for a file, far above those of any real warehouse.
MOST_ROWS, MOST_CHUNK_BYTES, LONGEST_TEXT = 1_000_000_000, 1 << 31, 1 << 24
_BATCH_ROWS = 50_000  # Rows read and checked at a time
#: Maximum number of characters of a name, and of a reason.
_LONGEST_NAME, _LONGEST_REASON = 1000, 200
_UNPRINTABLE = r"[\p{C}\p{Zl}\p{Zp}]"

#: DuckDB's type of a column -> Arrow type used for reading.
_KINDS: Mapping[str, pa.DataType] = {
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
}
#: Text columns that are not names: sentences, documents, paths.
_TEXTS = {
    "spec", "details", "allocations", "more", "options", "assumptions", "raw", "reason", "text", "note", "watermark", "state",
    "file", "price_fallback", "count_fallback", "subject",
}  # fmt: skip
#: Columns with a JSON text -> type of the JSON value. None and "" are allowed in columns that may be empty.
JSON_COLUMNS: Mapping[tuple[str, str], type] = {
    (name, column): form for name, rule in TABLES.items() for column, form in rule.documents.items()
}


def rows_of_file(path: Path) -> int:
    """Return the number of rows of a Parquet file; raises `InputError` for other files and for files too large for an export."""
    try:
        found = pyarrow.parquet.read_metadata(path)
        chunks = (
            found.row_group(group).column(column).total_uncompressed_size
            for group in range(found.num_row_groups)
            for column in range(found.num_columns)
        )
        largest = max(chunks, default=0)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: {error}", expected="a Parquet file", remedy=EXPORT_AGAIN) from error
    if found.num_rows > MOST_ROWS or largest > MOST_CHUNK_BYTES:
        raise InputError(
            f"{path}: {found.num_rows:,} rows, {largest:,} bytes in one column of a row group",
            expected=f"at most {MOST_ROWS:,} rows and {MOST_CHUNK_BYTES:,} bytes",
            remedy=EXPORT_AGAIN,
        )
    return int(found.num_rows)


def load_foreign(
    store: Store, name: str, path: Path, *, judges: Mapping[str, Judge] | None = None
) -> tuple[str, ...]:
    """Read the file of table ``name`` into the temporary table ``found_rows``; return the names of its columns.

    ``found_rows`` has the columns of the table, with their defaults if the file lacks them, and
    ``set_aside``: the reason if a row is unusable, else null. ``judges`` maps columns to
    additional checks of their JSON texts. Raises `InputError` for columns of other names or types, and for an unreadable file.
    """
    table = store.execute(f"DESCRIBE {name}")
    described = {str(column): (str(kind), str(null) == "YES") for column, kind, null, *_ in table}
    try:
        columns = _checked_columns(path, pyarrow.parquet.read_schema(path), described)
        texts = [column for column in columns if described[column][0] == "VARCHAR"]
        file = pyarrow.parquet.ParquetFile(path, read_dictionary=texts)
        result = ", ".join(
            f"{column} {kind} DEFAULT {default or 'NULL'}" for column, kind, _, _, default, *_ in table
        )
        store.execute(f"CREATE OR REPLACE TEMP TABLE found_rows ({result}, set_aside VARCHAR)")
        for batch in _batches(file, path, columns, described):
            _insert(store, name, batch, columns, described, judges or {})
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: {error}", expected="a Parquet file", remedy=EXPORT_AGAIN) from error
    return tuple(described)


def _checked_columns(
    path: Path, schema: pa.Schema, described: Mapping[str, tuple[str, bool]]
) -> tuple[str, ...]:
    for field in schema:
        if field.name not in described:
            raise InputError(
                f"{path} has a column {field.name!r}", expected=f"some of {', '.join(described)}"
            )
        kind, _ = described[field.name]
        if not _holds(field.type, kind):
            raise InputError(
                f"{path} has a column {field.name!r} of {field.type}",
                expected=str(_KINDS[kind]),
                remedy=EXPORT_AGAIN,
            )
    if len(set(schema.names)) != len(schema.names):
        raise InputError(f"{path} has a column twice", expected=f"some of {', '.join(described)}")
    for column, (_, may_be_null) in described.items():
        if column not in schema.names and not may_be_null:
            raise InputError(f"{path} lacks the column {column!r}", expected=f"{', '.join(described)}")
    return tuple(schema.names)


def _holds(found: pa.DataType, kind: str) -> bool:
    """Return whether a column type of a file is valid for a DuckDB type."""
    if kind == "VARCHAR":
        plain = found.value_type if types.is_dictionary(found) else found
        return bool(types.is_string(plain) or types.is_large_string(plain))
    if kind.startswith("TIMESTAMP"):
        return bool(types.is_timestamp(found) and found.tz is not None)
    return bool(found == _KINDS[kind])


def _batches(
    file: pyarrow.parquet.ParquetFile,
    path: Path,
    columns: Sequence[str],
    described: Mapping[str, tuple[str, bool]],
) -> Iterator[pa.Table]:
    """Yield the rows of a file in batches with the warehouse's column types; raises `InputError` for overlong texts."""
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(columns)):
        arrays = []
        for column in columns:
            array, kind = batch.column(column), described[column][0]
            if kind == "VARCHAR":
                words = array.dictionary if types.is_dictionary(array.type) else array
                longest = pc.max(pc.binary_length(words)).as_py() or 0
                if longest > LONGEST_TEXT:
                    raise InputError(
                        f"{path}: {column} with a text of {longest:,} bytes",
                        expected=f"at most {LONGEST_TEXT:,}",
                    )
                words.validate(full=True)
            elif array.type != _KINDS[kind]:
                array = array.cast(_KINDS[kind], safe=False)
            arrays.append(array)
        yield pa.table(arrays, names=list(columns))


def _insert(
    store: Store,
    name: str,
    batch: pa.Table,
    columns: Sequence[str],
    described: Mapping[str, tuple[str, bool]],
    judges: Mapping[str, Judge],
) -> None:
    wrong = _wrong_documents(name, batch, judges)
    tests = [
        (f"{column} IS NULL", f"no {column}")
        for column in columns
        if not described[column][1]
    ]  # fmt: skip
    for column in columns:
        tests += _tests_of(column, described[column][0])
    own = [test for test in TABLES[name].wrong if _speaks_of(test[0], columns, described)]
    own += [test for kind in BOTH if kind == name for test in stored_checks(kind, columns)]
    cases = " ".join(f"WHEN {condition} THEN '{words}'" for condition, words in [*tests, *own])
    with store.registered("incoming", batch.append_column("wrong_document", wrong)):
        store.execute(
            f"INSERT INTO found_rows ({', '.join(columns)}, set_aside) "
            f"SELECT {', '.join(columns)}, CASE {cases} ELSE wrong_document END FROM incoming"
        )


def _speaks_of(condition: str, columns: Sequence[str], described: Mapping[str, tuple[str, bool]]) -> bool:
    """Return whether all columns of a condition are in the file; files of older exports lack some."""
    return all(column in columns for column in described if column in condition.split())


def _tests_of(column: str, kind: str) -> list[tuple[str, str]]:
    """Return the checks for a column's values that apply in every table."""
    if kind.startswith("TIMESTAMP"):
        inside = (
            f"{column} >= CAST('1900-01-01' AS TIMESTAMPTZ) AND {column} < CAST('2201-01-01' AS TIMESTAMPTZ)"
        )
        return [(f"NOT isfinite({column}) OR NOT ({inside})", f"{column} is outside 1900 to 2200")]
    if kind == "VARCHAR" and column not in _TEXTS:
        return [
            (f"length({column}) > {_LONGEST_NAME}", f"{column} is longer than {_LONGEST_NAME}"),
            (
                f"regexp_matches({column}, '{_UNPRINTABLE}')",
                f"{column} has a character that cannot be printed",
            ),
        ]
    return []


def _wrong_documents(name: str, batch: pa.Table, judges: Mapping[str, Judge]) -> pa.Array:
    """Return for each row the problem of its first unusable JSON text, null if there is none."""
    reasons = np.full(batch.num_rows, None, dtype=object)
    for column, form in TABLES[name].documents.items():
        if column not in batch.column_names:
            continue
        judged: dict[str, str] = {}
        for row, text in enumerate(batch.column(column).to_pylist()):
            if not text or reasons[row] is not None:
                continue
            if text not in judged:
                judge = judges.get(column)
                judged[text] = why_unreadable(text, form) or (judge(text) if judge else "")
            if judged[text]:
                reasons[row] = f"{column}: {judged[text]}"[:_LONGEST_REASON]
    return pa.array(reasons, pa.string())


def unreadable_rows(store: Store, *, measured_since: datetime) -> list[str]:
    """Return messages on stored rows with unreadable JSON; of the millions of errors only since ``measured_since``."""
    messages = []
    for (table, column), form in JSON_COLUMNS.items():
        kind = "OBJECT" if form is dict else "ARRAY"
        recent, parameters = ("measured_at >= ? AND ", [measured_since]) if table == "accuracy" else ("", [])
        ((count,),) = store.execute(
            f"SELECT count(*) FROM {table} WHERE {recent}{column} <> '' "
            f"AND NOT coalesce(CASE WHEN json_valid({column}) THEN json_type({column}) = '{kind}' END, FALSE)",
            parameters,
        )
        if count:
            messages.append(f"{count:,} rows of {table} are left out: {column} cannot be read")
    return messages
