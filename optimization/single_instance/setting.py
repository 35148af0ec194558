"""A setting of the single-instance benchmark: work, deadline, restart overhead, prices, all in whole minutes (M4.3, M4.6)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from optimization.kernels.single import Ticks
from warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Work to do by a deadline on one instance, spot or on-demand, where every start costs an overhead.

    Times are whole minutes, so that the slack (time left minus work left) lives on an exact grid whose step is their greatest
    common divisor (the *tick*). Prices are USD per hour; a slot with an instance is billed whole. Raises `SettingsError`
    if a time is not positive, the deadline is no whole number of slots, or on-demand alone cannot meet it.

    >>> Setting(deadline_minutes=52 * 60, overhead_minutes=12).tick
    2
    """

    work_minutes: int = 48 * 60
    deadline_minutes: int
    overhead_minutes: int
    slot_minutes: int = 10
    spot_usd_per_hour: float = 0.9731
    on_demand_usd_per_hour: float = 3.06

    def __post_init__(self) -> None:
        if min(self.work_minutes, self.slot_minutes, self.deadline_minutes) <= 0 or self.overhead_minutes < 0:
            raise SettingsError(f"times {self}", expected="positive minutes and an overhead of at least 0")
        if self.deadline_minutes % self.slot_minutes:
            raise SettingsError(
                f"a deadline of {self.deadline_minutes} min",
                expected=f"whole slots of {self.slot_minutes} min",
            )
        if self.slots_for(self.work_minutes + self.overhead_minutes) > self.slots:
            raise SettingsError(
                f"{self.work_minutes} min of work and {self.overhead_minutes} min of overhead",
                expected=f"what on-demand can do in {self.deadline_minutes} min",
                remedy="give a later deadline",
            )
        if not 0 < self.spot_usd_per_hour < self.on_demand_usd_per_hour:
            raise SettingsError(
                f"spot {self.spot_usd_per_hour}, on-demand {self.on_demand_usd_per_hour} USD/h",
                expected="0 < spot < on-demand",
            )

    @property
    def tick(self) -> int:
        """Minutes of the exact grid: the greatest common divisor of slot, overhead and work."""
        return math.gcd(self.slot_minutes, self.overhead_minutes, self.work_minutes)

    @property
    def slots(self) -> int:
        """Slots until the deadline."""
        return self.deadline_minutes // self.slot_minutes

    @property
    def ticks(self) -> Ticks:
        """The setting in ticks."""
        hours = self.slot_minutes / 60
        return Ticks(
            work=self.work_minutes // self.tick,
            slot=self.slot_minutes // self.tick,
            overhead=self.overhead_minutes // self.tick,
            spot_usd=self.spot_usd_per_hour * hours,
            on_demand_usd=self.on_demand_usd_per_hour * hours,
        )

    @property
    def slack(self) -> int:
        """Time to the deadline minus work, in ticks."""
        return (self.deadline_minutes - self.work_minutes) // self.tick

    def slots_for(self, minutes: int) -> int:
        """Whole slots that hold ``minutes``."""
        return -(-minutes // self.slot_minutes)

    @property
    def on_demand_only_usd(self) -> float:
        """Bill of work plus one overhead, on on-demand, in whole slots: OD of the score."""
        return self.slots_for(self.work_minutes + self.overhead_minutes) * self.ticks.on_demand_usd

    @property
    def spot_only_usd(self) -> float:
        """Bill of work plus one overhead on a spot instance that is never lost, in whole slots: the least any run can cost."""
        return self.slots_for(self.work_minutes + self.overhead_minutes) * self.ticks.spot_usd

    def score(self, cost_usd: float) -> float:
        """100 (OD - cost) / (OD - spot-only): 0 is on-demand throughout, 100 one uninterrupted spot run."""
        return 100.0 * (self.on_demand_only_usd - cost_usd) / (self.on_demand_only_usd - self.spot_only_usd)
