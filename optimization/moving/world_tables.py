"""Value function of a multi-market job in the world: the tables of M4.12 in each market, with later moves (M11.6) (ours)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba.typed import List

from slackwater.optimization.job.definition import needed, rates, times_of
from slackwater.optimization.kernels.lists import listed
from slackwater.optimization.kernels.markets import Market, choose_market, induct_markets
from slackwater.optimization.market.belief import Belief, Forgetting
from slackwater.optimization.moving.definition import IDLE, MarketsJob, MarketsView, Placement, placement
from slackwater.optimization.moving.tables import (
    DRAWS,
    MOST_CELLS,
    MOST_POINTS,
    lumped,
    sampled_states,
)
from slackwater.optimization.policies.contract import Running
from slackwater.optimization.policies.grids import FEWEST_POINTS, band, work_grid
from slackwater.optimization.policies.holding import HeldMarket
from slackwater.optimization.policies.pace import WORK_TOLERANCE
from slackwater.optimization.policies.stochastic import belief_in_force, is_ahead
from slackwater.optimization.window.plan import Allocation
from slackwater.warehouse.errors import PolicyError


class Standings(NamedTuple):
    """States of a job in one slot on many paths: arrays of shape (paths,), of markets (paths, M).

    ``place`` and ``here`` are the markets of the checkpoint and of the instances (M: none yet),
    ``done`` is the work done and ``saved`` what a loss would leave of it. ``price`` is in USD per
    instance-hour.
    """

    place: np.ndarray
    here: np.ndarray
    done: np.ndarray
    saved: np.ndarray
    on_demand: np.ndarray
    spot: np.ndarray
    pending_hours: np.ndarray
    available: np.ndarray
    price: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldTables:
    """Expected values after the choice in each of the first slots from ``slot`` on, per market (`kernels.markets`), USD.

    ``fastest`` is the market of the fastest on-demand.
    """

    job: MarketsJob
    own: tuple[HeldMarket, ...]
    markets: List
    after: List
    alone: np.ndarray
    move_usd: np.ndarray
    fastest: int
    slot: int

    def choose(
        self, slot: int, states: Standings, *, share: float, hours_left: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return `kernels.markets.choose_market` on many paths in ``slot``, of which a ``share`` is left."""
        hours = self.own[0].belief.slot_hours
        price = states.price * hours
        cells = np.stack(
            [
                np.stack(
                    [
                        own.counts.indices(states.available[:, m]),
                        own.prices.indices(price[:, m]),
                    ],
                    axis=1,
                )
                for m, own in enumerate(self.own)
            ],
            axis=1,
        ).astype(np.int64)
        moving = (states.here < len(self.own)) & (states.place != states.here)
        pending = states.pending_hours / hours + self.job.moving.taken * (
            moving & (states.place < len(self.own))
        )
        found, worth = choose_market(
            self.markets,
            self.after,
            self.alone,
            slot - self.slot,
            self.move_usd,
            self.fastest,
            states.place.astype(np.int64),
            states.here.astype(np.int64),
            np.stack([self.job.job.workload - states.done, states.done - states.saved, pending], axis=1),
            np.stack([states.on_demand, states.spot], axis=1).astype(np.int64),
            states.available.astype(np.int64),
            np.ascontiguousarray(price, dtype=float),
            cells,
            float(share),
            hours_left / hours,
        )
        return np.asarray(found), np.asarray(worth)

    def target(self, view: MarketsView) -> Placement:
        """Return the target of highest value in the slot of ``view``."""
        states = standing_of(view)
        found, _ = self.choose(
            view.slot, states, share=1.0 - view.views[0].elapsed, hours_left=view.views[0].hours_left
        )
        market, on_demand, spot = found[0].tolist()
        return IDLE if not on_demand + spot else placement(market, Allocation(on_demand, spot))


def instances_of(view: MarketsView) -> tuple[int, Running]:
    """Return the market of the instances and themselves; raises `PolicyError` in the slot model."""
    found = view.instances
    if found is None:
        raise PolicyError(
            f"job {view.job.job.name!r} has no instances in the world", expected="a view in the world"
        )
    return found


def standing_of(view: MarketsView) -> Standings:
    """Return the state of a job in the world as a single path."""
    here, held = instances_of(view)
    return Standings(
        place=np.array([view.place]),
        here=np.array([here]),
        done=np.array([view.progress.done]),
        saved=np.array([held.saved if held.held.total else view.progress.done]),
        on_demand=np.array([held.held.on_demand]),
        spot=np.array([held.held.spot]),
        pending_hours=np.array([held.pending_hours]),
        available=np.array([[own.available for own in view.views]]),
        price=np.array([[own.price for own in view.views]]),
    )


def in_time_somewhere(view: MarketsView) -> bool:
    """Return whether on-demand meets the deadline from now on: the instances held, or the fastest size anew in any market."""
    states, job = standing_of(view), view.job
    rest = needed(job.job.workload) - view.progress.done
    here, left = int(states.here[0]), view.views[0].hours_left
    most = 0.0
    for m, run in enumerate(job.runs):
        times, speeds = times_of(run, view.slot_hours), rates(run.throughput, run.n_max)
        speeds = np.where(np.arange(run.n_max + 1) >= run.n_min, speeds, 0.0)
        lost = (times.on_demand_wait + times.boot + times.restart) / 3600.0
        if view.place not in (m, job.nowhere):
            lost += job.moving.taken * view.slot_hours
        most = max(most, float(speeds.max()) * (left - lost))
        if m == here:
            kept = float(speeds[min(int(states.on_demand[0]), run.n_max)])
            most = max(most, kept * (left - float(states.pending_hours[0])))
    return rest <= most * (1.0 + WORK_TOLERANCE)


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
    ``whole``: the tables are kept of every later slot.
    """
    _, running = instances_of(view)
    found = [belief_in_force(own, forgetting, 0) for own in view.views]
    beliefs, keep = [belief for belief, _ in found], found[0][1]
    guarded = running.guarded and in_time_somewhere(view)
    gap = running.gap_hours / view.slot_hours
    ahead = all(is_ahead(own, view.progress.done) for own in view.views)
    gone = tuple(taken or (0,) * len(beliefs))
    keep = view.slots_left if whole else keep
    key = ("markets", view.job, tuple(beliefs), keep, guarded, gap, ahead, draws, gone)
    cache = view.views[0].tables
    tables = cache.get(key)
    if not isinstance(tables, WorldTables):
        tables = cache[key] = make_world_tables(
            view.job, beliefs, keep=keep, guarded=guarded, gap=gap, ahead=ahead, draws=draws, taken=gone
        )
    return tables


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
) -> WorldTables:
    """Compute the tables of all markets by backward induction from the deadline to the slot of ``beliefs``.

    ``keep``, ``guarded``, ``gap`` and ``ahead`` are those of `make_held_tables`, ``draws`` the number
    of draws of the other markets in each later slot.
    """
    gone = taken or (0,) * len(beliefs)
    own = tuple(map(HeldMarket.of, job.runs, beliefs, gone))
    hours = beliefs[0].slot_hours
    times = [times_of(run, hours) for run in job.runs]
    most = max(FEWEST_POINTS, min(MOST_POINTS, MOST_CELLS // sum(one.cells for one in own)))
    step, points = min((work_grid(one.job, one.gain, most=most) for one in own), key=lambda grid: grid[0])
    points = max(points, math.ceil(job.job.workload / step) + 2)
    games = [
        one.game(time, (step, points), guarded=guarded, gap=gap) for one, time in zip(own, times, strict=True)
    ]
    fastest = int(np.argmax([one.gain.max() for one in own]))
    games = [
        game._replace(
            other_gain=float(own[fastest].gain.max()) if m != fastest else 0.0,
            other_wait=job.moving.taken + games[fastest].fresh + games[fastest].wait,
        )
        for m, game in enumerate(games)
    ]
    slots = own[0].slots
    low, high = np.zeros(slots + 1, np.int64), np.full(slots + 1, points)
    if guarded:
        low, high = band(job.job, games[fastest])
        low = np.zeros_like(low) if ahead else low
    markets = listed(
        [
            Market(
                game,
                game._replace(fresh=game.fresh + float(job.moving.taken)),
                one.all_sizes.astype(np.int64),
                one.all_gains,
                one.near.astype(np.int64),
            )
            for game, one in zip(games, own, strict=True)
        ]
    )
    count_now = [
        lumped(belief.count_now, np.maximum(belief.counts.count - few, 0), one.counts)
        for belief, one, few in zip(beliefs, own, gone, strict=True)
    ]
    states = sampled_states(
        [belief.price_now for belief in beliefs],
        count_now,
        [game.price_chain for game in games],
        [game.chain for game in games],
        slots,
        draws,
        False,
    )
    after, alone = induct_markets(
        markets, states, np.array(job.moving.usd, dtype=float), min(keep, slots), low, high, fastest
    )
    return WorldTables(
        job=job,
        own=own,
        markets=markets,
        after=listed(after),
        alone=alone,
        move_usd=np.array(job.moving.usd, dtype=float),
        fastest=fastest,
        slot=beliefs[0].slot,
    )
