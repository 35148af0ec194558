"""What finalists are expected to cost and when they finish, each planned on the current forecast of its market (M9.4, M4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from forecasting.quantiles import Forecast
from optimization.job.request import job_on
from optimization.policies.contract import Policy
from optimization.replay.decision import Decision, Effort, decide
from optimization.replay.risk import Expected
from optimization.replay.standing import LiveJob, live_job
from optimization.requests.candidates import Candidate
from optimization.requests.screen import Screened
from optimization.trials.misjudged import Misjudged
from warehouse.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketNow:
    """What a market is planned on: its history up to now, the forecast issued in its last slot, and its peers (M4.6)."""

    history: History
    forecasts: Sequence[Forecast] = ()
    peers: Sequence[History] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A candidate planned on the current forecast: its first decision with what to expect, and what to expect at both ends.

    ``low`` and ``high`` are expected where the throughput is really at that end, the plan goes on believing its own H(n),
    and progress is reported every slot (`optimization.trials.misjudged`).
    """

    screened: Screened
    history: History
    live: LiveJob
    decision: Decision
    low: Expected
    high: Expected

    @property
    def candidate(self) -> Candidate:
        """The candidate that was planned."""
        return self.screened.candidate

    @property
    def expected(self) -> Expected:
        """What to expect if the throughput is as the job says."""
        return self.decision.expected


def planned_of(
    finalists: Sequence[Screened], markets: Mapping[str, MarketNow], policy: Policy[Any], effort: Effort
) -> list[Planned]:
    """The finalists planned by one policy; ``markets`` by the `Offer.key` of each, with nothing later than the offer's time."""
    found = []
    for one in finalists:
        market = markets[one.candidate.offer.key]
        live = live_job(
            *job_on(one.candidate.request, market.history),
            market.history,
            decided={},
            forecasts=market.forecasts,
            peers=market.peers,
        )
        found.append(
            Planned(
                screened=one,
                history=market.history,
                live=live,
                decision=decide(live, policy, effort),
                low=_at_end(one.candidate, live, policy, effort, "low"),
                high=_at_end(one.candidate, live, policy, effort, "high"),
            )
        )
    return found


def _at_end(candidate: Candidate, live: LiveJob, policy: Policy[Any], effort: Effort, bound: str) -> Expected:
    """What to expect where the throughput is at one end of its interval and the plan does not know."""
    true = replace(candidate.job(pd.Timedelta(live.step), bound), value=live.job.value)
    other = replace(live, job=true, seen=replace(live.seen, windows={}, tables={}))
    return decide(other, Misjudged(policy=policy, believes=live.job), effort).expected
