"""Replay of policies on a known market (M2.4-M2.6)."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from slackwater.optimization.belief.launches import Launches
from slackwater.optimization.job.definition import (
    ROUNDING_USD,
    Allocation,
    Job,
    Progress,
    check_job,
    guard_usd,
    is_finished,
    on_demand_to_go,
)
from slackwater.optimization.kernels.rules import usable_spot
from slackwater.optimization.market.belief import SlotBeliefs
from slackwater.optimization.market.window import MarketWindow, PointForecast, Record, SpotCeiling
from slackwater.optimization.policies.committed_horizon import Solve, solve_by_labels
from slackwater.optimization.policies.contract import Memoryless, Policy, View, Windows
from slackwater.optimization.policies.pace import step
from slackwater.optimization.window.plan import HorizonProblem, Outcome, Plan, spot_alone
from slackwater.warehouse.errors import MarketError, PolicyError
from slackwater.warehouse.history import OBSERVED, OnDemandOrigin

S = TypeVar("S")
Forecasts = Sequence[PointForecast | None]


@runtime_checkable
class Planning(Protocol):
    """A policy that solves horizon programs with an exchangeable solver."""

    def with_solver(self, solve: Solve) -> Policy[Any]:
        """Return the same policy with its programs solved by ``solve``."""
        ...


@dataclass(slots=True)
class PlanMemo:
    """Solver that shares plans of programs with equal `content`, and views of the same job, market and forecasts."""

    solve: Solve = solve_by_labels
    plans: dict[tuple[object, ...], Plan] = field(default_factory=dict)
    _seen: tuple[SlotMarket, ...] = ()
    _seen_of: tuple[object, ...] = ()

    def __call__(self, problem: HorizonProblem) -> Plan:
        """Return the plan of ``problem``, solved on the first call."""
        key = problem.content()
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = self.solve(problem)
        return plan

    def slot_markets(self, cases: Sequence[Case]) -> tuple[SlotMarket, ...]:
        """Return `see` of each market, reusing those of an earlier replay of the identical job, markets and forecasts."""
        parts = [part for case in cases for part in case.parts]
        same = len(parts) == len(self._seen_of) and all(map(operator.is_, parts, self._seen_of))
        if not same:
            self._seen = tuple(see(*case.parts) for case in cases)
            self._seen_of = tuple(parts)
        return self._seen


def with_shared_plans(policy: Policy[S], memo: PlanMemo) -> Policy[S]:
    """Return the policy with its programs solved through ``memo``, or unchanged if it solves none."""
    return policy.with_solver(memo) if isinstance(policy, Planning) else policy


class NewestReading(NamedTuple):
    """The newest reading of a spot market at a decision, USD per instance-hour; ``elapsed_hours`` since the slot's start."""

    price: float
    available: int
    elapsed_hours: float


@dataclass(frozen=True, slots=True)
class SlotMarket:
    """A market slot by slot as plain numbers, which policies read quickly through views."""

    price: tuple[float, ...]
    available: tuple[int, ...]
    observed: tuple[bool, ...]
    forecast: tuple[PointForecast | None, ...]
    on_demand_usd: float
    slot_hours: float
    beliefs: SlotBeliefs
    record: Record | None = None
    windows: Windows = field(default_factory=dict, compare=False, repr=False)
    tables: dict[tuple[object, ...], object] = field(default_factory=dict, compare=False, repr=False)
    on_demand: OnDemandOrigin = OBSERVED
    availability_observed: bool = True
    quoted: tuple[float, ...] | None = None

    def until(self, slots: int) -> SlotMarket:
        """Return the market in the first ``slots`` slots, with the beliefs of all."""
        return replace(
            self,
            price=self.price[:slots],
            available=self.available[:slots],
            observed=self.observed[:slots],
            quoted=None if self.quoted is None else self.quoted[:slots],
        )

    def view(self, job: Job, progress: Progress, slot: int, newest: NewestReading | None = None) -> View:
        """Return the view of a policy at the start of ``slot``, or at its ``newest`` reading (M12.10)."""
        price, available, elapsed_hours = self.price[slot], self.available[slot], 0.0
        quoted = None if self.quoted is None else self.quoted[slot]
        if newest is not None and self.observed[slot]:
            price, available, elapsed_hours = newest
            if quoted is not None:
                quoted = price
                price = float(SpotCeiling(job.max_spot_usd, self.on_demand_usd).price(np.asarray(price)))
        return View(
            job=job,
            progress=progress,
            slot=slot,
            price=price,
            available=available,
            observed=self.observed[slot],
            on_demand_usd=self.on_demand_usd,
            slot_hours=self.slot_hours,
            forecast=self.forecast[slot],
            past=self.record.until(slot) if self.record is not None else None,
            windows=self.windows,
            tables=self.tables,
            beliefs=self.beliefs,
            on_demand=self.on_demand,
            availability_observed=self.availability_observed,
            quoted=quoted,
            elapsed_hours=elapsed_hours,
        )


def shift_forecast(forecast: PointForecast, age: int) -> PointForecast | None:
    """Return a forecast ``age`` slots after its issue, without its first ``age`` steps; None if none are left."""
    if age >= len(forecast.price):
        return None
    if not age:
        return forecast
    quantiles = forecast.quantiles
    if quantiles is not None:
        quantiles = replace(quantiles, price=quantiles.price[age:], count=quantiles.count[age:])
    return PointForecast(price=forecast.price[age:], available=forecast.available[age:], quantiles=quantiles)


def in_force(forecasts: Forecasts | None, slots: int) -> tuple[PointForecast | None, ...]:
    """Return the newest forecast in each slot, shifted to it: element t was issued in slot t or before; None if there is none."""
    if forecasts is None:
        return (None,) * slots
    if len(forecasts) < slots:
        raise MarketError(f"{len(forecasts)} forecasts", expected=f"one (or None) for each of {slots} slots")
    chosen: list[PointForecast | None] = []
    newest, issued = None, 0
    for slot in range(slots):
        if forecasts[slot] is not None:
            newest, issued = forecasts[slot], slot
        chosen.append(shift_forecast(newest, slot - issued) if newest is not None else None)
    return tuple(chosen)


def see(
    job: Job,
    window: MarketWindow,
    forecasts: Forecasts | None,
    record: Record | None = None,
    launches: Launches | None = None,
) -> SlotMarket:
    """Prepare a market and forecasts for replays (``launches``: M13); raises `MarketError` if too short or no numbers."""
    d = job.deadline_slots
    if len(window) < d:
        raise MarketError(
            f"job {job.name!r}: a window of {len(window)} slots",
            expected=f"at least its deadline of {d} slots",
        )
    if not (np.isfinite(window.price[:d]).all() and (window.available[:d] >= 0).all()):
        raise MarketError(
            f"job {job.name!r}: prices or counts that are no numbers", expected="market_window(...)"
        )
    observed = window.observed[:d]
    ahead = in_force(forecasts, d)
    return SlotMarket(
        price=tuple(window.price[:d].tolist()),
        available=tuple(int(count) for count in window.available[:d].tolist()),
        observed=tuple(observed.tolist()),
        forecast=ahead,
        on_demand_usd=window.on_demand_usd,
        slot_hours=window.slot_hours,
        on_demand=window.on_demand,
        availability_observed=window.availability_observed,
        quoted=None if window.quoted is None else tuple(window.quoted[:d].tolist()),
        record=record,
        beliefs=SlotBeliefs(
            price=np.where(observed, window.price[:d], np.nan),
            available=np.where(observed, window.available[:d], np.nan),
            forecasts=ahead,
            slot_hours=window.slot_hours,
            on_demand_usd=window.on_demand_usd,
            record=record,
            launches=launches,
        ),
    )


def check_allocation(allocation: Allocation, view: View, policy: str) -> Allocation:
    """Return a `legal` allocation within the budget (M2.10); raises its errors."""
    wish = legal(allocation, view, policy)
    return wish if math.isinf(view.job.budget_usd) else within_budget(wish, view)


def legal(allocation: Allocation, view: View, policy: str) -> Allocation:
    """Return ``allocation`` as plain whole numbers, without on-demand where none is sold (M2.3).

    Raises `PolicyError` if it violates M2.3 or uses spot above the job's price ceiling, `JobError`
    if it violates M2.7.
    """
    job = view.job
    try:
        on_demand, spot = operator.index(allocation.on_demand), operator.index(allocation.spot)
    except TypeError as error:
        raise PolicyError(
            f"{policy} in slot {view.slot} asks for {allocation}", expected="whole numbers of instances"
        ) from error
    if on_demand < 0 or not 0 <= spot <= view.available:
        raise PolicyError(
            f"{policy} in slot {view.slot} asks for {on_demand} on-demand and {spot} spot",
            expected=f"on-demand >= 0 and spot within 0..{view.available}, what is there",
        )
    n = on_demand + spot
    if n and not job.n_min <= n <= job.n_max:
        raise PolicyError(
            f"{policy} in slot {view.slot} asks for {n} instances", expected=f"0 or {job.n_min}..{job.n_max}"
        )
    if spot and view.above_ceiling:
        raise PolicyError(
            f"{policy} in slot {view.slot} asks for {spot} spot at {view.quoted} USD",
            expected=f"none above the job's max_spot_usd, {job.max_spot_usd}",
        )
    if spot:
        check_job(job, uses_spot=True)
    if on_demand and not view.on_demand.sold:
        return spot_alone(spot, job.n_min)
    return Allocation(on_demand, spot)


def within_budget(wish: Allocation, view: View) -> Allocation:
    """Return ``wish``, or an allocation that keeps the job within its budget (M2.10).

    While the budget pays for finishing on demand, it must still do so after the slot, without any
    further spot. If ``wish`` violates this, the allocation with the least total cost of the slot
    and of finishing on demand is used. If no allocation complies, or nothing is sold on demand, the
    job runs as much of the wished spot as the remaining budget pays for.
    """
    job, left = view.job, view.job.deadline_slots - view.slot - 1
    limit = job.budget_usd + ROUNDING_USD

    def worst_usd(allocation: Allocation) -> float:
        after = step(view.progress, allocation, view)
        rest_usd = guard_usd(
            job, after, left=left, on_demand_usd=view.on_demand_usd, slot_hours=view.slot_hours
        )
        return after.cost_usd + rest_usd

    if view.on_demand.sold:
        if worst_usd(wish) <= limit:
            return wish
        usable = usable_spot(view.available, view.price, view.on_demand_usd)
        sizes = range(job.n_min, job.n_max + 1)
        candidates = [Allocation(0, 0)] + [Allocation(n - min(n, usable), min(n, usable)) for n in sizes]
        cheapest = min(candidates, key=worst_usd)
        if worst_usd(cheapest) <= limit:
            return cheapest
    money = limit - view.progress.cost_usd
    return spot_alone(min(wish.spot, max(0, math.floor(money / (view.price * view.slot_hours)))), job.n_min)


def replay(
    policy: Policy[S],
    job: Job,
    window: MarketWindow,
    *,
    forecasts: Forecasts | None = None,
    record: Record | None = None,
) -> Outcome:
    """Simulate ``policy`` on ``job`` and a market of at least d slots (M2.4-M2.6).

    ``forecasts[t]`` was issued in slot t for t+1, t+2, ... (None: the previous forecast stays in force).
    ``record`` is the data that policies may learn from (`View.past`). Raises `MarketError` for a window
    that is too short, `PolicyError` for an illegal allocation (M2.3), `JobError` if the policy may not run
    the job (M2.7).
    """
    return replay_seen(policy, job, see(job, window, forecasts, record))


def replay_seen(policy: Policy[S], job: Job, market: SlotMarket) -> Outcome:
    """Simulate ``policy`` on a market as `see` prepares it: the loop of M2.4."""
    state, slot, progress = policy.start(job), 0, Progress()
    held: list[Allocation] = []
    while slot < job.deadline_slots and not is_finished(progress.done, job.workload):
        view = market.view(job, progress, slot)
        wish, state = policy.decide(state, view)
        held.append(check_allocation(wish, view, policy.name))
        progress = step(progress, held[-1], view)
        slot += 1
    return settle(policy.name, job, tuple(held), (slot, progress), market)


def catch_up(policy: Policy[S], job: Job, views: Sequence[View]) -> S:
    """Return the state of ``policy`` after deciding in each of the past ``views``, which contain the real job states."""
    state = policy.start(job)
    if isinstance(policy, Memoryless):
        return state
    for view in views:
        _, state = policy.decide(state, view)
    return state


def settle(
    policy: str, job: Job, held: tuple[Allocation, ...], end: tuple[int, Progress], market: SlotMarket
) -> Outcome:
    """Return the outcome of a run that ended at ``end`` = (slots used, progress): value, or the termination of M2.6 at d."""
    slots, progress = end
    if is_finished(progress.done, job.workload):
        value, after, finish = job.completion_value(slots), 0.0, slots
        in_time: int | None = slots
    else:
        to_go = on_demand_to_go(
            job,
            done=progress.done,
            n_previous=progress.n_previous,
            slot=slots,
            on_demand_usd=market.on_demand_usd,
            slot_hours=market.slot_hours,
        )
        after = to_go.n * to_go.slots * market.on_demand_usd * market.slot_hours
        finish = slots + to_go.slots
        value = job.completion_value(finish) if to_go.n else 0.0
        in_time = None
    return Outcome(
        policy=policy,
        job=job.name,
        allocations=held,
        progress=progress.done,
        cost_usd=progress.cost_usd,
        termination_cost_usd=after,
        finished_slot=in_time,
        finish_slots=finish if in_time is not None or after > 0 else None,
        value_usd=value,
        utility_usd=value - progress.cost_usd - after,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job on a market, as `see` takes it; ``launches`` are believed instead of the record in the world (M13)."""

    job: Job
    window: MarketWindow
    forecasts: Forecasts | None = None
    record: Record | None = None
    launches: Launches | None = None

    @property
    def parts(self) -> tuple[Job, MarketWindow, Forecasts | None, Record | None, Launches | None]:
        """The arguments of `see`."""
        return self.job, self.window, self.forecasts, self.record, self.launches
