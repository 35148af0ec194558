"""Seconds and memory of a turn, of the status and of every page after a year of turns with many markets and jobs.

The year is made by compaction of time: a few turns run, then copies of their rows are dated back,
day by day, thinned as `slackwater compact` leaves them. ``SCALES`` are shares of the full size; the
exponent of a figure is the slope between the two scales (1: proportional to the size).

``FULL_GROWTH=1`` measures the full size alone: 18 minutes of processor; 56 GB of free disk were not enough.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.turn import AT, tidy_markets

#: Full size: markets with observations, markets followed, and jobs of a year, of which the share running ends later.
MARKETS, FOLLOWED, JOBS, RUNNING, DAYS = 1000, 200, 500, 0.1, 365
SCALES = (0.02, 0.04)
STEP = pd.Timedelta("30min")
#: Days of observations of each market, and of unthinned forecasts and errors.
OBSERVED_DAYS, FULL_DAYS = 15, 60


def run() -> dict[str, Any]:
    full = os.environ.get("FULL_GROWTH")
    found = {str(scale): measured(float(scale)) for scale in ([full] if full else SCALES)}
    if full:
        return {"sizes": found}
    low, high = (found[str(scale)] for scale in SCALES)
    ratio = math.log(SCALES[1] / SCALES[0])
    exponents = {
        name: round(math.log(max(high[name]["seconds"], 1e-3) / max(low[name]["seconds"], 1e-3)) / ratio, 2)
        for name in low
        if isinstance(low[name], dict)
    }
    return {"sizes": found, "exponents": exponents}


def measured(scale: float) -> dict[str, Any]:
    """Return seconds and peak memory of each part at a share of the full size."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        apart(fill, folder, scale)
        db = folder / "w.duckdb"
        answer: dict[str, Any] = {
            "megabytes": round(db.stat().st_size / 1e6, 1),
            "decisions": apart(count_rows, folder, "decisions"),
            "outcomes": apart(count_rows, folder, "outcomes"),
        }
        parts: dict[str, tuple[Callable[..., Any], Any]] = {"turn": (turn, scale), "status": (status, scale)}
        parts |= {f"page {path}": (page, path) for path in PAGES}
        for part, (work, given) in parts.items():
            answer[part] = apart(timed, work, folder, given)
            print(scale, part, answer[part], file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    return answer


#: The pages of the UI with the addresses of a job and a market.
PAGES = (
    "/", "/jobs", "/jobs?state=ended&page=3", "/job?name=bench-0", "/markets", "/accuracy", "/policies", "/completeness", "/runs",
)  # fmt: skip


def apart(work: Callable[..., Any], *given: Any) -> Any:
    """Call a function in a new process and return its result."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
        return process.submit(work, *given).result()


def timed(work: Callable[..., Any], folder: Path, given: Any) -> dict[str, float]:
    """Return wall and processor seconds of the second call, which finds compiled code and caches, and the peak memory in MB."""
    seconds: list[tuple[float, float]] = []
    for again in range(2):
        wall, processor = time.perf_counter(), time.process_time()
        work(folder, given, again)
        seconds.append((time.perf_counter() - wall, time.process_time() - processor))
    return {
        "first": round(seconds[0][0], 2),
        "seconds": round(seconds[1][1], 2),
        "wall": round(seconds[1][0], 2),
        "megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
    }


def settings_at(scale: float) -> Any:
    from slackwater.flows.config import Settings

    return Settings(max_markets=max(2, round(FOLLOWED * scale)))


def fill(folder: Path, scale: float) -> None:
    """Write the warehouse: observations, two turns, and the copies of their rows over a year."""
    from slackwater.flows.turn.context import Turn, run_id_of
    from slackwater.flows.turn.stages import whole_turn
    from slackwater.warehouse.listing import list_markets
    from slackwater.warehouse.observations import ingest
    from slackwater.warehouse.store.connection import open_store

    tidy_markets(folder, AT + 4 * STEP, markets=round(MARKETS * scale), days=OBSERVED_DAYS)
    settings = settings_at(scale)
    with open_store(folder / "w.duckdb") as store:
        ingest(store, "tabular", folder, imported_at=AT)
        rows = list_markets(store)
        keys = sorted({str(row) for row in rows["market"]})
        for at in (AT - STEP, AT):
            first = at != AT
            requests = jobs(keys, scale) if first else []
            turn_at = Turn(store=store, at=at, settings=settings, run_id=run_id_of(at))
            whole_turn(turn_at, data=None, requests=requests, report=None)
        age(store, scale)


def jobs(keys: list[str], scale: float) -> list[Any]:
    """Return running jobs, and one job for each ten of them that has just ended and is scored."""
    from slackwater.optimization.job.request import parse_request

    running = max(1, round(JOBS * scale * RUNNING))
    terms = {
        "n_max": 3, "throughput": {"form": "linear"}, "checkpoint": {"resumable": True, "overhead_minutes": 3},
        "deadline_in": "24h", "workload": {"amount": 30.0, "unit": "gpu_hours"},
    }  # fmt: skip
    made = []
    for k in range(running + 1):
        ended = k == running
        request = parse_request(
            {"name": "past-0" if ended else f"bench-{k}", **terms, "market": keys[k % len(keys)]}, "benchmark"
        )
        start = AT - (50 if ended else 4) * STEP
        made.append(request.with_place(at=start, market=request.market, source=None))
    return made


def age(store: Any, scale: float) -> None:
    """Copy the rows of the turns to every half hour of a year before, and those of the jobs to its days."""
    past = {"days": DAYS, "at": AT.to_pydatetime()}
    back = "to_minutes(30 * CAST(k AS INTEGER))"
    full = f"(k <= {48 * FULL_DAYS} OR k % 48 = 0)"
    slots = "(SELECT unnest(generate_series(1, 48 * $days)) AS k)"
    with store.transaction():
        store.execute(
            f"INSERT INTO runs SELECT * EXCLUDE (k) REPLACE (logical_at - {back} AS logical_at, "
            f"strftime(logical_at - {back}, 'run-%Y%m%dT%H%M%SZ') AS run) FROM runs, {slots} WHERE logical_at = $at AND k > 1",
            past,
        )
        store.execute(
            f"INSERT INTO accuracy SELECT * EXCLUDE (k) REPLACE (measured_at - {back} AS measured_at) FROM accuracy, {slots} "
            f"WHERE measured_at = $at AND k > 1 AND {full} ORDER BY k DESC",
            past,
        )
        ((vids,),) = store.execute("SELECT max(vid) FROM vintages")
        newest = "(SELECT * FROM vintages WHERE issued_at = $at)"
        # Earlier forecasts have smaller numbers, as in a warehouse of a year.
        store.execute(
            f"INSERT INTO forecasts SELECT f.* REPLACE (f.vid - CAST(k AS INTEGER) * {vids} AS vid) "
            f"FROM forecasts AS f JOIN {newest} USING (vid), {slots} WHERE k > 40 AND {full} "
            "ORDER BY k DESC",
            past,
        )
        store.execute(
            f"INSERT INTO vintages SELECT * EXCLUDE (k) REPLACE (vid - CAST(k AS INTEGER) * {vids} AS vid, "
            f"issued_at - {back} AS issued_at, newest_row - {back} AS newest_row) FROM {newest}, {slots} WHERE k > 40 AND {full} "
            "ORDER BY k DESC",
            past,
        )
        number = max(1, round(JOBS * scale))
        copies = f"(SELECT unnest(generate_series(1, {number})) AS k)"
        ago = f"to_hours(CAST(24 + k * 24 * {DAYS} / {number} AS INTEGER))"
        own = "'job-' || k AS {}"
        names = {"jobs": "name", "outcomes": "job", "weights": "job"}
        times = {"jobs": ("created_at", "start_at", "deadline_at"), "outcomes": ("scored_at",),
                 "weights": ("scored_at",)}  # fmt: skip
        for table, name in names.items():
            moved = ", ".join(f"{column} - {ago} AS {column}" for column in times[table])
            extra = ", round + CAST(k AS INTEGER) AS round" if table == "weights" else ""
            if table == "jobs":
                extra = (
                    f", json_merge_patch(spec, json_object('name', 'job-' || k, "
                    f"'starts_at', strftime(start_at - {ago}, '%Y-%m-%dT%H:%M:%SZ'), "
                    f"'deadline', strftime(deadline_at - {ago}, '%Y-%m-%dT%H:%M:%SZ')))::VARCHAR AS spec"
                )
            store.execute(
                f"INSERT INTO {table} SELECT * EXCLUDE (k) REPLACE ({own.format(name)}, {moved}{extra}) "
                f"FROM {table}, {copies} WHERE {name} = 'past-0'"
            )
        # Each ended job has the decision of a running job in each of its slots.
        store.execute(
            f"INSERT INTO decisions SELECT * EXCLUDE (k, j) REPLACE ('job-' || k AS job, "
            f"slot - {ago} - to_minutes(30 * CAST(j AS INTEGER)) AS slot) "
            f"FROM (SELECT * FROM decisions WHERE job = 'bench-0' AND slot = $at), {copies}, "
            "(SELECT unnest(generate_series(2, 49)) AS j)",
            {"at": AT.to_pydatetime()},
        )


def count_rows(folder: Path, table: str) -> int:
    """Return the number of rows of a table."""
    from slackwater.warehouse.store.connection import open_reader

    with open_reader(folder / "w.duckdb") as store:
        return int(store.execute(f"SELECT count(*) FROM {table}")[0][0])


def turn(folder: Path, scale: float, again: int) -> None:
    """Run the next turn."""
    from slackwater.flows.turn.context import Turn, run_id_of
    from slackwater.flows.turn.stages import whole_turn
    from slackwater.warehouse.store.connection import open_store

    at = AT + (1 + again) * STEP
    with open_store(folder / "w.duckdb") as store:
        turn_at = Turn(store=store, at=at, settings=settings_at(scale), run_id=run_id_of(at))
        whole_turn(turn_at, data=None, requests=[], report=folder / "report.html")


def status(folder: Path, scale: float, again: int) -> None:
    """Compute the status."""
    from slackwater.flows.monitoring.status import status_of
    from slackwater.warehouse.store.connection import open_reader

    with open_reader(folder / "w.duckdb") as store:
        status_of(store, settings_at(scale), at=AT + (2 + again) * STEP)


def page(folder: Path, path: str, again: int) -> None:
    """Get a page of the UI from a new cache."""
    import asyncio

    import httpx

    from slackwater.flows.config import Settings
    from slackwater.flows.ui.app import make_app
    from slackwater.flows.ui.reading import Snapshots

    app = make_app(Snapshots(folder / "w.duckdb", Settings(), lambda: AT + (2 + again) * STEP))

    async def ask() -> int:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8642", timeout=600
        ) as client:
            return (await client.get(path)).status_code

    code = asyncio.run(ask())
    if code != 200:
        raise RuntimeError(f"{path} answered {code}")
