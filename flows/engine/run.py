"""Set Prefect's environment before its import, and run a turn, on the embedded engine if Prefect is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.flows.command import Session, outlive_readers, say

if TYPE_CHECKING:
    import pandas as pd

    from slackwater.flows.config import Settings
    from slackwater.flows.engine.turns import Show

#: Prefect must not start its own server, which would accept any client
#: (`slackwater.flows.engine.serving.running_server`). Telemetry is off. The task recorder writes in batches:
#: with a write per event a flow stalled for a minute after 1,000 tasks. If SQLite is locked the
#: server waits for 60 s instead of 10, then answers 503, which clients repeat 10 times instead of 5
#: with growing pauses. Concurrency leases are
#: stored in files: the default store is lost when the server restarts, and the slots would stay
#: occupied forever. Flow runs log from level INFO, everything else from WARNING; the console shows
#: warnings only. Runs send a heartbeat every 30 seconds, by which ``automations.yaml``
#: recognises runs whose process has died.
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
    "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
    "PREFECT_CLIENT_MAX_RETRIES": "10",
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}


def prepare_engine(folder: Path, *, quiet: bool = False) -> None:
    """Set environment variables that are not set yet; Prefect's state goes to ``folder``/.prefect unless PREFECT_HOME is set.

    ``quiet`` silences Prefect's console log, for commands that print progress and errors
    themselves. From this call on, a closed output pipe is no error.
    """
    outlive_readers()
    if quiet:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_HOME", str((folder / ".prefect").resolve()))
    for name, value in ENGINE_SETTINGS.items():
        os.environ.setdefault(name, value)


@contextmanager
def no_heartbeat() -> Iterator[None]:
    """Disable Prefect's heartbeat for runs started by hand: its thread takes up to a second to end (Prefect 3.8)."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


# ---
# The command ``run``: a turn of the loop; its answer as plain values.


def run_turn(
    session: Session, *, job_files: Sequence[Path], report: Path | None, show: Show
) -> dict[str, Any]:
    """Run a turn of the loop; calls ``show`` with the decisions as soon as they are issued.

    With the extra ``serve`` the turn is a flow run on the embedded engine, else a plain function call.
    Raises `StoreError` before anything is started if the warehouse cannot be at ``db``.
    """
    from slackwater.flows.turn.context import run_id_of
    from slackwater.optimization.job.request import read_request
    from slackwater.warehouse.plugins import has_extra
    from slackwater.warehouse.store.files import check_place

    db, data, config = session.db, session.data, session.config
    check_place(db, read_only=False)
    requests = [read_request(file) for file in job_files]
    when, own_end = _run_time(data, session.time, config)
    # The turn places jobs itself; this check reports errors before it starts.
    for request in requests:
        request.with_place(at=when, market=request.market, source=request.source)
    place = report or Path("reports") / f"{run_id_of(when)}.html"
    slot = f"turn at {when:%Y-%m-%d %H:%M} UTC{_market_words(data, config)}"
    if not has_extra("serve"):
        from slackwater.flows.engine.turns import complete_turn

        say(slot)
        result = complete_turn(
            db, when, settings=config, data=data, requests=requests, report=place, own_end=own_end, show=show
        )
        return dict(result.answer())
    from slackwater.flows.engine.serving import start_embedded_server

    say(f"start the engine; {slot}")
    prepare_engine(db.resolve().parent, quiet=True)
    start_embedded_server()
    from slackwater.flows.engine.flows import SHOW, pipeline

    SHOW.set(show)
    with no_heartbeat():
        return pipeline.with_options(timeout_seconds=0)(  # no time limit: the person who waits can stop it
            db=db,
            at=when.to_pydatetime(),
            data=data,
            jobs=requests,
            report=place,
            settings=session.settings,
            own_end=own_end,
        )


def _market_words(data: Path | None, settings: Settings) -> str:
    """Describe the data source of a run for the progress line; empty if only the ingest can determine it."""
    if data is not None:
        return f" on {data}"
    return f" on {len(settings.feeds)} live feeds" if settings.feeds else ""


def _run_time(data: Path | None, at: pd.Timestamp | None, settings: Settings) -> tuple[pd.Timestamp, bool]:
    """Return the logical time of a run, on the grid, and whether each market ends at its own record.

    The time is ``at`` (rounded down), else the end of the folder's record (rounded up), else the
    clock (rounded down).
    """
    from slackwater.flows.clock import now
    from slackwater.flows.following import step_of
    from slackwater.flows.turn.ingest import last_observed

    if at is not None:
        return at.floor(step_of(settings)), False
    if data is None:
        return now().floor(step_of(settings)), False
    return last_observed(data).ceil(step_of(settings)), True
