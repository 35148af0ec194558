"""Files of a warehouse: file states, safe copying, errors, and the lock for the only writer."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from slackwater.warehouse.amounts import parsed_number
from slackwater.warehouse.errors import (
    DamagedStoreError,
    SchemaError,
    SettingsError,
    StoreError,
    StoreLockedError,
)

_PIECE = 1 << 26
POINTER = "current.json"  # File of a shared folder that names its newest export


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """State of a file: size in bytes and change time in ns."""

    size: int
    changed: int


def real_file(name: Path | str) -> Path:
    """Return the target of a symbolic link, else the path itself, so that lock, log and snapshots refer to the same file."""
    path = Path(name)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def is_shared(folder: Path) -> bool:
    """Return whether a folder was written by `slackwater.warehouse.exchange.publish_generation`."""
    return (folder / POINTER).is_file()


def wal_path(database: Path) -> Path:
    """Return the path of DuckDB's write-ahead log: it exists only while a writer is open, or after a writer was killed."""
    return database.with_name(f"{database.name}.wal")


def has_wal(database: Path) -> bool:
    """Return whether the write-ahead log exists and is not empty."""
    try:
        return wal_path(database).stat().st_size > 0
    except FileNotFoundError:
        return False


def log_identity(database: Path) -> Identity | None:
    """Return the state of the write-ahead log; None if it is empty or missing."""
    return identity_of(wal_path(database)) if has_wal(database) else None


def identity_of(file: Path | int) -> Identity:
    """Return the present state of a file or open descriptor."""
    found = os.stat(file)
    return Identity(size=found.st_size, changed=found.st_mtime_ns)


def copy_synced(source: int, target: Path, *, size: int) -> None:
    """Copy ``size`` bytes of an open file to a new file and flush it to disk; inside the kernel where possible."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        done = 0
        while done < size:
            done += _copy_piece(source, descriptor, done, min(size - done, _PIECE))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_piece(source: int, target: int, offset: int, count: int) -> int:
    """Copy up to ``count`` bytes at ``offset`` and return their number; shares blocks (reflink) where supported."""
    if hasattr(os, "copy_file_range"):
        with suppress(OSError):  # across file systems, or not supported: read and write instead
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
    """Flush a folder's directory entries to disk, so that a rename survives a power failure."""
    sync_file(folder)


def sync_file(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


#: DuckDB's messages for a file that is damaged or not a DuckDB file.
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
    """Return whether DuckDB's error text reports that another process has the file open."""
    return _LOCKED in text


def store_error(name: str, text: str, *, kind: str) -> StoreError:
    """Return the `StoreError` for an error of DuckDB on warehouse ``name``: its message ``text`` and class name ``kind``."""
    text = text.strip().splitlines()[0] if text.strip() else kind
    if is_locked(text) or "different configuration" in text:
        _, _, holder = text.partition("Conflicting lock is ")
        found = f"warehouse {name} is {holder or f'open in this process with other settings ({text})'}"
        return StoreLockedError(found, remedy="wait until that process has ended, or name another file")
    if "version number" in text and "database file" in text:
        return SchemaError(
            f"warehouse {name}: {text}",
            remedy="it was written by another DuckDB release: upgrade, or run `slackwater compact` with that release, "
            "which rewrites it for all from 1.5 on",
        )
    if any(mark in text for mark in _FULL):
        return StoreError(f"warehouse {name}: {text}", remedy="free disk space next to the file")
    if kind == "SerializationException" or any(mark in text for mark in _DAMAGE):
        return DamagedStoreError(f"warehouse {name} is damaged or no warehouse: {text}", remedy=_RESTORE)
    if kind == "OutOfMemoryException":
        return StoreError(f"warehouse {name}: {text}", remedy="open it with a larger memory limit")
    return StoreError(f"warehouse {name}: {text}")


def check_place(path: Path, *, read_only: bool) -> None:
    """Raise `StoreError` if ``path`` cannot be a warehouse file."""
    if path.is_dir():
        raise StoreError(f"warehouse {path} is a folder", expected="a file", remedy="name a file in it")
    if not path.parent.is_dir():
        raise StoreError(f"no folder {path.parent} for the warehouse", remedy="make it, or name another file")
    if path.exists() and not path.is_file():
        raise StoreError(
            f"warehouse {path} is a device or a pipe", expected="a file", remedy="name another file"
        )
    if path.exists():
        _check_magic(path)
        return
    if has_wal(path):
        # DuckDB would create an empty database and discard the log.
        raise DamagedStoreError(
            f"warehouse {path} is missing, but its log {wal_path(path).name} is there",
            expected="both, or neither",
            remedy="put the file back next to its log, or move the log away to begin with an empty warehouse",
        )
    if read_only:
        raise StoreError(
            f"no warehouse at {path}", remedy="`slackwater ingest` or `slackwater run` creates one"
        )


#: Bytes of a DuckDB file, after a checksum of 8 bytes.
_MAGIC = b"DUCK"
#: Files (device and inode) whose first bytes this process has read: to close a file releases all locks of a process on it, so it
#: is read before DuckDB opens it, and never again.
_READ: set[tuple[int, int]] = set()


def _check_magic(path: Path) -> None:
    """Raise `DamagedStoreError` for a file that does not begin as a DuckDB file; DuckDB would fetch an extension for some."""
    try:
        found = path.stat()
        if (found.st_dev, found.st_ino) in _READ:
            return
        with path.open("rb") as file:
            first = file.read(16)
    except OSError:
        return  # DuckDB names the reason
    if first[8:12] == _MAGIC:
        _READ.add((found.st_dev, found.st_ino))
    if first and first[8:12] != _MAGIC:  # an empty file may be one that another process is making
        kind = "an SQLite file" if first.startswith(b"SQLite format 3") else "not a DuckDB file"
        raise DamagedStoreError(
            f"warehouse {path} is damaged or no warehouse: {kind}",
            expected="a warehouse of slackwater",
            remedy=_RESTORE,
        )


# ---
# The right to write: one process at a time, by an advisory lock on a small file next to the warehouse.
#
# The lock is taken with ``flock``, so the system releases it when the process ends for any reason. The file records
# the holder. The record is only displayed, with an exception: if it remains after the lock is released, the holder
# was stopped in the middle. DuckDB's lock is not enough: it is dropped as soon as the process closes any descriptor
# of the file, and it cannot wait.

Say = Callable[[str], None]
#: Environment variable: seconds a second writer waits; 0 fails at once.
WAIT_VARIABLE = "SLACKWATER_LOCK_WAIT"
DEFAULT_WAIT = 60.0
FREE = b"free\n"  # Content of a lock file after a writer that finished; an empty file was never used
#: Seconds between two attempts: short at first, for turns that are nearly over.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Process recorded in a lock file; ``since`` is the time of the record, UTC, by the file system's clock."""

    pid: int
    command: str
    host: str
    since: str = ""

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"PID {self.pid} ({self.command}){where}" + (f" since {self.since}" if self.since else "")


def signature() -> bytes:
    """Return the record that this process writes into a lock file."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    words = [name, *sys.argv[1:2]] if name != "-c" else ["python -c"]
    holder = asdict(Holder(pid=os.getpid(), command=" ".join(words)[:80], host=socket.gethostname()))
    del holder["since"]  # read from the file's change time
    return json.dumps(holder).encode()


def lock_path(database: Path) -> Path:
    """Return the lock file of a warehouse; it is never deleted, so that two processes cannot lock two files of the same name."""
    return database.with_name(f"{database.name}.lock")


def read_holder(database: Path) -> Holder | None:
    """Return the process recorded in the lock file; None if the lock was released or the record is unreadable."""
    return _read_holder(lock_path(database))


def _read_holder(path: Path) -> Holder | None:
    try:
        text, changed = path.read_text(encoding="utf-8"), path.stat().st_mtime
        found = json.loads(text)
        return Holder(
            pid=int(found["pid"]),
            command=str(found["command"]),
            host=str(found["host"]),
            since=datetime.fromtimestamp(changed, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


LOCKS = Path("/proc/locks")  # Linux's list of the locks of all processes


def present_holder(database: Path) -> str:
    """Return a description of the process that holds the writer's lock."""
    return holder_of(lock_path(database))


def holder_of(path: Path) -> str:
    """Return a description of the process that holds a lock file; "another process" if it cannot be determined.

    A process that holds the lock without a record, such as a reader that makes a snapshot, is found in
    `LOCKS`. A stopped process is described as such: it holds the lock until somebody continues or ends it.
    """
    holder, pid = _read_holder(path), _locking_process(path)
    if holder is not None and holder.host == socket.gethostname() and not _alive(holder.pid):
        holder = None  # the record of a process that was killed
    if pid is None or (holder is not None and holder.pid == pid):
        words = "another process" if holder is None else str(holder)
    else:
        words = f"PID {pid} ({_command_of(pid)})"
    return f"{words}, which is stopped" if pid is not None and _is_stopped(pid) else words


def _locking_process(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        inode = f":{path.stat().st_ino}"
        for line in LOCKS.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[3] == "WRITE" and words[5].endswith(inode):
                return int(words[4]) or None  # 0: a process of another container
    return None


def _command_of(pid: int) -> str:
    """Return the command of a process, in the form of `signature`."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").rstrip("\0").split("\0")
    except (OSError, ValueError):
        return "unknown command"
    if len(words) > 1 and Path(words[0]).name.startswith("python"):
        words = ["python -c"] if words[1] == "-c" else words[1:]
    return " ".join([Path(words[0]).name, *words[1:2]])[:80]


def _is_stopped(pid: int) -> bool:
    with suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        return state in ("T", "t")
    return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def say_on_stderr(text: str) -> None:
    """Print one line to stderr; output errors are ignored."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def default_wait() -> float:
    """Return the seconds a writer waits for another: `WAIT_VARIABLE`, else 60; raises `SettingsError` for an invalid value."""
    text = os.environ.get(WAIT_VARIABLE, "").strip()
    if not text:
        return DEFAULT_WAIT
    try:
        seconds = parsed_number(text)
    except ValueError:
        seconds = -1.0
    if seconds < 0:
        raise SettingsError(f"{WAIT_VARIABLE}={text!r}", expected="seconds to wait, 0 or more")
    return seconds


class Patience:
    """Bounded wait: reports its reason once, then sleeps in increasing pauses until the bound."""

    def __init__(self, seconds: float, say: Say) -> None:
        self._left = seconds
        self._say: Say | None = say
        self._pause = _FIRST_PAUSE

    def wait(self, why: str) -> bool:
        """Sleep for a pause; return False, without sleeping, once the bound is reached."""
        if self._left <= 0:
            return False
        if self._say is not None:
            self._say(why)
            self._say = None
        pause = min(self._pause, self._left)
        time.sleep(pause)
        self._left -= pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return True


class WriterLock:
    """Exclusive right to write a warehouse; shared by all stores that a process opens for writing.

    ``source``: descriptor of the warehouse, open for copying; ``published``: the warehouse's
    headers at the time of the newest snapshot; ``log``: state of its log when it was opened;
    ``opening``: serialises the users' opening of the file.
    """

    def __init__(self, database: Path, key: str, descriptor: int) -> None:
        self.database = database
        self.source: int | None = None
        self.published: bytes | None = None
        self.log: Identity | None = None
        self.opening = threading.Lock()
        self._others: list[int] = []
        self._key = key
        self._descriptor = descriptor
        self._before = os.pread(descriptor, 4096, 0)
        self._turn = threading.Lock()
        self._users = 1
        self._finished = True
        self._signed = False

    @property
    def fresh(self) -> bool:
        """Whether the lock was never taken before: the lock file is new, and earlier writers are unknown."""
        return not self._before

    @property
    def unfinished(self) -> bool:
        """Whether the previous holder did not finish, so that its committed changes may be an incomplete turn."""
        return bool(self._before) and self._before.rstrip() != FREE.rstrip()

    @property
    def signed(self) -> bool:
        """Whether this process is recorded in the lock file; its first user records it."""
        return self._signed

    def sign(self) -> None:
        """Record this process in the lock file; until `release` its work counts as unfinished."""
        self._signed = True
        _rewrite(self._descriptor, signature())

    def open_source(self) -> int:
        """Return a descriptor of the warehouse for copying, opened once per lock.

        It is closed only after DuckDB has closed the file: closing any descriptor of a file drops
        all locks of the process on it.
        """
        if self.source is None:
            self.source = os.open(self.database, os.O_RDONLY | os.O_CLOEXEC)
        return self.source

    def check_in_place(self) -> None:
        """Raise `StoreError` if the path no longer refers to the file that is open here."""
        source = self.open_source()
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(source), os.stat(self.database)):
                return
        raise StoreError(
            f"warehouse {self.database} was replaced or removed while this process wrote to it",
            expected="the file that it opened",
            remedy="nothing that it wrote is in the file that is there now; run the command again, and move no file onto a "
            "warehouse or away while somebody writes",
        )

    def put_in_place(self, file: Path) -> None:
        """Replace the warehouse, which must be closed, by another file; raises `OSError`."""
        os.replace(file, self.database)
        if self.source is not None:
            os.close(self.source)
        self.source = self.published = None

    def join(self) -> bool:
        """Add a user in this process; return False if the last user has just left."""
        with self._turn:
            if self._users:
                self._users += 1
            return self._users > 0

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Block other users from joining during the block; yields False if there are others already."""
        with self._turn:
            yield self._users == 1

    def release(self, *, finished: bool, at_last: Callable[[], None] = lambda: None) -> None:
        """Remove a user; the last user calls ``at_last`` and releases the lock.

        ``finished``: the changes of this user are complete. If those of any user are not, the lock
        file keeps the record of this process, as if it had been killed.
        """
        with self._turn:
            self._users -= 1
            self._finished &= finished
            if self._users:
                return
            try:
                if self._finished:
                    at_last()
            finally:
                self._give_up(FREE if self._finished else None)

    def give_back(self) -> None:
        """Remove a user that has written nothing; the last user restores the content of the lock file."""
        with self._turn:
            self._users -= 1
            if not self._users:
                self._give_up(self._before)

    def _give_up(self, content: bytes | None) -> None:
        """Release the lock; if a log remains (e.g. on a full disk), the record in the lock file marks the work as unfinished."""
        with _GUARD:
            _HELD_LOCKS.pop(self._key, None)
        if content is not None and self._signed and not has_wal(self.database):
            with suppress(OSError):
                _rewrite(self._descriptor, content)
        self.close()

    def keep(self, source: int) -> None:
        """Close another descriptor of the warehouse together with this lock."""
        self._others.append(source)

    def close(self) -> None:
        """Close the descriptors; the lock is released when all processes have closed them."""
        for descriptor in (*self._others, self.source, self._descriptor):
            if descriptor is not None:
                with suppress(OSError):
                    os.close(descriptor)


_GUARD = threading.Lock()
_HELD_LOCKS: dict[str, WriterLock] = {}


def _rewrite(descriptor: int, content: bytes) -> None:
    """Replace the content of the lock file by a single write over its whole length.

    The file is never emptied first: a writer killed in between would leave an empty file, which means that
    the lock was never taken, and the incomplete turn of the previous writer would be published as complete.
    """
    os.pwrite(descriptor, content.ljust(os.fstat(descriptor).st_size), 0)
    os.ftruncate(descriptor, len(content))


def _forget_in_child() -> None:
    """Close the locks in a forked child, which has no right to write; the parent keeps its locks."""
    global _GUARD
    _GUARD = threading.Lock()
    for lock in _HELD_LOCKS.values():
        lock.close()
    _HELD_LOCKS.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def try_lock(database: Path, *, share: bool = True) -> WriterLock | None:
    """Return the lock if free, else None; ``share``: also one of this process. Raises `StoreError` without a lock file."""
    key = os.path.realpath(lock_path(database))
    while True:
        with _GUARD:
            held = _HELD_LOCKS.get(key)
            if held is None:
                lock = _new_lock(database, key)
                if lock is not None:
                    _HELD_LOCKS[key] = lock
                return lock
        if not share:
            return None
        if held.join():
            return held


def close_source(database: Path, source: int) -> None:
    """Close a descriptor of the warehouse that was opened without the lock.

    Closing it would drop DuckDB's lock on the file if this process writes it: the writer then closes
    it at its end.
    """
    with _GUARD:
        held = _HELD_LOCKS.get(os.path.realpath(lock_path(database)))
        if held is None:
            os.close(source)
        else:
            held.keep(source)


def _new_lock(database: Path, key: str) -> WriterLock | None:
    descriptor = _open(lock_path(database))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise StoreError(
            f"lock file {lock_path(database)}: {error.strerror}",
            expected="a file system with locks",
            remedy="put the warehouse on a local disk",
        ) from error
    return WriterLock(database, key, descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StoreError(
            f"lock file {path}: {error.strerror}",
            expected="a folder that may be written",
            remedy="writing needs rights on the warehouse's folder",
        ) from error


def take_lock(database: Path, patience: Patience) -> WriterLock:
    """Return the lock, waiting for other processes within ``patience``; raises `StoreLockedError` naming the holder."""
    lock = try_lock(database)
    if lock is not None:
        return lock
    with _announce_wait(database):
        while (lock := try_lock(database)) is None:
            holder = present_holder(database)
            if not patience.wait(f"waiting for {holder} to finish with {database}"):
                raise locked_error(database, f"held by {holder}")
    return lock


@contextmanager
def _announce_wait(database: Path) -> Iterator[None]:
    """Show the lock's holder that this process waits: by a shared lock on the queue file, released when the process ends."""
    descriptor = _open(_queue_path(database))
    try:
        with suppress(OSError):  # no locks on this file system: the holder finishes all its turns
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def is_waited_for(database: Path) -> bool:
    """Return whether a process waits to write; a holder can then stop between two turns."""
    try:
        descriptor = os.open(_queue_path(database), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


@contextmanager
def claimed_file(database: Path, name: str) -> Iterator[Path | None]:
    """Hold the lock file of the claim ``name`` during the block; yields its path if another holder has it, else None.

    The file is never deleted: two processes could otherwise lock two files of the same name.
    """
    path = lock_path(database)
    path = path.with_name(f"{path.name}.{name}")
    descriptor = _open(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield path
        else:
            _rewrite(descriptor, signature())
            yield None
            _rewrite(descriptor, FREE)
    finally:
        os.close(descriptor)


def _queue_path(database: Path) -> Path:
    """Return the queue file; it is never deleted, since processes waiting on a deleted file would not be detected."""
    path = lock_path(database)
    return path.with_name(f"{path.name}.queue")


def locked_error(database: Path, how: str) -> StoreLockedError:
    """Return the error for a warehouse that is still locked after the wait."""
    return StoreLockedError(
        f"warehouse {database} is {how}",
        remedy=f"wait until that process has ended, or longer ({WAIT_VARIABLE}=SECONDS), or name another file",
    )


#: File systems that several machines may have mounted.
_NETWORK = re.compile(
    r"acfs|afs|beegfs|ceph|cifs|davfs|gfs2?|glusterfs|gpfs|lustre|nfs4?|ocfs2|orangefs|smb\w*"
    r"|fuse\.(sshfs|glusterfs|ceph-fuse|s3fs|mount-s3|gcsfuse|blobfuse2?|juicefs|rclone)"
)
MOUNTS = Path("/proc/self/mountinfo")  # Linux's list of mounted file systems


def network_file_system(folder: Path) -> str:
    """Return the file system type of a folder that several machines may have mounted, else "" (also if `MOUNTS` is missing)."""
    place, kind, longest = os.path.realpath(folder), "", -1
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), before.split(" ")[4])
        if len(point) >= longest and os.path.commonpath((point, place)) == point:
            kind, longest = after.split(" ")[0], len(point)
    return kind if _NETWORK.fullmatch(kind) else ""


def check_host(lock: WriterLock) -> None:
    """Raise `StoreLockedError` for a warehouse on a network drive whose lock another machine has not released.

    On a network drive locks may be visible to their own machine only, so holding the lock does not
    exclude a writer on another machine. On a local disk it does: there the name of another host
    belongs to a container that has ended.
    """
    holder = read_holder(lock.database)
    if not lock.unfinished or holder is None or holder.host == socket.gethostname():
        return
    if kind := network_file_system(lock.database.parent):
        raise StoreLockedError(
            f"warehouse {lock.database} on a network drive ({kind}) was not set free by {holder}",
            expected="one machine that writes; whether that process still does cannot be seen from here",
            remedy=f"if it has ended, empty {lock_path(lock.database)}; better put the warehouse on a local disk",
        )


def check_log(lock: WriterLock) -> None:
    """Raise `DamagedStoreError` for a write-ahead log that the last writer did not leave.

    DuckDB would replay it although it belongs to another file: a writer that ends removes its log,
    a killed writer leaves its record in the lock file, so a log next to a released warehouse is
    foreign. A log is accepted if another program has the file open now.
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
        expected="no log after a writer that has finished",
        remedy="move the log away if it belongs to another file; if another DuckDB program was stopped while it wrote, "
        "open and close the warehouse with that program",
    )
