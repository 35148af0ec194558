"""The allocate stage of one turn or of many at once: each job slot by slot, each decision after those before it (M2.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from flows.allocate import OpenJob, decide, is_finished, open_job
from flows.config import Settings
from flows.job_report import Report, every_report
from flows.known_past import PeerReader, record_start
from flows.markets import Followed, turn_history
from flows.planned import planned_forecasts
from flows.records import Rounds, StoredJob, allocations_of, decisions_of, save_decisions, stored_rounds
from flows.runs import RunRow, save_runs
from flows.turn import Calls, Staged, Turn
from flows.work import Work, pool_names
from forecasting.forecast import Forecast
from optimization.learner import weigh
from optimization.learners import learner_named
from optimization.plan import Allocation
from optimization.policy import Policy
from optimization.pool import policy_named
from optimization.selection import Weights, leader

#: A decision as plain values.
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    """A job at a slot that lacks a decision, the turn it belongs to (by place), and who decides and why."""

    place: int
    running: OpenJob
    policy: Policy[Any]
    why: str


def decide_turns(turns: Sequence[Turn], works: Sequence[Work]) -> Staged[list[list[Row]]]:
    """Decide the slot of every running job in each of ascending turns; a decision issued before is read back, not made again.

    The decisions of each turn, by job. The forecasts of the turns must be there, and the rounds learned before each.
    """
    reader = _Reader(turns, works)
    openings: dict[str, list[_Opening]] = {}
    rows: list[list[Row]] = [[] for _ in turns]
    for place, (turn, work) in enumerate(zip(turns, works, strict=True)):
        policy, why = reader.policy(turn)
        peers = _peers(turn, work)
        for job, followed in work.running:
            name = job.request.name
            issued = [row for row in reader.decisions(job) if pd.Timestamp(row["slot"]) == followed.at]
            if issued:
                rows[place] += issued
                continue
            running = reader.opened(turn, job, followed, peers)
            opening = _Opening(place=place, running=running, policy=policy, why=why)
            openings.setdefault(name, []).append(opening)
    calls = [
        {
            "running": [one.running for one in own],
            "policies": [one.policy for one in own],
            "settings": turns[-1].settings,
        }
        for own in openings.values()
    ]
    made: list[list[tuple[str, Row]]] = [[] for _ in turns]
    answers = yield Calls(function=decide_in_order, calls=calls, label="decide")
    for own, decided in zip(openings.values(), answers(), strict=True):
        for opening, row in zip(own, decided, strict=True):
            if row is not None:
                made[opening.place].append((opening.running.job.name, row | {"chosen_because": opening.why}))
    fresh = [_in_order(work, own) for work, own in zip(works, made, strict=True)]
    _save(turns, fresh)
    return [sorted(old + new, key=lambda row: str(row["job"])) for old, new in zip(rows, fresh, strict=True)]


def _in_order(work: Work, made: Sequence[tuple[str, Row]]) -> list[Row]:
    """A turn's new decisions in the order of its jobs."""
    by_name = dict(made)
    return [by_name[job.request.name] for job, _ in work.running if job.request.name in by_name]


def _save(turns: Sequence[Turn], made: Sequence[Sequence[Row]]) -> None:
    store = turns[-1].store
    with store.transaction():
        save_decisions(
            store, [(turn.run_id, row) for turn, own in zip(turns, made, strict=True) for row in own]
        )
        save_runs(
            store,
            [
                RunRow(
                    run=turn.run_id,
                    at=turn.at,
                    stage="allocate",
                    made=turn.made,
                    details={"decisions": len(own)},
                )
                for turn, own in zip(turns, made, strict=True)
            ],
        )


def decide_in_order(
    running: Sequence[OpenJob], policies: Sequence[Policy[Any]], settings: Settings
) -> list[Row | None]:
    """Decide a job's slots one after the other, each knowing those before it; None where it has finished its work."""
    decided: dict[int, Allocation] = {}
    rows: list[Row | None] = []
    for opened, policy in zip(running, policies, strict=True):
        one = replace(opened, decided={**opened.decided, **decided})
        if is_finished(one):
            rows.append(None)
            continue
        decision = decide(one, policy, settings=settings)
        decided[one.slot] = decision.allocation
        rows.append(decision.row())
    return rows


class _Reader:
    """What the turns of one call share: the rounds, and each job's decisions and forecasts as they were before it."""

    def __init__(self, turns: Sequence[Turn], works: Sequence[Work]) -> None:
        self._store = turns[-1].store
        self.rounds = stored_rounds(self._store, pool_names(turns[-1]))
        self._decisions: dict[str, list[Row]] = {}
        self._allocations: dict[str, Mapping[pd.Timestamp, Allocation]] = {}
        self._forecasts: dict[str, list[Forecast]] = {}
        self._reports: dict[str, list[Report]] = {}
        self._weights: list[Weights] = []
        self._first = 0
        self._last = {
            job.request.name: (turn, followed)
            for turn, work in zip(turns, works, strict=True)
            for job, followed in work.running
        }

    def policy(self, turn: Turn) -> tuple[Policy[Any], str]:
        """`policy_at`; the weights of turns that have learned from the first rounds are made in one pass over them."""
        known = self.rounds.before(turn.at)
        seen = len(known.jobs)
        if not seen or known.jobs != self.rounds.jobs[:seen]:
            return policy_at(turn, self.rounds)
        if not self._weights:
            learner = learner_named(turn.settings.learner)
            rounds, self._first = self.rounds, seen
            self._weights = weigh(learner, rounds.names, rounds.utilities, after=seen)
        if seen < self._first:
            return policy_at(turn, self.rounds)
        return _leading(self._weights[seen - self._first], seen)

    def decisions(self, job: StoredJob) -> list[Row]:
        """What was decided for a job before this call."""
        name = job.request.name
        if name not in self._decisions:
            self._decisions[name] = decisions_of(self._store, name)
            self._allocations[name] = allocations_of(self._decisions[name])
        return self._decisions[name]

    def opened(self, turn: Turn, job: StoredJob, followed: Followed, peers: PeerReader) -> OpenJob:
        """A running job at the slot to decide; of forecasts and reports only what was known by then is taken."""
        name = job.request.name
        if name not in self._forecasts:
            self._forecasts[name] = planned_forecasts(*self._last[name], job)
            self._reports[name] = every_report(self._store, [name])
        return open_job(
            job.request,
            turn_history(turn, followed, start=record_start(job.start)),
            decided=self._allocations[name],
            forecasts=self._forecasts[name],
            peers=peers.peers_of(followed),
            reports=self._reports[name],
        )


def _peers(turn: Turn, work: Work) -> PeerReader:
    first = min((job.start for job, _ in work.running), default=turn.at)
    return PeerReader(turn=turn, start=record_start(first))


def policy_at(turn: Turn, rounds: Rounds) -> tuple[Policy[Any], str]:
    """The policy that decides at the turn's time, and why: the leader of the rounds learned before (decision 3)."""
    known = rounds.before(turn.at)
    if not known.jobs:
        return policy_named(turn.settings.practice_policy), "no job has ended yet"
    return _leading(known.newest(learner_named(turn.settings.learner)), len(known.jobs))


def _leading(weights: Weights, jobs: int) -> tuple[Policy[Any], str]:
    """The policy that leads by weights learned from so many jobs, and why."""
    name = leader(weights)
    weight = float(weights.probability[list(weights.names).index(name)])
    return policy_named(name), f"leads after {jobs} jobs, weight {weight:.3f}"
