"""Forecasts of the planner that were issued in the slots of jobs (M6.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.turn.context import Turn
from slackwater.flows.turn.following import Followed
from slackwater.forecasting.quantiles import Forecast
from slackwater.warehouse.issued import read_vintages

#: Forecasts of the planner by market key and source, ascending.
PlannedForecasts = Mapping[tuple[str, str], Sequence[Forecast]]


def planned_forecasts(
    turn: Turn, jobs: Sequence[tuple[StoredJob, Followed]], issued: PlannedForecasts | None = None
) -> dict[tuple[str, str], list[Forecast]]:
    """Return by job and market (`Followed.key`) the forecasts of the planner (M6.1).

    They are those issued in the job's slots, up to the market's time. ``issued`` are forecasts in
    memory, as the forecast stage of the same jobs returns them; None: all are read.
    """
    known = read_planned(turn, jobs) if issued is None else issued
    return {
        (job.request.name, followed.key): [
            one
            for one in known.get((followed.market.key, followed.source), ())
            if one.step == job.step and job.start <= one.issued_at <= min(job.deadline, followed.at)
        ]
        for job, followed in jobs
    }


def joined_forecasts(planned: Iterable[PlannedForecasts]) -> PlannedForecasts:
    """Return the forecasts of consecutive turns together, ascending, each once."""
    found: dict[tuple[str, str], dict[tuple[pd.Timestamp, pd.Timedelta], Forecast]] = {}
    before: PlannedForecasts | None = None
    for own in planned:
        if own is before:  # turns whose forecasts were computed together share them
            continue
        before = own
        for place, forecasts in own.items():
            found.setdefault(place, {}).update(((one.issued_at, one.step), one) for one in forecasts)
    return {place: [own[key] for key in sorted(own)] for place, own in found.items()}


def read_planned(
    turn: Turn, jobs: Iterable[tuple[StoredJob, Followed]]
) -> dict[tuple[str, str], list[Forecast]]:
    """Return the stored forecasts of the planner in the slots of some jobs on their markets."""
    by_step: dict[pd.Timedelta, list[tuple[StoredJob, Followed]]] = {}
    for job, followed in jobs:
        by_step.setdefault(job.step, []).append((job, followed))
    found: dict[tuple[str, str], list[Forecast]] = {}
    for step, own in by_step.items():
        vintages = read_vintages(
            turn.store,
            Forecast,
            markets=dict.fromkeys((followed.market, followed.source) for _, followed in own),
            models=[turn.settings.planner],
            start=min(job.start for job, _ in own),
            end=max(min(job.deadline, followed.at) for job, followed in own),
            step=step,
        )
        for (key, source, _), forecasts in vintages.items():
            found.setdefault((key, source), []).extend(forecasts)
    return found
