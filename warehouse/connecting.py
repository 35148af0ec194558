"""Connections to the warehouse file, set up and brought up to date; with the store and the migrations the only DuckDB import."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from warehouse.backup import back_up
from warehouse.damage import check_log, is_locked, store_error
from warehouse.errors import DamagedStoreError, SchemaError, StoreError
from warehouse.lock import Patience, Say, WriterLock
from warehouse.manifest import read_manifest, table_file
from warehouse.migrations import MIGRATIONS, applied_steps, migrate, pending_steps
from warehouse.publishing import publish_at_open
from warehouse.snapshot import has_wal
from warehouse.tables import quoted


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn DuckDB's errors into `StoreError` and its children, with DuckDB's own words in them.

    What a signal's handler raises during a statement (an interrupt from the keyboard, the engine's time-out) goes on as it is.
    """
    try:
        yield
    except duckdb.Error as error:
        raise store_error(name, str(error), kind=type(error).__name__) from error
    except RuntimeError as error:
        # DuckDB hides it in an error that stages would take for their own.
        if "interrupted" in str(error).lower() and error.__cause__ is not None:
            raise error.__cause__ from None
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a warehouse called ``name`` is opened."""

    name: str
    memory_limit: str

    def unlocked(self, file: str, *, read_only: bool) -> duckdb.DuckDBPyConnection:
        """A connection without a lock: to memory, or to a ``file`` for reading."""
        with translated(self.name):
            connection = duckdb.connect(file, read_only=read_only)
            with closed_on_error(connection):
                self._set_up(connection)
                if read_only:
                    _check_steps(connection, self.name)
                else:
                    migrate(connection)
        return connection

    def shared(self, folder: Path) -> duckdb.DuckDBPyConnection:
        """A connection to the Parquet files of an exported folder, as if they were the tables of a warehouse."""
        manifest = read_manifest(folder)
        with translated(self.name):
            connection = duckdb.connect(":memory:")
            with closed_on_error(connection):
                self._set_up(connection)
                connection.execute(
                    "CREATE TABLE schema_steps AS SELECT * FROM (VALUES (0, '')) AS s(position, name) WHERE FALSE"
                )
                for position, step in enumerate(manifest.steps):
                    connection.execute("INSERT INTO schema_steps VALUES (?, ?)", [position, step])
                _check_steps(connection, self.name)
                for name in manifest.tables:
                    file = quoted(table_file(folder, name))
                    connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({file})")
        return connection

    def writing(self, lock: WriterLock, patience: Patience, say: Say) -> duckdb.DuckDBPyConnection:
        """A connection with the right to write: the schema is brought up to date, and readers have something to see."""
        with lock.opening, translated(self.name):
            if not lock.signed:
                check_log(lock)
                lock.sign()
            connection = self._connected(patience)
            with closed_on_error(connection):
                self._set_up(connection)
                before = _upgrade(connection, lock, say)
                renew = before == 0 or (before < len(MIGRATIONS) and not lock.unfinished)
                publish_at_open(lock, checkpoint_of(connection), renew=renew)
        return connection

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


@contextmanager
def closed_on_error(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Close the connection if the block does not come to its end."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def checkpoint_of(connection: duckdb.DuckDBPyConnection) -> Callable[[], None]:
    """Brings what is committed from the log into the file."""

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
            f"warehouse {name} lacks the schema step {pending[0]!r}",
            remedy="open it once for writing (a published one: publish it again)",
        )


def _upgrade(connection: duckdb.DuckDBPyConnection, lock: WriterLock, say: Say) -> int:
    """Bring the schema up to date, after a backup if there is anything to lose; returns the number of steps it had."""
    with _naming(str(lock.database)):
        applied = applied_steps(connection)
        pending = pending_steps(applied)
        if pending and _holds_rows(connection):
            connection.execute("CHECKPOINT")
            kept = back_up(lock.database, lock.open_source(), step=applied[-1])
            say(
                f"warehouse {lock.database}: schema brought from {applied[-1]} to {pending[-1]}; as it was: {kept}"
            )
        migrate(connection)
    return len(applied)


def _holds_rows(connection: duckdb.DuckDBPyConnection) -> bool:
    tables = [str(row[0]) for row in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
    return any(
        connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchall()
        for table in tables
        if table != "schema_steps"
    )
