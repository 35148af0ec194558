"""Where calls of turns, backfills and studies run by `KIND`: here, in processes or on Dask, with equal results."""

from __future__ import annotations

import atexit
import ctypes
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.flows.payload import pack_calls, results_of, run_packed
from slackwater.optimization.fan import Fan, end_with, in_turn
from slackwater.warehouse.errors import SettingsError, WorkerError
from slackwater.warehouse.plugins import require_extra

if TYPE_CHECKING:
    from distributed import Client

#: Environment variables: the kind of executor, the number of concurrent calls, and the scheduler
#: address of a running Dask cluster.
KIND, WORKERS, ADDRESS = "SLACKWATER_RUNNER", "SLACKWATER_WORKERS", "SLACKWATER_DASK_ADDRESS"
KINDS = ("threads", "processes", "dask")
#: Number of concurrent calls; the numerical libraries release the interpreter lock while they compute.
DEFAULT_WORKERS = 2
#: Parcels per worker of functions whose calls share large arguments: more parcels balance the load,
#: fewer cost less transfer.
PARCELS = 2
#: Parcels of `fan_out`: per process, enough that no process idles long at the end; on a cluster at least.
PARCELS_A_PROCESS, LEAST_PARCELS = 8, 32
CONNECT_SECONDS = 30  # Seconds until a scheduler must have answered
_C_LIBRARY = ctypes.CDLL(None)  # The C library of this process


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """The executor that the environment selects; ``address``: a running Dask cluster, else a new local cluster."""

    kind: str = KINDS[0]
    workers: int = DEFAULT_WORKERS
    address: str = ""


def chosen_executor(environment: Mapping[str, str] | None = None) -> Executor:
    """Return the executor of the environment, by default threads; raises `SettingsError` that names the wrong variable."""
    environment = os.environ if environment is None else environment
    kind = environment.get(KIND, KINDS[0])
    text = environment.get(WORKERS, str(DEFAULT_WORKERS))
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"{WORKERS}={text!r}", expected="a whole number of at least 1")
    if kind not in KINDS:
        raise SettingsError(f"{KIND}={kind!r}", expected=f"one of {', '.join(KINDS)}")
    if kind == "dask":
        require_extra("dask", f"{KIND}=dask")
    return Executor(kind=kind, workers=int(text), address=environment.get(ADDRESS, ""))


Item = TypeVar("Item")
Shared = TypeVar("Shared")
Result = TypeVar("Result")


def fan_out(
    work: Callable[[Item, Shared], Result],
    items: Sequence[Item],
    shared: Shared,
    *,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
    executor: Executor | None = None,
) -> Iterator[Result]:
    """Yield ``work(item, shared)`` for every item in order, with equal results wherever it is computed.

    That is on the Dask cluster of ``executor`` (None: of the environment), if it is one, else in this
    process or in several. Processes are spawned, so ``work`` must be a module-level function; each
    receives ``shared`` once. The first error of ``work`` is raised here and no further item is
    started. ``progress(done, total)`` is called in this process. Raises `SettingsError` for fewer
    than 1 process.
    """
    if processes < 1:
        raise SettingsError(f"{processes} processes", expected="at least one")
    executor = chosen_executor() if executor is None else executor
    if len(items) > 1 and executor.kind == "dask":
        results = _results_on_cluster(executor, work, items, shared, processes)
    elif len(items) > 1 and processes > 1:
        results = _results_of_processes(work, items, shared, processes)
    else:
        results = (work(item, shared) for item in items)
    return _with_progress(results, len(items), progress)


def _with_progress(
    results: Iterable[Result], total: int, progress: Callable[[int, int], None] | None
) -> Iterator[Result]:
    for done, result in enumerate(results, start=1):
        if progress is not None:
            progress(done, total)
        yield result


def _results_on_cluster(
    executor: Executor,
    work: Callable[[Item, Shared], Result],
    items: Sequence[Item],
    shared: Shared,
    processes: int,
) -> Iterator[Result]:
    size = math.ceil(len(items) / max(LEAST_PARCELS, processes * PARCELS_A_PROCESS))
    calls = [
        {"work": work, "items": list(items[i : i + size]), "shared": shared}
        for i in range(0, len(items), size)
    ]
    with executor_fan(executor) as make_calls:
        for results in make_calls(_apply_all, calls):
            yield from results


def _apply_all(work: Callable[[Any, Any], Any], items: Sequence[Any], shared: Any) -> list[Any]:
    return [work(item, shared) for item in items]


def _results_of_processes(
    work: Callable[[Item, Shared], Result], items: Sequence[Item], shared: Shared, processes: int
) -> Iterator[Result]:
    with _process_pool(min(processes, len(items)), work, shared) as pool:
        yield from pool.map(_apply, items, chunksize=math.ceil(len(items) / (processes * PARCELS_A_PROCESS)))


_WORK: list[
    Any
] = []  # In a spawned process of `fan_out`: the function for every item, and the shared argument


def _apply(item: Any) -> Any:
    work, shared = _WORK
    return work(item, shared)


@contextmanager
def _process_pool(workers: int, *work: Any) -> Iterator[ProcessPoolExecutor]:
    """Provide spawned processes that end with this process, however it ends; on leaving, calls that wait are cancelled.

    A fork copies none of the caller's threads (a progress bar, the engine) and may inherit their locks.
    """
    pool = ProcessPoolExecutor(
        max_workers=workers,
        mp_context=get_context("spawn"),
        initializer=_begin_worker,
        initargs=(os.getpid(), *work),
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def executor_fan(
    executor: Executor, *, together: Sequence[Callable[..., Any]] = (), whole: bool = False
) -> Iterator[Fan]:
    """Provide the `Fan` of an executor; with threads it makes the calls in this thread.

    Calls of the functions ``together`` share large arguments and are sent in few parcels; with
    ``whole`` the calls of any function are sent in one.
    """
    if executor.kind == "dask":
        yield _in_parcels(_DaskSubmit(executor), executor.workers, together, whole=whole)
    elif executor.kind == "processes":
        with process_fan(executor.workers, together=together, whole=whole) as fan:
            yield fan
    else:
        yield in_turn


@contextmanager
def process_fan(
    workers: int, *, together: Sequence[Callable[..., Any]] = (), whole: bool = False
) -> Iterator[Fan]:
    """Provide a `Fan` over ``workers`` processes, started at the first call; a single worker is this process.

    Several threads may use it at once. The worker processes end with this process, however it ends.
    Arguments and results must be picklable.
    """
    if workers <= 1:
        yield in_turn
        return
    # Without this limit glibc holds freed memory in an arena per thread.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    with _process_pool(workers) as pool:
        yield _in_parcels(lambda *work: pool.submit(_parcel, *work).result, workers, together, whole=whole)


#: Starts the calls of a function elsewhere; returns a function that waits for their results.
Submit = Callable[[Callable[..., Any], Sequence[dict[str, Any]]], Callable[[], list[Any]]]


def _in_parcels(submit: Submit, workers: int, together: Sequence[Callable[..., Any]], *, whole: bool) -> Fan:
    def fan(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
        # Calls of the same parcel are pickled together, so a large shared argument (an estimation on
        # many markets) is sent once per parcel.
        size = len(calls)
        many = 1 if whole else PARCELS * workers if function in together else max(1, size)
        waiting = [submit(function, list(calls[i::many])) for i in range(min(many, size))]
        done = [result() for result in waiting]
        return [done[i % many][i // many] for i in range(size)]

    return fan


@dataclass(frozen=True, slots=True)
class _DaskSubmit:
    """Submits calls to a Dask cluster, packed so that only the worker imports their modules."""

    executor: Executor

    def __call__(
        self, function: Callable[..., Any], calls: Sequence[dict[str, Any]]
    ) -> Callable[[], list[Any]]:
        from distributed.scheduler import KilledWorker

        client = _client(self.executor)
        work = pack_calls(function, calls)
        future = client.submit(run_packed, work, pure=False)

        def result() -> list[Any]:
            try:
                return results_of(future.result())
            except KilledWorker as error:
                raise WorkerError(
                    f"{function.__name__}: {error.last_worker.address} and the Dask workers before it ended during the work",
                    expected="workers with enough memory",
                    remedy="the worker's log has the reason",
                ) from error
            except ModuleNotFoundError as error:
                raise WorkerError(
                    f"the Dask worker cannot import {error.name}",
                    expected="the same slackwater and the same libraries as here",
                    remedy="install them where the worker runs",
                ) from error

        return result


@lru_cache(maxsize=4)
def _client(executor: Executor) -> Client:
    """Return the client of a cluster, kept until this process ends; without an address of a new local cluster."""
    import distributed

    start_cluster: Any = distributed.LocalCluster
    connect: Any = distributed.Client
    client: Client
    if not executor.address:
        # A single thread per worker: the heavy code either holds the interpreter lock or is
        # multi-threaded itself.
        cluster = start_cluster(
            n_workers=executor.workers, threads_per_worker=1, processes=True, dashboard_address=None
        )
        atexit.register(cluster.close)
        client = connect(cluster, set_as_default=False)
    else:
        try:
            client = connect(executor.address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise WorkerError(
                f"{ADDRESS}={executor.address}: no Dask scheduler answers",
                expected="the address that `dask scheduler` prints, such as tcp://HOST:8786",
                remedy="start it, or unset SLACKWATER_RUNNER",
            ) from error
    atexit.register(client.close)
    return client


def _parcel(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
    """Run `in_turn` in a worker, then release unused memory: an estimation needs far more memory than its result."""
    result = in_turn(function, calls)
    give_memory_back()
    return result


def give_memory_back() -> None:
    """Return freed memory to the operating system, if the C library supports it (glibc)."""
    trim = getattr(_C_LIBRARY, "malloc_trim", None)
    if trim is not None:
        trim(0)


def _begin_worker(parent: int, *work: Any) -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _WORK[:] = work
    end_with(parent)
