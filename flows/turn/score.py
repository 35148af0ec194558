"""Replay the policy pool on jobs that ended, and learn from it: full information, because the market is known (M5.1)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import pandas as pd

from flows.jobs.record import market_record
from forecasting.quantiles import Forecast
from optimization.job.definition import Job
from optimization.job.request import JobRequest, first_slot, slot_job
from optimization.market.window import MarketWindow, PointForecast, Record, market_window, point_forecast
from optimization.policies.contract import Policy
from optimization.replay.hindsight import hindsight
from optimization.replay.ledger import LedgerRow, perfect_outcomes, score
from optimization.replay.run import PlanMemo, replay_pool
from optimization.window.audit import audit_outcome
from optimization.window.plan import Outcome
from warehouse.errors import MarketError
from warehouse.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job whose market is known to its deadline: the job in slots, its slots of market, the forecasts issued then.

    ``record`` is what its policies may learn from, up to the job's last slot; None gives them no more than the window.
    """

    request: JobRequest
    job: Job
    start: pd.Timestamp
    window: MarketWindow
    forecasts: list[PointForecast | None]
    assumptions: tuple[str, ...]
    record: Record | None = None


def job_slots(request: JobRequest, history: History) -> tuple[Job, pd.DatetimeIndex]:
    """The job in slots and the starts of its slots up to the deadline."""
    job = slot_job(request, step=history.step, on_demand_usd=history.on_demand_usd)
    return job, pd.date_range(
        first_slot(request, history.step), periods=job.deadline_slots, freq=history.step
    )


def ended_job(
    request: JobRequest, history: History, forecasts: Sequence[Forecast], peers: Sequence[History] = ()
) -> EndedJob:
    """Cut a job's slots out of a history and put the forecasts at the slots they were issued in.

    What the history holds from before the job, and ``peers`` beside it, become the record. Raises `MarketError` where the history
    does not reach from the first slot to the last before the deadline.
    """
    job, grid = job_slots(request, history)
    if not grid.isin(history.slots).all():
        record = f"{history.slots[0]} to {history.slots[-1]}" if len(history.slots) else "empty"
        raise MarketError(
            f"job {job.name!r} runs from {grid[0]} to {grid[-1]}, the record of {history.market.key} is {record}",
            expected="a record that covers the job",
            remedy="choose an earlier --from or a shorter deadline",
        )
    rows = history.frame.loc[grid]
    window = market_window(
        rows["price_usd"].to_numpy(dtype=float),
        rows["available"].to_numpy(dtype=float),
        on_demand_usd=history.on_demand_usd,
        slot_hours=history.slot_hours,
    )
    issued = {forecast.issued_at: point_forecast(forecast) for forecast in forecasts}
    return EndedJob(
        request=request,
        job=job,
        start=grid[0],
        window=window,
        record=market_record(history, peers, first=grid[0], last=grid[-1], known_by=grid[0]),
        forecasts=[issued.get(slot) for slot in grid],
        assumptions=history.assumptions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Every policy's outcome on one job, its ledger rows in the same order, and the bracket of hindsight (USD)."""

    ended: EndedJob
    outcomes: list[Outcome]
    ledger: list[LedgerRow]
    hindsight_low: float
    hindsight_high: float


def score_job(ended: EndedJob, policies: Sequence[Policy[Any]]) -> Scored:
    """Replay the pool on one job; every outcome is audited before it counts (M3.5)."""
    memo, record = PlanMemo(), ended.record
    outcomes = replay_pool(
        policies, ended.job, ended.window, forecasts=ended.forecasts, memo=memo, record=record
    )
    for outcome in outcomes:
        audit_outcome(ended.job, ended.window, outcome)
    bracket = hindsight(ended.job, ended.window)
    perfect = perfect_outcomes(
        policies, ended.job, ended.window, forecasts=ended.forecasts, record=record, memo=memo
    )
    return Scored(
        ended=ended,
        outcomes=outcomes,
        ledger=score(ended.job, ended.window, outcomes, hindsight_low=bracket.low, perfect=perfect),
        hindsight_low=bracket.low,
        hindsight_high=bracket.high,
    )


def outcome_rows(scored: Scored, *, at: pd.Timestamp) -> list[dict[str, Any]]:
    """Rows for the warehouse's table of outcomes, one a policy."""
    return [
        {
            "job": row.job,
            "policy": row.policy,
            "scored_at": at,
            "utility_usd": row.utility_usd,
            "value_usd": outcome.value_usd,
            "cost_usd": row.cost_usd,
            "termination_cost_usd": outcome.termination_cost_usd,
            "on_time": row.on_time,
            "finished_slot": outcome.finished_slot,
            "finish_slots": outcome.finish_slots,
            "spot_share": row.spot_share,
            "progress": outcome.progress,
            "utility_normalised": row.normalised,
            "hindsight_low_usd": scored.hindsight_low,
            "hindsight_high_usd": scored.hindsight_high,
            "allocations": json.dumps([[a.on_demand, a.spot] for a in outcome.allocations]),
            "details": json.dumps(
                {
                    "utility": row.utility,
                    "gap_to_hindsight": row.gap_to_hindsight,
                    "on_demand_only_usd": row.on_demand_only_usd,
                    "lost_to_forecast_error_usd": (
                        None if isnan(row.lost_to_forecast_error_usd) else row.lost_to_forecast_error_usd
                    ),
                    "synthetic": list(scored.ended.assumptions),
                }
            ),
        }
        for row, outcome in zip(scored.ledger, scored.outcomes, strict=True)
    ]
