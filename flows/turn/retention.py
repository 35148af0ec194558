"""Rows to keep by the settings: those that turns, backfills and replays of jobs still read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from slackwater.flows.clock import now
from slackwater.flows.command import say
from slackwater.flows.config import Settings
from slackwater.flows.turn.context import Turn
from slackwater.flows.turn.pool import read_pool
from slackwater.flows.turn.report.recent_errors import RECENT, measured_window
from slackwater.optimization.selection.learned import REPLAYED_JOBS
from slackwater.warehouse.exchange import compact
from slackwater.warehouse.store.connection import open_store
from slackwater.warehouse.store.retention import Retention


def retention_of(turn: Turn) -> Retention:
    """Return how long rows are kept in full, and the slots in which the planner's forecasts stay.

    Those are the slots of every job except the jobs on which no new policy will be replayed (M5.4).
    Ages are at least those that the figures of accuracy read (M6.5).
    """
    settings, pool = turn.settings, read_pool(turn)
    never = {
        job
        for group in (pool, pool.movers)
        for job in group.rounds.jobs[: max(0, len(group.rounds.jobs) - REPLAYED_JOBS)]
    }
    jobs = [job for job in turn.jobs() if job.request.name not in never]
    ages = settings.retention
    read = RECENT + measured_window(settings) + settings.horizon * pd.Timedelta(minutes=settings.step_minutes)
    return Retention(
        fitted=pd.Timedelta(days=ages.fitted_days),
        forecasts=max(read, pd.Timedelta(days=ages.forecasts_days)),
        accuracy=max(read, pd.Timedelta(days=ages.accuracy_days)),
        planner=settings.planner,
        spans=tuple((job.start, job.deadline) for job in jobs),
    )


def compact_by_settings(db: Path, settings: Settings, *, fitted_days: float | None = None) -> dict[str, int]:
    """Compact a warehouse, with ``fitted_days`` in place of the setting; return file size and numbers of dropped rows."""
    with open_store(db, say=say) as store:
        turn = Turn(store=store, at=now(), settings=settings, run_id="compact")
        keep = retention_of(turn)
        if fitted_days is not None:
            keep = replace(keep, fitted=pd.Timedelta(days=fitted_days))
        done = compact(store, keep=keep)
    return {
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        "bytes_saved": done.bytes_before - done.bytes_after,
        "fitted_dropped": done.dropped.fitted,
        "forecasts_dropped": done.dropped.forecasts,
        "accuracy_dropped": done.dropped.accuracy,
    }
