"""Calls of independent computations: one after the other, or by an executor that has the same form; its processes' end."""

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
    """Make the calls one after the other: the sequential `Fan`."""
    return [function(**call) for call in calls]


_ELSEWHERE: list[Fan] = []


def use_elsewhere(fan: Fan) -> None:
    """Set the executor outside of this machine on which replays run from now on."""
    _ELSEWHERE[:] = [fan]


def elsewhere() -> Fan | None:
    """Return the executor of `use_elsewhere`; None if replays run on this machine."""
    return _ELSEWHERE[0] if _ELSEWHERE else None


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
