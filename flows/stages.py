"""The stages of a turn in plain functions: what the Prefect flows run, what the commands call, what the tests check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from flows.allocate import decide, is_finished, open_job
from flows.fitting import prepare, timetable_of
from flows.forecast import MarketForecasts, forecast_market, lacking
from flows.frames import rows_of
from flows.ingest import Counts, ingest_paths, ingest_simulated
from flows.known_past import PeerReader, record_start
from flows.markets import Followed, read_histories, read_history, step_of
from flows.records import (
    StoredJob,
    allocations_of,
    decisions_of,
    outcome_frame,
    save_accuracy,
    save_decisions,
    save_scored,
    stored_forecasts,
    stored_rounds,
)
from flows.runs import save_run
from flows.score import ended_job, score_job
from flows.turn import Turn
from flows.work import Work, pool_names, pool_of
from forecasting.forecast import Forecast
from optimization.learners import learner_named
from optimization.ledger import leaderboard
from optimization.policy import Policy
from optimization.pool import policy_named
from optimization.selection import leader
from warehouse.history import History
from warehouse.store import record_assumptions, write_forecasts


def ingest_stage(turn: Turn, data: Path | None) -> Counts:
    """Bring in what is new: the tidy tables of a folder, the live feeds that are due, or without any the simulated market.

    Like every stage, its rows and its record of having run are kept together or not at all; but each page of a feed is kept at
    once, so that nothing is fetched twice.
    """
    fetched = None
    if data is None and turn.settings.feeds:
        from flows.feeds import fetch_due  # here, so that turns without feeds load no HTTP client

        fetched = fetch_due(turn)
    with turn.store.transaction():
        if fetched is not None:
            counts = fetched
        elif data is None:
            counts = ingest_simulated(turn)
        else:
            counts = ingest_paths(
                turn.store,
                "tabular",
                [data],
                options={},
                known_at=None,
                imported_at=turn.at,
                progress=turn.say,
            )
        save_run(turn.store, turn.run_id, at=turn.at, stage="ingest", details=counts)
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Errors per market, variable, model and step, and the history and newest planning forecast of each market."""

    accuracy: pd.DataFrame
    histories: dict[Followed, History]
    forecasts: dict[Followed, Forecast]


def forecast_stage(turn: Turn, work: Work) -> Measured:
    """Issue the forecasts of this turn, fill in those that past slots lack, and measure all of them.

    What had to be estimated for them is kept in the same transaction, so it is there next time whenever they are.
    """
    origins = {followed: _origins(turn, followed, work.jobs_on(followed)) for followed in work.markets}
    histories = _source_histories(turn, origins)
    stored = {followed: _stored(turn, followed, own) for followed, own in origins.items()}
    missing = {
        followed: _missing(histories[followed], own, stored[followed]) for followed, own in origins.items()
    }
    prepared = prepare(turn, histories, missing)
    calls = [
        {
            "history": histories[one],
            "settings": turn.settings,
            "batches": prepared.batches[one],
            "stored": stored[one],
        }
        for one in work.markets
    ]
    done: list[MarketForecasts] = turn.fan(forecast_market, calls, label="forecast")
    newest: dict[Followed, Forecast] = {}
    accuracy = pd.concat([result.accuracy for result in done], ignore_index=True)
    made = sum(len(result.issued) for result in done)
    with turn.store.transaction():
        prepared.save(turn.store)
        for followed, result in zip(work.markets, done, strict=True):
            write_forecasts(turn.store, result.issued, source=followed.source)
            record_assumptions(turn.store, histories[followed])
            newest[followed] = result.planned
        save_accuracy(turn.store, accuracy, at=turn.at)
        details = {"markets": len(done), "forecasts": made}
        save_run(turn.store, turn.run_id, at=turn.at, stage="forecast", details=details)
    return Measured(accuracy=accuracy, histories=histories, forecasts=newest)


Origins = dict[str, list[pd.Timestamp]]


def _source_histories(turn: Turn, origins: Mapping[Followed, Origins]) -> dict[Followed, History]:
    """Every market's history as far back as any market of its source needs it: they are estimated together."""
    starts: dict[str, pd.Timestamp] = {}
    for followed, own in origins.items():
        needed = min(timetable_of(turn.settings).start(slots[0]) for slots in own.values())
        starts[followed.source] = min(needed, starts.get(followed.source, needed))
    asked = {followed: starts[followed.source] for followed in origins}
    return read_histories(turn.store, asked, settings=turn.settings)


def _origins(turn: Turn, followed: Followed, jobs: Sequence[StoredJob]) -> dict[str, list[pd.Timestamp]]:
    """Slots that each model must have a forecast for: those it is measured at; the planner's also in every job's slots."""
    step, settings = step_of(turn.settings), turn.settings
    measured = pd.date_range(end=followed.at, periods=settings.measured_origins + 1, freq=step)
    origins = {model: list(measured) for model in dict.fromkeys([*settings.models, settings.planner])}
    slots = set(measured)
    for job in jobs:
        last = min(job.deadline - job.step, followed.at)
        slots |= set(pd.date_range(job.start, last, freq=step))
    origins[settings.planner] = sorted(slots)
    return origins


def _stored(turn: Turn, followed: Followed, origins: Origins) -> dict[str, list[Forecast]]:
    """The vintages that there are, by model."""
    step = step_of(turn.settings)
    return {
        model: stored_forecasts(turn.store, followed, model, start=slots[0], end=slots[-1], step=step)
        for model, slots in origins.items()
    }


def _missing(history: History, origins: Origins, stored: Mapping[str, Sequence[Forecast]]) -> Origins:
    """The origins within the history that have no vintage yet, by model."""
    known = set(history.slots)
    return {
        model: [slot for slot in lacking(slots, stored[model]) if slot in known]
        for model, slots in origins.items()
    }


def score_stage(turn: Turn, work: Work) -> list[str]:
    """Replay the pool on every job that ended and add a round for each; the names of the jobs."""
    policies = pool_of(turn)
    names = [policy.name for policy in policies]
    peers = _peer_reader(turn, work.ended)
    calls = []
    for job, followed in work.ended:
        if not job.request.checkpoint.resumable:
            continue  # the pool's policies may not run it (M2.7), so there is nothing to learn from
        start = record_start(job.start)
        history = read_history(turn.store, followed, settings=turn.settings, start=start)
        ended = ended_job(job.request, history, _planned(turn, followed, job), peers.peers_of(followed))
        calls.append({"ended": ended, "policies": policies})
    scored = turn.fan(score_job, calls, label="score")
    done = [one.ended.job.name for one in scored]
    with turn.store.transaction():
        save_scored(turn.store, scored, names=names, learner=learner_named(turn.settings.learner), at=turn.at)
        details = {"jobs": len(done), "learner": turn.settings.learner}
        save_run(turn.store, turn.run_id, at=turn.at, stage="score", details=details)
    return done


def _peer_reader(turn: Turn, jobs: Sequence[tuple[StoredJob, Followed]]) -> PeerReader:
    """Reads peers from the record of the earliest of the jobs on."""
    return PeerReader(turn=turn, start=record_start(min((job.start for job, _ in jobs), default=turn.at)))


def _planned(turn: Turn, followed: Followed, job: StoredJob) -> list[Forecast]:
    """The planner's vintages in a job's slots so far."""
    end = min(job.deadline, followed.at)
    return stored_forecasts(
        turn.store, followed, turn.settings.planner, start=job.start, end=end, step=job.step
    )


def deciding_policy(turn: Turn) -> tuple[Policy[Any], str]:
    """The policy that decides at the turn's time, and why: the leader of the rounds learned before (decision 3)."""
    rounds = stored_rounds(turn.store, pool_names(turn)).before(turn.at)
    if not rounds.jobs:
        return policy_named(turn.settings.practice_policy), "no job has ended yet"
    weights = rounds.weights(learner_named(turn.settings.learner))[-1]
    name = leader(weights)
    weight = float(weights.probability[list(weights.names).index(name)])
    return policy_named(name), f"leads after {len(rounds.jobs)} jobs, weight {weight:.3f}"


def allocate_stage(turn: Turn, work: Work) -> list[dict[str, Any]]:
    """Decide the next slot of every running job; a decision issued before is read back, not made again."""
    policy, why = deciding_policy(turn)
    peers = _peer_reader(turn, work.running)
    calls: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for job, followed in work.running:
        before = decisions_of(turn.store, job.request.name)
        issued = [row for row in before if pd.Timestamp(row["slot"]) == followed.at]
        if issued:
            rows += issued
            continue
        history = read_history(turn.store, followed, settings=turn.settings, start=record_start(job.start))
        running = open_job(
            job.request,
            history,
            decided=allocations_of(before),
            forecasts=_planned(turn, followed, job),
            peers=peers.peers_of(followed),
        )
        if not is_finished(running):
            calls.append({"running": running, "policy": policy, "settings": turn.settings})
    made = [decision.row() | {"chosen_because": why} for decision in turn.fan(decide, calls, label="decide")]
    with turn.store.transaction():
        save_decisions(turn.store, made, run=turn.run_id)
        save_run(turn.store, turn.run_id, at=turn.at, stage="allocate", details={"decisions": len(made)})
    return sorted(rows + made, key=lambda row: str(row["job"]))


def leaderboard_rows(turn: Turn) -> list[dict[str, Any]]:
    """The leaderboard over every job ever scored with this pool, best first; empty before the first."""
    names = pool_names(turn)
    frame = outcome_frame(turn.store, names)
    if frame.empty:
        return []
    rounds = stored_rounds(turn.store, names)
    board = leaderboard(frame, rounds.weights(learner_named(turn.settings.learner))[-1])
    return [
        {
            "policy": row["policy"],
            "jobs": int(row["jobs"]),
            "mean_utility": round(float(row["mean_utility"]), 6),
            "mean_utility_usd": round(float(row["mean_utility_usd"]), 4),
            "mean_cost_usd": round(float(row["mean_cost_usd"]), 4),
            "on_time": round(float(row["on_time"]), 4),
            "gap_to_hindsight": round(float(row["gap_to_hindsight"]), 6),
            "weight": round(float(row["weight"]), 6),
        }
        for row in rows_of(board)
    ]
