"""When a snapshot is published, and which one a reader opens.

A writer publishes when it closes the file, and between turns where it is told to. What it committed is whole then. A writer
that is stopped in the middle publishes nothing: readers go on seeing the state before it, until the next writer has closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from warehouse.errors import StoreError
from warehouse.store.files import (
    has_wal,
    identity_of,
    is_current,
    log_identity,
    newest_snapshot,
    publish_copy,
    snapshots_wanted,
)
from warehouse.store.lock import Patience, WriterLock, check_log, locked, present_holder, try_lock

#: DuckDB's headers: what they say changes with every checkpoint that wrote anything.
_HEADERS = 12288


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
