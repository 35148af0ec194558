"""The warehouse file: open it, run a transaction, and everything else that reads or writes it.

One DuckDB file, one writing process at a time (decision 1), read through snapshots (decision 16). The functions that work on
a `Store` live in the modules named after what they do and are exported here: this is the module to import from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from warehouse.assumed import BorrowedPath, HistoryAssumptions
from warehouse.backup import back_up
from warehouse.conventions import Conventions, read_conventions
from warehouse.damage import check_log, check_place, is_locked, store_error
from warehouse.errors import DamagedStoreError, SchemaError, StoreError
from warehouse.fitted import FittedState, forget_fitted, load_fitted, save_fitted
from warehouse.ingest import Appended, append, ingest_file
from warehouse.listing import list_markets
from warehouse.lock import Patience, Say, WriterLock, default_wait, say_on_stderr, take_lock
from warehouse.migrations import applied_steps, migrate, pending_steps
from warehouse.publishing import publish_at_close, publish_at_open, publish_now, readable_snapshot
from warehouse.reads import load_histories, load_history
from warehouse.records import Written, read_rows, record_assumptions, write_rows
from warehouse.request import HistoryRequest
from warehouse.snapshot import has_wal, snapshots_wanted
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
#: A snapshot may be replaced between the listing and the opening; twenty times in a row it is not.
_READER_TRIES = 20
Parameters = Sequence[Any] | Mapping[str, Any]


class Store:
    """An open warehouse; made by `open_store`, closed by ``with`` or `close`.

    It may be used by several threads of one process: statements take turns, and a transaction holds the turn to its end.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        *,
        name: str,
        read_only: bool,
        conventions: Conventions,
        lock: WriterLock | None = None,
    ) -> None:
        self._connection = connection
        self._lock = lock
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
        if error is None:
            self.close()
            return
        with suppress(StoreError):  # what went wrong first is what is told
            # An interrupt or a cancelled run stops a turn in the middle, an error ends it: its failure is there to be read.
            self._close(finished=isinstance(error, Exception))

    def close(self) -> None:
        """Close the file; nothing that was not committed stays, and what was is published for readers.

        Raises `StoreError` if it cannot be published; it is kept all the same.
        """
        self._close(finished=True)

    def _close(self, *, finished: bool) -> None:
        with self._turn:
            self._connection.close()
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.release(finished=finished, at_last=lambda: publish_at_close(lock))

    def publish(self) -> bool:
        """Let readers see what was committed up to now: between two turns of a long run, never inside a transaction.

        False if there is nothing new, or if this process has another store of this warehouse open for writing. Raises
        `StoreError` inside a transaction, for a store that may not write, or if there is no room.
        """
        with self._turn:
            if self._depth or self._lock is None:
                where = "inside a transaction" if self._depth else "without the right to write"
                raise StoreError(f"publish of warehouse {self.name} {where}", expected="between two turns")
            with translated(self.name):
                return publish_now(self._lock, _checkpoint_of(self._connection))

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
    wait: float | None = None,
    say: Say = say_on_stderr,
) -> Store:
    """Open the warehouse at ``path`` (":memory:" for one that is not kept) for writing, making or upgrading it if need be.

    While another process writes, it waits up to ``wait`` seconds (None: `warehouse.lock.default_wait`) and tells ``say`` so
    once. Several stores of one process share the right to write. With ``read_only`` the file itself is opened, which keeps
    writers out and does not wait: `open_reader` is for reading.

    Raises `StoreLockedError` naming the process that holds it, `SchemaError` if a newer version wrote it,
    `DamagedStoreError` if it is not a readable warehouse (it is never rebuilt), `StoreError` if it cannot be opened at all.
    """
    opening = _Opening(
        name=str(path),
        memory_limit=memory_limit,
        conventions=conventions if conventions is not None else read_conventions(),
    )
    if opening.name == ":memory:":
        return opening.store(opening.name, read_only=False)
    database = Path(path)
    check_place(database, read_only=read_only)
    if read_only:
        return opening.store(opening.name, read_only=True)
    return opening.writer(database, Patience(default_wait() if wait is None else wait, say), say)


def open_reader(path: Path | str, *, conventions: Conventions | None = None) -> Store:
    """Open the warehouse at ``path`` for reading only: the newest snapshot of it, so that no writer waits or is waited for.

    What a store opened here shows does not change; opened again it shows what was published since. A snapshot is made where
    none is of the present file and nobody writes. Raises what `open_store` raises.
    """
    if str(path) == ":memory:" or not snapshots_wanted():
        return open_store(path, read_only=True, conventions=conventions)
    database = Path(path)
    check_place(database, read_only=True)
    opening = _Opening(
        name=str(path),
        memory_limit=MEMORY_LIMIT,
        conventions=conventions if conventions is not None else read_conventions(),
    )
    patience = Patience(default_wait(), say_on_stderr)
    for _ in range(_READER_TRIES):
        snapshot = readable_snapshot(database, opening.settle, patience)
        try:
            return opening.store(str(snapshot or database), read_only=True)
        except StoreError:
            if snapshot is None or snapshot.exists():
                raise  # else a newer one has taken its place between the listing and the opening
    raise StoreError(f"warehouse {database}: snapshots come and go too fast", remedy="try again")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    """How a warehouse called ``name`` is opened."""

    name: str
    memory_limit: str
    conventions: Conventions

    def store(self, file: str, *, read_only: bool) -> Store:
        """A store without a lock: in memory, or for reading a ``file``."""
        with translated(self.name):
            connection = duckdb.connect(file, read_only=read_only)
            try:
                self._set_up(connection)
                if read_only:
                    _check_steps(connection, self.name)
                else:
                    migrate(connection)
            except BaseException:
                connection.close()
                raise
        return Store(connection, name=self.name, read_only=read_only, conventions=self.conventions)

    def writer(self, database: Path, patience: Patience, say: Say) -> Store:
        """A store with the right to write."""
        lock = take_lock(database, patience)
        try:
            check_log(lock)
            lock.sign()
            with translated(self.name):
                connection = self._connected(patience)
                try:
                    self._set_up(connection)
                    upgraded = _upgrade(connection, lock, say)
                    publish_at_open(lock, _checkpoint_of(connection), upgraded=upgraded)
                except BaseException:
                    connection.close()
                    raise
        except BaseException:
            lock.give_back()
            raise
        return Store(connection, name=self.name, read_only=False, conventions=self.conventions, lock=lock)

    def settle(self) -> None:
        """Bring what is in the log into the file; only under the lock."""
        if has_wal(Path(self.name)):
            with translated(self.name):
                duckdb.connect(self.name).close()

    def _connected(self, patience: Patience) -> duckdb.DuckDBPyConnection:
        """A connection; a program that does not know our lock (or a reader of the file itself) is waited for as well."""
        while True:
            try:
                return duckdb.connect(self.name)
            except duckdb.IOException as error:
                text = str(error)
                if not is_locked(text):
                    raise
                holder = (
                    text.partition("Conflicting lock is held in ")[2].splitlines()[0] or "another program"
                )
                if not patience.wait(f"waiting for {holder} to close {self.name}"):
                    raise

    def _set_up(self, connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_progress_bar = false")
        # The slots of a grid are taken for a handful of rows, for which a loop over all observations would do.
        connection.execute("SET asof_loop_join_threshold = 0")
        connection.execute(f"SET memory_limit = '{self.memory_limit}'")


def _checkpoint_of(connection: duckdb.DuckDBPyConnection) -> Callable[[], None]:
    def checkpoint() -> None:
        connection.execute("CHECKPOINT")

    return checkpoint


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Put the warehouse's name before what is said of its schema."""
    try:
        yield
    except (SchemaError, DamagedStoreError) as error:
        raise type(error)(
            f"warehouse {name}: {error.found}", expected=error.expected, remedy=error.remedy
        ) from error


def _check_steps(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    with _naming(name):
        pending = pending_steps(applied_steps(connection))
    if pending:
        raise StoreError(
            f"warehouse {name} lacks the schema step {pending[0]!r}", remedy="open it once for writing"
        )


def _upgrade(connection: duckdb.DuckDBPyConnection, lock: WriterLock, say: Say) -> bool:
    """Bring the schema up to date, after a backup if there is anything to lose; True if it was not."""
    with _naming(str(lock.database)):
        applied = applied_steps(connection)
        pending = pending_steps(applied)
        if applied and pending:
            connection.execute("CHECKPOINT")
            kept = back_up(lock.database, lock.open_source(), step=applied[-1])
            say(
                f"warehouse {lock.database}: schema brought from {applied[-1]} to {pending[-1]}; as it was: {kept}"
            )
        migrate(connection)
    return bool(pending)


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn DuckDB's errors into `StoreError` and its children, with DuckDB's own words in them."""
    try:
        yield
    except duckdb.Error as error:
        raise store_error(name, str(error), kind=type(error).__name__) from error
