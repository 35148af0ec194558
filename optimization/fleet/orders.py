"""Planning one by one: each job in turn plans on what those before it have left; and each alone, blind to the others (ours).

What a route leaves for others are spot counts and money of a joint program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import numpy as np

from optimization.fleet.problem import JointJob, JointPlan, JointProblem, Route
from optimization.fleet.search import Search
from optimization.job.definition import rates
from optimization.window.plan import PlanStatus


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
