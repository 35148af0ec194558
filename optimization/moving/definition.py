"""Job with its markets, its view of a slot, and its safety net (M11.1-M11.4) (ours).

A single-market job has one market (M = 1). A multi-market job has several: in a slot it runs in a
single market, with all its instances, or in none. Its *place* is the market of its checkpoint: an
idle job retains its place, and leaving the place costs a move whenever it happens. On-demand is
available in every market at the list price of that market.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from typing_extensions import TypeIs

from slackwater.optimization.job.definition import (
    ROUNDING_USD,
    Job,
    Progress,
    guard_usd,
    is_finished,
    rates,
    work_needed,
)
from slackwater.optimization.job.markets import Moving, even_moving, moves, runs_in_markets
from slackwater.optimization.job.request import JobRequest
from slackwater.optimization.kernels.moving import Ground, ending_at
from slackwater.optimization.kernels.rules import after_moving, efficiency_table, move_usd, spot_held
from slackwater.optimization.policies.contract import Policy, Running, View
from slackwater.optimization.policies.pace import (
    WORK_TOLERANCE,
    always_worth_finishing,
    slot_gain,
    worth_finishing,
)
from slackwater.optimization.replay.run import legal
from slackwater.optimization.window.plan import Allocation, spot_alone
from slackwater.warehouse.errors import JobError, PolicyError
from slackwater.warehouse.history import History

S = TypeVar("S")
NOTHING = Allocation(0, 0)
#: Attributes in which the runs of a job must agree: the work is the same in every market.
SAME_EVERYWHERE = ("name", "workload", "deadline_slots", "value", "gamma", "resumable")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MarketsJob:
    """Job and the M >= 1 markets in which it may run.

    ``runs`` is the job as each market runs it: workload, deadline and value are equal, throughput,
    sizes and restart may differ (M11.3). ``home`` is the market of its data at the start; None: no
    market, and the first start is no move. A job of a single market has that market as its home,
    because the value of waiting in no market would ignore the observed count (M11.6). ``sold``
    states in which markets on-demand instances are sold; empty: in all.
    """

    runs: tuple[Job, ...]
    moving: Moving
    home: int | None = None
    sold: tuple[bool, ...] = ()
    _pace: dict[float, _Pace] = field(default_factory=dict, init=False, repr=False)
    _worth: dict[tuple[tuple[float, ...], float], bool] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))
        if not self.runs:
            raise JobError("a job without a market", expected="at least one market")
        for run in self.runs[1:]:
            for what in SAME_EVERYWHERE:
                if getattr(run, what) != getattr(self.runs[0], what):
                    raise JobError(
                        f"job {self.job.name!r}: {what} {getattr(self.job, what)!r} in one market and "
                        f"{getattr(run, what)!r} in another",
                        expected="one workload, deadline and value in all markets",
                    )
        if self.moving.markets != len(self.runs):
            raise JobError(
                f"job {self.job.name!r}: {len(self.runs)} markets and costs of moves between {self.moving.markets}",
                expected="a row and a column for each market",
            )
        if self.home is None and len(self.runs) == 1:
            object.__setattr__(self, "home", 0)
        if self.home is not None and not 0 <= self.home < len(self.runs):
            raise JobError(
                f"job {self.job.name!r}: home {self.home}",
                expected=f"None or a market in 0..{len(self.runs) - 1}",
            )

    @property
    def job(self) -> Job:
        """First of the runs, for the attributes that are equal in all markets."""
        return self.runs[0]

    @property
    def nowhere(self) -> int:
        """Place of a job that has no market yet: the number of markets."""
        return len(self.runs)

    def begin(self) -> Progress:
        """Return the progress before the first slot."""
        return Progress(place=self.nowhere if self.home is None else self.home)

    def ground(self, on_demand_usd: Sequence[float], slot_hours: float) -> Ground:
        """Return the job in the form of the kernels, with all of its sizes.

        ``on_demand_usd`` is the price per instance-hour in each market.
        """
        held = [np.arange(run.n_min, run.n_max + 1) for run in self.runs]
        most = 1 + max(len(sizes) for sizes in held)
        sizes, gain = np.zeros((len(held), most), np.int64), np.zeros((len(held), most))
        up, down, moved = np.ones((3, len(held), 1 + max(run.n_max for run in self.runs)))
        for m, run in enumerate(self.runs):
            up[m, : run.n_max + 1], down[m, : run.n_max + 1] = run.restart
            moved[m, : run.n_max + 1] = [
                after_moving(run.restart, n, self.moving.taken) for n in range(run.n_max + 1)
            ]
            sizes[m, 1 : 1 + len(held[m])] = held[m]
            gain[m, 1 : 1 + len(held[m])] = rates(run.throughput, run.n_max)[held[m]] * slot_hours
        return Ground(
            sizes=sizes,
            held=np.array([1 + len(own) for own in held], np.int64),
            gain=gain,
            on_demand=np.array(on_demand_usd, dtype=float) * slot_hours,
            up=up,
            down=down,
            moved=moved,
            moves=self.moving.table,
            value=self.job.worth,
        )

    def worth_finishing(
        self, on_demand_usd: Sequence[float], slot_hours: float, slot: int, progress: Progress
    ) -> bool:
        """Return whether M2.6 in ``slot`` would finish the job on demand in some market, including a move (M11.2)."""
        if self.job.must_finish:
            return True
        rest = work_needed(self.job.workload) - progress.done
        _, _, size, _ = ending_at(
            self.ground(on_demand_usd, slot_hours), progress.place, progress.n_previous, slot, rest
        )
        return bool(size > 0)

    def always_worth_finishing(self, on_demand_usd: Sequence[float], slot_hours: float) -> bool:
        """Return whether `worth_finishing` holds wherever on-demand meets d.

        Checks every place with all of the work, or all that can still be done, and no slack left.
        """
        if len(self.runs) == 1:
            return always_worth_finishing(self.job, on_demand_usd[0], slot_hours)
        if self.job.must_finish:
            return True
        key = (tuple(on_demand_usd), slot_hours)
        known = self._worth.get(key)
        if known is None:
            known = self._worth[key] = self._always_worth_finishing(on_demand_usd, slot_hours)
        return known

    def _always_worth_finishing(self, on_demand_usd: Sequence[float], slot_hours: float) -> bool:
        work, d, reach = self.job.workload, self.job.deadline_slots, self.pace(slot_hours).reach
        for place in range(len(self.runs) + 1):
            met = np.flatnonzero(reach[:, place, 0] >= work)
            enough = int(met[0]) if len(met) else d
            for k in (enough, enough - 1):
                most = float(reach[k, place, 0])
                stands = Progress(done=max(0.0, work - most), place=place)
                if most > 0.0 and not self.worth_finishing(on_demand_usd, slot_hours, d - k, stands):
                    return False
        return True

    def pace(self, slot_hours: float) -> _Pace:
        """Return the on-demand work possible from every place, computed once."""
        known = self._pace.get(slot_hours)
        if known is None:
            known = self._pace[slot_hours] = _pace(self, slot_hours)
        return known


def in_one_market(run: Job, *, sold: bool = True) -> MarketsJob:
    """Return a single-market job; ``sold`` states whether its market sells on-demand instances."""
    return MarketsJob(runs=(run,), moving=even_moving(1, taken=0.0, usd=0.0), home=0, sold=(sold,))


def job_in_markets(request: JobRequest, histories: Sequence[History]) -> MarketsJob:
    """Return the job of a placed request over the markets of ``histories``, the home market first.

    A multi-market request without a market has no home. Raises as `runs_in_markets` does.
    """
    return MarketsJob(
        runs=runs_in_markets(request, histories),
        moving=moves(request, [history.market for history in histories], step=histories[0].step),
        home=None if request.market is None else 0,
        sold=tuple(history.on_demand.sold for history in histories),
    )


class _Pace(NamedTuple):
    """Arrays of the work that on-demand can do.

    ``work`` (M + 1, n, M, n') is the work of a slot at (market, n') after (place, n), including the
    loss of a move. ``reach`` (d + 1, M + 1, n) is the most work that k slots of on-demand in any
    market can do from there (M11.6).
    """

    work: np.ndarray
    reach: np.ndarray


def _pace(job: MarketsJob, slot_hours: float) -> _Pace:
    markets, most = len(job.runs), max(run.n_max for run in job.runs)
    ground = job.ground([1.0] * markets, slot_hours)
    work = np.full((markets + 1, most + 1, markets, most + 1), -np.inf)
    for m, run in enumerate(job.runs):
        sizes = slice(run.n_min, run.n_max + 1)
        gain = (rates(run.throughput, run.n_max) * slot_hours)[sizes]
        there = work[:, :, m, sizes]
        there[:markets] = ground.moved[m, sizes] * gain
        there[markets] = ground.up[m, sizes] * gain
        there[m] = -np.inf
        there[m, : run.n_max + 1] = efficiency_table(run.restart, run.n_max)[:, sizes] * gain
        work[m, :, m, 0] = 0.0
    reach = np.zeros((job.job.deadline_slots + 1, markets + 1, most + 1))
    on_demand = work.copy()
    on_demand[:, :, [m for m in range(markets) if job.sold and not job.sold[m]], 1:] = -np.inf
    for k in range(1, len(reach)):
        most_work = (on_demand + reach[k - 1, :markets]).max(axis=(2, 3))
        reach[k] = np.maximum(most_work, reach[k - 1, :, 0][:, None])
    return _Pace(work=work, reach=reach)


class Placement(NamedTuple):
    """Instances of a job in a slot: ``allocation`` in ``market``, None without instances."""

    market: int | None
    allocation: Allocation


IDLE = Placement(None, NOTHING)


def placement(market: int, allocation: Allocation) -> Placement:
    """Return ``allocation`` in ``market``, `IDLE` if it has no instances."""
    return Placement(market, allocation) if allocation.total else IDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketsView:
    """All information that a multi-market policy receives in slot ``slot``.

    ``views`` has the view of a policy in each market; in markets other than the place of the job,
    the previous size is 0. With ``only`` the options of the job are those in that market.
    """

    job: MarketsJob
    progress: Progress
    slot: int
    views: tuple[View, ...]
    only: int | None = None

    @property
    def place(self) -> int:
        """Market of the job; `MarketsJob.nowhere` if it has none yet."""
        return self.progress.place

    @property
    def slot_hours(self) -> float:
        """Delta, in hours."""
        return self.views[0].slot_hours

    @property
    def work_left(self) -> float:
        """L - z, at least 0, in work units."""
        return max(0.0, self.job.job.workload - self.progress.done)

    @property
    def slots_left(self) -> int:
        """Number of slots to the deadline, including this slot."""
        return self.job.job.deadline_slots - self.slot

    def left(self, counts: Sequence[int]) -> MarketsView:
        """Return the view of a job to which other jobs leave ``counts`` spot instances in the markets (`View.left`)."""
        return replace(
            self, views=tuple(own.left(count) for own, count in zip(self.views, counts, strict=True))
        )

    def in_world(self, running: Running, here: int) -> MarketsView:
        """Return the view of a policy that plans in the world (M4.12): ``running`` are the instances in market ``here``.

        On-demand of a market keeps the deadline only if it is sold there.
        """
        elsewhere = running._replace(held=NOTHING, pending_hours=0.0, saved=self.progress.done)
        views = []
        for m, own in enumerate(self.views):
            there = running if m == here else elsewhere
            guarded = running.guarded and own.on_demand.sold
            views.append(replace(own, running=there._replace(guarded=guarded)))
        return replace(self, views=tuple(views))

    @property
    def instances(self) -> tuple[int, Running] | None:
        """Market of the job's instances in the world, its place without any, and the instances; None in the slot model."""
        found = [own.running for own in self.views]
        held = next((m for m, own in enumerate(found) if own is not None and own.held.total), self.place)
        running = found[min(held, len(found) - 1)]
        return None if running is None else (held, running)

    def work(self, market: int, n: int) -> float:
        """Return the work units of this slot on ``n`` instances of ``market`` (M2.4, M11.2)."""
        if not n:
            return 0.0
        if market == self.place:
            return slot_gain(self.views[market], n)
        return float(self.job.pace(self.slot_hours).work[self.place, self.progress.n_previous, market, n])

    def usd(self, held: Placement) -> float:
        """Return the cost of this slot, USD, including a move."""
        if held.market is None or not held.allocation.total:
            return 0.0
        view = self.views[held.market]
        paid = held.allocation.on_demand * view.on_demand_usd + held.allocation.spot * view.price
        return paid * self.slot_hours + self.move_usd(held.market)

    def move_usd(self, market: int) -> float:
        """Return the cost of moving to ``market`` from the place of the job, USD."""
        return float(move_usd(self.job.moving.table, self.slot, self.place, market))

    def split(self, market: int, n: int) -> Placement:
        """Return the cheapest allocation of ``n`` instances in ``market``: spot first if it is cheaper (M3.2)."""
        if not n:
            return IDLE
        view = self.views[market]
        spot = spot_held(n, view.available, view.price, view.on_demand_usd)
        return Placement(market, Allocation(n - spot, spot))

    def keeps_deadline(self, held: Placement) -> bool:
        """Return True if on-demand alone, in any market, can still finish by d after this slot."""
        n, job = held.allocation.total, self.job
        slack = WORK_TOLERANCE * job.job.workload
        reach = job.pace(self.slot_hours).reach[self.slots_left - 1]
        if held.market is None or not n:
            return self.work_left <= float(reach[self.place, 0]) + slack
        return self.work_left - self.work(held.market, n) <= float(reach[held.market, n]) + slack

    @property
    def deadline_in_reach(self) -> bool:
        """True if on-demand alone, in any market, can finish by d from this slot on."""
        reach = self.job.pace(self.slot_hours).reach[self.slots_left, self.place, self.progress.n_previous]
        return self.work_left <= float(reach) + WORK_TOLERANCE * self.job.job.workload

    @property
    def worth_finishing(self) -> bool:
        """Whether M2.6, applied in this slot instead of at d, would finish the job on demand in some market."""
        if len(self.views) == 1:
            return worth_finishing(self.views[0])
        return self.job.worth_finishing(
            [own.on_demand_usd for own in self.views], self.slot_hours, self.slot, self.progress
        )

    @property
    def never_let_go(self) -> bool:
        """Whether `priced_net` protects the deadline in every state from which on-demand meets d.

        See `pace.always_worth_finishing`.
        """
        return self.job.always_worth_finishing([own.on_demand_usd for own in self.views], self.slot_hours)

    def options(self) -> list[Placement]:
        """Return all options of the job in this slot: no instances, and every size in every market it may use."""
        markets = range(len(self.views)) if self.only is None else [self.only]
        found = [
            (m, self.split(m, n))
            for m in markets
            for n in range(self.job.runs[m].n_min, self.job.runs[m].n_max + 1)
        ]
        is_sold = [own.on_demand.sold for own in self.views]
        return [IDLE] + [held for m, held in found if is_sold[m] or not held.allocation.on_demand]


def net(view: MarketsView, wish: Placement) -> Placement:
    """Return ``wish`` if on-demand can still meet d after it, else the closest option with that property (M11.6).

    That is the least larger size in the same market. Otherwise it is the cheapest option of any
    market, by the cost of this slot and its move plus the least on-demand cost of the rest. If no
    option keeps the deadline, it is the fastest.
    """
    if not view.deadline_in_reach:
        return fastest_way(view)
    if view.keeps_deadline(wish):
        return wish
    kept = [held for held in view.options() if view.keeps_deadline(held)]
    if not kept:
        return fastest_way(view)
    own = [
        held for held in kept if held.market == wish.market and held.allocation.total >= wish.allocation.total
    ]
    if own:
        return own[0]
    return min(kept, key=lambda held: view.usd(held) + _rest_usd(view, held))


def priced_net(view: MarketsView, wish: Placement) -> Placement:
    """Return `net` if d is within reach and finishing on demand pays, else ``wish`` (M4, M11.6; ours)."""
    if not view.deadline_in_reach:
        return wish
    kept = net(view, wish)
    return kept if kept == wish or view.worth_finishing else wish


def _rest_usd(view: MarketsView, held: Placement) -> float:
    """Return the least on-demand cost of the work left after ``held``, without moves, USD."""
    left = view.work_left - (0.0 if held.market is None else view.work(held.market, held.allocation.total))
    unit = min(
        n * own.on_demand_usd / run.throughput.rate(n)
        for own, run in zip(view.views, view.job.runs, strict=True)
        for n in (run.n_min, run.n_max)
    )
    return max(0.0, left) * unit


def fastest_way(view: MarketsView) -> Placement:
    """Return the cheapest of the options that leave the least work to do by d."""
    reach = view.job.pace(view.slot_hours).reach[view.slots_left - 1]

    def most(held: Placement) -> float:
        if held.market is None:
            return float(reach[view.place, 0])
        n = held.allocation.total
        return view.work(held.market, n) + float(reach[held.market, n])

    best = max(most(held) for held in view.options())
    slack = WORK_TOLERANCE * view.job.job.workload
    return min((held for held in view.options() if most(held) >= best - slack), key=view.usd)


def step(view: MarketsView, held: Placement) -> Progress:
    """Return the progress after the slot: cost and move, then work (M2.4, M11.2); an idle job retains its place."""
    job, n = view.job.job, held.allocation.total
    if held.market is None or not n:
        return replace(view.progress, n_previous=0)
    done = view.progress.done + view.work(held.market, n)
    return Progress(
        done=job.workload if is_finished(done, job.workload) else done,
        n_previous=n,
        cost_usd=view.progress.cost_usd + view.usd(held),
        place=held.market,
    )


def check_target(held: Placement, view: MarketsView, policy: str) -> Placement:
    """Return ``held`` as it is legal in its market (M2.3), within the budget (M2.10).

    Raises `PolicyError` if it violates M2.3 or M11.1, `JobError` if it violates M2.7.
    """
    if held.market is None:
        if held.allocation.total:
            raise PolicyError(
                f"{policy} in slot {view.slot} holds {held.allocation} nowhere", expected="a market"
            )
    elif not 0 <= held.market < len(view.views):
        raise PolicyError(
            f"{policy} in slot {view.slot} asks for market {held.market}",
            expected=f"one of {len(view.views)}",
        )
    else:
        held = placement(held.market, legal(held.allocation, view.views[held.market], policy))
    return held if math.isinf(view.job.job.budget_usd) else within_budget(held, view)


def within_budget(held: Placement, view: MarketsView) -> Placement:
    """Return ``held``, or an allocation that keeps the job within its budget, as in a single market (M2.10).

    The rest of the job is assumed to finish on demand in the market where the job is after this
    slot.
    """
    limit = view.job.job.budget_usd + ROUNDING_USD

    def worst_usd(other: Placement) -> float:
        after = step(view, other)
        place = after.place if after.place < len(view.views) else 0
        if not view.views[place].on_demand.sold:
            return math.inf
        return after.cost_usd + guard_usd(
            view.job.runs[place],
            after,
            left=view.slots_left - 1,
            on_demand_usd=view.views[place].on_demand_usd,
            slot_hours=view.slot_hours,
        )

    if worst_usd(held) <= limit:
        return held
    kept = min(view.options(), key=worst_usd)
    if worst_usd(kept) <= limit:
        return kept
    if held.market is None or not held.allocation.spot:
        return IDLE
    alone = Placement(held.market, spot_alone(held.allocation.spot, view.job.runs[held.market].n_min))
    while alone.allocation.total and step(view, alone).cost_usd > limit:
        alone = Placement(
            held.market, spot_alone(alone.allocation.spot - 1, view.job.runs[held.market].n_min)
        )
    return alone if alone.allocation.total else IDLE


class MultiMarketPolicy(Protocol[S]):
    """Rule that chooses the market and the number of instances of the present slot.

    ``multi_market`` distinguishes it from a `slackwater.optimization.policies.contract.Policy`,
    which knows one market and is lifted to several by `slackwater.optimization.moving.adapter`.
    """

    multi_market: ClassVar[bool]

    @property
    def name(self) -> str:
        """Canonical name, such as ``MeanField``."""
        ...

    def start(self, job: MarketsJob) -> S:
        """Return the state of the policy before the first slot."""
        ...

    def decide(self, state: S, view: MarketsView) -> tuple[Placement, S]:
        """Choose market and allocation of the slot; pure: equal inputs give equal results."""
        ...


def is_multi_market(policy: object) -> TypeIs[MultiMarketPolicy[Any]]:
    """Return whether a policy chooses among the markets of a job."""
    return getattr(policy, "multi_market", False) is True


@runtime_checkable
class KnowsOneMarket(Protocol):
    """Multi-market policy with a policy for jobs in one market."""

    @property
    def alone(self) -> Policy[Any]:
        """The policy that decides a job in one market."""
        ...


def in_its_markets(policy: Any, markets: int) -> Any:
    """Return the policy that decides a job in a number of markets: in one, that of a multi-market policy which has one."""
    return policy.alone if markets == 1 and isinstance(policy, KnowsOneMarket) else policy
