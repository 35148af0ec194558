"""Scores of an ended multi-market job in the slot model: every policy replayed on the records of its markets (M11.8) (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.moving.adapter import InOneMarket, for_markets
from slackwater.optimization.moving.definition import MarketsJob, MultiMarketPolicy
from slackwater.optimization.moving.replay import (
    Grounds,
    audit_moved,
    hindsight_over_markets,
    replay_over_markets,
    walk,
)
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.stochastic import Stochastic
from slackwater.optimization.replay.score import EndedJob, Scored, ledger_row, on_demand_only_cost
from slackwater.optimization.window.plan import Outcome

#: Label of the outcome in the market in which the stochastic policy did best: a bound, since that
#: market was unknown beforehand.
BEST_MARKET = "Stochastic in the best market afterwards"
#: Largest loss relative to a job's value, in units of its on-demand-only cost, at which the share
#: is 0: the range of M5.2 at the centre of E6, a value of 1.5 and the bound n_max d gamma / L = 3
#: below 0. So jobs and the measurements of E6 share a scale.
LOST_MOST = 4.5


def score_over_markets(
    ended: EndedJob,
    policies: Sequence[Policy[Any] | MultiMarketPolicy[Any]],
    *,
    each_market: bool,
) -> Scored:
    """Replay policies on a job over all its markets; every outcome is audited before it counts (M3.5).

    With ``each_market`` the stochastic policy is also replayed in every single market, and the best
    outcome is stored as `BEST_MARKET`. Utilities are in units of the least on-demand-only cost of
    any market. The share used for learning covers the range from `LOST_MOST` such units below the
    value up to the value.
    """
    job, windows = ended.job, ended.windows
    grounds = Grounds(
        job,
        windows,
        records=[case.record for case in ended.cases],
        forecasts=[case.forecasts for case in ended.cases],
    )
    outcomes = [_replayed(for_markets(policy), job, windows, grounds) for policy in policies]
    if each_market:
        alone = [
            _replayed(InOneMarket(policy=Stochastic(), market=m), job, windows, grounds)
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
    return Scored(
        ended=ended,
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
    )


def _replayed(
    policy: MultiMarketPolicy[Any], job: MarketsJob, windows: Sequence[MarketWindow], grounds: Grounds
) -> Outcome:
    outcome = replay_over_markets(policy, job, windows, grounds=grounds)
    audit_moved(job, windows, outcome)
    return outcome
