"""Score an ended job that may move: every mover on the records of its markets, beside hindsight over them (M11.8) (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from forecasting.quantiles import Forecast
from optimization.market.window import MarketWindow
from optimization.moving.definition import MovableJob, Mover
from optimization.moving.movers import (
    Alone,
    DeadlinePressure,
    Failover,
    GreedyMover,
    MeanField,
    OneStep,
    stochastic_at_the_start,
)
from optimization.moving.replay import (
    Grounds,
    MovedOutcome,
    audit_moved,
    hindsight_over_markets,
    replay_mover,
    walk,
)
from optimization.policies.stochastic import Stochastic
from optimization.replay.score import EndedJob, Scored, ended_job, ledger_row, on_demand_only_cost
from warehouse.errors import PolicyError
from warehouse.history import History

if TYPE_CHECKING:
    from optimization.market.window import Record

#: The movers that jobs are scored with, and of which one decides. The first does where nothing tells them apart.
MOVERS: tuple[Mover[Any], ...] = (
    MeanField(), OneStep(), Failover(), Failover(fullest=True), DeadlinePressure(), GreedyMover(), stochastic_at_the_start(),
)  # fmt: skip
#: What the outcome in the market is called in which the stochastic policy did best: a bound, as nobody knew which.
BEST_MARKET = "Stochastic in the best market afterwards"
#: What a job can lose of its value, in units of its on-demand-only cost, before its share is 0: the range of M5.2 at the centre of
#: E6, a value of 1.5 and the bound n_max d gamma / L = 3 below 0. So jobs and what E6 measured are told in one currency.
LOST_MOST = 4.5


def mover_named(name: str) -> Mover[Any]:
    """The mover of that name; raises `PolicyError` with the known ones."""
    for mover in MOVERS:
        if mover.name == name:
            return mover
    raise PolicyError(f"mover {name!r}", expected=f"one of {', '.join(repr(mover.name) for mover in MOVERS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedMovable:
    """A job that may move, and what each of its markets, called ``markets``, was to it; in the order of the job's runs."""

    job: MovableJob
    alone: tuple[EndedJob, ...]
    markets: tuple[str, ...]

    @property
    def windows(self) -> tuple[MarketWindow, ...]:
        """What each market gave."""
        return tuple(one.window for one in self.alone)


def ended_movable(
    job: MovableJob,
    start: pd.Timestamp,
    histories: Sequence[History],
    forecasts: Sequence[Sequence[Forecast]],
    peers: Sequence[Sequence[History]],
) -> EndedMovable:
    """Cut a job's slots out of the history of each of its markets; raises as `ended_job` does."""
    return EndedMovable(
        job=job,
        alone=tuple(
            ended_job(run, start, history, ahead, others)
            for run, history, ahead, others in zip(job.runs, histories, forecasts, peers, strict=True)
        ),
        markets=tuple(history.market.key for history in histories),
    )


def score_movable(ended: EndedMovable, movers: Sequence[Mover[Any]], *, each_market: bool = True) -> Scored:
    """Replay movers on one job; every outcome is audited before it counts (M3.5).

    With ``each_market`` the stochastic policy in every market alone as well, of which the best is kept (`BEST_MARKET`). Utilities
    are in units of the least that on-demand alone costs in any market; what is learned by is a share of the range from `LOST_MOST`
    such units below the value up to it.
    """
    job, windows = ended.job, ended.windows
    grounds = Grounds(
        job,
        windows,
        records=[cast("Record", one.record) for one in ended.alone],
        forecasts=[one.forecasts for one in ended.alone],
    )
    outcomes = [_replayed(mover, job, windows, grounds) for mover in movers]
    if each_market:
        alone = [
            _replayed(Alone(policy=Stochastic(), market=m), job, windows, grounds)
            for m in range(len(windows))
        ]
        best = max(alone, key=lambda outcome: outcome.utility_usd)
        outcomes.append(replace(best, policy=BEST_MARKET))
    bracket, value = hindsight_over_markets(job, windows), job.job.value
    known = [window.on_demand.known for window in windows]
    unit = min(
        on_demand_only_cost(run, window)
        for run, window, is_known in zip(job.runs, windows, known, strict=True)
        if is_known or not any(known)
    )
    assumed = dict.fromkeys(text for one in ended.alone for text in one.assumptions)
    return Scored(
        ended=replace(ended.alone[0], job=job.job, assumptions=tuple(assumed)),
        outcomes=outcomes,
        ledger=[
            ledger_row(
                outcome, unit=unit, bounds=(value - LOST_MOST * unit, value), hindsight_low=bracket.low
            )
            for outcome in outcomes
        ],
        hindsight_low=bracket.low,
        hindsight_high=bracket.high,
        on_demand_known=any(known),
        hindsight_usd=walk(job, windows, bracket.held).total_cost_usd,
        markets=ended.markets,
    )


def _replayed(
    mover: Mover[Any], job: MovableJob, windows: Sequence[MarketWindow], grounds: Grounds
) -> MovedOutcome:
    outcome = replay_mover(mover, job, windows, grounds=grounds)
    audit_moved(job, windows, outcome)
    return outcome
