"""The score stage of one turn or of many at once: each job that ended is replayed once, and adds its round in its turn (M5)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from flows.jobs.record import PeerReader, record_start
from flows.ledger.records import StoredJob, planned_forecasts, save_scored
from flows.ledger.runs import RunRow, save_runs
from flows.turn.context import Calls, Staged, Turn
from flows.turn.markets import Followed, turn_history
from flows.turn.score import Scored, ended_job, score_job
from flows.turn.work import Work, pool_of
from optimization.selection.learners import learner_named


def score_turns(turns: Sequence[Turn], works: Sequence[Work]) -> Staged[list[list[str]]]:
    """Replay the pool on every job that ended and add a round for each, turn by turn; the names of the jobs of each turn."""
    policies = pool_of(turns[-1])
    names = [policy.name for policy in policies]
    calls, sizes = [], []
    seen: set[str] = set()
    for turn, work in zip(turns, works, strict=True):
        jobs = [pair for pair in work.ended if _counts(pair[0]) and pair[0].request.name not in seen]
        seen.update(job.request.name for job, _ in jobs)
        calls += [{"ended": ended, "policies": policies} for ended in _ended(turn, work.ended, jobs)]
        sizes.append(len(jobs))
    results = yield Calls(function=score_job, calls=calls, label="score")
    scored: list[Scored] = results()
    done: list[list[str]] = []
    store = turns[-1].store
    kept: list[tuple[pd.Timestamp, list[Scored]]] = []
    for turn, size in zip(turns, sizes, strict=True):
        own, scored = scored[:size], scored[size:]
        kept.append((turn.at, own))
        done.append([one.ended.job.name for one in own])
    with store.transaction():
        save_scored(store, kept, names=names, learner=learner_named(turns[-1].settings.learner))
        save_runs(
            store,
            [
                RunRow(
                    run=turn.run_id, at=turn.at, stage="score", made=turn.made,
                    details={"jobs": len(own), "learner": turn.settings.learner},
                )
                for turn, own in zip(turns, done, strict=True)
            ],
        )  # fmt: skip
    return done


def _counts(job: StoredJob) -> bool:
    """Whether the pool may run a job; of one that cannot resume there is nothing to learn (M2.7)."""
    return job.request.checkpoint.resumable


def _ended(
    turn: Turn, ended: Sequence[tuple[StoredJob, Followed]], jobs: Sequence[tuple[StoredJob, Followed]]
) -> list[object]:
    if not jobs:
        return []
    first = min(job.start for job, _ in ended)
    peers = PeerReader(turn=turn, start=record_start(first))
    found: list[object] = []
    for job, followed in jobs:
        history = turn_history(turn, followed, start=record_start(job.start))
        forecasts = planned_forecasts(turn, followed, job)
        found.append(ended_job(job.request, history, forecasts, peers.peers_of(followed)))
    return found
