"""Jobs on the records of their markets to the deadline, with the forecasts that turns would have issued (M5.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from slackwater.flows.following import FollowedMarket
from slackwater.flows.turn.context import Turn
from slackwater.flows.turn.forecast import forecasts_of, ready
from slackwater.flows.turn.markets.histories import peers_of, read_all
from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.job.request import JobRequest
from slackwater.optimization.moving.definition import job_in_markets
from slackwater.optimization.replay.decision import record_start
from slackwater.optimization.replay.score import EndedJob, ended_job
from slackwater.warehouse.history import History


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
