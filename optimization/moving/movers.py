"""Movers: rules that choose where to run and with how many instances (M11.5, M11.6) (ours, but for what is named)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from optimization.kernels.rules import after_growing, on_demand_stays, spot_held
from optimization.market.belief import Forgetting
from optimization.moving.definition import (
    IDLE,
    MarketsView,
    MovableJob,
    MovingHold,
    fastest_way,
    net,
    priced_net,
)
from optimization.moving.tables import DRAWS, ROUNDING, MovingTables, make_moving_tables
from optimization.policies.baselines import behind, changeovers, kept
from optimization.policies.contract import Believing, Policy
from optimization.policies.pace import WORK_TOLERANCE, expected_progress
from optimization.policies.stochastic import Stochastic, tables_in_force
from optimization.window.plan import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """A policy of one market in market ``market``, or in the one that is worth most to the stochastic policy at the start
    (None)."""

    policy: Policy[Any]
    market: int | None = None

    @property
    def name(self) -> str:
        """``UP in market 3``."""
        return f"{self.policy.name} in {'the best at the start' if self.market is None else f'market {self.market}'}"

    def start(self, job: MovableJob) -> tuple[int | None, Any]:
        """The market, and the policy's own state there."""
        m = self.market if self.market is not None else None
        return m, self.policy.start(job.runs[m or 0])

    def decide(
        self, state: tuple[int | None, Any], view: MarketsView
    ) -> tuple[MovingHold, tuple[int | None, Any]]:
        """What the policy holds in its market."""
        m, own = state
        if m is None:
            m = best_alone(view)
        if not view.seen[m] and view.committed is None:
            return MovingHold(m, IDLE.allocation), (m, own)  # it goes there and sees
        allocation, own = self.policy.decide(own, view.views[m])
        held = MovingHold(m, allocation) if allocation.total else IDLE
        if view.place != m and view.deadline_in_reach:
            # The policy knows nothing of the way there.
            own_net = priced_net if isinstance(self.policy, Believing) else net
            held = own_net(replace(view, committed=m), held)
        return held, (m, own)


def best_alone(view: MarketsView) -> int:
    """The market in which the job would be worth most if it stayed there to its end, a move there paid."""
    worth = []
    for m, own in enumerate(view.views):
        tables = tables_in_force(own, Forgetting())
        n = tables.size(
            slot=own.slot, rest=view.work_left, before=own.progress.n_previous, available=own.available,
            price=own.price * own.slot_hours,
        )  # fmt: skip
        worth.append(alone_worth(view, m, n) - (view.move_usd(m) if m != view.place else 0.0))
    return int(np.argmax(worth))


def alone_worth(view: MarketsView, m: int, n: int) -> float:
    """USD that holding ``n`` in market ``m`` now and staying there is worth, before the move is paid."""
    own = view.views[m]
    tables = tables_in_force(own, Forgetting())
    return tables.worth(own, view.split(m, n).allocation, view.work_left - view.work(m, n))


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStep:
    """One step over the tables of single markets: it goes where it would be worth most if it then stayed (M11.6)."""

    name: str = field(default="OneStep", init=False)

    def start(self, job: MovableJob) -> None:
        """No state."""

    def decide(self, state: None, view: MarketsView) -> tuple[MovingHold, None]:
        """The market and size of most worth."""
        found: list[tuple[float, int, MovingHold]] = []
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanField:
    """The mover that prices the later option to move: the mean-field program on the beliefs of all markets (M11.6)."""

    half_life_hours: float = Forgetting().own_hours
    draws: int = DRAWS
    name: str = field(default="MeanField", init=False)

    @property
    def forgetting(self) -> Forgetting:
        """How the chains of its beliefs forget."""
        return Forgetting(own_hours=self.half_life_hours, peer_hours=self.half_life_hours)

    def start(self, job: MovableJob) -> None:
        """No state: what it knows is in the view."""

    def tables(self, view: MarketsView, keep: int = 1, taken: Sequence[int] | None = None) -> MovingTables:
        """The tables of the slot and of ``keep`` - 1 later ones, on the beliefs of all markets in it.

        Others take ``taken`` instances of each market first in every later slot (None: nothing).
        """
        fastest = (
            max(float(run.throughput.rate(n)) for run in view.job.runs for n in (run.n_min, run.n_max))
            * view.slot_hours
        )
        job = view.job.job
        ahead = view.progress.done > view.slot * fastest + WORK_TOLERANCE * job.workload
        return make_moving_tables(
            view.job,
            [own.belief(self.forgetting) for own in view.views],
            slot=view.slot,
            begun=view.never_let_go and view.deadline_in_reach and not ahead,
            draws=self.draws,
            keep=keep,
            taken=taken,
            certain_now=not any(own.availability_observed for own in view.views),
        )

    def decide(self, state: None, view: MarketsView) -> tuple[MovingHold, None]:
        """The market and size of most worth, among those that keep the deadline in reach where it is worth its price."""
        tables = self.tables(view)
        m, n = tables.best(view, tables.worth(view)[0])
        if m == view.job.nowhere:
            return IDLE, None
        if not n and m != view.place and not view.seen[m]:
            return MovingHold(m, IDLE.allocation), None
        return view.split(m, n), None

    def probe(self, state: None, view: MarketsView) -> int | None:
        """The market whose count is worth most to know before this slot is decided; None if none can change anything.

        That is the expected worth of the better of the best way known and the best that could be there, less the former.
        """
        if all(view.seen):
            return None
        tables = self.tables(view)
        worth, by_state = tables.worth(view)
        known = float(worth[[*(m for m, seen in enumerate(view.seen) if seen), len(view.seen)]].max())
        gains = [
            -np.inf if view.seen[m] else float(now @ np.maximum(by_state[m, : len(now)] - known, 0.0))
            for m, now in enumerate(tables.now)
        ]
        m = int(np.argmax(gains))
        return m if gains[m] > ROUNDING * view.job.job.value else None


# ---
# The baselines of M11.5: rules of thumb that look at what is there now.


def _spot(view: MarketsView, m: int) -> MovingHold:
    """All spot of a market up to N_max, never more than finishes the job; nothing where it is dearer than on-demand (M4.2)."""
    own, run = view.views[m], view.job.runs[m]
    n = spot_held(run.n_max, own.available, own.price, own.on_demand_usd)
    if n < run.n_min:
        return IDLE
    slack = WORK_TOLERANCE * run.workload
    enough = next((k for k in range(run.n_min, n) if view.work(m, k) >= view.work_left - slack), n)
    return MovingHold(m, Allocation(0, enough))


def _in_order(view: MarketsView) -> list[int]:
    """The job's place first, then the other markets."""
    here = [view.place] if view.place < len(view.views) else []
    return here + [m for m in range(len(view.views)) if m != view.place]


def _catching_up(view: MarketsView, spot: MovingHold, due: float) -> MovingHold:
    """``spot`` if ``due`` work units are done after it, else the cheapest way to do them by the end of this slot (M4.3).

    Where there is none, the way of most work in this slot: in the market of the spot, without spot in any. Where a restart
    eats the slot, the cheapest way to be back on uniform progress soonest. In one market both are `pace.least_size`.
    """
    job, slack = view.job.job, WORK_TOLERANCE * view.job.job.workload
    due = min(due, job.workload) - slack

    def missing(held: MovingHold, slots: int = 1) -> float:
        """What is due after so many slots, and on-demand from then on has not done."""
        m, n = held.market, held.allocation.total
        reach = view.job.pace(view.slot_hours).reach[slots - 1]
        line = min(due + (slots - 1) * job.workload / job.deadline_slots, job.workload - slack)
        done = view.progress.done + (
            float(reach[view.place, 0]) if m is None else view.work(m, n) + float(reach[m, n])
        )
        return line - done

    if missing(spot) <= 0.0:
        return spot
    ways = [held for held in view.options() if held.market is not None]
    enough = [held for held in ways if missing(held) <= 0.0]
    if enough:
        return min(enough, key=view.usd)
    ways = [held for held in ways if spot.market in (None, held.market)]
    if not ways:  # no spot, and nothing is sold on demand
        return spot
    least = min(missing(held) for held in ways)
    runs = {held.market: view.job.runs[held.market or 0] for held in ways}.values()
    if least < missing(IDLE) - slack and any(after_growing(run.restart, run.n_max) > 0.0 for run in runs):
        return min((held for held in ways if missing(held) <= least + slack), key=view.usd)
    for slots in range(2, view.slots_left + 1):
        enough = [held for held in ways if missing(held, slots) <= 0.0]
        if enough:
            return min(enough, key=view.usd)
    return fastest_way(view)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """UP over markets: its place while that has spot, else the cheapest market that has, else on-demand by UP (M11.5).

    With ``fullest`` it goes where most spot is, not where it is cheapest. After the multi-region form of "Can't Be Late"
    (NSDI 2024); lead, hysteresis and what stays on demand are UP's own (`policies.baselines`, M4.3), spot being there
    where any market has it. State: how many were held on demand in the slot before, in its place.
    """

    fullest: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", "UP, failover to the fullest" if self.fullest else "UP, failover")

    def start(self, job: MovableJob) -> int:
        """No on-demand held."""
        return 0

    def decide(self, state: int, view: MarketsView) -> tuple[MovingHold, int]:
        """Spot where it is, on-demand where it falls behind; on-demand is left for spot alone."""
        held = net(view, self._wish(state, view))
        return held, held.allocation.on_demand

    def _wish(self, state: int, view: MarketsView) -> MovingHold:
        spot, own = self._spot(view), view.views[min(view.place, len(view.views) - 1)]
        lead = changeovers(state > 0, own)
        short = any(one.observed for one in view.views) and behind(own, lead)
        if short:
            need = _catching_up(view, spot, expected_progress(own.job, view.slot + 1 + lead))
            less = need.market == spot.market and need.allocation.total <= spot.allocation.total
            return spot if less else need  # of spot all that is there
        if state and on_demand_stays(spot.market is not None, short):
            return MovingHold(view.place, kept(state, own))
        return spot

    def _spot(self, view: MarketsView) -> MovingHold:
        here = _spot(view, view.place) if view.place < len(view.views) else IDLE
        if here.market is not None:
            return here
        there = [held for held in (_spot(view, m) for m in _in_order(view)) if held.market is not None]
        if not there:
            return IDLE
        if self.fullest:
            return max(there, key=lambda held: held.allocation.spot)
        return min(there, key=lambda held: view.views[held.market or 0].price)


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyMover:
    """The cheapest spot that is there, wherever it is; of equal prices its place, then the most of it (M11.5)."""

    name: str = field(default="Greedy", init=False)

    def start(self, job: MovableJob) -> None:
        """No state."""

    def decide(self, state: None, view: MarketsView) -> tuple[MovingHold, None]:
        """All of it, up to N_max."""
        there = [held for held in (_spot(view, m) for m in _in_order(view)) if held.market is not None]

        def rank(held: MovingHold) -> tuple[float, bool, int]:
            return view.views[held.market or 0].price, held.market != view.place, -held.allocation.spot

        return net(view, min(there, key=rank) if there else IDLE), None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePressure:
    """A SkyNomad-like rule: progress is worth what the deadline makes it worth (arXiv 2601.06520; its inside is ours).

    A unit of work is worth the least on-demand price times the share of the remaining time that the rest needs at full
    size. Of all markets it takes the one where a slot of spot is worth most beyond its price, its restart and move being
    spread over the slots that its spot is expected to last; none where it is not worth it.
    """

    forgetting: Forgetting = field(default_factory=Forgetting)
    name: str = field(default="Pressure", init=False)

    def start(self, job: MovableJob) -> None:
        """No state."""

    def decide(self, state: None, view: MarketsView) -> tuple[MovingHold, None]:
        """The market of most worth in this slot."""
        fastest = max(run.throughput.rate(run.n_max) for run in view.job.runs) * view.slot_hours
        unit = min(
            own.on_demand_usd * run.n_max / run.throughput.rate(run.n_max)
            for own, run in zip(view.views, view.job.runs, strict=True)
        )
        worth = unit * min(1.0, view.work_left / (view.slots_left * fastest))
        best, wish = 0.0, IDLE
        for m in _in_order(view):
            held = _spot(view, m)
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


def best_past(policy: Policy[Any], spot_usd: Sequence[float]) -> Alone:
    """``policy`` in the market that saved most in the past.

    ``spot_usd`` is what the spot of each market saved a slot in the mean, against on-demand where that is cheapest: against each
    market's own on-demand price the dear ones would look best.
    """
    return Alone(policy=policy, market=int(np.argmax(spot_usd)))


def stochastic_at_the_start() -> Alone:
    """The stochastic policy in the market that is worth most at the start: the strongest that stays in one."""
    return Alone(policy=Stochastic())
