"""Value function of a multi-market job in the world: the tables of M4.12 in each market, with later moves (M11.6) (ours)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from slackwater.optimization.job.definition import Job, rates, times_of, work_needed
from slackwater.optimization.kernels.arrays import typed_list
from slackwater.optimization.kernels.holding import TIE, WAIT_GAIN
from slackwater.optimization.kernels.markets import Market, MarketPaths, Plan, choose_market, induct_markets
from slackwater.optimization.kernels.rules import move_usd
from slackwater.optimization.kernels.world import ON_DEMAND, SPOT
from slackwater.optimization.market.belief import Belief, Forgetting, marginals
from slackwater.optimization.market.window import Past
from slackwater.optimization.moving.definition import IDLE, MarketsJob, MarketsView, Placement, placement
from slackwater.optimization.policies.contract import Running
from slackwater.optimization.policies.grids import FEWEST_POINTS, TableGrid, band, table_grid, work_grid
from slackwater.optimization.policies.holding import held_game
from slackwater.optimization.policies.pace import WORK_TOLERANCE
from slackwater.optimization.policies.stochastic import belief_in_force, is_ahead
from slackwater.optimization.replay.ahead import nothing
from slackwater.optimization.window.plan import Allocation
from slackwater.optimization.world.paths import WorldPaths
from slackwater.optimization.world.simulation import Targets
from slackwater.warehouse.errors import PolicyError

#: Number of draws of the other markets in each later slot; more draws change no result measurably.
DRAWS = 6
#: Maximal number of cells of an induction, over all markets and slots; longer jobs and more markets
#: get a coarser grid of work left.
MOST_CELLS = 24_000_000
MOST_POINTS = 240
#: Slots without a loss that a market begins with (`share_that_stands`).
STANDS_WHOLE = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOptions:
    """Options of a job in a slot: the best target of each market and its value, (M + 1,) with nothing last, USD.

    ``here`` is the market of the instances (M: none). Nothing must be better by ``wait_usd``, a move
    by ``tie_usd``.
    """

    targets: tuple[Placement, ...]
    worth: np.ndarray
    here: int
    wait_usd: float
    tie_usd: float

    def best(self) -> tuple[Placement, float]:
        """Return the target of highest value and its value; on ties the present market."""
        count = len(self.targets)
        stays = self.here < count and self.targets[self.here].market is not None
        found = self.here if stays else count
        top = float(self.worth[found]) - (0.0 if stays else self.wait_usd)
        for m, usd in enumerate(self.worth[:count].tolist()):
            if usd > top + self.tie_usd:
                found, top = m, usd
        return (IDLE if found == count else self.targets[found]), float(self.worth[found])

    def in_market(self, m: int) -> tuple[Allocation, float]:
        """Return the best instances of a market, and their value."""
        return self.targets[m].allocation, float(self.worth[m])

    @property
    def waiting_usd(self) -> float:
        """Value of running nothing."""
        return float(self.worth[-1])

    def with_market(self, m: int, other: WorldOptions) -> WorldOptions:
        """Return these options with market ``m`` as in ``other``."""
        worth = self.worth.copy()
        worth[m] = other.worth[m]
        targets = tuple((other if k == m else self).targets[k] for k in range(len(self.targets)))
        return replace(self, targets=targets, worth=worth)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldTables:
    """Expected values after the choice in each of the first slots from ``slot`` on, per market (`kernels.markets`), USD.

    In later slots other jobs take ``taken`` instances of each market first. ``now`` has for each
    market the probabilities of its present counts. ``moves``: the values include those of later moves.
    """

    job: MarketsJob
    grids: tuple[TableGrid, ...]
    slot_hours: float
    plan: Plan
    slot: int
    taken: np.ndarray
    now: tuple[np.ndarray, ...]
    moves: bool = True

    def options(self, view: MarketsView) -> WorldOptions:
        """Return the options in the slot of ``view``.

        Trying a market is free for a job without instances. Instances that run are given up for it:
        then a market whose counts are not observed is valued over its present states, and where it
        grants too little the job starts anew in its own market.
        """
        found, (here, held) = self._if_granted(view), instances_of(view)
        if not held.held.total:
            return found
        anew = self._if_granted(view.in_world(held._replace(held=Allocation(0, 0), pending_hours=0.0), here))
        worth, again = found.worth.copy(), max(anew.worth[view.job.nowhere], float(anew.worth[here]))
        for m, own in enumerate(view.views):
            if m != here and not own.availability_observed:
                granted = self._by_count(view, m, own.available)
                worth[m] = min(worth[m], float(self.now[m] @ np.maximum(granted, again)))
        return replace(found, worth=worth)

    def probe(self, view: MarketsView) -> int | None:
        """Return the unobserved market whose count has the highest information value in the slot of ``view`` (M11.4).

        The information value is the expected maximum of the best known option and the best option
        in that market, minus the former. None if no count can change the decision.
        """
        unknown = [m for m, own in enumerate(view.views) if not own.observed]
        if not unknown:
            return None
        known = float(np.delete(self._if_granted(view).worth, unknown).max())

        def informed_usd(m: int) -> float:
            return float(self.now[m] @ np.maximum(self._by_count(view, m, view.job.runs[m].n_max), known))

        usd, m = max((informed_usd(m), -m) for m in unknown)
        return -m if usd > known + self.tie_usd else None

    def _by_count(self, view: MarketsView, m: int, most: int) -> np.ndarray:
        """Return the value of market ``m`` in each of its states (S,), of which at most ``most`` instances are granted."""
        each = []
        for count in self.grids[m].counts.count.tolist():
            views = list(view.views)
            views[m] = replace(views[m], available=min(count, most))
            each.append(float(self._if_granted(replace(view, views=tuple(views))).worth[m]))
        return np.array(each)

    @property
    def tie_usd(self) -> float:
        """Largest difference of two values that counts as a tie, USD."""
        return TIE * abs(self.job.job.worth.usd)

    def _if_granted(self, view: MarketsView) -> WorldOptions:
        """Return the options if each market grants what the view shows."""
        here, held = instances_of(view)
        counts = [
            max(own.available + own.others - few, 0)
            for own, few in zip(view.views, self.taken.tolist(), strict=True)
        ]
        at = self._paths(
            place=np.array([view.place]),
            here=np.array([here]),
            done=np.array([view.progress.done]),
            saved=np.array([held.saved if held.held.total else view.progress.done]),
            held=np.array([[held.held.spot], [held.held.on_demand]]),
            pending_hours=np.array([held.pending_hours]),
            known=self._read_view(
                np.array([[own.price for own in view.views]]),
                np.array([[own.available for own in view.views]]),
                np.array([counts]),
            ),
            share=1.0 - view.views[0].elapsed,
            hours_left=view.views[0].hours_left,
        )
        _, targets, worth = choose_market(*self.plan, view.slot - self.slot, at)
        if not self.moves:
            worth[:, -1] = self._waiting(view.slot, at).max(axis=1)
        return WorldOptions(
            targets=tuple(placement(m, Allocation(o, s)) for m, (o, s) in enumerate(targets[0].tolist())),
            worth=worth[0],
            here=here,
            wait_usd=self.wait_usd(view),
            tie_usd=self.tie_usd,
        )

    def read_paths(self, prices: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return sampled prices in USD per instance-hour and counts left by other jobs as `on_paths` reads them."""
        return self._read_view(prices, counts, counts)

    def _read_view(
        self, prices: np.ndarray, available: np.ndarray, counts: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Return prices in USD per slot, available instances, and the states of counts and prices, all (..., M)."""
        usd, each = np.ascontiguousarray(prices * self.slot_hours, dtype=float), list(enumerate(self.grids))
        states = [grid.counts.indices(counts[..., m]) for m, grid in each]
        levels = [grid.prices.indices(usd[..., m]) for m, grid in each]
        return (
            usd, available.astype(np.int64), np.stack(states, -1).astype(np.int64), np.stack(levels, -1).astype(np.int64)
        )  # fmt: skip

    def on_paths(
        self, slot: int, paths: WorldPaths, own: np.ndarray, known: tuple[np.ndarray, ...]
    ) -> Targets:
        """Return the targets on all paths in a later slot: of highest value on the paths ``own``, nothing on others.

        ``known`` are the entries of `read_paths` in the slot, (own, M). The present belief is fixed
        to the end.
        """
        wished = nothing(paths)
        market, at = wished.market[own], self._job_states(slot, paths, own, known)
        found, _, _ = choose_market(*self.plan, slot - self.slot, at)
        wished.market[own] = np.where(found[:, 1:].any(axis=1), found[:, 0], market)
        wished.on_demand[own], wished.spot[own] = found[:, 1], found[:, 2]
        return wished

    def each_on_paths(
        self, slot: int, paths: WorldPaths, own: np.ndarray, known: tuple[np.ndarray, ...]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each market the best target (own, M, 2), its value, and that of waiting there, (own, M)."""
        at = self._job_states(slot, paths, own, known)
        _, targets, worth = choose_market(*self.plan, slot - self.slot, at)
        return targets, worth[:, :-1], self._waiting(slot, at)

    def _waiting(self, slot: int, at: MarketPaths) -> np.ndarray:
        """Return the value of running nothing in a slot and waiting in each market, (paths, M)."""
        i, paths = slot - self.slot, np.arange(len(at.rest))
        found = np.empty(at.states.shape)
        for m, (grid, after) in enumerate(zip(self.grids, self.plan.after, strict=True)):
            rows = after[i][at.states[:, m], at.levels[:, m], 0]
            # A move later takes its transfer too: otherwise waiting would seem better than a move now.
            moved = (at.place != m) & (at.place < self.job.nowhere)
            steps = (at.rest + moved * self.job.moving.taken * grid.gain.max()) / grid.step
            low = np.clip(steps.astype(np.int64), 0, rows.shape[1] - 2)
            first, second = rows[paths, low], rows[paths, low + 1]
            found[:, m] = first + np.minimum(steps - low, 1.0) * (second - first)
            found[:, m] -= [move_usd(self.plan.moves, slot, place, m) for place in at.place.tolist()]
        return found

    def wait_usd(self, view: MarketsView) -> float:
        """Return the advantage that running nothing must have, USD."""
        return WAIT_GAIN * float(view.views[self.plan.fastest].on_demand_usd) * self.slot_hours

    def _job_states(
        self, slot: int, paths: WorldPaths, own: np.ndarray, known: tuple[np.ndarray, ...]
    ) -> MarketPaths:
        """Return the states of the job on the paths ``own`` in a later slot, in the form of the kernels."""
        place, (held, pending, saved) = paths.place[own], paths.instances(own)
        place = np.where(place < 0, self.job.nowhere, place)
        return self._paths(
            place=place,
            here=np.where(held.any(axis=0), paths.market[own], place),
            done=paths.work[own],
            saved=saved,
            held=held,
            pending_hours=pending / 3600.0,
            known=known,
            share=1.0,
            hours_left=(self.job.job.deadline_slots - slot) * self.slot_hours,
        )

    def _paths(
        self,
        *,
        place: np.ndarray,
        here: np.ndarray,
        done: np.ndarray,
        saved: np.ndarray,
        held: np.ndarray,
        pending_hours: np.ndarray,
        known: tuple[np.ndarray, ...],
        share: float,
        hours_left: float,
    ) -> MarketPaths:
        """Return states of the job in the form of the kernels; a move underway waits for its transfer too.

        ``held`` (2, paths) are spot and on-demand, in the order of `kernels.world`.
        """
        usd, available, states, levels = known
        hours, nowhere = self.slot_hours, self.job.nowhere
        underway = (place != here) & (place < nowhere) & (here < nowhere)
        return MarketPaths(
            place=place.astype(np.int64),
            here=here.astype(np.int64),
            rest=np.asarray(self.job.job.workload - done, dtype=float),
            unsaved=np.asarray(done - saved, dtype=float),
            on_demand=held[ON_DEMAND],
            spot=held[SPOT],
            pending=pending_hours / hours + self.job.moving.taken * underway,
            available=available,
            price=usd,
            states=states,
            levels=levels,
            share=float(share),
            left=float(hours_left / hours),
        )


def instances_of(view: MarketsView) -> tuple[int, Running]:
    """Return the market of the instances and themselves; raises `PolicyError` in the slot model."""
    found = view.instances
    if found is None:
        raise PolicyError(
            f"job {view.job.job.name!r} has no instances in the world", expected="a view in the world"
        )
    return found


def in_time_somewhere(view: MarketsView) -> bool:
    """Return whether on-demand meets the deadline from now on: the instances held, or the fastest size anew where it is sold."""
    (here, running), job = instances_of(view), view.job
    rest, left = work_needed(job.job.workload) - view.progress.done, view.views[0].hours_left
    most = 0.0
    for m, (run, own) in enumerate(zip(job.runs, view.views, strict=True)):
        if not own.on_demand.sold:
            continue
        times, speeds = times_of(run, view.slot_hours), rates(run.throughput, run.n_max)
        speeds = np.where(np.arange(run.n_max + 1) >= run.n_min, speeds, 0.0)
        lost = times.new_seconds(int(speeds.argmax())) / 3600.0
        if view.place not in (m, job.nowhere):
            lost += job.moving.taken * view.slot_hours
        most = max(most, float(speeds.max()) * (left - lost))
        if m == here:
            kept = float(speeds[min(running.held.on_demand, run.n_max)])
            most = max(most, kept * (left - running.pending_hours))
    return rest <= most * (1.0 + WORK_TOLERANCE)


def share_that_stands(run: Job, past: Past | None, slot_hours: float, half_life_hours: float) -> float:
    """Return the share of its work that spot held at the start of a slot does, by the counts read within past slots.

    It loses the instances that readings show as gone, and with each change a restart and half a
    checkpoint, or a start where all were gone. The weight of a slot halves every ``half_life_hours``;
    `STANDS_WHOLE` slots more lost nothing.
    """
    if past is None or past.within is None or not past.within.shape[1]:
        return 1.0
    held = np.column_stack([past.available[:-1], past.within[1:]])
    held = np.minimum(held, np.minimum(held[:, :1], run.n_max))
    held = np.where(held >= run.n_min, held, 0.0 * held)
    read = np.isfinite(held).all(axis=1) & (held[:, 0] > 0.0)
    weight = 0.5 ** (slot_hours / half_life_hours * (len(held) - 1 - np.flatnonzero(read)))
    held, times = held[read], times_of(run, slot_hours)
    change = np.diff(held, axis=1)
    restart = np.array([times.restart_seconds(n) for n in range(run.n_max + 1)])[held[:, 1:].astype(int)]
    lost = restart + (0.0 if times.notice_saves else times.checkpoint / 2.0)
    began = np.where(held[:, :-1] == 0.0, times.boot + restart, restart)
    paused = np.where(change < 0.0, lost, np.where(change > 0.0, began, 0.0))
    part = slot_hours * 3600.0 / held.shape[1]
    held[:, 1:] *= 1.0 - np.minimum(1.0, paused / part)
    stood = held.mean(axis=1) / held[:, 0]
    return float((weight @ stood + STANDS_WHOLE) / (weight.sum() + STANDS_WHOLE))


def world_tables_in_force(
    view: MarketsView,
    forgetting: Forgetting,
    *,
    draws: int = DRAWS,
    taken: Sequence[int] | None = None,
    whole: bool = False,
) -> WorldTables:
    """Return the tables of a job in the world for the slot of ``view``, computed at first use.

    Other jobs take ``taken`` instances of each market first in every later slot (None: none).
    ``whole``: the tables are kept of every later slot. Where finishing is not always worth its price, a market
    is valued as if the job then stayed there: markets drawn anew in every slot would seem to change at once,
    and the job would run on demand until spot comes.
    """
    draws = draws if view.never_let_go else 0
    found = [belief_in_force(own, forgetting, 0) for own in view.views]
    beliefs, keep = [belief for belief, _ in found], found[0][1]
    keep = view.job.job.deadline_slots - beliefs[0].slot if whole else keep
    terms = _terms(view, forgetting, taken) | {"keep": keep, "draws": draws}
    key = (view.job, tuple(beliefs), tuple(terms.values()))
    # Only the newest: those of all markets and slots would fill the memory.
    cache, place = view.views[0].tables, ("tables of all markets",)
    known = cache.get(place)
    if isinstance(known, tuple) and known[0] == key and isinstance(known[1], WorldTables):
        return known[1]
    tables = make_world_tables(view.job, beliefs, **terms)
    cache[place] = (key, tables)
    return tables


def world_tables_apart(
    view: MarketsView, beliefs: Sequence[Belief], forgetting: Forgetting, *, taken: Sequence[int], cells: int
) -> WorldTables:
    """Return the tables of a job that stays in a market, for every slot from that of ``view`` on, under other ``beliefs``."""
    keep = view.job.job.deadline_slots - beliefs[0].slot
    terms = _terms(view, forgetting, taken)
    return make_world_tables(view.job, beliefs, keep=keep, draws=0, cells=cells, **terms)


def _terms(view: MarketsView, forgetting: Forgetting, taken: Sequence[int] | None) -> dict[str, Any]:
    """Return the arguments of `make_world_tables` that are those of the job in the slot of ``view``."""
    _, running = instances_of(view)
    is_guarded = any(own.running is not None and own.running.guarded for own in view.views)
    return {
        "guarded": is_guarded and in_time_somewhere(view),
        "gap": running.gap_hours / view.slot_hours,
        "ahead": all(is_ahead(own, view.progress.done) for own in view.views),
        "taken": tuple(taken or (0,) * len(view.views)),
        "stands": tuple(
            share_that_stands(run, own.past, view.slot_hours, forgetting.own_hours)
            for run, own in zip(view.job.runs, view.views, strict=True)
        ),
        "sold": tuple(own.on_demand.sold for own in view.views),
    }


def make_world_tables(
    job: MarketsJob,
    beliefs: Sequence[Belief],
    *,
    keep: int,
    guarded: bool,
    gap: float,
    ahead: bool = True,
    draws: int = DRAWS,
    taken: Sequence[int] | None = None,
    stands: Sequence[float] | None = None,
    sold: Sequence[bool] | None = None,
    cells: int = MOST_CELLS,
) -> WorldTables:
    """Compute the tables of all markets by backward induction from the deadline to the slot of ``beliefs``.

    ``keep``, ``guarded``, ``gap`` and ``ahead`` are those of `make_held_tables`, ``draws`` the number
    of draws of the other markets in each later slot. In each market spot does the share ``stands`` of
    its work (None: all). On-demand is ``sold`` in these markets (None: in all). The grid of work left
    is as fine as ``cells`` in all allow.
    """
    gone, stand = taken or (0,) * len(beliefs), stands or (1.0,) * len(beliefs)
    are_sold = np.ones(len(beliefs), dtype=bool) if sold is None else np.array(sold, dtype=bool)
    slots, hours = job.job.deadline_slots - beliefs[0].slot, beliefs[0].slot_hours
    grids = [
        table_grid(run, belief, holdings=2, taken=few)
        for run, belief, few in zip(job.runs, beliefs, gone, strict=True)
    ]
    per_point = sum(
        2 * slots * len(grid.counts.count) * len(grid.prices.level_usd) * len(grid.sizes) for grid in grids
    )
    most = max(FEWEST_POINTS, min(MOST_POINTS, cells // per_point))
    step, points = min((work_grid(run, hours, most) for run in job.runs), key=lambda found: found[0])
    points = max(points, math.ceil(job.job.workload / step) + 2)
    grids = [replace(grid, step=step, points=points) for grid in grids]
    games = [
        held_game(run, times_of(run, hours), belief, grid, guarded=guarded, gap=gap, stands=share)
        for run, belief, grid, share in zip(job.runs, beliefs, grids, stand, strict=True)
    ]
    games = [
        # On-demand that is not sold never comes.
        game if is_sold else game._replace(wait=float(job.job.late_limit + job.job.deadline_slots))
        for game, is_sold in zip(games, are_sold.tolist(), strict=True)
    ]
    gains = np.array([grid.gain.max() for grid in grids])
    fastest = int(np.argmax(np.where(are_sold, gains, 0.0)))
    most = grids[fastest].sizes[grids[fastest].gain.argmax()]
    other_wait = job.moving.taken + games[fastest].fresh[most] + games[fastest].wait
    games = [
        game
        if m == fastest
        else game._replace(other_gain=float(gains[fastest]), other_wait=float(other_wait))
        for m, game in enumerate(games)
    ]
    low, high = np.zeros(slots + 1, np.int64), np.full(slots + 1, points)
    if guarded:
        low, high = band(job.job, games[int(gains.argmax())])
        low = np.zeros_like(low) if ahead else low
    markets = typed_list(
        [
            Market(game, game._replace(fresh=game.fresh + float(job.moving.taken)), grid.choices)
            for game, grid in zip(games, grids, strict=True)
        ]
    )
    left = [np.maximum(belief.counts.count - few, 0) for belief, few in zip(beliefs, gone, strict=True)]
    count_now = [
        np.bincount(grid.counts.indices(count), weights=belief.count_now, minlength=len(grid.counts.count))
        for belief, grid, count in zip(beliefs, grids, left, strict=True)
    ]
    states = sampled_states(
        [belief.price_now for belief in beliefs],
        count_now,
        [game.price_chain for game in games],
        [game.chain for game in games],
        slots,
        draws,
    )
    moves = job.moving.table
    after, alone = induct_markets(markets, states, moves, min(keep, slots), low, high, fastest)
    return WorldTables(
        job=job,
        grids=tuple(grids),
        slot_hours=hours,
        plan=Plan(markets, typed_list(after), alone, moves, fastest),
        slot=beliefs[0].slot,
        taken=np.array(gone, np.int64),
        now=tuple(count_now),
        moves=draws > 0,
    )


def sampled_states(
    price_now: list[np.ndarray],
    count_now: list[np.ndarray],
    price_steps: list[np.ndarray],
    count_steps: list[np.ndarray],
    slots: int,
    draws: int,
) -> np.ndarray:
    """Draw count and price states of every market in each slot by Latin hypercube sampling (T, R, M, 2).

    Per market, the arguments are the present distributions over count and price states, (S,) and
    (K,), and the transitions into each slot.
    """
    markets = len(count_now)
    found = np.zeros((slots, draws, markets, 2), np.int64)
    strata = _strata(slots, draws, markets)
    for m in range(markets):
        for column, (distribution, steps) in enumerate(
            ((count_now[m], count_steps[m]), (price_now[m], price_steps[m]))
        ):
            upto = np.cumsum(marginals(distribution, np.asarray(steps[: slots - 1], np.float64)), axis=1)
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
