"""A first turn killed in any of its stages and run again gives the same tables.

`tests/faults/test_kills.py` kills a fetch and, as a slow test, every stage at random moments.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_turn import AT, dump, small_settings

STAGES = ("ingest", "forecast", "decide", "replay", "report")
pytestmark = pytest.mark.slow
KITS = Path(__file__).resolve().parents[2] / "kits"
TURN = """
import os, sys
from pathlib import Path
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import pandas as pd
from slackwater.flows.config import read_settings
from slackwater.flows.turn.context import Turn, run_id_of
from slackwater.flows.turn.stages import whole_turn
from past_jobs import past_jobs
from slackwater.warehouse.store.connection import open_store

at = pd.Timestamp(sys.argv[2])
with open_store(sys.argv[1]) as store:
    turn = Turn(store=store, at=at, settings=read_settings(Path(sys.argv[3])), run_id=run_id_of(at),
                say=lambda text: print(text, flush=True))
    whole_turn(turn, data=None, requests=past_jobs(2, before=at), report=Path(sys.argv[1]).parent / "r.html")
"""


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory) -> Path:
    return small_settings(tmp_path_factory.mktemp("settings"))


def start(db: Path, settings: Path) -> subprocess.Popen:
    words = [sys.executable, "-c", TURN, str(db), AT.isoformat(), str(settings)]
    path = os.pathsep.join(map(str, (KITS, KITS.parents[1])))
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})


def kill_when(db: Path, settings: Path, stage: str) -> None:
    """Run a turn and kill it with SIGKILL as soon as it prints that ``stage`` begins."""
    process = start(db, settings)
    for line in process.stdout:
        if line.startswith(stage):
            os.kill(process.pid, signal.SIGKILL)
            break
    process.wait()
    assert process.returncode == -signal.SIGKILL


def run_through(db: Path, settings: Path) -> None:
    process = start(db, settings)
    process.communicate()
    assert process.returncode == 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, settings_file):
    db = tmp_path_factory.mktemp("whole") / "w.duckdb"
    run_through(db, settings_file)
    return dump(db)


@pytest.mark.parametrize("stage", STAGES)
def test_killed_in_each_stage(tmp_path, settings_file, uninterrupted, stage):
    db = tmp_path / "w.duckdb"
    kill_when(db, settings_file, stage)
    run_through(db, settings_file)
    assert dump(db) == uninterrupted
