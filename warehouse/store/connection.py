"""Read-only snapshots of the warehouse and connections to it.

Readers open numbered copies of the file, so they block no writer and see complete turns only. The
copies are ``<database>.read/<number>-<size>-<changed>.duckdb``, with the size and change time of
the file they were copied from: a snapshot whose name matches the present file is current. A new
snapshot is written under another name, flushed and renamed; then older snapshots are unlinked, which
does not affect readers that have them open.

A writer publishes a snapshot when it closes the file, when all committed changes are complete. A
writer that is stopped in the middle publishes nothing: readers continue to see the state before it
until the next writer has closed the file.
"""

from __future__ import annotations

import os
import re
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

from slackwater.warehouse.errors import (
    DamagedStoreError,
    OldSchemaError,
    SchemaError,
    SettingsError,
    StoreError,
    StoreLockedError,
)
from slackwater.warehouse.store.files import (
    WAIT_VARIABLE,
    Identity,
    Patience,
    Say,
    WriterLock,
    check_host,
    check_log,
    check_place,
    claimed_file,
    close_source,
    copy_synced,
    default_wait,
    has_wal,
    holder_of,
    identity_of,
    is_locked,
    is_shared,
    is_waited_for,
    locked_error,
    log_identity,
    present_holder,
    real_file,
    say_on_stderr,
    store_error,
    sync_folder,
    take_lock,
    try_lock,
)
from slackwater.warehouse.store.schema import (
    MIGRATIONS,
    applied_steps,
    as_name,
    back_up,
    describe,
    migrate,
    pending_steps,
    sql_literal,
    views_over,
)

#: Environment variable: "off" disables snapshots; readers then open the file itself, and readers
#: and writers exclude each other.
SNAPSHOTS_VARIABLE = "SLACKWATER_SNAPSHOTS"
#: Environment variable: threads of DuckDB in a process; default: the number of cores.
THREADS_VARIABLE = "SLACKWATER_THREADS"
#: Link to the newest snapshot, in the folder of the snapshots: a path that other programs can keep.
CURRENT = "current.duckdb"
_NAME = re.compile(r"(\d{9,})-([0-9a-f]+)-([0-9a-f]+)\.duckdb")
#: Size of DuckDB's headers in bytes; their content changes with every checkpoint that wrote anything.
_HEADERS = 12288


def snapshots_wanted() -> bool:
    """Return whether snapshots are published (`SNAPSHOTS_VARIABLE`, default on); raises `SettingsError` unless it is on or off."""
    word = os.environ.get(SNAPSHOTS_VARIABLE, "on").strip().lower() or "on"
    if word not in ("on", "off"):
        raise SettingsError(f"{SNAPSHOTS_VARIABLE}={word!r}", expected="on or off")
    return word == "on"


def threads_wanted() -> int | None:
    """Return the DuckDB threads of `THREADS_VARIABLE`, None if unset; raises `SettingsError` unless a positive number."""
    word = os.environ.get(THREADS_VARIABLE, "").strip()
    if word and not (word.isdecimal() and int(word) > 0):
        raise SettingsError(f"{THREADS_VARIABLE}={word!r}", expected="a whole number of threads, 1 or more")
    return int(word) if word else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Published copy of the file in the state ``of``."""

    path: Path
    number: int
    of: Identity


def snapshot_folder(database: Path) -> Path:
    """Return the folder of the snapshots of a warehouse."""
    return database.with_name(f"{database.name}.read")


def newest_snapshot(database: Path) -> Snapshot | None:
    """Return the newest published copy; None if there is none."""
    found = _snapshots(database)
    return found[-1] if found else None


def is_current(snapshot: Snapshot | None, database: Path) -> bool:
    """Return whether the file is unchanged since the snapshot was taken."""
    return snapshot is not None and not has_wal(database) and snapshot.of == identity_of(database)


def _snapshots(database: Path) -> list[Snapshot]:
    folder = snapshot_folder(database)
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = [match for match in map(_NAME.fullmatch, names) if match]
    found = [
        Snapshot(
            path=folder / match[0],
            number=int(match[1]),
            of=Identity(size=int(match[2], 16), changed=int(match[3], 16)),
        )
        for match in matches
    ]
    return sorted(found, key=lambda snapshot: snapshot.number)


def publish_copy(database: Path, source: int, *, copied: Path | None = None) -> Snapshot:
    """Publish a copy of the file open as ``source`` and remove older snapshots; requires the writer's lock.

    ``source`` is a descriptor opened for this purpose: opening and closing the file here would drop
    DuckDB's lock on it. ``copied`` is a copy that was made already. Raises `StoreError` if there is
    no room; earlier snapshots then remain.
    """
    folder = snapshot_folder(database)
    of, before = identity_of(source), _snapshots(database)
    number = before[-1].number + 1 if before else 1
    target = folder / f"{number:09d}-{of.size:x}-{of.changed:x}.duckdb"
    part = copied or folder / f"{number:09d}.part"
    try:
        folder.mkdir(exist_ok=True)
        _discard(folder, keep=[part, *(snapshot.path for snapshot in before)])
        if copied is None:
            copy_synced(source, part, size=of.size)
        os.replace(part, target)
        _point(folder, target)
        sync_folder(folder)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise _no_room(database, error) from error
    _discard(folder, keep=[target])
    return Snapshot(path=target, number=number, of=of)


def _no_room(database: Path, error: OSError) -> StoreError:
    return StoreError(
        f"no snapshot of {database} for readers: {error.strerror}",
        remedy="the written rows are stored, readers see the state before them; make room and run any writing command "
        f"again, or set {SNAPSHOTS_VARIABLE}=off",
    )


def _point(folder: Path, target: Path) -> None:
    """Let `CURRENT` in the folder name the snapshot ``target``, in one step: it names a whole snapshot at any time."""
    link = folder / f"{CURRENT}.part"
    with suppress(FileNotFoundError):
        link.unlink()
    link.symlink_to(target.name)  # relative: the folder may be mounted elsewhere
    os.replace(link, folder / CURRENT)


def _discard(folder: Path, *, keep: list[Path]) -> None:
    """Unlink older snapshots and partial copies left by a killed writer, except those in ``keep``."""
    for path in folder.iterdir():
        if path not in keep and (_NAME.fullmatch(path.name) or path.suffix == ".part"):
            with suppress(FileNotFoundError):
                path.unlink()


def _headers(lock: WriterLock) -> bytes:
    return os.pread(lock.open_source(), _HEADERS, 0)


def publish_at_open(lock: WriterLock, checkpoint: Callable[[], object], *, renew: bool) -> None:
    """Publish the state that a new writer found, unless it may be half a turn and a snapshot exists; ``renew``: always.

    ``checkpoint`` merges the committed changes from the log into the file.
    """
    if not snapshots_wanted():
        return
    with lock.alone() as alone:
        if not alone:
            return
        lock.log = log_identity(lock.database)
        newest = newest_snapshot(lock.database)
        if newest is not None and lock.unfinished and not renew:
            return
        checkpoint()
        if renew or not is_current(newest, lock.database):
            publish_copy(lock.database, lock.open_source())
        lock.published = _headers(lock)


def publish_at_close(lock: WriterLock) -> None:
    """Publish the changes in the closed file after the last user of the lock has closed it.

    Raises `StoreError` if the file has been replaced by another, or if DuckDB could not merge its
    log into the file: DuckDB reports no error when it closes. A log that is unchanged since the
    file was opened is the damaged end of a log left by a killed writer and is ignored.
    """
    lock.check_in_place()
    if not snapshots_wanted():
        return
    if has_wal(lock.database):
        if log_identity(lock.database) == lock.log:
            return
        raise StoreError(
            f"warehouse {lock.database} could not be brought up to date from its log",
            expected="room on the disk",
            remedy="the written rows are in the log, readers see the state before them; make room and run any writing "
            "command again",
        )
    _publish_changes(lock)


def _publish_changes(lock: WriterLock) -> bool:
    if lock.published == _headers(lock) and is_current(newest_snapshot(lock.database), lock.database):
        return False
    publish_copy(lock.database, lock.open_source())
    lock.published = _headers(lock)
    return True


def readable_snapshot(database: Path, settle: Callable[[], None], patience: Patience) -> Path | None:
    """Return the snapshot to read: a current one, created if no process is writing, else the newest existing snapshot.

    ``settle`` merges the log left by a killed writer into the file. Returns None if no snapshot
    exists and the folder is not writable: then nobody can write, and the file itself may be opened.
    Raises `StoreLockedError` if there is no snapshot and another process holds the lock for longer
    than ``patience``, `DamagedStoreError` for a log of another file.
    """
    while True:
        newest = newest_snapshot(database)
        if newest is not None and is_current(newest, database):
            return newest.path
        try:
            lock = try_lock(database, share=False)
        except StoreError:
            return None if newest is None else newest.path
        if lock is not None:
            result = _snapshot_by_reader(lock, settle)
            if result is not None:
                return result
            continue  # the file has changed meanwhile
        if newest is not None:
            return newest.path
        holder = present_holder(database)
        if not patience.wait(f"waiting for the first snapshot of {database} by {holder}"):
            raise locked_error(database, f"held by {holder}, which publishes nothing for readers")


def _snapshot_by_reader(lock: WriterLock, settle: Callable[[], None]) -> Path | None:
    """Create a snapshot of the file; return the existing snapshot if the last writer was stopped in the middle.

    The file is copied without the lock, so that a reader that is stopped meanwhile blocks no writer. Returns None if
    the file has changed since: the copy is not whole then.
    """
    database = lock.database
    try:
        newest = newest_snapshot(database)
        if newest is not None and (lock.unfinished or newest.of == identity_of(database)):
            return newest.path  # the snapshot matches the file, so its log may be ignored
        check_host(lock)
        check_log(lock)
        settle()
        of = identity_of(database)
    finally:
        lock.give_back()
    source = os.open(database, os.O_RDONLY | os.O_CLOEXEC)
    part = snapshot_folder(database) / f"{os.getpid()}-{threading.get_ident()}.part"
    try:
        part.parent.mkdir(exist_ok=True)
        copy_synced(source, part, size=of.size)
        return _published_by_reader(database, source, part, of)
    except (OSError, StoreError) as error:
        if newest is None:
            raise error if isinstance(error, StoreError) else _no_room(database, error) from error
        return newest.path
    finally:
        with suppress(OSError):
            part.unlink()
        close_source(database, source)


def _published_by_reader(database: Path, source: int, part: Path, of: Identity) -> Path | None:
    """Publish a copy of the file in the state ``of``; return None if the file is in another state by now."""
    lock = try_lock(database, share=False)
    if lock is None:
        return None
    try:
        newest = newest_snapshot(database)
        if newest is not None and is_current(newest, database):
            return newest.path
        if has_wal(database) or not part.exists() or {of} != {identity_of(database), identity_of(source)}:
            return None
        return publish_copy(database, source, copied=part).path
    finally:
        lock.give_back()


# ---
# The warehouse file: open, configure, upgrade, run transactions.
#
# `open_store`: one DuckDB file, one writing process at a time (decision 1). `open_reader`: reads snapshots, so
# that readers and writers never wait for each other, or a folder published for many readers (decision 16).
# Only this module and `slackwater.warehouse.store.schema` import DuckDB.

#: Storage format of new files, readable by all DuckDB releases from 1.5 on. DuckDB's default is its
#: newest format, which older releases cannot read. A file keeps the format it was created in.
STORAGE_VERSION = "v1.0.0"
#: Memory limit of DuckDB; larger intermediate results are spilled to a folder next to the file.
MEMORY_LIMIT = "1GB"
#: Attempts to open a snapshot, which may be replaced between listing and opening.
_READER_TRIES = 20
Parameters = Sequence[Any] | Mapping[str, Any]
#: Held while settings are applied: threads of the process that open the same file share them.
_SETTING_UP = threading.Lock()


@contextmanager
def translate_errors(name: str) -> Iterator[None]:
    """Context manager that converts DuckDB's errors to `StoreError` and its subclasses, keeping DuckDB's message.

    Exceptions raised by a signal handler during a statement (keyboard interrupt, time-out of the
    engine) pass unchanged.
    """
    try:
        yield
    except duckdb.Error as error:
        interrupt = _interrupt_of(str(error))
        if interrupt is not None:
            raise interrupt from None
        raise store_error(name, str(error), kind=type(error).__name__) from error
    except RuntimeError as error:
        # DuckDB wraps the exception in a RuntimeError, which stages would treat as a failure of the stage.
        if "interrupted" in str(error).lower() and error.__cause__ is not None:
            raise error.__cause__ from None
        raise


def _interrupt_of(text: str) -> BaseException | None:
    """Return the exception of a signal handler that DuckDB reports by its class name and a traceback only; else None.

    It is of the newest class of that name that no library catches as an ordinary error.
    """
    name, mark, _ = text.partition(":")
    if not mark or "\n\nAt:\n" not in text:
        return None
    waiting, found = [BaseException], None
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__name__ == name and not issubclass(kind, Exception):
            found = kind
    return None if found is None else found()


def _plain_path(file: str) -> str:
    """Return a path that begins with a folder: DuckDB would reach ``s3://x`` or ``postgres:x`` with an extension."""
    return file if file == ":memory:" or os.path.isabs(file) else os.path.join(os.curdir, file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Options for opening the warehouse ``name``; ``sealed``: statements cannot access other files or load extensions."""

    name: str
    memory_limit: str
    sealed: bool = True

    def unlocked(self, file: str, *, read_only: bool) -> duckdb.DuckDBPyConnection:
        """Return a connection without a lock: to memory, or read-only to ``file``."""
        with translate_errors(self.name):
            connection = duckdb.connect(_plain_path(file), read_only=read_only)
            with closed_on_error(connection):
                self._set_up(connection)
                if read_only:
                    _check_steps(connection, self.name)
                else:
                    migrate(connection)
        return connection

    def shared(self, steps: Sequence[str], tables: Mapping[str, Path]) -> duckdb.DuckDBPyConnection:
        """Return a connection that presents Parquet files as the tables of a warehouse with the schema ``steps``."""
        with translate_errors(self.name):
            connection = duckdb.connect(":memory:")
            with closed_on_error(connection):
                self._set_up(connection, *(path.resolve() for path in tables.values()))
                connection.execute(
                    "CREATE TABLE schema_steps AS SELECT * FROM (VALUES (0, '')) AS s(position, name) WHERE FALSE"
                )
                for position, step in enumerate(steps):
                    connection.execute("INSERT INTO schema_steps VALUES (?, ?)", [position, step])
                _check_steps(connection, self.name)
                connection.execute(
                    "\n".join(views_over({name: path.resolve() for name, path in tables.items()}))
                )
        return connection

    def writing(self, lock: WriterLock, patience: Patience, say: Say) -> duckdb.DuckDBPyConnection:
        """Return a connection for writing, after upgrading the schema and publishing a snapshot for readers."""
        with lock.opening, translate_errors(self.name):
            if not lock.signed:
                check_host(lock)
                check_log(lock)
                lock.sign()
            connection = self._connect(patience)
            with closed_on_error(connection):
                lock.check_in_place()
                self._set_up(connection, *_database_files(compacted_file(Path(self.name))))
                before = _upgrade(connection, lock, say)
                renew = before == 0 or (before < len(MIGRATIONS) and not lock.unfinished)
                publish_at_open(lock, lambda: connection.execute("CHECKPOINT"), renew=renew)
        return connection

    def settle(self) -> None:
        """Merge the log into the file; requires the lock."""
        if has_wal(Path(self.name)):
            with translate_errors(self.name):
                duckdb.connect(_plain_path(self.name)).close()

    def _connect(self, patience: Patience) -> duckdb.DuckDBPyConnection:
        """Return a connection, waiting for programs that hold DuckDB's lock on the file but do not use ours."""
        while True:
            try:
                self._make()
                return duckdb.connect(_plain_path(self.name))
            except duckdb.IOException as error:
                text = str(error)
                if not is_locked(text):
                    raise
                holder = (
                    text.partition("Conflicting lock is held in ")[2].splitlines()[0] or "another program"
                )
                if not patience.wait(f"waiting for {holder} to close {self.name}"):
                    raise

    def _make(self) -> None:
        """Create the file in `STORAGE_VERSION` if it is missing or empty."""
        file = Path(self.name)
        if file.exists() and file.stat().st_size:
            return
        with duckdb.connect(":memory:") as connection:
            connection.execute(attach_new(self.name, "made"))

    def _set_up(self, connection: duckdb.DuckDBPyConnection, *reach: Path) -> None:
        """Apply the settings, which a second connection finds locked; only the file, temporary files and ``reach`` are open."""
        with _SETTING_UP:
            ((locked,),) = connection.execute("SELECT current_setting('lock_configuration')").fetchall()
            if not locked:
                self._lock_settings(connection, reach)

    def _lock_settings(self, connection: duckdb.DuckDBPyConnection, reach: Sequence[Path]) -> None:
        connection.execute("SET enable_progress_bar = false")
        settings = {
            "TimeZone": sql_literal("UTC"),
            # DuckDB underestimates the number of slots of a grid and would choose a loop over all
            # observations.
            "asof_loop_join_threshold": "0",
            "memory_limit": sql_literal(self.memory_limit),
        }
        if (threads := threads_wanted()) is not None:
            settings["threads"] = str(threads)
        if self.sealed:
            settings["allowed_paths"] = f"[{', '.join(sql_literal(path) for path in reach)}]"
            settings["enable_external_access"] = "false"
            settings["lock_configuration"] = "true"
        for name, value in settings.items():
            connection.execute(f"SET GLOBAL {name} = {value}")


#: Suffixes of the files that DuckDB writes next to a database file.
_FILE_SUFFIXES = ("", ".wal", ".wal.checkpoint", ".wal.recovery")


def compacted_file(database: Path) -> Path:
    """Return the path of the compacted copy of a warehouse before it replaces the file."""
    return database.with_name(f"{database.name}.compact.part")


def _database_files(file: Path) -> list[Path]:
    return [file.with_name(f"{file.name}{ending}") for ending in _FILE_SUFFIXES]


def attach_new(file: Path | str, name: str) -> str:
    """Return SQL that creates a database file in `STORAGE_VERSION` and attaches it as ``name``."""
    return f"ATTACH {sql_literal(_plain_path(str(file)))} AS {name} (STORAGE_VERSION {sql_literal(STORAGE_VERSION)})"


@contextmanager
def closed_on_error(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Context manager that closes the connection if the block raises."""
    try:
        yield
    except BaseException:
        _close(connection)
        raise


def _close(connection: duckdb.DuckDBPyConnection) -> None:
    """Close a connection, after rolling back a statement that a signal may have interrupted.

    Otherwise that statement would keep the file locked, and the next attempt of this process to
    open it would wait forever (DuckDB 1.5).
    """
    with suppress(duckdb.Error, RuntimeError):  # usually no transaction is open
        connection.execute("ROLLBACK")
    connection.close()


@contextmanager
def _naming_warehouse(name: str) -> Iterator[None]:
    """Context manager that adds the warehouse's name to errors about its schema."""
    try:
        yield
    except (SchemaError, DamagedStoreError) as error:
        raise type(error)(
            f"warehouse {name}: {error.found}", expected=error.expected, remedy=error.remedy
        ) from error


def _check_steps(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    with _naming_warehouse(name):
        pending = pending_steps(applied_steps(connection))
    if pending:
        raise OldSchemaError(
            f"warehouse {name} lacks the schema step {pending[0]!r}",
            remedy="open it once for writing (a published one: publish it again)",
        )


def _upgrade(connection: duckdb.DuckDBPyConnection, lock: WriterLock, say: Say) -> int:
    """Upgrade the schema, after a backup if the file has rows; return the number of steps it had."""
    with _naming_warehouse(str(lock.database)):
        applied = applied_steps(connection)
        pending = pending_steps(applied)
        if pending and _holds_rows(connection):
            connection.execute("CHECKPOINT")
            kept = back_up(lock.database, lock.open_source(), step=applied[-1])
            say(
                f"warehouse {lock.database}: schema brought from {applied[-1]} to {pending[-1]}; as it was: {kept}"
            )
        migrate(connection, say=say)
        describe(connection)
    return len(applied)


def _holds_rows(connection: duckdb.DuckDBPyConnection) -> bool:
    tables = [str(row[0]) for row in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
    return any(
        connection.execute(f"SELECT 1 FROM {as_name(table)} LIMIT 1").fetchall()
        for table in tables
        if table != "schema_steps"
    )


class Store:
    """Open warehouse, returned by `open_store`; close it with ``with`` or `close`.

    ``snapshot`` is the published copy that a reader has open, else None.

    Several threads of a process may share it: statements run one at a time, and a transaction
    blocks other threads until it ends.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        *,
        name: str,
        read_only: bool,
        lock: WriterLock | None = None,
        again: Callable[[], tuple[duckdb.DuckDBPyConnection, WriterLock]] | None = None,
        snapshot: Path | None = None,
    ) -> None:
        self._connection = connection
        self.snapshot = snapshot
        self._lock = lock
        self._again = again
        self._turn = threading.RLock()
        self._depth = 0
        self.name = name
        self.read_only = read_only
        self._columns: dict[str, list[str]] = {}

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(StoreError):  # the first error is reported
            # An error ends the turn, and its stored failure may be published; an interrupt leaves
            # it incomplete.
            self._close(finished=isinstance(error, Exception))

    def close(self) -> None:
        """Close the file and publish the committed changes; raises `StoreError` if only that fails. Others are discarded."""
        self._close(finished=True)

    def _close(self, *, finished: bool) -> None:
        with self._turn:
            _close(self._connection)
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.release(finished=finished, at_last=lambda: publish_at_close(lock))

    @contextmanager
    def released(self) -> Iterator[None]:
        """Close the file during the block, so that others may write while this process waits, and open it again afterwards.

        Committed changes are stored but not published, as the turn is not complete. A warehouse in
        memory stays open. Raises `StoreError` inside a transaction, and the errors of `open_store`
        at the end of the block.
        """
        with self._turn:
            if self._depth:
                raise StoreError(
                    f"warehouse {self.name} let go inside a transaction", expected="one between two"
                )
            if self._again is None or self._lock is None:
                yield
                return
            self._close(finished=False)
            try:
                yield
            finally:
                self._connection, self._lock = self._again()

    @contextmanager
    def claimed(self, name: str, work: str) -> Iterator[None]:
        """Hold a claim on ``name`` during the block: of all processes that use this warehouse, only one does ``work``.

        Waits for another holder as `open_store` waits for another writer, with the warehouse
        released meanwhile. Raises `StoreLockedError` that names the holder.
        """
        lock = self._lock
        if lock is None:
            yield
            return
        patience = Patience(default_wait(), say_on_stderr)
        while True:
            with claimed_file(lock.database, name) as taken:
                if taken is None:
                    yield
                    return
            with self.released():
                self._wait_for_claim(lock.database, name, work, patience)

    @staticmethod
    def _wait_for_claim(database: Path, name: str, work: str, patience: Patience) -> None:
        while True:
            with claimed_file(database, name) as taken:
                if taken is None:
                    return
            holder = holder_of(taken)
            if not patience.wait(f"waiting for {holder} to {work}"):
                raise StoreLockedError(
                    f"{holder} is about to {work}",
                    expected="one process at a time",
                    remedy=f"wait until it has ended, or longer ({WAIT_VARIABLE}=SECONDS)",
                )

    def close_into(self, file: Path) -> None:
        """Close the warehouse and replace its file by another.

        Raises `StoreError` for a store that may not write, `StoreLockedError` if this process has
        another store of the warehouse open, `OSError` if the file cannot be moved.
        """
        with self._turn:
            lock = self._lock
            if lock is None:
                raise StoreError(f"warehouse {self.name} without the right to write")
            with lock.alone() as alone:
                if not alone:
                    raise locked_error(lock.database, "open in another part of this process")
                _close(self._connection)
                lock.put_in_place(file)
            self._close(finished=True)

    def is_waited_for(self) -> bool:
        """Return whether another process waits to write: a writer of many turns should then close the store soon."""
        return self._lock is not None and is_waited_for(self._lock.database)

    def execute(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return all its rows; raises `StoreError` or a subclass."""
        with self._turn, translate_errors(self.name):
            return self._connection.execute(sql, parameters).fetchall()

    def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns in order; cached, as they do not change while the file is open."""
        if table not in self._columns:
            self._columns[table] = [str(row[0]) for row in self.execute(f"DESCRIBE {table}")]
        return self._columns[table]

    def arrays(self, sql: str, parameters: Parameters = ()) -> dict[str, np.ndarray]:
        """Run a query and return its columns as arrays; the query must replace nulls."""
        with self._turn, translate_errors(self.name):
            columns = self._connection.execute(sql, parameters).fetchnumpy()
            return {name: np.asarray(column) for name, column in columns.items()}

    def arrow(self, sql: str, parameters: Parameters = ()) -> pa.Table:
        """Run a query and return an Arrow table."""
        with self._turn, translate_errors(self.name):
            return self._connection.sql(sql, params=parameters or None).to_arrow_table()

    @contextmanager
    def batches(self, sql: str, parameters: Parameters = (), *, rows: int) -> Iterator[pa.RecordBatchReader]:
        """Run a query and yield a reader of Arrow batches of about ``rows`` rows, valid inside the block."""
        with self._turn, translate_errors(self.name):
            yield self._connection.execute(sql, parameters).to_arrow_reader(rows)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Block other threads during several statements that share temporary tables."""
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
                with suppress(
                    duckdb.TransactionException
                ):  # a failed transaction has already removed the name
                    self._connection.unregister(name)

    @contextmanager
    def transaction(self) -> Iterator[Store]:
        """Commit all changes of the block together, or none if it raises; blocks nest, the outermost commits."""
        with self._turn:
            if self._depth == 0:
                self.execute("BEGIN")
            self._depth += 1
            try:
                yield self
                if self._depth == 1 and self._lock is not None:
                    self._lock.check_in_place()
            except BaseException:
                self._depth -= 1
                if self._depth == 0:
                    # The failure may already have ended the transaction.
                    with suppress(duckdb.TransactionException):
                        self._connection.execute("ROLLBACK")
                raise
            self._depth -= 1
            if self._depth == 0:
                self.execute("COMMIT")


def open_store(
    path: Path | str,
    *,
    read_only: bool = False,
    memory_limit: str = MEMORY_LIMIT,
    wait: float | None = None,
    say: Say = say_on_stderr,
    sealed: bool = True,
) -> Store:
    """Open the warehouse at ``path`` for writing, creating or upgrading it if necessary (":memory:": temporary, in memory).

    Statements of a ``sealed`` store cannot access files other than the warehouse or load extensions.

    While another process writes, the call waits up to ``wait`` seconds (None:
    `slackwater.warehouse.store.files.default_wait`) and reports this once through ``say``. Several stores of
    one process share the right to write. ``read_only`` opens the file itself, which blocks writers
    and does not wait; use `open_reader` for reading.

    Raises `StoreLockedError` naming the process that holds the lock, `SchemaError` if a newer
    version wrote the file, `DamagedStoreError` if it is not a readable warehouse (it is never
    rebuilt), `StoreError` if it cannot be opened at all. If the file of an open store is replaced,
    the next commit and `close` raise `StoreError`.
    """
    database = real_file(path)
    opening = Opening(name=str(database), memory_limit=memory_limit, sealed=sealed)
    if opening.name == ":memory:":
        read_only = False
    else:
        check_place(database, read_only=read_only)
    if read_only or opening.name == ":memory:":
        connection = opening.unlocked(opening.name, read_only=read_only)
        return Store(connection, name=opening.name, read_only=read_only)

    def reopen() -> tuple[duckdb.DuckDBPyConnection, WriterLock]:
        patience = Patience(default_wait() if wait is None else wait, say)
        lock = take_lock(database, patience)
        try:
            return opening.writing(lock, patience, say), lock
        except BaseException:
            lock.give_back()
            raise

    connection, lock = reopen()
    return Store(connection, name=opening.name, read_only=False, lock=lock, again=reopen)


def open_reader(path: Path | str) -> Store:
    """Open the warehouse at ``path`` for reading from its newest snapshot, independent of writers.

    The content of an open store does not change; open it again to see later snapshots. If no
    snapshot of the present file exists and nobody is writing, it is created. ``path`` may also be a
    folder written by `slackwater publish`. Raises the errors of `open_store`.
    """
    if is_shared(Path(path)):
        from slackwater.warehouse.store.folders import current_generation, read_manifest, table_file

        folder = current_generation(Path(path)).folder
        manifest = read_manifest(folder)
        tables = {name: table_file(folder, name) for name in manifest.tables}
        connection = Opening(name=str(path), memory_limit=MEMORY_LIMIT).shared(manifest.schema_steps, tables)
        return Store(connection, name=str(path), read_only=True)
    if str(path) == ":memory:" or not snapshots_wanted():
        return open_store(path, read_only=True)
    database = real_file(path)
    check_place(database, read_only=True)
    opening = Opening(name=str(database), memory_limit=MEMORY_LIMIT)
    patience = Patience(default_wait(), say_on_stderr)
    for _ in range(_READER_TRIES):
        snapshot = readable_snapshot(database, opening.settle, patience)
        try:
            connection = opening.unlocked(str(snapshot or database), read_only=True)
        except StoreError:
            if snapshot is None or snapshot.exists():
                raise
            continue  # replaced by a newer snapshot between listing and opening
        return Store(connection, name=str(path), read_only=True, snapshot=snapshot)
    raise StoreError(f"warehouse {database}: snapshots are replaced too fast", remedy="try again")


def renew_reader(store: Store, path: Path | str) -> Store:
    """Return a reader of the present state of the warehouse: ``store`` itself if that is what it has open, else a new reader.

    For a process that reads again and again; it closes ``store`` where another is returned. Raises
    the errors of `open_reader`.
    """
    if store.snapshot is not None and snapshots_wanted():
        database = real_file(path)
        settle = Opening(name=str(database), memory_limit=MEMORY_LIMIT).settle
        if readable_snapshot(database, settle, Patience(default_wait(), say_on_stderr)) == store.snapshot:
            return store
    store.close()
    return open_reader(path)
