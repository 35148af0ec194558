"""The score stage of one turn or of many at once: each job that ended is replayed once, and adds its round in its turn (M5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flows.ledger.jobs import StoredJob
from flows.ledger.rounds import save_scored
from flows.ledger.runs import save_runs
from flows.turn.context import Turn
from flows.turn.markets import Followed, peers_of, planned_forecasts, read_all
from flows.turn.work import Pool, Work
from optimization.job.request import job_on
from optimization.replay.decision import record_start
from optimization.replay.score import EndedJob, Scored, ended_job, score_job


def score_jobs(turns: Sequence[Turn], works: Sequence[Work], pool: Pool) -> tuple[list[list[str]], Pool]:
    """Replay the pool on every job that ended and add a round for each, turn by turn.

    The names of the jobs of each turn, and the pool with what it has learned. Of a job that has a round already those policies are
    replayed that it lacks: they are new in the pool.
    """
    calls: list[dict[str, Any]] = []
    sizes: list[int] = []
    seen: set[str] = set()
    policies = dict(zip(pool.names, pool.policies, strict=True))
    for turn, work in zip(turns, works, strict=True):
        jobs = [
            pair
            for pair in work.ended
            if _counts(pair[0])
            and pair[0].request.name not in seen
            and pool.rounds.lacking(pair[0].request.name)
        ]
        seen.update(job.request.name for job, _ in jobs)
        calls += [
            {
                "ended": ended,
                "policies": [policies[name] for name in pool.rounds.lacking(job.request.name)],
            }
            for (job, _), ended in zip(jobs, _ended(turn, work.ended, jobs), strict=True)
        ]
        sizes.append(len(jobs))
    scored: list[Scored] = turns[-1].fan(score_job, calls)
    kept: list[list[Scored]] = []
    for size in sizes:
        kept.append(scored[:size])
        scored = scored[size:]
    done = [[one.ended.job.name for one in own] for own in kept]
    store = turns[-1].store
    with store.transaction():
        rounds = save_scored(
            store,
            [(turn.at, own) for turn, own in zip(turns, kept, strict=True)],
            rounds=pool.rounds,
            learner=pool.learner,
        )
        save_runs(
            store,
            [
                turn.done("score", {"jobs": len(own), "learner": turn.settings.learner})
                for turn, own in zip(turns, done, strict=True)
            ],
        )
    return done, pool.learned(rounds)


def _counts(job: StoredJob) -> bool:
    """Whether the pool may run a job; of one that cannot resume there is nothing to learn (M2.7)."""
    return job.request.checkpoint.resumable


def _ended(
    turn: Turn, ended: Sequence[tuple[StoredJob, Followed]], jobs: Sequence[tuple[StoredJob, Followed]]
) -> list[EndedJob]:
    if not jobs:
        return []
    forecasts = planned_forecasts(turn, jobs)
    peers = peers_of(
        turn,
        [followed for _, followed in jobs],
        start=record_start(min(job.start for job, _ in ended)),
    )
    histories = read_all(turn, [(followed, record_start(job.start)) for job, followed in jobs])
    return [
        ended_job(*job_on(job.request, history), history, forecasts[job.request.name], peers[followed])
        for (job, followed), history in zip(jobs, histories, strict=True)
    ]
