"""Decisions for the next slot of running jobs: market record, job state, allocation and expected outcome (M2.4, M3, M4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.job.definition import Job, Progress, finished, needed
from slackwater.optimization.job.request import shortfall_told
from slackwater.optimization.kernels.rules import usable_spot
from slackwater.optimization.market.belief import Belief, Believed, Forgetting
from slackwater.optimization.market.window import (
    MarketWindow,
    Record,
    payable,
    point_forecast,
    record_of,
    spot_ceiling,
)
from slackwater.optimization.policies import OnDemandOnly
from slackwater.optimization.policies.contract import Paths, Policy, Together, View, belief_of
from slackwater.optimization.policies.pace import always_worth_finishing, pace, slot_gain, step
from slackwater.optimization.replay.run import (
    PlanMemo,
    Planning,
    Seen,
    catch_up,
    checked,
    run_from,
    see,
    settle,
    with_shared_plans,
)
from slackwater.optimization.window.plan import Allocation, Outcome, spot_alone
from slackwater.warehouse.errors import MarketError, SlackwaterError
from slackwater.warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History

# ---
# The record of a job: observations of its market and peers by slot, for policies that learn from
# them (M4.6, M1.2).

#: Length of the record before a job: the length of the history that chains read.
RECORD_SPAN = pd.Timedelta(days=Forgetting().price_days)


def record_start(first: pd.Timestamp) -> pd.Timestamp:
    """Return the earliest slot of the record of a job whose first slot is ``first``."""
    return first - RECORD_SPAN


def market_record(
    history: History,
    peers: Sequence[History],
    *,
    first: pd.Timestamp,
    last: pd.Timestamp,
    known_by: pd.Timestamp,
) -> Record:
    """Return the record of a job on the market of ``history``, from `record_start` or the history's first slot to slot ``last``.

    ``first`` is the job's slot 0. ``known_by`` is the time from which its policy observes the
    market: the job's first slot in a replay, the present slot for a live decision. A row that
    became known after both its slot and ``known_by`` is a gap, since no view of its slot could have
    read it; so is a value that was revised later, because a history contains the newest version
    only. ``peers`` are histories of other markets, with NaN wherever they were unknown by the same
    rule.
    """
    before = (first - history.slots[0]) // history.step if len(history.slots) else 0
    before = max(0, min(before, RECORD_SPAN // history.step))
    grid = pd.date_range(first - before * history.step, last, freq=history.step)
    return record_of(
        _known_column(history, PRICE, grid, known_by),
        _known_column(history, AVAILABLE, grid, known_by),
        first=before,
        slot_hours=history.slot_hours,
        peers=np.array([_known_column(peer, AVAILABLE, grid, known_by) for peer in peers]).reshape(
            -1, len(grid)
        ),
        hour=(grid[0] - grid[0].floor("D")) / pd.Timedelta(hours=1) if history.real_clock else None,
    )


def _known_column(
    history: History, column: str, grid: pd.DatetimeIndex, known_by: pd.Timestamp
) -> np.ndarray:
    """Return a column on ``grid``, NaN in gaps and where the row became known later than its slot and ``known_by``."""
    slots, frame = history.slots, history.frame
    found = np.full(len(grid), np.nan)
    if not len(slots) or not len(grid):
        return found
    if (grid[0] - slots[0]) % history.step:  # the two grids share no slot
        return found
    # Both grids are regular, so their common slots are a slice of each.
    offset = (grid[0] - slots[0]) // history.step
    first, end = max(0, -offset), min(len(grid), len(slots) - offset)
    if end <= first:
        return found
    own = slice(first + offset, end + offset)
    values = frame[column].to_numpy(dtype=float)[own]
    if history.known_at > known_by:  # else no row became known later
        at = grid[first:end]
        late = frame[ROW_KNOWN_AT].array[own] > at.where(at > known_by, known_by)
        values = np.where(late, np.nan, values)
    found[first:end] = values
    return found


# ---
# State of a running job, from its decisions, the market's availability afterwards, and reports
# (M2.4).

NOTHING = Allocation(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A report on a running job, which applies from the start of ``slot`` on (ours).

    ``done`` is the work done, in work units, and ``size`` the number of instances; None if not
    reported. Both were observed a share ``early`` of a slot before the start of ``slot``, in [0,
    1).
    """

    slot: int
    done: float | None = None
    size: int | None = None
    early: float = 0.0


def held(job: Job, decided: Allocation, available: int) -> Allocation:
    """Return the feasible part of a decision: spot limited to the available count, no instances at all below ``n_min``.

    >>> from slackwater.optimization.job.definition import Linear
    >>> job = Job(name="j", workload=9, deadline_slots=9, n_min=1, n_max=8, throughput=Linear(), value=1)
    >>> held(job, Allocation(1, 4), 2)
    Allocation(on_demand=1, spot=2)
    """
    kept = Allocation(decided.on_demand, min(decided.spot, available))
    return kept if kept.total >= job.n_min else NOTHING


def held_so_far(
    job: Job,
    seen: Seen,
    decided: Mapping[int, Allocation],
    *,
    slots: int,
    reported: Sequence[Reported] = (),
) -> tuple[Progress, list[View]]:
    """Return the progress after the job's first ``slots`` slots if each ran its decision, and the view of each slot (ours).

    A slot without a decision ran nothing. Spot instances that were not available, or whose
    availability a gap leaves unknown, did not run and are not paid for. After the finish nothing is
    paid and no view is returned. ``reported``, ascending in time, sets progress and size at the
    start of its slots; reports after ``slots`` are ignored. The cost remains that of the decisions.
    """
    progress = Progress()
    views: list[View] = []
    for slot in range(slots):
        progress = corrected(job, seen, progress, slot, reported)
        if finished(progress.done, job.workload):
            continue
        view = seen.view(job, progress, slot)
        views.append(view)
        progress = step(progress, held(job, decided.get(slot, NOTHING), view.available), view)
    return corrected(job, seen, progress, slots, reported), views


def corrected(job: Job, seen: Seen, progress: Progress, slot: int, reported: Sequence[Reported]) -> Progress:
    """Return ``progress`` at the start of ``slot`` with reported values in place of computed values."""
    for one in reported:
        if one.slot != slot:
            continue
        size = progress.n_previous if one.size is None else held_size(job, one.size)
        done = progress.done
        if one.done is not None:
            done = min(job.workload, one.done + _rest_of_slot(job, seen, one, size))
            done = job.workload if finished(done, job.workload) else done
        progress = replace(progress, done=done, n_previous=size)
    return progress


def held_size(job: Job, reported: int) -> int:
    """Return the size that policies read: 0 below ``n_min``, which makes no progress, and at most ``n_max``."""
    return min(reported, job.n_max) if reported >= job.n_min else 0


def _rest_of_slot(job: Job, seen: Seen, report: Reported, size: int) -> float:
    """Return the work from the report to the end of its slot, at the reported size and without a further change."""
    if not report.early or not size:
        return 0.0
    view = seen.view(job, Progress(n_previous=size), report.slot - 1)
    return report.early * slot_gain(view, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """A running job at the slot to decide.

    Its slot k begins at ``start`` + k ``step``. The slots of its market up to ``slot`` are known,
    later slots are gaps. ``decided`` are the decisions so far by slot, ``reported`` the reports in
    ascending order, and ``forecast`` the forecast issued in the slot to decide, None if there is
    none.
    """

    job: Job
    start: pd.Timestamp
    step: pd.Timedelta
    slot: int
    seen: Seen
    decided: Mapping[int, Allocation]
    forecast: Forecast | None = None
    reported: tuple[Reported, ...] = ()

    @property
    def now(self) -> pd.Timestamp:
        """Start of the slot to decide."""
        return self.start + self.slot * self.step

    @property
    def deadline(self) -> pd.Timestamp:
        """End of the last slot before the deadline."""
        return self.start + self.job.deadline_slots * self.step

    def standing(
        self, slots: int | None = None, reported: Sequence[Reported] | None = None
    ) -> tuple[Progress, list[View]]:
        """Return the job's progress after its first ``slots`` slots (None: at the slot to decide), and the view of each slot.

        The job ran its decisions, starting from the newest of ``reported`` (None: the reports of
        this object) (M2.4).
        """
        return held_so_far(
            self.job,
            self.seen,
            self.decided,
            slots=self.slot if slots is None else slots,
            reported=self.reported if reported is None else reported,
        )

    def progress(self) -> Progress:
        """Return the job's progress at the slot to decide."""
        return self.standing()[0]

    @property
    def on_demand_only_usd(self) -> float | None:
        """Total cost in USD of OD-only for the job, also after d; None if no on-demand price is known.

        The on-demand price is the only market data used.
        """
        if not self.seen.on_demand.known:
            return None
        policy, seen = OnDemandOnly(), replace(self.seen, record=None)
        return run_from(policy, policy.start(self.job), self.job, seen, (0, Progress())).total_cost_usd

    def shortfall(self, progress: Progress) -> str:
        """Return why the job cannot finish in time from its state, and what would help; "" if it can (M2.7)."""
        return shortfall_told(self.job, self.start, self.step, slot=self.slot, progress=progress)

    @property
    def is_finished(self) -> bool:
        """Whether the job finished its work before the slot to decide."""
        return finished(self.progress().done, self.job.workload)

    def work_by(self, at: pd.Timestamp, reported: Sequence[Reported]) -> float | None:
        """Return the work units done by ``at``, computed from the decisions and ``reported``; None beyond the market's record.

        Work grows linearly within a slot.
        """
        place = (at - self.start) / self.step
        slot = min(int(place + 1e-9), self.job.deadline_slots)
        share = max(0.0, place - slot)
        if slot > self.slot + (share == 0.0):
            return None
        progress, _ = self.standing(slot, reported)
        if not share:
            return min(self.job.workload, progress.done)
        view = self.seen.view(self.job, progress, slot)
        gain = slot_gain(view, held(self.job, self.decided.get(slot, NOTHING), view.available).total)
        return min(self.job.workload, progress.done + share * gain)


def live_job(
    job: Job,
    start: pd.Timestamp,
    history: History,
    *,
    decided: Mapping[pd.Timestamp, Allocation],
    forecasts: Sequence[Forecast] = (),
    peers: Sequence[History] = (),
    reported: Sequence[Reported] = (),
) -> LiveJob:
    """Align a job whose slot 0 begins at ``start`` with its market's history; the slot to decide is the history's last.

    ``decided`` is keyed by the start of the slot. ``forecasts`` are the forecasts issued in the
    job's slots so far; those issued after the present slot are dropped. The history before the job
    and the ``peers`` become the record, which ends at the present slot. If the job's budget does
    not pay for finishing on demand, it plans without on-demand (M2.10).
    """
    live_on = partial(
        _live_job, job, start, decided=decided, forecasts=forecasts, peers=peers, reported=reported
    )
    live = live_on(history)
    paid = payable(history, job, live.progress(), slot=live.slot)
    return live if paid is history else live_on(paid)


def _live_job(
    job: Job,
    start: pd.Timestamp,
    history: History,
    *,
    decided: Mapping[pd.Timestamp, Allocation],
    forecasts: Sequence[Forecast],
    peers: Sequence[History],
    reported: Sequence[Reported],
) -> LiveJob:
    step = history.step
    grid = pd.date_range(start, periods=job.deadline_slots, freq=step)
    rows = history.frame.reindex(grid)
    ceiling = spot_ceiling(job, history)
    window = ceiling.window(rows, history, job.value)
    now = history.known_at.floor(step)
    issued = {forecast.issued_at: forecast for forecast in forecasts if forecast.issued_at <= now}
    points = [ceiling.forecast(point_forecast(issued[slot])) if slot in issued else None for slot in grid]
    record = market_record(ceiling.history(history), peers, first=start, last=now, known_by=now)
    return LiveJob(
        job=job,
        start=start,
        step=step,
        slot=round((now - start) / step),
        seen=see(job, window, points, record),
        decided={round((slot - start) / step): allocation for slot, allocation in decided.items()},
        forecast=issued.get(now),
        reported=tuple(reported),
    )


# ---
# Expected cost and lateness of a running job over sampled paths (M3, M4).

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected outcome of a running job over ``paths`` sampled paths.

    ``cost_usd`` is the mean total cost from the first slot to the last, termination included
    (M2.6), with quantiles ``cost_p10_usd`` and ``cost_p90_usd``. ``finish_slots`` (mean) and
    ``finish_median`` count slots from the job's first; a path on which the job is given up counts
    as gamma d, from which on the value is 0. ``finish`` contains every path's finish, shape
    (paths,), NaN where given up. ``late_probability`` is P(not finished by d within the budget),
    ``given_up_probability`` P(given up), ``over_budget_probability`` P(finishing costs more than
    the budget).
    """

    paths: int
    cost_usd: float
    cost_p10_usd: float
    cost_p90_usd: float
    finish_slots: float
    finish_median: float
    finish: np.ndarray
    late_probability: float
    given_up_probability: float
    utility_usd: float
    over_budget_probability: float = 0.0


#: Number of belief variants among which the paths are divided, if the job may be given up.
DRAWN = 10


def look_ahead(policy: Policy[S], state: S, view: View, *, paths: int, rng: np.random.Generator) -> Expected:
    """Return the expected outcome over paths sampled from the policy's belief (M6.9).

    If finishing is always worth its on-demand price, no later belief leads to a missed deadline by
    choice, and the paths come from the belief itself. Otherwise a changed belief may do so: then
    the paths come from `DRAWN` variants of the belief, each of which is also the policy's belief on
    its paths.
    """
    later = view.job.deadline_slots - view.slot - 1
    belief = belief_of(policy, view)
    if always_worth_finishing(view.job, view.on_demand_usd, view.slot_hours):
        return simulate_ahead(policy, state, view, *belief.sample(later, paths=paths, rng=rng))
    outcomes: list[Outcome] = []
    for share, held in enumerate(belief.drawn(min(DRAWN, paths), rng)):
        futures = held.sample(later, paths=len(range(share, paths, DRAWN)), rng=rng)
        # The tables of a variant do not apply to the next.
        apart = replace(view, tables=dict(view.tables))
        outcomes += _outcomes_ahead(policy, state, apart, held, *_checked(view, *futures))
    return _summary(view, outcomes)


def simulate_ahead(
    policy: Policy[S], state: S, view: View, price_paths: np.ndarray, count_paths: np.ndarray
) -> Expected:
    """Replay ``policy`` from its present ``state`` in the slot of ``view`` over sampled paths.

    ``price_paths`` (USD per instance-hour) and ``count_paths`` have shape (paths, slots after this
    slot), at least up to the deadline; the slot of ``view`` is as observed.

    In later slots the policy reads the forecast of ``view`` shifted to that slot: a *static
    vintage*, since later forecasts are unknown (ours). The record and the belief of ``view`` are
    fixed too: the present belief applies to the end from every state that a path reaches, so tables
    are computed only once. The result is therefore slightly pessimistic for a policy that profits
    from new forecasts.

    Horizon programs are solved by the exact twin (M3.2), whatever the live solver. A policy that
    implements `Together` decides once per slot for all paths, with the same outcome. Raises
    `MarketError` for paths of another shape, `PolicyError` and `JobError` as `replay` does.
    """
    prices, counts = _checked(view, np.asarray(price_paths, dtype=float), np.asarray(count_paths))
    return _summary(view, _outcomes_ahead(policy, state, view, belief_of(policy, view), prices, counts))


def _outcomes_ahead(
    policy: Policy[S], state: S, view: View, held: Belief, prices: np.ndarray, counts: np.ndarray
) -> list[Outcome]:
    """Return the outcome on each path, with ``held`` as the belief in the slots after that of ``view``."""
    beliefs = replace(view.market_beliefs(), held=held)
    if isinstance(policy, Together):
        together = _run_together(policy, state, (view, beliefs), prices, counts)
        if together is not None:
            return together
    twin = with_shared_plans(policy, PlanMemo())
    begin = (view.slot, view.progress)
    futures = _windows(view, beliefs, prices, counts)
    return [run_from(twin, state, view.job, seen, begin) for seen in futures]


def _checked(view: View, prices: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the paths cut at the deadline, shapes (paths, slots after this slot); raises `MarketError` for a wrong shape."""
    later = view.job.deadline_slots - view.slot - 1
    if prices.ndim != 2 or prices.shape != counts.shape or prices.shape[1] < later or not prices.shape[0]:
        raise MarketError(
            f"price paths of shape {prices.shape}, count paths of {counts.shape}",
            expected=f"both of shape (paths, slots), at least one path and at least {later} slots",
        )
    return prices[:, :later], counts[:, :later].astype(np.int64)


def _run_together(
    policy: Policy[S], state: S, at: tuple[View, Believed], prices: np.ndarray, counts: np.ndarray
) -> list[Outcome] | None:
    """Run `run_from` on all paths, slot by slot instead of path by path; None if the policy decides only path by path.

    All paths share the slot of ``view``. The steps are those of `step` (M2.4), with the same order
    of arithmetic.
    """
    view, beliefs = at
    job, d = view.job, view.job.deadline_slots
    seen = _windows(view, beliefs, prices[:1], counts[:1])[0]
    if finished(view.progress.done, job.workload):
        return None
    wish, state = policy.decide(state, seen.view(job, view.progress, view.slot))
    first = step(view.progress, checked(wish, view, policy.name), view)
    paths = len(prices)
    done, before = np.full(paths, first.done), np.full(paths, first.n_previous)
    cost, slots = np.full(paths, first.cost_usd), np.full(paths, d)
    work = np.array(pace(job, view.slot_hours).work)
    running = np.full(paths, True)
    for slot in range(view.slot + 1, d):
        ended = running & (done >= needed(job.workload))
        slots[ended], running = slot, running & ~ended
        if not running.any():
            break
        own = np.flatnonzero(running)
        price, available = prices[own, slot - view.slot - 1], counts[own, slot - view.slot - 1]
        market = Paths(done=done[own], n_previous=before[own], price=price, available=available)
        template = seen.view(job, Progress(done=float(done[own[0]]), n_previous=int(before[own[0]])), slot)
        n = policy.decide_together(state, template, market) if isinstance(policy, Together) else None
        if n is None:
            return None
        spot = np.minimum(n, usable_spot(available, price, view.on_demand_usd))
        if not view.on_demand.sold:
            n = np.where(spot >= job.n_min, spot, 0)
        cost[own] += ((n - spot) * view.on_demand_usd + spot * price) * view.slot_hours
        after = done[own] + work[before[own], n]
        done[own] = np.where(after >= needed(job.workload), job.workload, after)
        before[own] = n
    ends = zip(slots.tolist(), done.tolist(), before.tolist(), cost.tolist(), strict=True)
    return [
        settle(policy.name, job, (), (at, Progress(done=work_done, n_previous=held, cost_usd=paid)), seen)
        for at, work_done, held, paid in ends
    ]


def _windows(view: View, beliefs: Believed, prices: np.ndarray, counts: np.ndarray) -> list[Seen]:
    """Return a prepared market per path; slots before the present slot are never read and are filled with its values."""
    later = view.job.deadline_slots - view.slot - 1
    past = view.slot + 1
    forecasts = [None] * view.slot + [view.forecast] + [None] * later
    record = _still(view)
    seen = []
    for price, count in zip(prices, counts, strict=True):
        window = MarketWindow(
            price=np.concatenate([np.full(past, view.price), price]),
            available=np.concatenate([np.full(past, view.available), count]).astype(np.int64),
            on_demand_usd=view.on_demand_usd,
            slot_hours=view.slot_hours,
            observed=np.concatenate([np.full(past, view.observed), np.full(later, True)]),
            on_demand=view.on_demand,
        )
        seen.append(replace(see(view.job, window, forecasts, record), tables=view.tables, beliefs=beliefs))
    return seen


def _still(view: View) -> Record | None:
    """Return the record of ``view``, fixed at its slot."""
    past = view.past
    if past is None:
        return None
    end = len(past.price) - 1
    begins = None if past.hour is None else (past.hour - end * view.slot_hours) % 24.0
    return record_of(
        past.price,
        past.available,
        first=end - view.slot,
        slot_hours=view.slot_hours,
        peers=past.peers,
        hour=begins,
        still=True,
    )


def _summary(view: View, outcomes: list[Outcome]) -> Expected:
    return summary(
        view.job,
        cost=np.array([outcome.total_cost_usd for outcome in outcomes]),
        finish=np.array(
            [np.nan if o.finish_slots is None else o.finish_slots for o in outcomes], dtype=float
        ),
        utility=np.array([outcome.utility_usd for outcome in outcomes]),
    )


def summary(job: Job, *, cost: np.ndarray, finish: np.ndarray, utility: np.ndarray) -> Expected:
    """Return the expected outcome of a job from arrays of shape (paths,).

    ``cost`` is the total cost in USD, ``finish`` counts slots from the job's first (NaN: given up),
    ``utility`` is in USD.
    """
    counted = np.where(np.isnan(finish), job.late_limit, finish)
    over = cost > job.budget_usd
    return Expected(
        paths=len(cost),
        cost_usd=float(cost.mean()),
        cost_p10_usd=float(np.quantile(cost, 0.1)),
        cost_p90_usd=float(np.quantile(cost, 0.9)),
        finish_slots=float(counted.mean()),
        finish_median=float(np.median(counted)),
        finish=finish,
        late_probability=float(np.mean((counted > job.deadline_slots) | over)),
        given_up_probability=float(np.isnan(finish).mean()),
        utility_usd=float(np.mean(utility)),
        over_budget_probability=float(np.mean(over)),
    )


# ---
# Decisions for the next slot of running jobs, with live solves by the MILP (M3, M4).


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Effort limits of a decision: seconds of a live solve (M3.4), sampled paths for the expected outcome, and their seed."""

    solver_seconds: float
    risk_paths: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision for the next slot of a job: allocation in ``slot``, policy, reason, and expected outcome.

    ``solver`` describes how its horizon programs were solved ("" if there were none), ``progress``
    is the job's state. ``planned`` are the plan's allocations in the slots after ``slot``, None if
    the policy makes no plan. ``risk_known`` is False if the risk of missing the deadline would
    depend on availability that was not observed, or on a count that is too old (M6.9).
    """

    job: str
    slot: int
    allocation: Allocation
    policy: str
    reason: str
    expected: Expected
    solver: str
    progress: Progress
    planned: tuple[Allocation, ...] | None
    risk_known: bool = True


def decide(live: LiveJob, policy: Policy[Any], effort: Effort, *, left: int | None = None) -> Decision:
    """Decide the present slot with a policy and simulate the rest of the job on sampled paths.

    ``left`` is the number of spot instances left by other jobs in the slot (None: all of them). For
    a job that cannot resume from a checkpoint, OD-only decides, since it may not use spot; the
    reason states this (M2.7).
    """
    refused = ""
    if not live.job.resumable:
        policy, refused = OnDemandOnly(), "no spot, as the job cannot resume from a checkpoint; "
    solver, asked = None, policy
    if isinstance(policy, Planning):
        # Import Pyomo only for a policy that plans: the import takes as long as the rest of a plan.
        from slackwater.optimization.window.solver import LiveSolver

        solver = LiveSolver(seconds=effort.solver_seconds)
        asked = policy.with_solver(solver)
    progress, views = live.standing()
    state = catch_up(policy, live.job, views)
    view = live.seen.view(live.job, progress, live.slot)
    view = view if left is None else view.left(left)
    wish, _ = asked.decide(state, view)
    allocation = checked(wish, view, policy.name)
    reason = refused + policy.explain(state, view, allocation)
    return Decision(
        job=live.job.name,
        slot=live.slot,
        allocation=allocation,
        policy=policy.name,
        reason=_with_chance(reason, belief_of(policy, view), allocation, view),
        expected=look_ahead(
            policy, state, view, paths=effort.risk_paths, rng=np.random.default_rng(effort.seed)
        ),
        solver=solver.summary() if solver else "",
        progress=progress,
        planned=_planned(live, solver.plans[-1].allocations[1:]) if solver and solver.plans else None,
        risk_known=view.availability_observed
        and (view.knows_count or always_worth_finishing(view.job, view.on_demand_usd, view.slot_hours)),
    )


def _planned(live: LiveJob, later: Sequence[Allocation]) -> tuple[Allocation, ...]:
    """Return the later allocations of a plan, without on-demand where nothing is sold on demand."""
    if live.seen.on_demand.sold:
        return tuple(later)
    return tuple(spot_alone(one.spot, live.job.n_min) for one in later)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """A job without a decision for ``slot``, and the error of its policy."""

    job: str
    slot: int
    why: str


#: Errors of a job or market that do not stop the others.
RAISED = (
    SlackwaterError, ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError
)  # fmt: skip


#: ``fan(function, calls)`` returns the results of ``function(**call)`` for every call in order,
#: possibly computed in parallel.
Fan = Callable[[Callable[..., Any], Sequence[dict[str, Any]]], list[Any]]


def in_turn(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
    """Make the calls one after the other: the sequential `Fan`."""
    return [function(**call) for call in calls]


def _with_chance(reason: str, belief: Belief, allocation: Allocation, view: View) -> str:
    """Return the policy's reason with the probability of spot in the next slot, or a note if the present count is unknown."""
    if not view.availability_observed:
        return f"{reason}; availability not observed: the plan assumes that spot is never lost"
    if not view.knows_count:
        return f"{reason}; availability unknown: no recent count for this slot"
    wanted = max(allocation.total, 1)
    return f"{reason}; P(spot >= {wanted} in the next slot) = {belief.chance_of_spot(wanted):.2f}"
