"""Value tables of the stochastic policy in the world (M4.12) (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from slackwater.optimization.job.definition import InstanceTimes, Job, rates, times_of, work_needed
from slackwater.optimization.kernels.holding import HeldJob, HeldStates, chosen_targets, induct_held
from slackwater.optimization.kernels.induction import Choices
from slackwater.optimization.market.belief import Belief, CountChain, PriceChain
from slackwater.optimization.policies.contract import Paths, Running, View
from slackwater.optimization.policies.grids import TableGrid, band, table_grid
from slackwater.optimization.policies.pace import WORK_TOLERANCE
from slackwater.optimization.window.plan import Allocation


class WorkLeft(NamedTuple):
    """Work left of a job with the share ``share`` of ``slot`` to go, and the part of it that is ``unsaved``.

    Its instances work after ``pending`` slots.
    """

    slot: int
    rest: float
    unsaved: float
    share: float
    pending: float

    @classmethod
    def of(cls, view: View, running: Running) -> WorkLeft:
        """Return the work left at the decision of ``view``."""
        done = view.progress.done
        rest, unsaved = view.job.workload - done, max(0.0, done - running.saved)
        return cls(view.slot, rest, unsaved, 1.0 - view.elapsed, running.pending_hours / view.slot_hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTables:
    """Expected values after the choice of each of the slots ``game.slot`` .. ``game.slot + len(after) - 1``, USD.

    ``after`` has shape (slots, S, K, holdings, points), as returned by `kernels.holding.induct_held`.
    ``counts`` and ``prices`` map a count and a price (per slot) to their states. ``reach`` are the points with values
    (first, end) at the start of each slot and at the deadline, shapes (T + 1,); None: all.
    """

    job: Job
    game: HeldJob
    counts: CountChain
    prices: PriceChain
    after: np.ndarray
    choices: Choices
    reach: tuple[np.ndarray, np.ndarray] | None = None

    def covers(self, left: WorkLeft | None) -> bool:
        """Return whether the tables have the values of all that may become of this work left (None: of any)."""
        if self.reach is None or left is None:
            return self.reach is None
        (low, high), after = self.reach, left.slot - self.game.slot + 1
        first, end = points_after(self.game, left)
        return bool(low[after] <= first and end <= high[after])

    def target(self, view: View, running: Running) -> Allocation:
        """Return the target of highest value in the slot of ``view``."""
        price = view.price * view.slot_hours
        at = HeldStates(
            np.array([view.job.workload - view.progress.done]),
            np.array([view.progress.done - running.saved]),
            np.array([running.held.on_demand]),
            np.array([running.held.spot]),
            np.array([running.pending_hours / view.slot_hours]),
            np.array([view.available]),
            np.array([price]),
            1.0 - view.elapsed,
            view.hours_left / view.slot_hours,
            np.array([self.counts.index(view.count)]),
            np.array([self.prices.index(price)]),
        )
        (on_demand,), (spot,) = self._choose(view, at)
        return Allocation(int(on_demand), int(spot))

    def targets(self, view: View, paths: Paths) -> tuple[np.ndarray, np.ndarray]:
        """Return the on-demand and spot instances of `target` on many paths in one slot, shapes (paths,)."""
        price = paths.price * view.slot_hours
        at = HeldStates(
            view.job.workload - paths.done,
            paths.done - paths.saved,
            paths.on_demand,
            paths.spot,
            paths.pending_hours / view.slot_hours,
            paths.available,
            price,
            1.0 - view.elapsed,
            view.hours_left / view.slot_hours,
            self.counts.indices(paths.available),
            self.prices.indices(price),
        )
        return self._choose(view, at)

    def _choose(self, view: View, at: HeldStates) -> tuple[np.ndarray, np.ndarray]:
        targets: tuple[np.ndarray, np.ndarray] = chosen_targets(
            self.game, self.after[view.slot - self.game.slot], self.choices, at
        )
        return targets


def in_time(view: View, done: Any, on_demand: Any, pending_hours: Any) -> Any:
    """Return whether on-demand meets the deadline from now on: the fastest size anew, or the instances held.

    Element by element for arrays of work done, on-demand instances held and hours until they work.
    """
    job, times = view.job, times_of(view.job, view.slot_hours)
    speeds = np.where(np.arange(job.n_max + 1) >= job.n_min, rates(job.throughput, job.n_max), 0.0)
    fastest = int(speeds.argmax())
    anew = speeds[fastest] * (view.hours_left - times.new_seconds(fastest) / 3600.0)
    work_held = speeds[on_demand] * (view.hours_left - pending_hours)
    return work_needed(job.workload) - done <= np.maximum(anew, work_held) * (1.0 + WORK_TOLERANCE)


def held_game(
    job: Job,
    times: InstanceTimes,
    belief: Belief,
    grid: TableGrid,
    *,
    guarded: bool,
    gap: float,
    stands: float = 1.0,
) -> HeldJob:
    """Return a job in the only market of ``belief`` as the kernels read it; ``gap`` slots pass until the next decision.

    Spot does the share ``stands`` of its work.
    """
    slots, seconds = job.deadline_slots - belief.slot, belief.slot_hours * 3600.0
    restart = np.array([times.restart_seconds(n) for n in range(job.n_max + 1)])
    return HeldJob(
        sizes=grid.sizes,
        gain=grid.gain,
        available=grid.counts.count.astype(np.int64),
        chain=np.array(grid.chain, dtype=np.float32, order="C"),
        price=np.array(grid.prices.level_usd, dtype=float),
        price_chain=np.array(belief.price_transitions(slots), dtype=np.float32, order="C"),
        on_demand=float(belief.on_demand_usd * belief.slot_hours),
        fresh=(times.boot + restart) / seconds,
        wait=times.on_demand_wait / seconds,
        restart=restart / seconds,
        unsaved=0.0 if times.notice_saves else times.checkpoint / 2.0 / seconds,
        gap=gap,
        guarded=guarded,
        value=job.worth,
        slot=belief.slot,
        slack=job.workload - work_needed(job.workload),
        step=grid.step,
        points=grid.points,
        stands=stands,
    )


def points_after(game: HeldJob, left: WorkLeft) -> tuple[int, int]:
    """Return the points (first, end) of the work that may be left after a slot."""
    gain = float(game.gain.max())
    lost = max(left.pending, float(game.fresh.max()) + game.wait)
    least, most = left.rest - left.share * gain, left.rest + left.unsaved + lost * gain
    return max(0, math.floor(least / game.step)), math.ceil(most / game.step) + 2


def reached(game: HeldJob, left: WorkLeft) -> tuple[np.ndarray, np.ndarray]:
    """Return the points (first, end) that values of a job with this work left depend on, at the start of each slot of ``game``.

    A slot's work leads from a point to two of the next slot unless it is a whole number of steps, so that the range grows by
    whole steps. A restart longer than a slot adds work.
    """
    steps = float(game.gain.max()) / game.step
    first, end = points_after(game, left)
    later = np.maximum(0, game.slot + np.arange(game.chain.shape[0] + 1) - left.slot - 1)
    added = math.ceil(max(0.0, float(game.fresh.max()) + game.wait - 1.0) * steps)
    return np.maximum(0, first - later * math.ceil(steps)), end + later * added


def make_held_tables(
    job: Job,
    times: InstanceTimes,
    belief: Belief,
    *,
    keep: int,
    guarded: bool,
    gap: float,
    ahead: bool = True,
    left: WorkLeft | None = None,
) -> HeldTables:
    """Compute the value tables by backward induction from the deadline to the slot of ``belief``.

    ``keep`` is the number of slots to store, from the slot of the belief on, ``gap`` the slots until
    the next decision at the latest. Tables of a ``guarded`` job cover only the work that it can have
    left while on-demand still meets the deadline; unless it is ``ahead``, at least what a job begun
    at slot 0 has left. Those of a job with the work ``left`` cover only what this may become (None: any).
    """
    slots, grid = job.deadline_slots - belief.slot, table_grid(job, belief, holdings=2)
    game = held_game(job, times, belief, grid, guarded=guarded, gap=gap)
    low, high = np.zeros(slots + 1, np.int64), np.full(slots + 1, grid.points)
    if guarded:
        begun, high = band(job, game)
        low = low if ahead else begun
    reach = None if left is None else reached(game, left)
    if reach is not None:
        high = np.maximum(2, np.minimum(high, reach[1]))
        low = np.minimum(np.maximum(low, reach[0]), high - 2)
    return HeldTables(
        job=job,
        game=game,
        counts=grid.counts,
        prices=grid.prices,
        after=induct_held(game, min(keep, slots), low, high),
        choices=grid.choices,
        reach=reach,
    )
