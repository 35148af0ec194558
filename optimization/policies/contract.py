"""Interface of a policy: a pure function of the information available in a slot (M4, M4.9)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from slackwater.optimization.belief.evidence import PROBES, Evidence
from slackwater.optimization.job.definition import Job, Progress
from slackwater.optimization.market.belief import Belief, Forgetting, SlotBeliefs
from slackwater.optimization.market.window import MarketWindow, Past, PointForecast
from slackwater.optimization.window.plan import Allocation
from slackwater.warehouse.history import OBSERVED, OnDemandOrigin

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
Windows = dict[tuple[object, ...], MarketWindow]


@dataclass(frozen=True, slots=True, kw_only=True)
class NameForm:
    """Form of the canonical names of a family of policies, ``Family(numbers, words)`` (M4.8).

    A class of policies with parameters states it as its attribute ``name_form``. ``numbers`` maps
    the parameters of the name to their types, in order; ``optional`` those that may be left out
    together. ``words`` maps each word that may follow to the parameters that it sets.
    """

    numbers: Mapping[str, type[int | float]] = field(default_factory=dict)
    optional: Mapping[str, type[int | float]] = field(default_factory=dict)
    words: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Running(NamedTuple):
    """Instances of a job in the world at a decision (M12).

    ``held`` are held or requested, and work after ``pending_hours``, when they are up and the group
    has restarted. A loss in this second would leave the work ``saved``. The next decision is at
    most ``gap_hours`` away. ``guarded``: the exact guard keeps the deadline (M12.7).
    """

    held: Allocation
    pending_hours: float
    saved: float
    gap_hours: float
    guarded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All information that a policy receives in slot ``slot``.

    ``price`` (USD per instance-hour) and ``available`` describe the spot market of this slot. In a
    gap ``observed`` is False, ``available`` is 0 and ``price`` is the on-demand price. ``forecast``
    was issued in this slot or earlier and is shifted so that its element 0 is slot ``slot + 1``;
    None if there is no forecast. ``past`` is the market history up to this slot, None if none was
    recorded.

    ``others`` is the number of spot instances allocated to other jobs in this slot; ``available``
    is the rest of the market's ``count``. ``on_demand`` gives the origin of the on-demand price,
    and whether on-demand instances are sold at all. ``quoted`` is the market's spot price if the
    job limits the spot price, else None (`SpotCeiling`). ``elapsed_hours`` have passed since the
    start of the slot: above 0 only where a launcher decides between slots (M12.10); ``price`` and
    ``available`` are then of the newest reading.

    ``running`` are the job's instances in the world; None in the slot model (M2.4).

    ``windows``, ``tables`` and ``beliefs`` are caches shared by the views of one replay:
    ``windows`` holds market windows by all inputs of a window, ``tables`` other results that depend on the market alone, and
    ``beliefs`` the belief about the market, slot by slot.
    """

    job: Job
    progress: Progress
    slot: int
    price: float
    available: int
    observed: bool
    on_demand_usd: float
    slot_hours: float
    forecast: PointForecast | None = None
    past: Past | None = None
    windows: Windows | None = field(default=None, compare=False, repr=False)
    tables: dict[tuple[object, ...], object] = field(default_factory=dict, compare=False, repr=False)
    beliefs: SlotBeliefs | None = field(default=None, compare=False, repr=False)
    others: int = 0
    on_demand: OnDemandOrigin = OBSERVED
    availability_observed: bool = True
    quoted: float | None = None
    elapsed_hours: float = 0.0
    running: Running | None = None

    @property
    def elapsed(self) -> float:
        """Share of the slot that has passed at the decision."""
        return self.elapsed_hours / self.slot_hours

    @property
    def hours_left(self) -> float:
        """Hours from the decision to the deadline."""
        return (self.job.deadline_slots - self.slot) * self.slot_hours - self.elapsed_hours

    @property
    def above_ceiling(self) -> bool:
        """Whether spot costs more than the job's maximal spot price (M2.10)."""
        return self.quoted is not None and self.quoted > self.job.max_spot_usd

    @property
    def count(self) -> int:
        """Number of spot instances in the market, including those allocated to other jobs."""
        return self.available + self.others

    @property
    def knows_count(self) -> bool:
        """Whether the count of this slot was observed recently enough (M1.3); False if availability is assumed."""
        return self.availability_observed and bool(np.isfinite(self.market_beliefs().available[self.slot]))

    @property
    def evidence(self) -> Evidence:
        """The evidence of availability in this slot (M13.1)."""
        if self.availability_observed:
            return (
                self.market_beliefs().counted_evidence(self.slot)
                if self.knows_count
                else Evidence(level=PROBES)
            )
        return self.market_beliefs().evidence(self.slot)

    def left(self, count: int) -> View:
        """Return the view of a job to which other jobs leave ``count`` spot instances; the belief is unchanged."""
        available = min(count, self.available)
        return replace(
            self, available=available, others=self.count - available, beliefs=self.market_beliefs()
        )

    def belief(self, forgetting: Forgetting) -> Belief:
        """Return the belief of this slot about later slots (M6.9)."""
        return self.market_beliefs().at(self.slot, forgetting)

    def market_beliefs(self) -> SlotBeliefs:
        """Return the beliefs about the market; without stored beliefs they rest on this slot alone."""
        if self.beliefs is not None:
            return self.beliefs
        before = np.full(self.slot, np.nan)
        now = (self.price, float(self.count)) if self.observed else (np.nan, np.nan)
        return SlotBeliefs(
            price=np.append(before, now[0]),
            available=np.append(before, now[1]),
            forecasts=(None,) * self.slot + (self.forecast,),
            slot_hours=self.slot_hours,
            on_demand_usd=self.on_demand_usd,
        )

    def window(self, width: int) -> MarketWindow:
        """Return the observed present slot followed by ``width - 1`` forecast slots, cut at the deadline.

        The last forecast value is repeated beyond the horizon of the forecast; without a forecast
        the present values are repeated (ours).
        """
        width = max(1, min(width, self.job.deadline_slots - self.slot))
        if self.windows is None:
            return self._window(width)
        state = (self.slot, self.price, self.available, self.on_demand_usd, self.slot_hours)
        key = (width, *state, self.forecast)
        if key not in self.windows:
            self.windows[key] = self._window(width)
        return self.windows[key]

    def _window(self, width: int) -> MarketWindow:
        price = np.full(width, self.price, dtype=float)
        count = np.full(width, self.available, dtype=np.int64)
        if self.forecast is not None and len(self.forecast.price) and width > 1:
            take = np.minimum(np.arange(width - 1), len(self.forecast.price) - 1)
            price[1:] = self.forecast.price[take]
            count[1:] = self.forecast.available[take]
        return MarketWindow(
            price=price,
            available=count,
            on_demand_usd=self.on_demand_usd,
            slot_hours=self.slot_hours,
            observed=np.full(width, True),
            on_demand=self.on_demand,
        )


class Policy(Protocol[S]):
    """Rule that chooses the instances of the present slot."""

    @property
    def name(self) -> str:
        """Canonical name, such as ``AHAP(5,1,0.9)``."""
        ...

    def start(self, job: Job) -> S:
        """Return the state of the policy before the first slot."""
        ...

    def decide(self, state: S, view: View) -> tuple[Allocation, S]:
        """Return the allocation of the slot and the new state; pure: equal inputs give equal results."""
        ...

    def explain(self, state: S, view: View, allocation: Allocation) -> str:
        """Return the reason for the allocation in a short sentence ("on-demand because slack is 2 slots")."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Job states and market states of one slot on many sampled paths: arrays of shape (paths,).

    ``done`` and ``n_previous`` as in `Progress`, ``price`` (USD per instance-hour) and
    ``available`` as in `View`; the others as in `Running`, with ``gap_hours`` and ``guarded`` of
    all paths.
    """

    done: np.ndarray
    n_previous: np.ndarray
    price: np.ndarray
    available: np.ndarray
    on_demand: np.ndarray
    spot: np.ndarray
    pending_hours: np.ndarray
    saved: np.ndarray
    gap_hours: float
    guarded: bool

    def running(self, p: int) -> Running:
        """Return the instances of path ``p``."""
        return Running(
            held=Allocation(int(self.on_demand[p]), int(self.spot[p])),
            pending_hours=float(self.pending_hours[p]),
            saved=float(self.saved[p]),
            gap_hours=self.gap_hours,
            guarded=self.guarded,
        )


@runtime_checkable
class Believing(Protocol):
    """Policy that plans with the belief about the market and sets how its Markov chains forget."""

    @property
    def forgetting(self) -> Forgetting:
        """Forgetting of the Markov chains."""
        ...


@runtime_checkable
class Family(Protocol):
    """Policy of a family whose members differ in few slots, such as by a price threshold: replays run them as one until then."""

    def choice(self, view: View) -> Hashable:
        """Return a key: two policies of a class with equal keys in every view so far decide equally there."""
        ...


def families(policies: Sequence[object]) -> list[list[int]]:
    """Return the indices of the policies: those of each class that is a `Family` together, every other alone."""
    groups: dict[Hashable, list[int]] = {}
    for i, policy in enumerate(policies):
        groups.setdefault(type(policy) if isinstance(policy, Family) else i, []).append(i)
    return list(groups.values())


def parted(policies: Sequence[Any], members: list[int], view: View) -> list[list[int]]:
    """Return the indices ``members`` of policies of a `Family` in groups that decide equally in ``view``."""
    if len(members) == 1:
        return [members]
    groups: dict[Hashable, list[int]] = {}
    for i in members:
        groups.setdefault(policies[i].choice(view), []).append(i)
    return list(groups.values())


@runtime_checkable
class Memoryless(Protocol):
    """Policy without state between slots: all its information is in the view."""

    memoryless: bool


@runtime_checkable
class PlansInWorld(Protocol):
    """Policy that may plan with the instances of the world (`View.running`), the exact guard and the deadline itself (M4.12)."""

    @property
    def plans_in_world(self) -> bool:
        """Whether it plans so; for a policy that wraps another, whether the wrapped policy does."""


def plans_in_world(policy: object) -> bool:
    """Return whether a policy plans in the world (M4.12); other policies see the job as it is planned (M12.11)."""
    return isinstance(policy, PlansInWorld) and policy.plans_in_world


def forgetting_of(policy: object) -> Forgetting:
    """Return the forgetting of the chains of ``policy``, or the default for a policy without a belief."""
    return policy.forgetting if isinstance(policy, Believing) else Forgetting()


def belief_of(policy: object, view: View) -> Belief:
    """Return the belief of the slot of ``view`` under the forgetting of ``policy``."""
    return view.belief(forgetting_of(policy))


@runtime_checkable
class Together(Protocol[S_contra]):
    """Policy that can decide one slot of many sampled paths at once."""

    def decide_together(
        self, state: S_contra, view: View, paths: Paths
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the on-demand and spot instances, shapes (paths,), that `Policy.decide` would choose on each path.

        ``view`` is the slot as on the first path. None means that the paths must be decided
        individually.
        """
        ...
