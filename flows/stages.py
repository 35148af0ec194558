"""The stages of a turn in plain functions: what the Prefect flows run, what the commands call, what the tests check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from flows.allocate import decide, is_finished, open_job
from flows.forecast import MarketForecasts, forecast_market, lacking, timetable_of
from flows.frames import rows_of
from flows.ingest import Counts, ingest_paths, ingest_simulated
from flows.jobfile import JobRequest
from flows.markets import Followed, choose_markets, find_market, read_history, step_of
from flows.practice import example_requests, open_examples, practice_jobs
from flows.records import (
    StoredJob,
    allocations_of,
    decisions_of,
    outcome_frame,
    save_accuracy,
    save_decisions,
    save_jobs,
    save_run,
    save_scored,
    stored_forecasts,
    stored_jobs,
    stored_rounds,
)
from flows.score import ended_job, score_job
from flows.turn import Turn
from forecasting.forecast import Forecast
from optimization.ledger import leaderboard
from optimization.policy import Policy
from optimization.pool import DEFAULT_POOL, load_pool, policy_named
from optimization.selection import leader
from warehouse.errors import MarketError
from warehouse.history import History
from warehouse.store import record_assumptions, write_forecasts

#: Example jobs opened on a warehouse without jobs.
OPEN_EXAMPLES = 8


def ingest_stage(turn: Turn, data: Path | None) -> Counts:
    """Bring in what is new: the tidy tables of a folder, or the simulated market up to the logical time."""
    if data is None:
        counts = ingest_simulated(turn)
    else:
        counts = ingest_paths(
            turn.store, "tabular", [data], options={}, known_at=None, imported_at=turn.at, progress=turn.say
        )
    save_run(turn.store, turn.run_id, at=turn.at, stage="ingest", details=counts)
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a turn is about: the markets it follows, and the jobs on each that run or have ended unscored.

    ``left_out`` says in words which jobs and markets could not be read at this time, and why; they stop nothing else.
    """

    markets: tuple[Followed, ...]
    running: tuple[tuple[StoredJob, Followed], ...]
    ended: tuple[tuple[StoredJob, Followed], ...]
    left_out: tuple[str, ...] = ()

    def jobs_on(self, followed: Followed) -> list[StoredJob]:
        """The jobs of one market."""
        return [job for job, market in (*self.running, *self.ended) if market == followed]


def work_stage(turn: Turn, requests: Sequence[JobRequest]) -> Work:
    """Add the requests of this turn, give a warehouse without jobs examples and practice jobs, and sort the jobs.

    The jobs' markets come first, then the most informative others, `max_markets` in all.
    """
    step, settings = step_of(turn.settings), turn.settings
    save_jobs(turn.store, requests, origin="user", at=turn.at, step=step)
    known = stored_jobs(turn.store)
    left_out: list[str] = []
    chosen = [
        one for one in choose_markets(turn, most=settings.max_markets) if _readable(turn, one[0], left_out)
    ]
    if not any(job.origin == "practice" for job in known):
        _add_practice(turn, chosen, step)
    if not any(job.deadline > turn.at for job in known if job.origin != "practice"):
        capacities = [(followed, capacity) for followed, capacity, _ in chosen]
        examples = open_examples(example_requests(), capacities, most=OPEN_EXAMPLES)
        save_jobs(turn.store, examples, origin="example", at=turn.at, step=step)
    return _sorted_jobs(turn, [followed for followed, _, _ in chosen], left_out)


def _readable(turn: Turn, followed: Followed, left_out: list[str]) -> bool:
    """Whether a market has a history at its time; if not, why goes into ``left_out``."""
    try:
        read_history(turn.store, followed, settings=turn.settings, start=followed.at)
    except MarketError as error:
        left_out.append(f"market {followed.key} is left out: {error}")
        return False
    return True


def _add_practice(
    turn: Turn, chosen: Sequence[tuple[Followed, int, pd.Timestamp]], step: pd.Timedelta
) -> None:
    jobs = practice_jobs(example_requests(), chosen, settings=turn.settings)
    save_jobs(turn.store, jobs, origin="practice", at=turn.at, step=step)


def _sorted_jobs(turn: Turn, chosen: Sequence[Followed], left_out: list[str]) -> Work:
    """Which stored jobs run at their market's time and which ended by it without having been scored."""
    scored = set(stored_rounds(turn.store, pool_names(turn)).jobs)
    running: list[tuple[StoredJob, Followed]] = []
    ended: list[tuple[StoredJob, Followed]] = []
    for job in stored_jobs(turn.store):
        text = f"{job.request.market}@{job.request.source}" if job.request.source else str(job.request.market)
        try:
            followed = find_market(turn.store, text, at=turn.at, settings=turn.settings, own_end=turn.own_end)
        except MarketError as error:
            left_out.append(f"job {job.request.name} is left out: {error}")
            continue
        if followed not in chosen and not _readable(turn, followed, left_out):
            continue
        if job.deadline <= followed.at:
            if job.request.name not in scored:
                ended.append((job, followed))
        elif job.start <= followed.at:
            running.append((job, followed))
    ended.sort(key=lambda item: (item[0].deadline, item[0].request.name))
    of_jobs = [followed for _, followed in (*running, *ended)]
    markets = list(dict.fromkeys([*of_jobs, *chosen]))
    most = max(turn.settings.max_markets, len(set(of_jobs)))
    return Work(
        markets=tuple(markets[:most]), running=tuple(running), ended=tuple(ended), left_out=tuple(left_out)
    )


def pool_of(turn: Turn) -> list[Policy[Any]]:
    """The policy pool of the settings."""
    return load_pool(turn.settings.pool or DEFAULT_POOL)


def pool_names(turn: Turn) -> list[str]:
    """Names of the pool's policies, in its order."""
    return [policy.name for policy in pool_of(turn)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Errors per market, variable, model and step, and the history and newest planning forecast of each market."""

    accuracy: pd.DataFrame
    histories: dict[Followed, History]
    forecasts: dict[Followed, Forecast]


def forecast_stage(turn: Turn, work: Work) -> Measured:
    """Issue the forecasts of this turn, fill in those that past slots lack, and measure all of them."""
    histories: dict[Followed, History] = {}
    calls: list[dict[str, Any]] = []
    for followed in work.markets:
        origins = _origins(turn, followed, work.jobs_on(followed))
        start = min(timetable_of(turn.settings).start(slots[0]) for slots in origins.values())
        history = read_history(turn.store, followed, settings=turn.settings, start=start)
        histories[followed] = history
        calls.append(_forecast_call(turn, followed, history, origins))
    done: list[MarketForecasts] = turn.fan(forecast_market, calls, label="forecast")
    newest: dict[Followed, Forecast] = {}
    with turn.store.transaction():
        for followed, result in zip(work.markets, done, strict=True):
            write_forecasts(turn.store, result.issued, source=followed.source)
            record_assumptions(turn.store, histories[followed])
            newest[followed] = result.planned
    accuracy = pd.concat([result.accuracy for result in done], ignore_index=True) if done else pd.DataFrame()
    if len(accuracy):
        save_accuracy(turn.store, accuracy, at=turn.at)
    made = sum(len(result.issued) for result in done)
    save_run(
        turn.store,
        turn.run_id,
        at=turn.at,
        stage="forecast",
        details={"markets": len(done), "forecasts": made},
    )
    return Measured(accuracy=accuracy, histories=histories, forecasts=newest)


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


def _forecast_call(
    turn: Turn, followed: Followed, history: History, origins: dict[str, list[pd.Timestamp]]
) -> dict[str, Any]:
    stored = {
        model: stored_forecasts(turn.store, followed, model, start=slots[0], end=slots[-1], step=history.step)
        for model, slots in origins.items()
    }
    known = set(history.slots)
    missing = {
        model: [slot for slot in lacking(slots, stored[model]) if slot in known]
        for model, slots in origins.items()
    }
    return {"history": history, "settings": turn.settings, "missing": missing, "stored": stored}


def score_stage(turn: Turn, work: Work) -> list[str]:
    """Replay the pool on every job that ended and add a round for each; the names of the jobs."""
    policies = pool_of(turn)
    names = [policy.name for policy in policies]
    calls = []
    for job, followed in work.ended:
        if not job.request.checkpoint.resumable:
            continue  # the pool's policies may not run it (M2.7), so there is nothing to learn from
        history = read_history(turn.store, followed, settings=turn.settings, start=job.start)
        forecasts = _planned(turn, followed, job)
        calls.append({"ended": ended_job(job.request, history, forecasts), "policies": policies})
    scored = turn.fan(score_job, calls, label="score")
    save_scored(turn.store, scored, names=names, at=turn.at)
    done = [one.ended.job.name for one in scored]
    save_run(turn.store, turn.run_id, at=turn.at, stage="score", details={"jobs": len(done)})
    return done


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
    weights = rounds.weights()[-1]
    name = leader(weights)
    weight = float(weights.probability[list(weights.names).index(name)])
    return policy_named(name), f"leads after {len(rounds.jobs)} jobs, weight {weight:.3f}"


def allocate_stage(turn: Turn, work: Work) -> list[dict[str, Any]]:
    """Decide the next slot of every running job; a decision issued before is read back, not made again."""
    policy, why = deciding_policy(turn)
    calls: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for job, followed in work.running:
        before = decisions_of(turn.store, job.request.name)
        issued = [row for row in before if pd.Timestamp(row["slot"]) == followed.at]
        if issued:
            rows += issued
            continue
        history = read_history(turn.store, followed, settings=turn.settings, start=job.start)
        running = open_job(
            job.request, history, decided=allocations_of(before), forecasts=_planned(turn, followed, job)
        )
        if not is_finished(running):
            calls.append({"running": running, "policy": policy, "settings": turn.settings})
    made = [decision.row() | {"chosen_because": why} for decision in turn.fan(decide, calls, label="decide")]
    save_decisions(turn.store, made, run=turn.run_id)
    save_run(turn.store, turn.run_id, at=turn.at, stage="allocate", details={"decisions": len(made)})
    return sorted(rows + made, key=lambda row: str(row["job"]))


def leaderboard_rows(turn: Turn) -> list[dict[str, Any]]:
    """The leaderboard over every job ever scored with this pool, best first; empty before the first."""
    names = pool_names(turn)
    frame = outcome_frame(turn.store, names)
    if frame.empty:
        return []
    board = leaderboard(frame, stored_rounds(turn.store, names).weights()[-1])
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


def require_markets(work: Work) -> None:
    """Raise `MarketError` if a turn has no market to follow."""
    if not work.markets:
        raise MarketError(
            "no market has enough history at this time",
            expected="at least one market with a day of counts on the slot grid",
            remedy="`slackwater markets` shows what is there; choose another --at",
        )
