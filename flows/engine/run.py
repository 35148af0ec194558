"""Prefect's environment, set before it is imported, and one turn of the loop on the embedded engine.

What a turn needs is imported when it runs: the environment alone costs no import of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.command import outlive_readers, say

if TYPE_CHECKING:
    import pandas as pd

    from flows.config import Settings

# ---
# Prefect's environment, set in one place and before Prefect is imported.

#: Prefect starts no server by itself: it would answer to everybody (`flows.engine.serving.running_server`). Telemetry is
#: off, and the task recorder writes in batches: with one write per event a flow after 1,000 tasks stalled for a minute.
#: Leases of concurrency slots are kept in files: the default forgets them when the server restarts, and their slots
#: would stay taken for ever. Of what is logged the lines of flow runs are kept from INFO on, of the rest warnings; only
#: those are printed. A run is heard of every half minute, so that one whose process has died is told from one that works
#: (`flows.engine.serving.zombies`).
ENGINE_SETTINGS = {
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL": "INFO",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}


def prepare_engine(folder: Path, *, quiet: bool = False) -> None:
    """Set what is not set yet; Prefect keeps its own state in ``folder``/.prefect unless PREFECT_HOME says otherwise.

    ``quiet`` is for the command line, which says itself how it goes and what went wrong: the engine would print its log first, with
    the error's traceback. From here on nothing fails because nobody reads what is printed.
    """
    outlive_readers()
    if quiet:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_HOME", str((folder / ".prefect").resolve()))
    for name, value in ENGINE_SETTINGS.items():
        os.environ.setdefault(name, value)


@contextmanager
def no_heartbeat() -> Iterator[None]:
    """Runs of this process do not say that they live: for those that somebody waits for, whom no deployment's automation looks at.

    The thread that says so takes up to a second to end, and no variable of the environment turns it off (Prefect 3.8).
    """
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


# ---
# What ``run`` does: one turn of the loop on the embedded engine, and its answer as plain values.


def run_turn(
    *,
    data: Path | None,
    db: Path,
    at: pd.Timestamp | None,
    job_files: Sequence[Path],
    report: Path | None,
    config: Settings,
    settings: Path | None,
    show: Callable[[Sequence[Mapping[str, Any]]], None],
) -> dict[str, Any]:
    """One turn of the loop on the engine, whose decisions are ``show``n when they are made.

    Raises `StoreError` where no warehouse can be, before anything is started.
    """
    from flows.engine.serving import start_embedded_server
    from flows.turn.context import run_id_of
    from optimization.job.request import read_request
    from warehouse.store.files import check_place

    check_place(db, read_only=False)
    requests = [read_request(file) for file in job_files]
    when, own_end = _run_time(data, at, config)
    for one in (
        requests
    ):  # the turn does that by the times of their markets; what cannot be placed is said before it begins
        one.placed(at=when, market=one.market, source=one.source)
    say(f"start the engine; turn at {when:%Y-%m-%d %H:%M} UTC{_market_words(data, config)}")

    prepare_engine(db.resolve().parent, quiet=True)
    start_embedded_server()
    from flows.engine.flows import SHOW, pipeline

    SHOW.set(show)
    with no_heartbeat():
        return pipeline.with_options(timeout_seconds=0)(  # who waits for it may stop it
            db=db,
            at=when.to_pydatetime(),
            data=data,
            jobs=requests,
            report=report or Path("reports") / f"{run_id_of(when)}.html",
            settings=settings,
            own_end=own_end,
        )


def _market_words(data: Path | None, settings: Settings) -> str:
    """What a run is on, for the person who waits; what its ingest says where that hangs on the warehouse."""
    if data is not None:
        return f" on {data}"
    return f" on {len(settings.feeds)} live feeds" if settings.feeds else ""


def _run_time(data: Path | None, at: pd.Timestamp | None, settings: Settings) -> tuple[pd.Timestamp, bool]:
    """Logical time of a run, floored to the grid: ``at``, else the end of the folder's record, else the clock."""
    from flows.clock import now
    from flows.turn.context import step_of
    from flows.turn.stages import last_observed

    if at is not None:
        return at.floor(step_of(settings)), False
    if data is None:
        return now().floor(step_of(settings)), False
    return last_observed(data).ceil(step_of(settings)), True
