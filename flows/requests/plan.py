"""What the candidates of a request are expected to cost and when they finish: screened all, planned a few (M9.4, M4, M6.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from flows.jobs.record import PeerReader, record_start
from flows.requests.candidates import Candidate, OnDemand
from flows.turn.answer import ready
from flows.turn.context import Turn
from flows.turn.decide import Decision, OpenJob, decide, open_job
from flows.turn.forecast import forecasts_of
from flows.turn.markets import Followed, step_of
from optimization.policies.contract import Policy
from optimization.replay.risk import Expected
from optimization.trials.misjudged import Misjudged

#: Candidates of one GPU model and one number of GPUs an instance that are planned, so that others are looked at too.
MOST_OF_A_KIND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """A candidate with what on-demand alone would do at the median and at the low end, and a rough cost with spot.

    ``cost_usd`` is that of the widest width for as long as the median needs, spot as over the last day: for ranking only.
    """

    candidate: Candidate
    alone: OnDemand
    alone_low: OnDemand
    cost_usd: float
    hours: float

    @property
    def in_time(self) -> bool:
        """Whether on-demand alone meets the deadline at the low end of the predicted throughput."""
        return self.alone_low.late_by == 0


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


def screened_of(candidates: Sequence[Candidate], step: pd.Timedelta) -> list[Screened]:
    """Every candidate screened, in the order given."""
    found = []
    for one in candidates:
        widest = one.widths[-1]
        hours = one.request.workload.amount / widest.tokens_per_second / 3600.0
        found.append(
            Screened(
                candidate=one,
                alone=one.alone(step),
                alone_low=one.alone(step, "low"),
                cost_usd=hours * one.offer.screened_usd(widest.instances),
                hours=hours,
            )
        )
    return found


def finalists_of(screened: Sequence[Screened], *, most: int, objective: str) -> list[Screened]:
    """Of those in time the ``most`` that look best, at most `MOST_OF_A_KIND` of a kind.

    Of one market and one number of GPUs only the best batch and number format comes.
    """
    ranked = sorted((one for one in screened if one.in_time), key=lambda one: _rank(one, objective))
    kinds: dict[tuple[str, int], int] = {}
    seen: set[tuple[Followed, int]] = set()
    chosen: list[Screened] = []
    for one in ranked:
        terms = one.candidate.terms
        kind = (terms.gpu_model, terms.gpus)
        same = (one.candidate.offer.followed, one.candidate.gpus)
        if len(chosen) < most and kinds.get(kind, 0) < MOST_OF_A_KIND and same not in seen:
            kinds[kind] = kinds.get(kind, 0) + 1
            seen.add(same)
            chosen.append(one)
    return chosen


def _rank(one: Screened, objective: str) -> tuple[float, ...]:
    """Best first, what differs by less than about one per cent by the smaller batch; bfloat16 before float16."""
    cost, hours = (round(math.log(max(value, 1e-9)), 2) for value in (one.cost_usd, one.hours))
    first, second = (hours, cost) if objective == "time" else (cost, hours)
    terms = one.candidate.terms
    return first, second, one.candidate.gpus, terms.batch_size, terms.torch_dtype != "bfloat16"


def planned_of(turn: Turn, finalists: Sequence[Screened], policy: Policy[Any]) -> list[Planned]:
    """The finalists planned by one policy on the forecasts issued at their market's time; nothing later is read (M1.2)."""
    origins = {one.candidate.offer.followed: [one.candidate.offer.followed.at] for one in finalists}
    histories, prepared = ready(turn, origins, [turn.settings.planner])
    forecasts = {
        one: forecasts_of(histories[one], prepared.batches[one], settings=turn.settings) for one in origins
    }
    step, found = step_of(turn.settings), []
    peers = PeerReader(turn=turn, start=min(record_start(own[0]) for own in origins.values()))
    for one in finalists:
        followed = one.candidate.offer.followed
        running = open_job(
            one.candidate.request,
            histories[followed],
            decided={},
            forecasts=forecasts[followed],
            peers=peers.peers_of(followed),
        )
        found.append(
            Planned(
                screened=one,
                running=running,
                decision=decide(running, policy, settings=turn.settings),
                low=_at_end(turn, one.candidate, running, policy, step, "low"),
                high=_at_end(turn, one.candidate, running, policy, step, "high"),
            )
        )
    return found


def _at_end(
    turn: Turn, candidate: Candidate, running: OpenJob, policy: Policy[Any], step: pd.Timedelta, bound: str
) -> Expected:
    """What to expect where the throughput is at one end of its interval and the plan does not know."""
    true = replace(candidate.job(step, bound), value=running.job.value)
    other = replace(running, job=true, seen=replace(running.seen, windows={}, tables={}))
    wrong = Misjudged(policy=policy, believes=running.job)
    return decide(other, wrong, settings=turn.settings).expected
