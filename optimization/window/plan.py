"""Plans, outcomes, horizon problems, and code shared by the Pyomo model and its exact twin (M2.3, M3.1-M3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, Literal, TypeAlias

import numpy as np

from slackwater.optimization.job.definition import (
    TOLERANCE,
    Job,
    check_job,
    is_finished,
    on_demand_to_go,
    rates,
)
from slackwater.optimization.job.definition import Allocation as Allocation
from slackwater.optimization.kernels.rules import slot_cost, spot_held, usable_spot
from slackwater.optimization.market.window import MarketWindow
from slackwater.warehouse.errors import JobError, MarketError


class EndRule(StrEnum):
    """Rule for the value of the state at the end of the window (M3.3)."""

    TARGET = "target"
    ON_DEMAND_TO_GO = "on_demand_to_go"
    EXPECTED_TO_GO = "expected_to_go"


class PlanStatus(StrEnum):
    """Result status of a solve (M3.4).

    ``DIFFERS``: the solver's plan has status optimal but the exact twin finds a different optimum;
    the plan is the better of the two.
    """

    OPTIMAL = "optimal"
    TIME_LIMIT = "time_limit_with_incumbent"
    NO_INCUMBENT = "time_limit_without_incumbent"
    INFEASIBLE = "infeasible"
    ERROR = "solver_error"
    DIFFERS = "solver_differs_from_twin"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpectedToGo:
    """Table W(z, n_end) of M3.3 (c): expected value of a job from the end of a window on, minus its future cost (ours).

    ``work`` (k,) is strictly ascending progress in work units. ``value_usd`` (k, sizes) is the value in USD
    by the size in the window's last slot, a column for each of `slackwater.optimization.window.plan.sizes` (0
    and n_min..n_max). W is linear in z between points and constant beyond the ends; the value of a finished
    job is V(its finish slot), whatever the table contains.

    Values never fall with work: a fall, such as by rounding, is raised to the running maximum. The arrays are copied
    and made read-only.
    """

    work: np.ndarray
    value_usd: np.ndarray
    _content: tuple[object, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # A fixed memory order: numba compiles a second version for the other order.
        work, value = np.array(self.work, dtype=float), np.array(self.value_usd, dtype=float, order="C")
        lifted = np.maximum.accumulate(value, axis=0)
        work.flags.writeable = lifted.flags.writeable = False
        object.__setattr__(self, "work", work)
        object.__setattr__(self, "value_usd", lifted)
        # Computed once: many programs share a table, and bytes objects cache their hash.
        object.__setattr__(self, "_content", (lifted.shape, work.tobytes(), lifted.tobytes()))

    def at(self, done: float, column: int) -> float:
        """Return W in USD at ``done`` work units for a column."""
        return float(np.interp(done, self.work, self.value_usd[:, column]))

    def content(self) -> tuple[object, ...]:
        """Return a hashable key that is equal for equal tables."""
        return self._content


def spot_alone(spot: int, n_min: int) -> Allocation:
    """Return the allocation where nothing is sold on demand: the spot instances, or none if fewer than ``n_min`` (M2.3).

    >>> spot_alone(3, 2), spot_alone(3, 4)
    (Allocation(on_demand=0, spot=3), Allocation(on_demand=0, spot=0))
    """
    return Allocation(0, spot if spot >= n_min else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonProblem:
    """A program of M3.1: the job at ``slot`` with ``done`` work and ``n_previous`` instances, and a window of w market slots.

    The window must end at or before the deadline: the caller cuts it to ``deadline_slots - slot`` (M2.6 ends
    every job there). ``expected`` is the table required by `EndRule.EXPECTED_TO_GO`; the other rules ignore
    it. ``done`` may be negative: a slot with an efficiency below 0 makes negative progress.
    """

    job: Job
    slot: int
    done: float
    n_previous: int
    window: MarketWindow
    end_rule: EndRule
    expected: ExpectedToGo | None = None

    def content(self) -> tuple[object, ...]:
        """Return a hashable key of all that the plan depends on; ``observed`` is in the counts, 0 in gaps."""
        window, reads_table = self.window, self.end_rule is EndRule.EXPECTED_TO_GO
        return (
            self.job,
            self.slot,
            self.done,
            self.n_previous,
            self.end_rule,
            window.price.tobytes(),
            window.available.tobytes(),
            window.on_demand_usd,
            window.slot_hours,
            self.expected.content() if reads_table and self.expected is not None else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The solution of a `HorizonProblem`.

    For `EndRule.ON_DEMAND_TO_GO` and `EndRule.EXPECTED_TO_GO`, ``objective`` is W - cost in USD
    (maximised). For `EndRule.TARGET` it is the cost in USD of reaching ``end_progress`` (capped at
    the target): maximal progress first, then minimal cost. ``bound`` is the proven bound on the
    objective, ``gap`` the relative distance between the two, ``seconds`` the solve time.
    """

    allocations: tuple[Allocation, ...]
    status: PlanStatus
    objective: float
    bound: float
    gap: float
    seconds: float
    cost_usd: float
    end_progress: float


#: Models in which a run is simulated.
Model: TypeAlias = Literal["slot", "world"]
SLOT: Final = "slot"
WORLD: Final = "world"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a policy on a job (M2.4-M2.6).

    ``allocations`` covers the slots up to the finish or the deadline; ``cost_usd`` is their cost.
    ``finished_slot`` is the number of slots used if the job finished by the deadline, else None.
    ``termination_cost_usd`` is the on-demand cost after the deadline (M2.6), and ``finish_slots``
    the total number of slots used, None if the job was given up. ``utility_usd`` = ``value_usd`` -
    ``cost_usd`` - ``termination_cost_usd``.

    ``places`` is the market of each slot of ``allocations`` (None without instances); it is None as
    a whole for a policy that knows one market. ``moves`` is the number of moves, which cost
    ``moving_usd``, part of ``cost_usd``. ``ended_in`` is the market of the ending after d; the cost
    of the move there is part of ``termination_cost_usd``.
    """

    model: ClassVar[Model] = SLOT  # Model in which the run was simulated: "slot" (M2.4) or "world" (M12)

    policy: str
    job: str
    allocations: tuple[Allocation, ...]
    progress: float
    cost_usd: float
    termination_cost_usd: float
    finished_slot: int | None
    finish_slots: int | None
    value_usd: float
    utility_usd: float
    places: tuple[int | None, ...] | None = None
    moves: int = 0
    moving_usd: float = 0.0
    ended_in: int | None = None

    @property
    def total_cost_usd(self) -> float:
        """Total cost in USD, including the cost after the deadline."""
        return self.cost_usd + self.termination_cost_usd

    def finish_seconds(self, slot_seconds: float) -> float | None:
        """Return the seconds from the start to the finish, None if the job was given up."""
        return None if self.finish_slots is None else self.finish_slots * slot_seconds

    @property
    def on_time(self) -> bool:
        """Whether the job finished by the deadline."""
        return self.finished_slot is not None

    @property
    def spot_share(self) -> float:
        """Spot share of the instance-slots up to the deadline; 0 if there were none."""
        total = sum(a.total for a in self.allocations)
        return sum(a.spot for a in self.allocations) / total if total else 0.0


# ---
# Shared by the Pyomo model and its exact twin: sizes, slot costs, the target, and the value of a
# sequence of sizes (M3).
#
# Piecewise linear functions are given as concave pieces, so that only the choice of a piece needs a
# binary variable (M3.3c).


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Value of a sequence of sizes in a `HorizonProblem`, computed as in M2.4 and M3.3.

    ``objective`` is as in `Plan`: the cost for the target rule, W - cost for the other rules.
    ``end_progress`` is capped at the workload, and for the target rule at the target.
    """

    allocations: tuple[Allocation, ...]
    cost_usd: float
    end_progress: float
    objective: float


def sizes(job: Job) -> np.ndarray:
    """Return the allowed numbers of instances in a slot, ascending: 0 and n_min..n_max (M2.3)."""
    return np.concatenate([[0], np.arange(job.n_min, job.n_max + 1)]).astype(np.int64)


def cheap_spot(window: MarketWindow) -> np.ndarray:
    """Return the spot instances per slot that are cheaper than on-demand, shape (slots,) (M3.2)."""
    return np.asarray(usable_spot(window.available, window.price, window.on_demand_usd)).astype(np.int64)


def cheapest_split(window: MarketWindow, i: int, n: int) -> Allocation:
    """Return the cheapest allocation of ``n`` instances in slot ``i`` of a window: spot first (M3.2)."""
    held = spot_held(n, int(window.available[i]), float(window.price[i]), window.on_demand_usd)
    return Allocation(n - held, held)


def slot_usd(window: MarketWindow, i: int, allocation: Allocation) -> float:
    """Return the cost in USD of an allocation in slot ``i`` of a window (M2.4)."""
    price = float(window.price[i])
    usd = slot_cost(allocation.total, allocation.spot, price, window.on_demand_usd) * window.slot_hours
    return float(usd)


def slot_costs(job: Job, window: MarketWindow) -> np.ndarray:
    """Return the cost in USD of each size in each slot with the cheapest split, shape (slots, sizes) (M2.4, M3.2)."""
    held = sizes(job).tolist()
    return np.array(
        [[slot_usd(window, i, cheapest_split(window, i, n)) for n in held] for i in range(len(window))]
    )


def slot_gains(job: Job, slot_hours: float) -> np.ndarray:
    """Return the work units per slot of each size at full efficiency, H(n) Delta, shape (sizes,) (M2.4)."""
    hourly: np.ndarray = rates(job.throughput, job.n_max)[sizes(job)]
    return hourly * slot_hours


def target(problem: HorizonProblem) -> float:
    """Return the target, uniform progress at the window's end: Zexp(t + w) = L min(1, (t + w) / d) (M3.3a)."""
    job = problem.job
    return job.workload * min(1.0, (problem.slot + len(problem.window)) / job.deadline_slots)


def work_tolerance(job: Job) -> float:
    """Return the work units within which two amounts of progress count as equal (M2.4)."""
    return job.workload * TOLERANCE


def nothing_to_do(problem: HorizonProblem) -> bool:
    """Return whether the job is finished, or the target reached under the target rule, before the window begins."""
    goal = target(problem) if problem.end_rule is EndRule.TARGET else problem.job.workload
    return problem.done >= goal - work_tolerance(problem.job)


def worth(problem: HorizonProblem, chosen: Sequence[int]) -> Worth:
    """Simulate the slots with ``chosen`` instances each by M2.4; no instances run and nothing is paid after the finish.

    Under the target rule the sizes are followed after the target is reached too; it is the solver
    that sets them to 0.
    """
    job, window = problem.job, problem.window
    gain = rates(job.throughput, job.n_max) * window.slot_hours
    done, previous, cost = problem.done, problem.n_previous, 0.0
    held: list[Allocation] = []
    for i, wish in enumerate(chosen):
        n = 0 if is_finished(done, job.workload) else int(wish)
        allocation = cheapest_split(window, i, n)
        cost += slot_usd(window, i, allocation)
        done += job.efficiency(n, previous) * float(gain[n])
        previous = n
        held.append(allocation)
    done = min(done, job.workload)
    if problem.end_rule is EndRule.TARGET:
        return Worth(
            allocations=tuple(held), cost_usd=cost, end_progress=min(done, target(problem)), objective=cost
        )
    end = end_worth(problem, done, previous)
    return Worth(allocations=tuple(held), cost_usd=cost, end_progress=done, objective=end - cost)


def end_worth(problem: HorizonProblem, done: float, n_end: int) -> float:
    """Return W(z, n_end, t + w) in USD: on-demand to go, or the table of expected to go (M3.3b, c)."""
    job, window, end = problem.job, problem.window, problem.slot + len(problem.window)
    if problem.expected is None or problem.end_rule is not EndRule.EXPECTED_TO_GO:
        to_go = on_demand_to_go(
            job,
            done=done,
            n_previous=n_end,
            slot=end,
            on_demand_usd=window.on_demand_usd,
            slot_hours=window.slot_hours,
        )
        return to_go.value_usd
    if is_finished(done, job.workload):
        return job.completion_value(end)
    return problem.expected.at(done, int(np.searchsorted(sizes(job), n_end)))


def validate_problem(problem: HorizonProblem) -> None:
    """Raise an error on the first invalid part of a horizon program.

    `MarketError` for an empty or malformed window; `JobError` for a window past the deadline (M2.6
    ends every job there), or usable spot instances for a job that cannot resume (M2.7).
    """
    validate_state(problem)
    job, window = problem.job, problem.window
    numbers = np.isfinite(window.price) & (window.price >= 0) & (window.available >= 0)
    if not numbers.all():
        slot = int(np.argmin(numbers))
        raise MarketError(
            f"job {job.name!r}: slot {slot} of the window is priced {window.price[slot]}, count {window.available[slot]}",
            expected="finite prices and counts, both >= 0",
            remedy="build it with market_window(...)",
        )
    check_job(job, uses_spot=bool((cheap_spot(window) >= 1).any()))


def validate_state(problem: HorizonProblem) -> None:
    """Check the parts of `validate_problem` that do not depend on individual slots."""
    job, window, w = problem.job, problem.window, len(problem.window)
    if w == 0 or window.available.shape != (w,):
        raise MarketError(
            f"job {job.name!r}: a window of {w} prices and {window.available.shape} counts",
            expected="at least one slot, one price and one count each",
        )
    if problem.slot < 0 or problem.slot + w > job.deadline_slots:
        raise JobError(
            f"job {job.name!r}: a window of slots {problem.slot}..{problem.slot + w - 1}",
            expected=f"slots within 0..{job.deadline_slots - 1}",
            remedy="cut the window at the deadline",
        )


Point = tuple[float, float]

#: Increase in slope, relative to the steepest slope, within which points count as a straight line.
STRAIGHT = 1e-12


def concave_pieces(table: ExpectedToGo, column: int, *, low: float, high: float) -> list[list[Point]]:
    """Split a column of a table over progress ``low``..``high`` (work units) into its maximal concave pieces.

    Points are (work, USD), ascending. Adjacent pieces share a point; points inside a straight line
    are left out. A range without width has a single piece with a single point.
    """
    inner = (table.work > low) & (table.work < high)
    work = np.concatenate([[low], table.work[inner], [high] if high > low else []])
    usd = np.interp(work, table.work, table.value_usd[:, column])
    if work.size == 1:
        return [[(float(work[0]), float(usd[0]))]]
    slope = np.diff(usd) / np.diff(work)
    slack = STRAIGHT * float(np.max(np.abs(slope)))
    pieces: list[list[Point]] = [[(float(work[0]), float(usd[0]))]]
    for i in range(1, work.size):
        point = (float(work[i]), float(usd[i]))
        if i < slope.size and abs(slope[i] - slope[i - 1]) <= slack:
            continue
        pieces[-1].append(point)
        if i < slope.size and slope[i] > slope[i - 1]:
            pieces.append([point])
    return pieces
