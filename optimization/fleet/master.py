"""The restricted master of the price decomposition: which of the routes found so far to mix or to take (Dantzig-Wolfe; ours).

    max  sum_c x_c u_c
    s.t. sum_{c of j} x_c = 1 for every job; sum_c x_c spot_c(i, m) <= available(i, m); sum_c x_c paid_c <= money left

with u_c the weighted utility of a route. Its linear form gives prices, its integer form a plan. Both go to HiGHS as arrays through
scipy: a Pyomo model of some thousand columns takes longer to build than to solve, and this one is solved a dozen times a plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_matrix

from optimization.fleet.orders import spots
from optimization.fleet.problem import Route
from optimization.fleet.search import Search

#: Search effort of the integer master: nodes, and the gap that is enough. Nodes, not seconds: the answer is the same everywhere.
NODES, ENOUGH = 400, 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What scarce things cost, in weighted USD: a spot instance of slot i in market m for the slot (w, markets), a USD of each
    team's cap (teams,), a USD of each job's own cap (jobs,)."""

    toll: np.ndarray
    team: np.ndarray
    own: np.ndarray

    def mixed(self, other: Prices, share: float) -> Prices:
        """``share`` of these and the rest of ``other``."""
        return Prices(
            toll=share * self.toll + (1.0 - share) * other.toll,
            team=share * self.team + (1.0 - share) * other.team,
            own=share * self.own + (1.0 - share) * other.own,
        )


@dataclass
class Master:
    """Routes found so far and the program over them."""

    searching: Search
    routes: list[Route] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    weights: np.ndarray = field(default_factory=lambda: np.zeros(0))
    _known: set[tuple[object, ...]] = field(default_factory=set)
    _cells: list[tuple[int, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        problem = self.searching.problem
        self._jobs, self._teams = len(problem.jobs), sorted(problem.teams)
        self._capped = [j for j, job in enumerate(problem.jobs) if np.isfinite(job.cap_usd)]
        self._place = {market: m for m, market in enumerate(self.searching.markets)}
        counts = self.searching.available
        self._count_row = np.arange(counts.size).reshape(counts.shape)
        self._team_row = {name: counts.size + t for t, name in enumerate(self._teams)}
        self._own_row = {j: counts.size + len(self._teams) + r for r, j in enumerate(self._capped)}
        self._right = np.concatenate(
            [
                counts.ravel().astype(float),
                [problem.teams[name].left_usd for name in self._teams],
                [problem.jobs[j].left_usd for j in self._capped],
            ]
        )

    def add(self, j: int, route: Route) -> bool:
        """Keep a route of job ``j``; False if it is known."""
        key = (j, route.places, route.ending)
        if key in self._known:
            return False
        self._known.add(key)
        c, job = len(self.routes), self.searching.problem.jobs[j]
        self._cells += [(int(self._count_row[i, m]), c, float(n)) for i, m, n in spots(route, self._place)]
        if job.team is not None:
            self._cells.append((self._team_row[job.team], c, route.capped_usd))
        if j in self._own_row:
            self._cells.append((self._own_row[j], c, route.capped_usd))
        self.routes.append(route)
        self.owner.append(j)
        return True

    def prices(self) -> tuple[Prices, float]:
        """Prices of the linear master and its worth; how it mixes the routes is kept in ``weights``."""
        u, rows, jobs = self._arrays()
        answer = linprog(
            -u,
            A_ub=rows,
            b_ub=self._right,
            A_eq=jobs,
            b_eq=np.ones(self._jobs),
            bounds=(0, None),
            method="highs-ds",
        )
        self.weights = answer.x
        dual = np.maximum(-answer.ineqlin.marginals, 0.0)
        shape = self.searching.available.shape
        first, own = self._count_row.size, np.zeros(self._jobs)
        own[self._capped] = dual[first + len(self._teams) :]
        toll = dual[:first].reshape(shape)
        return Prices(toll=toll, team=dual[first : first + len(self._teams)], own=own), -float(answer.fun)

    def mixed(self) -> list[tuple[float, Route]]:
        """Of each job the route that the last linear master takes the most of, and how much of it."""
        top: list[tuple[float, Route]] = [(-1.0, self.routes[0])] * self._jobs
        for c, share in enumerate(self.weights):
            if share > top[self.owner[c]][0]:
                top[self.owner[c]] = (float(share), self.routes[c])
        return top

    def whole(self) -> list[Route] | None:
        """The best whole routes, one a job, that the search effort finds; None if it finds none."""
        u, rows, jobs = self._arrays()
        answer = milp(
            -u,
            constraints=[LinearConstraint(rows, ub=self._right), LinearConstraint(jobs, lb=1, ub=1)],
            bounds=Bounds(0, 1),
            integrality=np.ones(len(u)),
            options={"node_limit": NODES, "mip_rel_gap": ENOUGH},
        )
        if answer.x is None:
            return None
        taken: dict[int, Route] = {}
        for c in np.flatnonzero(answer.x > 0.5):
            taken[self.owner[c]] = self.routes[c]
        return [taken[j] for j in range(self._jobs)] if len(taken) == self._jobs else None

    def _arrays(self) -> tuple[np.ndarray, csr_matrix, csr_matrix]:
        problem, columns = self.searching.problem, len(self.routes)
        u = np.array(
            [
                problem.jobs[j].priority * route.utility_usd
                for j, route in zip(self.owner, self.routes, strict=True)
            ]
        )
        row, column, value = zip(*self._cells, strict=True) if self._cells else ((), (), ())
        rows = csr_matrix((value, (row, column)), shape=(len(self._right), columns))
        jobs = csr_matrix((np.ones(columns), (self.owner, np.arange(columns))), shape=(self._jobs, columns))
        return u, rows, jobs
