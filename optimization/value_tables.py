"""Value tables of a job on an uncertain market: what M4.6 decides by and what the end rule (c) of M3.3 reads (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from optimization.horizon import sizes
from optimization.induction import Game, chosen_size, chosen_sizes, induct
from optimization.job import Job
from optimization.market import Past
from optimization.market_chain import (
    MOST_STATES,
    Beliefs,
    CountChain,
    PriceChain,
    count_chain,
    price_chain,
)
from optimization.plan import ExpectedToGo
from optimization.throughput import rates

#: Points of the grid of work left: parts of one instance's slot while there are at most so many.
FINE_POINTS = 240
#: A grid of whole instance-slots is kept up to so many points.
MOST_POINTS = 600
#: Cells of one induction, over all slots: longer jobs get a coarser grid.
MOST_CELLS = 120_000_000
FEWEST_POINTS = 60
#: Points that the end rule's table is thinned to.
END_POINTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTables:
    """Expected values after each of the slots ``game.slot`` .. ``game.slot + len(after) - 1``, USD.

    ``after`` has shape (slots, S, K, M, points), as `optimization.induction.induct` gives it; ``counts`` and ``prices`` are
    the chains behind it, prices per slot. ``near`` (n,) is the grid's size that stands for each size the job may hold; ``key``
    is what their maker knows them by.
    """

    job: Job
    game: Game
    counts: CountChain
    prices: PriceChain
    after: np.ndarray
    all_sizes: np.ndarray
    all_gains: np.ndarray
    near: np.ndarray
    key: tuple[object, ...] = ()

    def size(self, *, slot: int, rest: float, before: int, available: int, price: float) -> int:
        """The size of most expected value in ``slot``, ``price`` in USD per instance-slot; of equal ones the least."""
        game = self.game
        column = self.after[slot - game.slot, self.counts.index(available), self.prices.index(price)]
        asked = (
            float(rest),
            int(before),
            int(available),
            float(price),
            float(self.job.completion_value(slot + 1)),
        )
        return int(chosen_size(game, column, self.all_sizes, self.all_gains, self.near, asked))

    def sizes(
        self, *, slot: int, rest: np.ndarray, before: np.ndarray, available: np.ndarray, price: np.ndarray
    ) -> np.ndarray:
        """`size` of many paths in one slot, all of shape (paths,)."""
        cells = (self.counts.indices(available), self.prices.indices(price))
        asked = (rest, before, available, price, float(self.job.completion_value(slot + 1)))
        columns = self.after[slot - self.game.slot]
        found: np.ndarray = chosen_sizes(
            self.game, columns, self.all_sizes, self.all_gains, self.near, asked, cells
        )
        return found

    def to_go(self, *, slot: int, end: int, available: int, price: float) -> ExpectedToGo:
        """W of M3.3 (c) at the start of slot ``end`` > ``slot``: expected over the market of the slots between, seen from ``slot``.

        The tables must reach to slot ``end - 1``.
        """
        game = self.game
        states, levels = np.zeros(len(self.counts.count)), np.zeros(len(self.prices.level_usd))
        states[self.counts.index(available)] = 1.0
        levels[self.prices.index(price)] = 1.0
        for _ in range(end - 1 - slot):
            states, levels = states @ self.counts.transition, levels @ self.prices.transition
        points = np.unique(
            np.round(np.linspace(0, game.points - 1, min(game.points, END_POINTS))).astype(int)
        )
        # Thinned before it is averaged: a look ahead asks for thousands of these.
        thinned = self.after[end - 1 - game.slot][..., points[::-1]]
        table = np.tensordot(np.outer(states, levels), thinned, axes=2)
        work = self.job.workload - points[::-1] * game.step
        value = table[self.near].T
        # The tables are kept in single precision; rounding must not lift a value above the job's.
        value = np.minimum(np.maximum.accumulate(value, axis=0), self.job.value)
        return ExpectedToGo(work=work, value_usd=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The slot that tables begin in: its number in the job, its length, and its prices in USD per instance-hour."""

    slot: int
    slot_hours: float
    price: float
    on_demand_usd: float


def make_tables(
    job: Job, past: Past, now: Moment, *, keep: int, beliefs: Beliefs, anywhere: bool = True
) -> ValueTables:
    """Backward induction from the deadline to ``now``, for every amount of work left, with chains estimated from ``past``.

    Without ``anywhere`` the amounts are those that a job begun at slot 0 can have left while on-demand still meets the deadline,
    and a slot's work more. ``keep`` slots from ``now`` on are kept.
    """
    slot, slot_hours = now.slot, now.slot_hours
    counts = count_chain(past, job.n_max, slot_hours=slot_hours, beliefs=beliefs)
    prices = price_chain(past, now.price, now.on_demand_usd, slot_hours=slot_hours, beliefs=beliefs).per_slot(
        slot_hours
    )
    slots = job.deadline_slots - slot
    held = sizes(job)
    chosen = held if len(held) <= MOST_STATES else _spread(held)
    hourly = rates(job.throughput, job.n_max)
    gain = hourly[chosen] * slot_hours
    cells = slots * len(counts.count) * len(prices.level_usd) * len(chosen)
    step, points = _grid(job, gain, most=max(FEWEST_POINTS, min(MOST_POINTS, MOST_CELLS // cells)))
    game = Game(
        sizes=chosen,
        gain=gain,
        available=counts.count.astype(np.int64),
        chain=np.broadcast_to(counts.transition, (slots, *counts.transition.shape)),
        price=prices.level_usd,
        price_chain=prices.transition,
        on_demand=float(now.on_demand_usd * slot_hours),
        mu_up=float(job.mu_up),
        mu_down=float(job.mu_down),
        value=float(job.value),
        deadline=job.deadline_slots,
        late_limit=float(job.late_limit),
        slot=slot,
        step=step,
        points=points,
    )
    return ValueTables(
        job=job,
        game=game,
        counts=counts,
        prices=prices,
        after=induct(game, min(keep, slots), None if anywhere else _band(job, game)),
        all_sizes=held,
        all_gains=hourly[held] * slot_hours,
        near=np.abs(chosen[None, :] - held[:, None]).argmin(axis=1),
    )


def _spread(held: np.ndarray) -> np.ndarray:
    """About `MOST_STATES` of the sizes, the ends among them."""
    places = np.round(np.linspace(1, len(held) - 1, MOST_STATES - 1)).astype(int)
    return np.concatenate([held[:1], held[np.unique(places)]])


def _band(job: Job, game: Game) -> tuple[np.ndarray, np.ndarray]:
    """The points (first, end) that matter at the start of each slot and at the deadline, shapes (T + 1,)."""
    most = float(game.gain.max()) / game.step
    begun = game.slot + np.arange(game.chain.shape[0] + 1)
    low = np.floor(job.workload / game.step - begun * most).astype(np.int64) - 1
    high = np.ceil((job.deadline_slots - begun + 1) * most).astype(np.int64) + 2
    high = np.minimum(high, game.points)
    return np.clip(low, 0, high - 2), high


def _grid(job: Job, gain: np.ndarray, *, most: int) -> tuple[float, int]:
    """(step, points) of the grid of work left, from none to the workload and what a restart longer than a slot can owe.

    Steps are a whole part of one more instance's work, so that keeping a size leads from point to point and the edge of what
    can still be finished in time lies on one.
    """
    reach = job.workload + max(0.0, -job.mu_up, -job.mu_down) * float(gain.max())
    unit = float(np.diff(gain[1:]).min()) if len(gain) > 2 else float(gain[1])
    if not unit > 1e-9 * reach:
        unit = float(gain[gain > 0].min()) if (gain > 0).any() else reach
    parts = [k for k in (20, 10, 5, 4, 2) if reach / unit * k <= min(most, FINE_POINTS)]
    step = unit / (parts[0] if parts else 1)
    if reach / step > most:
        step = reach / most
    return step, math.ceil(reach / step - 1e-9) + 2
