"""Runs of one job in the world (M12) on many paths of its markets, a compiled step for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slackwater.optimization.kernels import paths as steps
from slackwater.optimization.kernels import world
from slackwater.optimization.market.belief import MarketPaths
from slackwater.optimization.world.simulation import SECOND_TOLERANCE, Targets, WorldRun


def later_readings(
    run: WorldRun,
    seconds: float,
    sampled: Sequence[MarketPaths],
    rng: np.random.Generator,
    *,
    first: float | None = None,
) -> np.ndarray:
    """Return the readings of sampled paths of each market: times in seconds, counts and prices (M12.12).

    A slot lasts ``seconds``; the next begins ``first`` seconds after the present (None: ``seconds``,
    as the present is the start of a slot). A count that differs from that of the reading before
    changed at a uniformly random second between the two. The result has shape (paths, 3, markets, 1 +
    readings); the first reading is the present one. Where the present of any market was not read,
    every market has a second reading at the present.
    """
    again = any(market.present is not None for market in sampled)
    parts = 1 + max(0 if market.within is None else market.within.shape[2] for market in sampled)
    many, slots = sampled[0].count.shape
    table = np.empty((many, 3, len(sampled), again + 1 + slots * parts))
    lengths = np.append(seconds if first is None else first, np.full(max(0, slots - 1), seconds))[:slots]
    gaps = np.repeat(lengths / parts, parts)
    ends = run.now + np.append(0.0, gaps.cumsum())
    times, counts, paid = (table[:, k, :, int(again) :] for k in range(3))
    for m, market in enumerate(sampled):
        there, now_usd = run.reading_of(m)
        counts[:, m, 0] = there if market.present is None else market.present
        counts[:, m, parts::parts] = market.count
        for k in range(1, parts):
            within = counts[:, m, :-1:parts] if market.within is None else market.within[:, :, k - 1]
            counts[:, m, k::parts] = within
        paid[:, m, :parts] = now_usd
        for k in range(parts):
            paid[:, m, parts + k :: parts] = market.price[:, : slots - (k > 0)]
        if again:
            table[:, 0, m, 0], table[:, 1, m, 0], table[:, 2, m, 0] = run.now, there, now_usd
    # Never at the start of the part before, which has its own reading.
    early = rng.uniform(0.0, 1.0 - 1e-6, (len(sampled), many, slots * parts))
    early *= gaps
    early = early.transpose(1, 0, 2)
    early *= counts[:, :, 1:] != counts[:, :, :-1]
    times[:, :, 0] = ends[0]
    np.subtract(ends[1:], early, out=times[:, :, 1:])
    return table


class WorldPaths:
    """The runs of one job on many paths, by `advance` and `decide`; targets: market, on-demand and spot, (paths,) each."""

    __slots__ = ("_amounts", "_counts", "_markets", "_runs", "_shown", "paths")

    def __init__(self, run: WorldRun, readings: np.ndarray) -> None:
        """Begin at the present of ``run``, with `later_readings`."""
        self.paths, _, markets, each = readings.shape
        state, own = run.arrays
        self._amounts = np.tile(state.amounts, (self.paths, 1))
        self._counts = np.tile(state.counts, (self.paths, 1))
        batches = np.tile(state.batches, (self.paths, 1, 1, 1))
        first = each * np.arange(markets + 1)
        self._counts[:, world.READING] = first[run.market] + 1
        table = np.ascontiguousarray(readings.reshape(self.paths, 3, markets * each), dtype=float)
        self._runs, self._markets = (self._amounts, self._counts, batches), (table, first, *own[2:])
        self._shown = np.empty((self.paths, 4))
        self.advance(-math.inf)

    def advance(self, until: float) -> None:
        """Let time pass on every path up to ``until`` seconds, or up to its finish."""
        nothing = np.full((3, self.paths), -1, dtype=np.int64)
        steps.step_paths(self._runs, self._markets, (*nothing,), float(until), self._shown)

    def guarded(self, wishes: Targets, *, next_at: float, deadline: float) -> Targets:
        """Return the wished targets as the exact guard allows them (M12.7); without a safe target the wish stays."""
        market, on_demand, spot = (np.array(part, dtype=np.int64) for part in wishes)
        targets, limit = (market, on_demand, spot), deadline + SECOND_TOLERANCE
        guarded = steps.guard_paths(self._runs, self._markets, targets, float(next_at), limit)
        unsafe = ~guarded[:, 1]
        for part, wish in zip(targets, wishes, strict=True):
            part[unsafe] = wish[unsafe]
        return Targets(*targets)

    def decide(self, targets: Targets, until: float = -math.inf) -> None:
        """Aim at a target on every path and let time pass as `advance` does; paths that have finished are left alone."""
        market, on_demand, spot = (np.ascontiguousarray(part, dtype=np.int64) for part in targets)
        steps.step_paths(self._runs, self._markets, (market, on_demand, spot), float(until), self._shown)

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
    def market(self) -> np.ndarray:
        """Market of the instances, shape (paths,)."""
        return self._counts[:, world.HERE].copy()

    @property
    def place(self) -> np.ndarray:
        """Market of the checkpoint, -1 before the first group forms without a home, shape (paths,)."""
        return self._counts[:, world.PLACE].copy()

    @property
    def held(self) -> np.ndarray:
        """Instances held or requested, booting ones included, shape (paths,)."""
        held: np.ndarray = (self._shown[:, world.ON_DEMAND] + self._shown[:, world.SPOT]).astype(np.int64)
        return held

    def instances(self, own: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the instances on the paths ``own``: those of each kind that are held or requested, shape (2, own).

        The others, shape (own,), are the seconds until all of them work, if none is lost, and the work that a loss in this
        second would leave.
        """
        shown = self._shown[own]
        return shown[:, :2].T.astype(np.int64, order="C"), shown[:, 2].copy(), shown[:, 3].copy()

    @property
    def paid(self) -> np.ndarray:
        """USD paid so far, moves included, shape (paths,)."""
        kinds = self._amounts[:, world.PAID : world.PAID + 2].sum(axis=1)
        usd: np.ndarray = kinds + self._amounts[:, world.PAID_MOVES]
        return usd


def finish_in_slots(finish: np.ndarray, start: float, seconds: float, deadline_slots: int) -> np.ndarray:
    """Return finish times in slots of ``seconds`` since ``start``, NaN without; rounding never makes one late."""
    slots = np.where(np.isinf(finish), math.nan, (finish - start) / seconds)
    by = deadline_slots + SECOND_TOLERANCE / seconds
    return np.where(slots <= by, np.minimum(slots, deadline_slots), slots)
