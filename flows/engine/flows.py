"""The Prefect flows: each takes parameters and runs stages of a turn, without arithmetic; the work is in
`slackwater.flows.turn.stages`.

``ingest``, ``forecast``, ``allocate``, ``score`` and ``pipeline`` take the logical time as a parameter or use
their scheduled time, never the clock (M1.4). Each opens the warehouse itself, and only the process of the
flow writes to it. Work is distributed over a few coarse tasks that receive and return plain values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pandas as pd
from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from prefect.tasks import Task, exponential_backoff
from pydantic import Field

from slackwater.flows.backfill.late import is_made, make_missing
from slackwater.flows.clock import now
from slackwater.flows.command import DEFAULT_DB, progress, say, words_of
from slackwater.flows.config import Settings, read_settings
from slackwater.flows.engine.turns import Show, complete_turn, opened_turn, show_nothing, stage_name
from slackwater.flows.executor import chosen_executor, executor_fan
from slackwater.flows.ledger.stages import reason_of, worth_another_try
from slackwater.flows.monitoring.flow import emit_alarms
from slackwater.flows.runs import (
    Data,
    Db,
    OwnEnd,
    SettingsFile,
    Slot,
    artifact_key,
    as_task,
    has_warehouse,
    is_deployed,
    named_flow,
    run_name,
    slot_of,
    time_name,
    why_not_repeated,
)
from slackwater.flows.show.formats import rows_of, utc
from slackwater.flows.show.markdown import markdown_of
from slackwater.flows.turn import stages
from slackwater.flows.turn.context import Turn, run_id_of
from slackwater.flows.turn.report.command import decided_blocks, turn_blocks
from slackwater.flows.turn.report.leaderboard import policy_results, read_board_facts
from slackwater.flows.turn.retention import compact_by_settings
from slackwater.flows.turn.stages import Stage, TurnProgress, TurnResult, run_stage
from slackwater.optimization.fan import Fan
from slackwater.optimization.job.request import JobRequest
from slackwater.warehouse.store.connection import open_reader

Runner = TaskRunner[PrefectFuture[Any]]
#: Receives the decisions of a turn in this process: no parameter of a flow, which Prefect would store.
SHOW: ContextVar[Show] = ContextVar("SHOW", default=show_nothing)


#: Maximum number of tasks per stage: Prefect handles tens of tasks per flow, not a task per market or job.
TASKS_A_STAGE = 12
#: Tasks are threads that wait for the executor, which computes elsewhere; only with threads they
#: compute themselves.
EXECUTOR = chosen_executor()
RUNNER: Runner = ThreadPoolTaskRunner(  # type: ignore[assignment]
    max_workers=EXECUTOR.workers if EXECUTOR.kind == "threads" else TASKS_A_STAGE
)
#: Retries of a flow, seconds before the first retry (doubled each time), and relative random jitter
#: of the delay.
TRIES, FIRST_WAIT, JITTER = 3, 10.0, 0.5
#: Time limits in seconds, so that a hanging run does not block later slots forever.
STAGE_TIMEOUT, TURN_TIMEOUT = 3600, 7200

Result = TypeVar("Result")


def tasks_of(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
    """The `Fan` of the engine: make the calls in at most `TASKS_A_STAGE` tasks named after the function."""
    unit = task(name=function.__name__.replace("_", "-"), cache_policy=NO_CACHE, persist_result=False)(
        _run_calls
    )
    size = math.ceil(len(calls) / TASKS_A_STAGE) or 1
    results: list[Any] = []
    words = words_of(function)
    count = math.ceil(len(calls) / size)
    named = [unit.with_options(task_run_name=f"{words} {k} of {count}") for k in range(1, count + 1)]
    with executor_fan(EXECUTOR, whole=True) as fan, progress(words, len(calls)) as tell:
        parts = [_TaskCalls(fan, function, calls[i : i + size]) for i in range(0, len(calls), size)]
        for future in [stage_task.submit(part) for stage_task, part in zip(named, parts, strict=True)]:
            results += future.result().results
            tell(len(results))
    return results


class _TaskCalls:
    """Calls of a task, opaque to Prefect, which would otherwise search every table for futures."""

    __slots__ = ("calls", "fan", "function")

    def __init__(self, fan: Fan, function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> None:
        self.fan = fan
        self.function = function
        self.calls = calls


class _Results:
    """Results of the calls of a task, opaque to Prefect for the same reason."""

    __slots__ = ("results",)

    def __init__(self, results: list[Any]) -> None:
        self.results = results


def _run_calls(part: _TaskCalls) -> _Results:
    return _Results(part.fan(part.function, part.calls))


def run_with_retries(work: Callable[[], Result], *, label: str) -> Result:
    """Run the work of a flow with retries: delays double from `FIRST_WAIT`, with random jitter.

    Permanent errors are not retried (`slackwater.flows.ledger.stages.worth_another_try`). Every try opens the
    warehouse again, so it is free during the delays, and has the same logical time. A run started
    by hand is not retried: its user sees the error at once.
    """
    if not is_deployed():
        return work()
    patient = task(
        name=label,
        task_run_name=label,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=TRIES,
        retry_delay_seconds=exponential_backoff(FIRST_WAIT),
        retry_jitter_factor=JITTER,
        retry_condition_fn=_try_again,
    )(work)
    return patient()


def _try_again(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    error = state.data if isinstance(state.data, BaseException) else None
    again = worth_another_try(error)
    if error is not None and again:
        say(f"failed, to be tried again: {reason_of(error)}")
    return again


def _on_turn(
    work: Callable[[Turn], Result],
    label: str,
    db: Path,
    at: datetime | None,
    settings: Path | None,
    own_end: bool = False,
) -> Result:
    """Run the work of a stage's flow on its turn, with retries; ``at`` defaults to the slot of the flow run."""

    def whole() -> Result:
        chosen = read_settings(settings)
        with opened_turn(db, slot_of(at, chosen), settings=chosen, own_end=own_end, fan=tasks_of) as turn:
            return work(turn)

    return run_with_retries(whole, label=f"{label}-tries")


def run_as_task(stage: Stage, turn: Turn, found: TurnProgress) -> TurnProgress:
    """Run `run_stage` as a Prefect task with the stage's name in the ledger."""
    return as_task(stage_name(stage), lambda: run_stage(stage, turn, found))


@named_flow("ingest", run_name=run_name("ingest"), task_runner=RUNNER, timeout_seconds=STAGE_TIMEOUT)
def ingest(
    db: Db = DEFAULT_DB, at: Slot = None, data: Data = None, settings: SettingsFile = None
) -> dict[str, dict[str, int]]:
    """Ingest new data: the tidy tables in ``data``, or the simulated market up to ``at``."""
    return _on_turn(
        lambda turn: run_as_task(stages.ingest, turn, TurnProgress(data=data)).ingested,
        "ingest",
        db,
        at,
        settings,
    )


@named_flow("forecast", run_name=run_name("forecast"), task_runner=RUNNER, timeout_seconds=STAGE_TIMEOUT)
def forecast(
    db: Db = DEFAULT_DB, at: Slot = None, settings: SettingsFile = None, own_end: OwnEnd = False
) -> list[dict[str, Any]]:
    """Issue the forecasts at ``at``, add those missing from past slots and score them; returns the errors."""

    def work(turn: Turn) -> list[dict[str, Any]]:
        return rows_of(run_as_task(stages.forecast, turn, TurnProgress()).measured.accuracy)

    return _on_turn(work, "forecast", db, at, settings, own_end)


@named_flow("allocate", run_name=run_name("allocate"), task_runner=RUNNER, timeout_seconds=STAGE_TIMEOUT)
def allocate(
    db: Db = DEFAULT_DB, at: Slot = None, settings: SettingsFile = None, own_end: OwnEnd = False
) -> list[dict[str, Any]]:
    """Decide the slot at ``at`` for every running job and deliver the decisions; needs the forecasts of that time."""

    def work(turn: Turn) -> list[dict[str, Any]]:
        return list(
            run_as_task(stages.deliver, turn, run_as_task(stages.decide, turn, TurnProgress())).decisions
        )

    return _on_turn(work, "allocate", db, at, settings, own_end)


@named_flow("score", run_name=run_name("score"), task_runner=RUNNER, timeout_seconds=STAGE_TIMEOUT)
def score(
    db: Db = DEFAULT_DB, at: Slot = None, settings: SettingsFile = None, own_end: OwnEnd = False
) -> list[dict[str, Any]]:
    """Replay the pool on every job that has ended by ``at`` and update the selection; returns the leaderboard."""

    def work(turn: Turn) -> list[dict[str, Any]]:
        known = run_as_task(stages.score, turn, TurnProgress()).known
        return policy_results(turn, read_board_facts(turn, None if known is None else known.pool)).leaderboard

    return _on_turn(work, "score", db, at, settings, own_end)


@named_flow("compact", run_name=run_name("compact", slots=False), timeout_seconds=TURN_TIMEOUT)
def compact(db: Db = DEFAULT_DB, settings: SettingsFile = None) -> dict[str, int]:
    """Rewrite the warehouse without the rows that the settings ``[retention]`` leave out; returns sizes and dropped rows."""
    if not has_warehouse(db):
        return {}
    return run_with_retries(lambda: compact_by_settings(db, read_settings(settings)), label="compact-tries")


@named_flow("pipeline", run_name=run_name("turn"), task_runner=RUNNER, timeout_seconds=TURN_TIMEOUT)
def pipeline(
    db: Db = DEFAULT_DB,
    at: Slot = None,
    data: Data = None,
    jobs: Annotated[list[JobRequest] | None, Field(description="Jobs to add first, as in job files.")] = None,
    report: Annotated[Path, Field(description="File for the page of the turn.")] = Path(
        "reports/report.html"
    ),
    settings: SettingsFile = None,
    own_end: OwnEnd = False,
    run_id: Annotated[
        str | None, Field(description="Name of the turn in the ledger; by default its slot's.")
    ] = None,
    after: Annotated[
        str | None,
        Field(
            description="Name of a run that died: its slot is run once more if it has not ended, else the log states it."
        ),
    ] = None,
    every_minutes: Annotated[
        int | None,
        Field(
            description="Minutes between scheduled turns, by which missing slots are found; by default a slot."
        ),
    ] = None,
) -> dict[str, Any]:
    """Run a complete turn of the loop; returns the object that ``slackwater run --json`` prints.

    A scheduled turn first makes the slots missing before it, in order. A late turn whose slot a
    later one has made does nothing.
    """
    if after is not None and (missed := why_not_repeated(after, read_settings(settings))):
        say(missed)
        return {"missed": missed}
    if is_deployed() and (later := _already_run(db, at, settings)):
        say(later)
        return {"made": later}

    def work() -> TurnResult:
        chosen = read_settings(settings)
        when = slot_of(at, chosen)
        if is_deployed() and data is None:
            make_missing(
                db, when, chosen, every=None if every_minutes is None else pd.Timedelta(minutes=every_minutes),
                part=lambda name, slots, work: as_task(name, work, run_name=f"{name} {slots}"),
            )  # fmt: skip
        return complete_turn(
            db, when, settings=chosen, data=data, requests=jobs or [], report=report, own_end=own_end,
            run_id=run_id, fan=tasks_of, show=SHOW.get(), run=run_as_task,
            emit=lambda settled: emit_alarms(settled, run=run_id or run_id_of(when)),
        )  # fmt: skip

    result = run_with_retries(work, label="turn-tries")
    _publish(db, result, read_settings(settings))
    return dict(result.answer())


def _already_run(db: Path, at: datetime | None, settings: Path | None) -> str:
    """Return a message if a later turn has already run the slot of this late turn; "" if none has."""
    chosen = read_settings(settings)
    when = slot_of(at, chosen)
    if not db.exists() or slot_of(now(), chosen) <= when:
        return ""
    with open_reader(db) as store:
        return f"turn {time_name(when)} was done by a later run" if is_made(store, when) else ""


#: Tables of a turn in Prefect: by key the part of the turn's answer, and the columns that fit a page.
TABLES_OF_A_TURN: dict[str, tuple[str, tuple[str, ...]]] = {
    "decisions": (
        "decisions",
        ("job", "market", "on_demand", "spot", "slot_end", "expected_cost_usd", "saved_share", "late_probability"),
    ),
    "leaderboard": (
        "leaderboard",
        ("policy", "jobs", "mean_cost_usd", "saved_share", "on_time", "given_up", "gap_to_hindsight", "weight"),
    ),
    "accuracy": (
        "forecast_errors",
        ("variable", "model", "step", "n", "mae", "mae_last", "skill_pinball", "verdict"),
    ),
}  # fmt: skip
#: Most rows of such a table.
MOST_ROWS = 50


def _publish(db: Path, result: TurnResult, settings: Settings) -> None:
    """Publish a turn as Prefect artifacts: a text with the decisions and forecast errors, and its tables for a reader of pages."""
    answer: dict[str, Any] = dict(result.answer())
    decisions = answer["decisions"]
    create_markdown_artifact(
        key=artifact_key(db, "turn"),
        markdown=markdown_of([*decided_blocks(decisions), *turn_blocks(answer, planner=settings.planner)]),
        description=f"turn at {utc(result.at)} UTC",
    )
    for key, (part, columns) in TABLES_OF_A_TURN.items():
        if rows := answer[part]:
            shown = [{column: row[column] for column in columns} for row in rows[:MOST_ROWS]]
            more = f", {MOST_ROWS} of {len(rows)} rows" if len(rows) > MOST_ROWS else ""
            create_table_artifact(
                table=shown, key=artifact_key(db, key), description=f"{key} of {result.run_id}{more}"
            )
