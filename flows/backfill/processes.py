"""Work spread over processes of our own: for stretches of turns, where the engine's tasks would cost more than the work."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from flows.turn.forecast import forecast_market
from optimization.replay.decision import Fan, in_turn

#: Work whose calls have much in common, and parcels of it for each process: more even out, fewer cross more cheaply.
TOGETHER, PARCELS = (forecast_market,), 2
#: The C library that this process runs on.
_C_LIBRARY = ctypes.CDLL(None)
#: Seconds between two looks at whether the parent is still there.
_LOOK_EVERY = 1.0


@contextmanager
def process_fan(workers: int) -> Iterator[Fan]:
    """A `Fan` over ``workers`` processes, started when first asked; values in, values out. One worker is this process itself.

    Several threads may use it at once. The processes end with this one, however it ends.
    """
    if workers <= 1:
        yield in_turn
        return
    # Memory that threads gave back would otherwise stay in an arena for each of them.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    pool = ProcessPoolExecutor(
        max_workers=workers, mp_context=get_context("spawn"), initializer=_end_with, initargs=(os.getpid(),)
    )

    def fan(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
        # Calls that go over together share what they have in common: an estimation on many markets crosses once, not once a market.
        size = len(calls)
        many = PARCELS * workers if function in TOGETHER else max(1, size)
        parcels = [list(calls[i::many]) for i in range(min(many, size))]
        sent: list[Future[list[Any]]] = [pool.submit(_parcel, function, parcel) for parcel in parcels]
        done = [one.result() for one in sent]
        return [done[i % many][i // many] for i in range(size)]

    try:
        yield fan
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _parcel(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
    """`in_turn` in a worker, which then gives back the memory it does not need: an estimation takes far more than it leaves."""
    made = in_turn(function, calls)
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
