"""Numbered read-only copies of the warehouse: what readers open, so that they block nobody and see whole turns only.

They stand in ``<database>.read/`` as ``<number>-<size>-<changed>.duckdb``, the size and change time of the file they were
copied from: a snapshot whose name says what the file still is needs no copying. A new one is written under another name, flushed
and renamed; then the older ones are unlinked, which a reader that has one open does not notice.

A writer publishes when it closes the file, and between turns where it is told to. What it committed is whole then. A writer
that is stopped in the middle publishes nothing: readers go on seeing the state before it, until the next writer has closed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from warehouse.errors import SettingsError, StoreError
from warehouse.store.files import Identity, copy_synced, has_wal, identity_of, log_identity, sync_folder
from warehouse.store.lock import Patience, WriterLock, check_log, locked, present_holder, try_lock

#: Environment variable: "off" keeps the warehouse as one file, whose readers and writer then exclude one another.
SNAPSHOTS_VARIABLE = "SLACKWATER_SNAPSHOTS"
_NAME = re.compile(r"(\d{9,})-([0-9a-f]+)-([0-9a-f]+)\.duckdb")
#: DuckDB's headers: what they say changes with every checkpoint that wrote anything.
_HEADERS = 12288


def snapshots_wanted() -> bool:
    """Whether snapshots are published: unless `SNAPSHOTS_VARIABLE` is off; raises `SettingsError` for another word."""
    word = os.environ.get(SNAPSHOTS_VARIABLE, "on").strip().lower() or "on"
    if word not in ("on", "off"):
        raise SettingsError(f"{SNAPSHOTS_VARIABLE}={word!r}", expected="on or off")
    return word == "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A published copy of the state ``of`` the file."""

    path: Path
    number: int
    of: Identity


def snapshot_folder(database: Path) -> Path:
    """Where the snapshots of a warehouse stand."""
    return database.with_name(f"{database.name}.read")


def newest_snapshot(database: Path) -> Snapshot | None:
    """The newest published copy; None if there is none."""
    found = _snapshots(database)
    return found[-1] if found else None


def is_current(snapshot: Snapshot | None, database: Path) -> bool:
    """Whether the file is as it was when the snapshot was taken."""
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
    return sorted(found, key=lambda one: one.number)


def publish_copy(database: Path, source: int) -> Snapshot:
    """Copy the file open as ``source`` and make it the newest snapshot; older ones go. Only under the writer's lock.

    ``source`` is a descriptor that was opened for this: opening and closing the file here would drop DuckDB's lock on it.
    Raises `StoreError` if there is no room; what was published before then stays.
    """
    folder = snapshot_folder(database)
    of, before = identity_of(source), _snapshots(database)
    number = before[-1].number + 1 if before else 1
    target = folder / f"{number:09d}-{of.size:x}-{of.changed:x}.duckdb"
    part = folder / f"{number:09d}.part"
    try:
        folder.mkdir(exist_ok=True)
        _discard(folder, keep=[one.path for one in before])
        copy_synced(source, part, size=of.size)
        os.replace(part, target)
        sync_folder(folder)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise StoreError(
            f"no snapshot of {database} for readers: {error.strerror}",
            remedy="what was written is kept, readers see the state before it; make room and run any writing command "
            f"again, or set {SNAPSHOTS_VARIABLE}=off",
        ) from error
    _discard(folder, keep=[target])
    return Snapshot(path=target, number=number, of=of)


def _discard(folder: Path, *, keep: list[Path]) -> None:
    """Unlink what is not to be kept: older snapshots, and parts left by a killed writer."""
    for path in folder.iterdir():
        if path not in keep and (_NAME.fullmatch(path.name) or path.suffix == ".part"):
            with suppress(FileNotFoundError):
                path.unlink()


def _headers(lock: WriterLock) -> bytes:
    return os.pread(lock.open_source(), _HEADERS, 0)


def publish_at_open(lock: WriterLock, checkpoint: Callable[[], None], *, renew: bool) -> None:
    """Give readers something whole to see while this writer works: the state it found, unless that may be half a turn.

    ``renew``: what readers have is of no use, since the file is new or its schema has changed.
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


def publish_now(lock: WriterLock, checkpoint: Callable[[], None]) -> bool:
    """Publish what is committed by now; False if that is published already, or if this process has other writers open."""
    if not snapshots_wanted():
        return False
    with lock.alone() as alone:
        if not alone:
            return False
        checkpoint()
        return _publish_changes(lock)


def publish_at_close(lock: WriterLock) -> None:
    """Publish what the last user of a lock left in the closed file, if it changed anything.

    Raises `StoreError` if DuckDB could not bring its log into the file: it closes without a word then. A log that is as it was
    found is the torn end of one that a killed writer left.
    """
    if not snapshots_wanted():
        return
    if has_wal(lock.database):
        if log_identity(lock.database) == lock.log:
            return
        raise StoreError(
            f"warehouse {lock.database} could not be brought up to date from its log",
            expected="room on the disk",
            remedy="what was written is kept in the log, readers see the state before it; make room and run any writing "
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
    """The snapshot to read: the newest one, made first if nobody writes and there is none of the present file.

    ``settle`` brings what a killed writer left in the log into the file. None where no snapshot can be made because the folder
    may not be written: then nobody can write, and the file itself may be opened. Raises `StoreLockedError` if a writer that
    publishes nothing has the file for longer than ``patience``, `DamagedStoreError` for a log of another file.
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
            return _made_by_reader(lock, settle)
        if newest is not None:
            return newest.path
        holder = present_holder(database)
        if not patience.wait(f"waiting for the first snapshot of {database} by {holder}"):
            raise locked(database, f"held by {holder}, which publishes nothing for readers")


def _made_by_reader(lock: WriterLock, settle: Callable[[], None]) -> Path:
    """A snapshot of what the last writer left; the one before it if that writer was stopped in the middle."""
    try:
        newest = newest_snapshot(lock.database)
        if newest is not None and (lock.unfinished or newest.of == identity_of(lock.database)):
            return newest.path  # a log beside the file it was taken of is no concern of a reader
        check_log(lock)
        settle()
        try:
            return publish_copy(lock.database, lock.open_source()).path
        except StoreError:
            if newest is None:
                raise
            return newest.path
    finally:
        lock.give_back()
