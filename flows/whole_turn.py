"""A whole turn of the loop in plain code: the same with and without an engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flows.ingest import Counts
from flows.jobfile import JobRequest
from flows.records import RATE, stored_rounds
from flows.report import write_report
from flows.report_data import MarketPanel, ReportData
from flows.stages import (
    Measured,
    Work,
    allocate_stage,
    forecast_stage,
    ingest_stage,
    leaderboard_rows,
    pool_names,
    require_markets,
    score_stage,
    work_stage,
)
from flows.turn import Turn
from optimization.regret import regret, why_leader_changed

#: Slots of the past that the report draws.
PANEL_SLOTS = 336
#: What the JSON answer says of an error row, in this order.
ACCURACY_KEYS = (
    "market", "source", "variable", "model", "step", "n", "mae", "rmse", "mase", "pinball",
    "skill_mae", "skill_pinball", "coverage_80", "brier", "fallback_share",
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
    """Ingest, forecast, decide, score, report; only the very first turn scores before it decides (decision 3)."""
    turn.say("ingest")
    ingested = ingest_stage(turn, data)
    work = work_stage(turn, requests)
    require_markets(work)
    turn.say(f"forecast {len(work.markets)} markets")
    measured = forecast_stage(turn, work)
    nothing_learned = not stored_rounds(turn.store, pool_names(turn)).before(turn.at).jobs
    if nothing_learned:
        turn.say(f"replay the pool on {len(work.ended)} ended jobs")
        score_stage(turn, work)
    turn.say(f"decide for {len(work.running)} jobs")
    decisions = allocate_stage(turn, work)
    if not nothing_learned:
        turn.say(f"replay the pool on {len(work.ended)} ended jobs")
        score_stage(turn, work)
    turn.say("report")
    return _finished(
        turn, work, measured, ingested=ingested, decisions=decisions, report=report, simulated=data is None
    )


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
    board = leaderboard_rows(turn)
    notes = findings(turn, board)
    rounds = stored_rounds(turn.store, pool_names(turn))
    after = [weights.probability for weights in rounds.weights()[1:]]
    data = ReportData(
        at=turn.at,
        run_id=turn.run_id,
        simulated=simulated,
        decisions=decisions,
        accuracy=measured.accuracy,
        leaderboard=board,
        weights=pd.DataFrame(
            np.array(after).reshape(len(after), len(rounds.names)), columns=list(rounds.names)
        ),
        round_jobs=list(rounds.jobs),
        ingested=ingested,
        panels=panels(work, measured),
        notes=notes,
    )
    return TurnResult(
        run_id=turn.run_id,
        at=turn.at,
        ingested=ingested,
        accuracy=accuracy_rows(measured.accuracy),
        decisions=decisions,
        leaderboard=board,
        notes=notes,
        report=write_report(data, report),
    )


def accuracy_rows(accuracy: pd.DataFrame) -> list[dict[str, Any]]:
    """Error rows as plain values, undefined ones as None."""
    if accuracy.empty:
        return []
    keys = [key for key in ACCURACY_KEYS if key in accuracy.columns]
    rows: list[dict[str, Any]] = json.loads(accuracy[keys].to_json(orient="records", double_precision=6))
    return rows


def panels(work: Work, measured: Measured) -> list[MarketPanel]:
    """The recent past and the planning forecast of every followed market."""
    drawn = []
    for followed in work.markets:
        history = measured.histories[followed]
        tail = history.frame.iloc[-PANEL_SLOTS:]
        drawn.append(
            MarketPanel(
                title=history.market.key,
                source=history.source,
                slots=pd.DatetimeIndex(tail.index),
                price=tail["price_usd"].to_numpy(dtype=float),
                available=tail["available"].to_numpy(dtype=float),
                on_demand_usd=history.on_demand_usd,
                capacity=history.capacity,
                forecast=measured.forecasts.get(followed),
                assumptions=history.assumptions,
            )
        )
    return drawn


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
    rounds = stored_rounds(turn.store, names)
    ledger = pd.DataFrame(
        [
            {"job": job, "policy": name, "normalised": value}
            for job, row in zip(rounds.jobs, rounds.utilities, strict=True)
            for name, value in zip(names, row.tolist(), strict=True)
        ]
    )
    last = regret(ledger, rate=RATE).iloc[-1]
    notes.append(
        f"Selection after {len(rounds.jobs)} jobs: regret {last['static_regret']:.3f} (bound {last['static_bound']:.3f}) "
        f"against the best single policy, {last['static_regret_leader']:.3f} when following the leader."
    )
    changes = why_leader_changed(ledger, rounds.weights())
    notes += [change.sentence() + "." for change in changes[-2:]]
    return notes
