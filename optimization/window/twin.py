"""Exact twin of the Pyomo model: label-setting dynamic programming without a solver (M3.2)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from slackwater.optimization.job.definition import Allocation, Job, work_needed
from slackwater.optimization.kernels.labels import (
    BEST_FOUND,
    EXPECTED,
    NOTHING_TO_DO,
    TARGET,
    TO_GO,
    UNSOUND,
    HorizonProgram,
    solve,
)
from slackwater.optimization.window.plan import (
    EndRule,
    HorizonProblem,
    Plan,
    PlanStatus,
    sizes,
    slot_gains,
    target,
    validate_problem,
    validate_state,
    work_tolerance,
)

#: Largest number of labels (24 bytes each); a search that needs more returns its best plan with
#: status TIME_LIMIT.
LABEL_LIMIT = 20_000_000

_RULES = {EndRule.TARGET: TARGET, EndRule.ON_DEMAND_TO_GO: TO_GO, EndRule.EXPECTED_TO_GO: EXPECTED}
# Read-only like the arrays of a table: numba would compile a second version for writable arrays.
_NO_WORK, _NO_VALUE = np.zeros(0), np.zeros((0, 0))
_NO_WORK.flags.writeable = _NO_VALUE.flags.writeable = False


def solve_window(problem: HorizonProblem) -> Plan:
    """Return the optimal plan of a `HorizonProblem`, without a solver or a time limit (``seconds`` is 0).

    The status is OPTIMAL with bound = objective and gap 0. If the program needs more than
    `LABEL_LIMIT` labels, the result is the best plan found, with status TIME_LIMIT and the proven
    bound. Raises `JobError` or `MarketError` for an invalid program (`validate_problem`).
    """
    validate_state(problem)
    # Fixed dtypes and layout for every caller: numba compiles a version for each kind of array.
    price = np.array(problem.window.price, dtype=np.float64)
    available = np.array(problem.window.available, dtype=np.int64)
    terms = terms_of(problem)
    if not problem.job.resumable:
        validate_problem(problem)
    answer = solve(terms, price, available, LABEL_LIMIT)
    if answer.state == UNSOUND:
        validate_problem(problem)
    if answer.state == NOTHING_TO_DO:
        # Finished, at the target, or no size makes any progress (mu_up = 0).
        return _idle(problem, terms)
    proved, paid, bound = answer.state != BEST_FOUND, answer.paid, answer.bound
    if terms.rule == TARGET:
        # The worth is minus the cost under the target rule, so an upper bound on it is a lower
        # bound on the cost.
        objective, bound = paid, paid - (bound - answer.worth)
    else:
        objective = answer.worth
    return Plan(
        allocations=tuple([Allocation(on_demand, spot) for on_demand, spot in answer.held.tolist()]),
        status=PlanStatus.OPTIMAL if proved else PlanStatus.TIME_LIMIT,
        objective=objective,
        bound=objective if proved else bound,
        gap=0.0 if proved else abs(bound - objective) / max(abs(bound), abs(objective), 1e-300),
        seconds=0.0,
        cost_usd=paid,
        end_progress=min(answer.reached, _most_counted(problem, terms)),
    )


def terms_of(problem: HorizonProblem) -> HorizonProgram:
    """Return the program as the arrays and numbers that the kernels read."""
    job, window, table = problem.job, problem.window, problem.expected
    rule = _RULES[problem.end_rule]
    size, gain = _job_arrays(job, window.slot_hours)
    return HorizonProgram(
        sizes=size,
        gain=gain,
        restart=job.restart,
        value=job.worth,
        done=float(problem.done),
        n_previous=int(problem.n_previous),
        line=float(target(problem) - work_tolerance(job) if rule == TARGET else work_needed(job.workload)),
        slack=float(work_tolerance(job)),
        finish_usd=0.0 if rule == TARGET else float(job.value),
        rule=rule,
        end=problem.slot + len(window),
        on_demand_usd=float(window.on_demand_usd),
        slot_hours=float(window.slot_hours),
        work=table.work if rule == EXPECTED and table is not None else _NO_WORK,
        table_usd=table.value_usd if rule == EXPECTED and table is not None else _NO_VALUE,
    )


@lru_cache(maxsize=512)
def _job_arrays(job: Job, slot_hours: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes and the work of each in a slot; cached, since a job solves many programs."""
    return sizes(job), slot_gains(job, slot_hours)


def _most_counted(problem: HorizonProblem, terms: HorizonProgram) -> float:
    return target(problem) if terms.rule == TARGET else problem.job.workload


def _idle(problem: HorizonProblem, terms: HorizonProgram) -> Plan:
    """Return the plan without instances, for a program that needs no work in its window."""
    return Plan(
        allocations=(Allocation(0, 0),) * len(problem.window),
        status=PlanStatus.OPTIMAL,
        objective=terms.finish_usd,
        bound=terms.finish_usd,
        gap=0.0,
        seconds=0.0,
        cost_usd=0.0,
        end_progress=min(problem.done, _most_counted(problem, terms)),
    )
