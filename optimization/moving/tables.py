"""Value function of a multi-market job: the mean-field program on the beliefs of its markets (M11.6) (ours)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from slackwater.optimization.job.definition import Job, needed, rates
from slackwater.optimization.kernels.lists import listed
from slackwater.optimization.kernels.moving import (
    Ground,
    MarketLaw,
    MarketsNow,
    MovingPaths,
    MovingTable,
    Stand,
    WorkGrid,
    choose,
    choose_on_paths,
    mean_field,
    options,
)
from slackwater.optimization.kernels.rules import usable_spot
from slackwater.optimization.market.belief import MOST_STATES, Belief, CountChain, PriceChain, marginals
from slackwater.optimization.moving.definition import IDLE, MarketsJob, MarketsView, Placement
from slackwater.optimization.policies.grids import FEWEST_POINTS, spread_sizes, work_grid
from slackwater.optimization.replay.ahead import nothing, place_and_size
from slackwater.optimization.window.plan import Allocation, sizes
from slackwater.optimization.world.paths import WorldPaths
from slackwater.optimization.world.simulation import Targets

#: Share of the job's value by which an option must exceed an earlier option to replace it.
ROUNDING = 1e-9
#: Number of draws of the other markets in each later slot; more draws change no result measurably.
DRAWS = 6
#: Maximal number of cells of an induction, over all markets and slots; longer jobs and more markets
#: get a coarser grid of work left.
MOST_CELLS = 24_000_000
MOST_POINTS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOptions:
    """Options of a job in a slot of the slot model: ``worth`` (M + 1, A) as of `MovingTables.worth`."""

    tables: MovingTables
    view: MarketsView
    worth: np.ndarray

    def best(self) -> tuple[Placement, float]:
        """Return the option of highest value that keeps the deadline, and its value."""
        m, n = self.tables.best(self.view, self.worth)
        if m == len(self.view.views):
            return IDLE, float(self.worth[m, 0])
        full = self.tables.full
        return self.view.split(m, n), float(self.worth[m, np.searchsorted(full.sizes[m, : full.held[m]], n)])

    def in_market(self, m: int) -> tuple[Allocation, float]:
        """Return the best instances of a market, and their value."""
        j = int(np.argmax(self.worth[m]))
        return self.view.split(m, int(self.tables.full.sizes[m, j])).allocation, float(self.worth[m, j])

    @property
    def waiting_usd(self) -> float:
        """Value of running nothing without a market."""
        return float(self.worth[-1, 0])

    def with_market(self, m: int, other: SlotOptions) -> SlotOptions:
        """Return these options with market ``m`` as in ``other``."""
        worth = self.worth.copy()
        worth[m] = other.worth[m]
        return replace(self, worth=worth)

    def credited(self) -> SlotOptions:
        """Return the options with the credit for work of the present slot (M11.6)."""
        return replace(self, worth=self.tables.credited(self.view, self.worth))


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingTables:
    """Expected values after the first slots from ``slot`` on, USD.

    ``ground`` has the sizes of ``table``, ``full`` all sizes of the job. In every later slot other
    jobs take ``taken`` (M,) instances of each market first; ``counts`` are the remaining instances.
    """

    job: MarketsJob
    ground: Ground
    full: Ground
    table: MovingTable
    counts: tuple[CountChain, ...]
    prices: tuple[PriceChain, ...]
    now: tuple[np.ndarray, ...]
    slot: int
    taken: np.ndarray

    def options(self, view: MarketsView) -> SlotOptions:
        """Return the options in the slot of ``view``."""
        return SlotOptions(tables=self, view=view, worth=self.worth(view)[0])

    def worth(self, view: MarketsView) -> tuple[np.ndarray, np.ndarray]:
        """Return the value of each size in each market, net of the slot's cost and the move, USD, shape (M + 1, A).

        The columns are those of ``full``. The last row is staying without a market. For a market of
        unknown count only the first column is set: going there, observing the count, and then
        running the best size. The second result, shape (M, S), is the value of that best size in
        each state of such a market.
        """
        hours = view.slot_hours
        price = np.array([own.price for own in view.views]) * hours
        levels = np.array(
            [chain.index(usd) for chain, usd in zip(self.prices, price.tolist(), strict=True)], np.int64
        )
        there = [own.available if seen else -1 for own, seen in zip(view.views, view.seen, strict=True)]
        seen = MarketsNow(np.array(there, np.int64), self._others(view), price, levels)
        found, by_state = options(self.full, self.table, view.slot - self.slot, _stand(view), seen)
        return np.asarray(found), np.asarray(by_state)

    def credited(self, view: MarketsView, worth: np.ndarray) -> np.ndarray:
        """Return ``worth`` plus the credit for work of the present slot, by which `best` compares (M11.6)."""
        if not self.full.work_now:
            return worth
        found = worth.copy()
        for m in range(len(view.views)):
            for j in range(1, int(self.full.held[m])):
                done = view.work(m, int(self.full.sizes[m, j]))
                found[m, j] += self.full.work_now * min(done, view.work_left)
        return found

    def best(self, view: MarketsView, worth: np.ndarray) -> tuple[int, int]:
        """Return (market, instances) of highest value that keep the deadline, as long as finishing pays.

        Market M means staying without a market. No instances in an unobserved market means going
        there and then choosing.
        """
        committed = -1 if view.committed is None else view.committed
        m, j = choose(
            self.full,
            worth,
            view.promise,
            _stand(view),
            np.array(view.seen),
            committed,
            ROUNDING * view.job.job.value,
        )
        return int(m), int(self.full.sizes[m, j]) if m < len(view.views) else 0

    def read_paths(self, prices: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return sampled prices in USD per instance-hour and counts left by other jobs as `on_paths` reads them."""
        return prices, counts

    def on_paths(
        self, view: MarketsView, slot: int, paths: WorldPaths, own: np.ndarray, known: tuple[np.ndarray, ...]
    ) -> Targets:
        """Return the targets on all paths in a later slot: wishes on the paths ``own``, nothing on others.

        ``known`` are the entries of `read_paths` in the slot, (own, M).
        """
        wished = nothing(paths)
        if slot >= view.job.job.deadline_slots:  # the last slot is left to the guard
            return wished
        place, before = place_and_size(view.job, paths)
        rest = view.job.job.workload - paths.work
        price, available = known
        market, n = self.best_on_paths(view, slot, (place[own], before[own], rest[own]), (price, available))
        to = np.where(n > 0, market, paths.market[own])
        price, available = (part[np.arange(len(own)), to] for part in (price, available))
        on_demand_usd = np.array([each.on_demand_usd for each in view.views])[to]
        spot = np.minimum(n, usable_spot(available, price, on_demand_usd))
        sold = np.array([each.on_demand.sold for each in view.views])[to]
        least = np.array([run.n_min for run in view.job.runs])[to]
        n = np.where(sold, n, np.where(spot >= least, spot, 0))
        wished.market[own], wished.spot[own] = to, np.minimum(spot, n)
        wished.on_demand[own] = n - wished.spot[own]
        return wished

    def best_on_paths(
        self,
        view: MarketsView,
        slot: int,
        stand: tuple[np.ndarray, np.ndarray, np.ndarray],
        market: tuple[np.ndarray, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (market, instances) as `best` on many paths in a later slot, each (paths,); market M is none.

        ``stand`` are place, previous size and work left, (paths,); ``market`` the prices in USD per
        instance-hour, and the counts left by other jobs, (paths, M). The present belief is fixed to
        the end, and all markets are observed in every slot.
        """
        place, before, rest = stand
        price, available = market[0] * view.slot_hours, market[1].astype(np.int64)
        levels = np.stack([chain.indices(price[:, m]) for m, chain in enumerate(self.prices)], axis=1)
        paths = MovingPaths(
            slot, place.astype(np.int64), before.astype(np.int64), rest, available, price, levels.astype(np.int64)
        )  # fmt: skip
        rounding = ROUNDING * view.job.job.value
        return choose_on_paths(self.full, self.table, slot - self.slot, paths, view.promise, rounding)

    def _others(self, view: MarketsView) -> np.ndarray:
        """Return the spot beyond the available spot: with it the state of a market matches the counts of later slots."""
        others = np.array([own.others for own in view.views], np.int64)
        there = np.array([own.available for own in view.views], np.int64)
        return np.asarray(np.maximum(others - self.taken, -there))


def _stand(view: MarketsView) -> Stand:
    return Stand(
        int(view.place),
        int(view.progress.n_previous),
        float(view.work_left),
        int(view.slot),
        float(view.job.job.completion_value(view.slot + 1)),
    )


def make_moving_tables(
    job: MarketsJob,
    beliefs: list[Belief],
    *,
    slot: int,
    begun: bool = True,
    draws: int = DRAWS,
    keep: int = 1,
    taken: Sequence[int] | None = None,
    certain_now: bool = False,
) -> MovingTables:
    """Solve the mean-field program from the deadline back to ``slot``, on the beliefs of all markets in it.

    Other jobs take ``taken`` instances of each market first in every later slot (None: none). With
    ``certain_now`` availability is observed in no market: later prices of the other markets are
    their medians, and work in the present slot is credited (M11.6). ``keep`` is the number of slots
    to store, from ``slot`` on. With ``begun`` only the amounts of work are computed that a job
    begun at slot 0 can have left while on-demand still meets the deadline.
    """
    slots, hours = job.job.deadline_slots - slot, beliefs[0].slot_hours
    full = job.ground([belief.on_demand_usd for belief in beliefs], hours)
    if certain_now:
        full = full._replace(work_now=_credit(full, beliefs))
    chosen, gains = map(list, zip(*(_table_sizes(run, hours) for run in job.runs), strict=True))
    most = max(len(n) for n in chosen)
    table_sizes, table_gain = np.zeros((len(chosen), most), np.int64), np.zeros((len(chosen), most))
    near = np.zeros((len(chosen), full.sizes.shape[1]), np.int64)
    counts, prices, markets, now, chains, price_chains = [], [], [], [], [], []
    gone = np.array([0] * len(beliefs) if taken is None else taken, np.int64)
    cells = 0
    for m, (own, belief) in enumerate(zip(job.runs, beliefs, strict=True)):
        table_sizes[m, : len(chosen[m])], table_gain[m, : len(chosen[m])] = chosen[m], gains[m]
        near[m] = np.abs(chosen[m][None, :] - full.sizes[m][:, None]).argmin(axis=1)
        chain, onward = belief.for_size(own.n_max, slots, int(gone[m]))
        price = belief.prices.per_slot(hours)
        counts.append(chain)
        prices.append(price)
        now.append(lumped(belief.count_now, np.maximum(belief.counts.count - gone[m], 0), chain))
        chains.append(np.ascontiguousarray(onward, np.float32))
        cells += slots * len(chain.count) * len(price.level_usd) * len(chosen[m])
        price_chains.append(belief.price_transitions(slots))
        markets.append(
            MarketLaw(
                np.ascontiguousarray(chain.count, np.int64),
                np.ascontiguousarray(price.level_usd, np.float64),
                chains[m],
                np.ascontiguousarray(price_chains[m], np.float32),
            )
        )
    ground = full._replace(
        sizes=table_sizes, gain=table_gain, held=np.array([len(n) for n in chosen], np.int64)
    )
    points_wanted = max(FEWEST_POINTS, min(MOST_POINTS, MOST_CELLS // cells))
    grid = _grid(job, ground, gains, slot, slots, begun=begun, most=points_wanted)
    after, nowhere = mean_field(
        ground,
        listed(markets),
        grid,
        slot,
        sampled_states(
            [belief.price_now for belief in beliefs], now, price_chains, chains, slots, draws, certain_now
        ),
        job.home is None,
        min(keep, slots),
    )
    return MovingTables(
        job=job,
        ground=ground,
        full=full,
        table=MovingTable(
            grid,
            listed(after),
            nowhere,
            near,
            listed([chain.count.astype(np.int64) for chain in counts]),
            listed(now),
        ),
        counts=tuple(counts),
        prices=tuple(prices),
        now=tuple(now),
        slot=slot,
        taken=gone,
    )


def _credit(ground: Ground, beliefs: Sequence[Belief]) -> float:
    """Return USD per unit of work done now: a slot at full size is credited the extra cost of an on-demand over a spot instance."""
    spot = [float(belief.price_now @ belief.prices.level_usd) * belief.slot_hours for belief in beliefs]
    m = int(np.argmin(spot))
    return max(float(ground.on_demand[m]) - spot[m], 0.0) / float(ground.gain[m].max())


@lru_cache(maxsize=512)
def _table_sizes(job: Job, slot_hours: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes of the tables that represent all sizes of a market's run, and their work in a slot."""
    held = sizes(job)
    chosen = spread_sizes(held) if len(held) > MOST_STATES else held
    return chosen, rates(job.throughput, job.n_max)[chosen] * slot_hours


def _grid(
    job: MarketsJob, ground: Ground, gains: list[np.ndarray], slot: int, slots: int, *, begun: bool, most: int
) -> WorkGrid:
    """Return the grid of work left that all markets share, with the finest step of any market."""
    run = job.job
    # Most markets have equal runs, which need one grid only.
    unlike = dict(zip(reversed(job.runs), reversed(gains), strict=True))
    step, points = min(
        (work_grid(own, gain, most=most) for own, gain in unlike.items()), key=lambda found: found[0]
    )
    points = max(points, math.ceil(run.workload / step) + 2)
    low, high, beyond = np.zeros(slots + 1, np.int64), np.full(slots + 1, points), 0.0
    if begun:
        fastest = max(float(gain.max()) for gain in gains) / step
        begins = slot + np.arange(slots + 1)
        low = np.floor(run.workload / step - begins * fastest).astype(np.int64) - 1
        high = np.minimum(np.ceil((run.deadline_slots - begins + 1) * fastest).astype(np.int64) + 2, points)
        low = np.clip(low, 0, high - 2)
        dearest = float((ground.sizes * ground.on_demand[:, None]).max())
        beyond = run.worth.usd + dearest * run.late_limit + float(ground.moves.max())
    return WorkGrid(
        step=float(step),
        points=int(points),
        slack=float(run.workload - needed(run.workload)),
        low=low.astype(np.int64),
        high=high.astype(np.int64),
        beyond=float(beyond),
    )


def lumped(now: np.ndarray, counts: np.ndarray, chain: CountChain) -> np.ndarray:
    """Aggregate the shares ``now`` of ``counts`` to the states of ``chain``."""
    found = np.zeros(len(chain.count))
    np.add.at(found, chain.indices(counts), now)
    return found


def sampled_states(
    price_now: list[np.ndarray],
    count_now: list[np.ndarray],
    price_steps: list[np.ndarray],
    count_steps: list[np.ndarray],
    slots: int,
    draws: int,
    median_prices: bool,
) -> np.ndarray:
    """Draw count and price states of every market in each slot by Latin hypercube sampling (T, R, M, 2).

    Per market, the arguments are the present distributions over count and price states, (S,) and
    (K,), and the transitions into each slot. With ``median_prices`` every draw has the median
    price.
    """
    markets = len(count_now)
    found = np.zeros((slots, draws, markets, 2), np.int64)
    strata = _strata(slots, draws, markets)
    if median_prices:
        strata = strata.copy()
        strata[:, :, :, 1] = 0.5
    for m in range(markets):
        for column, (law, steps) in enumerate(
            ((count_now[m], count_steps[m]), (price_now[m], price_steps[m]))
        ):
            upto = np.cumsum(marginals(law, np.asarray(steps[: slots - 1], np.float64)), axis=1)
            at = strata[1:, :, m, column] * upto[:, -1:]
            below = (upto[:, None, :] < at[:, :, None]).sum(axis=2)
            found[1:, :, m, column] = np.minimum(below, upto.shape[1] - 1)
    return found


@lru_cache(maxsize=256)
def _strata(slots: int, draws: int, markets: int) -> np.ndarray:
    """Return the midpoints of the strata in the order in which each slot, market and variable uses them, (T, R, M, 2).

    The order comes from a generator with a fixed seed, equal for every job, so that results are
    reproducible.
    """
    rng = np.random.default_rng(20_512)
    found = np.zeros((slots, draws, markets, 2))
    middles = (np.arange(draws) + 0.5) / draws
    for m in range(markets):
        for i in range(1, slots):
            for column in range(2):
                found[i, :, m, column] = rng.permutation(middles)
    found.flags.writeable = False
    return found
