"""Decisions for the next slot of running jobs: market record, job state, allocation and expected outcome (M2.4, M3, M4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from slackwater.optimization.moving.definition import (
    IDLE,
    MarketsJob,
    MarketsView,
    MultiMarketPolicy,
    Placement,
    in_one_market,
    is_multi_market,
    placement,
    step,
)
from slackwater.optimization.policies.baselines import OnDemandOnly
from slackwater.optimization.policies.contract import Paths, Policy, Together, View, belief_of
from slackwater.optimization.policies.pace import always_worth_finishing, pace, slot_gain
from slackwater.optimization.policies.pace import step as step_in_market
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
from slackwater.warehouse.errors import JobError, MarketError, SlackwaterError
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
    """A running job at the slot to decide, as observed in each of its M >= 1 markets.

    Slot k begins at ``start`` + k ``step``. ``seen`` has the observations of each market and
    ``forecasts`` the forecast issued there in the slot to decide (None: no forecast), both in the
    order of the runs of ``job``; ``names`` are the names of the markets. Slots after ``slot`` are
    gaps. ``decided`` maps a slot to its decision, ``reported`` are the reports in ascending order,
    and ``places`` maps a slot to the reported market; in other slots the decided market applies.
    """

    job: MarketsJob
    start: pd.Timestamp
    step: pd.Timedelta
    slot: int
    seen: tuple[Seen, ...]
    decided: Mapping[int, Placement]
    names: tuple[str, ...] = ("its market",)
    forecasts: tuple[Forecast | None, ...] = (None,)
    reported: tuple[Reported, ...] = ()
    places: Mapping[int, int] = field(default_factory=dict)

    @property
    def run(self) -> Job:
        """The job in the first of its markets, for the attributes that are equal in all markets."""
        return self.job.job

    @property
    def now(self) -> pd.Timestamp:
        """Start of the slot to decide."""
        return self.start + self.slot * self.step

    @property
    def deadline(self) -> pd.Timestamp:
        """End of the last slot before the deadline."""
        return self.start + self.run.deadline_slots * self.step

    def so_far(
        self, slots: int | None = None, reported: Sequence[Reported] | None = None
    ) -> tuple[Progress, list[MarketsView]]:
        """Return the progress after the first ``slots`` slots (None: at the slot to decide), and the view of each slot (ours).

        The job ran its decisions as far as spot was available; a slot without a decision ran
        nothing. Spot instances that were not available, or whose availability a gap leaves unknown,
        did not run and are not paid for, and a move after which nothing ran is no move. After the
        finish nothing is paid and no view is returned. ``reported`` (None: the reports of this
        object) sets progress and size at the start of its slots; the cost remains that of the
        decisions (M2.4).
        """
        slots = self.slot if slots is None else slots
        reported = self.reported if reported is None else reported
        progress, views = self.job.begin(), []
        for slot in range(slots):
            progress = self._corrected(progress, slot, reported)
            if finished(progress.done, self.run.workload):
                continue
            view = self.view(progress, slot)
            views.append(view)
            progress = step(view, self.ran(slot))
        return self._corrected(progress, slots, reported), views

    def ran(self, slot: int) -> Placement:
        """Return the feasible part of the decision of a past slot (`held`)."""
        decided = self.decided.get(slot, IDLE)
        if decided.market is None:
            return IDLE
        run, available = self.job.runs[decided.market], self.seen[decided.market].available[slot]
        kept = held(run, decided.allocation, available)
        return Placement(decided.market, kept) if kept.total else IDLE

    def _corrected(self, progress: Progress, slot: int, reported: Sequence[Reported]) -> Progress:
        place = self.places.get(slot, progress.place)
        m = place if place < len(self.seen) else 0
        there = replace(progress, place=0)
        return replace(corrected(self.job.runs[m], self.seen[m], there, slot, reported), place=place)

    def progress(self) -> Progress:
        """Return the job's progress at the slot to decide."""
        return self.so_far()[0]

    def view(self, progress: Progress, slot: int) -> MarketsView:
        """Return the view of a policy in ``slot``; markets of unknown count are beliefs with an age.

        All markets count as seen: a running job cannot observe a market and decide again within the
        slot. A market without observations promises no spot.
        """
        views: list[View] = []
        for m, (run, seen) in enumerate(zip(self.job.runs, self.seen, strict=True)):
            n = progress.n_previous if m == progress.place else 0
            there = Progress(done=progress.done, n_previous=n, cost_usd=progress.cost_usd, place=m)
            views.append(seen.view(run, there, slot))
        return MarketsView(
            job=self.job, progress=progress, slot=slot, views=tuple(views), seen=(True,) * len(views)
        )

    @property
    def on_demand_only_usd(self) -> float | None:
        """Total cost in USD of OD-only for the job in its cheapest market, also after d.

        The on-demand price is the only market data used; None if none is known.
        """
        policy, known = OnDemandOnly(), []
        for run, seen in zip(self.job.runs, self.seen, strict=True):
            if seen.on_demand.known:
                alone = run_from(policy, policy.start(run), run, replace(seen, record=None), (0, Progress()))
                known.append(alone.total_cost_usd)
        return min(known, default=None)

    def shortfall(self, progress: Progress) -> str:
        """Return why the job can finish in time in none of its markets, and what would help; "" if it can (M2.7).

        The reason is that of its present market.
        """
        runs, m = self.job.runs, progress.place if progress.place < len(self.seen) else 0
        told = [
            shortfall_told(run, self.start, self.step, slot=self.slot, progress=progress)
            for run in (runs[m], *runs[:m], *runs[m + 1 :])
        ]
        return told[0] if all(told) else ""

    @property
    def is_finished(self) -> bool:
        """Whether the job finished its work before the slot to decide."""
        return finished(self.progress().done, self.run.workload)

    def work_by(self, at: pd.Timestamp, reported: Sequence[Reported]) -> float | None:
        """Return the work units done by ``at``, computed from the decisions and ``reported``; None beyond the record.

        Work grows linearly within a slot.
        """
        place = (at - self.start) / self.step
        slot = min(int(place + 1e-9), self.run.deadline_slots)
        share = max(0.0, place - slot)
        if slot > self.slot + (share == 0.0):
            return None
        progress, _ = self.so_far(slot, reported)
        if not share:
            return min(self.run.workload, progress.done)
        ran = self.ran(slot)
        gain = 0.0 if ran.market is None else self.view(progress, slot).work(ran.market, ran.allocation.total)
        return min(self.run.workload, progress.done + share * gain)


def live_job(
    job: Job | MarketsJob,
    start: pd.Timestamp,
    histories: History | Sequence[History],
    *,
    decided: Mapping[pd.Timestamp, Allocation | Placement],
    forecasts: Sequence[Sequence[Forecast]] | None = None,
    peers: Sequence[Sequence[History]] | None = None,
    reported: Sequence[Reported] = (),
    names: Sequence[str] | None = None,
    places: Mapping[int, int] | None = None,
) -> LiveJob:
    """Align a job whose slot 0 begins at ``start`` with the histories of its markets, in the order of its runs.

    A `Job` with a single `History` is a job in one market. The slot to decide is the last of the
    histories. ``decided`` is keyed by the start of the slot; an `Allocation` is in the first
    market. ``forecasts`` has for each market the forecasts issued in the job's slots so far; those
    issued after the present slot are dropped. The history before the job and the ``peers`` of each
    market become its record, which ends at the present slot. Where the job's budget does not pay
    for finishing on demand, it plans without on-demand there (M2.10). Raises `JobError` if the
    markets do not share their slots or if their number differs from that of the runs.
    """
    if isinstance(histories, History):
        histories = (histories,)
    if isinstance(job, Job):
        job = in_one_market(job, sold=histories[0].on_demand.sold)
    known = [history.market.key for history in histories] if names is None else names
    grids = {(history.step, history.known_at.floor(history.step)) for history in histories}
    if len(histories) != len(job.runs) or len(known) != len(histories) or len(grids) != 1:
        raise JobError(
            f"job {job.job.name!r}: {len(histories)} markets called {', '.join(known)} on {len(grids)} grids of slots",
            expected=f"{len(job.runs)} markets whose slots are the same",
        )
    ((interval, now),) = grids
    nothing: Sequence[Sequence[Any]] = [()] * len(histories)
    issued, others = forecasts or nothing, peers or nothing

    def observed(m: int, history: History) -> tuple[Seen, Forecast | None]:
        return _observed_market(job.runs[m], start, now, history, issued[m], others[m])

    found = [observed(m, history) for m, history in enumerate(histories)]
    live = LiveJob(
        job=job,
        start=start,
        step=interval,
        slot=round((now - start) / interval),
        seen=tuple(seen for seen, _ in found),
        names=tuple(known),
        decided={
            round((slot - start) / interval): one if isinstance(one, Placement) else placement(0, one)
            for slot, one in decided.items()
        },
        forecasts=tuple(forecast for _, forecast in found),
        reported=tuple(reported),
        places=dict(places or {}),
    )
    if math.isinf(job.job.budget_usd):
        return live
    progress = live.progress()
    paid = [
        payable(history, run, progress, slot=live.slot)
        for history, run in zip(histories, job.runs, strict=True)
    ]
    return replace(
        live,
        seen=tuple(
            live.seen[m] if after is before else observed(m, after)[0]
            for m, (before, after) in enumerate(zip(histories, paid, strict=True))
        ),
    )


def _observed_market(
    run: Job,
    start: pd.Timestamp,
    now: pd.Timestamp,
    history: History,
    forecasts: Sequence[Forecast],
    peers: Sequence[History],
) -> tuple[Seen, Forecast | None]:
    """Return the observations of a market for a run up to ``now``, and the forecast issued then."""
    grid = pd.date_range(start, periods=run.deadline_slots, freq=history.step)
    ceiling = spot_ceiling(run, history)
    window = ceiling.window(history.frame.reindex(grid), history, run.value)
    issued = {forecast.issued_at: forecast for forecast in forecasts if forecast.issued_at <= now}
    points = [ceiling.forecast(point_forecast(issued[slot])) if slot in issued else None for slot in grid]
    record = market_record(ceiling.history(history), peers, first=start, last=now, known_by=now)
    return see(run, window, points, record), issued.get(now)


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

    All paths share the slot of ``view``. The steps are those of `step_in_market` (M2.4), with the
    same order of arithmetic.
    """
    view, beliefs = at
    job, d = view.job, view.job.deadline_slots
    seen = _windows(view, beliefs, prices[:1], counts[:1])[0]
    if finished(view.progress.done, job.workload):
        return None
    wish, state = policy.decide(state, seen.view(job, view.progress, view.slot))
    first = step_in_market(view.progress, checked(wish, view, policy.name), view)
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

    ``market`` is the market of the instances, or the place of the job if it has none (the number of
    markets: no place yet). ``moved_from`` is the place that it leaves, None without a move, and
    ``move_usd`` the cost of the move. ``probe_next`` is the market whose count has the highest
    information value, None if all counts are known or none can change the decision.
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
    market: int = 0
    moved_from: int | None = None
    move_usd: float = 0.0
    probe_next: int | None = None

    @property
    def placement(self) -> Placement:
        """Market and allocation of the slot."""
        return placement(self.market, self.allocation)


def decide(
    live: LiveJob,
    policy: Policy[Any] | MultiMarketPolicy[Any],
    effort: Effort,
    *,
    left: Sequence[int] | None = None,
    taken: Sequence[int] | None = None,
) -> Decision:
    """Decide the present slot with a policy and simulate the rest of the job on sampled paths.

    ``left`` is the number of spot instances that other jobs leave in each market in the slot (None:
    all of them); ``taken`` are the instances that they are expected to take first in every later
    slot (None: none), which only multi-market policies use. For a job that cannot resume from a
    checkpoint, OD-only decides, since it may not use spot; the reason states this (M2.7).

    In a single market, a policy that knows one market decides directly and is itself simulated over
    the paths. Otherwise the policy is lifted to all markets (`for_markets`), and the expected
    outcome is that of the mean-field policy (M11.9).
    """
    if len(live.seen) > 1 or is_multi_market(policy):
        # Imported where it is needed: the kernels of several markets load slowly.
        from slackwater.optimization.moving.adapter import for_markets
        from slackwater.optimization.moving.decision import decide_by_tables, tables_of

        view, tables = tables_of(live, taken)
        view = view if left is None else view.left(left)
        return decide_by_tables(live, for_markets(policy), view, tables, effort)
    return _decide_in_one_market(live, policy, effort, None if left is None else left[0])


def _decide_in_one_market(live: LiveJob, policy: Policy[Any], effort: Effort, left: int | None) -> Decision:
    refused, (seen,) = "", live.seen
    if not live.run.resumable:
        policy, refused = OnDemandOnly(), "no spot, as the job cannot resume from a checkpoint; "
    solver, asked = None, policy
    if isinstance(policy, Planning):
        # Import Pyomo only for a policy that plans: the import takes as long as the rest of a plan.
        from slackwater.optimization.window.solver import LiveSolver

        solver = LiveSolver(seconds=effort.solver_seconds)
        asked = policy.with_solver(solver)
    progress, before = live.so_far()
    state = catch_up(policy, live.run, [past.views[0] for past in before])
    view = seen.view(live.run, progress, live.slot)
    view = view if left is None else view.left(left)
    wish, _ = asked.decide(state, view)
    allocation = checked(wish, view, policy.name)
    reason = refused + policy.explain(state, view, allocation)
    return Decision(
        job=live.run.name,
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
    if live.seen[0].on_demand.sold:
        return tuple(later)
    return tuple(spot_alone(planned.spot, live.run.n_min) for planned in later)


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


def _with_chance(reason: str, belief: Belief, allocation: Allocation, view: View) -> str:
    """Return the policy's reason with the probability of spot in the next slot, or a note if the present count is unknown."""
    if not view.availability_observed:
        return f"{reason}; availability not observed: the plan assumes that spot is never lost"
    if not view.knows_count:
        return f"{reason}; availability unknown: no recent count for this slot"
    wanted = max(allocation.total, 1)
    return f"{reason}; P(spot >= {wanted} in the next slot) = {belief.chance_of_spot(wanted):.2f}"
