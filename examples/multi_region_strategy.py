"""The mover as a strategy for a multi-region simulator: it is told what a step shows, and answers what to do.

Public simulators of one job over many regions (the multi-region forms of "Can't Be Late" and SkyNomad) show a strategy the prices
of all regions, but whether spot is there only where it tries or probes, and charge egress when the checkpoint moves. So does this
adapter: in every step call `MultiRegionStrategy.act` until the answer is final.

    strategy = MultiRegionStrategy(regions, work_hours=20, deadline_hours=40, restart_hours=0.1, egress_usd=2.0)
    action = strategy.act(observation)           # "probe" and a "try" that failed: look, and ask again with what was seen
    ...                                          # "try" that succeeded, "on_demand", "stay", "terminate": go on to the next step

It knows nothing but what it was told: counts of steps and regions that were not looked at are beliefs with an age (M11.4). A
step is
a slot; simulators with shorter ones ask it once a slot and when spot is lost. Work is counted in hours of one instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from optimization.job.definition import Job, Linear, Progress
from optimization.market.window import market_window, record_of
from optimization.moving.definition import MarketsView, MovableJob, Moving
from optimization.moving.movers import MeanField
from optimization.moving.replay import Grounds
from optimization.policies.contract import View


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a step shows: ``available`` has the regions that were seen in this very step, the one it runs on spot in among them.

    ``region`` is where the checkpoint is (None: nowhere yet), ``holding`` what runs there. Prices are USD per hour.
    """

    step: int
    done_hours: float
    region: str | None
    holding: Literal["spot", "on_demand"] | None
    spot_usd: Mapping[str, float]
    available: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Action:
    """What to do: ``try`` spot or take ``on_demand`` in ``region``, ``probe`` it, ``stay`` as it is, or ``terminate`` and wait."""

    kind: Literal["try", "on_demand", "probe", "stay", "terminate"]
    region: str | None = None


class MultiRegionStrategy:
    """The mean-field mover (M11.6) for a job of one instance; ``on_demand_usd`` and ``egress_usd`` by region or alike for all.

    ``probes`` is how many regions it may look at in a step beside those it tries. Earlier counts and prices of the regions, oldest
    first and NaN where unknown, can be given as ``history``: region -> (prices, counts).
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
        history: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    ) -> None:
        self.regions, self.on_demand_usd, self.hours = list(on_demand_usd), dict(on_demand_usd), step_hours
        steps = int(deadline_hours / step_hours + 1e-9)
        usd = [
            [
                0.0 if a == b else egress_usd[a, b] if isinstance(egress_usd, Mapping) else egress_usd
                for b in self.regions
            ]
            for a in self.regions
        ]
        run = Job(
            name="multi-region",
            workload=work_hours,
            deadline_slots=steps,
            n_min=1,
            n_max=1,
            throughput=Linear(),
            mu_up=1.0 - restart_hours / step_hours,
            value=10.0 * work_hours * max(on_demand_usd.values()),
            must_finish=True,
        )
        self.job = MovableJob(
            runs=(run,) * len(self.regions),
            moving=Moving(taken=transfer_hours / step_hours, usd=np.array(usd)),
            home=None if home is None else self.regions.index(home),
        )
        self.mover, self.probes, self._probed = MeanField(), probes, (-1, 0)
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
        """What to do in this step, given all that was seen in it so far."""
        now = self._before + seen.step
        for m, region in enumerate(self.regions):
            self._price[m, now] = seen.spot_usd[region]
            if region in seen.available:
                self._count[m, now] = float(seen.available[region])
        view = self._view(seen)
        if view.work_left <= 0 or seen.step >= self.job.job.deadline_slots:
            return Action(kind="terminate")
        step, used = self._probed
        used = used if step == seen.step else 0
        if used < self.probes:
            m = self.mover.probe(None, view)
            if m is not None:
                self._probed = (seen.step, used + 1)
                return Action(kind="probe", region=self.regions[m])
        held, _ = self.mover.decide(None, view)
        if held.market is None:
            return Action(kind="terminate" if seen.holding else "stay", region=seen.region)
        region = self.regions[held.market]
        if not view.seen[held.market]:
            return Action(kind="try", region=region)
        wanted: Literal["spot", "on_demand"] = "spot" if held.allocation.spot else "on_demand"
        if (seen.region, seen.holding) == (region, wanted):
            return Action(kind="stay", region=region)
        return Action(kind="try" if wanted == "spot" else "on_demand", region=region)

    def _view(self, seen: Observation) -> MarketsView:
        windows, records = [], []
        for m, region in enumerate(self.regions):
            price, count = self._price[m], self._count[m]
            # The price of a region that was not looked at is known all the same.
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
        progress = Progress(done=seen.done_hours, n_previous=int(seen.holding is not None), place=place)
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
        """A region whose count of this step is not known."""
        beliefs = view.market_beliefs()
        available = beliefs.available.copy()
        available[: step + 1] = self._count[m, self._before : self._before + step + 1]
        return replace(
            view, available=0, observed=False, beliefs=replace(beliefs, available=available, _made={})
        )
