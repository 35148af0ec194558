"""What a policy is: a pure function of what is known in a slot (M4, M4.9)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from optimization.job.definition import Job, Progress
from optimization.market.belief import Belief, Believed, Forgetting
from optimization.market.window import MarketWindow, Past, PointForecast
from optimization.window.plan import Allocation
from warehouse.history import OBSERVED, OnDemandOrigin

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
Windows = dict[tuple[object, ...], tuple[PointForecast | None, MarketWindow]]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All a policy sees in slot ``slot``: the job, its progress, this slot's price and count, and the newest forecast.

    ``observed`` is False in a gap (then ``available`` is 0 and ``price`` the on-demand price). ``forecast``
    was issued in this slot or before (element 0 of it is slot ``slot + 1`` whatever its age; the maker of the view shifts it);
    None if there is none. ``past`` is the record of the market up to this slot, None where none was kept. ``windows`` is where
    the views of one replay keep the windows they have made, by everything a window is made of (with the forecast, so that its
    identity stays its own); ``tables`` is where they keep what else depends on the market alone, and ``beliefs`` what is believed
    of it, slot by slot. ``others`` is the spot that other jobs are promised in this slot: ``available`` is what they leave of the
    market's ``count``. ``on_demand`` says where the on-demand price comes from, and whether instances are sold on demand at all.
    ``quoted`` is the spot price in the market where the job has a highest spot price, else None (`SpotCeiling`).
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
    beliefs: Believed | None = field(default=None, compare=False, repr=False)
    others: int = 0
    on_demand: OnDemandOrigin = OBSERVED
    availability_observed: bool = True
    quoted: float | None = None

    @property
    def above_ceiling(self) -> bool:
        """Whether spot costs more than the job's highest spot price (M2.10)."""
        return self.quoted is not None and self.quoted > self.job.max_spot_usd

    @property
    def count(self) -> int:
        """All the spot instances of the market, also those that are not left to this job: the state it is in."""
        return self.available + self.others

    @property
    def knows_count(self) -> bool:
        """Whether the count of this slot was observed, and not too long ago (M1.3); never where availability is assumed."""
        return self.availability_observed and bool(np.isfinite(self.market_beliefs().available[self.slot]))

    def left(self, count: int) -> View:
        """The slot of a job to which others leave ``count`` of the spot instances; what is believed of the market stays."""
        kept = min(count, self.available)
        return replace(self, available=kept, others=self.count - kept, beliefs=self.market_beliefs())

    def belief(self, forgetting: Forgetting) -> Belief:
        """What is believed in this slot of the slots to come (M6.9)."""
        return self.market_beliefs().at(self.slot, forgetting)

    def market_beliefs(self) -> Believed:
        """The beliefs of the market; a view that stands alone knows this slot and no other."""
        if self.beliefs is not None:
            return self.beliefs
        before = np.full(self.slot, np.nan)
        now = (self.price, float(self.count)) if self.observed else (np.nan, np.nan)
        return Believed(
            price=np.append(before, now[0]),
            available=np.append(before, now[1]),
            forecasts=(None,) * self.slot + (self.forecast,),
            slot_hours=self.slot_hours,
            on_demand_usd=self.on_demand_usd,
        )

    def window(self, width: int) -> MarketWindow:
        """This slot as observed and the next ``width - 1`` as forecast, cut at the deadline; the last forecast is held
        beyond the forecast's horizon, and the present is held where there is no forecast at all (ours)."""
        width = max(1, min(width, self.job.deadline_slots - self.slot))
        if self.windows is None:
            return self._window(width)
        made_of = (width, self.slot, self.price, self.available, self.on_demand_usd, self.slot_hours)
        key = (*made_of, id(self.forecast))
        known = self.windows.get(key)
        if known is None:
            known = self.windows[key] = (self.forecast, self._window(width))
        return known[1]

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
    """A rule that chooses the instances of the present slot."""

    @property
    def name(self) -> str:
        """The canonical name, such as ``AHAP(5,1,0.9)``."""
        ...

    def start(self, job: Job) -> S:
        """The policy's own state before the first slot."""
        ...

    def decide(self, state: S, view: View) -> tuple[Allocation, S]:
        """Choose the slot's allocation; pure: the same state and view give the same answer."""
        ...

    def explain(self, state: S, view: View, allocation: Allocation) -> str:
        """Why it chose that, in one short sentence a person can act on ("on-demand because slack is 2 slots")."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where a job stands in one slot on each of many futures, and what that slot gives: arrays of shape (paths,).

    ``done`` and ``n_previous`` as in `Progress`, ``price`` (USD per instance-hour) and ``available`` as in `View`.
    """

    done: np.ndarray
    n_previous: np.ndarray
    price: np.ndarray
    available: np.ndarray


def on_path(view: View, paths: Paths, p: int) -> View:
    """The slot of ``view`` as future ``p`` sees it; what it has paid so far is not said."""
    return replace(
        view,
        progress=Progress(done=float(paths.done[p]), n_previous=int(paths.n_previous[p])),
        price=float(paths.price[p]),
        available=int(paths.available[p]),
    )


@runtime_checkable
class Believing(Protocol):
    """A policy that plans by the belief of the market, and says how its chains forget."""

    @property
    def forgetting(self) -> Forgetting:
        """How they do."""
        ...


@runtime_checkable
class Memoryless(Protocol):
    """A policy that carries nothing from slot to slot: what it knows is in the view."""

    memoryless: bool


def forgetting_of(policy: object) -> Forgetting:
    """How the chains forget where ``policy`` decides: as it says, if it plans by a belief."""
    return policy.forgetting if isinstance(policy, Believing) else Forgetting()


def belief_of(policy: object, view: View) -> Belief:
    """What is believed in the slot of ``view`` where ``policy`` decides: what it plans by, if it plans by a belief."""
    return view.belief(forgetting_of(policy))


@runtime_checkable
class Together(Protocol[S_contra]):
    """A policy that can decide one slot of many futures at once."""

    def decide_together(self, state: S_contra, view: View, paths: Paths) -> np.ndarray | None:
        """The sizes n (paths,) that `Policy.decide` would choose on each, spot first (M3.2); None: ask it one by one.

        ``view`` is the slot as the first of the futures sees it.
        """
        ...
