"""Work spread over processes of our own: for stretches of turns, where the engine's tasks would cost more than the work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from flows.turn import Fan, in_turn

#: Work whose calls have much in common, and parcels of it for each process: more even out, fewer cross more cheaply.
TOGETHER, PARCELS = ("forecast",), 2
#: Seconds between two looks at whether the parent is still there.
_LOOK_EVERY = 1.0


@contextmanager
def process_fan(workers: int) -> Iterator[Fan]:
    """A `Fan` over ``workers`` processes, started when first asked; values in, values out. One worker is this process itself.

    The processes end with this one, however it ends.
    """
    if workers <= 1:
        yield in_turn
        return
    # Memory that threads gave back would otherwise stay in an arena for each of them.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    pool = ProcessPoolExecutor(
        max_workers=workers, mp_context=get_context("spawn"), initializer=_end_with, initargs=(os.getpid(),)
    )

    def fan(function: Callable[..., Any], calls: Sequence[dict[str, Any]], *, label: str) -> list[Any]:
        if len(calls) < 2:
            return [function(**call) for call in calls]
        # Calls that go over together share what they have in common: an estimation on many markets crosses once, not once a market.
        many = PARCELS * workers if label in TOGETHER else len(calls)
        parcels = [list(calls[i::many]) for i in range(min(many, len(calls)))]
        done = list(pool.map(_called, [function] * len(parcels), parcels))
        return [done[i % many][i // many] for i in range(len(calls))]

    try:
        yield fan
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _called(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
    return [function(**call) for call in calls]


def _end_with(parent: int) -> None:
    """Let this process end soon after ``parent``: one that was killed cannot say so."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    ended = threading.Event()

    def watch() -> None:
        while os.getppid() == parent:
            ended.wait(_LOOK_EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()
