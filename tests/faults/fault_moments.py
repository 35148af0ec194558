"""A child process killed at a chosen moment: between two statements, around a file operation, or after some time.

The children are forked, so modules need not be imported again for every kill. The parent must not have used
DuckDB or Arrow: their threads do not survive a fork.
"""

import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater.warehouse.store.connection import Store

Work = Callable[[], object]
#: File operations that create a snapshot, a lock, a backup or a report.
FILE_OPERATIONS = ("fsync", "replace", "rename", "unlink", "pwrite", "copy_file_range", "ftruncate", "mkdir")
STATEMENTS = ("execute", "arrays", "arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Result of a child: killed, or its answer; ``moments``: names of the moments at which it could have been killed."""

    killed: bool
    answer: object = None
    error: str = ""
    moments: Sequence[str] = ()
    seconds: float = 0.0


class Moments:
    """Records the moments before and after every statement and file operation, and kills the process at one of them."""

    def __init__(self, last: int | None) -> None:
        self.seen: list[str] = []
        self.last = last

    def install(self) -> None:
        """Record a moment before and after every statement of a store and every file operation from now on."""
        for owner, names in ((Store, STATEMENTS), (os, FILE_OPERATIONS)):
            for name in names:
                setattr(owner, name, self._watched(getattr(owner, name), name))

    def _watched(self, function, name):
        def watched(*words, **options):
            what = str(words[1]).split(" ")[0] if name in STATEMENTS else name
            self._pass(f"before {what}")
            answer = function(*words, **options)
            self._pass(f"after {what}")
            return answer

        return watched

    def _pass(self, what: str) -> None:
        self.seen.append(what)
        if len(self.seen) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


class Child:
    """A forked process that does ``work`` in ``folder``; `wait` returns its result."""

    def __init__(self, folder: Path, work: Work, *, kill_at: int | None = None) -> None:
        self.began = time.monotonic()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._answers)
            _be_child(folder, work, kill_at, answers)
        os.close(answers)

    def kill(self) -> None:
        """End it with SIGKILL, wherever it is."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, *, kill_after: float | None = None) -> Ended:
        """Wait for its end, killing it after so many seconds if it takes longer."""
        if kill_after is not None:
            left = kill_after - (time.monotonic() - self.began)
            if not select.select([self._answers], [], [], max(left, 0.0))[0]:
                self.kill()
        with os.fdopen(self._answers, "rb") as pipe:
            text = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        seconds = time.monotonic() - self.began
        if os.WIFSIGNALED(status):
            return Ended(killed=True, seconds=seconds, error=f"signal {os.WTERMSIG(status)}")
        return Ended(killed=False, seconds=seconds, **json.loads(text))


def _be_child(folder: Path, work: Work, kill_at: int | None, answers: int) -> None:
    code, moments, told = 1, Moments(kill_at), {"error": "no answer"}
    try:
        os.chdir(folder)
        moments.install()
        told = {"answer": work(), "moments": moments.seen}
        code = 0
    except BaseException:
        told = {"error": traceback.format_exc()}
    finally:
        with os.fdopen(answers, "wb") as pipe:
            pipe.write(json.dumps(told, default=str).encode())
        os._exit(code)


def done(folder: Path, work: Work) -> Ended:
    """Run ``work`` to its end in a child; raises its error."""
    ended = Child(folder, work).wait()
    if ended.killed or ended.error:
        raise RuntimeError(ended.error)
    return ended
