"""Simulation of one job in the renter's world (M12): time in seconds, decisions at any time.

The slot model (M2.4) assumes that spot which is there at the start of a slot stays for the slot and
that on-demand replaces it at once. Here spot is lost at the reading that shows fewer instances, an
instance works only after its boot, every new member restarts the group, and a loss sets the work
back to the last checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slackwater.optimization.kernels import world
from slackwater.optimization.window.plan import Allocation
from slackwater.warehouse.errors import JobError

#: Seconds by which sums of many seconds may exceed a deadline that is met exactly.
SECOND_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldTerms:
    """A job in the world: work, speed, and the times that instances take, in seconds.

    ``rates`` is H(0..n_max) in work units per hour, 0 below n_min. ``checkpoint`` is the working
    time between checkpoints, 0 if every moment is one. ``notice_saves``: a provider's notice
    before a loss is long enough to save. ``on_demand_wait`` passes until on-demand is granted.
    """

    rates: tuple[float, ...]
    workload: float
    on_demand_usd: float
    boot: float
    restart: float
    checkpoint: float
    notice_saves: bool = False
    on_demand_wait: float = 0.0

    def __post_init__(self) -> None:
        for name in ("boot", "restart", "checkpoint", "on_demand_wait"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise JobError(f"{name} of {getattr(self, name)} seconds", expected="0 or more")
        if len(self.rates) < 2 or self.rates[0] != 0.0 or not all(0.0 <= h < math.inf for h in self.rates):
            raise JobError(f"rates {self.rates}", expected="H(0) = 0, then finite rates of 0 or more")

    @property
    def n_max(self) -> int:
        """Largest number of instances."""
        return len(self.rates) - 1

    @property
    def least_time(self) -> float:
        """Seconds that the job takes on on-demand alone, from the request: the least time to its deadline that the guard needs."""
        return self.on_demand_wait + self.boot + self.restart + self.workload / max(self.rates) * 3600.0

    def array(self) -> np.ndarray:
        """Return the terms as the kernels read them."""
        return np.array(
            [
                self.boot,
                self.restart,
                self.checkpoint,
                self.on_demand_wait,
                float(self.notice_saves),
                self.on_demand_usd,
                self.workload,
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Readings of a spot market: times in seconds, ascending, available instances and USD per instance-hour.

    Arrays of shape (readings,). Each reading holds until the next; before the first there is no spot.
    """

    times: np.ndarray
    available: np.ndarray
    price: np.ndarray

    def __post_init__(self) -> None:
        shapes = {np.shape(self.times), np.shape(self.available), np.shape(self.price)}
        if len(shapes) != 1 or len(np.shape(self.times)) != 1:
            raise JobError(f"readings of shapes {sorted(shapes)}", expected="one time, count and price each")
        if (np.diff(self.times) <= 0).any():
            raise JobError("times of readings do not ascend", expected="each later than the one before")
        for name, kind in (("times", float), ("available", np.int64), ("price", float)):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=kind))


class Standing(NamedTuple):
    """State of a run at a decision: instances held or requested, the newest reading, work done and USD paid."""

    held: int
    available: int
    price: float
    work: float
    paid_usd: float


class WorldRun:
    """One job in the world, from the start of its first second; mutable: `advance` and `decide` in turn."""

    __slots__ = ("_amounts", "_batches", "_counts", "_rates", "_terms", "readings", "terms")

    def __init__(self, terms: WorldTerms, readings: Readings, start: float = 0.0) -> None:
        self.terms, self.readings = terms, readings
        self._rates, self._terms = np.array(terms.rates), terms.array()
        self._amounts = np.zeros(world.AMOUNTS)
        self._amounts[[world.NOW, world.FINISH, world.FORMED_AT]] = start, math.inf, -1.0
        self._counts = np.zeros(world.COUNTS, dtype=np.int64)
        self._batches = np.zeros((2, terms.n_max, 3))  # every batch has an instance
        self.advance(start)

    def advance(self, until: float) -> None:
        """Let time pass up to ``until`` seconds, or up to the finish; the readings of that second are applied."""
        if self.is_finished:
            return
        world.advance(
            self._amounts,
            self._counts,
            self._batches,
            self.readings.times,
            self.readings.available,
            self.readings.price,
            self._rates,
            self._terms,
            float(until),
        )

    def decide(self, target: Allocation) -> None:
        """Aim at an allocation from now on; raises `JobError` beyond n_max."""
        if not 0 <= target.total <= self.terms.n_max or min(target.on_demand, target.spot) < 0:
            raise JobError(f"a target of {target}", expected=f"0 to {self.terms.n_max} instances")
        if self.is_finished:
            return
        world.aim(self._amounts, self._counts, self._batches, self._terms, target.on_demand, target.spot)

    def guarded(self, wish: Allocation, *, next_at: float, deadline: float) -> Allocation:
        """Return the wished target if on-demand can still meet the deadline after any loss of spot, else more on-demand (M12.7).

        ``next_at`` is the latest time of the next decision, ``deadline`` in seconds. A job whose
        start satisfied the guard and whose targets all passed it is never late, on any readings,
        provided that on-demand is granted after ``on_demand_wait``.
        """
        on_demand, spot = world.guarded(
            self._amounts,
            self._counts,
            self._batches,
            self._rates,
            self._terms,
            wish.on_demand,
            wish.spot,
            float(next_at),
            deadline + SECOND_TOLERANCE,
        )
        return Allocation(int(on_demand), int(spot))

    def follow(
        self, wish: Allocation, *, until: float, deadline: float = math.inf
    ) -> tuple[Allocation, Standing]:
        """Guard a wish, decide it, and advance to the next decision at ``until``, all in one step.

        Return the target and the state of the run at ``until``. Without a ``deadline`` the wish is
        the target.
        """
        on_demand, spot, held, available, price, work, paid = world.follow(
            self._amounts,
            self._counts,
            self._batches,
            self.readings.times,
            self.readings.available,
            self.readings.price,
            self._rates,
            self._terms,
            wish.on_demand,
            wish.spot,
            until,
            deadline + SECOND_TOLERANCE,
        )
        return Allocation(on_demand, spot), Standing(held, available, price, work, paid)

    @property
    def now(self) -> float:
        """Present time in seconds, the finish if the job has finished."""
        return float(self._amounts[world.NOW])

    @property
    def is_finished(self) -> bool:
        """Whether the work is done."""
        return bool(self._amounts[world.FINISH] < math.inf)

    @property
    def finish(self) -> float | None:
        """Time of the finish in seconds, None if the job has not finished."""
        return float(self._amounts[world.FINISH]) if self.is_finished else None

    @property
    def work(self) -> float:
        """Work done, the workload if the job has finished."""
        return self.terms.workload if self.is_finished else float(self._amounts[world.WORK])

    @property
    def saved(self) -> float:
        """Work that a loss in this second would leave."""
        return float(self._amounts[world.WORK if self.terms.notice_saves else world.SAVED])

    @property
    def available(self) -> int:
        """Available spot instances by the newest reading."""
        return int(self._counts[world.AVAILABLE])

    @property
    def price(self) -> float:
        """Spot price of the newest reading, USD per instance-hour."""
        return float(self._amounts[world.PRICE])

    @property
    def held(self) -> Allocation:
        """Instances that are held or requested, booting ones included."""
        spot, on_demand = (int(np.abs(self._sizes(kind)).sum()) for kind in (world.SPOT, world.ON_DEMAND))
        return Allocation(on_demand, spot)

    @property
    def working(self) -> Allocation:
        """Instances of the group: up, and joined."""
        spot, on_demand = (
            int(-np.minimum(self._sizes(kind), 0.0).sum()) for kind in (world.SPOT, world.ON_DEMAND)
        )
        return Allocation(on_demand, spot)

    @property
    def works_at(self) -> float:
        """Time in seconds at which the group has restarted; in the past if it works."""
        return float(self._amounts[world.WORKS_AT])

    @property
    def paid(self) -> tuple[float, float]:
        """USD paid for on-demand and for spot."""
        return float(self._amounts[world.PAID + world.ON_DEMAND]), float(
            self._amounts[world.PAID + world.SPOT]
        )

    @property
    def instance_seconds(self) -> tuple[float, float]:
        """Instance-seconds of on-demand and of spot."""
        first, second = world.SECONDS + world.ON_DEMAND, world.SECONDS + world.SPOT
        return float(self._amounts[first]), float(self._amounts[second])

    @property
    def lost_work(self) -> float:
        """Work lost with instances."""
        return float(self._amounts[world.LOST_WORK])

    @property
    def lost_instances(self) -> int:
        """Spot instances lost, booting ones included."""
        return int(self._counts[world.LOST])

    @property
    def restarts(self) -> int:
        """Number of times that the group formed."""
        return int(self._counts[world.FORMED])

    def _sizes(self, kind: int) -> np.ndarray:
        return self._batches[kind, : self._counts[world.BATCHES + kind], world.SIZE]


def simulate(
    terms: WorldTerms, readings: Readings, decisions: Sequence[tuple[float, Allocation]], until: float
) -> WorldRun:
    """Return the run of a job under given decisions, (second, target) ascending, up to ``until`` seconds."""
    run = WorldRun(terms, readings)
    for at, target in decisions:
        run.advance(at)
        run.decide(target)
    run.advance(until)
    return run
