"""Kill runs, workers and both under a real Prefect server: ``python tests/faults/worker_kills.py [--kills N] [--seed S]``.

Each round is a new warehouse and a run of the served turn, in the current slot. A moment later its process
dies, or the worker that serves it, or both, as when a machine goes down; a worker is restarted at once, as an
init system would. Counted is the origin of the slot's decisions: that run, the run that the server's
automation made in its place, or the next scheduled run. One JSON object on standard output; exit code 1 if a
slot stayed without decisions or has two.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pandas as pd

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "kits"), str(HERE.parent / "flows" / "turn"), str(HERE.parents[1])]

from engine_kit import own_engine, process_of  # noqa: E402
from test_turn import small_settings  # noqa: E402

from slackwater.flows.engine.serving import running_server  # noqa: E402
from slackwater.warehouse.errors import SlackwaterError  # noqa: E402
from slackwater.warehouse.issued import read_rows  # noqa: E402
from slackwater.warehouse.store.connection import open_reader  # noqa: E402

#: Victims, and how often each in ten rounds.
VICTIMS = {"run": 4, "worker": 3, "both": 3}
#: Seconds after which the server declares a silent run dead (300 in use), seconds in which a moment is drawn,
#: and limit of a round.
SILENCE, MOMENTS, PATIENCE = 40, 10.0, 240.0
#: The command, with this shorter limit for silent runs.
SERVE = f"""
from slackwater.flows.cli import main
from slackwater.flows.engine import serving
own = serving.automations()
own[0]["trigger"]["within"] = {SILENCE}
serving.automations = lambda: own
main()
"""
#: Jobs of a first turn on the simulated market.
JOBS = 2
#: A round begins only in a slot with this much time left.
SLOT, ROOM = pd.Timedelta("30min"), pd.Timedelta("5min")


class Worker:
    """``slackwater serve`` in a folder, which also holds its warehouse."""

    def __init__(self, folder: Path, settings: Path) -> None:
        self.folder, self.settings = folder, settings
        self.start()

    def start(self) -> None:
        """Start it and wait until it serves."""
        words = ["-c", SERVE, "serve", "--only", "pipeline", "--settings", str(self.settings)]
        self.process = subprocess.Popen(
            [sys.executable, *words], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )  # fmt: skip
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.strip().startswith(b"ready"):
                break

    def kill(self) -> None:
        """Send SIGKILL; only the orphan of the process remains."""
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


def decided(db: Path, slot: pd.Timestamp) -> list[str]:
    """Return the jobs with a decision in the slot, an entry per decision; empty if there is no warehouse yet."""
    with suppress(SlackwaterError), open_reader(db) as store:
        return [str(job) for job in read_rows(store, "decisions", where={"slot": slot})["job"]]
    return []


def slot_with_room() -> pd.Timestamp:
    """Return the current slot, after waiting for the next if too little of it is left."""
    now = pd.Timestamp.now("UTC")
    if (left := now.ceil(SLOT) - now) < ROOM:
        time.sleep(left.total_seconds() + 1.0)
    return pd.Timestamp.now("UTC").floor(SLOT)


def settled(client, since: pd.Timestamp, seconds: float) -> bool:
    """Wait until every run since then has ended; False on timeout."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterExpectedStartTime

    of_round = FlowRunFilter(expected_start_time=FlowRunFilterExpectedStartTime(after_=since.to_pydatetime()))
    end, quiet = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        due = pd.Timestamp.now("UTC")  # a worker that starts schedules the coming slots again
        runs = [
            one for one in client.read_flow_runs(flow_run_filter=of_round) if one.expected_start_time <= due
        ]
        quiet = quiet + 1 if all(one.state.is_final() for one in runs) else 0
        if quiet == 8:  # an automation needs a moment to start the next
            return True
        time.sleep(0.5)
    return False


def one_round(client, worker: Worker, rng: random.Random) -> tuple[str, str, list[str]]:
    """Return (victim and time of death, run that decided the slot, errors)."""
    db = worker.folder / "slackwater.duckdb"
    for path in worker.folder.glob("slackwater.duckdb*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    slot, since = slot_with_room(), pd.Timestamp.now("UTC")
    deployment = client.read_deployment_by_name("pipeline/every-slot")
    client.pause_deployment(deployment.id)
    run = client.create_flow_run_from_deployment(deployment.id)
    end = time.monotonic() + PATIENCE
    while not (process := process_of(worker.process.pid)):
        if time.monotonic() > end:
            return "nothing", "nothing", ["the worker did not start the run"]
        time.sleep(0.1)
    victim = rng.choices(list(VICTIMS), list(VICTIMS.values()))[0]
    time.sleep(rng.uniform(0.0, MOMENTS))
    state = client.read_flow_run(run.id).state.name
    if victim != "worker":
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    if victim != "run":
        worker.kill()
        worker.start()
    wrong = [] if settled(client, since, PATIENCE) else ["a run did not end"]
    by = "that run" if client.read_flow_run(run.id).state.is_completed() else "one in its place"
    if not decided(db, slot):
        by = "the next scheduled"
        client.create_flow_run_from_deployment(deployment.id)
        wrong += [] if settled(client, since, PATIENCE) else ["the next run did not end"]
    found = decided(db, slot)
    if len(found) != JOBS or len({*found}) != JOBS:
        wrong.append(f"slot {slot}: decisions of {found}")
    return f"{victim}, {state}", by, [f"{victim} killed while {state}: {text}" for text in wrong]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=None, help="begin no round after so many seconds")
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args()
    rng, began = random.Random(words.seed), time.monotonic()
    killed: Counter[str] = Counter()
    decided_by: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="workers-") as name, own_engine(Path(name)) as home:
        Path(os.environ["PREFECT_HOME"]).mkdir(exist_ok=True)
        with running_server(home / "server.log"):
            from prefect.client.orchestration import get_client

            folder = home / "served"
            folder.mkdir()
            worker = Worker(folder, small_settings(home))
            try:
                with get_client(sync_client=True) as client:
                    for i in range(words.kills):
                        if words.seconds is not None and time.monotonic() - began > words.seconds:
                            break
                        what, by, wrong = one_round(client, worker, rng)
                        killed[what] += 1
                        decided_by[by] += 1
                        failures += wrong
                        print(f"{i + 1}: {what}; decided by {by}; {wrong}", file=sys.stderr, flush=True)
            finally:
                worker.kill()
    answer = {
        "seed": words.seed, "kills": killed.total(), "killed": dict(killed), "decided_by": dict(decided_by), "failures": failures,
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    print(json.dumps(answer, indent=2))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
