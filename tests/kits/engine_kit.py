"""An engine of one's own, with nothing of the environment around the tests."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

from flows.engine.run import ENGINE_SETTINGS, prepare_engine


@contextmanager
def own_engine(home: Path):
    """Prefect's settings as a command makes them in the folder ``home``; the environment is as before afterwards."""
    before = dict(os.environ)
    for name in ("PREFECT_HOME", "PREFECT_API_URL", *ENGINE_SETTINGS):
        os.environ.pop(name, None)
    try:
        prepare_engine(home)
        yield home
    finally:
        os.environ.clear()
        os.environ.update(before)


def process_of(worker: int) -> int | None:
    """The process of a run that a worker started."""
    for line in subprocess.run(
        ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        pid, parent, *words = line.split()
        if parent == str(worker) and any("prefect" in word for word in words):
            return int(pid)
    return None
