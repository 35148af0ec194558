"""Independent calls in turn, and the end of a process with its parent; other places of calls: `slackwater.flows.executor`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

#: ``fan(function, calls)`` returns the results of ``function(**call)`` for every call in order,
#: possibly computed in parallel.
Fan = Callable[[Callable[..., Any], Sequence[dict[str, Any]]], list[Any]]


def in_turn(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
    """Make the calls in turn: the sequential `Fan`."""
    return [function(**call) for call in calls]


CHECK_SECONDS: Final = 1.0  # Seconds between two checks whether the parent of a process is alive


def end_with(parent: int, *, stop_seconds: float = 0.0) -> None:
    """End this process (after SIGTERM and ``stop_seconds``, if given) soon after its parent, which may be killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(CHECK_SECONDS)
        if stop_seconds:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(stop_seconds)
        os._exit(1)

    threading.Thread(target=watch, name="watch parent", daemon=True).start()
