"""Independent computations: one after the other or in several processes, with equal results (M5.1); the end of processes."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Final, TypeVar

from slackwater.warehouse.errors import SettingsError

#: ``fan(function, calls)`` returns the results of ``function(**call)`` for every call in order,
#: possibly computed in parallel.
Fan = Callable[[Callable[..., Any], Sequence[dict[str, Any]]], list[Any]]


def in_turn(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
    """Make the calls one after the other: the sequential `Fan`."""
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


Item = TypeVar("Item")
Shared = TypeVar("Shared")
Result = TypeVar("Result")

#: Chunks of items per process: enough that no process idles long at the end, few enough that the
#: transfer costs little.
PARCELS_A_PROCESS = 8


def fan_out(
    work: Callable[[Item, Shared], Result],
    items: Sequence[Item],
    shared: Shared,
    *,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Result]:
    """Yield ``work(item, shared)`` for every item in order, computed in this process or in several.

    Processes are spawned, so ``work`` must be a module-level function; each process imports it and
    receives ``shared`` once. The first error of ``work`` is raised here and no further item is
    started. ``progress(done, total)`` is called in this process. Raises `SettingsError` for fewer
    than 1 process.
    """
    if processes < 1:
        raise SettingsError(f"{processes} processes", expected="at least one")
    if processes == 1 or len(items) < 2:
        return with_progress((work(item, shared) for item in items), len(items), progress)
    return with_progress(_run_in_processes(work, items, shared, processes), len(items), progress)


def _run_in_processes(
    work: Callable[[Item, Shared], Result], items: Sequence[Item], shared: Shared, processes: int
) -> Iterator[Result]:
    # Spawned, not forked: a fork copies none of the caller's threads (a progress bar, the engine)
    # and may inherit their locks.
    with ProcessPoolExecutor(
        max_workers=min(processes, len(items)),
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(os.getpid(), work, shared),
    ) as pool:
        try:
            yield from pool.map(
                _apply, items, chunksize=math.ceil(len(items) / (processes * PARCELS_A_PROCESS))
            )
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def with_progress(
    results: Iterable[Result], total: int, progress: Callable[[int, int], None] | None
) -> Iterator[Result]:
    """Yield the results and report the number of them so far after each."""
    for done, result in enumerate(results, start=1):
        if progress is not None:
            progress(done, total)
        yield result


_WORK: list[Any] = []  # In a spawned process: the function for every item, and the shared argument


def _begin(parent: int, work: Callable[[Any, Any], Any], shared: Any) -> None:
    _WORK[:] = [work, shared]
    end_with(parent)


def _apply(item: Any) -> Any:
    work, shared = _WORK
    return work(item, shared)
