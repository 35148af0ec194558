"""One job's best route in a joint program, given prices of counts and money or what others have left (ours)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from optimization.fleet.problem import NO_ENDING, NOWHERE, Ending, JointJob, JointProblem, Place, Route
from optimization.job.definition import needed, rates
from optimization.kernels.routes import (
    MOVE,
    InGroup,
    RouteTerms,
    SearchTerms,
    best_ending,
    held_in,
    optimistic,
    priced_states,
    search,
    share,
    way,
)
from optimization.kernels.rules import after_growing, after_moving, after_shrinking
from optimization.window.plan import Allocation

#: Cells of the progress grid that prices and guides a search, and labels a slot that a search keeps.
CELLS, WIDTH = 256, 100
#: Prices of money tried for a job at its cap.
FRUGAL_STEPS = 6
#: Labels a slot that amount to no limit: the search is exact.
EXACT = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedRoute:
    """A job's route, its worth, and a worth that no route passes (equal where the search is exact), both in priced USD."""

    route: Route
    worth: float
    bound: float


class Search:
    """The jobs of one joint program as arrays, made once; every call answers for one job.

    Arrays by market are in the order of `markets`, shape (w, markets).
    """

    def __init__(self, problem: JointProblem, *, cells: int = CELLS, width: int = WIDTH) -> None:
        self.problem = problem
        self.markets = sorted(problem.markets)
        windows = [problem.markets[key] for key in self.markets]
        self.price = np.column_stack([one.price for one in windows]).astype(float) * problem.slot_hours
        self.available = np.column_stack([one.available for one in windows]).astype(np.int64)
        self.on_demand = np.array([one.on_demand_usd for one in windows]) * problem.slot_hours
        self.no_toll = np.zeros(self.price.shape)
        self._cells, self._width = cells, width

    @cached_property
    def terms(self) -> tuple[RouteTerms, ...]:
        """Every job's arrays."""
        return tuple(terms_of(self.problem, job, self.markets, self.on_demand) for job in self.problem.jobs)

    @cached_property
    def _room(self) -> np.ndarray:
        states = max(terms.n.size for terms in self.terms)
        return np.empty((self.problem.slots + 1) * (states + 1) * (self._cells + 1))

    def priced(self, j: int, toll: np.ndarray, usd: float) -> BoundedRoute:
        """The best route of job ``j`` where a spot instance of slot i and market m costs ``toll[i, m]`` more, and a USD ``usd``."""
        return self._found(j, self.available, toll, usd, math.inf)

    def within(self, j: int, available: np.ndarray, most_usd: float) -> BoundedRoute:
        """The best route of job ``j`` on the counts ``available`` that are left, paying at most ``most_usd``."""
        weight = self.problem.jobs[j].priority
        found = self._found(j, available, self.no_toll, weight, math.inf)
        if found.route.capped_usd <= most_usd:
            return found
        capped = self._found(j, available, self.no_toll, weight, weight * most_usd)
        if self._width >= EXACT:
            return capped
        routes = [capped.route, *self._frugal(j, available, most_usd)]
        best = max(routes, key=lambda route: route.utility_usd)
        return BoundedRoute(route=best, worth=weight * best.utility_usd, bound=found.bound)

    def _frugal(self, j: int, available: np.ndarray, most_usd: float) -> list[Route]:
        """Routes within a cap: what a USD counts is raised until they are, then halved towards the least that does it.

        A search of few labels does not look ahead to a cap; a price of money does (ours).
        """
        weight, low, high, kept = self.problem.jobs[j].priority, 1.0, 16.0, []
        for _ in range(FRUGAL_STEPS):
            middle = math.sqrt(low * high)
            route = self._found(j, available, self.no_toll, weight * middle, math.inf).route
            if route.capped_usd <= most_usd:
                kept.append(route)
                high = middle
            else:
                low = middle
        return kept

    def bound(self, j: int, toll: np.ndarray, usd: float) -> float:
        """A worth that no route of job ``j`` passes at these prices, without looking for one."""
        return float(self._compass(j, self.available, toll, usd, math.inf)[3])

    def _compass(
        self, j: int, available: np.ndarray, toll: np.ndarray, usd: float, most: float
    ) -> tuple[SearchTerms, np.ndarray, float, float]:
        """What is asked, the optimistic worths, their cell and their bound."""
        terms, weight = self.terms[j], self.problem.jobs[j].priority
        cost, spot = priced_states(terms, self.price, available, toll, usd)
        job = self.problem.jobs[j]
        counts = self.problem.reaches_deadline(job)
        later = float(usd) if counts else float(weight)
        asked = SearchTerms(float(weight), float(usd), later, counts, cost, spot, float(most))
        shape = (terms.slots + 1, terms.n.size + 1, self._cells + 1)
        room = self._room[: shape[0] * shape[1] * shape[2]].reshape(shape)
        cell, bound = optimistic(terms, asked, room)
        return asked, room, cell, bound

    def _found(
        self, j: int, available: np.ndarray, toll: np.ndarray, usd: float, most: float
    ) -> BoundedRoute:
        asked, room, cell, bound = self._compass(j, available, toll, usd, most)
        chosen, worth, sure = search(self.terms[j], asked, room, cell, self._width)
        return BoundedRoute(
            route=self.route(j, chosen, asked),
            worth=float(worth),
            bound=float(worth if sure else max(bound, worth)),
        )

    def route(self, j: int, chosen: Sequence[int] | np.ndarray, asked: SearchTerms) -> Route:
        """The route of states ``chosen`` with the spot instances and the ending that ``asked`` makes best."""
        terms, job = self.terms[j], self.problem.jobs[j]
        z, before, paid, priced = terms.done, InGroup(terms.group_before, terms.n_before), 0.0, 0.0
        places = []
        for i, k in enumerate(chosen):
            if z >= terms.line or k == terms.n.size:
                places.append(NOWHERE)
                before = before if z >= terms.line else InGroup(-1, 0)
                continue
            came = way(terms, k, before)
            m, n, spot = int(terms.market[k]), int(terms.n[k]), int(asked.spot[i, k])
            moved = job.move_usd if came == MOVE else 0.0
            paid += moved + spot * self.price[i, m] + (n - spot) * self.on_demand[m]
            priced += asked.cost[i, k] + asked.usd * moved
            z += share(terms, k, came) * terms.gain[k]
            places.append(Place(self.markets[m], Allocation(n - spot, spot)))
            before = held_in(terms, k)
        _, k, slots = best_ending(terms, asked, z, before, priced)
        ending, ending_usd, value = NO_ENDING, 0.0, terms.value.usd if z >= terms.line else 0.0
        if k >= 0:
            moved = job.move_usd if way(terms, k, before) == MOVE else 0.0
            ending = Ending(self.markets[int(terms.market[k])], int(terms.n[k]), int(slots))
            ending_usd = slots * float(terms.on_demand[k]) + moved
            value = job.job.completion_value(terms.end + slots)
        return Route(
            job=job.name,
            places=tuple(places),
            ending=ending,
            paid_usd=float(paid),
            ending_usd=float(ending_usd),
            capped_usd=float(paid + (ending_usd if asked.later_counts else 0.0)),
            value_usd=float(value),
            end_progress=float(min(z, job.job.workload)),
        )


def nothing(problem: JointProblem, job: JointJob) -> Route:
    """Holding nothing and giving up: what always remains."""
    return Route(
        job=job.name,
        places=(NOWHERE,) * problem.window(job),
        ending=NO_ENDING,
        paid_usd=0.0,
        ending_usd=0.0,
        capped_usd=0.0,
        value_usd=0.0,
        end_progress=job.done,
    )


def terms_of(
    problem: JointProblem, job: JointJob, markets: Sequence[str], on_demand: np.ndarray
) -> RouteTerms:
    """One job's arrays; ``on_demand`` is USD a slot by market."""
    keys, hours = sorted(job.runs), problem.slot_hours
    rows = [
        (g, key, n) for g, key in enumerate(keys) for n in range(job.runs[key].n_min, job.runs[key].n_max + 1)
    ]
    run = job.job
    group = np.array([g for g, _, _ in rows], dtype=np.int64)
    market = np.array([markets.index(key) for _, key, _ in rows], dtype=np.int64)
    n = np.array([size for _, _, size in rows], dtype=np.int64)
    gain = [
        float(rates(job.runs[key].throughput, job.runs[key].n_max)[size]) * hours for _, key, size in rows
    ]
    where = job.market_previous
    slots = problem.window(job)
    return RouteTerms(
        market=market,
        n=n,
        gain=np.array(gain),
        up=np.array([after_growing(job.runs[key].restart, size) for _, key, size in rows]),
        down=np.array([after_shrinking(job.runs[key].restart, size) for _, key, size in rows]),
        move=np.array(
            [after_moving(job.runs[key].restart, size, job.move_hours / hours) for _, key, size in rows]
        ),
        on_demand=n * on_demand[market],
        first=np.searchsorted(group, np.arange(len(keys) + 1)),
        group=group,
        group_before=keys.index(where) if where is not None and where in job.runs else -1,
        n_before=int(job.n_previous),
        slots=slots,
        done=float(job.done),
        line=float(needed(run.workload)),
        value=run.worth,
        end=job.slot + slots,
        move_usd=float(job.move_usd),
        may_use_spot=run.resumable,
    )
