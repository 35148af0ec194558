"""Slackwater's multi-region rule as a strategy for multi-region simulators.

The simulator calls `MultiRegionStrategy.act` until the action is final.

    strategy = MultiRegionStrategy(regions, work_hours=20, deadline_hours=40, restart_hours=0.1, egress_usd=2.0)
    action = strategy.act(observation)           # "probe" and failed "try": observe, then call again
    ...                                          # successful "try", "on_demand", "stay", "terminate": next step

The strategy uses only its observations. A step is a slot; simulators with shorter steps call it once per slot and when spot is
lost. Work is counted in instance-hours. Spot may be lost at any time, and a restart may take longer than a step: on-demand begins
while the deadline holds even if the next step makes no progress. Below that a rule decides (docs/multi-region-simulators.md); no
library is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp
from typing import Literal

#: Mean run of spot, in hours, assumed for a region without observations, with the weight of one loss.
LIFE_HOURS = 1.5
#: From this restart on, spot that runs never moves, no slack is kept, and any cheaper spot is taken.
LONG_RESTART_HOURS = 0.5
#: Slack that is kept for changes from spot to on-demand and back: at least an hour and three steps, else this multiple of the
#: expected time for the changes to come, at a rate of the changes so far and one in three hours.
KEPT_HOURS, KEPT_STEPS, KEPT_SHARE, PRIOR_HOURS = 1.0, 3, 0.25, 3.0
#: Exponent of the value of progress; longest time, in hours, for which a cheaper region counts.
POWER, MOVE_HOURS = 1.75, 6.0
#: Hours in which a region that was empty, or lost spot, becomes as likely to have spot as a region that was not seen
#: (63 %; three times as long: 95 %).
EMPTY_HOURS = 3.0


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
    """Strategy for a job with a single instance.

    ``on_demand_usd`` is by region, ``egress_usd`` by pair of regions or the same for all. ``probes``: most regions probed in a
    step, in addition to those tried. ``free_tries``: a launch that fails costs neither time nor money, so every region may be
    tried in a step, the best first; otherwise at most one. ``history``: region -> (prices, counts) before the job, oldest first,
    NaN where unknown; only the runs of the counts are used.
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
        self.steps = int(deadline_hours / step_hours + 1e-9)
        self.work_hours, self.restart_hours, self.transfer_hours = work_hours, restart_hours, transfer_hours
        self.egress_usd, self.home, self.probes, self.free_tries = egress_usd, home, probes, free_tries
        self._ran = dict.fromkeys(self.regions, LIFE_HOURS)
        self._lost = dict.fromkeys(self.regions, 1.0)
        for region, (_, counts) in (history or {}).items():
            for before, after in pairwise(counts):
                self._ran[region] += step_hours * (before >= 1)
                self._lost[region] += before >= 1 and after < 1
        self._changes, self._gone = 0, False
        self._empty: dict[str, int] = {}
        self._acted, self._held_spot = (-1, Action(kind="stay")), False
        self._probed, self._tried = (-1, 0), -1

    def act(self, seen: Observation) -> Action:
        """Return the action for this step, given all observations of the step so far."""
        self._learn(seen)
        action = self._action(seen)
        if action.kind == "try":
            self._tried = seen.step
        elif action.kind != "probe":
            # Spot that other spot replaces at once is no change to on-demand.
            self._changes += self._gone and seen.holding != "spot"
            self._gone = False
        if action.kind == "probe":
            step, used = self._probed
            self._probed = (seen.step, used + 1 if step == seen.step else 1)
        self._acted, self._held_spot = (seen.step, action), seen.holding == "spot"
        return action

    def _learn(self, seen: Observation) -> None:
        """Count the hours and the losses of the spot instance that the last step launched or kept, and note empty regions."""
        for region, there in seen.available.items():
            if there:
                self._empty.pop(region, None)
            else:
                self._empty[region] = seen.step
        step, action = self._acted
        self._gone = self._gone and seen.holding != "spot"
        ran = action.kind == "try" or (action.kind == "stay" and self._held_spot)
        if step >= seen.step or action.region is None or not ran:
            return
        self._ran[action.region] += (seen.step - step) * self.hours
        if (seen.region, seen.holding) != (action.region, "spot"):
            self._lost[action.region] += 1
            if not seen.available.get(action.region):
                self._empty[action.region] = seen.step
            self._gone = True

    def _action(self, seen: Observation) -> Action:
        if seen.done_hours >= self.work_hours or seen.step >= self.steps:
            return Action(kind="terminate")
        left = (self.steps - seen.step) * self.hours
        rest = self.work_hours - seen.done_hours + self.restart_hours
        room = left - rest - self.hours + 1e-9
        if room < 0:  # the deadline does not hold after a step without progress
            return self._on_demand(seen, rest, may_move=room + self.hours >= self.transfer_hours)
        kept = self._kept(seen.step, left)
        for region in self._wanted(seen, rest=rest, room=room, kept=kept, left=left):
            if region in seen.available:
                return Action(kind="try", region=region)
            step, used = self._probed
            if used * (step == seen.step) < self.probes:
                return Action(kind="probe", region=region)
            if self.free_tries or self._tried != seen.step:
                return Action(kind="try", region=region)
        if seen.holding is None and room < kept:
            return self._on_demand(seen, rest, may_move=True)
        return Action(kind="stay", region=seen.region)

    @property
    def _long(self) -> bool:
        """Whether restarts are long."""
        return self.restart_hours + self.transfer_hours >= LONG_RESTART_HOURS

    def _kept(self, step: int, left: float) -> float:
        """Return the hours of slack that waiting for spot leaves."""
        if self._long:
            return 0.0
        each = 2 * (self.restart_hours + self.transfer_hours) + self.hours
        rate = (self._changes + 1) / (step * self.hours + PRIOR_HOURS)
        return max(KEPT_HOURS, KEPT_STEPS * self.hours, KEPT_SHARE * each * rate * left)

    def _wanted(self, seen: Observation, *, rest: float, room: float, kept: float, left: float) -> list[str]:
        """Return the regions whose spot is better than the present, the best first, without those observed as empty."""
        over, demand = self.restart_hours + self.transfer_hours, min(self.on_demand_usd.values())
        life = {region: self._ran[region] / self._lost[region] for region in self.regions}
        stay = {region: min(rest, life[region]) for region in self.regions}
        fee = {region: self._fee(seen.region, region) for region in self.regions}
        # USD per hour of work: a run also pays its restart and the step in which it is lost.
        unit = {r: seen.spot_usd[r] * (life[r] + over + self.hours) / life[r] for r in self.regions}
        each = {region: unit[region] + fee[region] / stay[region] for region in self.regions}
        # The value of progress rises as slack runs out. The cheapest region is worth its price at any time.
        value = demand
        if room > kept and not self._long:
            value = max(demand * min(1.0, rest / (left - kept)) ** POWER, 1.02 * min(each.values()))

        def wanted(region: str) -> bool:
            price = seen.spot_usd[region]
            if seen.holding == "spot":
                saved = (seen.spot_usd[seen.region or region] - price) * min(stay[region], MOVE_HOURS)
                return not self._long and room > over + self.hours and saved > fee[region] + over * price
            if seen.holding == "on_demand":
                now = self.on_demand_usd[seen.region or region]
                return (now - unit[region]) * stay[region] > fee[region] + over * (price + now)
            return price < demand if self._long else each[region] <= value

        holds = seen.region if seen.holding == "spot" else None
        found = [r for r in self.regions if r != holds and seen.available.get(r, True) and wanted(r)]
        if self.free_tries:
            return sorted(found, key=each.__getitem__)

        def gain(region: str) -> float:
            hours = (seen.step - self._empty.get(region, -self.steps)) * self.hours
            there = 1.0 if seen.available.get(region) else 1.0 - exp(-hours / EMPTY_HOURS)
            return (demand - each[region]) * there

        return sorted(found, key=gain, reverse=True)

    def _on_demand(self, seen: Observation, rest: float, *, may_move: bool) -> Action:
        if seen.holding == "on_demand":
            return Action(kind="stay", region=seen.region)
        if seen.region is not None and not may_move:
            return Action(kind="on_demand", region=seen.region)

        def usd(region: str) -> float:
            fee = self._fee(seen.region, region)
            return (rest + (self.transfer_hours if region != seen.region else 0.0)) * self.on_demand_usd[
                region
            ] + fee

        return Action(kind="on_demand", region=min(self.regions, key=usd))

    def _fee(self, place: str | None, region: str) -> float:
        """Return the egress to a region from the checkpoint."""
        place = place or self.home
        if place is None or place == region:
            return 0.0
        usd = self.egress_usd
        return float(usd[place, region]) if isinstance(usd, Mapping) else usd
