"""Scores of a turn or of many turns at once: each ended job is replayed once and adds its round in its turn (M5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.ledger.reports import measured_times, reports_by_job
from slackwater.flows.ledger.rounds import jobs_scored_at, learn, scored_in_slot_model
from slackwater.flows.turn.context import Turn, TurnValues, peers_of, try_histories
from slackwater.flows.turn.forecast import PlannedForecasts, planned_forecasts
from slackwater.flows.turn.markets import PlacedJob
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
    """Facts for the scores of ascending turns: by turn the ended jobs and the policies to replay on them.

    ``left_out`` are messages on jobs that cannot be replayed. ``pool`` has the rounds learned before these turns.
    ``scored`` counts the jobs that each turn has scored before, in an attempt that was stopped or an earlier batch.
    ``whole``: False for a batch that is not the last.
    """

    turns: tuple[TurnValues, ...]
    ended: tuple[tuple[tuple[EndedJob, tuple[Any, ...]], ...], ...]
    left_out: tuple[tuple[str, ...], ...]
    pool: Pool
    scored: tuple[int, ...]
    whole: bool = True

    @property
    def jobs(self) -> int:
        """Number of jobs to score."""
        return sum(map(len, self.ended))

    def first(self, jobs: int) -> ScoreFacts:
        """Return the facts of the first so many jobs; all facts if there are no more."""
        if jobs >= self.jobs:
            return self
        taken = []
        for of_turn in self.ended:
            taken.append(of_turn[: max(jobs, 0)])
            jobs -= len(of_turn)
        return replace(self, ended=tuple(taken), left_out=((),) * len(self.turns), whole=False)

    def after(self, batch: ScoreFacts, scores: SlotScores) -> ScoreFacts:
        """Return the facts of the jobs that follow a batch of the first jobs."""
        return replace(
            self,
            ended=tuple(of_turn[len(done) :] for of_turn, done in zip(self.ended, batch.ended, strict=True)),
            left_out=tuple(
                of_turn + more for of_turn, more in zip(self.left_out, scores.left_out, strict=True)
            ),
            scored=tuple(
                count + len(of_turn) for count, of_turn in zip(self.scored, scores.names, strict=True)
            ),
            pool=scores.pool,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotScores:
    """Scores of a batch of jobs: rows to store, by turn the scored jobs and the messages on the others, and the new pool."""

    results: Results
    names: tuple[tuple[str, ...], ...]
    left_out: tuple[tuple[str, ...], ...]
    pool: Pool


def read_score_facts(
    turns: Sequence[Turn], works: Sequence[Work], pool: Pool, planned: PlannedForecasts | None = None
) -> ScoreFacts:
    """Return the ended jobs that lack a policy's outcome, each with its record and the forecasts as issued then.

    A job that an older version scored in the slot model gets no further outcomes: a round compares policies
    in one model (M5.3). A job that cannot be replayed gets a message instead. ``planned`` are the forecasts
    that the forecast stage returned for these turns; None: they are read.
    """
    found: list[list[tuple[EndedJob, tuple[Any, ...]]]] = []
    left_out: list[list[str]] = []
    seen: set[str] = turns[-1].read(scored_in_slot_model) if turns else set()
    for turn, work in zip(turns, works, strict=True):
        jobs = [
            (job, work.places.get(job.request.name, (followed,)))
            for job, followed in work.ended
            if _counts(job)
            and job.request.name not in seen
            and pool.group(job.request).rounds.lacking(job.request.name)
        ]
        seen.update(job.request.name for job, _ in jobs)
        found.append([])
        left_out.append([])
        for (job, _), ended in zip(jobs, ended_jobs(turn, jobs, planned), strict=True):
            name = job.request.name
            if isinstance(ended, Exception):
                left_out[-1].append(f"job {name} is not scored: {why_raised(ended)}")
            elif not ended.availability_observed:
                left_out[-1].append(
                    f"job {name} is not scored: availability was not observed, and a replay would assume that spot is never lost"
                )
            else:
                found[-1].append((ended, tuple(pool.group(job.request).lacking(name))))
    return ScoreFacts(
        turns=tuple(turns),
        ended=tuple(map(tuple, found)),
        left_out=tuple(map(tuple, left_out)),
        pool=pool,
        scored=tuple(turns[-1].read(jobs_scored_at, [turn.at for turn in turns]) if turns else ()),
    )


def score_slots(facts: ScoreFacts) -> SlotScores:
    """Replay on every ended job the policies of its kind that lack its round, and add the round."""
    turns, pool = facts.turns, facts.pool
    calls = [{"ended": ended, "policies": policies} for of_turn in facts.ended for ended, policies in of_turn]
    result: Iterator[ScoredJob | str] = iter(turns[-1].fan(score_ended, calls))
    found = [[next(result) for _ in of_turn] for of_turn in facts.ended]
    scored = [[score for score in of_turn if isinstance(score, ScoredJob)] for of_turn in found]
    failed = tuple(tuple(score for score in of_turn if isinstance(score, str)) for of_turn in found)
    learned = learn(
        [(turn.at, of_turn) for turn, of_turn in zip(turns, scored, strict=True)],
        groups=[(score.rounds, score.learner) for score in (pool, pool.movers)],
    )
    scores = SlotScores(
        results=Results(learned=learned),
        names=tuple(tuple(score.ended.run.name for score in of_turn) for of_turn in scored),
        left_out=failed,
        pool=pool.with_rounds(*learned.rounds),
    )
    if not facts.whole:
        return scores
    done = facts.after(facts, scores)
    runs = []
    for turn, jobs, texts in zip(turns, done.scored, done.left_out, strict=True):
        for text in texts:
            turn.say(text)
        details = {"jobs": jobs, "learner": turn.settings.learner}
        runs.append(turn.done("score", details | ({"left_out": list(texts)} if texts else {})))
    return replace(scores, results=replace(scores.results, runs=tuple(runs)))


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
