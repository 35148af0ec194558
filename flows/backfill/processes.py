"""Work spread over processes of our own: for stretches of turns, where the engine's tasks would cost more than the work.

Two stages may be run side by side: while one waits for its calls, the other goes on.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, Protocol

from flows.turn.context import Calls, Results, Staged

#: Work whose calls have much in common, and parcels of it for each process: more even out, fewer cross more cheaply.
TOGETHER, PARCELS = ("forecast",), 2
#: The C library that this process runs on.
_C_LIBRARY = ctypes.CDLL(None)
#: Seconds between two looks at whether the parent is still there.
_LOOK_EVERY = 1.0


class Later(Protocol):
    """Takes calls and returns where to ask for their results, in the order of the calls."""

    def __call__(self, asked: Calls) -> Results:
        """What is returned waits for the results, and raises what a call has raised."""
        ...


def here_and_now(asked: Calls) -> Results:
    """The plain `Later`: the calls are made when their results are asked for."""
    return lambda: _called(asked.function, asked.calls)


@contextmanager
def process_fan(workers: int) -> Iterator[Later]:
    """A `Later` over ``workers`` processes, started when first asked; values in, values out. One worker is this process itself.

    The processes end with this one, however it ends.
    """
    if workers <= 1:
        yield here_and_now
        return
    # Memory that threads gave back would otherwise stay in an arena for each of them.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    pool = ProcessPoolExecutor(
        max_workers=workers, mp_context=get_context("spawn"), initializer=_end_with, initargs=(os.getpid(),)
    )

    def later(asked: Calls) -> Results:
        # Calls that go over together share what they have in common: an estimation on many markets crosses once, not once a market.
        size = len(asked.calls)
        many = PARCELS * workers if asked.label in TOGETHER else max(1, size)
        parcels = [list(asked.calls[i::many]) for i in range(min(many, size))]
        sent: list[Future[list[Any]]] = [pool.submit(_parcel, asked.function, parcel) for parcel in parcels]

        def results() -> list[Any]:
            done = [one.result() for one in sent]
            return [done[i % many][i // many] for i in range(size)]

        return results

    try:
        yield later
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def side_by_side(stages: Sequence[Staged[None]], later: Later) -> None:
    """Run stages to their ends in one thread: each goes on when the calls it handed out are made, and by then the others have
    handed out theirs. Who goes on when follows from the stages alone, not from how long anything takes.
    """
    waiting: deque[tuple[Staged[None], Results | None]] = deque((one, None) for one in stages)
    while waiting:
        stage, results = waiting.popleft()
        try:
            asked = next(stage) if results is None else stage.send(results)
        except StopIteration:
            continue
        waiting.append((stage, later(asked)))


def _called(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
    return [function(**call) for call in calls]


def _parcel(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
    """`_called` in a worker, which then gives back the memory it does not need: an estimation takes far more than it leaves."""
    made = _called(function, calls)
    give_memory_back()
    return made


def give_memory_back() -> None:
    """Return to the system what this process has freed, where the C library can be asked to (glibc)."""
    trim = getattr(_C_LIBRARY, "malloc_trim", None)
    if trim is not None:
        trim(0)


def _end_with(parent: int) -> None:
    """Let this process end soon after ``parent``: one that was killed cannot say so."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    ended = threading.Event()

    def watch() -> None:
        while os.getppid() == parent:
            ended.wait(_LOOK_EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()
