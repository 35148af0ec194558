"""Scores of a turn or of many turns at once: each ended job is replayed once and adds its round in its turn (M5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.ledger.records import learn
from slackwater.flows.turn.context import (
    PlannedForecasts,
    Pool,
    Turn,
    TurnValues,
    Work,
    peers_of,
    planned_forecasts,
    read_all,
    try_histories,
)
from slackwater.flows.turn.following import Followed
from slackwater.flows.turn.results import Results
from slackwater.optimization.job.request import job_on
from slackwater.optimization.moving.definition import MultiMarketPolicy
from slackwater.optimization.moving.score import EndedMovable, ended_movable, score_movable
from slackwater.optimization.moving.terms import job_in_markets
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.replay.decision import RAISED, record_start
from slackwater.optimization.replay.score import EndedJob, Scored, ended_job, score_job
from slackwater.warehouse.errors import MarketError, why_raised


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFacts:
    """Facts for the scores of ascending turns: by turn the ended jobs to replay, and messages on jobs that cannot be.

    ``pool`` has the rounds learned before these turns.
    """

    turns: tuple[TurnValues, ...]
    ended: tuple[tuple[EndedJob | EndedMovable, ...], ...]
    left_out: tuple[tuple[str, ...], ...]
    pool: Pool


def read_score_facts(
    turns: Sequence[Turn], works: Sequence[Work], pool: Pool, planned: PlannedForecasts | None = None
) -> ScoreFacts:
    """Return the ended jobs that lack a policy's outcome, each with its record and the forecasts as issued then.

    A job that cannot be replayed gets a message instead. ``planned`` are the forecasts that the
    forecast stage returned for these turns; None: they are read.
    """
    found: list[list[EndedJob | EndedMovable]] = []
    left_out: list[list[str]] = []
    seen: set[str] = set()
    for turn, work in zip(turns, works, strict=True):
        jobs = [
            (job, followed)
            for job, followed in work.ended
            if _counts(job)
            and job.request.name not in seen
            and pool.group(job.request).rounds.lacking(job.request.name)
        ]
        seen.update(job.request.name for job, _ in jobs)
        own = [pair for pair in jobs if not pair[0].request.may_move]
        alone = dict(
            zip((job.request.name for job, _ in own), ended_jobs(turn, work.ended, own, planned), strict=True)
        )
        found.append([])
        left_out.append([])
        for job, _ in jobs:
            name, moves = job.request.name, job.request.may_move
            ended = _ended_movable(turn, job, work.places[name], planned) if moves else alone[name]
            if isinstance(ended, Exception):
                left_out[-1].append(f"job {name} is not scored: {why_raised(ended)}")
                continue
            windows = ended.windows if isinstance(ended, EndedMovable) else (ended.window,)
            if not all(window.availability_observed for window in windows):
                left_out[-1].append(
                    f"job {name} is not scored: availability was not observed, and a replay would assume that spot is never lost"
                )
                continue
            found[-1].append(ended)
    return ScoreFacts(
        turns=tuple(turns), ended=tuple(map(tuple, found)), left_out=tuple(map(tuple, left_out)), pool=pool
    )


def score_slots(facts: ScoreFacts) -> tuple[Results, list[list[str]], Pool]:
    """Replay the pool on every ended job, multi-market policies on multi-market jobs, and add a round for each.

    Returns the rows to store, the names of the scored jobs of each turn, and the pool with the new
    rounds. On a job with a round, only policies missing from it are replayed: they are new in the
    pool.
    """
    turns, pool = facts.turns, facts.pool
    every = [one for own in facts.ended for one in own]
    fan = turns[-1].fan
    alone = [
        {"ended": one, "policies": pool.lacking(one.job.name)} for one in every if isinstance(one, EndedJob)
    ]
    moving = [
        {"ended": one, "movers": pool.movers.lacking(one.job.job.name)}
        for one in every
        if isinstance(one, EndedMovable)
    ]
    made: dict[bool, Iterator[Scored | str]] = {
        False: iter(fan(score_ended, alone)),
        True: iter(fan(score_ended_movable, moving)),
    }
    scored: list[list[Scored]] = []
    runs = []
    for turn, own, unread in zip(turns, facts.ended, facts.left_out, strict=True):
        found = [next(made[isinstance(one, EndedMovable)]) for one in own]
        texts = [*unread, *(one for one in found if isinstance(one, str))]
        for text in texts:
            turn.say(text)
        scored.append([one for one in found if isinstance(one, Scored)])
        details = {"jobs": len(scored[-1]), "learner": turn.settings.learner}
        runs.append(turn.done("score", details | ({"left_out": texts} if texts else {})))
    learned = learn(
        [(turn.at, own) for turn, own in zip(turns, scored, strict=True)],
        groups=[(one.rounds, one.learner) for one in (pool, pool.movers)],
    )
    names = [[one.ended.job.name for one in own] for own in scored]
    return Results(learned=learned, runs=tuple(runs)), names, pool.learned(*learned.rounds)


def score_ended(ended: EndedJob, policies: Sequence[Policy[Any]]) -> Scored | str:
    """Return the result of `score_job`, or a message why the job cannot be replayed."""
    try:
        return score_job(ended, policies)
    except RAISED as error:
        return f"job {ended.job.name} is not scored: {why_raised(error)}"


def score_ended_movable(ended: EndedMovable, movers: Sequence[MultiMarketPolicy[Any]]) -> Scored | str:
    """Return the result of `score_movable`, or a message why the multi-market job cannot be replayed."""
    try:
        return score_movable(ended, movers)
    except RAISED as error:
        return f"job {ended.job.job.name} is not scored: {why_raised(error)}"


def _counts(job: StoredJob) -> bool:
    """Return whether a job is replayed: it can resume (M2.7), and its terms did not change while it ran (M2.9)."""
    return job.request.checkpoint.resumable and not job.changed_under_way


def ended_jobs(
    turn: Turn,
    ended: Sequence[tuple[StoredJob, Followed]],
    jobs: Sequence[tuple[StoredJob, Followed]],
    planned: PlannedForecasts | None = None,
) -> list[EndedJob | Exception]:
    """Return each of ``jobs`` on its market's record with the forecasts as issued then, or the error that prevents it.

    ``ended`` are all jobs that ended by the turn; they set how far back the histories of peers are
    read.
    """
    if not jobs:
        return []
    forecasts = planned_forecasts(turn, jobs, planned)
    peers = peers_of(
        turn,
        [followed for _, followed in jobs],
        start=record_start(min(job.start for job, _ in ended)),
    )
    histories = try_histories(turn, [(followed, record_start(job.start)) for job, followed in jobs])
    found: list[EndedJob | Exception] = []
    for (job, followed), history in zip(jobs, histories, strict=True):
        if isinstance(history, MarketError):
            found.append(history)
            continue
        try:
            own = job_on(job.request, history)
            found.append(ended_job(*own, history, forecasts[job.request.name, followed.key], peers[followed]))
        except RAISED as error:
            found.append(error)
    return found


def _ended_movable(
    turn: Turn, job: StoredJob, places: Sequence[Followed], planned: PlannedForecasts | None
) -> EndedMovable | Exception:
    """Return an ended multi-market job on the histories of its markets with the forecasts as issued then."""
    start, home = record_start(job.start), job.request.market is not None
    try:
        read = read_all(turn, [(one, start) for one in places])
    except MarketError as error:
        return error
    # Markets read at their own ends may have begun after the job.
    kept = [k for k, one in enumerate(read) if (home and not k) or job.start in one.slots]
    places, histories = [places[k] for k in kept], [read[k] for k in kept]
    forecasts = planned_forecasts(turn, [(job, one) for one in places], planned)
    peers = peers_of(turn, places, start=start)
    try:
        return ended_movable(
            job_in_markets(job.request, histories),
            job.start,
            histories,
            [forecasts[job.request.name, one.key] for one in places],
            [peers[one] for one in places],
        )
    except RAISED as error:
        return error
