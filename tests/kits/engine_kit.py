"""A separate engine, isolated from the environment of the tests."""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from slackwater.flows.engine.run import ENGINE_SETTINGS, prepare_engine
from slackwater.flows.engine.serving import CLIENT_PASSWORD, automations, running_server
from slackwater.flows.paths import ALLOWED


def zombies(silence: float | None = None) -> dict[str, Any]:
    """Return the automation that ends runs whose process has died, after ``silence`` seconds (default: as shipped)."""
    (found,) = (one for one in automations() if one["name"] == "slackwater-zombies")
    return found if silence is None else {**found, "trigger": {**found["trigger"], "within": silence}}


@contextmanager
def own_engine(home: Path, tables: Path | None = None):
    """Set Prefect up in the folder ``home`` as a command does, and restore the environment afterwards.

    An engine creates its tables in several hundred migrations. If another engine has stored them in
    ``tables`` (`keep_tables`), it begins with a copy.
    """
    before = dict(os.environ)
    os.environ[ALLOWED] = str(
        home.parent
    )  # of every test of the run: deployments are made in many folders below it
    for name in ("PREFECT_HOME", "PREFECT_API_URL", *ENGINE_SETTINGS):
        os.environ.pop(name, None)
    try:
        prepare_engine(home)
        # Tests read the state of a task immediately; by default the server records it every five seconds.
        os.environ["PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL"] = "1"  # whole seconds
        Path(os.environ["PREFECT_HOME"]).mkdir()
        if tables is not None and tables.exists():
            shutil.copyfile(tables, _tables_of_engine())
        yield home
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def own_server(log: Path, *, embedded: bool = False):
    """Run a server that the clients of this process use, even if Prefect was imported before."""
    with running_server(log, embedded=embedded) as url:
        from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: os.environ[CLIENT_PASSWORD]}):
            yield url


def keep_tables(tables: Path) -> None:
    """Store the tables of the engine that has just started, for the next engine."""
    if not tables.exists():
        part = tables.with_suffix(f".{os.getpid()}")
        with closing(sqlite3.connect(_tables_of_engine())) as made, closing(sqlite3.connect(part)) as kept:
            made.backup(kept)
        part.replace(tables)


def _tables_of_engine() -> Path:
    return Path(os.environ["PREFECT_HOME"]) / "prefect.db"


def process_of(worker: int) -> int | None:
    """Return the process of a run that a worker started."""
    for line in subprocess.run(
        ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        pid, parent, *words = line.split()
        if parent == str(worker) and any("prefect" in word for word in words):
            return int(pid)
    return None
