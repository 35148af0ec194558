"""Runs of one job in the world (M12) on many paths of its market, a compiled step for all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slackwater.optimization.kernels import paths as steps
from slackwater.optimization.kernels import world
from slackwater.optimization.window.plan import Allocation
from slackwater.optimization.world.simulation import SECOND_TOLERANCE, WorldRun


@dataclass(frozen=True, slots=True, kw_only=True)
class PathReadings:
    """Later readings of a market on each path: times in seconds, ascending, available instances and USD per instance-hour.

    Arrays of shape (paths, readings).
    """

    times: np.ndarray
    available: np.ndarray
    price: np.ndarray


def readings_between(
    now: float, seconds: float, present: int, counts: np.ndarray, prices: np.ndarray, rng: np.random.Generator
) -> PathReadings:
    """Return the readings of paths that are known at slot starts only (M12.12).

    ``counts`` and ``prices`` are those at the starts of the slots after ``now``, a slot every
    ``seconds``, shape (paths, slots); ``present`` is the count now. A count that differs from that
    of the slot before changed at a uniformly random second between the two.
    """
    paths, slots = counts.shape
    times = np.tile(now + seconds * np.arange(1, slots + 1), (paths, 1))
    before = np.column_stack([np.full(paths, present), counts[:, :-1]]) if slots else counts
    # Never at the start of the slot before, which had its own reading.
    times -= np.where(counts != before, rng.uniform(0.0, 1.0 - 1e-6, counts.shape), 0.0) * seconds
    return PathReadings(
        times=times,
        available=np.ascontiguousarray(counts, dtype=np.int64),
        price=np.ascontiguousarray(prices, dtype=float),
    )


class WorldPaths:
    """The runs of one job on many paths, all from the same state; mutable: `advance` and `decide` in turn."""

    __slots__ = ("_amounts", "_batches", "_counts", "_rates", "_terms", "readings")

    def __init__(self, run: WorldRun, readings: PathReadings) -> None:
        self.readings = readings
        self._rates, self._terms = np.array(run.terms.rates), run.terms.array()
        paths = len(readings.times)
        amounts, counts, batches = run.state(run.terms.n_max)
        counts[world.READING] = 0
        self._amounts = np.tile(amounts, (paths, 1))
        self._counts = np.tile(counts, (paths, 1))
        self._batches = np.tile(batches, (paths, 1, 1, 1))

    def advance(self, until: float) -> None:
        """Let time pass on every path up to ``until`` seconds, or up to its finish."""
        own = self.readings
        steps.advance_paths(
            self._amounts,
            self._counts,
            self._batches,
            own.times,
            own.available,
            own.price,
            self._rates,
            self._terms,
            float(until),
        )

    def guarded(
        self, on_demand: np.ndarray, spot: np.ndarray, *, next_at: float, deadline: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the wished targets, shapes (paths,), as the exact guard allows them (M12.7).

        A path without a safe target keeps its wish.
        """
        on_demand, spot = on_demand.astype(np.int64), spot.astype(np.int64)
        steps.guard_paths(
            self._amounts,
            self._counts,
            self._batches,
            self._rates,
            self._terms,
            on_demand,
            spot,
            float(next_at),
            deadline + SECOND_TOLERANCE,
        )
        return on_demand, spot

    def decide(self, on_demand: np.ndarray, spot: np.ndarray) -> None:
        """Aim at a target on every path from now on, shapes (paths,); paths that have finished are left alone."""
        steps.aim_paths(
            self._amounts,
            self._counts,
            self._batches,
            self._terms,
            on_demand.astype(np.int64),
            spot.astype(np.int64),
        )

    def decide_all(self, target: Allocation) -> None:
        """Aim at the same target on every path."""
        paths = len(self._amounts)
        self.decide(np.full(paths, target.on_demand), np.full(paths, target.spot))

    @property
    def running(self) -> np.ndarray:
        """Whether the job has work left, shape (paths,)."""
        running: np.ndarray = np.isinf(self._amounts[:, world.FINISH])
        return running

    @property
    def finish(self) -> np.ndarray:
        """Time of the finish in seconds, infinity without a finish, shape (paths,)."""
        return self._amounts[:, world.FINISH].copy()

    @property
    def work(self) -> np.ndarray:
        """Work done, shape (paths,)."""
        return self._amounts[:, world.WORK].copy()

    @property
    def available(self) -> np.ndarray:
        """Available spot instances by the newest reading, shape (paths,)."""
        return self._counts[:, world.AVAILABLE].copy()

    @property
    def price(self) -> np.ndarray:
        """Spot price of the newest reading, USD per instance-hour, shape (paths,)."""
        return self._amounts[:, world.PRICE].copy()

    @property
    def held(self) -> np.ndarray:
        """Instances held or requested, booting ones included, shape (paths,)."""
        used = np.arange(self._batches.shape[2]) < self._counts[:, world.BATCHES : world.BATCHES + 2, None]
        sizes = np.where(used, np.abs(self._batches[..., world.SIZE]), 0.0)
        held: np.ndarray = sizes.sum(axis=(1, 2)).astype(np.int64)
        return held

    @property
    def paid(self) -> np.ndarray:
        """USD paid so far, shape (paths,)."""
        usd: np.ndarray = self._amounts[:, world.PAID : world.PAID + 2].sum(axis=1)
        return usd


def finish_in_slots(finish: np.ndarray, start: float, seconds: float, deadline_slots: int) -> np.ndarray:
    """Return finish times in slots of ``seconds`` since ``start``, NaN where there is none.

    A finish after the deadline by no more than rounding is at the deadline.
    """
    slots = np.where(np.isinf(finish), math.nan, (finish - start) / seconds)
    by = deadline_slots + SECOND_TOLERANCE / seconds
    return np.where(slots <= by, np.minimum(slots, deadline_slots), slots)
