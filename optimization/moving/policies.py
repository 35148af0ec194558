"""Multi-market policies: rules that choose the market and the number of instances (M11.5, M11.6).

They are ours unless a source is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from slackwater.optimization.kernels.rules import spot_held
from slackwater.optimization.market.belief import Forgetting
from slackwater.optimization.moving.definition import IDLE, MarketsJob, MarketsView, Placement, net, placement
from slackwater.optimization.moving.world_tables import DRAWS, world_tables_in_force
from slackwater.optimization.policies.pace import WORK_TOLERANCE
from slackwater.optimization.policies.stochastic import Stochastic
from slackwater.optimization.window.plan import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanField:
    """Policy that values later moves: the mean-field program on the beliefs of all markets (M11.6)."""

    multi_market: ClassVar[bool] = True
    memoryless: ClassVar[bool] = True
    half_life_hours: float = Forgetting().own_hours
    draws: int = DRAWS
    name: str = field(default="MeanField", init=False)
    plans_in_world: bool = field(default=True, init=False, repr=False, compare=False)

    @property
    def forgetting(self) -> Forgetting:
        """Forgetting of the chains of the beliefs."""
        return Forgetting(own_hours=self.half_life_hours, peer_hours=self.half_life_hours)

    @property
    def alone(self) -> Stochastic:
        """The plan of a job in one market (M4.12)."""
        return Stochastic(half_life_hours=self.half_life_hours)

    def start(self, job: MarketsJob) -> None:
        """Return no state: all information is in the view."""

    def decide(self, state: None, view: MarketsView) -> tuple[Placement, None]:
        """Return the market and instances of highest value; in one market the decision of the plan there.

        Raises `PolicyError` for a view of several markets without the instances in the world.
        """
        if len(view.views) == 1:
            return placement(0, self.alone.decide(None, view.views[0])[0]), None
        tables = world_tables_in_force(view, self.forgetting, draws=self.draws)
        return tables.options(view).best()[0], None


def all_spot_in(view: MarketsView, m: int) -> Placement:
    """Return all spot of a market up to N_max, no more than finishes the job; nothing if on-demand is cheaper (M4.2)."""
    own, run = view.views[m], view.job.runs[m]
    n = spot_held(run.n_max, own.available, own.price, own.on_demand_usd)
    if n < run.n_min:
        return IDLE
    slack = WORK_TOLERANCE * run.workload
    enough = next((k for k in range(run.n_min, n) if view.work(m, k) >= view.work_left - slack), n)
    return Placement(m, Allocation(0, enough))


def place_first(view: MarketsView) -> list[int]:
    """Return the place of the job first, then the other markets."""
    here = [view.place] if view.place < len(view.views) else []
    return here + [m for m in range(len(view.views)) if m != view.place]


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedySpot:
    """Cheapest available spot of all markets; of equal prices the place of the job, then the most instances (M11.5)."""

    multi_market: ClassVar[bool] = True
    memoryless: ClassVar[bool] = True
    name: str = field(default="Greedy", init=False)

    def start(self, job: MarketsJob) -> None:
        """Return no state."""

    def decide(self, state: None, view: MarketsView) -> tuple[Placement, None]:
        """Return all spot of the chosen market, up to N_max."""
        there = [
            held for held in (all_spot_in(view, m) for m in place_first(view)) if held.market is not None
        ]

        def rank(held: Placement) -> tuple[float, bool, int]:
            return view.views[held.market or 0].price, held.market != view.place, -held.allocation.spot

        return net(view, min(there, key=rank) if there else IDLE), None
