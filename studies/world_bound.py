"""Upper bound on the utility of a job in the world with its markets known in advance (M12.14)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from slackwater.optimization.kernels.world import HOUR
from slackwater.optimization.world.replay import WorldCase
from slackwater.optimization.world.simulation import Readings, WorldTerms, value_in_world
from slackwater.optimization.world.terms import world_markets


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldBound:
    """Bound that no replay of a job in the world exceeds: its utility, and the cost that belongs to it, USD.

    It is no optimum: the job of the bound pays a single start, restarts never, moves at no cost and
    changes its instances at any second.
    """

    utility_usd: float
    cost_usd: float


def bound_in_world(case: WorldCase) -> WorldBound:
    """Return the bound of a job on its markets up to the deadline, and on on-demand after it (M12.14)."""
    job, windows = case.job.job, [one.window for one in case.cases]
    markets = world_markets(
        case.job,
        on_demand_usd=[window.on_demand_usd for window in windows],
        slot_hours=windows[0].slot_hours,
        sold=[window.on_demand.sold for window in windows],
    )
    slot = windows[0].slot_hours * HOUR
    deadline = job.deadline_slots * slot
    begin = min(
        one.boot + one.restart_seconds(n)
        for one in markets.terms
        for n, rate in enumerate(one.rates)
        if rate > 0.0
    )
    usd = [float(own.price.min()) for own in case.readings if len(own.price)]
    usd += [one.on_demand_usd for one in markets.terms if one.sold]
    start_usd = begin / HOUR * job.n_min * min(usd)
    pieces = list(_pieces(markets.terms, case.readings, begin, deadline, ceiling=job.max_spot_usd))
    best = WorldBound(utility_usd=-math.inf if job.must_finish else 0.0, cost_usd=0.0)
    late = math.ceil(job.late_limit) - job.deadline_slots
    for slots in range(late + 1):
        finish = deadline + slots * slot
        if slots:
            pieces += _segment(markets.terms, [(0, math.nan)] * len(windows), slot)
        paid = _least_usd(pieces, markets.terms[0].workload) + start_usd
        # A finish between two slots has at most the value of the earlier and the cost of the later.
        value = value_in_world(job.worth, max(deadline, finish - slot), deadline, slot)
        if value - paid > best.utility_usd:
            best = WorldBound(utility_usd=value - paid, cost_usd=paid)
    return best


def _pieces(
    terms: Sequence[WorldTerms], readings: Sequence[Readings], begin: float, end: float, *, ceiling: float
) -> Iterator[tuple[float, float]]:
    """Yield the work that can be done between two times in seconds, as (USD per work unit, work units)."""
    times = np.unique(np.concatenate([[begin, end], *(own.times for own in readings)]))
    times = times[(times >= begin) & (times <= end)]
    newest = [np.searchsorted(own.times, times[:-1], side="right") - 1 for own in readings]
    for i, seconds in enumerate(np.diff(times).tolist()):
        seen = [
            (int(own.available[r[i]]), float(own.price[r[i]])) if r[i] >= 0 else (0, math.nan)
            for own, r in zip(readings, newest, strict=True)
        ]
        yield from _segment(terms, [(0, usd) if usd > ceiling else (n, usd) for n, usd in seen], seconds)


def _segment(
    terms: Sequence[WorldTerms], seen: Sequence[tuple[int, float]], seconds: float
) -> list[tuple[float, float]]:
    """Return the lower convex hull of cost by work in a time without readings; ``seen`` are available instances and price."""
    points = [(0.0, 0.0)]
    for one, (available, usd) in zip(terms, seen, strict=True):
        for n in range(1, one.n_max + 1):
            spot = min(n, available)
            if one.sold and not usd < one.on_demand_usd:
                spot = 0
            if one.rates[n] > 0.0 and (one.sold or spot == n):
                paid = (n - spot) * one.on_demand_usd + (spot * usd if spot else 0.0)
                points.append((one.rates[n], paid))
    hull: list[tuple[float, float]] = []
    for rate, usd in sorted(points):
        if hull and rate == hull[-1][0]:
            continue
        while len(hull) > 1 and _slope(hull[-1], (rate, usd)) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append((rate, usd))
    hours = seconds / HOUR
    return [(_slope(a, b), (b[0] - a[0]) * hours) for a, b in pairwise(hull)]


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def _least_usd(pieces: Sequence[tuple[float, float]], work: float) -> float:
    """Return the least cost of ``work`` units from pieces of (USD per unit, units), infinity if there are too few."""
    usd = 0.0
    for slope, most in sorted(pieces):
        done = min(work, most)
        usd += slope * done
        work -= done
        if work <= 0.0:
            return usd
    return math.inf
