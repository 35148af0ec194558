"""Fill a request: from a few fields to a configuration, a job, and what it is expected to cost (M9.1, M9.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from optimization.policies.contract import Policy
from optimization.replay.decision import Effort
from optimization.requests.candidates import Candidate, candidates_of
from optimization.requests.choice import (
    Loser,
    MarketNow,
    Planned,
    chosen_of,
    finalists_of,
    losers_of,
    planned_of,
    require_in_time,
    screened_of,
)
from optimization.requests.offers import Offer, offer_of
from optimization.requests.request import Completed, TuningRequest, completed
from optimization.requests.widths import Knowledge, Predictions

#: Configurations that are planned on forecasts.
PLANS = 6
#: What a person waits for: see `Effort`.
EFFORT = Effort(solver_seconds=10.0, risk_paths=200, seed=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A filled request: the configuration that won, those that lost and why, what could not run, and what was assumed."""

    asked: Completed
    winner: Planned
    losers: tuple[Loser, ...]
    rejected: tuple[str, ...]
    assumed: tuple[str, ...]
    knowledge: Knowledge


def fill(
    request: TuningRequest,
    markets: Sequence[MarketNow],
    predictions: Predictions,
    policy: Policy[Any],
    *,
    effort: Effort = EFFORT,
    plans: int = PLANS,
) -> Filled:
    """Choose GPU, market, number of instances and batch of a fine-tuning, and plan it, on markets as they are known now.

    The histories share one slot length. ``predictions`` say how fast a configuration trains and whether it fits into memory
    (`forecasting.configurations.model.fit_configurations` makes them). Raises `JobError` where nothing can run, nothing is
    in time or nothing is within the budget; `MarketError` for a market whose GPU is not known.
    """
    known = {offer_of(one.history): one for one in markets}
    return fill_offers(
        completed(request),
        list(known),
        Knowledge(model=predictions),
        policy,
        step=markets[0].history.step,
        markets=lambda finalists: {offer.key: known[offer] for offer in finalists},
        effort=effort,
        plans=plans,
    )


def fill_offers(
    asked: Completed,
    offers: Sequence[Offer],
    knowledge: Knowledge,
    policy: Policy[Any],
    *,
    step: pd.Timedelta,
    markets: Callable[[Sequence[Offer]], Mapping[str, MarketNow]],
    effort: Effort = EFFORT,
    plans: int = PLANS,
) -> Filled:
    """`fill` where forecasts cost more than screening: ``markets`` is asked once, for the offers of the finalists only."""
    rejected: list[str] = []
    screened = screened_of(candidates_of(asked, offers, knowledge, rejected), step)
    require_in_time(asked, screened, step)
    finalists = finalists_of(screened, most=plans, objective=asked.request.objective)
    now = markets(list({one.candidate.offer.key: one.candidate.offer for one in finalists}.values()))
    planned = planned_of(finalists, now, policy, effort)
    winner = chosen_of(asked, planned)
    return Filled(
        asked=asked,
        winner=winner,
        losers=tuple(losers_of(asked, winner, planned, screened, step)),
        rejected=tuple(rejected),
        assumed=(*asked.assumed, *_assumed(winner.candidate, asked)),
        knowledge=knowledge,
    )


def _assumed(winner: Candidate, asked: Completed) -> list[str]:
    """What is assumed of how the job runs, beyond the defaults of the request."""
    request, terms = asked.request, winner.terms
    found = []
    if request.batch_size is None:
        found.append(
            f"batch_size = {terms.batch_size}: chosen for cost among those tried; that it trains as well is for you to judge"
        )
    uneven = [
        one.instances
        for one in winner.widths
        if one.rounds * (one.configuration.batch_size if one.configuration else 0) != terms.batch_size
    ]
    if uneven:
        found.append(
            f"on {', '.join(map(str, uneven))} instances the {terms.batch_size} samples of a step "
            "do not divide: GPUs that run out of samples idle"
        )
    if winner.widths[-1].instances > 1:
        own = f"{terms.gpus} GPU{'s' if terms.gpus > 1 else ''}"
        found.append(
            f"instances are machines of their own: n of them are n nodes of {own}, joined as fast as those of the measured runs"
        )
    first = winner.widths[0]
    if first.instances > 1:
        found.append(f"at least {first.instances} instances: with fewer it is not sure to fit into memory")
    if not first.sure:
        found.append(
            f"{first.instances} instances hold it with probability {first.p_valid:.2f} only, and none are surer"
        )
    return found
