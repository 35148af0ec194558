"""What Prefect's users expect of every flow of ours: runs named by slot, described parameters, named tasks, log lines.

Importing it makes the process one that runs flows: what is said goes to the log of the run at hand, and no write to standard
output or error fails because nobody reads it (a run goes on when its worker is killed; Prefect's console would end it).
"""

from __future__ import annotations

import logging
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

from flows.command import keep_log, outlive_readers
from flows.config import Settings, read_settings
from flows.paths import require_inside
from warehouse.errors import SettingsError, SlackwaterError

P = ParamSpec("P")
R = TypeVar("R")

# ---
# What is said, in the log of the run at hand.


def _console() -> PrefectConsoleHandler | None:
    """What writes Prefect's log lines on standard error, if they are written there."""
    handlers = logging.getLogger().handlers
    return next((one for one in handlers if isinstance(one, PrefectConsoleHandler)), None)


def log(text: str) -> bool | None:
    """A line in the log of the flow run at hand, in the place of its task if there is one (`flows.command.Log`)."""
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
if (console := _console()) is not None:  # it took standard error as it was when Prefect was imported
    console.console.file = sys.stderr

# ---
# A flow: its parameters as every flow has them, described once, and the name of its runs.

Db = Annotated[Path, Field(description="The warehouse: a DuckDB file, made if it is not there.")]
Slot = Annotated[
    datetime | None,
    Field(
        description="The slot, by a time in it (UTC unless it says otherwise); by default the slot that the run was scheduled for."
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


def described(function: Callable[P, R]) -> Callable[P, R]:
    """The function with what its annotations say of its parameters in its docstring, where Prefect looks for it."""
    lines = []
    for name, hint in get_type_hints(function, include_extras=True).items():
        for one in get_args(hint)[1:]:
            if isinstance(one, FieldInfo):
                lines.append(f"    {name}: {one.description}")
    function.__doc__ = "\n".join([(function.__doc__ or "").rstrip(), "", "Args:", *lines])
    return function


def named_flow(
    name: str, *, run_name: Callable[[], str], **options: Any
) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Prefect's ``flow`` with described parameters, whose runs are named when they begin.

    A run of a deployment is refused before anything is done if a path among its parameters leads out of its folder.
    """

    def made(function: Callable[P, R]) -> Flow[P, R]:
        @wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            if is_deployed():
                require_inside(signature(function).bind(*args, **kwargs).arguments)
            return function(*args, **kwargs)

        # Prefect reads types where it finds them written out: names it would look up in this module.
        inside.__annotations__ = get_type_hints(function, include_extras=True)
        inside.__signature__ = signature(function, eval_str=True)  # type: ignore[attr-defined]
        return flow(name=name, flow_run_name=run_name, **options)(described(inside))

    return made


def is_deployed() -> bool:
    """Whether the present flow run is one of a deployment, whose parameters come from whoever may start it."""
    context = FlowRunContext.get()
    return context is not None and context.flow_run is not None and context.flow_run.deployment_id is not None


def slot_of(at: datetime | None, settings: Settings) -> pd.Timestamp:
    """The slot of ``at``, or of the time for which the present flow run was scheduled.

    The scheduled time stays the same however late a run starts and however often it is tried again. A run that nobody
    scheduled counts as scheduled when it was made. Times without a zone are UTC. Raises `SettingsError` without either.
    """
    return utc_time(at if at is not None else scheduled_time()).floor(f"{settings.step_minutes}min")


def scheduled_time() -> datetime:
    """When the present flow run was to start; raises `SettingsError` outside of a flow run."""
    context = FlowRunContext.get()
    planned = context.flow_run.expected_start_time if context and context.flow_run else None
    if planned is None:
        raise SettingsError(
            "no logical time", expected="`at`, or a flow run with a scheduled time", remedy="give `at`"
        )
    return planned


def utc_time(at: datetime) -> pd.Timestamp:
    """A time in UTC; one without a zone is in UTC already."""
    return pd.Timestamp(at if at.tzinfo is not None else at.replace(tzinfo=UTC)).tz_convert("UTC")


def time_name(at: pd.Timestamp) -> str:
    """A time as names of runs and tasks have it.

    >>> time_name(pd.Timestamp("2026-01-02T03:00Z"))
    '2026-01-02T03:00Z'
    """
    return f"{at:%Y-%m-%dT%H:%MZ}"


def run_name(word: str, *, slots: bool = True) -> Callable[[], str]:
    """What names the runs of a flow: by their slot, such as ``turn 2026-01-02T03:00Z``, or by their ``start`` and ``end``.

    Without ``slots`` by their time as it is.
    """

    def name() -> str:
        given = _parameters()
        try:
            if "start" in given:
                times = [utc_time(_time(given[one])) for one in ("start", "end")]
            elif slots:
                file = None if given.get("settings") is None else Path(given["settings"])
                if is_deployed():
                    require_inside({"settings": file})
                settings = read_settings(file)
                times = [slot_of(_time(given["at"]) if given.get("at") else None, settings)]
            else:
                times = [utc_time(_time(given["at"]) if given.get("at") else scheduled_time())]
        except (SlackwaterError, ValueError):  # the flow itself meets it, and says what is wrong
            return word
        return " ".join([word, *map(time_name, times), *([AGAIN] if given.get("after") else [])])

    return name


#: What the name of a run ends with that is in the place of one that died.
AGAIN = "again"


def not_again(after: str, settings: Settings) -> str:
    """Why the present run does not do the work of the run named ``after``, which died; "" if it does.

    The slot of a run stands in its name, if it came so far as to have one. It is made while it lasts, and once.
    """
    word, *more = after.split(" ")
    try:
        slot = slot_of(_time(more[0]), settings) if more else None
    except (SettingsError, ValueError):
        slot = None
    if slot is None:
        return ""
    how = f"`slackwater backfill --from {time_name(slot)} --to {time_name(slot)}` makes it"
    if more[1:] == [AGAIN]:
        return f"{word} {time_name(slot)} died twice and is not made a third time; {how}"
    if slot_of(None, settings) != slot:
        return f"{word} {time_name(slot)} was missed: its run died, and its slot is over; {how}"
    return ""


def _parameters() -> dict[str, Any]:
    """The parameters of the present flow run, which may not have been read yet."""
    context = FlowRunContext.get()
    return dict(context.parameters or {}) if context is not None else {}


def _time(given: Any) -> datetime:
    return given if isinstance(given, datetime) else datetime.fromisoformat(str(given))


# ---
# Named tasks of a run.


def as_task(name: str, work: Callable[[], R], *, run_name: str | None = None) -> R:
    """Work as a task of the present flow run, in this thread; outside of a run just the work.

    What goes in and comes out does not pass through the engine, which would walk through every table looking for futures.
    What a task has done it has committed to the warehouse, so it is not called rolled back if one that comes later fails.
    """
    if FlowRunContext.get() is None:
        return work()
    made: list[R] = []
    named = task(name=name, task_run_name=run_name or name, cache_policy=NO_CACHE, persist_result=False)
    # The task itself holds nothing of the work: it goes along to the processes in which its own tasks run.
    given = _WORK.set(lambda: made.append(work()))
    try:
        with transaction(commit_mode=CommitMode.EAGER):
            named(_work)()
    finally:
        _WORK.reset(given)
    return made[0]


_WORK: ContextVar[Callable[[], None]] = ContextVar("_WORK")


def _work() -> None:
    _WORK.get()()
