"""The warehouse file: open it, run a transaction, and everything else that reads or writes it.

One DuckDB file, one writing process at a time (decision 1). The functions that work on a `Store` live in the modules named
after what they do and are exported here: this is the module to import from.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from warehouse.assumed import BorrowedPath, HistoryAssumptions
from warehouse.conventions import Conventions, read_conventions
from warehouse.errors import DamagedStoreError, SchemaError, StoreError, StoreLockedError
from warehouse.fitted import FittedState, forget_fitted, load_fitted, save_fitted
from warehouse.ingest import Appended, append, ingest_file
from warehouse.listing import list_markets
from warehouse.migrations import applied_steps, migrate, pending_steps
from warehouse.reads import load_histories, load_history
from warehouse.records import Written, read_rows, record_assumptions, write_rows
from warehouse.request import HistoryRequest
from warehouse.vintages import read_forecasts, write_forecasts

__all__ = [
    "Appended",
    "BorrowedPath",
    "FittedState",
    "HistoryAssumptions",
    "HistoryRequest",
    "Store",
    "Written",
    "append",
    "forget_fitted",
    "ingest_file",
    "list_markets",
    "load_fitted",
    "load_histories",
    "load_history",
    "open_reader",
    "open_store",
    "read_forecasts",
    "read_rows",
    "record_assumptions",
    "save_fitted",
    "write_forecasts",
    "write_rows",
]

#: DuckDB's own working memory; more than that is spilled to a folder beside the file.
MEMORY_LIMIT = "1GB"
Parameters = Sequence[Any] | Mapping[str, Any]


class Store:
    """An open warehouse; made by `open_store`, closed by ``with`` or `close`.

    It may be used by several threads of one process: statements take turns, and a transaction holds the turn to its end.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, *, name: str, read_only: bool, conventions: Conventions
    ) -> None:
        self._connection = connection
        self._turn = threading.RLock()
        self._depth = 0
        self.name = name
        self.read_only = read_only
        self.conventions = conventions

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; nothing that was not committed stays."""
        with self._turn:
            self._connection.close()

    def execute(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return all its rows; raises `StoreError` or one of its children."""
        with self._turn, translated(self.name):
            return self._connection.execute(sql, parameters).fetchall()

    def arrays(self, sql: str, parameters: Parameters = ()) -> dict[str, np.ndarray]:
        """Run one query and return its columns as arrays (no nulls expected: the query replaces them)."""
        with self._turn, translated(self.name):
            columns = self._connection.execute(sql, parameters).fetchnumpy()
            return {name: np.asarray(column) for name, column in columns.items()}

    def arrow(self, sql: str, parameters: Parameters = ()) -> pa.Table:
        """Run one query and return an Arrow table."""
        with self._turn, translated(self.name):
            return self._connection.sql(sql, params=parameters or None).to_arrow_table()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the turn for several statements that share temporary tables."""
        with self._turn:
            yield

    @contextmanager
    def registered(self, name: str, table: pa.Table) -> Iterator[None]:
        """Make an Arrow table readable under ``name`` inside the block."""
        with self._turn:
            self._connection.register(name, table)
            try:
                yield
            finally:
                with suppress(duckdb.TransactionException):  # a failed transaction takes the name with it
                    self._connection.unregister(name)

    @contextmanager
    def transaction(self) -> Iterator[Store]:
        """Everything inside the block is kept together or not at all; blocks nest, the outermost one commits."""
        with self._turn:
            if self._depth == 0:
                self.execute("BEGIN")
            self._depth += 1
            try:
                yield self
            except BaseException:
                self._depth -= 1
                if self._depth == 0:
                    self._rollback()
                raise
            self._depth -= 1
            if self._depth == 0:
                self.execute("COMMIT")

    def _rollback(self) -> None:
        with suppress(duckdb.TransactionException):  # the failure may already have ended the transaction
            self._connection.execute("ROLLBACK")


def open_store(
    path: Path | str,
    *,
    read_only: bool = False,
    memory_limit: str = MEMORY_LIMIT,
    conventions: Conventions | None = None,
) -> Store:
    """Open the warehouse at ``path`` (":memory:" for one that is not kept), making or upgrading it when it may be written.

    Raises `StoreLockedError` naming the process that holds it, `SchemaError` if a newer version wrote it,
    `DamagedStoreError` if it is not a readable warehouse (it is never rebuilt), `StoreError` if it cannot be opened at all.
    """
    name = str(path)
    memory = name == ":memory:"
    if not memory:
        _check_place(Path(path), read_only)
    with translated(name):
        connection = duckdb.connect(name, read_only=read_only and not memory)
        try:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("SET enable_progress_bar = false")
            # The slots of a grid are taken for a handful of rows, for which a loop over all observations would do.
            connection.execute("SET asof_loop_join_threshold = 0")
            connection.execute(f"SET memory_limit = '{memory_limit}'")
            _check_schema(connection, name, read_only)
        except BaseException:
            connection.close()
            raise
    facts = conventions if conventions is not None else read_conventions()
    return Store(connection, name=name, read_only=read_only, conventions=facts)


def open_reader(path: Path | str, *, conventions: Conventions | None = None) -> Store:
    """Open the warehouse at ``path`` for reading only; raises what `open_store` raises."""
    return open_store(path, read_only=True, conventions=conventions)


def _check_place(path: Path, read_only: bool) -> None:
    if path.is_dir():
        raise StoreError(f"warehouse {path} is a folder", expected="a file", remedy="name a file in it")
    if not path.exists() and read_only:
        raise StoreError(
            f"no warehouse at {path}", remedy="`slackwater ingest` or `slackwater run` makes one"
        )
    if not path.parent.is_dir():
        raise StoreError(f"no folder {path.parent} for the warehouse", remedy="make it, or name another file")


def _check_schema(connection: duckdb.DuckDBPyConnection, name: str, read_only: bool) -> None:
    try:
        if not read_only:
            migrate(connection)
        elif pending := pending_steps(applied_steps(connection)):
            raise StoreError(
                f"warehouse {name} lacks the schema step {pending[0]!r}", remedy="open it once for writing"
            )
    except (SchemaError, DamagedStoreError) as error:
        raise type(error)(
            f"warehouse {name}: {error.found}", expected=error.expected, remedy=error.remedy
        ) from error


_DAMAGE = (
    "not a valid DuckDB database",
    "Corrupt database file",
    "Could not read enough bytes",
    "Failed to deserialize",
    "Serialization Error",
    "database has been invalidated",
)


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn DuckDB's errors into `StoreError` and its children, with DuckDB's own words in them."""
    try:
        yield
    except duckdb.Error as error:
        raise _translate(name, error) from error


def _translate(name: str, error: duckdb.Error) -> StoreError:
    text = str(error).strip().splitlines()[0]
    if "Could not set lock" in text or "different configuration" in text:
        _, _, holder = text.partition("Conflicting lock is ")
        found = f"warehouse {name} is {holder or f'open in this process with other settings ({text})'}"
        return StoreLockedError(found, remedy="wait until that process has ended, or name another file")
    if "version number" in text and "database file" in text:
        return SchemaError(
            f"warehouse {name}: {text}", remedy="it was written by another DuckDB release: upgrade"
        )
    if isinstance(error, duckdb.SerializationException) or any(mark in text for mark in _DAMAGE):
        return DamagedStoreError(
            f"warehouse {name} is damaged or no warehouse: {text}",
            remedy="restore it from a copy, or name another file and ingest again; it is never rebuilt silently",
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return StoreError(f"warehouse {name}: {text}", remedy="open it with a larger memory limit")
    if "No space left" in text:
        return StoreError(f"warehouse {name}: {text}", remedy="free disk space beside the file")
    return StoreError(f"warehouse {name}: {text}")
