"""Multi-market policy as a strategy for multi-region simulators: observation of a step in, action out.

Public simulators of a job over many regions (the multi-region forms of "Can't Be Late" and SkyNomad) show a strategy the prices
of all regions, but the availability of spot only in regions where it tries to launch or probes, and charge egress when the
checkpoint moves. In every step call `MultiRegionStrategy.act` until the action is final.

    strategy = MultiRegionStrategy(regions, work_hours=20, deadline_hours=40, restart_hours=0.1, egress_usd=2.0)
    action = strategy.act(observation)           # "probe" and failed "try": observe, then call again
    ...                                          # successful "try", "on_demand", "stay", "terminate": next step

The strategy uses only its observations: unobserved availability is a belief with an age (M11.4). A step is a slot; simulators
with shorter steps call it once per slot and when spot is lost. Work is counted in instance-hours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from slackwater.optimization.job.definition import Job, Linear, Progress
from slackwater.optimization.market.window import market_window, record_of
from slackwater.optimization.moving.costs import Moving
from slackwater.optimization.moving.definition import MarketsJob, MarketsView
from slackwater.optimization.moving.policies import MeanField
from slackwater.optimization.moving.replay import Grounds
from slackwater.optimization.policies.contract import View


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
    step, in addition to those tried. ``history``: region -> (prices, counts) before the job, oldest first, NaN where unknown.
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
        self.job = MarketsJob(
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
        """Return the action for this step, given all observations of the step so far."""
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
        """Return the view of a region whose availability in this step is unknown."""
        beliefs = view.market_beliefs()
        available = beliefs.available.copy()
        available[: step + 1] = self._count[m, self._before : self._before + step + 1]
        return replace(
            view, available=0, observed=False, beliefs=replace(beliefs, available=available, _made={})
        )
