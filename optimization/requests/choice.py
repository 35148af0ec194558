"""Choice of the configuration for a request, with the reasons against others and the expected cost (M9.1, M9.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import pandas as pd

from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.job.definition import Allocation, Job
from slackwater.optimization.job.request import job_on
from slackwater.optimization.moving.definition import in_one_market
from slackwater.optimization.policies.committed_horizon import Solve
from slackwater.optimization.policies.contract import Policy, View, plans_in_world
from slackwater.optimization.replay.ahead import ExpectedOutcome
from slackwater.optimization.replay.decision import Decision, Effort, LiveJob, decide, live_job
from slackwater.optimization.replay.run import Planning
from slackwater.optimization.requests.candidates import (
    Candidate,
    Knowledge,
    Offer,
    OnDemand,
    Predictions,
    candidates_of,
    offer_of,
)
from slackwater.optimization.requests.request import CompletedRequest, TuningRequest, complete_request
from slackwater.warehouse.amounts import duration, percent, usd
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.history import History

# ---
# Policy with a wrong H(n): the cost of an error of the predicted throughput while progress is
# reported (M9.4) (ours).

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class MisjudgingPolicy(Generic[S]):
    """Policy that decides for the job ``believes``, while progress is that of the true job.

    The two jobs may differ in throughput, not in sizes or slots. In every slot the policy receives
    the true work done, as if it were reported, but it never learns the true throughput.
    """

    policy: Policy[S]
    believes: Job

    @property
    def name(self) -> str:
        """Name of the policy that decides."""
        return self.policy.name

    @property
    def plans_in_world(self) -> bool:
        """Whether the policy plans in the world."""
        return plans_in_world(self.policy)

    def start(self, job: Job) -> S:
        """Return the policy's state for the believed job."""
        return self.policy.start(self.believes)

    def decide(self, state: S, view: View) -> tuple[Allocation, S]:
        """Return the policy's decision for the believed job."""
        return self.policy.decide(state, self._as_believed(view))

    def explain(self, state: S, view: View, allocation: Allocation) -> str:
        """Return the policy's reason."""
        return self.policy.explain(state, self._as_believed(view), allocation)

    def with_solver(self, solve: Solve) -> MisjudgingPolicy[S]:
        """Return the same policy with ``solve`` as its solver; policies without planning problems are unchanged."""
        inner = self.policy.with_solver(solve) if isinstance(self.policy, Planning) else self.policy
        return MisjudgingPolicy(policy=inner, believes=self.believes)

    def _as_believed(self, view: View) -> View:
        return replace(view, job=self.believes)


# ---
# Choice of the configuration: candidates to plan, expected cost of each, and the reasons against
# the others (M9).

#: Maximal number of planned candidates with the same GPU model and GPUs per instance, so that other
#: kinds are planned too.
MOST_OF_A_KIND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenedCandidate:
    """Candidate with the results of on-demand only at the median and at the low end, and a rough cost with spot.

    ``cost_usd`` is the cost of the widest width for the duration at the median, with the spot of
    the last day: for ranking only.
    """

    candidate: Candidate
    alone: OnDemand
    alone_low: OnDemand
    cost_usd: float
    hours: float

    @property
    def in_time(self) -> bool:
        """Whether on-demand alone meets the deadline at the low end of the predicted throughput."""
        return self.alone_low.late_by == 0


def screened_of(candidates: Sequence[Candidate], step: pd.Timedelta) -> list[ScreenedCandidate]:
    """Screen every candidate, in the given order."""
    found = []
    for candidate in candidates:
        widest = candidate.widths[-1]
        hours = candidate.request.workload.amount / widest.tokens_per_second / 3600.0
        found.append(
            ScreenedCandidate(
                candidate=candidate,
                alone=candidate.alone(step),
                alone_low=candidate.alone(step, "low"),
                cost_usd=hours * candidate.offer.screened_usd(widest.instances),
                hours=hours,
            )
        )
    return found


def finalists_of(
    screened: Sequence[ScreenedCandidate], *, most: int, objective: str
) -> list[ScreenedCandidate]:
    """Return the best ``most`` candidates that are in time, at most `MOST_OF_A_KIND` of a kind.

    For each market and number of GPUs only the best batch and number format is included. For the objective time the cheapest
    are included as well: a policy waits for spot within the deadline, and so a cheaper candidate may finish first.
    """
    best = _best_of(screened, most=most, objective=objective)
    if objective == "time":
        best += [
            candidate
            for candidate in _best_of(screened, most=most, objective="cost")
            if candidate not in best
        ]
    return best


def _best_of(screened: Sequence[ScreenedCandidate], *, most: int, objective: str) -> list[ScreenedCandidate]:
    ranked = sorted(
        (candidate for candidate in screened if candidate.in_time),
        key=lambda candidate: _rank(candidate, objective),
    )
    kinds: dict[tuple[str, int], int] = {}
    seen: set[tuple[str, int]] = set()
    chosen: list[ScreenedCandidate] = []
    for candidate in ranked:
        kind = candidate.candidate.kind
        same = (candidate.candidate.offer.key, candidate.candidate.gpus)
        if len(chosen) < most and kinds.get(kind, 0) < MOST_OF_A_KIND and same not in seen:
            kinds[kind] = kinds.get(kind, 0) + 1
            seen.add(same)
            chosen.append(candidate)
    return chosen


def _rank(candidate: ScreenedCandidate, objective: str) -> tuple[float, ...]:
    """Return the sort key, best first; within about 1 % the smaller batch, and bfloat16 before float16."""
    cost, hours = (round(math.log(max(value, 1e-9)), 2) for value in (candidate.cost_usd, candidate.hours))
    first, second = (hours, cost) if objective == "time" else (cost, hours)
    terms = candidate.candidate.terms
    return first, second, candidate.candidate.gpus, terms.batch_size, terms.torch_dtype != "bfloat16"


# ---
# Expected cost and finish of the finalists, each planned on the current forecast of its market (M9.4, M4).


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketNow:
    """Planning data of a market: its history up to now, the forecast issued in its last slot, and its peers (M4.6)."""

    history: History
    forecasts: Sequence[Forecast] = ()
    peers: Sequence[History] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCandidate:
    """Candidate planned on the current forecast: its first decision and the expected outcomes.

    ``low`` and ``high`` are the expected outcomes if the true throughput is at that end of the
    interval, while the plan uses the job's H(n) and progress is reported every slot (`MisjudgingPolicy`).
    """

    screened: ScreenedCandidate
    history: History
    live: LiveJob
    decision: Decision
    low: ExpectedOutcome
    high: ExpectedOutcome

    @property
    def candidate(self) -> Candidate:
        """Candidate that was planned."""
        return self.screened.candidate

    @property
    def expected(self) -> ExpectedOutcome:
        """Expected outcome if the throughput is as predicted."""
        return self.decision.expected


def planned_of(
    finalists: Sequence[ScreenedCandidate],
    markets: Mapping[str, MarketNow],
    policy: Policy[Any],
    effort: Effort,
) -> list[PlannedCandidate]:
    """Plan the finalists with a policy; ``markets`` maps each `Offer.key` to data up to the time of the offer."""
    found = []
    for finalist in finalists:
        market = markets[finalist.candidate.offer.key]
        live = live_job(
            *job_on(finalist.candidate.request, market.history),
            market.history,
            decided={},
            forecasts=[market.forecasts],
            peers=[market.peers],
        )
        found.append(
            PlannedCandidate(
                screened=finalist,
                history=market.history,
                live=live,
                decision=decide(live, policy, effort),
                low=_at_end(finalist.candidate, live, policy, effort, "low"),
                high=_at_end(finalist.candidate, live, policy, effort, "high"),
            )
        )
    return found


def _at_end(
    candidate: Candidate, live: LiveJob, policy: Policy[Any], effort: Effort, bound: str
) -> ExpectedOutcome:
    """Return the expected outcome if the true throughput is at an end of its interval, unknown to the plan."""
    (seen,), believed = live.seen, live.run
    true = replace(candidate.job(pd.Timedelta(live.step), bound), value=believed.value)
    other = replace(
        live, job=in_one_market(true, sold=seen.on_demand.sold), seen=(replace(seen, windows={}, tables={}),)
    )
    return decide(other, MisjudgingPolicy(policy=policy, believes=believed), effort).expected


# ---
# Choice of the configuration, and a sentence on the reason against each other configuration (M9.1).

#: Costs (or times) within this share of the least count as equal: forecasts are no more precise (ours).
ALIKE = 0.01
_AMONG = (
    "on the current spot forecast among configurations whose on-demand form alone meets the "
    "deadline at the low end of the predicted "
    "throughput; within one per cent the surer throughput, then the "
)
#: Rule of each objective, as shown to the user.
RULES = {
    "cost": f"the least expected cost {_AMONG}earlier finish",
    "time": f"the earliest expected finish {_AMONG}lower cost",
}
MOST_RUNNERS_UP = 8  # Maximal number of rejected configurations that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """Configuration that was not chosen, with the reason; ``planned`` None: it was only screened."""

    screened: ScreenedCandidate
    planned: PlannedCandidate | None
    why: str


def require_in_time(
    completed: CompletedRequest, screened: Sequence[ScreenedCandidate], step: pd.Timedelta
) -> None:
    """Raise `JobError` with the fastest candidate if none meets the deadline at its low throughput."""
    if any(candidate.in_time for candidate in screened):
        return
    best = min(
        screened,
        key=lambda candidate: (
            candidate.alone_low.late_by,
            candidate.alone_low.slots,
            candidate.alone_low.cost_usd,
        ),
    )
    low, median = best.alone_low, best.alone
    limit = (low.slots - low.late_by) * step
    middle = f"{duration(median.late_by * step)} late" if median.late_by else "in time"
    raise JobError(
        f"no configuration meets the deadline of {completed.name!r} at the low end of its predicted throughput: the fastest, "
        f"{best.candidate.named}, needs {duration(low.slots * step)} on {low.instances} on-demand instances and has "
        f"{duration(limit)}, {duration(low.late_by * step)} too late (at the median {middle})",
        expected="a configuration that is in time",
        remedy="give more time, less work, or more GPUs with number_gpus",
    )


def chosen_of(completed: CompletedRequest, planned: Sequence[PlannedCandidate]) -> PlannedCandidate:
    """Return the best plan by the request's objective; raises `JobError` if none stays within the budget."""
    budget = completed.request.budget_usd
    inside = [plan for plan in planned if budget is None or plan.low.cost_usd <= budget]
    if not inside:
        cheapest = min(planned, key=lambda plan: plan.low.cost_usd)
        raise JobError(
            f"no configuration of {completed.name!r} stays within {budget:g} USD: the cheapest, "
            f"{cheapest.candidate.named}, is expected to cost "
            f"{usd(cheapest.expected.cost_usd)} USD, and {usd(cheapest.low.cost_usd)} USD at the low end of its throughput",
            expected="a cost within budget_usd at the low end of the predicted throughput",
            remedy="raise the budget, give more time or less work",
        )
    least = min(_order(completed, plan)[0] for plan in inside)
    alike = [plan for plan in inside if _order(completed, plan)[0] <= (1.0 + ALIKE) * least]
    return min(alike, key=lambda plan: (throughput_ratio(plan), *_order(completed, plan)[::-1]))


def throughput_ratio(plan: PlannedCandidate) -> float:
    """Return the ratio of high to low throughput of the widest width, to a tenth: a measure of uncertainty."""
    widest = plan.candidate.widths[-1]
    return round(widest.high / widest.low, 1)


def _order(completed: CompletedRequest, plan: PlannedCandidate) -> tuple[float, float]:
    """Return cost and finish, the quantity of the objective first."""
    cost, finish = plan.expected.cost_usd, plan.expected.finish_slots
    return (finish, cost) if completed.request.objective == "time" else (cost, finish)


def runners_up_of(
    completed: CompletedRequest,
    winner: PlannedCandidate,
    planned: Sequence[PlannedCandidate],
    screened: Sequence[ScreenedCandidate],
    step: pd.Timedelta,
) -> list[RunnerUp]:
    """Return the other planned configurations, then the best unplanned configuration of every further kind, best first."""
    rest = sorted((plan for plan in planned if plan is not winner), key=lambda plan: _order(completed, plan))
    runners_up = [
        RunnerUp(screened=plan.screened, planned=plan, why=_why_not_chosen(completed, winner, plan, step))
        for plan in rest
    ]
    reported = {plan.candidate.kind for plan in planned}
    for candidate in sorted(
        screened,
        key=lambda candidate: (not candidate.in_time, candidate.alone_low.late_by, candidate.cost_usd),
    ):
        if candidate.candidate.kind not in reported:
            reported.add(candidate.candidate.kind)
            runners_up.append(
                RunnerUp(screened=candidate, planned=None, why=_why_not_planned(winner, candidate, step))
            )
    return runners_up[:MOST_RUNNERS_UP]


def _why_not_chosen(
    completed: CompletedRequest, winner: PlannedCandidate, other: PlannedCandidate, step: pd.Timedelta
) -> str:
    budget = completed.request.budget_usd
    if budget is not None and other.low.cost_usd > budget:
        return f"would cost {usd(other.low.cost_usd)} USD at the low end of its throughput, the budget is {budget:g} USD"
    more = round(other.expected.cost_usd, 2) - round(winner.expected.cost_usd, 2)
    later = (other.expected.finish_slots - winner.expected.finish_slots) * step
    share = percent(abs(more) / max(winner.expected.cost_usd, 0.01))
    cost = f"{usd(abs(more))} USD ({share}) {'more' if more > 0 else 'less'}"
    cost = "the same" if more == 0.0 else cost
    when = f"{duration(abs(later))} {'later' if later > pd.Timedelta(0) else 'earlier'}"
    when = "at the same time" if abs(later) < pd.Timedelta("3min") else when
    text = f"is expected to cost {cost} and finish {when}"
    if _order(completed, other)[0] > (1.0 + ALIKE) * _order(completed, winner)[0]:
        return text
    if throughput_ratio(other) > throughput_ratio(winner):
        range_of_winner, its = throughput_ratio(winner), throughput_ratio(other)
        return f"{text}: no difference, but its throughput is less sure, high over low {its:.1f} against {range_of_winner:.1f}"
    return f"{text}: no difference by which it would win"


def _why_not_planned(winner: PlannedCandidate, screened: ScreenedCandidate, step: pd.Timedelta) -> str:
    """Return why a screened configuration was not planned with forecasts."""
    if not screened.in_time:
        low = screened.alone_low
        late = duration(low.late_by * step)
        return f"misses the deadline by {late} on {low.instances} on-demand instances at the low end of its throughput"
    return (
        f"not planned: {usd(screened.cost_usd)} USD at the spot prices of the last day, {usd(winner.screened.cost_usd)} USD "
        "for the chosen configuration"
    )


# ---
# Filling of a request: from a few fields to a configuration, a job, and its expected cost (M9.1, M9.4).

PLANS = 6  # Number of configurations that are planned on forecasts
#: Effort limits for interactive use: see `Effort`.
EFFORT = Effort(solver_seconds=10.0, risk_paths=200, seed=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """Filled request: the chosen configuration, the others with reasons, the rejected options and the assumptions."""

    completed: CompletedRequest
    winner: PlannedCandidate
    runners_up: tuple[RunnerUp, ...]
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
    """Choose GPU, market, number of instances and batch of a fine-tuning, and plan it on current market data.

    The histories share a slot length. ``predictions`` give the throughput of a configuration and
    whether it fits into memory (see `slackwater.forecasting.configurations.model.fit_configurations`). Raises
    `JobError` if nothing can run, nothing is in time or nothing is within the budget; `MarketError`
    for a market with an unknown GPU.
    """
    known = {offer_of(market.history): market for market in markets}
    return fill_offers(
        complete_request(request),
        list(known),
        Knowledge(model=predictions),
        policy,
        step=markets[0].history.step,
        markets=lambda finalists: {offer.key: known[offer] for offer in finalists},
        effort=effort,
        plans=plans,
    )


def fill_offers(
    completed: CompletedRequest,
    offers: Sequence[Offer],
    knowledge: Knowledge,
    policy: Policy[Any],
    *,
    step: pd.Timedelta,
    markets: Callable[[Sequence[Offer]], Mapping[str, MarketNow]],
    effort: Effort = EFFORT,
    plans: int = PLANS,
) -> Filled:
    """Fill as `fill` does, with lazy ``markets`` that forecast for the offers of the finalists only."""
    rejected: list[str] = []
    screened = screened_of(candidates_of(completed, offers, knowledge, rejected), step)
    require_in_time(completed, screened, step)
    finalists = finalists_of(screened, most=plans, objective=completed.request.objective)
    now = markets(
        list({finalist.candidate.offer.key: finalist.candidate.offer for finalist in finalists}.values())
    )
    planned = planned_of(finalists, now, policy, effort)
    winner = chosen_of(completed, planned)
    return Filled(
        completed=completed,
        winner=winner,
        runners_up=tuple(runners_up_of(completed, winner, planned, screened, step)),
        rejected=tuple(rejected),
        assumed=(*completed.assumed, *_run_assumptions(winner.candidate, completed)),
        knowledge=knowledge,
    )


def _run_assumptions(winner: Candidate, completed: CompletedRequest) -> list[str]:
    """Return the assumptions about the run of the job, beyond the defaults of the request."""
    request, terms = completed.request, winner.terms
    found = []
    if request.batch_size is None:
        found.append(
            f"batch_size = {terms.batch_size}: chosen for cost among those tried; that it trains as well is for you to judge"
        )
    uneven = [
        width.instances for width in winner.widths if width.rounds * width.round_samples != terms.batch_size
    ]
    if uneven:
        found.append(
            f"on {', '.join(map(str, uneven))} instances the {terms.batch_size} samples of a step "
            "do not divide: GPUs that run out of samples idle"
        )
    if winner.widths[-1].instances > 1:
        own = f"{terms.gpus_per_instance} GPU{'s' if terms.gpus_per_instance > 1 else ''}"
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
