"""Many jobs on one market: the statement of a joint horizon program and of its answer (M3.6; ours).

Jobs compete for the same spot counts. In a slot a job runs in one market, where it has its own throughput; leaving a running
market for another one costs a restart (mu of a start, less what the move itself takes). On-demand is there for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from optimization.job.definition import Job
from optimization.kernels.rules import after_moving
from optimization.market.window import MarketWindow
from optimization.window.plan import Allocation, PlanStatus
from warehouse.errors import JobError, MarketError

#: What two runs of one job must agree in: the work is the same work wherever it is done.
SAME_EVERYWHERE = ("workload", "deadline_slots", "value", "gamma", "resumable")


@dataclass(frozen=True, slots=True, kw_only=True)
class JointJob:
    """A job among others: the markets it may run in, where it stands, what it may spend.

    ``runs`` gives for every market allowed the `Job` with its throughput and sizes there; all have one workload (in work units,
    whatever the market), deadline, value and decay. ``slot`` is the job's own slot in which the window begins (M2.1).
    ``market_previous`` is where the ``n_previous`` instances of the slot before were, None if there were none. ``priority``
    weighs the job's utility. ``cap_usd`` bounds ``spent_usd`` plus what the plan pays in the window, and where the window
    reaches the deadline its ending on demand too (ours): before that the rest is planned again and may yet be had on spot, from
    then on it is not. So no cap is broken by a job that is planned slot after slot, and none makes a job give up early. Moving
    takes ``move_hours`` beside the restart and costs ``move_usd``; a job that holds nothing for a slot has had the time to move
    (ours).
    """

    name: str
    runs: Mapping[str, Job]
    slot: int = 0
    done: float = 0.0
    n_previous: int = 0
    market_previous: str | None = None
    priority: float = 1.0
    team: str | None = None
    cap_usd: float = math.inf
    spent_usd: float = 0.0
    move_hours: float = 0.0
    move_usd: float = 0.0

    @property
    def job(self) -> Job:
        """Any one of its runs: for what is the same everywhere."""
        return self.runs[min(self.runs)]

    @property
    def left_usd(self) -> float:
        """What it may still spend."""
        return max(0.0, self.cap_usd - self.spent_usd)

    def efficiency(self, market: str, n: int, before: tuple[str | None, int], slot_hours: float) -> float:
        """Share of a slot that makes progress on ``n`` instances of ``market`` after ``before`` = (market, instances) (M2.4)."""
        where, n_before = before
        run = self.runs[market]
        if n_before == 0 or where == market:
            return run.efficiency(n, n_before)
        return after_moving(run.restart, n, self.move_hours / slot_hours)

    def moves(self, market: str, before: tuple[str | None, int]) -> bool:
        """True if running in ``market`` after ``before`` is a move."""
        return before[1] > 0 and before[0] != market


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A budget that jobs share: ``cap_usd`` in all, of which ``spent_usd`` is gone."""

    cap_usd: float
    spent_usd: float = 0.0

    @property
    def left_usd(self) -> float:
        """What the team may still spend."""
        return max(0.0, self.cap_usd - self.spent_usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointProblem:
    """The program: maximise sum_j priority_j (V_j - what j pays) over the routes of all jobs.

    ``markets`` have windows of one length w and one slot length. Every job has the end rule M3.3 (b), with the ending in the best
    of its markets; a job whose deadline lies inside the window has a shorter one, cut there (M2.6).
    """

    markets: Mapping[str, MarketWindow]
    jobs: tuple[JointJob, ...]
    teams: Mapping[str, Team] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """w."""
        return len(next(iter(self.markets.values())))

    @property
    def slot_hours(self) -> float:
        """Delta."""
        return next(iter(self.markets.values())).slot_hours

    def window(self, job: JointJob) -> int:
        """Slots of the window that lie before the deadline of ``job``."""
        return min(self.slots, job.job.deadline_slots - job.slot)

    def reaches_deadline(self, job: JointJob) -> bool:
        """True if what follows the window is the termination of M2.6."""
        return self.slots >= job.job.deadline_slots - job.slot


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job is in one slot and what it holds there; market None holds nothing."""

    market: str | None
    allocation: Allocation

    @property
    def held(self) -> tuple[str | None, int]:
        """(market, instances)."""
        return self.market, self.allocation.total


#: A slot in which nothing is held.
NOWHERE = Place(None, Allocation(0, 0))


@dataclass(frozen=True, slots=True)
class Ending:
    """What follows the window: ``n`` on-demand instances in ``market`` for ``slots`` slots; n = 0: finished, or given up."""

    market: str | None
    n: int
    slots: int


#: Nothing follows: the job is finished, or given up.
NO_ENDING = Ending(None, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One job's part of a plan: where it is in each slot of its window, how it ends, and what that comes to.

    ``paid_usd`` is for the window (moves included), ``ending_usd`` for what follows; ``utility_usd`` = ``value_usd`` minus both.
    ``capped_usd`` is what caps count of them (`JointJob.cap_usd`).
    """

    job: str
    places: tuple[Place, ...]
    ending: Ending
    paid_usd: float
    ending_usd: float
    capped_usd: float
    value_usd: float
    end_progress: float

    @property
    def spent_usd(self) -> float:
        """All it pays."""
        return self.paid_usd + self.ending_usd

    @property
    def utility_usd(self) -> float:
        """W - cost."""
        return self.value_usd - self.spent_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPlan:
    """The answer to a `JointProblem`: one route a job, in the order of its jobs.

    ``objective`` = sum of priority x utility, USD; ``bound`` is no less than that of any plan; ``gap`` their distance relative to
    the larger. ``prices`` are shadow prices of one more spot instance, USD per instance-hour at priority 1, shape (w,) by market;
    ``team_prices`` what one more USD of a team's cap is worth. Both are empty where the method gives none. ``method`` names it.
    """

    method: str
    routes: tuple[Route, ...]
    status: PlanStatus
    objective: float
    bound: float
    gap: float
    seconds: float = 0.0
    prices: Mapping[str, np.ndarray] = field(default_factory=dict)
    team_prices: Mapping[str, float] = field(default_factory=dict)


def spot_used(problem: JointProblem, routes: tuple[Route, ...]) -> dict[str, np.ndarray]:
    """Spot instances that routes hold together, by market, shape (w,)."""
    used = {market: np.zeros(problem.slots, dtype=np.int64) for market in problem.markets}
    for route in routes:
        for i, place in enumerate(route.places):
            if place.market is not None:
                used[place.market][i] += place.allocation.spot
    return used


def validate_joint(problem: JointProblem) -> None:
    """Raise `MarketError` or `JobError` on the first thing that makes a joint program meaningless."""
    if not problem.markets or not problem.jobs:
        raise MarketError(
            f"a joint program of {len(problem.jobs)} jobs and {len(problem.markets)} markets",
            expected="at least one of each",
        )
    for key, window in problem.markets.items():
        _check_market(key, window, problem)
    names = [job.name for job in problem.jobs]
    if len(set(names)) < len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise JobError(f"two jobs of the joint program are named {doubled!r}", expected="names of their own")
    for name, team in problem.teams.items():
        if not team.cap_usd >= 0 or not team.spent_usd >= 0:
            raise JobError(
                f"team {name!r}: cap {team.cap_usd}, spent {team.spent_usd} USD", expected="both >= 0"
            )
    for job in problem.jobs:
        _check_job(job, problem)


def _check_market(key: str, window: MarketWindow, problem: JointProblem) -> None:
    same = len(window) == problem.slots and window.slot_hours == problem.slot_hours
    if not same or problem.slots < 1:
        raise MarketError(
            f"market {key}: {len(window)} slots of {window.slot_hours} h",
            expected=f"{max(problem.slots, 1)} slots of {problem.slot_hours} h, as the first market has",
        )
    sound = np.isfinite(window.price) & (window.price >= 0) & (window.available >= 0)
    if not sound.all() or not 0 < window.on_demand_usd < math.inf:
        raise MarketError(
            f"market {key}: {int((~sound).sum())} slots without a price or count, on-demand {window.on_demand_usd} USD",
            expected="finite prices and counts, both >= 0",
            remedy="build it with market_window(...)",
        )


def _check_job(job: JointJob, problem: JointProblem) -> None:
    if not job.runs or not set(job.runs) <= set(problem.markets):
        unknown = sorted(set(job.runs) - set(problem.markets))
        raise JobError(
            f"job {job.name!r} may run in {', '.join(unknown) or 'no market'}",
            expected=f"markets of the program: {', '.join(sorted(problem.markets)[:4])}, ...",
        )
    first = job.job
    for key, run in job.runs.items():
        differs = [name for name in SAME_EVERYWHERE if getattr(run, name) != getattr(first, name)]
        if differs:
            raise JobError(
                f"job {job.name!r}: another {', '.join(differs)} in {key}",
                expected="the same job in all its markets",
            )
    if not 0 <= job.slot < first.deadline_slots:
        raise JobError(
            f"job {job.name!r}: the window begins in its slot {job.slot}",
            expected=f"a slot before its deadline of {first.deadline_slots}",
        )
    if not math.isfinite(job.done) or job.done >= first.workload or job.n_previous < 0:
        raise JobError(
            f"job {job.name!r}: {job.done} of {first.workload} work units done, {job.n_previous} instances before",
            expected="an unfinished job, instances >= 0",
        )
    if (job.n_previous > 0) != (job.market_previous is not None):
        raise JobError(
            f"job {job.name!r}: {job.n_previous} instances before, in {job.market_previous}",
            expected="a market exactly where instances were held",
        )
    if job.team is not None and job.team not in problem.teams:
        raise JobError(
            f"job {job.name!r} belongs to team {job.team!r}", expected=f"one of {sorted(problem.teams)}"
        )
    numbers = (job.priority, job.cap_usd, job.spent_usd, job.move_hours, job.move_usd)
    if not all(number >= 0 for number in numbers) or not 0 < job.priority < math.inf:
        raise JobError(
            f"job {job.name!r}: priority {job.priority}, cap {job.cap_usd}, spent {job.spent_usd}, moving "
            f"{job.move_hours} h and {job.move_usd} USD",
            expected="a finite priority above 0 and nothing below 0",
        )
