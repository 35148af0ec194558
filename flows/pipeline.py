"""The Prefect flows: parameters in, one turn of the loop out. No arithmetic, and no work that is not in `flows.stages`.

``ingest``, ``forecast``, ``allocate``, ``score`` and ``pipeline`` take the logical time as a parameter and open the warehouse
themselves; only the flow's process writes it. Work is spread out in a few coarse tasks that get values and return values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.config import Settings, read_settings
from flows.frames import rows_of
from flows.jobfile import JobRequest
from flows.markets import step_of
from flows.printing import say_to_stderr
from flows.stages import allocate_stage, forecast_stage, ingest_stage, leaderboard_rows, score_stage
from flows.turn import Turn, run_id_of
from flows.whole_turn import TurnResult, whole_turn
from flows.work import work_stage
from warehouse.store import open_store

#: Tasks at the same time; the heavy libraries let go of the interpreter lock while they calculate.
WORKERS = 2
#: Tasks of one stage at most: the engine is made for tens of tasks in a flow, not for one a market or job.
TASKS_A_STAGE = 12
RUNNER: TaskRunner[PrefectFuture[Any]] = ThreadPoolTaskRunner(max_workers=WORKERS)  # type: ignore[assignment]


def tasks_of(function: Callable[..., Any], calls: Sequence[dict[str, Any]], *, label: str) -> list[Any]:
    """The engine's `Fan`: at most `TASKS_A_STAGE` Prefect tasks, results in the order of the calls."""
    unit = task(name=label, cache_policy=NO_CACHE, persist_result=False)(_called)
    size = math.ceil(len(calls) / TASKS_A_STAGE) or 1
    parts = [_Part(function, calls[i : i + size]) for i in range(0, len(calls), size)]
    return [result for future in [unit.submit(part) for part in parts] for result in future.result()]


class _Part:
    """The calls of one task, opaque to the engine: it would otherwise walk through every table looking for futures."""

    __slots__ = ("calls", "function")

    def __init__(self, function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> None:
        self.function = function
        self.calls = calls


def _called(part: _Part) -> list[Any]:
    return [part.function(**call) for call in part.calls]


@contextmanager
def opened_turn(
    db: Path, at: datetime, *, settings: Settings, own_end: bool = False, run_id: str | None = None
) -> Iterator[Turn]:
    """A turn on the warehouse at ``db``, spreading its work over Prefect tasks."""
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    when = pd.Timestamp(at).tz_convert("UTC").floor(step_of(settings))
    with open_store(db) as store:
        yield Turn(
            store=store,
            at=when,
            settings=settings,
            run_id=run_id or run_id_of(when),
            own_end=own_end,
            fan=tasks_of,
            say=say_to_stderr,
        )


@flow(name="ingest", retries=2, retry_delay_seconds=10, task_runner=RUNNER)
def ingest(
    db: Path, at: datetime, data: Path | None = None, settings: Path | None = None
) -> dict[str, dict[str, int]]:
    """Bring in what is new: the tidy tables in ``data``, or the simulated market up to ``at``."""
    with opened_turn(db, at, settings=read_settings(settings)) as turn:
        return ingest_stage(turn, data)


@flow(name="forecast", task_runner=RUNNER)
def forecast(
    db: Path, at: datetime, settings: Path | None = None, own_end: bool = False
) -> list[dict[str, Any]]:
    """Issue forecasts at ``at``, fill in those that past slots lack, and measure them; returns the errors."""
    with opened_turn(db, at, settings=read_settings(settings), own_end=own_end) as turn:
        return rows_of(forecast_stage(turn, work_stage(turn, [])).accuracy)


@flow(name="allocate", task_runner=RUNNER)
def allocate(
    db: Path, at: datetime, settings: Path | None = None, own_end: bool = False
) -> list[dict[str, Any]]:
    """Decide the slot at ``at`` for every running job; needs the forecasts of that time."""
    with opened_turn(db, at, settings=read_settings(settings), own_end=own_end) as turn:
        return allocate_stage(turn, work_stage(turn, []))


@flow(name="score", task_runner=RUNNER)
def score(
    db: Path, at: datetime, settings: Path | None = None, own_end: bool = False
) -> list[dict[str, Any]]:
    """Replay the pool on every job that has ended by ``at`` and update the selection; returns the leaderboard."""
    with opened_turn(db, at, settings=read_settings(settings), own_end=own_end) as turn:
        score_stage(turn, work_stage(turn, []))
        return leaderboard_rows(turn)


@flow(name="pipeline", task_runner=RUNNER)
def pipeline(
    db: Path,
    at: datetime,
    data: Path | None = None,
    jobs: list[dict[str, Any]] | None = None,
    report: Path = Path("reports/report.html"),
    settings: Path | None = None,
    own_end: bool = False,
    run_id: str | None = None,
) -> dict[str, Any]:
    """One whole turn of the loop; returns the object that ``slackwater run --json`` prints."""
    requests = [JobRequest.model_validate(job) for job in jobs or []]
    with opened_turn(db, at, settings=read_settings(settings), own_end=own_end, run_id=run_id) as turn:
        result = whole_turn(turn, data=data, requests=requests, report=report)
    _publish(result)
    return result.answer()


def _publish(result: TurnResult) -> None:
    """The tables of a turn as Prefect artifacts."""
    answer = result.answer()
    for key in ("decisions", "leaderboard", "accuracy"):
        if answer[key]:
            create_table_artifact(
                table=answer[key][:50], key=f"slackwater-{key}", description=f"{key} of {result.run_id}"
            )
