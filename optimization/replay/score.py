"""Scores of ended jobs replayed in the world, with hindsight of the slot model (M4.7, M5.1, M5.5, M12.13)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.job.definition import Allocation, Job, Progress, is_finished
from slackwater.optimization.market.window import (
    MarketWindow,
    PointForecast,
    certain,
    payable,
    point_forecast,
    spot_ceiling,
)
from slackwater.optimization.moving.adapter import InOneMarket
from slackwater.optimization.moving.definition import MarketsJob, MultiMarketPolicy, in_one_market
from slackwater.optimization.policies.baselines import OnDemandOnly
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pace import step
from slackwater.optimization.policies.stochastic import Stochastic
from slackwater.optimization.replay.decision import market_record
from slackwater.optimization.replay.run import Case, PlanMemo, see, settle
from slackwater.optimization.selection.contract import Weights, normalise, utility_bounds
from slackwater.optimization.window.plan import EndRule, HorizonProblem, Model, Outcome
from slackwater.optimization.window.twin import solve_window
from slackwater.optimization.world.audit import audit_in_world
from slackwater.optimization.world.readings import market_readings, readings_inside
from slackwater.optimization.world.replay import (
    SECONDS_PER_HOUR,
    Launcher,
    WorldCase,
    WorldOutcome,
    replay_in_world,
)
from slackwater.optimization.world.terms import on_demand_alone, world_terms
from slackwater.warehouse.errors import MarketError, SettingsError
from slackwater.warehouse.history import OBSERVED, History


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """Bracket [``low``, ``high``] of the hindsight optimum in USD of utility; ``allocations`` achieve ``low`` at ``cost_usd``.

    ``allocations`` covers the slots up to the finish or the deadline, as in `Outcome`. ``low`` and
    ``cost_usd`` include the ending of M2.6.
    """

    low: float
    high: float
    allocations: tuple[Allocation, ...]
    cost_usd: float


def hindsight(job: Job, window: MarketWindow) -> Bracket:
    """Return the hindsight optimum of a job from slot 0 on a window of at least d known slots, including its ending of M2.6.

    It is the horizon program over all d slots with on-demand to go (M3.3b with t + w = d is M2.6),
    solved by the exact twin. The bracket closes unless the twin reaches its label limit; then
    ``high`` is the bound it proved. For a job that cannot resume, the optimum is that without spot
    (M2.7). Raises `MarketError` for a window shorter than d.
    """
    d = job.deadline_slots
    if len(window) < d:
        raise MarketError(f"job {job.name!r}: a window of {len(window)} slots", expected=f"at least d = {d}")
    problem = HorizonProblem(
        job=job,
        slot=0,
        done=0.0,
        n_previous=0,
        window=replace(window.cut(0, d), available=window.available[:d] * job.resumable),
        end_rule=EndRule.ON_DEMAND_TO_GO,
    )
    plan = solve_window(problem)
    allocations = _up_to_finish(job, window.slot_hours, plan.allocations)
    return Bracket(
        low=plan.objective,
        high=max(plan.bound, plan.objective),
        allocations=allocations,
        cost_usd=_cost(job, window, allocations),
    )


def _cost(job: Job, window: MarketWindow, allocations: Sequence[Allocation]) -> float:
    """Return the total cost in USD of given allocations, including the ending of M2.6."""
    seen, progress = see(job, window, None), Progress()
    for slot, allocation in enumerate(allocations):
        progress = step(progress, allocation, seen.view(job, progress, slot))
    end = settle("hindsight", job, tuple(allocations), (len(allocations), progress), seen)
    return end.total_cost_usd


def _up_to_finish(job: Job, slot_hours: float, allocations: tuple[Allocation, ...]) -> tuple[Allocation, ...]:
    done, before = 0.0, 0
    for slot, a in enumerate(allocations):
        if is_finished(done, job.workload):
            return allocations[:slot]
        done += job.efficiency(a.total, before) * job.throughput.rate(a.total) * slot_hours
        before = a.total
    return allocations


# ---
# Results of each policy on each job, compared with hindsight and with perfect forecasts (M5.5).


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """Result of a policy on a job.

    ``utility`` and ``gap_to_hindsight`` are in units of the job's on-demand-only cost ``on_demand_only_usd``;
    ``normalised`` is the utility in the fixed bounds of M5.2. ``gap_to_hindsight_usd`` is the feasible end of
    the hindsight bracket minus the utility. ``lost_to_forecast_error_usd`` is the utility with perfect
    forecasts minus the utility with the issued forecasts, NaN if not computed; it is negative if an error
    happened to help. ``finish_slots`` is None if the job was given up. ``model`` is the model of the outcome;
    the hindsight bracket is always of the slot model, so that the gap of an outcome in the world may be
    negative.
    """

    job: str
    policy: str
    model: str
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


def on_demand_only_in_world(job: Job, window: MarketWindow) -> tuple[int, float]:
    """Return number and cost, USD, of on-demand only in the world, at the price of `unit_window` if none is sold (M12.13)."""
    usd, hours = unit_window(window).on_demand_usd, window.slot_hours
    terms = world_terms(job, on_demand_usd=usd, slot_hours=hours)
    return on_demand_alone(terms, job.deadline_slots * hours * SECONDS_PER_HOUR)


def unit_window(window: MarketWindow) -> MarketWindow:
    """Return the window whose on-demand price is the unit; if none is sold, the highest spot price (1 USD: none)."""
    if window.on_demand.sold:
        return window
    prices = window.price[window.observed & (window.price > 0)]
    usd = float(prices.max()) if len(prices) else 1.0
    return replace(window, on_demand_usd=usd, on_demand=OBSERVED)


def perfect_forecasts(window: MarketWindow, horizon: int) -> list[PointForecast]:
    """Return a perfect forecast for each slot: the next ``horizon`` slots of the window.

    Forecasts get shorter towards the window's end, down to no slot. A gap is forecast as in the
    window: no spot, priced at on-demand. Raises `SettingsError` for a horizon below 1.
    """
    if horizon < 1:
        raise SettingsError(f"horizon of {horizon} slots", expected="at least one")
    return [
        certain(window.price[t + 1 : t + 1 + horizon], window.available[t + 1 : t + 1 + horizon])
        for t in range(len(window))
    ]


def with_perfect_forecasts(case: Case) -> Case | None:
    """Return a case with perfect forecasts of the lengths issued (M5.5); None if no forecast was issued."""
    forecasts = case.forecasts or ()
    ahead = max((len(forecast.price) for forecast in forecasts if forecast is not None), default=0)
    if ahead == 0:
        return None
    right = [
        None if issued is None else perfect
        for issued, perfect in zip(forecasts, perfect_forecasts(case.window, ahead), strict=True)
    ]
    return replace(case, forecasts=right)


def ledger_row(
    outcome: Outcome,
    *,
    unit: float,
    bounds: tuple[float, float],
    hindsight_low: float,
    perfect_usd: float = float("nan"),
) -> LedgerRow:
    """Return the ledger row of an outcome; ``perfect_usd`` and ``hindsight_low`` are utilities in USD.

    ``unit`` is the job's on-demand-only cost, ``bounds`` the utilities that are normalised to 0 and
    1. ``perfect_usd`` is the utility with perfect forecasts, NaN if not computed.
    """
    utility = outcome.utility_usd
    gap = hindsight_low - utility
    return LedgerRow(
        job=outcome.job,
        policy=outcome.policy,
        model=outcome.model,
        utility_usd=utility,
        utility=utility / unit,
        normalised=float(normalise(np.array(utility), bounds)),
        cost_usd=outcome.total_cost_usd,
        finish_slots=outcome.finish_slots,
        on_time=outcome.on_time,
        spot_share=outcome.spot_share,
        on_demand_only_usd=unit,
        gap_to_hindsight_usd=gap,
        gap_to_hindsight=gap / unit,
        lost_to_forecast_error_usd=perfect_usd - utility,
    )


def leaderboard(rows: pd.DataFrame, weights: Weights | None = None) -> pd.DataFrame:
    """Return the mean results per policy, best first.

    Columns: policy, jobs, mean_utility and gap_to_hindsight (units of each job's on-demand-only cost),
    mean_utility_usd, mean_cost_usd, mean_on_demand_only_usd (mean over the jobs with a known on-demand-only cost),
    given_up (number of jobs), mean_saved_usd and saved_share (over the finished jobs with a known on-demand-only
    cost, NaN if there are none), mean_hindsight_usd (NaN if that of a job is unknown), on_time (share of jobs
    finished by d), weight (NaN without ``weights`` or for a policy without a weight).

    ``rows`` have the columns policy, utility, utility_usd, cost_usd, on_demand_only_usd, finish_slots (NaN: given
    up), on_time, gap_to_hindsight and hindsight_usd.
    """
    given_up = rows["finish_slots"].isna()
    compared = rows["on_demand_only_usd"].mask(given_up)
    board = (
        rows.assign(given_up=given_up, compared_usd=compared, saved_usd=compared - rows["cost_usd"])
        .groupby("policy", sort=False)
        .agg(
            jobs=("utility", "size"),
            mean_utility=("utility", "mean"),
            mean_utility_usd=("utility_usd", "mean"),
            mean_cost_usd=("cost_usd", "mean"),
            mean_on_demand_only_usd=("on_demand_only_usd", "mean"),
            given_up=("given_up", "sum"),
            mean_saved_usd=("saved_usd", "mean"),
            saved_share=("compared_usd", "mean"),
            mean_hindsight_usd=("hindsight_usd", lambda column: column.mean(skipna=False)),
            on_time=("on_time", "mean"),
            gap_to_hindsight=("gap_to_hindsight", "mean"),
        )
        .reset_index()
    )
    board["saved_share"] = board["mean_saved_usd"] / board["saved_share"]
    probability = dict(zip(weights.names, weights.probability.tolist(), strict=True)) if weights else {}
    board["weight"] = [probability.get(name, float("nan")) for name in board["policy"]]
    return board.sort_values("mean_utility", ascending=False, kind="stable", ignore_index=True)


#: Label of the outcome in the market in which the stochastic policy did best: a bound, since that
#: market was unknown beforehand.
BEST_MARKET = "Stochastic in the best market afterwards"
#: Largest loss of a multi-market job relative to its value, in units of its on-demand-only cost, at
#: which the share is 0: the range of M5.2 at the centre of E6, a value of 1.5 and the bound
#: n_max d gamma / L = 3 below 0. So jobs and the measurements of E6 share a scale.
LOST_MOST = 4.5

# ---
# Scoring of an ended job: the pool is replayed on its market, known by then (M5.1), audited, and
# compared with hindsight (M4.7).


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """Ended job whose M >= 1 markets are known up to its deadline, with the forecasts issued in its slots.

    ``start`` is the start of its slot 0. ``cases`` has its run, window, forecasts and record in
    each market; a record is the data that policies may learn from, up to the job's last slot (None
    restricts them to the window). ``within`` has for each market the counts read inside its slots
    (`market_readings`; empty: none). ``names`` are the names of the markets, and ``assumptions``
    the market data that were assumed instead of measured.
    """

    job: MarketsJob
    start: pd.Timestamp
    cases: tuple[Case, ...]
    within: tuple[np.ndarray | None, ...] = ()
    names: tuple[str, ...] = ("its market",)
    assumptions: tuple[str, ...] = ()

    @property
    def run(self) -> Job:
        """The job in the first of its markets, for the attributes that are equal in all markets."""
        return self.job.job

    @property
    def windows(self) -> tuple[MarketWindow, ...]:
        """Recorded window of each market."""
        return tuple(case.window for case in self.cases)

    @property
    def slot_hours(self) -> float:
        """Delta, in hours."""
        return self.cases[0].window.slot_hours

    @property
    def availability_observed(self) -> bool:
        """Whether the counts of all markets were observed."""
        return all(window.availability_observed for window in self.windows)


def ended_job(
    job: Job | MarketsJob,
    start: pd.Timestamp,
    histories: History | Sequence[History],
    forecasts: Sequence[Sequence[Forecast]] | None = None,
    peers: Sequence[Sequence[History]] | None = None,
) -> EndedJob:
    """Cut a job's slots out of the histories of its markets, in the order of its runs.

    A `Job` with a single `History` is a job in one market. ``forecasts`` and ``peers`` are per
    market; forecasts are aligned with their slots of issue. The history before ``start`` and the
    ``peers`` become the record. Raises `MarketError` if a history does not cover every slot from
    the first to the last before the deadline.
    """
    if isinstance(histories, History):
        histories = (histories,)
    if isinstance(job, Job):
        job = in_one_market(job, sold=histories[0].on_demand.sold)
    nothing: Sequence[Sequence[Any]] = [()] * len(histories)
    cases = [
        _ended_case(run, start, history, ahead, others)
        for run, history, ahead, others in zip(
            job.runs, histories, forecasts or nothing, peers or nothing, strict=True
        )
    ]
    assumed = dict.fromkeys(
        text
        for history in histories
        for text in (*history.assumptions, history.sparse_counts_note)
        if text is not None
    )
    return EndedJob(
        job=job,
        start=start,
        cases=tuple(cases),
        within=tuple(
            readings_inside(history.within, int(history.slots.searchsorted(start)), run.deadline_slots)
            for run, history in zip(job.runs, histories, strict=True)
        ),
        names=tuple(history.market.key for history in histories),
        assumptions=tuple(assumed),
    )


def _span_words(slots: pd.DatetimeIndex) -> str:
    """Return the first and the last of some slots as text."""
    return " to ".join(f"{slot:%Y-%m-%d %H:%M} UTC" for slot in slots[[0, -1]])


def _ended_case(
    job: Job, start: pd.Timestamp, history: History, forecasts: Sequence[Forecast], peers: Sequence[History]
) -> Case:
    grid = pd.date_range(start, periods=job.deadline_slots, freq=history.step)
    if not grid.isin(history.slots).all():
        record = _span_words(history.slots) if len(history.slots) else "empty"
        raise MarketError(
            f"job {job.name!r} has slots from {_span_words(grid)}, the record of {history.market.key} is {record}",
            expected="a record that covers the job",
            remedy="choose an earlier --from or a shorter deadline",
        )
    rows = history.frame.loc[grid]
    history = payable(history, job, Progress(), slot=0)
    ceiling = spot_ceiling(job, history)
    issued = {forecast.issued_at: ceiling.forecast(point_forecast(forecast)) for forecast in forecasts}
    return Case(
        job=job,
        window=ceiling.window(rows, history, job.value),
        forecasts=[issued.get(slot) for slot in grid],
        record=market_record(ceiling.history(history), peers, first=grid[0], last=grid[-1], known_by=grid[0]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredJob:
    """Outcomes of all policies on a job, its ledger rows in the same order, and the hindsight bracket (USD of utility).

    ``hindsight_usd`` is the cost of the bracket's lower end, in the slot model. If ``on_demand_known`` is False,
    figures relative to on-demand only are not meaningful.
    """

    ended: EndedJob
    outcomes: Sequence[Outcome]
    ledger: list[LedgerRow]
    hindsight_low: float
    hindsight_high: float
    hindsight_usd: float
    on_demand_known: bool = True

    @property
    def model(self) -> Model:
        """Model of the outcomes: "world"."""
        return self.outcomes[0].model

    def utilities(self) -> dict[str, float]:
        """Return the utility that each policy is learned by: in the job's fixed bounds, in [0, 1] (M5.2)."""
        return {row.policy: row.normalised for row in self.ledger}


def score_job(
    ended: EndedJob, policies: Sequence[Policy[Any] | MultiMarketPolicy[Any]], *, with_bounds: bool = True
) -> ScoredJob:
    """Replay policies on a job in the world; every outcome is audited before it is used (M12.13).

    Utilities are in units of on-demand only in the cheapest market. ``with_bounds`` replays also
    with perfect forecasts, and a job in several markets instead with the stochastic policy in each
    of them, of which the best outcome is stored as `BEST_MARKET` (M11.8).
    """
    memo, several = PlanMemo(), len(ended.cases) > 1
    outcomes = replay_ended(ended, policies, memo)
    perfect: Sequence[Outcome] | None = None
    if with_bounds and several:
        alone = [InOneMarket(policy=Stochastic(), market=m) for m in range(len(ended.cases))]
        best = max(replay_ended(ended, alone, memo), key=lambda outcome: outcome.utility_usd)
        outcomes.append(replace(best, policy=BEST_MARKET))
    elif with_bounds and (right := with_perfect_forecasts(ended.cases[0])) is not None:
        perfect = replay_ended(replace(ended, cases=(right,)), policies, memo)
    price_known = [window.on_demand.known for window in ended.windows]
    unit = min(
        on_demand_only_in_world(run, window)[1]
        for run, window, is_known in zip(ended.job.runs, ended.windows, price_known, strict=True)
        if is_known or not any(price_known)
    )
    value = ended.run.value
    if several:
        # Imported where it is needed: the kernels of several markets load slowly.
        from slackwater.optimization.moving.hindsight import hindsight_over_markets

        over = hindsight_over_markets(ended.job, ended.windows)
        low, high, usd = over.utility_usd, over.utility_usd, over.cost_usd
        bounds = value - LOST_MOST * unit, value
    else:
        bracket = hindsight(ended.run, ended.windows[0])
        low, high, usd = bracket.low, bracket.high, bracket.cost_usd
        bounds = utility_bounds(
            ended.run, on_demand_usd=unit_window(ended.windows[0]).on_demand_usd, slot_hours=ended.slot_hours
        )
    perfect_usd = [math.nan] * len(outcomes) if perfect is None else [best.utility_usd for best in perfect]
    return ScoredJob(
        ended=ended,
        outcomes=outcomes,
        ledger=[
            ledger_row(outcome, unit=unit, bounds=bounds, hindsight_low=low, perfect_usd=usd_if_perfect)
            for outcome, usd_if_perfect in zip(outcomes, perfect_usd, strict=True)
        ],
        hindsight_low=low,
        hindsight_high=high,
        hindsight_usd=usd,
        on_demand_known=any(price_known),
    )


def ended_in_world(ended: EndedJob) -> WorldCase:
    """Return an ended job in the world, with the readings inside its slots."""
    within = ended.within or (None,) * len(ended.cases)
    readings = [
        market_readings(case.window, inside) for case, inside in zip(ended.cases, within, strict=True)
    ]
    return WorldCase(job=ended.job, cases=ended.cases, readings=tuple(readings))


def replay_ended(
    ended: EndedJob, policies: Sequence[Policy[Any] | MultiMarketPolicy[Any]], memo: PlanMemo | None = None
) -> list[WorldOutcome]:
    """Replay policies on an ended job in the world, deciding at slots, and audit them (M12.13)."""
    case = ended_in_world(ended)
    if len(ended.cases) == 1 and ended.windows[0].on_demand.sold:
        size, _ = on_demand_only_in_world(ended.run, ended.windows[0])
        policies = [
            replace(policy, size=size) if isinstance(policy, OnDemandOnly) else policy for policy in policies
        ]
    outcomes = replay_in_world(policies, case, launcher=Launcher.SLOTS, memo=memo)
    for outcome in outcomes:
        audit_in_world(case, outcome)
    return outcomes
