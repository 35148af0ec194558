"""What a turn found out, for people: the leaderboard, findings in sentences, and the data of the page (M5.5)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from flows.config import Settings
from flows.ledger.records import measured_errors, stored_decisions
from flows.ledger.rounds import outcome_frame
from flows.show.formats import rows_of
from flows.turn.context import Turn
from flows.turn.ingest import Counts
from flows.turn.markets import find_market, read_history, step_of, stored_forecasts
from flows.turn.page import MarketPanel, ReportData
from flows.turn.work import Pool, read_pool
from forecasting.quantiles import Forecast
from optimization.replay.score import leaderboard
from optimization.selection.learned import learner_regret, why_leader_changed
from warehouse.errors import InputError
from warehouse.history import AVAILABLE, PRICE, History
from warehouse.issued import read_rows
from warehouse.store.connection import Store

#: Slots of the past that the report draws.
PANEL_SLOTS = 336
#: What the JSON answer says of an error row, in this order.
ACCURACY_KEYS = (
    "market", "source", "variable", "model", "step", "n", "mae", "rmse", "mase", "pinball",
    "skill_mae", "skill_pinball", "coverage_80", "brier", "fallback_share", "scale",
)  # fmt: skip


def report_data(
    turn: Turn,
    *,
    learned: Learned,
    decisions: list[dict[str, Any]],
    accuracy: pd.DataFrame,
    ingested: Counts,
    drawn: list[MarketPanel],
    simulated: bool,
    left_out: Sequence[str] = (),
) -> ReportData:
    """What the report shows."""
    after, rounds = learned.weights_after(), learned.pool.rounds
    return ReportData(
        at=turn.at,
        run_id=turn.run_id,
        simulated=simulated,
        decisions=decisions,
        accuracy=accuracy,
        leaderboard=learned.leaderboard,
        weights=pd.DataFrame(
            np.array(after).reshape(len(after), len(rounds.names)), columns=list(rounds.names)
        ),
        round_jobs=list(rounds.jobs),
        ingested=ingested,
        panels=drawn,
        notes=[*left_out, *learned.findings],
    )


def stored_report(store: Store, settings: Settings, *, at: pd.Timestamp | None) -> ReportData:
    """The report of the newest run, or of the run at ``at``, again from what the warehouse keeps.

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
    decided = stored_decisions(store, {"run": run}, order_by=["job"])
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
    return report_data(
        turn,
        learned=learned(turn),
        decisions=[row for _, row in decided],
        accuracy=accuracy,
        ingested=json.loads(ingest["details"].iloc[-1]) if len(ingest) else {},
        drawn=drawn,
        simulated=all(source.startswith("simulated") for source in sources),
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the jobs that ended have taught: the leaderboard, best policy first and empty before the first job, and findings."""

    pool: Pool
    leaderboard: list[dict[str, Any]]
    findings: list[str]

    def weights_after(self) -> list[np.ndarray]:
        """The weights after each round, each of shape (policies,)."""
        return [weights.probability for weights in self.pool.rounds.weights(self.pool.learner)[1:]]


def learned(turn: Turn, pool: Pool | None = None) -> Learned:
    """What every job ever scored has taught of the pool (None: as the warehouse has it)."""
    pool = read_pool(turn) if pool is None else pool
    outcomes = outcome_frame(turn.store, pool.names)
    if outcomes.empty:
        return Learned(
            pool=pool,
            leaderboard=[],
            findings=["No job has ended yet, so no policy has a record."],
        )
    board = _board_rows(pool, outcomes)
    return Learned(pool=pool, leaderboard=board, findings=_findings(pool, outcomes, board))


def _board_rows(pool: Pool, outcomes: pd.DataFrame) -> list[dict[str, Any]]:
    board = leaderboard(outcomes, pool.rounds.newest(pool.learner))
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


def _findings(pool: Pool, outcomes: pd.DataFrame, board: list[dict[str, Any]]) -> list[str]:
    """Sentences worth reading: who leads and why, how that compares with the baselines, regret against its bound."""
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
    lost = outcomes.groupby("policy")["lost_to_forecast_error"].mean().dropna()
    if len(lost):
        most = str(lost.idxmax())
        notes.append(
            f"Wrong forecasts cost {best['policy']} {lost.get(best['policy'], 0.0):.3f} of the on-demand-only cost a job, "
            f"and {most} most, {lost[most]:.3f} (the utility with perfect forecasts minus that with the issued ones)."
        )
    rounds, learner = pool.rounds, pool.learner
    utilities = rounds.full(learner)
    ledger = pd.DataFrame(
        [
            {"job": job, "policy": name, "normalised": value}
            for job, row in zip(rounds.jobs, utilities, strict=True)
            for name, value in zip(pool.names, row.tolist(), strict=True)
        ]
    )
    last = learner_regret(ledger, learner).iloc[-1]
    notes.append(
        f"Selection by {learner.name} after {len(rounds.jobs)} jobs: regret {last['static_regret']:.3f} "
        f"(bound {last['static_bound']:.3f}) against the best single policy, {last['static_regret_leader']:.3f} "
        "when following the leader."
    )
    changes = why_leader_changed(ledger, rounds.weights(learner), memory=learner.memory)
    notes += [change.sentence() + "." for change in changes[-2:]]
    return notes
