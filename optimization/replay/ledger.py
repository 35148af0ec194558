"""What each policy made of each job, beside hindsight and beside itself with perfect forecasts (M5.5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from optimization.job.definition import Job
from optimization.market.window import MarketWindow, PointForecast, Record, certain
from optimization.policies.baselines import OnDemandOnly
from optimization.policies.contract import Policy
from optimization.replay.run import PlanMemo, replay, replay_pool
from optimization.selection.weights import Weights, normalised, utility_bounds
from optimization.window.plan import Outcome
from warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One policy on one job.

    ``utility`` and ``gap_to_hindsight`` are in units of the job's on-demand-only cost ``on_demand_only_usd``;
    ``normalised`` is the utility in the fixed bounds of M5.2. ``gap_to_hindsight_usd`` is the feasible end of
    the hindsight bracket minus the utility. ``lost_to_forecast_error_usd`` is the utility with perfect
    forecasts minus the utility with the issued ones, NaN if not asked for; it can be negative, when an error
    happened to help. ``finish_slots`` is None if the job was given up.
    """

    job: str
    policy: str
    utility_usd: float
    utility: float
    normalised: float
    cost_usd: float
    finish_slots: int | None
    on_time: bool
    spot_share: float
    on_demand_only_usd: float
    gap_to_hindsight_usd: float
    gap_to_hindsight: float
    lost_to_forecast_error_usd: float


def on_demand_only_cost(job: Job, window: MarketWindow) -> float:
    """All that OD-only pays for the job, after d too, in USD: the unit in which jobs are compared."""
    return replay(OnDemandOnly(), job, window).total_cost_usd


def perfect_forecasts(window: MarketWindow, horizon: int) -> list[PointForecast]:
    """For each slot the forecast that was never wrong: the next ``horizon`` slots of the window as they came.

    At the window's end it shortens, down to no step. In a gap it says what the window says: no spot, at
    on-demand's price.
    """
    if horizon < 1:
        raise SettingsError(f"horizon of {horizon} slots", expected="at least one")
    return [
        certain(window.price[t + 1 : t + 1 + horizon], window.available[t + 1 : t + 1 + horizon])
        for t in range(len(window))
    ]


def perfect_outcomes(
    policies: Sequence[Policy[Any]],
    job: Job,
    window: MarketWindow,
    *,
    forecasts: Sequence[PointForecast | None],
    record: Record | None = None,
    memo: PlanMemo | None = None,
) -> list[Outcome] | None:
    """The same policies on the same job, had every forecast been right as far ahead as the issued ones look (M5.5).

    ``memo`` shares plans with the replay under the issued forecasts. None if no forecast was issued: then
    there is no error to have lost anything to.
    """
    ahead = max((len(forecast.price) for forecast in forecasts if forecast is not None), default=0)
    if ahead == 0:
        return None
    right = [
        None if issued is None else known
        for issued, known in zip(forecasts, perfect_forecasts(window, ahead), strict=True)
    ]
    return replay_pool(policies, job, window, forecasts=right, record=record, memo=memo)


def score(
    job: Job,
    window: MarketWindow,
    outcomes: Sequence[Outcome],
    *,
    hindsight_low: float,
    perfect: Sequence[Outcome] | None = None,
) -> list[LedgerRow]:
    """Ledger rows of one job from its outcomes, one a policy, in their order.

    ``hindsight_low`` is the feasible end of the bracket of M4.7, USD; ``perfect`` the outcomes of the same
    policies in the same order under `perfect_forecasts`. Raises `SettingsError` if the two do not match.
    """
    if perfect is not None and [o.policy for o in perfect] != [o.policy for o in outcomes]:
        raise SettingsError(
            "perfect outcomes of other policies", expected="the same policies in the same order"
        )
    unit = on_demand_only_cost(job, window)
    bounds = utility_bounds(job, on_demand_usd=window.on_demand_usd, slot_hours=window.slot_hours)
    rows = []
    for i, outcome in enumerate(outcomes):
        utility = outcome.utility_usd
        gap = hindsight_low - utility
        rows.append(
            LedgerRow(
                job=job.name,
                policy=outcome.policy,
                utility_usd=utility,
                utility=utility / unit,
                normalised=float(normalised(np.array(utility), bounds)),
                cost_usd=outcome.total_cost_usd,
                finish_slots=outcome.finish_slots,
                on_time=outcome.on_time,
                spot_share=outcome.spot_share,
                on_demand_only_usd=unit,
                gap_to_hindsight_usd=gap,
                gap_to_hindsight=gap / unit,
                lost_to_forecast_error_usd=(
                    perfect[i].utility_usd - utility if perfect is not None else float("nan")
                ),
            )
        )
    return rows


def ledger_frame(rows: Iterable[LedgerRow]) -> pd.DataFrame:
    """Ledger rows as one long table, a column per field of `LedgerRow`."""
    return pd.DataFrame([asdict(row) for row in rows])


def leaderboard(rows: Iterable[LedgerRow] | pd.DataFrame, weights: Weights | None = None) -> pd.DataFrame:
    """Mean result per policy, best first.

    Columns: policy, jobs, mean_utility and gap_to_hindsight (units of each job's on-demand-only cost),
    mean_utility_usd, mean_cost_usd, on_time (share of jobs finished by d), weight (NaN without ``weights`` or
    for a policy they do not know). ``rows`` as a table needs only the columns policy, utility, utility_usd,
    cost_usd, on_time, gap_to_hindsight.
    """
    frame = rows if isinstance(rows, pd.DataFrame) else ledger_frame(rows)
    if frame.empty:
        raise SettingsError("a leaderboard of no jobs", expected="at least one scored job")
    board = (
        frame.groupby("policy", sort=False)
        .agg(
            jobs=("utility", "size"),
            mean_utility=("utility", "mean"),
            mean_utility_usd=("utility_usd", "mean"),
            mean_cost_usd=("cost_usd", "mean"),
            on_time=("on_time", "mean"),
            gap_to_hindsight=("gap_to_hindsight", "mean"),
        )
        .reset_index()
    )
    known = dict(zip(weights.names, weights.probability.tolist(), strict=True)) if weights else {}
    board["weight"] = [known.get(name, float("nan")) for name in board["policy"]]
    return board.sort_values("mean_utility", ascending=False, kind="stable", ignore_index=True)
