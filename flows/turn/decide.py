"""Decide the next slot of every open job: the job as it stands, and who decides it (M2.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from flows.config import Settings
from flows.ledger.fields import decision_row
from flows.ledger.jobs import StoredJob
from flows.ledger.records import allocations_of, decisions_by_job, save_decisions
from flows.ledger.reports import OpenJob, Report, every_report, open_job
from flows.ledger.runs import save_runs
from flows.turn.context import Turn
from flows.turn.markets import Followed, peers_of, planned_forecasts, read_all
from flows.turn.work import Pool, Work
from optimization.replay.decision import Course, Effort, decide_all, record_start


def effort_of(settings: Settings) -> Effort:
    """What one decision may take."""
    return Effort(solver_seconds=settings.solver_seconds, risk_paths=settings.risk_paths, seed=settings.seed)


#: A decision as plain values.
Row = dict[str, Any]


def decide_jobs(turns: Sequence[Turn], works: Sequence[Work], pool: Pool) -> list[list[Row]]:
    """Decide the slot of every running job in each of ascending turns; a decision issued before is read back, not made again.

    The decisions of each turn, by job. The forecasts of the turns must be there, and ``pool`` with what was learned before each.
    Each decision of a job knows those before it (M2.4).
    """
    issued = _decisions(turns, works)
    rows: list[list[Row]] = [[] for _ in turns]
    lacking: list[tuple[int, StoredJob, Followed]] = []
    for place, work in enumerate(works):
        for job, followed in work.running:
            old = [row for row in issued[job.request.name] if pd.Timestamp(row["slot"]) == followed.at]
            rows[place] += old
            if not old:
                lacking.append((place, job, followed))
    opened = _opened(turns, lacking, issued)
    deciding = pool.deciding([turn.at for turn in turns])
    courses: dict[str, list[int]] = {}
    for k, (_, job, _) in enumerate(lacking):
        courses.setdefault(job.request.name, []).append(k)
    decided = decide_all(
        [
            Course(
                slots=tuple(opened[k].live for k in own),
                policies=tuple(deciding[lacking[k][0]][0] for k in own),
            )
            for own in courses.values()
        ],
        effort_of(turns[-1].settings),
        fan=turns[-1].fan,
    )
    fresh: list[dict[str, Row]] = [{} for _ in turns]
    for name, own, made in zip(courses, courses.values(), decided, strict=True):
        for k, decision in zip(own, made, strict=True):
            if decision is not None:
                place = lacking[k][0]
                because = {"chosen_because": deciding[place][1]}
                fresh[place][name] = decision_row(opened[k], decision) | because
    # In the order of the turn's jobs, whoever was decided first.
    new = [
        [own[job.request.name] for job, _ in work.running if job.request.name in own]
        for work, own in zip(works, fresh, strict=True)
    ]
    _save(turns, new)
    return [sorted(old + own, key=lambda row: str(row["job"])) for old, own in zip(rows, new, strict=True)]


def _decisions(turns: Sequence[Turn], works: Sequence[Work]) -> dict[str, list[Row]]:
    """What was decided before for every running job."""
    names = dict.fromkeys(job.request.name for work in works for job, _ in work.running)
    return decisions_by_job(turns[-1].store, list(names))


def _opened(
    turns: Sequence[Turn],
    lacking: Sequence[tuple[int, StoredJob, Followed]],
    issued: Mapping[str, Sequence[Row]],
) -> list[OpenJob]:
    """The jobs that lack a decision, each as it stands at its turn's time; of what is read only what was known by then is taken."""
    if not lacking:
        return []
    store = turns[-1].store
    last = {job.request.name: (job, followed) for _, job, followed in lacking}
    forecasts = planned_forecasts(turns[-1], list(last.values()))
    reports: dict[str, list[Report]] = {name: [] for name in last}
    for report in every_report(store, list(last)):
        reports[report.job].append(report)
    decided = {name: allocations_of(issued[name]) for name in last}
    opened: list[OpenJob] = []
    for place, own in groupby(lacking, key=lambda one: one[0]):
        jobs = [(job, followed) for _, job, followed in own]
        turn = turns[place]
        peers = peers_of(
            turn,
            [followed for _, followed in jobs],
            start=record_start(min(job.start for job, _ in jobs)),
        )
        asked = [(followed, record_start(job.start)) for job, followed in jobs]
        for (job, followed), history in zip(jobs, read_all(turn, asked), strict=True):
            name = job.request.name
            opened.append(
                open_job(
                    job.request,
                    history,
                    decided=decided[name],
                    forecasts=forecasts[name],
                    peers=peers[followed],
                    reports=reports[name],
                )
            )
    return opened


def _save(turns: Sequence[Turn], made: Sequence[Sequence[Row]]) -> None:
    store = turns[-1].store
    with store.transaction():
        save_decisions(
            store, [(turn.run_id, row) for turn, own in zip(turns, made, strict=True) for row in own]
        )
        save_runs(
            store,
            [turn.done("allocate", {"decisions": len(own)}) for turn, own in zip(turns, made, strict=True)],
        )


def competing(decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence on each market that several jobs were decided on: what the one holds was not taken from the other."""
    jobs: dict[str, list[str]] = {}
    for row in decisions:
        jobs.setdefault(f"{row['market']}@{row['source']}", []).append(str(row["job"]))
    return [
        f"{len(names)} jobs on {market} were decided each as if it were alone ({', '.join(names)}): `slackwater fleet plan` "
        "shares the market's count among them, looks a few slots ahead and lets them move, so it may answer otherwise."
        for market, names in sorted(jobs.items())
        if len(names) > 1
    ]
