"""Who wrote itself into a lock file: for people to read, never to decide by."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who wrote itself into a lock file; ``since`` is when it did, ISO 8601 UTC, by the file system's clock."""

    pid: int
    command: str
    host: str
    since: str = ""

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"PID {self.pid} ({self.command}){where}" + (f" since {self.since}" if self.since else "")


def signature() -> bytes:
    """What this process writes into a lock file that it takes."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    words = [name, *sys.argv[1:2]] if name != "-c" else ["python -c"]
    mine = asdict(Holder(pid=os.getpid(), command=" ".join(words)[:80], host=socket.gethostname()))
    del mine["since"]  # the file system knows
    return json.dumps(mine).encode()


def lock_path(database: Path) -> Path:
    """The lock file of a warehouse; it is never deleted, so that two processes cannot hold two files of one name."""
    return database.with_name(f"{database.name}.lock")


def read_holder(database: Path) -> Holder | None:
    """Who wrote itself into the lock file last and did not set it free; None for nobody, or what cannot be read."""
    path = lock_path(database)
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


def present_holder(database: Path) -> str:
    """The holder in words; a name left by a process that has died is not given."""
    holder = read_holder(database)
    if holder is None or (holder.host == socket.gethostname() and not _alive(holder.pid)):
        return "another process"
    return str(holder)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
