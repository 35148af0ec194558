"""Prefect's environment, set before it is imported, and one turn of the loop on the embedded engine.

What a turn needs is imported when it runs: the environment alone costs no import of it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.command import outlive_readers, say
from warehouse.errors import SettingsError

if TYPE_CHECKING:
    import pandas as pd

    from flows.config import Settings

# ---
# Prefect's environment, set in one place and before Prefect is imported.

#: A first embedded server needs up to 75 s on a slow machine (the default limit is 20 s), telemetry is off, and the
#: task recorder writes in batches: with one write per event a flow after 1,000 tasks stalled for a minute. Leases of concurrency
#: slots are kept in files: the default forgets them when the server restarts, and their slots would stay taken for ever. Of what is
#: logged the lines of flow runs are kept from INFO on, of the rest warnings; only those are printed. A run is heard of every half
#: minute, so that one whose process has died is told from one that works (`flows.engine.serving.zombies`).
ENGINE_SETTINGS = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
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
    protect_server(Path(os.environ["PREFECT_HOME"]))


#: Variables that say where another Prefect server is, or how it is asked: then nothing is protected here.
ELSEWHERE = (
    "PREFECT_API_URL",
    "PREFECT_API_KEY",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_SERVER_API_AUTH_STRING",
)
#: The file below PREFECT_HOME with the text that the server of this machine wants from who asks, as ``user:password``.
AUTH_FILE = "auth"


def protect_server(home: Path) -> None:
    """Let the server that is started for this process answer only who knows the text in ``home``/auth.

    Server and clients get it through the environment. The text is made at random when it is first needed, in a folder and a file
    that only their user may read. Where the environment names another server, or a text, nothing is changed. Raises `SettingsError`
    where the file cannot be used.
    """
    profiles = home / "profiles.toml"
    if any(name in os.environ for name in ELSEWHERE):
        return
    if profiles.is_file() and "PREFECT_API_URL" in profiles.read_text(encoding="utf-8", errors="replace"):
        return
    file = home / AUTH_FILE
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            part = home / f".{AUTH_FILE}.{os.getpid()}"
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
                made.write(f"slackwater:{secrets.token_urlsafe(32)}")
            try:
                os.link(part, file)  # whole or not at all; the first of two processes wins
            finally:
                part.unlink()
        found, mode = file.read_text(encoding="utf-8").strip(), file.stat().st_mode
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"{file}: {error}", expected="a file that can be written and read") from error
    if mode & 0o077 or not found.partition(":")[2]:
        raise SettingsError(
            f"{file} {'may be read by others' if mode & 0o077 else 'holds no user:password'}",
            expected="a text that only its user may read",
            remedy=f"remove {file}; a new one is made",
        )
    os.environ["PREFECT_SERVER_API_AUTH_STRING"] = os.environ["PREFECT_API_AUTH_STRING"] = found


def login_words() -> str:
    """How a person logs in to the server of this process, "" where it is another's."""
    file = Path(os.environ["PREFECT_HOME"]) / AUTH_FILE
    return f"; its page asks for the text in {file}" if file.exists() else ""


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
