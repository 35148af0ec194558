"""The logical time of a flow run: the one it is given, else the one it was scheduled for; never the clock (M1.4)."""

from __future__ import annotations

from datetime import UTC, datetime

import pandas as pd
from prefect.context import FlowRunContext

from flows.config import Settings
from flows.markets import step_of
from warehouse.errors import SettingsError


def slot_of(at: datetime | None, settings: Settings) -> pd.Timestamp:
    """The slot of ``at``, or of the time for which the present flow run was scheduled.

    The scheduled time stays the same however late a run starts and however often it is tried again. A run that nobody
    scheduled counts as scheduled when it was made. Times without a zone are UTC. Raises `SettingsError` without either.
    """
    when = at if at is not None else scheduled_time()
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return pd.Timestamp(when).tz_convert("UTC").floor(step_of(settings))


def scheduled_time() -> datetime:
    """When the present flow run was to start; raises `SettingsError` outside of a flow run."""
    context = FlowRunContext.get()
    planned = context.flow_run.expected_start_time if context and context.flow_run else None
    if planned is None:
        raise SettingsError(
            "no logical time", expected="`at`, or a flow run with a scheduled time", remedy="give `at`"
        )
    return planned
