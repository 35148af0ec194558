"""Hindsight optimum over markets in the slot model (M11.2, M11.7) (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slackwater.optimization.job.definition import work_needed
from slackwater.optimization.kernels.moving import Ground, ending_at
from slackwater.optimization.kernels.rules import move_usd, slot_cost, usable_spot, value_at
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.moving.definition import IDLE, MarketsJob, Placement
from slackwater.optimization.window.plan import Allocation
from slackwater.warehouse.errors import MarketError

#: Trajectories per state in the first search; it finds a good bound, with which the second search prunes.
BEAM = 8
#: USD by which a trajectory must be cheaper than another that does as much work, to be kept too.
CHEAPER = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketsHindsight:
    """Hindsight optimum over markets: its utility and total cost in USD, and its instances up to the finish or d."""

    utility_usd: float
    cost_usd: float
    held: tuple[Placement, ...]


class Ways(NamedTuple):
    """Trajectories after a slot, (n,) each: the trajectory that each continues, work, USD paid, market and index of the size."""

    came: np.ndarray
    done: np.ndarray
    paid: np.ndarray
    place: np.ndarray
    size: np.ndarray

    def some(self, which: np.ndarray) -> Ways:
        """Return the trajectories ``which``."""
        return Ways(*(column[which] for column in self))


class End(NamedTuple):
    """The best known end: its utility and total cost in USD, and the (market, index of the size) of each slot up to it."""

    usd: float
    cost_usd: float
    way: tuple[tuple[int, int], ...]


def hindsight_over_markets(job: MarketsJob, windows: Sequence[MarketWindow]) -> MarketsHindsight:
    """Return the optimum of a job from slot 0 over all decisions of market and size, including its ending (M11.7).

    Exact: a trajectory is dropped only if another with the same state has done as much work at lower cost, or
    if even the cheapest possible work in the remaining slots cannot make it optimal. The budget of a job is
    not a limit. Raises `MarketError` for windows shorter than d.
    """
    run, d = job.job, job.job.deadline_slots
    for window in windows:
        if len(window) < d:
            raise MarketError(
                f"job {run.name!r}: a window of {len(window)} slots", expected=f"at least d = {d}"
            )
    hours = windows[0].slot_hours
    ground = job.ground([window.on_demand_usd for window in windows], hours)
    price = np.array([window.price[:d] for window in windows]) * hours
    available = np.array([window.available[:d] for window in windows], dtype=np.int64) * run.resumable
    spot = np.minimum(
        ground.sizes[:, :, None], usable_spot(available, price, ground.on_demand[:, None])[:, None]
    )
    cost = slot_cost(ground.sizes[:, :, None], spot, price[:, None], ground.on_demand[:, None, None])
    need, start = work_needed(run.workload), int(job.begin().place)
    end = End(0.0, 0.0, ())
    for beam in (BEAM, 0):
        end = _best_end(ground, cost, need, start, end, beam)
    held = [
        placed(place, int(ground.sizes[place, size]), int(spot[place, size, slot]))
        if place != job.nowhere and size
        else IDLE
        for slot, (place, size) in enumerate(end.way)
    ]
    return MarketsHindsight(utility_usd=end.usd, cost_usd=end.cost_usd, held=tuple(held))


def placed(market: int, n: int, spot: int) -> Placement:
    """Return ``n`` instances of a market, of which ``spot`` are spot."""
    return Placement(market, Allocation(n - spot, spot))


def _best_end(ground: Ground, cost: np.ndarray, need: float, start: int, known: End, beam: int) -> End:
    """Return the best end if it is better than the ``known``; with ``beam`` > 0 of so many trajectories per state.

    ``cost`` (M, J, T) is that of each size in each slot, in USD; ``need`` is the work at which the job is finished.
    """
    slots, value, best = cost.shape[2], ground.value, known
    least = [_least_costs(ground, cost, slot) for slot in range(slots + 1)]
    one, zero = np.zeros(1), np.zeros(1, np.int64)
    ways = [Ways(zero, one, one, zero + start, zero)]

    def end_at(usd: float, found: Ways, i: int) -> End:
        way = [(int(found.place[i]), int(found.size[i]))]
        back = int(found.came[i])
        for past in ways[:0:-1]:
            way.append((int(past.place[back]), int(past.size[back])))
            back = int(past.came[back])
        return End(usd, float(found.paid[i]), tuple(way[::-1]))

    for slot in range(slots):
        if not len(ways[-1].done):
            return best
        found = _continued(ground, cost[:, :, slot], ways[-1], slot)
        usd = np.where(found.done >= need, value_at(value, slot + 1) - found.paid, -np.inf)
        if usd.max() > best.usd:
            best = end_at(float(usd.max()), found, int(usd.argmax()))
        rest = need - found.done
        hope = value.usd - found.paid - np.interp(rest, *least[slot + 1])
        found = found.some((rest > 0.0) & (np.maximum(hope, -found.paid) > best.usd))
        state = found.place * cost.shape[1] + found.size
        ways.append(found.some(_undominated(found, state, beam)))
    last = ways.pop()
    for i, (done, paid, place, size) in enumerate(
        zip(*(column.tolist() for column in last[1:]), strict=True)
    ):
        before = int(ground.sizes[place, size]) if place < len(cost) else 0
        ending = ending_at(ground, place, before, slots, need - done)
        if ending[0] - paid > best.usd:
            best = end_at(ending[0] - paid, last, i)
            best = best._replace(
                cost_usd=value_at(value, slots + ending[3]) - best.usd if ending[2] else paid
            )
    return best


def _continued(ground: Ground, cost: np.ndarray, ways: Ways, slot: int) -> Ways:
    """Return all trajectories after a slot whose sizes cost ``cost`` (M, J): each size in the market, a move, or no market yet."""
    markets, found = len(cost), list[Ways]()
    moving = _undominated(ways, ways.place, 0)

    def follow(came: np.ndarray, market: int, sizes: np.ndarray, shares: np.ndarray, usd: np.ndarray) -> None:
        done = ways.done[came, None] + shares * ground.gain[market, sizes]
        paid = ways.paid[came, None] + usd[:, None] + cost[market, sizes]
        shape = done.shape
        found.append(
            Ways(
                np.repeat(came, shape[1]),
                done.ravel(),
                paid.ravel(),
                np.full(done.size, market),
                np.broadcast_to(sizes, shape).ravel(),
            )
        )

    for m in range(markets):
        sizes, n = np.arange(ground.held[m]), ground.sizes[m, : ground.held[m]]
        own, others = np.flatnonzero(ways.place == m), moving[ways.place[moving] != m]
        change = n - ground.sizes[m, ways.size[own], None]
        shares = np.where(change > 0, ground.up[m, n], np.where(change < 0, ground.down[m, n], 1.0))
        follow(own, m, sizes, shares, np.zeros(len(own)))
        is_move = ways.place[others, None] < markets
        shares = np.where(is_move, ground.moved[m, n[1:]], ground.up[m, n[1:]])
        usd = np.array([move_usd(ground.moves, slot, place, m) for place in ways.place[others].tolist()])
        follow(others, m, sizes[1:], shares, usd)
    waiting = np.flatnonzero(ways.place == markets)
    found.append(ways.some(waiting)._replace(came=waiting))
    return Ways(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _undominated(ways: Ways, state: np.ndarray, beam: int) -> np.ndarray:
    """Return the trajectories that no other of the same ``state`` matches in work for less; with a ``beam`` at most so many."""
    order = np.lexsort((ways.paid, -ways.done, state))
    kept = []
    for own in np.split(order, np.flatnonzero(np.diff(state[order])) + 1):
        least = np.minimum.accumulate(ways.paid[own])
        front = own[np.append(True, ways.paid[own[1:]] < least[:-1] - CHEAPER)] if len(own) else own
        if 0 < beam < len(front):
            front = front[np.arange(beam) * (len(front) - 1) // max(1, beam - 1)]
        kept.append(front)
    return np.concatenate(kept)


def _least_costs(ground: Ground, cost: np.ndarray, slot: int) -> tuple[np.ndarray, np.ndarray]:
    """Return amounts of work from ``slot`` on and a lower bound of their costs in USD, as the corners of a line.

    In every slot the bound allows the work of the best size of any market at the lowest unit cost of any
    market; after the deadline it allows unlimited work at the lowest on-demand unit cost.
    """
    sizes = ground.sizes > 0
    gain, late = ground.gain[sizes], ground.sizes * ground.on_demand[:, None]
    unit = (cost[:, :, slot:][sizes] / gain[:, None]).min(axis=0)
    work = gain.max() * np.arange(len(unit) + 1)
    usd = np.append(0.0, np.sort(unit).cumsum() * gain.max())
    far = 1e6 * (work[-1] + gain.max())
    return np.append(work, far), np.append(usd, usd[-1] + (far - work[-1]) * (late[sizes] / gain).min())
