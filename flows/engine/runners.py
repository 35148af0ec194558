"""Which of Prefect's task runners the flows use: threads of one process, processes, or Dask workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from prefect.futures import PrefectFuture
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from warehouse.errors import SettingsError

#: Environment variables: the kind of runner, how many tasks at the same time, and the scheduler of a running Dask cluster.
KIND, WORKERS, ADDRESS = "SLACKWATER_RUNNER", "SLACKWATER_WORKERS", "SLACKWATER_DASK_ADDRESS"
KINDS = ("threads", "processes", "dask")
#: Tasks at the same time; the heavy libraries let go of the interpreter lock while they calculate.
DEFAULT_WORKERS = 2

Runner = TaskRunner[PrefectFuture[Any]]


def chosen_runner(environment: Mapping[str, str] = os.environ) -> Runner:
    """The task runner that the environment asks for; threads if it does not say.

    Raises `SettingsError` naming the variable: an unknown kind, a number of workers that is none, Dask that is not installed.
    """
    kind = environment.get(KIND, KINDS[0])
    text = environment.get(WORKERS, str(DEFAULT_WORKERS))
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"{WORKERS}={text!r}", expected="a whole number of at least 1")
    if kind == "threads":
        return ThreadPoolTaskRunner(max_workers=int(text))  # type: ignore[return-value]
    if kind == "processes":
        return ProcessPoolTaskRunner(max_workers=int(text))  # type: ignore[return-value]
    if kind == "dask":
        return dask_runner(int(text), environment.get(ADDRESS))
    raise SettingsError(f"{KIND}={kind!r}", expected=f"one of {', '.join(KINDS)}")


def dask_runner(workers: int, address: str | None = None) -> Runner:
    """Prefect's Dask runner on the cluster at ``address``, else on worker processes of its own for every flow run.

    A cluster of its own costs each flow run the start of its workers (each of them imports everything), so one that runs already
    is worth naming. Raises `SettingsError` if the extra is not installed.
    """
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as error:
        raise SettingsError(
            f"{KIND}=dask, but Dask is not installed ({error})",
            expected="the optional extra",
            remedy='pip install "slackwater[dask]"',
        ) from error
    if address:
        return cast("Runner", DaskTaskRunner(address=address))
    # One thread a worker: what more than one core is wanted for holds the interpreter lock, or is threaded itself.
    cluster = {"n_workers": workers, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    return cast("Runner", DaskTaskRunner(cluster_kwargs=cluster))
