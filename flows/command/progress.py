"""What a person who waits is told, on standard error; standard output stays for the answer.

Nothing here may cost the work that is told of: a pipe that nobody reads is no reason to fail.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Timer
from typing import Any, Final, Protocol

#: Seconds after which a bar appears: shorter work needs none.
PATIENCE: Final = 2.0


class Tell(Protocol):
    """How work tells how far it is: pieces done, of how many, and what it is at; each as far as it is known."""

    def __call__(self, done: int, total: int | None = None, text: str | None = None) -> None:
        """Show it."""


def say(text: str) -> None:
    """One line for a person who waits."""
    with suppress(OSError, ValueError):  # a closed pipe, a closed file
        print(f"  {text} ...", file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Tell]:
    """A bar with counts for work that takes longer than `PATIENCE`; silent where standard error is no terminal."""
    if not _listened_to():
        yield lambda done, total=None, text=None: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TimeRemainingColumn())  # fmt: skip
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(title, total=total)
    lock, ended = Lock(), False

    def appear() -> None:
        with lock, suppress(OSError, ValueError):
            if not ended:
                bar.start()

    def tell(done: int, total: int | None = None, text: str | None = None) -> None:
        known: dict[str, Any] = {"completed": done}
        if total is not None:
            known["total"] = total
        if text is not None:
            known["description"] = f"{title}: {text}"
        with suppress(OSError, ValueError):
            bar.update(task, **known)

    timer = Timer(PATIENCE, appear)
    timer.daemon = True
    timer.start()
    try:
        yield tell
    finally:
        timer.cancel()
        with lock, suppress(OSError, ValueError):
            ended = True
            bar.stop()


def _listened_to() -> bool:
    with suppress(OSError, ValueError, AttributeError):
        return sys.stderr.isatty()
    return False
