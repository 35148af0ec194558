"""The files of a warehouse: what tells their states apart, safe copying, and what is wrong with one as an error of ours."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from warehouse.errors import DamagedStoreError, SchemaError, StoreError, StoreLockedError

_PIECE = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What tells one state of the file from another: bytes and change time in ns."""

    size: int
    changed: int


def wal_path(database: Path) -> Path:
    """DuckDB's write-ahead log of a database: there only while it is open for writing, or after a writer was killed."""
    return database.with_name(f"{database.name}.wal")


def has_wal(database: Path) -> bool:
    """Whether there is something in the write-ahead log."""
    try:
        return wal_path(database).stat().st_size > 0
    except FileNotFoundError:
        return False


def log_identity(database: Path) -> Identity | None:
    """What tells one state of the write-ahead log from another; None if there is nothing in it."""
    return identity_of(wal_path(database)) if has_wal(database) else None


def identity_of(file: Path | int) -> Identity:
    """The present identity of a file or of an open descriptor."""
    found = os.stat(file)
    return Identity(size=found.st_size, changed=found.st_mtime_ns)


def copy_synced(source: int, target: Path, *, size: int) -> None:
    """Write ``size`` bytes of an open file into a new file and flush it to the disk, inside the kernel where it can be done."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        done = 0
        while done < size:
            done += _copy_piece(source, descriptor, done, min(size - done, _PIECE))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_piece(source: int, target: int, offset: int, count: int) -> int:
    """Copy up to ``count`` bytes at ``offset``; the kernel shares the blocks where the file system can (reflink)."""
    if hasattr(os, "copy_file_range"):
        with suppress(OSError):  # across file systems, or not known to this one: read and write instead
            if moved := os.copy_file_range(source, target, count, offset, offset):
                return moved
    piece = os.pread(source, min(count, 1 << 22), offset)
    if not piece:
        raise OSError(0, "the file became shorter while it was copied")
    written = 0
    while written < len(piece):
        written += os.pwrite(target, piece[written:], offset + written)
    return written


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to the disk, so that a rename survives a power cut."""
    sync_file(folder)


def sync_file(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


#: DuckDB's words for a file that is damaged or none of its own.
_DAMAGE = (
    "not a valid DuckDB database",
    "Corrupt database file",
    "Corrupt WAL file",
    "Could not read enough bytes",
    "Failed to deserialize",
    "Serialization Error",
    "database has been invalidated",
    "Failure while replaying WAL",
    "INTERNAL Error",
)
_RESTORE = "restore it from a copy, or name another file and ingest again; it is never rebuilt silently"
_LOCKED = "Could not set lock"
_FULL = ("No space left", "Could not write", "File too large", "Disk quota")


def is_locked(text: str) -> bool:
    """Whether DuckDB says that another process has the file open."""
    return _LOCKED in text


def store_error(name: str, text: str, *, kind: str) -> StoreError:
    """The error of ours for DuckDB's words ``text`` and the name of its class, about the warehouse ``name``."""
    text = text.strip().splitlines()[0] if text.strip() else kind
    if is_locked(text) or "different configuration" in text:
        _, _, holder = text.partition("Conflicting lock is ")
        found = f"warehouse {name} is {holder or f'open in this process with other settings ({text})'}"
        return StoreLockedError(found, remedy="wait until that process has ended, or name another file")
    if "version number" in text and "database file" in text:
        return SchemaError(
            f"warehouse {name}: {text}", remedy="it was written by another DuckDB release: upgrade"
        )
    if any(mark in text for mark in _FULL):
        return StoreError(f"warehouse {name}: {text}", remedy="free disk space beside the file")
    if kind == "SerializationException" or any(mark in text for mark in _DAMAGE):
        return DamagedStoreError(f"warehouse {name} is damaged or no warehouse: {text}", remedy=_RESTORE)
    if kind == "OutOfMemoryException":
        return StoreError(f"warehouse {name}: {text}", remedy="open it with a larger memory limit")
    return StoreError(f"warehouse {name}: {text}")


def check_place(path: Path, *, read_only: bool) -> None:
    """Refuse a place where no warehouse can be; raises `StoreError`."""
    if path.is_dir():
        raise StoreError(f"warehouse {path} is a folder", expected="a file", remedy="name a file in it")
    if not path.parent.is_dir():
        raise StoreError(f"no folder {path.parent} for the warehouse", remedy="make it, or name another file")
    if path.exists():
        return
    if has_wal(path):
        # DuckDB would make an empty database and throw the log away.
        raise DamagedStoreError(
            f"warehouse {path} is missing, but its log {wal_path(path).name} is there",
            expected="both, or neither",
            remedy="put the file back beside its log, or move the log away to begin anew",
        )
    if read_only:
        raise StoreError(
            f"no warehouse at {path}", remedy="`slackwater ingest` or `slackwater run` makes one"
        )
