"""Decisions for the next slot of running jobs: market record, job state, allocation and expected outcome (M2.4, M3, M4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.belief.archetypes import archetypes
from slackwater.optimization.belief.evidence import COUNTS, Evidence
from slackwater.optimization.belief.launches import Launch, Launches, launch_state
from slackwater.optimization.belief.ratings import SlotRatings
from slackwater.optimization.job.definition import Allocation, Job, Progress, is_finished
from slackwater.optimization.job.request import shortfall_words
from slackwater.optimization.market.belief import Belief, Forgetting
from slackwater.optimization.market.window import Record, payable, point_forecast, record_of, spot_ceiling
from slackwater.optimization.moving.definition import (
    IDLE,
    MarketsJob,
    MarketsView,
    MultiMarketPolicy,
    Placement,
    check_target,
    in_its_markets,
    in_one_market,
    is_multi_market,
    placement,
)
from slackwater.optimization.moving.sight import due_a_slot_earlier, markets_view
from slackwater.optimization.policies.baselines import OnDemandOnly
from slackwater.optimization.policies.contract import Policy, View, belief_of, plans_in_world
from slackwater.optimization.policies.pace import always_worth_finishing, slot_gain
from slackwater.optimization.replay.ahead import (
    ExpectedOutcome,
    PolicyPlan,
    PresentJob,
    held_size,
    look_ahead,
    progress_of,
)
from slackwater.optimization.replay.guard import Guard, standby
from slackwater.optimization.replay.run import NewestReading, Planning, SlotMarket, catch_up, see
from slackwater.optimization.window.plan import spot_alone
from slackwater.optimization.world.readings import market_readings, readings_inside, with_losses
from slackwater.optimization.world.simulation import Readings, WorldMarkets, WorldRun
from slackwater.optimization.world.terms import on_demand_alone, world_markets, world_terms
from slackwater.warehouse.amounts import plural
from slackwater.warehouse.errors import JobError, SlackwaterError
from slackwater.warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History, Ratings

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

    ``first`` is the job's slot 0. ``known_by`` is the time from which its policy observes the market: the
    job's first slot in a replay, the present slot for a live decision. A row that became known after both its
    slot and ``known_by`` is a gap, since no view of its slot could have read it; so is a value that was
    revised later, because a history contains the newest version only. ``peers`` are histories of other
    markets, with NaN wherever they were unknown by the same rule.
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
        within=None if history.within is None else _known_rows(history, history.within, grid, known_by),
    )


def _known_column(
    history: History, column: str, grid: pd.DatetimeIndex, known_by: pd.Timestamp
) -> np.ndarray:
    """Return a column on ``grid``, NaN in gaps and where the row became known later than its slot and ``known_by``."""
    return _known_rows(history, history.frame[column].to_numpy(dtype=float), grid, known_by)


def _known_rows(
    history: History, rows: np.ndarray, grid: pd.DatetimeIndex, known_by: pd.Timestamp
) -> np.ndarray:
    """Return values of the slots of a history, (slots, ...), on ``grid``; see `_known_column`."""
    slots, frame = history.slots, history.frame
    found = np.full((len(grid), *rows.shape[1:]), np.nan)
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
    values = rows[own]
    if history.known_at > known_by:  # else no row became known later
        at = grid[first:end]
        late = frame[ROW_KNOWN_AT].array[own] > at.where(at > known_by, known_by)
        values = np.where(late.reshape(-1, *(1,) * (rows.ndim - 1)), np.nan, values)
    found[first:end] = values
    return found


# ---
# State of a running job, from its decisions, the market's availability afterwards, and reports (M2.4).

NOTHING = Allocation(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedState:
    """A report on a running job, which applies from the start of ``slot`` on (ours).

    ``done`` is the work done, in work units, and ``size`` the number of instances; None if not reported. Both
    were observed a share ``early`` of a slot before the start of ``slot``, in [0, 1).
    """

    slot: int
    done: float | None = None
    size: int | None = None
    early: float = 0.0


def feasible_part(job: Job, decided: Allocation, available: int) -> Allocation:
    """Return the feasible part of a decision: spot limited to the available count, no instances at all below ``n_min``.

    >>> from slackwater.optimization.job.definition import Linear
    >>> job = Job(name="j", workload=9, deadline_slots=9, n_min=1, n_max=8, throughput=Linear(), value=1)
    >>> feasible_part(job, Allocation(1, 4), 2)
    Allocation(on_demand=1, spot=2)
    """
    kept = Allocation(decided.on_demand, min(decided.spot, available))
    return kept if kept.total >= job.n_min else NOTHING


def correct_progress(
    job: Job, seen: SlotMarket, progress: Progress, slot: int, reported: Sequence[ReportedState]
) -> Progress:
    """Return ``progress`` at the start of ``slot`` with reported values in place of computed values."""
    for report in reported:
        if report.slot != slot:
            continue
        size = progress.n_previous if report.size is None else held_size(job, report.size)
        done = progress.done
        if report.done is not None:
            done = min(job.workload, report.done + _rest_of_slot(job, seen, report, size))
            done = job.workload if is_finished(done, job.workload) else done
        progress = replace(progress, done=done, n_previous=size)
    return progress


def _rest_of_slot(job: Job, seen: SlotMarket, report: ReportedState, size: int) -> float:
    """Return the work from the report to the end of its slot, at the reported size and without a further change."""
    if not report.early or not size:
        return 0.0
    view = seen.view(job, Progress(n_previous=size), report.slot - 1)
    return report.early * slot_gain(view, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A target within a slot, ``seconds`` after its start (M12.15).

    ``lost`` is the newest loss of spot before it: the second in the slot, the market, and the spot
    instances left there; None without a loss.
    """

    seconds: float
    target: Placement
    lost: tuple[float, int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The present within the slot to decide, ``seconds`` after its start, with the instances held then (M12.15).

    ``lost`` is as in `Revision`; ``work`` is the newest work reported within the slot, in work
    units, and the second that it was true.
    """

    seconds: float
    held: Allocation
    lost: tuple[float, int, int]
    work: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedState:
    """A job after its first slots: progress, that at the start of each earlier slot, and its run in the world.

    ``unexplained`` is the work reported beyond that of the instances at the throughput of the job,
    in work units; negative if less was reported.
    """

    progress: Progress
    earlier: Mapping[int, Progress]
    run: WorldRun
    unexplained: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """A running job at the slot to decide, as observed in each of its M >= 1 markets.

    Slot k begins at ``start`` + k ``step``. ``seen`` has the observations of each market and
    ``forecasts`` the forecast issued there in the slot to decide (None: no forecast), both in the
    order of the runs of ``job``; ``names`` are the names of the markets. Slots after ``slot`` are
    gaps. ``decided`` maps a slot to its decision, ``reported`` are the reports in ascending order,
    and ``places`` maps a slot to the reported market; in other slots the decided market applies.
    ``within`` has for each market the counts read inside the job's slots, as far as they are known
    (`market_readings`; empty: none). ``revised`` maps a slot to the targets within it, in ascending
    order. With a ``moment`` the rest of the slot is decided, from what is known then.
    """

    job: MarketsJob
    start: pd.Timestamp
    step: pd.Timedelta
    slot: int
    seen: tuple[SlotMarket, ...]
    decided: Mapping[int, Placement]
    names: tuple[str, ...] = ("its market",)
    forecasts: tuple[Forecast | None, ...] = (None,)
    reported: tuple[ReportedState, ...] = ()
    places: Mapping[int, int] = field(default_factory=dict)
    within: tuple[np.ndarray | None, ...] = ()
    revised: Mapping[int, Sequence[Revision]] = field(default_factory=dict)
    moment: Moment | None = None

    @property
    def run(self) -> Job:
        """The job in the first of its markets, for the attributes that are equal in all markets."""
        return self.job.job

    @property
    def now(self) -> pd.Timestamp:
        """Start of the slot to decide."""
        return self.start + self.slot * self.step

    @property
    def elapsed_seconds(self) -> float:
        """Seconds from the start of the slot to the decision."""
        return 0.0 if self.moment is None else self.moment.seconds

    @property
    def deadline(self) -> pd.Timestamp:
        """End of the last slot before the deadline."""
        return self.start + self.run.deadline_slots * self.step

    def reached(
        self, slots: int | None = None, reported: Sequence[ReportedState] | None = None
    ) -> ReachedState:
        """Return the job after the first ``slots`` slots (None: at the slot to decide, before its decision) (ours).

        The job ran its decisions in the world (M12.11); a slot without a decision ran nothing. Slots
        after the finish are left out. ``reported`` (None: the reports of this object) sets
        progress, size and market at the start of its slots; the cost remains that of the decisions.
        """
        slots = self.slot if slots is None else slots
        reported = self.reported if reported is None else reported
        seconds = self.step.total_seconds()
        lost = self._losses(slots)
        world = WorldRun(
            self.markets,
            [
                with_losses(
                    own, [(slot * seconds + at, left) for slot, at, place, left in lost if place == m]
                )
                for m, own in enumerate(self.readings())
            ],
        )
        before: dict[int, Progress] = {}
        unexplained = 0.0
        for slot in range(slots):
            world.advance(slot * seconds)
            computed = world.work
            progress = self._at(world, slot, reported)
            unexplained += progress.done - computed
            if is_finished(progress.done, self.run.workload):
                continue
            before[slot] = progress
            self._follow(world, slot)
        world.advance(slots * seconds)
        computed = world.work
        progress = self._at(world, slots, reported)
        unexplained += progress.done - computed
        if self.moment is not None and slots == self.slot:
            self._follow(world, slots)
            progress = self._reach(world, self.moment)
        return ReachedState(progress=progress, earlier=before, run=world, unexplained=unexplained)

    def plans_in_world(self, policy: object) -> bool:
        """Whether a policy plans the job in the world (M4.12): it can, and in one market there is no budget."""
        return plans_in_world(policy) and (len(self.seen) > 1 or math.isinf(self.run.budget_usd))

    def views_for(
        self, policy: object, progress: Progress, earlier: Mapping[int, Progress]
    ) -> tuple[list[MarketsView], MarketsView]:
        """Return what a policy sees of the earlier slots and of the slot to decide, from the progress at their starts.

        A policy of the slot model sees the job due a slot earlier where it is guarded (M12.11).
        """
        whole = isinstance(policy, OnDemandOnly) or self.plans_in_world(policy)
        early = None if whole else due_a_slot_earlier(self.job, self.seen)
        views = [
            self.view(at, slot)
            if early is None or slot >= self.run.deadline_slots - 1
            else markets_view(*early, at, slot, self._newest(slot))
            for slot, at in {**earlier, self.slot: progress}.items()
        ]
        return views[:-1], views[-1]

    @property
    def markets(self) -> WorldMarkets:
        """The job in its markets in the world."""
        return world_markets(
            self.job,
            on_demand_usd=[seen.on_demand_usd for seen in self.seen],
            slot_hours=self.seen[0].slot_hours,
            sold=[seen.on_demand.sold for seen in self.seen],
        )

    def readings(self) -> list[Readings]:
        """Return the readings of each market up to the slot to decide."""
        known = min(self.slot + 1, self.run.deadline_slots)
        within = self.within or (None,) * len(self.seen)
        return [
            market_readings(seen.until(known), None if inside is None else inside[:known])
            for seen, inside in zip(self.seen, within, strict=True)
        ]

    def _losses(self, slots: int) -> list[tuple[int, float, int, int]]:
        """Return the losses within the first ``slots`` slots, and at the present moment: slot, second, market, spot left."""
        known = [
            (slot, revision.lost) for slot, own in self.revised.items() if slot < slots for revision in own
        ]
        known += [(self.slot, self.moment.lost)] if self.moment is not None and slots == self.slot else []
        return sorted((slot, *lost) for slot, lost in known if lost is not None)

    def _follow(self, world: WorldRun, slot: int, seconds: float = math.inf) -> None:
        """Let a run follow the decision of a slot and the targets within its first ``seconds``."""
        decided = self.decided.get(slot, IDLE)
        world.decide(decided.allocation, decided.market)
        for revision in self.revised.get(slot, ()):
            if revision.seconds > seconds:
                break
            world.advance(slot * self.step.total_seconds() + revision.seconds)
            world.decide(revision.target.allocation, revision.target.market)

    def _reach(self, world: WorldRun, moment: Moment) -> Progress:
        """Bring a run from the slot to decide to a moment within it, with the instances and the work known then."""
        start = self.slot * self.step.total_seconds()
        if moment.work is not None:
            second, done = moment.work
            world.advance(start + second)
            world.report(start + second, work=done)
        world.advance(start + moment.seconds)
        if world.held != moment.held:
            world.report(start + moment.seconds, size=moment.held.total)
        return progress_of(self.job, world)

    def _newest(self, slot: int) -> list[NewestReading] | None:
        """Return the newest readings at the present moment, None for a slot that is seen at its start."""
        if self.moment is None or slot != self.slot:
            return None
        world, hours = self.reached().run, self.moment.seconds / 3600.0
        read = map(world.reading_of, range(len(self.seen)))
        return [NewestReading(usd, available, hours) for available, usd in read]

    def _at(self, world: WorldRun, slot: int, reported: Sequence[ReportedState]) -> Progress:
        """Return the progress at the start of ``slot``; what was reported for it is passed on to the run."""
        before = progress_of(self.job, world)
        place = self.places.get(slot, before.place)
        m = place if place < len(self.seen) else 0
        after = replace(
            correct_progress(self.job.runs[m], self.seen[m], replace(before, place=0), slot, reported),
            place=place,
        )
        if after != before:
            world.report(
                slot * self.step.total_seconds(),
                work=None if after.done == before.done else after.done,
                size=None if after.n_previous == before.n_previous else after.n_previous,
                market=None if place == before.place or place >= len(self.seen) else place,
            )
        return after

    def ran(self, slot: int) -> Placement:
        """Return the feasible part of the decision of a past slot (`held`)."""
        decided = self.decided.get(slot, IDLE)
        if decided.market is None:
            return IDLE
        run, available = self.job.runs[decided.market], self.seen[decided.market].available[slot]
        kept = feasible_part(run, decided.allocation, available)
        return Placement(decided.market, kept) if kept.total else IDLE

    def progress(self) -> Progress:
        """Return the job's progress at the slot to decide."""
        return self.reached().progress

    def view(self, progress: Progress, slot: int) -> MarketsView:
        """Return the view of a policy in ``slot``; a market without observations in it promises no spot."""
        return markets_view(self.job, self.seen, progress, slot, self._newest(slot))

    @property
    def on_demand_only_usd(self) -> float | None:
        """Total cost in USD of the job on on-demand alone in its cheapest market; None if no on-demand price is known.

        Work reported beyond that of the instances would have been as fast on demand: it costs nothing (M12.16).
        """
        known = [
            on_demand_alone(
                world_terms(run, on_demand_usd=seen.on_demand_usd, slot_hours=seen.slot_hours),
                run.deadline_slots * self.step.total_seconds(),
            )[1]
            for run, seen in zip(self.job.runs, self.seen, strict=True)
            if seen.on_demand.known
        ]
        if not known or all(report.done is None for report in self.reported):
            return min(known, default=None)
        return min(known) * (1.0 - max(0.0, self.reached().unexplained) / self.run.workload)

    def shortfall(self, progress: Progress) -> str:
        """Return why the job can finish in time in no market, by its present one, and what would help; "" if it can (M2.7)."""
        runs, m = self.job.runs, progress.place if progress.place < len(self.seen) else 0
        shortfalls = [
            shortfall_words(run, self.start, self.step, slot=self.slot, progress=progress)
            for run in (runs[m], *runs[:m], *runs[m + 1 :])
        ]
        return shortfalls[0] if all(shortfalls) else ""

    @property
    def is_finished(self) -> bool:
        """Whether the job finished its work before the slot to decide."""
        return is_finished(self.progress().done, self.run.workload)

    def work_by(self, at: pd.Timestamp, reported: Sequence[ReportedState]) -> float | None:
        """Return the work units done by ``at``, computed from the decisions and ``reported``; None beyond the record."""
        place = (at - self.start) / self.step
        slot = min(int(place + 1e-9), self.run.deadline_slots)
        share = max(0.0, place - slot)
        if slot > self.slot + (share == 0.0):
            return None
        world = self.reached(slot, reported).run
        if share:
            self._follow(world, slot, share * self.step.total_seconds())
            world.advance(place * self.step.total_seconds())
        return world.work

    def at_moment(self, moment: Moment, targets: Sequence[Revision]) -> LiveJob:
        """Return the job at a moment within the slot to decide, after a loss of spot (M12.15).

        ``targets`` are those within the slot so far. The loss is the newest reading of its market,
        and evidence where availability is not observed.
        """
        _, market, left = moment.lost
        seen = list(self.seen)
        seen[market] = _after_loss(seen[market], self.slot, left)
        return replace(
            self, seen=tuple(seen), moment=moment, revised={**self.revised, self.slot: tuple(targets)}
        )


def _after_loss(seen: SlotMarket, slot: int, left: int) -> SlotMarket:
    """Return the observations of a market in which ``left`` spot instances are left in ``slot``."""
    beliefs = seen.beliefs
    available, launches = beliefs.available.copy(), beliefs.launches
    if launches is None or launches.has_count(slot):
        available[slot] = left
    if launches is not None:
        states = launches.states.copy()
        states[launches.first + slot] = launch_state(left, launches.request)
        launches = replace(launches, states=states)
    known = replace(beliefs, available=available, launches=launches, _made={}, _common={})
    return replace(seen, beliefs=known, windows={}, tables={})


def live_job(
    job: Job | MarketsJob,
    start: pd.Timestamp,
    histories: History | Sequence[History],
    *,
    decided: Mapping[pd.Timestamp, Allocation | Placement],
    forecasts: Sequence[Sequence[Forecast]] | None = None,
    peers: Sequence[Sequence[History]] | None = None,
    reported: Sequence[ReportedState] = (),
    names: Sequence[str] | None = None,
    places: Mapping[int, int] | None = None,
    launches: Sequence[Sequence[Launch]] | None = None,
    ratings: Sequence[Ratings] | None = None,
    revised: Mapping[int, Sequence[Revision]] | None = None,
) -> LiveJob:
    """Align a job whose slot 0 begins at ``start`` with the histories of its markets, in the order of its runs.

    A `Job` with a single `History` is a job in one market. The slot to decide is the last of the histories.
    ``decided`` is keyed by the start of the slot; an `Allocation` is in the first market. ``forecasts`` has
    for each market the forecasts issued in the job's slots so far; those issued after the present slot are
    dropped. The history before the job and the ``peers`` of each market become its record, which ends at the
    present slot. ``launches`` are those of the user in each market, ``ratings`` those of the provider, which
    count where availability is not observed (M13); ``revised`` are the targets within earlier slots. Where
    the job's budget does not pay for finishing on demand, it plans without on-demand there (M2.10). Raises
    `JobError` if the markets do not share their slots or if their number differs from that of the runs.
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
    issued, others, tried = forecasts or nothing, peers or nothing, launches or nothing
    rated = ratings or [Ratings()] * len(histories)

    def observed(m: int, history: History) -> tuple[SlotMarket, Forecast | None]:
        return _observed_market(job.runs[m], start, now, history, issued[m], others[m], tried[m], rated[m])

    found = [observed(m, history) for m, history in enumerate(histories)]
    live = LiveJob(
        job=job,
        start=start,
        step=interval,
        slot=round((now - start) / interval),
        seen=tuple(seen for seen, _ in found),
        names=tuple(known),
        decided={
            round((slot - start) / interval): allocation
            if isinstance(allocation, Placement)
            else placement(0, allocation)
            for slot, allocation in decided.items()
        },
        forecasts=tuple(forecast for _, forecast in found),
        reported=tuple(reported),
        places=dict(places or {}),
        within=tuple(
            None
            if not len(history.slots)
            else readings_inside(
                history.within, round((start - history.slots[0]) / interval), run.deadline_slots
            )
            for run, history in zip(job.runs, histories, strict=True)
        ),
        revised=dict(revised or {}),
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
    tried: Sequence[Launch],
    ratings: Ratings,
) -> tuple[SlotMarket, Forecast | None]:
    """Return the observations of a market for a run up to ``now``, and the forecast issued then."""
    grid = pd.date_range(start, periods=run.deadline_slots, freq=history.step)
    ceiling = spot_ceiling(run, history)
    request = min(run.n_max, history.capacity)
    window = ceiling.window(history.with_counts_assumed(request).frame.reindex(grid), history, run.value)
    issued = {forecast.issued_at: forecast for forecast in forecasts if forecast.issued_at <= now}
    points = [ceiling.forecast(point_forecast(issued[slot])) if slot in issued else None for slot in grid]
    record = market_record(ceiling.history(history), peers, first=start, last=now, known_by=now)
    read = market_record(history.with_counts_read(), (), first=start, last=now, known_by=now)
    newest, observed = history.newest_count, history.availability_observed
    slot = round((now - start) / history.step)
    launches = Launches.of(
        request,
        tried,
        run.deadline_slots,
        archetypes(request, history.slot_hours),
        counts=read.available if observed else None,
        within=read.within if observed else None,
        first=read.first if observed else 0,
        newest_hours=None if newest is None else (now - newest) / pd.Timedelta(hours=1),
        ratings=_slot_ratings(ratings, slot, now, history.step),
    )
    if slot < run.deadline_slots and window.observed[slot] and not launches.has_count(slot):
        window = replace(window, availability_observed=False)
    return see(run, window, points, record, launches), issued.get(now)


def _slot_ratings(ratings: Ratings, slot: int, now: pd.Timestamp, step: pd.Timedelta) -> SlotRatings | None:
    """Return the ratings known in ``slot``, which begins ``now``; a score is of the first slot that starts at or after it."""
    if ratings == Ratings():
        return None
    age = pd.Timedelta(0) if ratings.scored_at is None else now - ratings.scored_at
    return SlotRatings(slot=slot, score=ratings.score, slots_ago=max(0, int(age // step)), band=ratings.band)


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

    ``guarded``: the deadline is met whatever becomes of spot, as long as on-demand is granted
    (M12.7). ``standby`` is what to run at once if all spot of ``allocation`` is lost in the slot,
    in ``standby_market`` (None: in ``market``); None without spot. ``evidence`` is that of the availability in the market (M13.1).
    """

    job: str
    slot: int
    allocation: Allocation
    policy: str
    reason: str
    expected: ExpectedOutcome
    solver: str
    progress: Progress
    planned: tuple[Allocation, ...] | None
    risk_known: bool = True
    market: int = 0
    moved_from: int | None = None
    move_usd: float = 0.0
    probe_next: int | None = None
    guarded: bool = False
    standby: Allocation | None = None
    standby_market: int | None = None
    evidence: Evidence = field(default_factory=lambda: Evidence(level=COUNTS))


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

    In a single market, a policy that knows one market decides directly and is itself simulated over the
    paths, as is that of a multi-market policy which knows it (`in_its_markets`). Otherwise the policy is
    lifted to all markets (`for_markets`), and the expected outcome is that of the mean-field policy (M11.9).
    """
    alone = in_its_markets(policy, len(live.seen)) if live.run.resumable else OnDemandOnly()
    if len(live.seen) > 1 or is_multi_market(alone):
        # Imported where it is needed: the kernels of several markets load slowly.
        from slackwater.optimization.moving.adapter import for_markets
        from slackwater.optimization.moving.decision import decide_by_tables, tables_of

        reached = live.reached()
        view, tables = tables_of(live, reached, taken)
        view = view if left is None else view.left(left)
        return decide_by_tables(live, reached, for_markets(policy), view, tables, effort)
    decision = _decide_in_one_market(live, alone, effort, None if left is None else left[0])
    return decision if alone is policy or not live.run.resumable else replace(decision, policy=policy.name)


def _decide_in_one_market(live: LiveJob, policy: Policy[Any], effort: Effort, left: int | None) -> Decision:
    refused = ""
    if not live.run.resumable:
        policy, refused = OnDemandOnly(), "no spot, as the job cannot resume from a checkpoint; "
    solver, solving = None, policy
    if isinstance(policy, Planning):
        # Import Pyomo only for a policy that plans: the import takes as long as the rest of a plan.
        from slackwater.optimization.window.solver import LiveSolver

        solver = LiveSolver(seconds=effort.solver_seconds)
        solving = policy.with_solver(solver)
    reached = live.reached()
    progress = reached.progress
    whole = live.view(progress, live.slot)
    before, planned = live.views_for(policy, progress, reached.earlier)
    whole, planned = (paths if left is None else paths.left([left]) for paths in (whole, planned))
    state = catch_up(policy, live.run, [past.views[0] for past in before])
    guard = Guard.of(whole, reached.run)
    if live.plans_in_world(policy):
        planned = guard.in_world()
    (view,), (plan,) = whole.views, planned.views
    wish, _ = solving.decide(state, plan)
    wished = check_target(placement(0, wish), whole, policy.name)
    allowed = guard.allow(wished)
    wish, allocation = wished.allocation, allowed.allocation
    reason = refused + policy.explain(state, view, allocation) + guard.reason(wish, allocation)
    lost = standby(guard, planned, allowed, lambda left: placement(0, policy.decide(state, left.views[0])[0]))
    now = PresentJob(
        view=whole,
        run=guard.run,
        beliefs=[belief_of(policy, view)],
        planner=PolicyPlan(policy=policy, state=state, view=plan, job=live.job),
        target=allowed,
        standby=lost,
        elapsed=live.elapsed_seconds,
    )
    expected = look_ahead(now, paths=effort.risk_paths, rng=np.random.default_rng(effort.seed))
    if expected.uses_spot:
        reason = _with_chance(reason, belief_of(policy, view), allocation, view)
    return Decision(
        job=live.run.name,
        slot=live.slot,
        allocation=allocation,
        policy=policy.name,
        reason=reason,
        expected=expected,
        solver=solver.summary() if solver else "",
        progress=progress,
        planned=_later_allocations(live, solver.plans[-1].allocations[1:])
        if solver and solver.plans
        else None,
        risk_known=guard.holds(allowed)
        or view.evidence.is_known
        or always_worth_finishing(view.job, view.on_demand_usd, view.slot_hours),
        guarded=guard.holds(allowed),
        standby=None if lost is None else lost.allocation,
        evidence=view.evidence,
    )


def _later_allocations(live: LiveJob, later: Sequence[Allocation]) -> tuple[Allocation, ...]:
    """Return the later allocations of a plan, without on-demand where nothing is sold on demand."""
    if live.seen[0].on_demand.sold:
        return tuple(later)
    return tuple(spot_alone(planned.spot, live.run.n_min) for planned in later)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecidedJob:
    """A job without a decision for ``slot``, and the error of its policy."""

    job: str
    slot: int
    why: str


#: Errors of a job or market that do not stop the others.
RAISED = (
    SlackwaterError, ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError
)  # fmt: skip


def chance_text(chance: float) -> str:
    """Return a probability in per cent; a belief is never certain.

    >>> [chance_text(chance) for chance in (0.624, 0.997, 0.0)]
    ['62 %', 'over 99 %', 'under 1 %']
    """
    return {"100": "over 99 %", "0": "under 1 %"}.get(text := f"{100.0 * chance:.0f}", f"{text} %")


def _with_chance(reason: str, belief: Belief, allocation: Allocation, view: View) -> str:
    """Return the policy's reason with the probability of spot in the next slot, or a note if the present count is unknown."""
    if view.availability_observed and not view.knows_count:
        return f"{reason}; availability unknown: no recent count for this slot"
    wanted = max(allocation.total, 1)
    chance = f"probability of {wanted} spot in the next slot: {chance_text(belief.chance_of_spot(wanted))}"
    return f"{reason}; {chance}{_few_counts(belief)}"


def _few_counts(belief: Belief) -> str:
    """Return what the probability of spot in a new market is computed from, "" in other markets."""
    request = belief.request
    if request is None or not belief.is_new:
        return ""
    return f", from {plural(request.mixture.known, 'reading')} and {plural(len(request.mixture.others), 'measured market')}"
