"""Joint plans of many jobs: one by one, and by prices (M3.6; ours)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_matrix

from optimization.fleet.problem import JointJob, JointPlan, JointProblem, Route, validate_joint
from optimization.fleet.search import CELLS, EXACT, WIDTH, Search, nothing
from optimization.job.definition import rates
from optimization.window.plan import PlanStatus

# ---
# Planning one by one: each job in turn plans on what those before it have left; and each alone, blind to the others (ours).
#
# What a route leaves for others are spot counts and money of a joint program.


class Stock:
    """Counts (w, markets) and team money that are left, as routes take them and give them back."""

    def __init__(self, searching: Search) -> None:
        self.counts = searching.available.copy()
        self._place = {market: m for m, market in enumerate(searching.markets)}
        self._money = {name: team.left_usd for name, team in searching.problem.teams.items()}

    def most_usd(self, job: JointJob) -> float:
        """What ``job`` may still pay: by its own cap and by what its team has left."""
        team = self._money.get(job.team, np.inf) if job.team is not None else np.inf
        return float(max(0.0, min(job.left_usd, team)))

    def take(self, job: JointJob, route: Route) -> None:
        """Take what a route holds and pays."""
        self._change(job, route, 1)

    def give_back(self, job: JointJob, route: Route) -> None:
        """Undo `take`."""
        self._change(job, route, -1)

    def _change(self, job: JointJob, route: Route, sign: int) -> None:
        for i, m, spot in spots(route, self._place):
            self.counts[i, m] -= sign * spot
        if job.team is not None:
            self._money[job.team] -= sign * route.capped_usd

    def holds(self, route: Route) -> bool:
        """True if the spot instances of a route are there."""
        return all(self.counts[i, m] >= spot for i, m, spot in spots(route, self._place))

    @property
    def sound(self) -> bool:
        """True if nothing is taken that was not there."""
        return bool((self.counts >= 0).all()) and all(left >= -1e-6 for left in self._money.values())


def spots(route: Route, place: dict[str, int]) -> list[tuple[int, int, int]]:
    """(slot, market index, spot instances) wherever a route holds any."""
    return [
        (i, place[one.market], one.allocation.spot)
        for i, one in enumerate(route.places)
        if one.market is not None and one.allocation.spot
    ]


class Order(StrEnum):
    """Who plans first: least slack before the deadline, highest priority, or earliest arrival (the order of the jobs)."""

    SLACK = "slack"
    PRIORITY = "priority"
    ARRIVAL = "arrival"


def slack_slots(problem: JointProblem, job: JointJob) -> float:
    """Slots left before the deadline less those the rest takes on the fastest size of any of its markets."""
    fastest = max(float(rates(run.throughput, run.n_max)[run.n_min :].max()) for run in job.runs.values())
    rest = job.job.workload - job.done
    return job.job.deadline_slots - job.slot - rest / (fastest * problem.slot_hours)


def ranked(problem: JointProblem, order: Order) -> list[int]:
    """The jobs' numbers in an order; ties by arrival."""
    numbers = range(len(problem.jobs))
    if order is Order.ARRIVAL:
        return list(numbers)
    if order is Order.PRIORITY:
        return sorted(numbers, key=lambda j: -problem.jobs[j].priority)
    return sorted(numbers, key=lambda j: slack_slots(problem, problem.jobs[j]))


def plan_one_by_one(problem: JointProblem, order: Order, *, searching: Search | None = None) -> JointPlan:
    """Plan the jobs in ``order``, each at its best on the counts and the team money that are left (ours)."""
    searching = searching or Search(problem)
    stock = Stock(searching)
    routes: dict[int, Route] = {}
    for j in ranked(problem, order):
        job = problem.jobs[j]
        routes[j] = searching.within(j, stock.counts, stock.most_usd(job)).route
        stock.take(job, routes[j])
    return joint_plan(problem, f"one by one ({order})", [routes[j] for j in range(len(problem.jobs))])


def plan_apart(problem: JointProblem, *, searching: Search | None = None) -> JointPlan:
    """Plan every job as if no other were there: together the routes may hold more spot than there is, and break team caps."""
    searching = searching or Search(problem)
    routes = [
        searching.within(j, searching.available, min(job.left_usd, _team_left(problem, job))).route
        for j, job in enumerate(problem.jobs)
    ]
    return joint_plan(problem, "apart", routes)


def improved(
    searching: Search,
    routes: Sequence[Route],
    *,
    sweeps: int,
    tell: Callable[[int], None] | None = None,
) -> list[Route]:
    """Let each job plan again on what all others leave, most valuable first, as long as the sum grows: never worse (ours)."""
    problem, found = searching.problem, list(routes)
    stock = Stock(searching)
    for job, route in zip(problem.jobs, found, strict=True):
        stock.take(job, route)
    order = sorted(range(len(found)), key=lambda j: -problem.jobs[j].priority)
    for _ in range(sweeps):
        gained = False
        for j in order:
            job, held = problem.jobs[j], found[j]
            stock.give_back(job, held)
            again = searching.within(j, stock.counts, stock.most_usd(job)).route
            if again.utility_usd > held.utility_usd + 1e-9 * job.job.value:
                found[j], gained = again, True
            stock.take(job, found[j])
            if tell is not None:
                tell(1)
        if not gained:
            break
    return found


def joint_plan(
    problem: JointProblem, method: str, routes: Sequence[Route], *, bound: float = float("inf")
) -> JointPlan:
    """A plan of routes with their own sum; a bound below it by rounding is lifted to it."""
    objective = weighted_utility(problem, routes)
    bound = max(bound, objective)
    size = max(abs(bound), abs(objective))
    gap = float("inf") if bound == float("inf") else (bound - objective) / size if size else 0.0
    return JointPlan(
        method=method,
        routes=tuple(routes),
        status=PlanStatus.OPTIMAL if gap <= 1e-6 else PlanStatus.TIME_LIMIT,
        objective=objective,
        bound=bound,
        gap=gap,
    )


def weighted_utility(problem: JointProblem, routes: Sequence[Route]) -> float:
    """sum_j priority_j x utility_j, USD."""
    return sum(job.priority * route.utility_usd for job, route in zip(problem.jobs, routes, strict=True))


def _team_left(problem: JointProblem, job: JointJob) -> float:
    return problem.teams[job.team].left_usd if job.team is not None else float("inf")


# ---
# Joint planning by prices: hundreds of jobs, each planning for itself against shadow prices of counts and money (M3.6; ours).
#
# Relaxing "no more spot than there is" and "no more money than the cap" with prices lam >= 0 leaves one program a job, which
# `optimization.fleet.search` answers. For any prices
#
#     sum_j max_route (priority u - lam spot - beta paid)  +  lam available  +  beta money left
#
# is no less than the worth of any joint plan (weak duality): the *bound*. The routes met on the way are the columns of a
# restricted master (Dantzig and Wolfe 1960), whose duals are the next prices; they are mixed with the best ones so far (Wentges
# 1997: prices of a thin master jump). Its integer form gives a plan, which the jobs then improve in turn. The plans made one by
# one are among the columns and are kept as incumbents, so that the answer is never worth less than the best of them.

#: Each step against what is short is this share of Polyak's length shorter than the one before.
STEP = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEffort:
    """How hard to look: price rounds, how many of them are steps against what is short, the gap at which to stop, cells and
    labels of the searches, cells of the last bound.

    ``smoothing`` is the share of the best prices so far in the next ones; ``sweeps`` bounds how often all jobs plan again at
    the end, from each of the last ``starts`` of: the best plan one by one, the rounded mix of routes, and with at most
    ``whole_jobs`` jobs the integer master's.
    """

    rounds: int = 14
    steps: int = 5
    enough: float = 1e-3
    cells: int = CELLS
    width: int = WIDTH
    final_cells: int = 1024
    smoothing: float = 0.5
    sweeps: int = 2
    starts: int = 3
    whole_jobs: int = 40
    orders: tuple[Order, ...] = tuple(Order)


#: For a few jobs, where seconds do not matter.
THOROUGH = SearchEffort(rounds=60, enough=1e-6, cells=512, width=EXACT, final_cells=512, sweeps=5)
#: For hundreds of jobs in seconds.
QUICK = SearchEffort(rounds=8, steps=5, enough=2e-3, cells=128, width=8, final_cells=2048, sweeps=1, starts=1)


def plan_jointly(
    problem: JointProblem, effort: SearchEffort | None = None, *, tell: Callable[[str], None] | None = None
) -> JointPlan:
    """Plan all jobs together by prices; deterministic, no clock. Raises what `validate_joint` raises.

    ``prices`` of the plan are those of the best bound. ``tell`` is told what is being done.
    """
    validate_joint(problem)
    effort = effort or SearchEffort()
    tell = tell or _silent
    searching = Search(problem, cells=effort.cells, width=effort.width)
    tell("one by one")
    first = [plan_one_by_one(problem, order, searching=searching) for order in effort.orders]
    return plan_from(searching, first, effort, tell)


def plan_from(
    searching: Search, first: list[JointPlan], effort: SearchEffort, tell: Callable[[str], None]
) -> JointPlan:
    """`plan_jointly` from plans that are known already; the answer is worth no less than any of them."""
    problem = searching.problem
    master = Master(searching)
    for plan in first:
        for j, route in enumerate(plan.routes):
            master.add(j, route)
    for j, job in enumerate(problem.jobs):
        master.add(j, nothing(problem, job))
    incumbent = max(first, key=lambda plan: plan.objective)
    prices, bound = priced_rounds(master, incumbent.objective, effort, tell)
    tell("whole routes")
    starts = [list(incumbent.routes), rounded(master)]
    if len(problem.jobs) <= effort.whole_jobs:
        starts.append(master.whole() or starts[0])
    tell("planning again")
    ends = [improved(searching, routes, sweeps=effort.sweeps) for routes in starts[-effort.starts :]]
    best = max([starts[0], *ends], key=lambda routes: weighted_utility(problem, routes))
    if effort.final_cells > effort.cells:
        tell("bound")
        fine = Search(problem, cells=effort.final_cells, width=effort.width)
        bound = min(bound, bound_at(fine, prices))
    plan = joint_plan(problem, "joint (prices)", best, bound=bound)
    names, hours = searching.markets, problem.slot_hours
    return replace(
        plan,
        prices={name: prices.toll[:, m] / hours for m, name in enumerate(names)},
        team_prices=dict(zip(sorted(problem.teams), prices.team.tolist(), strict=True)),
    )


def priced_rounds(
    master: Master, incumbent: float, effort: SearchEffort, tell: Callable[[str], None]
) -> tuple[Prices, float]:
    """Prices with the least bound met, and that bound: a few steps against what is short, then column generation.

    From no price at all, steps of Polyak's length along (asked - available) come near the best prices at once, where the duals of a
    thin master jump about; from there the master's duals, mixed with the best prices, close in.
    """
    searching = master.searching
    duals = master.prices()[0]
    asked = replace(duals, toll=np.zeros_like(duals.toll))
    best, least, slope = asked, np.inf, asked.toll
    for r in range(effort.rounds):
        tell(f"prices, round {r + 1}")
        bound, routes = priced_all(searching, asked)
        fresh = sum(master.add(j, route) for j, route in enumerate(routes))
        if bound < least:
            best, least, slope = asked, bound, asked_beyond(searching, routes)
        if least - incumbent <= effort.enough * abs(least):
            break
        if r < effort.steps:
            length = STEP**r * (least - incumbent) / max(float((slope * slope).sum()), 1e-12)
            asked = replace(best, toll=np.maximum(best.toll + length * slope, 0.0))
            continue
        duals, worth = master.prices()
        if least - worth <= effort.enough * abs(least) or (not fresh and asked is duals):
            break
        # Without a new route the mix priced nothing: ask at the master's own prices before giving up.
        asked = best.mixed(duals, effort.smoothing) if fresh else duals
    master.prices()
    return best, least


def asked_beyond(searching: Search, routes: list[Route]) -> np.ndarray:
    """Spot instances that routes hold together, less those that are there, shape (w, markets)."""
    place = {market: m for m, market in enumerate(searching.markets)}
    beyond = -searching.available.astype(float)
    for route in routes:
        for i, m, spot in spots(route, place):
            beyond[i, m] += spot
    return beyond


def rounded(master: Master) -> list[Route]:
    """Whole routes from the last linear master: what it takes the most of, as far as it fits; who is left plans on what is left."""
    searching, problem = master.searching, master.searching.problem
    stock, mixed = Stock(searching), master.mixed()
    found: dict[int, Route] = {}
    left = []
    for j in sorted(range(len(mixed)), key=lambda j: (-round(mixed[j][0], 6), -problem.jobs[j].priority)):
        job, route = problem.jobs[j], mixed[j][1]
        if route.capped_usd <= stock.most_usd(job) + 1e-9 and stock.holds(route):
            found[j] = route
            stock.take(job, route)
        else:
            left.append(j)
    for j in left:
        found[j] = searching.within(j, stock.counts, stock.most_usd(problem.jobs[j])).route
        stock.take(problem.jobs[j], found[j])
    return [found[j] for j in range(len(mixed))]


def priced_all(searching: Search, prices: Prices) -> tuple[float, list[Route]]:
    """The bound at some prices, and the route each job would take at them."""
    bound, routes = worth_of_limits(searching, prices), []
    for j in range(len(searching.problem.jobs)):
        usd, cap = usd_of(searching, prices, j)
        found = searching.priced(j, prices.toll, usd)
        bound += found.bound + cap
        routes.append(found.route)
    return bound, routes


def bound_at(searching: Search, prices: Prices) -> float:
    """The bound of `priced_all` alone."""
    bound = worth_of_limits(searching, prices)
    for j in range(len(searching.problem.jobs)):
        usd, cap = usd_of(searching, prices, j)
        bound += searching.bound(j, prices.toll, usd) + cap
    return bound


def worth_of_limits(searching: Search, prices: Prices) -> float:
    """lam available + beta money left of the teams."""
    teams = searching.problem.teams
    money = sum(
        float(price) * teams[name].left_usd for name, price in zip(sorted(teams), prices.team, strict=True)
    )
    return float((prices.toll * searching.available).sum() + money)


def usd_of(searching: Search, prices: Prices, j: int) -> tuple[float, float]:
    """What a USD paid by job ``j`` counts at the prices, and what its own cap is worth."""
    problem = searching.problem
    job, own = problem.jobs[j], float(prices.own[j])
    team = float(prices.team[sorted(problem.teams).index(job.team)]) if job.team is not None else 0.0
    return job.priority + own + team, own * job.left_usd if own else 0.0


def _silent(_: str) -> None:
    return None


# ---
# The restricted master of the price decomposition: which of the routes found so far to mix or to take (Dantzig-Wolfe; ours).
#
#     max  sum_c u_c x_c
#     s.t. sum_{c of j} x_c = 1 for every job; sum_c x_c spot_c(i, m) <= available(i, m); sum_c x_c paid_c <= money left
#
# with u_c the weighted utility of a route. Its linear form gives prices, its integer form a plan. Both go to HiGHS as arrays
# through scipy: a Pyomo model of some thousand columns takes longer to build than to solve, and this one is solved a dozen times.

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
