"""Multi-market policies that the experiments compare with the plan (M11.5): one step ahead, UP with failover, pressure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from slackwater.optimization.kernels.rules import after_growing, on_demand_stays
from slackwater.optimization.market.belief import Forgetting
from slackwater.optimization.moving.adapter import alone_worth
from slackwater.optimization.moving.definition import (
    IDLE,
    MarketsJob,
    MarketsView,
    Placement,
    fastest_way,
    net,
    priced_net,
)
from slackwater.optimization.moving.policies import all_spot_in, place_first
from slackwater.optimization.policies.baselines import behind, changeovers, previous_on_demand
from slackwater.optimization.policies.pace import WORK_TOLERANCE, expected_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStep:
    """One-step lookahead on the tables of single markets: choose the market of highest value if the job then stayed (M11.6)."""

    multi_market: ClassVar[bool] = True
    memoryless: ClassVar[bool] = True
    name: str = field(default="OneStep", init=False)

    def start(self, job: MarketsJob) -> None:
        """Return no state."""

    def decide(self, state: None, view: MarketsView) -> tuple[Placement, None]:
        """Return the market and size of highest value, subject to the safety net."""
        found: list[tuple[float, int, Placement]] = []
        for held in view.options():
            m = view.place if held.market is None else held.market
            if m == view.job.nowhere:
                best = max(alone_worth(view, k, 0) for k in range(len(view.views)))
                found.append((best, 0, held))
                continue
            usd = alone_worth(view, m, held.allocation.total)
            if held.market is not None and m != view.place:
                usd -= view.move_usd(m)
            found.append((usd, -len(found), held))
        wish = max(found, key=lambda item: (round(item[0], 9), item[1]))[2]
        return priced_net(view, wish), None


def _catching_up(view: MarketsView, spot: Placement, due: float) -> Placement:
    """Return ``spot`` if it completes ``due`` work units, else the cheapest option that does by the end of this slot (M4.3).

    Without such an option, returns the option of most work in this slot: in the market of the spot,
    or in any market without spot. If a restart takes the whole slot, returns the cheapest option
    that is soonest back on uniform progress. In a single market both equal `pace.least_size`.
    """
    job, slack = view.job.job, WORK_TOLERANCE * view.job.job.workload
    due = min(due, job.workload) - slack

    def missing(held: Placement, slots: int = 1) -> float:
        """Return the due work after ``slots`` slots that on-demand after this slot has not done."""
        m, n = held.market, held.allocation.total
        reach = view.job.pace(view.slot_hours).reach[slots - 1]
        line = min(due + (slots - 1) * job.workload / job.deadline_slots, job.workload - slack)
        done = view.progress.done + (
            float(reach[view.place, 0]) if m is None else view.work(m, n) + float(reach[m, n])
        )
        return line - done

    if missing(spot) <= 0.0:
        return spot
    choices = [held for held in view.options() if held.market is not None]
    enough = [held for held in choices if missing(held) <= 0.0]
    if enough:
        return min(enough, key=view.usd)
    choices = [held for held in choices if spot.market in (None, held.market)]
    if not choices:  # no spot, and no on-demand instances are sold
        return spot
    least = min(missing(held) for held in choices)
    runs = {held.market: view.job.runs[held.market or 0] for held in choices}.values()
    if least < missing(IDLE) - slack and any(after_growing(run.restart, run.n_max) > 0.0 for run in runs):
        return min((held for held in choices if missing(held) <= least + slack), key=view.usd)
    for slots in range(2, view.slots_left + 1):
        enough = [held for held in choices if missing(held, slots) <= 0.0]
        if enough:
            return min(enough, key=view.usd)
    return fastest_way(view)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """UP over markets: spot in its place, else the cheapest market with spot, else on-demand by UP (M11.5).

    With ``fullest`` it goes to the market with most spot instead of the cheapest. Based on the
    multi-region form of "Can't Be Late" (NSDI 2024); lead, hysteresis and the on-demand that
    continues are those of UP (`policies.baselines`, M4.3), with spot counted as available if any
    market has it. The state is the number of on-demand instances of the previous slot, in its
    place.
    """

    multi_market: ClassVar[bool] = True
    fullest: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", "UP, failover to the fullest" if self.fullest else "UP, failover")

    def start(self, job: MarketsJob) -> int:
        """Return 0 on-demand instances."""
        return 0

    def decide(self, state: int, view: MarketsView) -> tuple[Placement, int]:
        """Return spot where available, on-demand when behind; on-demand is left for spot only."""
        held = net(view, self._wish(state, view))
        return held, held.allocation.on_demand

    def _wish(self, state: int, view: MarketsView) -> Placement:
        spot, own = self._spot(view), view.views[min(view.place, len(view.views) - 1)]
        lead = changeovers(state > 0, own)
        short = any(other.observed for other in view.views) and behind(own, lead)
        if short:
            need = _catching_up(view, spot, expected_progress(own.job, view.slot + 1 + lead))
            less = need.market == spot.market and need.allocation.total <= spot.allocation.total
            return spot if less else need  # all available spot
        if state and on_demand_stays(spot.market is not None, short):
            return Placement(view.place, previous_on_demand(state, own))
        return spot

    def _spot(self, view: MarketsView) -> Placement:
        here = all_spot_in(view, view.place) if view.place < len(view.views) else IDLE
        if here.market is not None:
            return here
        there = [
            held for held in (all_spot_in(view, m) for m in place_first(view)) if held.market is not None
        ]
        if not there:
            return IDLE
        if self.fullest:
            return max(there, key=lambda held: held.allocation.spot)
        return min(there, key=lambda held: view.views[held.market or 0].price)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePressure:
    """Policy similar to SkyNomad: the deadline sets the value of progress (arXiv 2601.06520; the details are ours).

    The value of a work unit is the least on-demand price times the share of the remaining time that
    the remaining work takes at full size. The policy takes the market in which a slot of spot has
    the highest value minus price, with restart and move spread over the expected duration of its
    spot; none if the result is not positive.
    """

    multi_market: ClassVar[bool] = True
    memoryless: ClassVar[bool] = True
    forgetting: Forgetting = field(default_factory=Forgetting)
    name: str = field(default="Pressure", init=False)

    def start(self, job: MarketsJob) -> None:
        """Return no state."""

    def decide(self, state: None, view: MarketsView) -> tuple[Placement, None]:
        """Return the spot of the market of highest net value in this slot."""
        fastest = max(run.throughput.rate(run.n_max) for run in view.job.runs) * view.slot_hours
        unit = min(
            own.on_demand_usd * run.n_max / run.throughput.rate(run.n_max)
            for own, run in zip(view.views, view.job.runs, strict=True)
        )
        worth = unit * min(1.0, view.work_left / (view.slots_left * fastest))
        best, wish = 0.0, IDLE
        for m in place_first(view):
            held = all_spot_in(view, m)
            if held.market is None:
                continue
            own, run = view.views[m], view.job.runs[m]
            full = run.throughput.rate(held.allocation.total) * view.slot_hours
            lost = worth * (full - view.work(m, held.allocation.total)) + view.move_usd(m) * (m != view.place)
            chain = own.belief(self.forgetting).counts
            stays = float(chain.transition[chain.index(own.available), chain.count >= run.n_min].sum())
            lasts = min(1.0 / max(1e-6, 1.0 - stays), float(view.slots_left))
            usd = worth * full - held.allocation.spot * own.price * view.slot_hours - lost / lasts
            if usd > best + 1e-12:
                best, wish = usd, held
        return net(view, wish), None
