"""Seconds of a turn over 8 markets on threads and on running Dask clusters of 1, 2 and 4 worker processes, and of their start.

A cluster lives as long as the service: in the steady turns measured here, its workers have imported and compiled all they need.
Every runner must write the same tables as threads do.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.turn import AT, tidy_markets, timed
from slackwater.flows.engine.run import prepare_engine
from slackwater.flows.engine.serving import running_server
from slackwater.flows.executor import Executor
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_reader

WORKERS = (1, 2, 4)
MARKETS = 8
#: Turns of each runner: the first includes imports of the cluster and ingest of the history; the best of the others counts.
TURNS = 3
TABLES = ("vintages", "forecasts", "decisions", "outcomes", "weights", "fitted")


def run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tidy_markets(folder, AT + TURNS * pd.Timedelta("30min"))
        prepare_engine(folder)
        (folder / "slackwater.toml").write_text(f"max_markets = {MARKETS}\n")
        with running_server(folder / "server.log"):
            runners = measured(folder)
    return {"markets": MARKETS, "seconds": runners}


def measured(folder: Path) -> dict[str, Any]:
    """Return the seconds by runner."""
    from distributed import LocalCluster

    runners: dict[str, Any] = {"threads": turns_on(folder, "threads", Executor())}
    for workers in WORKERS:
        cluster, start = timed_start(LocalCluster, workers)
        with cluster:
            executor = Executor(kind="dask", workers=workers, address=cluster.scheduler_address)
            label = f"dask_{workers}"
            runners[label] = turns_on(folder, label, executor)
            runners[label]["cluster_start"] = start
        print(label, runners, file=sys.stderr)
    return runners


def timed_start(kind: Any, workers: int) -> tuple[Any, float]:
    seconds, cluster = timed(
        lambda: kind(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)
    )
    return cluster, seconds


def turns_on(folder: Path, label: str, executor: Executor) -> dict[str, Any]:
    """Return seconds of the first turn on a new warehouse and of the best of the following turns."""
    from slackwater.flows.engine import flows

    flows.EXECUTOR = executor
    flow = flows.pipeline

    def turn(at: datetime) -> None:
        flow(
            db=folder / f"{label}.duckdb",
            at=at,
            data=folder,
            report=folder / "r.html",
            settings=folder / "slackwater.toml",
        )

    times = [(AT + k * pd.Timedelta("30min")).to_pydatetime() for k in range(TURNS)]
    first, *later = [timed(lambda at=at: turn(at))[0] for at in times]
    same = tables(folder / f"{label}.duckdb") == tables(folder / "threads.duckdb")
    if not same:
        raise RuntimeError(f"{label} made other tables than threads")
    return {"first_turn": first, "steady_turn": min(later), "same_tables": same}


def tables(db: Path) -> dict[str, list[str]]:
    with open_reader(db) as store:
        return {name: sorted(map(repr, read_rows(store, name).to_numpy().tolist())) for name in TABLES}


if __name__ == "__main__":
    print(run())
