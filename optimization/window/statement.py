"""What the Pyomo model and its exact twin share: sizes, slot costs, the target, and the worth of a sequence of sizes (M3).

A piecewise linear function is given as concave pieces, so that only the choice of a piece needs a binary (M3.3c).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimization.job.definition import Job
from optimization.job.progress import TOLERANCE, finished
from optimization.job.termination import check_job, on_demand_to_go
from optimization.job.throughput import rates
from optimization.kernels.rules import slot_cost, spot_held
from optimization.market.window import MarketWindow
from optimization.window.plan import VALUE_ROUNDING, Allocation, EndRule, ExpectedToGo, HorizonProblem
from warehouse.errors import JobError, MarketError


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What a sequence of sizes is worth in a `HorizonProblem`, by the arithmetic of M2.4 and M3.3.

    ``objective`` is as in `Plan`: W - cost for on-demand to go, the cost for target. ``end_progress`` is capped at the
    workload, and for target at the target.
    """

    allocations: tuple[Allocation, ...]
    cost_usd: float
    end_progress: float
    objective: float


def sizes(job: Job) -> np.ndarray:
    """The numbers of instances a slot may hold, ascending: 0 and n_min..n_max (M2.3)."""
    return np.concatenate([[0], np.arange(job.n_min, job.n_max + 1)]).astype(np.int64)


def cheap_spot(window: MarketWindow) -> np.ndarray:
    """Spot instances worth taking per slot, shape (slots,): those that cost less than on-demand (M3.2)."""
    return np.where(window.price < window.on_demand_usd, window.available, 0).astype(np.int64)


def split(window: MarketWindow, i: int, n: int) -> Allocation:
    """The cheapest allocation of ``n`` instances in slot ``i`` of a window: spot first (M3.2)."""
    held = spot_held(n, int(window.available[i]), float(window.price[i]), window.on_demand_usd)
    return Allocation(n - held, held)


def slot_usd(window: MarketWindow, i: int, allocation: Allocation) -> float:
    """USD that an allocation costs in slot ``i`` of a window (M2.4)."""
    price = float(window.price[i])
    return slot_cost(allocation.total, allocation.spot, price, window.on_demand_usd) * window.slot_hours


def slot_costs(job: Job, window: MarketWindow) -> np.ndarray:
    """USD for one slot on each size, cheapest split, shape (slots, sizes) (M2.4, M3.2)."""
    held = sizes(job).tolist()
    return np.array([[slot_usd(window, i, split(window, i, n)) for n in held] for i in range(len(window))])


def slot_gains(job: Job, slot_hours: float) -> np.ndarray:
    """Work units in one slot on each size at full efficiency, H(n) Delta, shape (sizes,) (M2.4)."""
    hourly: np.ndarray = rates(job.throughput, job.n_max)[sizes(job)]
    return hourly * slot_hours


def target(problem: HorizonProblem) -> float:
    """Uniform progress at the window's end: Zexp(t + w) = L min(1, (t + w) / d) (M3.3a)."""
    job = problem.job
    return job.workload * min(1.0, (problem.slot + len(problem.window)) / job.deadline_slots)


def work_tolerance(job: Job) -> float:
    """Work units within which two amounts of progress count as equal (M2.4)."""
    return job.workload * TOLERANCE


def nothing_to_do(problem: HorizonProblem) -> bool:
    """True if the job is finished, or under the target rule the target is reached, before the window begins."""
    goal = target(problem) if problem.end_rule is EndRule.TARGET else problem.job.workload
    return problem.done >= goal - work_tolerance(problem.job)


def worth(problem: HorizonProblem, chosen: Sequence[int]) -> Worth:
    """Walk the slots with ``chosen`` instances each, as M2.4 says; nothing is held or paid after the finish.

    Under the target rule nothing is held once the target is reached, if the sizes say so; that is for the solver to choose.
    """
    job, window = problem.job, problem.window
    gain = rates(job.throughput, job.n_max) * window.slot_hours
    done, previous, cost = problem.done, problem.n_previous, 0.0
    held: list[Allocation] = []
    for i, wish in enumerate(chosen):
        n = 0 if finished(done, job.workload) else int(wish)
        allocation = split(window, i, n)
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
    """W(z, n_end, t + w) in USD: the on-demand still to go, or the table of expected to go (M3.3b, c)."""
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
    if finished(done, job.workload):
        return job.completion_value(end)
    return problem.expected.at(done, int(np.searchsorted(sizes(job), n_end)))


def validate_problem(problem: HorizonProblem) -> None:
    """Raise on the first thing that makes a horizon program meaningless.

    `MarketError` for an empty or malformed window, `JobError` for a window past the deadline (M2.6 ends every job there), a
    state that cannot be, an end rule without its table, or spot within reach of a job that cannot resume (M2.7).
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
    """The part of `validate_problem` that looks at no single slot."""
    job, window, w = problem.job, problem.window, len(problem.window)
    if w == 0 or window.available.shape != (w,):
        raise MarketError(
            f"job {job.name!r}: a window of {w} prices and {window.available.shape} counts",
            expected="at least one slot, one price and one count each",
        )
    if not (0 < window.on_demand_usd < math.inf and 0 < window.slot_hours < math.inf):
        raise MarketError(
            f"job {job.name!r}: on-demand at {window.on_demand_usd} USD, slots of {window.slot_hours} h",
            expected="both above 0 and finite",
        )
    if problem.slot < 0 or problem.slot + w > job.deadline_slots:
        raise JobError(
            f"job {job.name!r}: a window of slots {problem.slot}..{problem.slot + w - 1}",
            expected=f"slots within 0..{job.deadline_slots - 1}",
            remedy="cut the window at the deadline",
        )
    if not math.isfinite(problem.done) or not problem.n_previous >= 0:
        raise JobError(
            f"job {job.name!r}: progress {problem.done} and {problem.n_previous} instances before",
            expected="finite progress, instances >= 0",
        )
    if problem.end_rule is EndRule.EXPECTED_TO_GO:
        validate_expected(problem)


def validate_expected(problem: HorizonProblem) -> None:
    """Raise `JobError` unless the table of M3.3 (c) is there, has a column for each size, and promises no more than the value."""
    job, table = problem.job, problem.expected
    if table is None:
        raise JobError(
            f"job {job.name!r}: a window that ends on expected to go, without its table",
            expected="HorizonProblem(expected=ExpectedToGo(...))",
            remedy="give the table, or end on on_demand_to_go",
        )
    if table.value_usd.shape[1] != len(sizes(job)):
        raise JobError(
            f"job {job.name!r}: expected to go for {table.value_usd.shape[1]} sizes",
            expected=f"{len(sizes(job))} columns: 0 and {job.n_min}..{job.n_max}",
        )
    if table.value_usd[-1].max() > job.value * (1.0 + VALUE_ROUNDING):
        raise JobError(
            f"job {job.name!r}: expected to go of {table.value_usd[-1].max()} USD",
            expected=f"at most the job's value of {job.value} USD, which a finished job is worth",
        )


Point = tuple[float, float]

#: Rise of slope, as a share of the steepest, that still counts as rounding of a straight line.
STRAIGHT = 1e-12


def concave_pieces(table: ExpectedToGo, column: int, *, low: float, high: float) -> list[list[Point]]:
    """One column of a table over progress ``low``..``high`` (work units), as its maximal concave pieces.

    Neighbouring pieces share a point; points are (work, USD), ascending; points inside a straight line are left out. A range of
    no width gives one piece of one point.
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
