"""What the candidates of a request are expected to cost and when they finish: screened all, planned a few (M9.4, M4, M6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from flows.requests.offers import followed_of
from flows.turn.context import Turn
from flows.turn.decide import OpenJob, effort_of, open_job
from flows.turn.forecast import forecasts_of, ready
from flows.turn.markets import peers_of, step_of
from optimization.policies.contract import Policy
from optimization.replay.decision import Decision, decide
from optimization.replay.record import record_start
from optimization.replay.risk import Expected
from optimization.requests.candidates import Candidate
from optimization.requests.screen import Screened
from optimization.trials.misjudged import Misjudged


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A candidate planned on the current forecast: its first decision with what to expect, and what to expect at both ends.

    ``low`` and ``high`` are expected where the throughput is really at that end, the plan goes on believing its own H(n),
    and progress is reported every slot (`optimization.trials.misjudged`).
    """

    screened: Screened
    running: OpenJob
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


def planned_of(turn: Turn, finalists: Sequence[Screened], policy: Policy[Any]) -> list[Planned]:
    """The finalists planned by one policy on the forecasts issued at their market's time; nothing later is read (M1.2)."""
    origins = {followed_of(one.candidate.offer): [one.candidate.offer.at] for one in finalists}
    histories, prepared = ready(turn, origins, [turn.settings.planner])
    forecasts = {
        one: forecasts_of(histories[one], prepared.batches[one], settings=turn.settings) for one in origins
    }
    step, found = step_of(turn.settings), []
    peers = peers_of(turn, list(origins), start=min(record_start(own[0]) for own in origins.values()))
    for one in finalists:
        followed = followed_of(one.candidate.offer)
        running = open_job(
            one.candidate.request,
            histories[followed],
            decided={},
            forecasts=forecasts[followed],
            peers=peers[followed],
        )
        found.append(
            Planned(
                screened=one,
                running=running,
                decision=decide(running.live, policy, effort_of(turn.settings)),
                low=_at_end(turn, one.candidate, running, policy, step, "low"),
                high=_at_end(turn, one.candidate, running, policy, step, "high"),
            )
        )
    return found


def _at_end(
    turn: Turn, candidate: Candidate, running: OpenJob, policy: Policy[Any], step: pd.Timedelta, bound: str
) -> Expected:
    """What to expect where the throughput is at one end of its interval and the plan does not know."""
    true = replace(candidate.job(step, bound), value=running.live.job.value)
    other = replace(running.live, job=true, seen=replace(running.live.seen, windows={}, tables={}))
    wrong = Misjudged(policy=policy, believes=running.live.job)
    return decide(other, wrong, effort_of(turn.settings)).expected
