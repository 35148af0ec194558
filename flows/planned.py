"""The planner's forecasts in a job's slots, as they were issued (M6.1)."""

from __future__ import annotations

from flows.markets import Followed
from flows.records import StoredJob, stored_forecasts
from flows.turn import Turn
from forecasting.forecast import Forecast


def planned_forecasts(turn: Turn, followed: Followed, job: StoredJob) -> list[Forecast]:
    """The planner's vintages in a job's slots up to the turn's time, ascending."""
    end = min(job.deadline, followed.at)
    return stored_forecasts(
        turn.store, followed, turn.settings.planner, start=job.start, end=end, step=job.step
    )
