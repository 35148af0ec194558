"""The stages of a turn in plain functions: what the Prefect flows run, what the commands call, what the tests check."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flows.config import Settings
from flows.delivery.deliver import deliver
from flows.ledger.failures import failure_kept
from flows.ledger.records import measured_errors, outcome_frame, stored_forecasts, stored_rounds
from flows.ledger.runs import LIVE, save_run
from flows.show.table import rows_of
from flows.turn.context import Turn, staged
from flows.turn.decide import decide_turns, policy_at
from flows.turn.forecast import Measured, forecast_turns
from flows.turn.ingest import Counts, ingest_paths, ingest_simulated, simulated_label
from flows.turn.markets import find_market, read_history, step_of
from flows.turn.page import ReportData, write_report
from flows.turn.panels import MarketPanel
from flows.turn.scoring import score_turns
from flows.turn.work import Work, pool_names, require_markets, work_stage
from forecasting.quantiles import Forecast
from optimization.job.request import JobRequest
from optimization.policies.contract import Policy
from optimization.replay.ledger import leaderboard
from optimization.selection.learners import learner_named
from optimization.selection.regret import learner_regret, why_leader_changed
from warehouse.errors import InputError
from warehouse.history import AVAILABLE, PRICE, History
from warehouse.issued.records import read_rows
from warehouse.observations.listing import observed_sources
from warehouse.store.connection import Store


def ingest_stage(turn: Turn, data: Path | None) -> Counts:
    """Bring in what is new: the tidy tables of a folder, the live feeds that are due, or without any the simulated market.

    Like every stage, its rows and its record of having run are kept together or not at all; but each page of a feed is kept at
    once, so that nothing is fetched twice.
    """
    fetched = None
    if data is None and turn.settings.feeds:
        from flows.feeds.fetch import fetch_due

        fetched = fetch_due(turn)
    with turn.store.transaction():
        if fetched is not None:
            counts = fetched
        elif data is None and turn.made == LIVE:
            counts = ingest_simulated(turn)
        elif data is None:
            # Afterwards the market is simulated where it was before, and never beside observations of a real one.
            simulated = set(observed_sources(turn.store)) <= {simulated_label(turn.settings)}
            counts = ingest_simulated(turn) if simulated else {}
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
        save_run(turn.store, turn.run_id, at=turn.at, stage="ingest", details=counts, made=turn.made)
    return counts


def forecast_stage(turn: Turn, work: Work) -> Measured:
    """Issue the forecasts of this turn, fill in those that past slots lack, and measure all of them."""
    return staged(forecast_turns([turn], [work]), turn.fan)[0]


def allocate_stage(turn: Turn, work: Work) -> list[dict[str, Any]]:
    """Decide the next slot of every running job; a decision issued before is read back, not made again."""
    return staged(decide_turns([turn], [work]), turn.fan)[0]


def score_stage(turn: Turn, work: Work) -> list[str]:
    """Replay the pool on every job that ended and add a round for each; the names of the jobs."""
    return staged(score_turns([turn], [work]), turn.fan)[0]


def deciding_policy(turn: Turn) -> tuple[Policy[Any], str]:
    """The policy that decides at the turn's time, and why: the leader of the rounds learned before (decision 3)."""
    return policy_at(turn, stored_rounds(turn.store, pool_names(turn)))


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


# ---
# A whole turn of the loop in plain code: the same with and without an engine.

#: Slots of the past that the report draws.
PANEL_SLOTS = 336
#: What the JSON answer says of an error row, in this order.
ACCURACY_KEYS = (
    "market", "source", "variable", "model", "step", "n", "mae", "rmse", "mase", "pinball",
    "skill_mae", "skill_pinball", "coverage_80", "brier", "fallback_share", "scale",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """Everything a turn found out, as plain values."""

    run_id: str
    at: pd.Timestamp
    ingested: Counts
    accuracy: list[dict[str, Any]]
    decisions: list[dict[str, Any]]
    leaderboard: list[dict[str, Any]]
    notes: list[str]
    report: Path

    def answer(self) -> dict[str, Any]:
        """The object that ``slackwater run --json`` prints."""
        return {
            "at": self.at.isoformat(),
            "run": self.run_id,
            "ingested": self.ingested,
            "accuracy": self.accuracy,
            "decisions": self.decisions,
            "leaderboard": self.leaderboard,
            "notes": self.notes,
            "report": str(self.report),
        }


def whole_turn(turn: Turn, *, data: Path | None, requests: Sequence[JobRequest], report: Path) -> TurnResult:
    """Ingest, forecast, decide, hand over, score, report; only the very first turn scores before it decides (decision 3)."""
    turn.say("ingest")
    with failure_kept(turn, "ingest"):
        ingested = ingest_stage(turn, data)
    with failure_kept(turn, "forecast"):
        work = work_stage(turn, requests)
        require_markets(work)
        turn.say(f"forecast {len(work.markets)} markets")
        measured = forecast_stage(turn, work)
    nothing_learned = not stored_rounds(turn.store, pool_names(turn)).before(turn.at).jobs
    if nothing_learned:
        _scored(turn, work)
    turn.say(f"decide for {len(work.running)} jobs")
    with failure_kept(turn, "allocate"):
        decisions = allocate_stage(turn, work)
    deliver(turn, decisions)
    if not nothing_learned:
        _scored(turn, work)
    turn.say("report")
    return _finished(
        turn,
        work,
        measured,
        ingested=ingested,
        decisions=decisions,
        report=report,
        simulated=data is None and not turn.settings.feeds,
    )


def _scored(turn: Turn, work: Work) -> None:
    turn.say(f"replay the pool on {len(work.ended)} ended jobs")
    with failure_kept(turn, "score"):
        score_stage(turn, work)


def _finished(
    turn: Turn,
    work: Work,
    measured: Measured,
    *,
    ingested: Counts,
    decisions: list[dict[str, Any]],
    report: Path,
    simulated: bool,
) -> TurnResult:
    """Write the report and put the answer together."""
    data = report_data(
        turn,
        decisions=decisions,
        left_out=work.left_out,
        accuracy=measured.accuracy,
        ingested=ingested,
        drawn=[panel(measured.histories[one], measured.forecasts.get(one)) for one in work.markets],
        simulated=simulated,
    )
    return TurnResult(
        run_id=turn.run_id,
        at=turn.at,
        ingested=ingested,
        accuracy=accuracy_rows(measured.accuracy),
        decisions=decisions,
        leaderboard=data.leaderboard,
        notes=data.notes,
        report=write_report(data, report),
    )


def report_data(
    turn: Turn,
    *,
    decisions: list[dict[str, Any]],
    accuracy: pd.DataFrame,
    ingested: Counts,
    drawn: list[MarketPanel],
    simulated: bool,
    left_out: Sequence[str] = (),
) -> ReportData:
    """What the report shows, with the leaderboard and the weights as the warehouse has them."""
    board = leaderboard_rows(turn)
    rounds = stored_rounds(turn.store, pool_names(turn))
    after = [weights.probability for weights in rounds.weights(learner_named(turn.settings.learner))[1:]]
    return ReportData(
        at=turn.at,
        run_id=turn.run_id,
        simulated=simulated,
        decisions=decisions,
        accuracy=accuracy,
        leaderboard=board,
        weights=pd.DataFrame(
            np.array(after).reshape(len(after), len(rounds.names)), columns=list(rounds.names)
        ),
        round_jobs=list(rounds.jobs),
        ingested=ingested,
        panels=drawn,
        notes=[*left_out, *findings(turn, board)],
    )


def stored_report(store: Store, settings: Settings, *, at: pd.Timestamp | None, path: Path | None) -> Path:
    """Write the report of the newest run, or of the run at ``at``, again from what the warehouse keeps.

    Raises `InputError` if there is no such run.
    """
    runs = read_rows(store, "runs", where={"stage": "forecast"}, order_by=["logical_at"])
    if at is not None:
        runs = runs[runs["logical_at"] == at]
    if runs.empty:
        raise InputError(
            f"no run {'at ' + at.isoformat() if at is not None else 'in this warehouse'}",
            remedy="`slackwater run` makes one",
        )
    run, when = str(runs["run"].iloc[-1]), pd.Timestamp(runs["logical_at"].iloc[-1])
    turn = Turn(store=store, at=when, settings=settings, run_id=run, own_end=True)
    accuracy = measured_errors(store, when).drop(columns=["measured_at"])
    decided = read_rows(store, "decisions", where={"run": run}, order_by=["job"])
    ingest = read_rows(store, "runs", where={"run": run, "stage": "ingest"})
    drawn, sources = [], set()
    for key, source in dict.fromkeys(zip(accuracy["market"], accuracy["source"], strict=True)):
        followed = find_market(store, f"{key}@{source}", at=when, settings=settings, own_end=True)
        start = followed.at - PANEL_SLOTS * step_of(settings)
        issued = stored_forecasts(
            store, followed, settings.planner, start=followed.at, end=followed.at, step=step_of(settings)
        )
        drawn.append(
            panel(
                read_history(store, followed, settings=settings, start=start), issued[0] if issued else None
            )
        )
        sources.add(source)
    data = report_data(
        turn,
        decisions=[json.loads(text) for text in decided["details"]],
        accuracy=accuracy,
        ingested=json.loads(ingest["details"].iloc[-1]) if len(ingest) else {},
        drawn=drawn,
        simulated=all(source.startswith("simulated") for source in sources),
    )
    return write_report(data, path or Path("reports") / f"{run}.html")


def accuracy_rows(accuracy: pd.DataFrame) -> list[dict[str, Any]]:
    """Error rows as plain values, undefined ones as None."""
    if accuracy.empty:
        return []
    keys = [key for key in ACCURACY_KEYS if key in accuracy.columns]
    rows: list[dict[str, Any]] = json.loads(accuracy[keys].to_json(orient="records", double_precision=6))
    return rows


def panel(history: History, forecast: Forecast | None) -> MarketPanel:
    """The recent past and the planning forecast of a market."""
    tail = history.frame.iloc[-PANEL_SLOTS:]
    return MarketPanel(
        title=history.market.key,
        source=history.source,
        slots=pd.DatetimeIndex(tail.index),
        price=tail[PRICE].to_numpy(dtype=float),
        available=tail[AVAILABLE].to_numpy(dtype=float),
        on_demand_usd=history.on_demand_usd,
        capacity=history.capacity,
        forecast=forecast,
        assumptions=history.assumptions,
    )


def findings(turn: Turn, board: list[dict[str, Any]]) -> list[str]:
    """Sentences worth reading: who leads and why, how that compares with the baselines, regret against its bound."""
    if not board:
        return ["No job has ended yet, so no policy has a record."]
    names = pool_names(turn)
    by_name = {row["policy"]: row for row in board}
    best = board[0]
    notes = [
        f"Best policy over {best['jobs']} ended jobs: {best['policy']}, mean utility {best['mean_utility']:.3f} of the "
        f"on-demand-only cost, {best['gap_to_hindsight']:.3f} below hindsight."
    ]
    for name in ("UP", "MSU", "OD-only"):
        if name in by_name and name != best["policy"]:
            behind = best["mean_utility"] - by_name[name]["mean_utility"]
            notes.append(
                f"{name} is {behind:.3f} below it, on time {100 * by_name[name]['on_time']:.0f} % of the jobs."
            )
    lost = outcome_frame(turn.store, names).groupby("policy")["lost_to_forecast_error"].mean().dropna()
    if len(lost):
        most = str(lost.idxmax())
        notes.append(
            f"Wrong forecasts cost {best['policy']} {lost.get(best['policy'], 0.0):.3f} of the on-demand-only cost a job, "
            f"and {most} most, {lost[most]:.3f} (the utility with perfect forecasts minus that with the issued ones)."
        )
    rounds = stored_rounds(turn.store, names)
    ledger = pd.DataFrame(
        [
            {"job": job, "policy": name, "normalised": value}
            for job, row in zip(rounds.jobs, rounds.utilities, strict=True)
            for name, value in zip(names, row.tolist(), strict=True)
        ]
    )
    learner = learner_named(turn.settings.learner)
    last = learner_regret(ledger, learner).iloc[-1]
    notes.append(
        f"Selection by {learner.name} after {len(rounds.jobs)} jobs: regret {last['static_regret']:.3f} "
        f"(bound {last['static_bound']:.3f}) against the best single policy, {last['static_regret_leader']:.3f} "
        "when following the leader."
    )
    changes = why_leader_changed(ledger, rounds.weights(learner), memory=learner.memory)
    notes += [change.sentence() + "." for change in changes[-2:]]
    return notes
