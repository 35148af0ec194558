"""What ``replay`` does: one job, one market, one policy or the whole pool, beside hindsight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flows.clock import parse_time
from flows.commands import BOARD_COLUMNS, logical_time, warehouse_for
from flows.config import Settings, read_settings
from flows.forecast import forecasts_of
from flows.jobfile import JobRequest, first_slot, read_request
from flows.known_past import PeerReader, record_start
from flows.markets import Followed, find_market, read_history, step_of
from flows.planning import ready
from flows.printing import print_json, print_table, say_to_stderr
from flows.score import EndedJob, Scored, ended_job, job_slots, score_job
from flows.turn import Turn
from flows.work import pool_of
from forecasting.forecast import Forecast
from optimization.ledger import perfect_forecasts
from optimization.pool import policy_named
from optimization.termination import check_job
from warehouse.errors import MarketError

#: The forecaster that is never wrong: a bound, not a policy.
PERFECT = "perfect"
REPLAY_COLUMNS = {
    "policy": "policy", "cost_usd": "cost $", "value_usd": "value $", "utility_usd": "utility $",
    "utility": BOARD_COLUMNS["mean_utility"], "finish": "finish", "on_time": "on time", "spot_share": "spot share",
    "gap_to_hindsight": "gap to hindsight",
}  # fmt: skip


def replay_command(
    job: Path,
    *,
    market: str,
    policy: str,
    start: str | None,
    model: str | None,
    data: Path | None,
    db: Path,
    settings: Path | None,
    as_json: bool,
) -> None:
    """``slackwater replay``: one job, one market, one policy (or the pool), beside hindsight."""
    chosen = read_settings(settings)
    request = read_request(job)
    planner = model or chosen.planner
    with warehouse_for(db, data, say=say_to_stderr) as store:
        when, _ = logical_time(store, None)
        followed = find_market(store, market, at=when, settings=chosen, own_end=True)
        placed = _placed_in_record(request, followed, parse_time(start, "--from") if start else None, chosen)
        step = step_of(chosen)
        first = first_slot(placed, step)
        if first > followed.at:
            raise MarketError(
                f"job {placed.name!r} starts at {first}, the record of {followed.key} ends at {followed.at}",
                expected="a start within the record",
                remedy="choose an earlier --from",
            )
        turn = Turn(store=store, at=when, settings=chosen, run_id="replay", own_end=True, say=say_to_stderr)
        pool = pool_of(turn)
        ended = _with_forecasts(turn, placed, followed, planner)
    policies = pool if policy == "all" else [policy_named(policy)]
    if policy != "OD-only":
        check_job(ended.job, uses_spot=True)
    scored = score_job(ended, policies)
    rows = [replay_row(scored, i, followed, planner, step) for i in range(len(policies))]
    rows.sort(key=lambda row: -row["utility_usd"])
    if as_json:
        print_json(rows[0] if policy != "all" else {"replays": [_short(row) for row in rows]})
        return
    print_replay(rows, scored)


def _placed_in_record(
    request: JobRequest, followed: Followed, start: pd.Timestamp | None, settings: Settings
) -> JobRequest:
    """The request placed at ``start``, else at its own start, else so that its last slot is the record's last."""
    step = step_of(settings)
    if start is None and request.start is None:
        trial = request.placed(at=followed.at, market=followed.market.key, source=followed.source)
        start = followed.at + step - (trial.ends - trial.starts)
        start = start.ceil(step)
    if start is not None:
        request = request.model_copy(update={"start": start.to_pydatetime()})
    return request.placed(at=followed.at, market=followed.market.key, source=followed.source)


def _with_forecasts(turn: Turn, request: JobRequest, followed: Followed, planner: str) -> EndedJob:
    """The ended job with the forecasts that would have been issued in each of its slots."""
    settings, start = turn.settings, record_start(first_slot(request, step_of(turn.settings)))
    history = read_history(turn.store, followed, settings=settings, start=start)
    peers = PeerReader(turn=turn, start=start).peers_of(followed)
    if planner == PERFECT:
        ended = ended_job(request, history, [], peers)
        return replace(ended, forecasts=list(perfect_forecasts(ended.window, settings.planning_horizon)))
    _, grid = job_slots(request, history)
    inside = [slot for slot in grid if slot in history.slots]
    forecasts: list[Forecast] = []
    if inside:
        histories, prepared = ready(turn, {followed: inside}, [planner])
        forecasts = forecasts_of(
            histories[followed],
            prepared.batches[followed],
            settings=settings,
            horizon=settings.planning_horizon,
        )
    return ended_job(request, history, forecasts, peers)


def replay_row(
    scored: Scored, i: int, followed: Followed, planner: str, step: pd.Timedelta
) -> dict[str, Any]:
    """One replay as plain values: cost, utility, finish, allocations, hindsight bracket."""
    ended, outcome, row = scored.ended, scored.outcomes[i], scored.ledger[i]
    finish = None if outcome.finish_slots is None else ended.start + outcome.finish_slots * step
    slots = [
        {
            "slot": ended.start + t * step,
            "on_demand": a.on_demand,
            "spot": a.spot,
            "price_usd": float(ended.window.price[t]) if ended.window.observed[t] else None,
            "available": int(ended.window.available[t]) if ended.window.observed[t] else None,
        }
        for t, a in enumerate(outcome.allocations)
    ]
    return {
        "job": ended.job.name,
        "market": followed.market.key,
        "source": followed.source,
        "policy": outcome.policy,
        "forecaster": planner,
        "from": ended.start,
        "deadline": ended.start + ended.job.deadline_slots * step,
        "deadline_slots": ended.job.deadline_slots,
        "cost_usd": outcome.total_cost_usd,
        "value_usd": outcome.value_usd,
        "utility_usd": outcome.utility_usd,
        "utility": row.utility,
        "finish": finish,
        "finish_slots": outcome.finish_slots,
        "on_time": outcome.on_time,
        "spot_share": outcome.spot_share,
        "on_demand_only_usd": row.on_demand_only_usd,
        "hindsight": {"low": scored.hindsight_low, "high": scored.hindsight_high},
        "gap_to_hindsight": row.gap_to_hindsight,
        "must_finish": ended.job.must_finish,
        "gaps": int(np.count_nonzero(~ended.window.observed)),
        "synthetic": list(ended.assumptions),
        "allocations": slots,
    }


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "allocations"}


def print_replay(rows: Sequence[Mapping[str, Any]], scored: Scored) -> None:
    """The outcome and, for a single policy, the slots."""
    first = rows[0]
    print_table(
        f"{first['job']} on {first['market']} from {first['from']:%Y-%m-%d %H:%M} UTC, {first['deadline_slots']} slots",
        rows[:20],
        REPLAY_COLUMNS,
    )
    bracket = f"{scored.hindsight_low:.4f} to {scored.hindsight_high:.4f} USD"
    print(f"hindsight: {bracket}; on-demand only costs {first['on_demand_only_usd']:.4f} USD")
    for text in first["synthetic"]:
        print(f"synthetic: {text}")
    if len(rows) == 1:
        print_table(
            "Slots",
            first["allocations"],
            {
                "slot": "slot (UTC)",
                "on_demand": "on-demand",
                "spot": "spot",
                "price_usd": "price $",
                "available": "available",
            },
        )
