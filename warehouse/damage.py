"""What is wrong with a warehouse file: DuckDB's messages as errors of ours, and what is refused before DuckDB sees it."""

from __future__ import annotations

import fcntl
from pathlib import Path

from warehouse.errors import DamagedStoreError, SchemaError, StoreError, StoreLockedError
from warehouse.lock import WriterLock
from warehouse.snapshot import has_wal, wal_path

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


def check_log(lock: WriterLock) -> None:
    """Refuse a write-ahead log that the last writer did not leave: DuckDB would replay a log of another file.

    A writer that ends takes its log with it, one that is killed leaves its name in the lock file. A log beside a warehouse that
    was set free is therefore somebody else's, unless another program has the file open now. Raises `DamagedStoreError`.
    """
    if lock.fresh or lock.unfinished or not has_wal(lock.database):
        return
    source = lock.open_source()
    try:
        fcntl.lockf(source, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return
    fcntl.lockf(source, fcntl.LOCK_UN)
    raise DamagedStoreError(
        f"warehouse {lock.database} has a log ({wal_path(lock.database).name}) that its last writer did not leave",
        expected="no log after a writer that came to its end",
        remedy="move the log away if it belongs to another file; if another DuckDB program was stopped while it wrote, "
        "open and close the warehouse with that program",
    )
