"""Multi-market policy as a strategy for multi-region simulators: observation of a step in, action out.

Public simulators of a job over many regions (the multi-region forms of "Can't Be Late" and SkyNomad) show a strategy the prices
of all regions, but the availability of spot only in regions where it tries to launch or probes, and charge egress when the
checkpoint moves. In every step call `MultiRegionStrategy.act` until the action is final.

    strategy = MultiRegionStrategy(regions, work_hours=20, deadline_hours=40, restart_hours=0.1, egress_usd=2.0)
    action = strategy.act(observation)           # "probe" and failed "try": observe, then call again
    ...                                          # successful "try", "on_demand", "stay", "terminate": next step

The strategy uses only its observations: unobserved availability is a belief with an age (M11.4). A step is a slot; simulators
with shorter steps call it once per slot and when spot is lost. Work is counted in instance-hours. Spot may be lost at any time,
and a restart may take longer than a step: on-demand begins while the deadline holds even if the next step makes no progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from slackwater.optimization.job.definition import Job, Linear, Progress
from slackwater.optimization.market.window import market_window, record_of
from slackwater.optimization.moving.costs import Moving
from slackwater.optimization.moving.definition import IDLE, MarketsJob, MarketsView, Placement
from slackwater.optimization.moving.policies import MeanField
from slackwater.optimization.moving.sight import Grounds
from slackwater.optimization.policies.contract import View
from slackwater.optimization.window.plan import Allocation

#: Waiting must be worth this share of an on-demand slot more than available spot.
NEAR_TIE = 0.01


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Observation of a step.

    ``available``: the regions observed in this step, including the region of a running spot instance; ``region``: location of
    the checkpoint (None: no checkpoint yet); ``holding``: type of the running instance. Prices are USD per hour.
    """

    step: int
    done_hours: float
    region: str | None
    holding: Literal["spot", "on_demand"] | None
    spot_usd: Mapping[str, float]
    available: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Action:
    """Action: ``try`` spot or run ``on_demand`` in ``region``, ``probe`` it, ``stay`` unchanged, or ``terminate`` and wait."""

    kind: Literal["try", "on_demand", "probe", "stay", "terminate"]
    region: str | None = None


class MultiRegionStrategy:
    """Mean-field multi-market policy (M11.6) for a job with a single instance.

    ``on_demand_usd`` is by region, ``egress_usd`` by pair of regions or the same for all. ``probes``: most regions probed in a
    step, in addition to those tried. ``free_tries``: a launch that fails costs neither time nor money, so every region may be
    tried in a step, the best first; otherwise at most one try a step replaces waiting. ``history``: region -> (prices, counts)
    before the job, oldest first, NaN where unknown.
    """

    def __init__(
        self,
        on_demand_usd: Mapping[str, float],
        *,
        work_hours: float,
        deadline_hours: float,
        step_hours: float = 0.5,
        restart_hours: float = 0.0,
        transfer_hours: float = 0.0,
        egress_usd: float | Mapping[tuple[str, str], float] = 0.0,
        home: str | None = None,
        probes: int = 1,
        free_tries: bool = False,
        history: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    ) -> None:
        self.regions, self.on_demand_usd, self.hours = list(on_demand_usd), dict(on_demand_usd), step_hours
        self.steps = steps = int(deadline_hours / step_hours + 1e-9)
        usd = [
            [
                0.0 if a == b else egress_usd[a, b] if isinstance(egress_usd, Mapping) else egress_usd
                for b in self.regions
            ]
            for a in self.regions
        ]
        run = Job(
            name="multi-region",
            # The change to on-demand costs a restart, which the tables leave out where spot runs.
            workload=work_hours + restart_hours,
            # On-demand begins while a step without progress is still possible (`_forced`).
            deadline_slots=max(1, steps - 1),
            n_min=1,
            n_max=1,
            throughput=Linear(),
            mu_up=1.0 - restart_hours / step_hours,
            value=10.0 * work_hours * max(on_demand_usd.values()),
            must_finish=True,
        )
        self.job = MarketsJob(
            runs=(run,) * len(self.regions),
            moving=Moving(taken=transfer_hours / step_hours, usd=np.array(usd)),
            home=None if home is None else self.regions.index(home),
        )
        self.mover, self.probes, self.free_tries = MeanField(), probes, free_tries
        self.work_hours, self.restart_hours, self.transfer_hours = work_hours, restart_hours, transfer_hours
        self._probed, self._acted, self._held_spot = (-1, 0), (-1, Action(kind="stay")), False
        # Step and hours of overhead of the newest launch of each region and type.
        self._launched: dict[tuple[str | None, str | None], tuple[int, float]] = {}
        past = {} if history is None else history
        self._before = max([len(prices) for prices, _ in past.values()], default=0)
        shape = (len(self.regions), self._before + steps)
        self._price, self._count = np.full(shape, np.nan), np.full(shape, np.nan)
        for m, region in enumerate(self.regions):
            if region in past:
                prices, counts = (np.asarray(values, dtype=float) for values in past[region])
                self._price[m, self._before - len(prices) : self._before] = prices
                self._count[m, self._before - len(counts) : self._before] = counts

    def act(self, seen: Observation) -> Action:
        """Return the action for this step, given all observations of the step so far."""
        now = self._before + seen.step
        self._learn(seen)
        for m, region in enumerate(self.regions):
            self._price[m, now] = seen.spot_usd[region]
            if region in seen.available:
                self._count[m, now] = float(seen.available[region])
        action = self._action(seen)
        if action.kind in ("try", "on_demand"):
            moved = seen.region not in (None, action.region)
            overhead = self.restart_hours + (self.transfer_hours if moved else 0.0)
            kind = "spot" if action.kind == "try" else "on_demand"
            self._launched[action.region, kind] = seen.step, overhead
        self._acted, self._held_spot = (seen.step, action), seen.holding == "spot"
        return action

    def _learn(self, seen: Observation) -> None:
        """Record the result of the last step: spot that was launched or ran, and is gone if it was lost within the step."""
        step, action = self._acted
        ran = action.kind == "try" or (action.kind == "stay" and self._held_spot)
        holds = (seen.region, seen.holding) == (action.region, "spot")
        if step < seen.step and action.region is not None and ran and (holds or seen.holding is None):
            self._count[self.regions.index(action.region), self._before + step] = float(holds)

    def _action(self, seen: Observation) -> Action:
        if seen.done_hours >= self.work_hours or seen.step >= self.steps:
            return Action(kind="terminate")
        region = self._forced(seen)
        if region is not None:
            return self._on_demand(seen, region)
        view = self._view(seen)
        step, used = self._probed
        used = used if step == seen.step else 0
        if used < self.probes:
            m = self.mover.probe(None, view)
            if m is not None:
                self._probed = (seen.step, used + 1)
                return Action(kind="probe", region=self.regions[m])
        held = self._wish(view, tried=self._acted[0] == seen.step and self._acted[1].kind == "try")
        if held.market is None:
            return Action(kind="terminate" if seen.holding else "stay", region=seen.region)
        region = self.regions[held.market]
        if held.allocation.on_demand:
            return self._on_demand(seen, region)
        same = (seen.region, seen.holding) == (region, "spot")
        return Action(kind="stay" if same else "try", region=region)

    def _on_demand(self, seen: Observation, region: str) -> Action:
        same = (seen.region, seen.holding) == (region, "on_demand")
        return Action(kind="stay" if same else "on_demand", region=region)

    def _forced(self, seen: Observation) -> str | None:
        """Return the region in which on-demand must run now, None if the deadline holds after a step without progress."""
        left = (self.steps - seen.step) * self.hours + 1e-9
        rest = self.work_hours - seen.done_hours + self.restart_hours
        if left - self.hours >= rest:
            return None
        if seen.holding == "on_demand":
            return seen.region

        def usd(region: str) -> float:
            if seen.region in (None, region):
                return rest * self.on_demand_usd[region]
            egress = self.job.moving.usd[self.regions.index(seen.region or ""), self.regions.index(region)]
            return (rest + self.transfer_hours) * self.on_demand_usd[region] + float(egress)

        in_time = left >= rest + self.transfer_hours or seen.region is None
        return min(self.regions, key=usd) if in_time else seen.region

    def _wish(self, view: MarketsView, *, tried: bool) -> Placement:
        """Return the choice of the policy, or spot to try: where waiting is worth hardly more, or where trying is free."""
        tables = self.mover.tables(view)
        worth = tables.worth(view)[0]
        m, n = tables.best(view, worth)
        waits = m == self.job.nowhere or (not n and view.seen[m])
        worth_now = float(worth[m, n])
        if waits or self.free_tries:
            shown = [
                own if seen else replace(own, available=1)
                for own, seen in zip(view.views, view.seen, strict=True)
            ]
            there = tables.worth(replace(view, views=tuple(shown), seen=(True,) * len(shown)))[0]
            near = NEAR_TIE * min(self.on_demand_usd.values()) * self.hours
            least = worth_now - near if waits else worth_now + near
            found = [
                k
                for k, own in enumerate(shown)
                if own.available and own.price < own.on_demand_usd and there[k, 1] >= least
                if (view.seen[k] or self.free_tries or not tried)
                # The observation itself may make waiting worth more.
                if k != view.place or there[k, 1] >= there[k, 0] - near
            ]
            if found:
                # Spot that runs, then spot observed as available, wins a near tie too.
                in_hand = [int(view.seen[k]) + int(k == view.place) for k in range(len(shown))]
                best = max(found, key=lambda k: float(there[k, 1]) + near * in_hand[k])
                return Placement(best, Allocation(0, 1))
        if waits:
            return IDLE
        return view.split(m, n) if n else Placement(m, Allocation(0, 1))

    def _view(self, seen: Observation) -> MarketsView:
        windows, records = [], []
        for m, region in enumerate(self.regions):
            price, count = self._price[m], self._count[m]
            # Unknown availability is set to 0, as prices are known in all regions.
            shown = np.where(np.isnan(count[self._before :]), 0.0, count[self._before :])
            windows.append(
                market_window(
                    np.where(
                        np.isnan(price[self._before :]), self.on_demand_usd[region], price[self._before :]
                    ),
                    shown,
                    on_demand_usd=self.on_demand_usd[region],
                    slot_hours=self.hours,
                )
            )
            others = np.delete(self._count, m, axis=0)
            records.append(record_of(price, count, first=self._before, slot_hours=self.hours, peers=others))
        grounds = Grounds(self.job, windows, records=records)
        place = self.job.nowhere if seen.region is None else self.regions.index(seen.region)
        # The rest of a restart is work that the instance still has to do.
        began, overhead = self._launched.get((seen.region, seen.holding), (seen.step, 0.0))
        pending = max(0.0, overhead - (seen.step - began) * self.hours) if began < seen.step else 0.0
        progress = Progress(
            done=seen.done_hours - pending, n_previous=int(seen.holding is not None), place=place
        )
        view = grounds.view(progress, seen.step)
        looked = tuple(
            not np.isnan(self._count[m, self._before + seen.step]) for m in range(len(self.regions))
        )
        own = tuple(
            view.views[m] if looked[m] else self._unseen(view.views[m], m, seen.step)
            for m in range(len(self.regions))
        )
        return replace(view, views=own, seen=looked)

    def _unseen(self, view: View, m: int, step: int) -> View:
        """Return the view of a region whose availability in this step is unknown."""
        beliefs = view.market_beliefs()
        available = beliefs.available.copy()
        available[: step + 1] = self._count[m, self._before : self._before + step + 1]
        return replace(
            view, available=0, observed=False, beliefs=replace(beliefs, available=available, _made={})
        )
