"""Shared features of the Prefect flows: run names by slot, parameter descriptions, named tasks and log lines.

Importing this module prepares the process for running flows: `slackwater.flows.command.say` also writes to
the log of the current flow run, and writes to standard output or error never fail for lack of a reader. A run
thus survives when its worker is killed; Prefect's console handler would end it.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_type_hints

import pandas as pd
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext, TaskRunContext
from prefect.flows import Flow
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.logging.loggers import flow_run_logger
from prefect.transactions import CommitMode, transaction
from pydantic import Field
from pydantic.fields import FieldInfo

from slackwater.flows.command import keep_log, outlive_readers, say
from slackwater.flows.config import Settings, read_settings
from slackwater.flows.paths import require_inside
from slackwater.warehouse.errors import SettingsError, SlackwaterError
from slackwater.warehouse.store.files import has_wal

P = ParamSpec("P")
R = TypeVar("R")


def has_warehouse(db: Path) -> bool:
    """Return whether there is a warehouse; if not, say so: a schedule of a new folder may come before its first turn."""
    if db.exists() or has_wal(db):
        return True
    say(f"no warehouse at {db} yet: the first turn creates it")
    return False


# ---
# Log lines of the current flow run.


def _console() -> PrefectConsoleHandler | None:
    handlers = logging.getLogger().handlers
    return next((handler for handler in handlers if isinstance(handler, PrefectConsoleHandler)), None)


def log(text: str) -> bool | None:
    """Write a line to the log of the current flow run and task.

    Return whether Prefect prints it on standard error, None outside of a flow run. An empty text only asks that.
    """
    context, own = FlowRunContext.get(), TaskRunContext.get()
    if context is None or context.flow_run is None:
        return None
    place: dict[str, Any] = {} if own is None else {"task_run_id": str(own.task_run.id)}
    logger = flow_run_logger(context.flow_run, context.flow, **place)
    if text:
        logger.info(text)
    console = _console()
    return console is not None and console.level <= logging.INFO and logger.isEnabledFor(logging.INFO)


keep_log(log)
outlive_readers()
if (console := _console()) is not None:  # it still has the standard error stream of when Prefect was imported
    console.console.file = sys.stderr

# ---
# Parameters shared by all flows, with descriptions, and names of runs.

Db = Annotated[Path, Field(description="The warehouse: a DuckDB file, created if missing.")]
Slot = Annotated[
    datetime | None,
    Field(
        description="The slot, by a time in it (UTC unless it has an offset); by default the slot that the run was scheduled for."
    ),
]
SettingsFile = Annotated[
    Path | None, Field(description="Settings file; by default `slackwater.toml` if it is there.")
]
Data = Annotated[
    Path | None,
    Field(
        description="Folder of tidy tables to ingest; by default the live feeds, else the simulated market if nothing was measured."
    ),
]
OwnEnd = Annotated[
    bool,
    Field(description="Whether every market is taken at the end of its own record instead of at the slot."),
]


def describe_parameters(function: Callable[P, R]) -> Callable[P, R]:
    """Add the parameter descriptions of a function's annotations to its docstring, where Prefect reads them, and return it."""
    lines = []
    for name, hint in get_type_hints(function, include_extras=True).items():
        for part in get_args(hint)[1:]:
            if isinstance(part, FieldInfo):
                lines.append(f"    {name}: {part.description}")
    function.__doc__ = "\n".join([(function.__doc__ or "").rstrip(), "", "Args:", *lines])
    return function


def named_flow(
    name: str, *, run_name: Callable[[], str], **options: Any
) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Return Prefect's ``flow`` decorator with parameter descriptions and run names.

    A deployed run fails before any work if a path parameter is outside the allowed folders (`require_inside`).
    """

    def decorate(function: Callable[P, R]) -> Flow[P, R]:
        @wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            if is_deployed():
                require_inside(signature(function).bind(*args, **kwargs).arguments)
            return function(*args, **kwargs)

        # Prefect needs resolved types: it would look up the names of postponed annotations in this module.
        inside.__annotations__ = get_type_hints(function, include_extras=True)
        inside.__signature__ = signature(function, eval_str=True)  # type: ignore[attr-defined]
        return flow(name=name, flow_run_name=run_name, **options)(describe_parameters(inside))

    return decorate


def is_deployed() -> bool:
    """Return whether the current flow run belongs to a deployment, whose parameters come from anybody who may start it."""
    context = FlowRunContext.get()
    return context is not None and context.flow_run is not None and context.flow_run.deployment_id is not None


def slot_of(at: datetime | None, settings: Settings) -> pd.Timestamp:
    """Return the slot of ``at``, or of the scheduled time of the current flow run.

    The scheduled time does not change with a late start or with retries; for an unscheduled run it is the time of creation.
    Times without a zone are UTC. Raises `SettingsError` without ``at`` outside of a flow run.
    """
    return utc_time(at if at is not None else scheduled_time()).floor(f"{settings.step_minutes}min")


def scheduled_time() -> datetime:
    """Return the scheduled start of the current flow run; raise `SettingsError` outside of a flow run."""
    context = FlowRunContext.get()
    planned = context.flow_run.expected_start_time if context and context.flow_run else None
    if planned is None:
        raise SettingsError(
            "no logical time", expected="`at`, or a flow run with a scheduled time", remedy="give `at`"
        )
    return planned


def utc_time(at: datetime) -> pd.Timestamp:
    """Convert a time to UTC; a time without a zone is taken as UTC."""
    return pd.Timestamp(at if at.tzinfo is not None else at.replace(tzinfo=UTC)).tz_convert("UTC")


def time_name(at: pd.Timestamp) -> str:
    """Return a time as written in the names of runs and tasks.

    >>> time_name(pd.Timestamp("2026-01-02T03:00Z"))
    '2026-01-02T03:00Z'
    """
    return f"{at:%Y-%m-%dT%H:%MZ}"


def run_name(word: str, *, slots: bool = True) -> Callable[[], str]:
    """Return a function that names flow runs by slot, such as ``turn 2026-01-02T03:00Z``, or by ``start`` and ``end``.

    Without ``slots`` the name has the time itself instead of its slot. If the time is unusable, the name is ``word``.
    """

    def name() -> str:
        given = _parameters()
        try:
            if "start" in given:
                times = [utc_time(_time(given[key])) for key in ("start", "end")]
            elif slots:
                file = None if given.get("settings") is None else Path(given["settings"])
                if is_deployed():
                    require_inside({"settings": file})
                settings = read_settings(file)
                times = [slot_of(_time(given["at"]) if given.get("at") else None, settings)]
            else:
                times = [utc_time(_time(given["at"]) if given.get("at") else scheduled_time())]
        except (SlackwaterError, ValueError):  # the flow raises the same error and reports it
            return word
        return " ".join([word, *map(time_name, times), *([REPLACEMENT] if given.get("after") else [])])

    return name


REPLACEMENT = "again"  # Last word in the name of a run that replaces a crashed run


def why_not_repeated(after: str, settings: Settings) -> str:
    """Return why the current run must not repeat the crashed run named ``after``; "" if it should.

    The slot is read from the name of the crashed run, if it has a slot. A slot is repeated at most once, and only before it ends.
    """
    word, *more = after.split(" ")
    try:
        slot = slot_of(_time(more[0]), settings) if more else None
    except (SettingsError, ValueError):
        slot = None
    if slot is None:
        return ""
    how = f"`slackwater backfill --from {time_name(slot)} --to {time_name(slot)}` makes it"
    if more[1:] == [REPLACEMENT]:
        return f"{word} {time_name(slot)} died twice and is not run a third time; {how}"
    if slot_of(None, settings) != slot:
        return f"{word} {time_name(slot)} was missed: its run died, and its slot is over; {how}"
    return ""


def _parameters() -> dict[str, Any]:
    """Return the parameters of the current flow run, possibly not yet validated."""
    context = FlowRunContext.get()
    return dict(context.parameters or {}) if context is not None else {}


def _time(given: Any) -> datetime:
    return given if isinstance(given, datetime) else datetime.fromisoformat(str(given))


def artifact_key(db: Path, what: str) -> str:
    """Return the key of a Prefect artifact, with the name of the warehouse.

    >>> artifact_key(Path("data/H100 east.duckdb"), "turn")
    'slackwater-h100-east-turn'
    """
    return "-".join(["slackwater", *re.findall("[a-z0-9]+", db.stem.lower()), what])


# ---
# Named tasks of a run.


def as_task(name: str, work: Callable[[], R], *, run_name: str | None = None) -> R:
    """Run ``work`` as a task of the current flow run, in this thread; outside of a flow run just call it.

    Arguments and results bypass Prefect's engine, which would search every table for futures. A task commits its work to the
    warehouse, so it must not be marked as rolled back when a later task fails.
    """
    if FlowRunContext.get() is None:
        return work()
    results: list[R] = []
    named = task(name=name, task_run_name=run_name or name, cache_policy=NO_CACHE, persist_result=False)
    # The work is passed in a context variable: the task object is also sent to the processes that run its subtasks.
    given = _WORK.set(lambda: results.append(work()))
    try:
        with transaction(commit_mode=CommitMode.EAGER):
            named(_work)()
    finally:
        _WORK.reset(given)
    return results[0]


_WORK: ContextVar[Callable[[], None]] = ContextVar("_WORK")


def _work() -> None:
    _WORK.get()()
