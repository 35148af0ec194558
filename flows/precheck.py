"""Checks of times, files, jobs and markets of a command line, done before the command's slow imports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from slackwater.warehouse.documents import names_file, read_toml
from slackwater.warehouse.errors import InputError, OldSchemaError, SettingsError, unknown_job, unknown_market
from slackwater.warehouse.sources import SOURCES, check_source

#: Time parameters -> option names.
TIMES = {"at": "--at", "start": "--from", "end": "--to", "deadline": "--deadline"}
#: TOML file parameters -> names in error messages.
TOML_FILES = {"request": "request file", "types": "types file"}
JOB_FILE = "job file"
FAMILY = re.compile(r"[^()\s]+")  # Family of a policy at the beginning of its name: up to its parameters


def check_arguments(command: str, arguments: Mapping[str, Any]) -> None:
    """Raise the error that the command would raise, if it can be detected without the command's imports.

    Checks times, durations, sources, forecasters, families of policies, TOML files of jobs, requests and types, input
    paths, and names of stored jobs and of markets.
    """
    session = next((value for value in arguments.values() if hasattr(value, "db")), None)
    parts = [vars(value) if is_dataclass(value) else {name: value} for name, value in arguments.items()]
    arguments = {name: value for part in parts for name, value in part.items()}
    for name, text in arguments.items():
        if name in TIMES and isinstance(text, str):
            from slackwater.flows.clock import check_written

            check_written(text, TIMES[name])
        if name in TOML_FILES and isinstance(text, Path):
            read_toml(text, TOML_FILES[name])
    if command == "ingest" and arguments.get("source") and not arguments["list_sources"]:
        check_source(arguments["source"])
        _check_files(arguments["source"], arguments["paths"])
    if models := [*filter(None, [arguments.get("model")]), *(arguments.get("models") or ())]:
        _check_predictors(models)
    if arguments.get("policy"):
        _check_policies(arguments["policy"])
    data = arguments.get("data")
    paths: tuple[Path, ...] = (*(arguments.get("paths") or ()), *([data] if isinstance(data, Path) else []))
    for path in paths:
        if not str(path).startswith("-") and not path.exists():
            raise InputError(f"no file or folder {path}", remedy="check the path")
    if command == "job add":
        files: tuple[Path, ...] = arguments.get("files") or ()
        if len(files) == 1:  # of several files an unusable file does not stop the others
            read_toml(files[0], JOB_FILE)
    job = _job_name(command, arguments)
    if session is not None and _reads(command, session):
        _check_there(session.db)
    if job is not None and session is not None:
        _check_job(job, session)
    market = arguments.get("market")
    if isinstance(market, str) and session is not None and command in BY_MARKET:
        _check_market(market, session)
    _check_forms(command, arguments)


def _check_files(source: str, paths: Sequence[Path]) -> None:
    """Raise `InputError` if a source that reads files gets none."""
    if not paths and SOURCES[source].has_files:
        raise InputError(
            f"no file of the source {source!r} given",
            expected="files, folders, or - for standard input",
            remedy=f"`slackwater ingest {source} FILE`",
        )


def _check_predictors(names: Sequence[object]) -> None:
    """Raise `SettingsError` for an unknown forecaster."""
    from slackwater.forecasting.predictors import check_predictor

    for name in names:
        if name != "perfect":
            check_predictor(str(name))


def _check_policies(names: str | Sequence[str]) -> None:
    """Raise `SettingsError` for a policy of no known family; its parameters are checked when it is created."""
    from slackwater.optimization.moving import MULTI_MARKET_POLICIES
    from slackwater.optimization.policies import POLICIES, POLICY_NAMES

    for name in [names] if isinstance(names, str) else names:
        family = FAMILY.match(name.strip())
        if name in ("all", *MULTI_MARKET_POLICIES) or (family is not None and family.group() in POLICIES):
            continue
        raise SettingsError(
            f"policy {name!r}",
            expected=f"{POLICY_NAMES}; of a job in several markets {', '.join(map(repr, MULTI_MARKET_POLICIES))}",
        )


#: Commands that read a warehouse and never create it.
READERS = (
    "act", "backtest", "bill", "export", "forecast", "job list", "job show", "leaderboard", "markets", "plan", "rejected",
    "replay", "report", "status",
)  # fmt: skip


def _reads(command: str, session: Any) -> bool:
    return command in READERS and getattr(session, "data", None) is None


BY_NAME = ("job show", "job report")  # Commands whose first argument is the name of a stored job


def _job_name(command: str, arguments: Mapping[str, Any]) -> str | None:
    """Return the name of a stored job among the arguments, if any; raise `JobError` for an unreadable job file."""
    job = arguments.get("name") if command in BY_NAME else arguments.get("job")
    if isinstance(job, Path) or (isinstance(job, str) and command not in BY_NAME and names_file(job)):
        read_toml(Path(job), JOB_FILE)
        return None
    return job if isinstance(job, str) else None


#: Commands whose ``--market`` must be a market of the warehouse.
BY_MARKET = ("backtest", "forecast", "job add", "plan", "replay")


def _check_forms(command: str, arguments: Mapping[str, Any]) -> None:
    """Check durations and the keys of a job file, which requires pandas."""
    if isinstance(every := arguments.get("every"), str) and command == "backtest":
        from slackwater.warehouse.amounts import parsed_duration

        try:
            parsed_duration(every)
        except ValueError as error:
            raise SettingsError(f"--every {error}") from error
    files: list[Any] = [arguments.get("job"), *(arguments.get("files") or ())]
    files = [
        Path(file) for file in files if isinstance(file, Path) or (isinstance(file, str) and names_file(file))
    ]
    if len(files) == 1 and command in ("backtest", "job add", "plan", "replay"):
        from slackwater.optimization.job.request import read_request

        read_request(files[0])


def _check_market(market: str, session: Any) -> None:
    rows = _rows(session, "SELECT DISTINCT market FROM market_series ORDER BY market")
    known = [str(name) for (name,) in rows]
    if known and market.count("/") == 3 and market.partition("@")[0] not in known:
        raise unknown_market(market, known)


def _check_there(db: Path) -> None:
    from slackwater.warehouse.store.files import check_place, is_shared

    if not is_shared(db):
        check_place(db, read_only=True)


def _rows(session: Any, query: str) -> list[tuple[Any, ...]]:
    """Return rows of the warehouse; empty if it does not exist, has an older schema, or data are read from files."""
    if not session.db.exists() or getattr(session, "data", None) is not None:
        return []  # the command reports it
    from slackwater.warehouse.store.connection import open_reader

    try:
        with open_reader(session.db) as store:
            return store.execute(query)
    except OldSchemaError:
        return []  # the command migrates it first


def _check_job(job: str, session: Any) -> None:
    known = [str(name) for (name,) in _rows(session, "SELECT name FROM jobs ORDER BY created_at, name")]
    if known and job not in known:
        raise unknown_job(job, known)
