"""Score an ended job: the pool replayed on its market, which is known by then (M5.1), audited, beside hindsight (M4.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from forecasting.quantiles import Forecast
from optimization.job.definition import Job
from optimization.market.window import market_window, point_forecast
from optimization.policies.contract import Policy
from optimization.replay.hindsight import hindsight
from optimization.replay.ledger import LedgerRow, perfect_outcomes, score
from optimization.replay.record import market_record
from optimization.replay.run import Case, Forecasts, PlanMemo, replay_pool
from optimization.window.audit import audit_outcome
from optimization.window.plan import Outcome
from warehouse.errors import MarketError
from warehouse.history import AVAILABLE, PRICE, History


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob(Case):
    """A job whose market is known to its deadline, with the forecasts issued in its slots.

    ``start`` is the start of its slot 0, ``assumptions`` what of its market was assumed instead of measured. ``record`` is what its
    policies may learn from, up to the job's last slot; None gives them no more than the window.
    """

    start: pd.Timestamp
    forecasts: Forecasts
    assumptions: tuple[str, ...] = ()


def ended_job(
    job: Job,
    start: pd.Timestamp,
    history: History,
    forecasts: Sequence[Forecast],
    peers: Sequence[History] = (),
) -> EndedJob:
    """Cut a job's slots out of its market's history and put the forecasts at the slots they were issued in.

    What the history holds from before ``start``, and ``peers`` beside it, become the record. Raises `MarketError` where the history
    does not reach from the first slot to the last before the deadline.
    """
    grid = pd.date_range(start, periods=job.deadline_slots, freq=history.step)
    if not grid.isin(history.slots).all():
        record = f"{history.slots[0]} to {history.slots[-1]}" if len(history.slots) else "empty"
        raise MarketError(
            f"job {job.name!r} runs from {grid[0]} to {grid[-1]}, the record of {history.market.key} is {record}",
            expected="a record that covers the job",
            remedy="choose an earlier --from or a shorter deadline",
        )
    rows = history.frame.loc[grid]
    issued = {forecast.issued_at: point_forecast(forecast) for forecast in forecasts}
    return EndedJob(
        job=job,
        start=grid[0],
        window=market_window(
            rows[PRICE].to_numpy(dtype=float),
            rows[AVAILABLE].to_numpy(dtype=float),
            on_demand_usd=history.on_demand_usd,
            slot_hours=history.slot_hours,
        ),
        forecasts=[issued.get(slot) for slot in grid],
        record=market_record(history, peers, first=grid[0], last=grid[-1], known_by=grid[0]),
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

    def utilities(self) -> dict[str, float]:
        """What each policy is learned by: its utility in the job's fixed bounds, in [0, 1] (M5.2)."""
        return {row.policy: row.normalised for row in self.ledger}


def score_job(ended: EndedJob, policies: Sequence[Policy[Any]]) -> Scored:
    """Replay policies on one job; every outcome is audited before it counts (M3.5)."""
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
