"""State of jobs: open jobs at the time of a turn (M2.4), and jobs on records with the forecasts of earlier turns (M5.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from slackwater.flows.following import FollowedMarket, step_of
from slackwater.flows.histories import read_all, try_histories
from slackwater.flows.ledger.decisions import JobLedger, placements_of, read_ledger
from slackwater.flows.ledger.endings import Ending
from slackwater.flows.ledger.open_job import OpenJob, open_job
from slackwater.flows.places import PlacedJob
from slackwater.flows.turn.context import Turn, peers_of
from slackwater.flows.turn.forecast import forecasts_of, planned_forecasts, ready
from slackwater.flows.turn.pool import Deciders
from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.job.request import JobRequest
from slackwater.optimization.moving.definition import job_in_markets
from slackwater.optimization.replay.decision import RAISED, record_start
from slackwater.optimization.replay.score import EndedJob, ended_job
from slackwater.warehouse.errors import MarketError
from slackwater.warehouse.history import History
from slackwater.warehouse.ratings import known_ratings

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
    rated = iter(turn.read(known_ratings, [(market.market, market.at) for market, _ in followed_markets]))
    found: list[OpenJob | Exception] = []
    for job, markets in jobs:
        histories, name = [next(read) for _ in markets], job.request.name
        ratings = [next(rated) for _ in markets]
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
                    ratings=ratings,
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


# ---
# Jobs on the records of their markets to the deadline, with the forecasts that turns would have issued (M5.1).


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketRecords:
    """Histories of markets and of their peers, and the forecasts by slot of issue."""

    histories: Mapping[FollowedMarket, History]
    peers: Mapping[FollowedMarket, Sequence[History]]
    forecasts: Mapping[FollowedMarket, Mapping[pd.Timestamp, Forecast]]

    def ended_job(
        self, request: JobRequest, start: pd.Timestamp, places: Sequence[FollowedMarket] | None = None
    ) -> EndedJob:
        """Return a placed request that begins at ``start``, in ``places`` (None: in all markets); raises as `ended_job` does."""
        places = list(self.histories) if places is None else places
        histories = [self.histories[place] for place in places]
        job = job_in_markets(request, histories)
        grid = pd.date_range(start, periods=job.job.deadline_slots, freq=histories[0].step)
        issued = [
            [own[slot] for slot in grid if slot in own]
            for own in (self.forecasts.get(place, {}) for place in places)
        ]
        return ended_job(job, start, histories, issued, [self.peers[place] for place in places])


def read_records(
    turn: Turn,
    slots: Mapping[FollowedMarket, Sequence[pd.Timestamp]],
    *,
    planner: str | None,
    histories: Mapping[FollowedMarket, History] | None = None,
) -> MarketRecords:
    """Return the records of markets, with the forecasts of ``planner`` (None: none) in the observed of their ascending ``slots``.

    ``histories`` are read from the record of the first slot on unless given.
    """
    first = record_start(min(own[0] for own in slots.values()))
    if histories is None:
        read = read_all(turn, [(place, first) for place in slots])
        histories = dict(zip(slots, read, strict=True))
    peers = peers_of(turn, list(slots), start=first)
    inside = {place: [slot for slot in own if slot in histories[place].slots] for place, own in slots.items()}
    inside = {place: own for place, own in inside.items() if own and planner is not None}
    forecasts: dict[FollowedMarket, dict[pd.Timestamp, Forecast]] = {}
    if inside and planner is not None:
        known, prepared = ready(turn, inside, [planner])
        for place in inside:
            issued = forecasts_of(
                known[place],
                prepared.batches[place],
                settings=turn.settings,
                horizon=turn.settings.planning_horizon,
            )
            forecasts[place] = {forecast.issued_at: forecast for forecast in issued}
    return MarketRecords(histories=histories, peers=peers, forecasts=forecasts)
