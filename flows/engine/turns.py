"""A turn on a warehouse file, opened and run; it needs no workflow engine, and the Prefect flows run the same function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd

from slackwater.flows.clock import now
from slackwater.flows.command import call_with_progress, say
from slackwater.flows.config import Settings
from slackwater.flows.ledger.stages import TurnSeconds, save_seconds
from slackwater.flows.monitoring.alarms import AlarmChanges
from slackwater.flows.monitoring.alerts import raise_alarms
from slackwater.flows.turn.context import Turn, run_id_of
from slackwater.flows.turn.stages import STAGE_NAMES, Stage, TurnProgress, TurnResult, run_stage, whole_turn
from slackwater.optimization.fan import Fan
from slackwater.optimization.job.request import JobRequest
from slackwater.warehouse.store.connection import open_store
from slackwater.warehouse.times import steady_seconds

#: Callback that receives the decisions of a turn as soon as they are issued, before the turn ends.
Show = Callable[[Sequence[Mapping[str, Any]]], None]


def show_nothing(_decisions: Sequence[Mapping[str, Any]]) -> None:
    """Ignore the decisions: the `Show` of turns that nobody watches."""


@contextmanager
def opened_turn(
    db: Path,
    at: pd.Timestamp,
    *,
    settings: Settings,
    own_end: bool = False,
    run_id: str | None = None,
    fan: Fan = call_with_progress,
    show: Show = show_nothing,
) -> Iterator[Turn]:
    """Open the warehouse at ``db`` and provide the turn of the slot ``at``."""
    with open_store(db, say=say) as store:
        yield Turn(
            store=store,
            at=at,
            settings=settings,
            run_id=run_id or run_id_of(at),
            own_end=own_end,
            fan=fan,
            say=say,
            show=show,
            clock=now(),
        )


def complete_turn(
    db: Path,
    at: pd.Timestamp,
    *,
    settings: Settings,
    data: Path | None,
    requests: Sequence[JobRequest],
    report: Path,
    own_end: bool = False,
    run_id: str | None = None,
    fan: Fan = call_with_progress,
    show: Show = show_nothing,
    run: Callable[[Stage, Turn, TurnProgress], TurnProgress] = run_stage,
    emit: Callable[[AlarmChanges], None] = lambda _: None,
) -> TurnResult:
    """Run all stages of a turn (by ``run``), check for alarms (to ``emit``), and store the seconds of each stage."""
    start, seconds = steady_seconds(), dict[str, float]()

    def time_stage(stage: Stage, turn: Turn, found: TurnProgress) -> TurnProgress:
        begin = steady_seconds()
        found = run(stage, turn, found)
        seconds[stage_name(stage)] = steady_seconds() - begin
        return found

    with opened_turn(db, at, settings=settings, own_end=own_end, run_id=run_id, fan=fan, show=show) as turn:
        result = whole_turn(turn, data=data, requests=requests, report=report, run=time_stage)
        raise_alarms(turn, emit=emit)
    took = TurnSeconds(run=result.run_id, stages=seconds, whole=steady_seconds() - start)
    with suppress(OSError):  # only a dashboard shows these times
        save_seconds(db, took)
    return result


def stage_name(stage: Stage) -> str:
    """Return the stage's name in the ledger of runs; the function name if the ledger does not record it."""
    return STAGE_NAMES.get(stage, stage.__name__)
