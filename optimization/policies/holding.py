"""Value tables of the stochastic policy in the world (M4.12) (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slackwater.optimization.job.definition import InstanceTimes, Job, needed, rates, times_of
from slackwater.optimization.kernels.holding import (
    Held,
    HeldState,
    chosen_target,
    chosen_targets,
    induct_held,
)
from slackwater.optimization.market.belief import MOST_STATES, Belief, CountChain, PriceChain
from slackwater.optimization.policies.contract import Paths, Running, View
from slackwater.optimization.policies.grids import (
    FEWEST_POINTS,
    MOST_CELLS,
    MOST_POINTS,
    band,
    spread_sizes,
    work_grid,
)
from slackwater.optimization.policies.pace import WORK_TOLERANCE
from slackwater.optimization.window.plan import Allocation, sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTables:
    """Expected values after the choice of each of the slots ``game.slot`` .. ``game.slot + len(after) - 1``, USD.

    ``after`` has shape (slots, S, K, holdings, points), as returned by `kernels.holding.induct_held`.
    ``counts`` and ``prices`` map a count and a price (per slot) to their states. ``near`` (n,) is
    the index of the nearest size of the grid for each size of the job.
    """

    job: Job
    game: Held
    counts: CountChain
    prices: PriceChain
    after: np.ndarray
    all_sizes: np.ndarray
    all_gains: np.ndarray
    near: np.ndarray

    def target(self, view: View, running: Running) -> Allocation:
        """Return the target of highest value in the slot of ``view``."""
        price = view.price * view.slot_hours
        column = self.after[
            view.slot - self.game.slot, self.counts.index(view.available), self.prices.index(price)
        ]
        at = HeldState(
            view.job.workload - view.progress.done,
            view.progress.done - running.saved,
            running.held.on_demand,
            running.held.spot,
            running.pending_hours / view.slot_hours,
            view.available,
            price,
            1.0 - view.elapsed,
            view.hours_left / view.slot_hours,
        )
        on_demand, spot = chosen_target(self.game, column, self.all_sizes, self.all_gains, self.near, at)
        return Allocation(int(on_demand), int(spot))

    def targets(self, view: View, paths: Paths) -> tuple[np.ndarray, np.ndarray]:
        """Return the on-demand and spot instances of `target` on many paths in one slot, shapes (paths,)."""
        price = paths.price * view.slot_hours
        return chosen_targets(
            self.game, self.after[view.slot - self.game.slot], self.all_sizes, self.all_gains, self.near,
            view.job.workload - paths.done, paths.done - paths.saved, paths.on_demand, paths.spot,
            paths.pending_hours / view.slot_hours, paths.available, price, 1.0 - view.elapsed,
            view.hours_left / view.slot_hours, self.counts.indices(paths.available), self.prices.indices(price),
        )  # fmt: skip


def in_time(view: View, done: Any, on_demand: Any, pending_hours: Any) -> Any:
    """Return whether on-demand meets the deadline from now on: the fastest size anew, or the instances held.

    Element by element for arrays of work done, on-demand instances held and hours until they work.
    """
    job, times = view.job, times_of(view.job, view.slot_hours)
    speeds = np.where(np.arange(job.n_max + 1) >= job.n_min, rates(job.throughput, job.n_max), 0.0)
    anew = speeds.max() * (view.hours_left - (times.on_demand_wait + times.boot + times.restart) / 3600.0)
    kept = speeds[on_demand] * (view.hours_left - pending_hours)
    return needed(job.workload) - done <= np.maximum(anew, kept) * (1.0 + WORK_TOLERANCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMarket:
    """A market of a job as the tables see it: the sizes that stand for all sizes, and the states of count and price.

    ``gain`` is the work of ``sizes`` in a slot; ``all_sizes``, ``all_gains`` and ``near`` are those
    of `HeldTables`. ``chain`` are the transitions of the count from each slot to the next.
    """

    job: Job
    belief: Belief
    slots: int
    counts: CountChain
    chain: np.ndarray
    prices: PriceChain
    sizes: np.ndarray
    gain: np.ndarray
    all_sizes: np.ndarray
    all_gains: np.ndarray
    near: np.ndarray

    @classmethod
    def of(cls, job: Job, belief: Belief, taken: int = 0) -> HeldMarket:
        """Return the market of ``belief``, from its slot to the deadline; other jobs take ``taken`` instances first."""
        slots = job.deadline_slots - belief.slot
        counts, chain = belief.for_size(job.n_max, slots, taken)
        held = sizes(job)
        chosen = held if len(held) <= MOST_STATES else spread_sizes(held)
        hourly = rates(job.throughput, job.n_max) * belief.slot_hours
        return cls(
            job=job,
            belief=belief,
            slots=slots,
            counts=counts,
            chain=np.array(chain, dtype=np.float32, order="C"),
            prices=belief.prices.per_slot(belief.slot_hours),
            sizes=chosen,
            gain=hourly[chosen],
            all_sizes=held,
            all_gains=hourly[held],
            near=np.abs(chosen[None, :] - held[:, None]).argmin(axis=1),
        )

    @property
    def cells(self) -> int:
        """Cells of the induction at each amount of work left."""
        return 2 * self.slots * len(self.counts.count) * len(self.prices.level_usd) * len(self.sizes)

    def game(self, times: InstanceTimes, grid: tuple[float, int], *, guarded: bool, gap: float) -> Held:
        """Return the market as the kernels read it, on a grid (step, points) of work left; it is the only one."""
        job, belief, seconds = self.job, self.belief, self.belief.slot_hours * 3600.0
        return Held(
            sizes=self.sizes,
            gain=self.gain,
            available=self.counts.count.astype(np.int64),
            chain=self.chain,
            price=np.array(self.prices.level_usd, dtype=float),
            price_chain=np.array(belief.price_transitions(self.slots), dtype=np.float32, order="C"),
            on_demand=float(belief.on_demand_usd * belief.slot_hours),
            fresh=(times.boot + times.restart) / seconds,
            wait=times.on_demand_wait / seconds,
            restart=times.restart / seconds,
            unsaved=0.0 if times.notice_saves else times.checkpoint / 2.0 / seconds,
            gap=gap,
            guarded=guarded,
            value=job.worth,
            slot=belief.slot,
            slack=job.workload - needed(job.workload),
            step=grid[0],
            points=grid[1],
        )


def make_held_tables(
    job: Job,
    times: InstanceTimes,
    belief: Belief,
    *,
    keep: int,
    guarded: bool,
    gap: float,
    ahead: bool = True,
) -> HeldTables:
    """Compute the value tables by backward induction from the deadline to the slot of ``belief``.

    ``keep`` is the number of slots to store, from the slot of the belief on, ``gap`` the slots until
    the next decision at the latest. Tables of a ``guarded`` job cover only the work that it can have
    left while on-demand still meets the deadline; unless it is ``ahead``, at least what a job begun
    at slot 0 has left.
    """
    own = HeldMarket.of(job, belief)
    most = max(FEWEST_POINTS, min(MOST_POINTS, MOST_CELLS // own.cells))
    game = own.game(times, work_grid(job, own.gain, most=most), guarded=guarded, gap=gap)
    low, high = np.zeros(own.slots + 1, np.int64), np.full(own.slots + 1, game.points)
    if guarded:
        low, high = band(job, game)
    return HeldTables(
        job=job,
        game=game,
        counts=own.counts,
        prices=own.prices,
        after=induct_held(game, min(keep, own.slots), np.zeros_like(low) if ahead else low, high),
        all_sizes=own.all_sizes,
        all_gains=own.all_gains,
        near=own.near,
    )
