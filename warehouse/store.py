"""The warehouse file: open it, run a transaction, and everything else that reads or writes it.

One DuckDB file, one writing process at a time (decision 1), read through snapshots (decision 16). The functions that work on
a `Store` live in the modules named after what they do and are exported here: this is the module to import from.
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
from warehouse.connecting import Opening, checkpoint_of, translated
from warehouse.conventions import Conventions, read_conventions
from warehouse.damage import check_place
from warehouse.errors import StoreError
from warehouse.fitted import FittedState, forget_fitted, load_fitted, save_fitted
from warehouse.ingest import Appended, append, ingest_file
from warehouse.listing import list_markets, list_markets_at, observed_sources, observed_span
from warehouse.lock import (
    Patience,
    Say,
    WriterLock,
    default_wait,
    is_waited_for,
    locked,
    say_on_stderr,
    take_lock,
)
from warehouse.publishing import publish_at_close, publish_now, readable_snapshot
from warehouse.reads import load_histories, load_history
from warehouse.records import Written, read_rows, record_assumptions, write_rows
from warehouse.request import HistoryRequest
from warehouse.sharing import current_generation, is_shared
from warehouse.snapshot import snapshots_wanted
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
    "list_markets_at",
    "load_fitted",
    "load_histories",
    "load_history",
    "observed_sources",
    "observed_span",
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
        #: Columns of tables, as far as they were asked for: they stay as they are while the file is open.
        self.columns: dict[str, list[str]] = {}

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

    def close_into(self, file: Path) -> None:
        """Close the warehouse and put another file in its place, which the next one to open it finds.

        Raises `StoreLockedError` if this process has another store of it open, `OSError` if the file cannot be moved.
        """
        with self._turn:
            lock = self._lock
            if lock is None:
                raise StoreError(f"warehouse {self.name} without the right to write")
            with lock.alone() as alone:
                if not alone:
                    raise locked(lock.database, "open in another part of this process")
                self._connection.close()
                lock.put_in_place(file)
            self._close(finished=True)

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
                return publish_now(self._lock, checkpoint_of(self._connection))

    def is_waited_for(self) -> bool:
        """Whether another process waits to write here: a writer of many turns then closes the store as soon as it can."""
        return self._lock is not None and is_waited_for(self._lock.database)

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
    opening = Opening(name=str(path), memory_limit=memory_limit)
    facts = conventions if conventions is not None else read_conventions()
    database = Path(path)
    if opening.name == ":memory:":
        read_only = False
    else:
        check_place(database, read_only=read_only)
    if read_only or opening.name == ":memory:":
        connection = opening.unlocked(opening.name, read_only=read_only)
        return Store(connection, name=opening.name, read_only=read_only, conventions=facts)
    patience = Patience(default_wait() if wait is None else wait, say)
    lock = take_lock(database, patience)
    try:
        connection = opening.writing(lock, patience, say)
    except BaseException:
        lock.give_back()
        raise
    return Store(connection, name=opening.name, read_only=False, conventions=facts, lock=lock)


def open_reader(path: Path | str, *, conventions: Conventions | None = None) -> Store:
    """Open the warehouse at ``path`` for reading only: the newest snapshot of it, so that no writer waits or is waited for.

    What a store opened here shows does not change; opened again it shows what was published since. A snapshot is made where
    none is of the present file and nobody writes. ``path`` may also be a folder that `slackwater publish` wrote. Raises what
    `open_store` raises.
    """
    if is_shared(Path(path)):
        facts = conventions if conventions is not None else read_conventions()
        connection = Opening(name=str(path), memory_limit=MEMORY_LIMIT).shared(
            current_generation(Path(path)).folder
        )
        return Store(connection, name=str(path), read_only=True, conventions=facts)
    if str(path) == ":memory:" or not snapshots_wanted():
        return open_store(path, read_only=True, conventions=conventions)
    database = Path(path)
    check_place(database, read_only=True)
    opening = Opening(name=str(path), memory_limit=MEMORY_LIMIT)
    patience = Patience(default_wait(), say_on_stderr)
    for _ in range(_READER_TRIES):
        snapshot = readable_snapshot(database, opening.settle, patience)
        try:
            connection = opening.unlocked(str(snapshot or database), read_only=True)
        except StoreError:
            if snapshot is None or snapshot.exists():
                raise
            continue  # a newer one has taken its place between the listing and the opening
        facts = conventions if conventions is not None else read_conventions()
        return Store(connection, name=str(path), read_only=True, conventions=facts)
    raise StoreError(f"warehouse {database}: snapshots come and go too fast", remedy="try again")
