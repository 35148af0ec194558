"""Grids of work left and of sizes in the value tables of policies (M4.6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from slackwater.optimization.job.definition import Job, rates
from slackwater.optimization.kernels.holding import HeldJob
from slackwater.optimization.kernels.induction import Choices, Game
from slackwater.optimization.kernels.rules import least_efficiency
from slackwater.optimization.market.belief import MOST_STATES, Belief, CountChain, PriceChain
from slackwater.optimization.policies.pace import MOST_RECENT
from slackwater.optimization.window.plan import sizes

#: Maximal number of grid points of the work left with steps finer than a slot of one instance.
FINE_POINTS = 240
#: Maximal number of grid points with steps of a slot of one instance.
MOST_POINTS = 600
#: Maximal number of cells of an induction over all slots; longer jobs get a coarser grid.
MOST_CELLS = 120_000_000
FEWEST_POINTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGrid:
    """States and grid of the value tables of a job.

    ``counts`` and ``prices`` (per slot) are the states of the market, ``chain`` (T, S, S) the
    transitions of the count. ``sizes`` (M,) represent the ``choices`` of the job, ``gain`` (M,) is
    their work in a slot. ``step`` is the distance of the ``points`` of work left.
    """

    counts: CountChain
    chain: np.ndarray
    prices: PriceChain
    sizes: np.ndarray
    gain: np.ndarray
    choices: Choices
    step: float
    points: int


def table_grid(job: Job, belief: Belief, *, holdings: int = 1, taken: int = 0) -> TableGrid:
    """Return the grid of the tables from the slot of ``belief`` to the deadline, with ``holdings`` rows for each size.

    Other jobs take ``taken`` instances first.
    """
    slots, slot_hours = job.deadline_slots - belief.slot, belief.slot_hours
    counts, chain = belief.for_size(job.n_max, slots, taken)
    prices = belief.prices.per_slot(slot_hours)
    chosen, gain, choices = job_sizes(job, slot_hours)
    cells = holdings * slots * len(counts.count) * len(prices.level_usd) * len(chosen)
    step, points = work_grid(job, slot_hours, max(FEWEST_POINTS, min(MOST_POINTS, MOST_CELLS // cells)))
    return TableGrid(
        counts=counts, chain=chain, prices=prices, sizes=chosen, gain=gain, choices=choices, step=step, points=points
    )  # fmt: skip


@lru_cache(maxsize=MOST_RECENT)
def job_sizes(job: Job, slot_hours: float) -> tuple[np.ndarray, np.ndarray, Choices]:
    """Return the sizes of the tables of a job, their work in a slot, and the choices; cached, since every slot has tables."""
    held = sizes(job)
    chosen = held if len(held) <= MOST_STATES else spread_sizes(held)
    gain = rates(job.throughput, job.n_max) * slot_hours
    nearest = np.abs(chosen[None, :] - held[:, None]).argmin(axis=1)
    return chosen, gain[chosen], Choices(held, gain[held], nearest)


def spread_sizes(held: np.ndarray) -> np.ndarray:
    """Return about `MOST_STATES` evenly spread sizes, including the smallest and the largest."""
    places = np.round(np.linspace(1, len(held) - 1, MOST_STATES - 1)).astype(int)
    return np.concatenate([held[:1], held[np.unique(places)]])


def band(job: Job, game: Game | HeldJob) -> tuple[np.ndarray, np.ndarray]:
    """Return the relevant points (first, end) at the start of each slot and at the deadline, shapes (T + 1,)."""
    largest_step = float(game.gain.max()) / game.step
    begun = game.slot + np.arange(game.chain.shape[0] + 1)
    low = np.floor(job.workload / game.step - begun * largest_step).astype(np.int64) - 1
    high = np.ceil((job.deadline_slots - begun + 1) * largest_step).astype(np.int64) + 2
    high = np.minimum(high, game.points)
    return np.clip(low, 0, high - 2), high


@lru_cache(maxsize=MOST_RECENT)
def work_grid(job: Job, slot_hours: float, most: int) -> tuple[float, int]:
    """Return (step, points) of the grid of work left, of at most ``most`` points.

    The grid runs from 0 to the workload plus the work that a restart longer than a slot can owe.
    The step is a whole fraction of the work of an additional instance, so that a constant size
    leads from grid point to grid point, and the limit of the work that can be finished in time is a
    grid point.
    """
    gain = job_sizes(job, slot_hours)[1]
    owed = max(-least_efficiency(job.restart, n) for n in range(1, job.n_max + 1))
    reach = job.workload + max(0.0, owed) * float(gain.max())
    unit = float(np.diff(gain[1:]).min()) if len(gain) > 2 else float(gain[1])
    if not unit > 1e-9 * reach:
        unit = float(gain[gain > 0].min()) if (gain > 0).any() else reach
    parts = [k for k in (20, 10, 5, 4, 2) if reach / unit * k <= min(most, FINE_POINTS)]
    step = unit / (parts[0] if parts else 1)
    if reach / step > most:
        step = reach / most
    return step, math.ceil(reach / step - 1e-9) + 2
