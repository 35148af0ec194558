"""Many replays, one after the other or over processes, with the same results in the same order (M5.1)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, TypeVar

from optimization.job import Job
from optimization.market import MarketWindow, Record
from optimization.plan import Outcome
from optimization.policy import Policy
from optimization.replay import Forecasts, replay_pool
from warehouse.errors import SettingsError

Item = TypeVar("Item")
Shared = TypeVar("Shared")
Result = TypeVar("Result")

#: Parcels handed to each process: enough that none idles long at the end, few enough that handing over costs nothing.
PARCELS_A_PROCESS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job on one market, as `optimization.replay.replay_pool` takes it."""

    job: Job
    window: MarketWindow
    forecasts: Forecasts | None = None
    record: Record | None = None


def replay_batch(
    cases: Sequence[Case],
    policies: Sequence[Policy[Any]],
    *,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Outcome]]:
    """The outcomes of every policy on every case: one list a case, both in the order given.

    They are those of `replay_pool` one case at a time, whatever ``processes``; horizon programs are shared within a
    case. ``progress(done, total)`` counts cases. Raises as `replay_pool` does, and `SettingsError` for less than one process.
    """
    return list(spread(replay_case, cases, tuple(policies), processes=processes, progress=progress))


def replay_case(case: Case, policies: Sequence[Policy[Any]]) -> list[Outcome]:
    """The outcomes of every policy on one case."""
    return replay_pool(policies, case.job, case.window, forecasts=case.forecasts, record=case.record)


def spread(
    work: Callable[[Item, Shared], Result],
    items: Sequence[Item],
    shared: Shared,
    *,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Result]:
    """``work(item, shared)`` for every item, in their order, in this process or over several.

    Processes are spawned, so ``work`` is a function of a module; each imports it afresh and is given ``shared`` once. The
    first error of ``work`` is raised here and nothing more is begun. ``progress(done, total)`` is called in this process.
    Raises `SettingsError` for less than one process.
    """
    if processes < 1:
        raise SettingsError(f"{processes} processes", expected="at least one")
    if processes == 1 or len(items) < 2:
        return _counted((work(item, shared) for item in items), len(items), progress)
    return _counted(_over_processes(work, items, shared, processes), len(items), progress)


def _over_processes(
    work: Callable[[Item, Shared], Result], items: Sequence[Item], shared: Shared, processes: int
) -> Iterator[Result]:
    # Spawned, not forked: a caller with threads (a progress bar, the engine) would be cut in half by a fork.
    with ProcessPoolExecutor(
        max_workers=min(processes, len(items)),
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(work, shared),
    ) as pool:
        try:
            yield from pool.map(
                _apply, items, chunksize=math.ceil(len(items) / (processes * PARCELS_A_PROCESS))
            )
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _counted(
    results: Iterable[Result], total: int, progress: Callable[[int, int], None] | None
) -> Iterator[Result]:
    for done, result in enumerate(results, start=1):
        if progress is not None:
            progress(done, total)
        yield result


#: In a spawned process: what to do with every item, and what they share.
_WORK: list[Any] = []


def _begin(work: Callable[[Any, Any], Any], shared: Any) -> None:
    _WORK[:] = [work, shared]
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that spawned it is gone: killed outright, that one cannot end it."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _apply(item: Any) -> Any:
    work, shared = _WORK
    return work(item, shared)
