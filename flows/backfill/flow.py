"""The flow ``backfill``: a single flow run processes many slots, so Prefect stores one run instead of thousands."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from slackwater.flows.backfill.run import Backfill, Reprocess, SlotRange, StageOutcome, stretch_of
from slackwater.flows.backfill.run import backfill as make
from slackwater.flows.clock import now
from slackwater.flows.command import DEFAULT_DB, progress, say
from slackwater.flows.config import Settings, read_settings
from slackwater.flows.runs import Data, Db, SettingsFile, as_task, named_flow, run_name, utc_time
from slackwater.flows.turn.following import step_of
from slackwater.warehouse.errors import StoreError

#: Pause in seconds between two chunks, with the warehouse released: longer than the retry interval
#: of a waiting writer.
BREATH = 0.6
#: Time limit of a backfill in seconds; results of finished slots remain stored.
TIMEOUT = 24 * 3600


@named_flow("backfill", run_name=run_name("backfill"), timeout_seconds=TIMEOUT)
def backfill(
    start: Annotated[datetime, Field(description="First slot, UTC unless it says otherwise.")],
    end: Annotated[datetime, Field(description="Last slot.")],
    db: Db = DEFAULT_DB,
    step_minutes: Annotated[
        int | None, Field(description="Minutes between slots; by default every slot.")
    ] = None,
    reprocess: Annotated[
        Reprocess,
        Field(description="Stages that are made: never tried, those and failed ones, or every one."),
    ] = "missing",
    backwards: Annotated[bool, Field(description="Whether the newest slots come first.")] = False,
    stages: Annotated[
        list[str] | None,
        Field(description="ingest, forecast, allocate or score; by default all."),
    ] = None,
    data: Data = None,
    settings: SettingsFile = None,
    strict: Annotated[
        bool, Field(description="Whether the run fails if a stage of a slot has failed.")
    ] = True,
) -> dict[str, Any]:
    """Run the stages of the slots from ``start`` to ``end``.

    The returned ``answer`` counts stages by outcome: made, kept, failed and waiting. ``slots``
    lists the slots that had stages to run.

    A failed stage does not undo finished slots. With ``strict``, the flow then fails with the first
    reason (`StoreError`).
    """
    chosen = read_settings(settings)
    stretch = stretch_between(
        utc_time(start), utc_time(end), chosen, step_minutes=step_minutes, reprocess=reprocess,
        backwards=backwards, stages=tuple(stages or ()),
    )  # fmt: skip
    outcomes = run_backfill(db, stretch, chosen, data=data)
    answer = backfill_answer(stretch, outcomes)
    if answer["failed"] and strict:
        first = next(one for one in outcomes if one.reasons)
        stage, reason = next(iter(first.reasons.items()))
        raise StoreError(
            f"{answer['failed']} stages of {len(outcomes)} slots failed, the first: {stage} at {first.plan.at}: {reason}",
            remedy="the other slots are kept; mend the cause and run it again with reprocess = failed",
        )
    return {"answer": answer, "slots": [one.row() for one in outcomes if one.plan.todo]}


def stretch_between(
    start: pd.Timestamp,
    end: pd.Timestamp,
    settings: Settings,
    *,
    step_minutes: int | None,
    reprocess: str,
    backwards: bool,
    stages: tuple[str, ...],
) -> SlotRange:
    """Return the slot range of a command or a flow run, aligned to the grid of the settings."""
    return stretch_of(
        start, end, slot=step_of(settings), stages=stages, reprocess=reprocess, backwards=backwards,
        step=None if step_minutes is None else pd.Timedelta(minutes=step_minutes),
    )  # fmt: skip


def run_backfill(
    db: Path, stretch: SlotRange, settings: Settings, *, data: Path | None
) -> list[StageOutcome]:
    """Run a backfill with at most two processes and pause between chunks for live turns."""
    done = 0
    with progress("stages", len(stretch.slots()) * len(stretch.stages)) as tell:

        def made(pieces: int) -> None:
            nonlocal done
            done += pieces
            tell(done)

        return make(
            Backfill(
                db=db,
                stretch=stretch,
                settings=settings,
                data=data,
                workers=min(2, os.cpu_count() or 1),
                say=say,
                progress=made,
                pause=lambda: time.sleep(BREATH),
                part=lambda name, slots, work: as_task(name, work, run_name=f"{name} {slots}"),
                clock=now(),
            )
        )


def backfill_answer(stretch: SlotRange, outcomes: list[StageOutcome]) -> dict[str, Any]:
    """Count the outcomes of a backfill by state."""
    became = [state for one in outcomes for state in one.became.values()]
    return {
        "from": stretch.start,
        "to": stretch.end,
        "step_minutes": stretch.step / pd.Timedelta(minutes=1),
        "stages": list(stretch.stages),
        "reprocess": stretch.reprocess,
        "slots": len(outcomes),
        **{state: became.count(state) for state in ("made", "kept", "failed", "waiting")},
    }
