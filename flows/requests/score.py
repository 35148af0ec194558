"""The rest of the loop for a filled request: replay it on the market's record to its deadline and score it (M9.4, M5.1, M5.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from flows.ledger.fields import BASELINES
from flows.requests.fill import Filled
from flows.requests.offers import followed_of
from flows.turn.context import Turn
from flows.turn.forecast import forecasts_of, ready
from flows.turn.markets import Followed, peers_of, step_of
from optimization.job.request import first_slot, job_on
from optimization.policies import OnDemandOnly
from optimization.policies.contract import Policy
from optimization.policies.pool import policy_named
from optimization.replay.decision import record_start
from optimization.replay.run import PlanMemo, replay_pool
from optimization.replay.score import EndedJob, Scored, ended_job, score_job
from optimization.requests.candidates import filled_of, with_rates
from optimization.requests.choice import Misjudged, Planned
from optimization.window.plan import Outcome
from warehouse.errors import MarketError
from warehouse.observations import list_markets


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A filled request that was replayed: the winner scored, with its throughput at both ends too, and the runners-up
    replayed.

    ``policies`` names the rows of ``scored``, the deciding policy first. ``others`` has (runner-up, deciding policy,
    on-demand only).
    """

    scored: Scored
    low: Outcome
    high: Outcome
    others: tuple[tuple[Planned, Outcome, Outcome], ...]


def run_filled(turn: Turn, filled: Filled, policy: Policy[Any]) -> Ran:
    """Replay the winner and every runner-up that was planned, with the forecasts as they would have been issued slot by
    slot (M5.1).

    This is the one part that reads what came after the turn's time. Raises `MarketError` where a record ends before the
    deadline.
    """
    planned = [filled.winner, *(one.planned for one in filled.losers if one.planned is not None)]
    ended = _ended(turn, planned)
    names = [name for name in BASELINES if name != policy.name]
    scored = score_job(ended[0], [policy, *(policy_named(name) for name in names)])
    others = []
    for one, its in zip(planned[1:], ended[1:], strict=True):
        decided, alone = _replayed(its, [policy, OnDemandOnly()])
        others.append((one, decided, alone))
    return Ran(
        scored=scored,
        low=_misjudged(ended[0], planned[0], policy, "low"),
        high=_misjudged(ended[0], planned[0], policy, "high"),
        others=tuple(others),
    )


def _ended(turn: Turn, planned: Sequence[Planned]) -> list[EndedJob]:
    """Every planned job with its market to the deadline and the forecasts of each of its slots."""
    step, listed = step_of(turn.settings), list_markets(turn.store)
    ends = dict(
        zip(zip(listed["market"], listed["source"], strict=True), listed["last_observed"], strict=True)
    )
    slots: dict[Followed, list[pd.Timestamp]] = {}
    whole: dict[Followed, Followed] = {}
    for one in planned:
        followed, request = followed_of(one.candidate.offer), one.candidate.request
        first, last = first_slot(request, step), request.ends.floor(step) - step
        newest = ends[(followed.market.key, followed.source)]
        if newest < last - step:
            raise MarketError(
                f"the record of {followed.key} ends at {newest}, the job's last slot begins at {last}",
                expected="a record that covers the job",
                remedy="choose an earlier --at or a shorter deadline",
            )
        later = replace(followed, at=last)
        whole[followed] = later
        slots[later] = list(pd.date_range(first, last, freq=step))
    end = replace(turn, at=max(later.at for later in slots))
    histories, prepared = ready(end, slots, [turn.settings.planner])
    forecasts = {
        one: forecasts_of(
            histories[one],
            prepared.batches[one],
            settings=turn.settings,
            horizon=turn.settings.planning_horizon,
        )
        for one in slots
    }
    peers = peers_of(end, list(slots), start=min(record_start(own[0]) for own in slots.values()))
    return [
        ended_job(
            *job_on(one.candidate.request, histories[later]), histories[later], forecasts[later], peers[later]
        )
        for one in planned
        for later in (whole[followed_of(one.candidate.offer)],)
    ]


def _replayed(ended: EndedJob, policies: Sequence[Policy[Any]]) -> list[Outcome]:
    return replay_pool(
        policies,
        ended.job,
        ended.window,
        forecasts=ended.forecasts,
        memo=PlanMemo(),
        record=ended.record,
    )


def _misjudged(ended: EndedJob, planned: Planned, policy: Policy[Any], bound: str) -> Outcome:
    """The same job where its throughput is really at one end of the interval while the plan believes the median."""
    true = with_rates(ended.job, filled_of(planned.candidate.request), bound)
    wrong = Misjudged(policy=policy, believes=ended.job)
    return _replayed(replace(ended, job=true), [wrong])[0]


def score_answer(ran: Ran, filled: Filled, step: pd.Timedelta) -> dict[str, Any]:
    """The scores as plain values."""
    ended, expected = ran.scored.ended, filled.winner.expected
    rows = [
        _outcome_row(outcome, ended.start, step) | {"gap_to_hindsight_usd": row.gap_to_hindsight_usd}
        for outcome, row in zip(ran.scored.outcomes, ran.scored.ledger, strict=True)
    ]
    mine, alone = rows[0], ran.scored.ledger[0].on_demand_only_usd
    best = ran.scored.ended.job.value - ran.scored.hindsight_low
    return {
        "from": ended.start,
        "deadline": ended.start + ended.job.deadline_slots * step,
        "outcome": mine,
        "on_demand_only_usd": alone,
        "saved_share": 1.0 - mine["cost_usd"] / alone,
        "expected_cost_usd": expected.cost_usd,
        "expected_inside": expected.cost_p10_usd - 1e-9 <= mine["cost_usd"] <= expected.cost_p90_usd + 1e-9,
        "policies": rows,
        "hindsight": {
            "low": ran.scored.hindsight_low,
            "high": ran.scored.hindsight_high,
            "cost_usd": best if ended.job.must_finish else None,
        },
        "at_low": _outcome_row(ran.low, ended.start, step),
        "at_high": _outcome_row(ran.high, ended.start, step),
        "runners_up": [
            {
                "label": one.candidate.label,
                "market": one.candidate.offer.key,
                "expected_cost_usd": one.expected.cost_usd,
                **_outcome_row(decided, one.live.start, step),
                "on_demand_only_usd": other.total_cost_usd,
            }
            for one, decided, other in ran.others
        ],
        "regret_usd": mine["cost_usd"]
        - min([mine["cost_usd"], *(d.total_cost_usd for _, d, _ in ran.others)]),
        "gaps": int((~ended.window.observed).sum()),
        "synthetic": list(ended.assumptions),
        "allocations": _slots(ran.scored, step),
    }


def _outcome_row(outcome: Outcome, start: pd.Timestamp, step: pd.Timedelta) -> dict[str, Any]:
    finish = outcome.finish_slots
    return {
        "policy": outcome.policy,
        "cost_usd": outcome.total_cost_usd,
        "finish": None if finish is None else start + finish * step,
        "on_time": outcome.on_time,
        "spot_share": outcome.spot_share,
        "utility_usd": outcome.utility_usd,
    }


def _slots(scored: Scored, step: pd.Timedelta) -> list[dict[str, Any]]:
    window = scored.ended.window
    return [
        {
            "slot": scored.ended.start + t * step,
            "on_demand": held.on_demand,
            "spot": held.spot,
            "price_usd": float(window.price[t]) if window.observed[t] else None,
            "available": int(window.available[t]) if window.observed[t] else None,
        }
        for t, held in enumerate(scored.outcomes[0].allocations)
    ]
