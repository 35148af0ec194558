"""Horizon programs, their plans, and outcomes (M2.3, M3.1-M3.4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, Literal, TypeAlias

import numpy as np

from slackwater.optimization.job.definition import TOLERANCE, Job, check_job, rates
from slackwater.optimization.job.definition import Allocation as Allocation
from slackwater.optimization.kernels.rules import usable_spot
from slackwater.optimization.market.window import MarketWindow
from slackwater.warehouse.errors import JobError, MarketError


class EndRule(StrEnum):
    """Rule for the value of the state at the end of the window (M3.3)."""

    TARGET = "target"
    ON_DEMAND_TO_GO = "on_demand_to_go"
    EXPECTED_TO_GO = "expected_to_go"


class PlanStatus(StrEnum):
    """Result status of a solve (M3.4); the exact search that plans gives the first two only."""

    OPTIMAL = "optimal"
    TIME_LIMIT = "time_limit_with_incumbent"
    NO_INCUMBENT = "time_limit_without_incumbent"
    INFEASIBLE = "infeasible"
    ERROR = "solver_error"


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


def sizes(job: Job) -> np.ndarray:
    """Return the allowed numbers of instances in a slot, ascending: 0 and n_min..n_max (M2.3)."""
    return np.concatenate([[0], np.arange(job.n_min, job.n_max + 1)]).astype(np.int64)


def cheap_spot(window: MarketWindow) -> np.ndarray:
    """Return the spot instances per slot that are cheaper than on-demand, shape (slots,) (M3.2)."""
    return np.asarray(usable_spot(window.available, window.price, window.on_demand_usd)).astype(np.int64)


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
