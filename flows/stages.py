"""The stages of a turn in plain functions: what the Prefect flows run, what the commands call, what the tests check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.deciding_turns import decide_turns, policy_at
from flows.forecasting_turns import Measured, forecast_turns
from flows.frames import rows_of
from flows.ingest import Counts, ingest_paths, ingest_simulated, simulated_label
from flows.records import outcome_frame, stored_rounds
from flows.runs import LIVE, save_run
from flows.scoring_turns import score_turns
from flows.turn import Turn, staged
from flows.work import Work, pool_names
from optimization.learners import learner_named
from optimization.ledger import leaderboard
from optimization.policy import Policy
from warehouse.store import observed_sources


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
