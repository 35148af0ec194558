"""Scores of a turn or of many turns at once: each ended job is replayed once and adds its round in its turn (M5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from slackwater.flows.histories import try_histories
from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.ledger.reports import measured_times, reports_by_job
from slackwater.flows.ledger.rounds import jobs_scored_at, learn, scored_in_slot_model
from slackwater.flows.places import PlacedJob
from slackwater.flows.turn.context import Turn, TurnValues, peers_of
from slackwater.flows.turn.forecast import PlannedForecasts, planned_forecasts
from slackwater.flows.turn.pool import Pool
from slackwater.flows.turn.results import Results
from slackwater.flows.turn.work import Work
from slackwater.optimization.moving.definition import job_in_markets
from slackwater.optimization.replay.decision import RAISED, record_start
from slackwater.optimization.replay.score import EndedJob, ScoredJob, ended_job, score_job
from slackwater.warehouse.errors import MarketError, why_raised
from slackwater.warehouse.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFacts:
    """Facts for the scores of ascending turns: the ended jobs, each with the index of its turn and the policies to replay.

    By turn: ``left_out`` are messages on jobs that cannot be replayed, ``names`` the jobs scored by now, and ``before``
    the number of jobs scored in an attempt that was stopped or an earlier batch of turns. ``pool`` has the rounds learned by now.
    """

    turns: tuple[TurnValues, ...]
    ended: tuple[tuple[int, EndedJob, tuple[Any, ...]], ...]
    left_out: tuple[tuple[str, ...], ...]
    names: tuple[tuple[str, ...], ...]
    before: tuple[int, ...]
    pool: Pool


def read_score_facts(
    turns: Sequence[Turn], works: Sequence[Work], pool: Pool, planned: PlannedForecasts | None = None
) -> ScoreFacts:
    """Return the ended jobs that lack a policy's outcome, each with its record and the forecasts as issued then.

    A job that an older version scored in the slot model gets no further outcomes: a round compares policies
    in one model (M5.3). A job that cannot be replayed gets a message instead. ``planned`` are the forecasts
    that the forecast stage returned for these turns; None: they are read.
    """
    found: list[tuple[int, EndedJob, tuple[Any, ...]]] = []
    left_out: list[list[str]] = [[] for _ in turns]
    seen: set[str] = turns[-1].read(scored_in_slot_model) if turns else set()
    for place, (turn, work) in enumerate(zip(turns, works, strict=True)):
        jobs = [
            (job, work.places.get(job.request.name, (followed,)))
            for job, followed in work.ended
            if _counts(job)
            and job.request.name not in seen
            and pool.group(job.request).rounds.lacking(job.request.name)
        ]
        seen.update(job.request.name for job, _ in jobs)
        for (job, _), ended in zip(jobs, ended_jobs(turn, jobs, planned), strict=True):
            name = job.request.name
            if isinstance(ended, Exception):
                left_out[place].append(f"job {name} is not scored: {why_raised(ended)}")
            elif not ended.availability_observed:
                left_out[place].append(
                    f"job {name} is not scored: availability was not observed, and a replay would assume that spot is never lost"
                )
            else:
                found.append((place, ended, tuple(pool.group(job.request).lacking(name))))
    return ScoreFacts(
        turns=tuple(turns),
        ended=tuple(found),
        left_out=tuple(map(tuple, left_out)),
        names=((),) * len(turns),
        before=tuple(turns[-1].read(jobs_scored_at, [turn.at for turn in turns]) if turns else ()),
        pool=pool,
    )


def score_slots(facts: ScoreFacts, most: int | None = None) -> tuple[Results, ScoreFacts]:
    """Replay on the first ``most`` ended jobs (None: all) the policies of their kind that lack their rounds, and add the rounds.

    Returns the rows to store and the facts for the other jobs. The turns are recorded with the last of the jobs.
    """
    turns, pool = facts.turns, facts.pool
    batch = facts.ended[:most]
    calls = [{"ended": ended, "policies": policies} for _, ended, policies in batch]
    result: list[ScoredJob | str] = turns[-1].fan(score_ended, calls)
    scored: list[list[ScoredJob]] = [[] for _ in turns]
    left_out = list(map(list, facts.left_out))
    for (place, _, _), score in zip(batch, result, strict=True):
        if isinstance(score, str):
            left_out[place].append(score)
        else:
            scored[place].append(score)
    learned = learn(
        [(turn.at, of_turn) for turn, of_turn in zip(turns, scored, strict=True)],
        groups=[(score.rounds, score.learner) for score in (pool, pool.movers)],
    )
    after = replace(
        facts,
        ended=facts.ended[len(batch) :],
        left_out=tuple(map(tuple, left_out)),
        names=tuple(
            names + tuple(score.ended.run.name for score in of_turn)
            for names, of_turn in zip(facts.names, scored, strict=True)
        ),
        pool=pool.with_rounds(*learned.rounds),
    )
    if after.ended:
        return Results(learned=learned), after
    runs = []
    for turn, before, names, texts in zip(turns, facts.before, after.names, left_out, strict=True):
        for text in texts:
            turn.say(text)
        details = {"jobs": before + len(names), "learner": turn.settings.learner}
        runs.append(turn.done("score", details | ({"left_out": texts} if texts else {})))
    return Results(learned=learned, runs=tuple(runs)), after


def score_ended(ended: EndedJob, policies: Sequence[Any]) -> ScoredJob | str:
    """Return the result of `score_job`, or a message why the job cannot be replayed."""
    try:
        return score_job(ended, policies)
    except RAISED as error:
        return f"job {ended.run.name} is not scored: {why_raised(error)}"


def _counts(job: StoredJob) -> bool:
    """Return whether a job is replayed: it can resume (M2.7), and its terms did not change while it ran (M2.9)."""
    return job.request.checkpoint.resumable and not job.changed_under_way


def ended_jobs(
    turn: Turn, jobs: Sequence[PlacedJob], planned: PlannedForecasts | None = None
) -> list[EndedJob | Exception]:
    """Return each job on its markets' records, with issued forecasts and reported times of instances (M12.13), or the error."""
    pairs = [(job, followed) for job, markets in jobs for followed in markets]
    if not pairs:
        return []
    forecasts = planned_forecasts(turn, pairs, planned)
    reports = turn.read(reports_by_job, [job.request.name for job, _ in jobs], known_at=turn.terms_at)
    first = record_start(min(job.start for job, _ in jobs))
    peers = peers_of(turn, [followed for _, followed in pairs], start=first)
    read = iter(try_histories(turn, [(followed, record_start(job.start)) for job, followed in pairs]))
    found: list[EndedJob | Exception] = []
    for job, markets in jobs:
        records = [(followed, next(read)) for followed in markets]
        if unread := [history for _, history in records if isinstance(history, MarketError)]:
            found.append(unread[0])
            continue
        # Markets read at their own ends may have begun after the job; only its home must cover it.
        home = markets[0] if job.request.market is not None else None
        known = {
            followed: history
            for followed, history in records
            if isinstance(history, History) and (followed is home or job.start in history.slots)
        }
        measured = job.request.model_copy(update=measured_times(reports[job.request.name]))
        try:
            found.append(
                ended_job(
                    job_in_markets(measured, tuple(known.values())),
                    job.start,
                    tuple(known.values()),
                    [forecasts[job.request.name, followed.key] for followed in known],
                    [peers[followed] for followed in known],
                )
            )
        except RAISED as error:
            found.append(error)
    return found
