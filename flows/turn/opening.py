"""State of jobs at the time of a turn, for every command that needs it, from decisions, reports and markets (M2.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pandas as pd

from slackwater.flows.following import FollowedMarket, step_of
from slackwater.flows.ledger.decisions import JobLedger, placements_of, read_ledger
from slackwater.flows.ledger.endings import Ending
from slackwater.flows.ledger.open_job import OpenJob, open_job
from slackwater.flows.turn.context import Turn
from slackwater.flows.turn.forecast import forecasts_of, planned_forecasts, ready
from slackwater.flows.turn.markets.histories import peers_of, try_histories
from slackwater.flows.turn.markets.places import PlacedJob
from slackwater.flows.turn.pool import Deciders
from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.replay.decision import RAISED, record_start
from slackwater.warehouse.errors import MarketError
from slackwater.warehouse.history import History

#: Forecasts by job name and market (`FollowedMarket.key`).
JobForecasts = Mapping[tuple[str, str], Sequence[Forecast]]


def open_jobs(
    turn: Turn,
    jobs: Sequence[PlacedJob],
    *,
    ledger: JobLedger | None = None,
    forecasts: JobForecasts | None = None,
    by: Deciders | None = None,
) -> list[OpenJob | Exception]:
    """Return the state of each job at the time of its markets, or the error that prevents it, in the order of ``jobs``.

    With ``forecasts`` a job can be decided: it gets the record of its markets and of their peers.
    Without forecasts only its state is computed. ``by`` are the policies that decide, and why they
    were chosen. ``ledger`` is read from the store where it is None.
    """
    ledger = turn.read(read_ledger, [job.request.name for job, _ in jobs]) if ledger is None else ledger
    first = record_start(min((job.start for job, _ in jobs), default=turn.at))
    followed_markets = [
        (market, min(market.at, job.start if forecasts is None else record_start(job.start)))
        for job, markets in jobs
        for market in markets
    ]
    peers = (
        {} if forecasts is None else peers_of(turn, [request for request, _ in followed_markets], start=first)
    )
    read = iter(try_histories(turn, followed_markets))
    found: list[OpenJob | Exception] = []
    for job, markets in jobs:
        histories, name = [next(read) for _ in markets], job.request.name
        if unread := [history for history in histories if isinstance(history, MarketError)]:
            found.append(unread[0])
            continue
        try:
            found.append(
                open_job(
                    job.request,
                    [history for history in histories if isinstance(history, History)],
                    decided=placements_of(ledger.decisions.get(name, ())),
                    forecasts=[(forecasts or {}).get((name, market.key), ()) for market in markets],
                    peers=[peers.get(market, ()) for market in markets],
                    reports=ledger.reports.get(name, ()),
                    revisions=ledger.revisions.get(name, ()),
                    by=(None, "") if by is None else by.of(job.request),
                    fresh=turn.freshness,
                )
            )
        except RAISED as error:
            found.append(error)
    return found


def open_placed_job(turn: Turn, job: PlacedJob, **more: Any) -> OpenJob:
    """Return the state of one job as `open_jobs` does; raises the error that prevents it."""
    (found,) = open_jobs(turn, [job], **more)
    if isinstance(found, Exception):
        raise found
    return found


def forecasts_in_force(turn: Turn, jobs: Sequence[PlacedJob]) -> JobForecasts:
    """Return the planner's forecasts for the decision of each job; missing forecasts are computed as in a turn.

    A single-market job needs the forecasts of all its slots so far, a multi-market job those of the
    present slot. Nothing is stored.
    """
    planner, step = turn.settings.planner, step_of(turn.settings)
    issued = planned_forecasts(turn, [(job, market) for job, markets in jobs for market in markets])
    known: dict[FollowedMarket, dict[pd.Timestamp, Forecast]] = {}
    lacking: dict[FollowedMarket, set[pd.Timestamp]] = {}
    for job, markets in jobs:
        for key in markets:
            by_slot = known.setdefault(key, {})
            by_slot |= {forecast.issued_at: forecast for forecast in issued[job.request.name, key.key]}
            needed = [key.at] if job.request.may_move else pd.date_range(job.start, key.at, freq=step)
            lacking.setdefault(key, set()).update(needed)
    origins = {key: sorted(slots - set(known[key])) for key, slots in lacking.items()}
    origins = {key: slots for key, slots in origins.items() if slots}
    if origins:
        histories, prepared = ready(turn, origins, [planner])
        for key in origins:
            result = forecasts_of(histories[key], prepared.batches[key], settings=turn.settings)
            known[key] |= {forecast.issued_at: forecast for forecast in result}
    return {
        (job.request.name, market.key): [known[market][slot] for slot in sorted(known[market])]
        for job, markets in jobs
        for market in markets
    }


def computed_ending(turn: Turn, placed: PlacedJob, ledger: JobLedger) -> Ending | None:
    """Return how a job ended by its decisions; None if its market cannot be read."""
    job, markets = placed
    try:
        there = tuple(replace(market, at=min(market.at, job.deadline)) for market in markets)
        running = open_placed_job(turn, (job, there), ledger=ledger)
    except RAISED:
        return None
    share = max(0.0, running.live.progress().done / running.run.workload)
    state: Literal["finished", "missed"] = "finished" if share >= 1.0 - 1e-9 else "missed"
    return Ending(state=state, share=share, measured=False)
