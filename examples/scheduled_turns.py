"""Build a scheduled, served and monitored pipeline from an empty folder, with all turns started by the schedule.

    python examples/scheduled_turns.py [--runner threads|processes|dask] [--turns 3] [--folder DIR]

The script writes small settings (slots of three minutes, a simulated market), starts ``slackwater serve``, waits until the
schedule has completed that many turns, runs ``slackwater status``, stops the service, and prints the results as a JSON object.
Exit code 1 if turns are missing or not consecutive, or if the service fails.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from slackwater.flows.executor import ADDRESS, KIND
from slackwater.flows.ledger.stages import STAGES
from slackwater.warehouse.errors import StoreError
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_reader

STEP = pd.Timedelta(minutes=3)
#: The smallest turn with all stages, and the shortest possible slots, so that three turns take minutes.
SETTINGS = """
step_minutes = 3
models = ["last_value", "markov"]
planner = "markov"
measured_origins = 4
horizon = 3
planning_horizon = 6
max_markets = 2
simulated_days = 4
history_days = 3
risk_paths = 10
pool = "pool.toml"
"""
POOL = """
[[family]]
name = "OD-only"
[[family]]
name = "UP"
[[family]]
name = "AHANP"
sigma = [0.5, 0.9]
[[family]]
name = "Stochastic"
"""
#: Seconds for the start of the server and the first turn, which compiles code and imports the history.
START_SECONDS = 300


def main() -> int:
    """Run the example and return the exit code."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--runner", choices=["threads", "processes", "dask"], default="threads")
    words.add_argument("--turns", type=int, default=3)
    words.add_argument("--folder", type=Path, help="work here, and leave it (default: a temporary folder)")
    given = words.parse_args()
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        return report(given.folder.resolve(), given.runner, given.turns)
    with tempfile.TemporaryDirectory(prefix="slackwater-", ignore_cleanup_errors=True) as folder:
        return report(Path(folder), given.runner, given.turns)


def report(folder: Path, runner: str, turns: int) -> int:
    """Serve in ``folder`` until that many turns are done, print the results, and return the exit code."""
    (folder / "slackwater.toml").write_text(SETTINGS)
    (folder / "pool.toml").write_text(POOL)
    started = time.monotonic()
    with workers_for(runner) as spread:
        service = slackwater(folder, ["serve", "--only", "pipeline", "--port", "0"], spread)
        try:
            slots = wait_for_turns(service, folder / "slackwater.duckdb", turns)
            status = asked(folder, ["status", "--json"])
        finally:
            service.send_signal(signal.SIGTERM)
            code = service.wait(120)
    made = turns_in(folder / "slackwater.duckdb")
    answer = {
        "runner": runner,
        "minutes": round((time.monotonic() - started) / 60, 1),
        "service_exit_code": code,
        "turns": [{"slot": slot.isoformat(), **made[slot]} for slot in sorted(made)],
        "status": status,
    }
    print(json.dumps(answer, indent=2))
    in_a_row = all(late - early == STEP for early, late in pairwise(slots))
    return 0 if len(slots) >= turns and in_a_row and code == 0 else 1


@contextmanager
def workers_for(runner: str) -> Iterator[dict[str, str]]:
    """Yield the environment variables that choose the runner; for Dask start two worker processes, shared by all turns."""
    if runner != "dask":
        yield {KIND: runner}
        return
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        yield {KIND: runner, ADDRESS: cluster.scheduler_address}


def slackwater(folder: Path, words: Sequence[str], spread: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a command in ``folder``, without the Prefect settings of this environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = {**kept, **spread}
    return subprocess.Popen(
        [sys.executable, "-m", "slackwater.flows.cli", *words], cwd=folder, env=environment
    )


def asked(folder: Path, words: Sequence[str]) -> dict[str, Any]:
    """Run a command that prints a JSON object; return its exit code and answer."""
    done = subprocess.run(
        [sys.executable, "-m", "slackwater.flows.cli", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return {"exit_code": done.returncode, **json.loads(done.stdout)}
    except json.JSONDecodeError:
        return {"exit_code": done.returncode, "said": (done.stdout + done.stderr).strip()}


def wait_for_turns(service: subprocess.Popen[bytes], db: Path, turns: int) -> list[pd.Timestamp]:
    """Wait for enough turns or a timeout; return the slots whose four stages are done."""
    deadline = time.monotonic() + START_SECONDS + (turns + 1) * STEP.total_seconds()
    done: list[pd.Timestamp] = []
    while len(done) < turns and service.poll() is None and time.monotonic() < deadline:
        time.sleep(2)
        found = sorted(slot for slot, turn in turns_in(db).items() if turn["done"] == list(STAGES))
        for slot in found[len(done) :]:
            print(f"turn of {slot:%H:%M} UTC is done", file=sys.stderr)
        done = found
    return done


def turns_in(db: Path) -> dict[pd.Timestamp, dict[str, Any]]:
    """Return stages, decisions and forecasts of every turn in the warehouse; empty before the first turn."""
    try:
        with open_reader(db) as store:
            runs, decisions = read_rows(store, "runs"), read_rows(store, "decisions")
            vintages = read_rows(store, "vintages")
    except StoreError:
        return {}
    turns = {}
    for at, rows in runs.groupby("logical_at"):
        slot = pd.Timestamp(at)
        done = set(rows["stage"][rows["status"] == "done"])
        turns[slot] = {
            "done": [stage for stage in STAGES if stage in done],
            "failed": sorted(rows["stage"][rows["status"] == "failed"]),
            "made": sorted(set(rows["made"])),
            "decisions": int((decisions["slot"] == slot).sum()),
            "forecasts": int((vintages["issued_at"] == slot).sum()),
        }
    return turns


if __name__ == "__main__":
    sys.exit(main())
