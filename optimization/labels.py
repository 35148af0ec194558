"""The exact twin of the Pyomo model: label-setting dynamic programming, no solver (M3.2)."""

from __future__ import annotations

import numpy as np

from optimization.horizon import (
    Worth,
    sizes,
    slot_costs,
    slot_gains,
    target,
    validate_problem,
    work_tolerance,
    worth,
)
from optimization.label_bounds import Terms, least_loss
from optimization.label_setting import furthest, optimistic_at, search
from optimization.plan import EndRule, HorizonProblem, Plan, PlanStatus
from optimization.progress import needed

#: Labels after which a search gives up its proof and says so in the plan's status (28 bytes each).
LABEL_LIMIT = 20_000_000


def solve_window(problem: HorizonProblem) -> Plan:
    """The optimal plan of a `HorizonProblem`, without a solver and without a clock (``seconds`` is 0).

    Status OPTIMAL, bound = objective, gap 0. Should the program need more than `LABEL_LIMIT` labels the best plan found comes
    back as TIME_LIMIT with the bound that is proved. Raises `JobError` or `MarketError` for a program that makes no sense
    (`validate_problem`).
    """
    validate_problem(problem)
    window, job = problem.window, problem.job
    cost, choice = slot_costs(job, window), sizes(job)
    if problem.end_rule is EndRule.TARGET:
        reach = terms_of(problem, line=np.inf, finish_usd=0.0)
        most, start = furthest(reach, len(window))
        terms = reach._replace(line=min(most, target(problem)) - work_tolerance(job))
    else:
        start = np.zeros(len(window), dtype=np.int64)
        terms = terms_of(problem, line=needed(job.workload), finish_usd=job.value)
    if problem.done >= terms.line:
        # Finished, at the target, or no size makes any progress (mu_up = 0).
        return _plan(worth(problem, [0] * len(window)), 0.0)
    curves = least_loss(terms, cost)
    chosen, best, proved = search(terms, curves, cost, start, LABEL_LIMIT)
    found = worth(problem, choice[chosen].tolist())
    slack = 0.0 if proved else max(0.0, optimistic_at(terms, curves, 0, terms.done) - best)
    return _plan(found, slack if terms.to_go else -slack, optimal=proved)


def terms_of(problem: HorizonProblem, *, line: float, finish_usd: float) -> Terms:
    """The program as the arrays the kernels read."""
    job, window = problem.job, problem.window
    return Terms(
        sizes=sizes(job),
        gain=slot_gains(job, window.slot_hours),
        mu_up=float(job.mu_up),
        mu_down=float(job.mu_down),
        done=float(problem.done),
        n_previous=int(problem.n_previous),
        line=float(line),
        finish_usd=float(finish_usd),
        to_go=problem.end_rule is EndRule.ON_DEMAND_TO_GO,
        end=problem.slot + len(window),
        deadline=job.deadline_slots,
        late_limit=float(job.late_limit),
        on_demand_slot_usd=float(window.on_demand_usd * window.slot_hours),
    )


def _plan(found: Worth, slack: float, *, optimal: bool = True) -> Plan:
    return Plan(
        allocations=found.allocations,
        status=PlanStatus.OPTIMAL if optimal else PlanStatus.TIME_LIMIT,
        objective=found.objective,
        bound=found.objective + slack,
        gap=0.0 if optimal else abs(slack) / max(abs(found.objective), abs(slack), 1e-300),
        seconds=0.0,
        cost_usd=found.cost_usd,
        end_progress=found.end_progress,
    )
