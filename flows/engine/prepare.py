"""Prefect's environment, set in one place and before Prefect is imported."""

from __future__ import annotations

import os
from pathlib import Path

#: A first embedded server needs up to 75 s on a slow machine (the default limit is 20 s), telemetry is off, and the
#: task recorder writes in batches: with one write per event a flow after 1,000 tasks stalled for a minute. Leases of concurrency
#: slots are kept in files: the default forgets them when the server restarts, and their slots would stay taken for ever.
ENGINE_SETTINGS = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}


def prepare_engine(folder: Path, *, quiet: bool = False) -> None:
    """Set what is not set yet; Prefect keeps its own state in ``folder``/.prefect unless PREFECT_HOME says otherwise.

    ``quiet`` is for the command line, which says itself what went wrong: the engine would log the error's traceback first.
    """
    if quiet:
        os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_HOME", str((folder / ".prefect").resolve()))
    for name, value in ENGINE_SETTINGS.items():
        os.environ.setdefault(name, value)
