"""The flow ``backfill``: a single flow run processes many slots, so Prefect stores one run instead of thousands."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from slackwater.flows.backfill.run import (
    Reprocess,
    backfill_answer,
    changed_slots,
    run_backfill,
    slots_between,
)
from slackwater.flows.command import DEFAULT_DB
from slackwater.flows.config import read_settings
from slackwater.flows.following import step_of
from slackwater.flows.runs import Data, Db, SettingsFile, as_task, named_flow, run_name, utc_time
from slackwater.warehouse.errors import StoreError

TIMEOUT = 24 * 3600  # Time limit of a backfill in seconds; results of finished slots remain stored


@named_flow("backfill", run_name=run_name("backfill"), timeout_seconds=TIMEOUT)
def backfill(
    start: Annotated[datetime, Field(description="First slot, UTC unless it has an offset.")],
    end: Annotated[datetime, Field(description="Last slot.")],
    db: Db = DEFAULT_DB,
    step_minutes: Annotated[
        int | None, Field(description="Minutes between slots; by default every slot.")
    ] = None,
    reprocess: Annotated[
        Reprocess, Field(description="Stages to run: never tried, never tried or failed, or all.")
    ] = "missing",
    backwards: Annotated[bool, Field(description="Whether the newest slots run first.")] = False,
    stages: Annotated[
        list[str] | None, Field(description="ingest, forecast, allocate or score; by default all.")
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
    slot_range = slots_between(
        utc_time(start), utc_time(end), slot=step_of(chosen), reprocess=reprocess,
        step=None if step_minutes is None else pd.Timedelta(minutes=step_minutes),
        backwards=backwards, stages=tuple(stages or ()),
    )  # fmt: skip
    outcomes = run_backfill(
        db, slot_range, chosen, data=data,
        part=lambda name, slots, work: as_task(name, work, run_name=f"{name} {slots}"),
    )  # fmt: skip
    answer = backfill_answer(slot_range, outcomes)
    if answer["failed"] and strict:
        first = next(outcome for outcome in outcomes if outcome.reasons)
        stage, reason = next(iter(first.reasons.items()))
        raise StoreError(
            f"{answer['failed']} stages of {len(outcomes)} slots failed, the first: {stage} at {first.plan.at}: {reason}",
            remedy="the other slots are stored; remove the cause and run it again with reprocess = failed",
        )
    return {"answer": answer, "slots": changed_slots(outcomes)}
