"""The horizon program in Pyomo, and its solution by HiGHS (M3.1, M3.3, M3.4)."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyomo.environ as pyo
from pyomo.common.errors import PyomoException
from pyomo.contrib.solver.common.results import Results, SolutionStatus, TerminationCondition
from pyomo.contrib.solver.solvers.highs import Highs

from slackwater.optimization.job.definition import TOLERANCE, Job, Progress
from slackwater.optimization.kernels.rules import (
    after_growing,
    after_shrinking,
    least_efficiency,
    slots_needed,
)
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.window.audit import AGREEMENT, audit_plan
from slackwater.optimization.window.plan import (
    EndRule,
    HorizonProblem,
    Plan,
    PlanStatus,
    Worth,
    concave_pieces,
    nothing_to_do,
    sizes,
    slot_costs,
    slot_gains,
    validate_problem,
    worth,
)
from slackwater.optimization.window.twin import solve_window
from slackwater.warehouse.errors import JobError, SettingsError

# ---
# The horizon program of M3.1 in Pyomo, in reading order: variables, a function per constraint
# family, objectives.
#
# Sizes are numbered j = 0..J: s_0 = 0 and s_1..s_J = n_min..n_max. In slot i = 0..w-1 the job runs
# on size j for one of three reasons, each a binary: it scaled up to j, stayed at j, or scaled down
# to j. The sum of the three is the choice "n = s_j", so any throughput is a coefficient (M2.2), and
# the product of a size and its efficiency (M2.4) is linear without a big-M constant.
#
# A *ladder* of flows links two slots: a job that leaves a size upwards climbs rung by rung to a larger size,
# and descends likewise. With 7 columns per size and slot the ladder is as tight as an arc for each of the J^2
# changes n -> n', because the work of a slot depends only on the new size and the direction of the change.
#
# Measured on 20 programs of w = 5, N_max = 16 (five throughputs, gap 1e-6, a busy machine), median
# and sum of solve seconds: ladder 0.42 and 17.0, n-indexed choice with big-M constants for the
# direction 0.50 and 18.2, an arc per change 0.55 and 22.2. On four programs of w = 12 the ladder
# proved all of them optimal; both others left a program unproved after 15 s.
#
# With on-demand to go (M3.3b), stage w is the ending: the size n = s_j and the number of slots k of
# on-demand after the window. With expected to go (M3.3c), the size of the last slot selects a
# column of the table, and a binary selects the concave piece of that column that contains the
# progress. The weights of the points of a piece need no binary, because the objective is maximised.
#
# Money is in units of ``unit_usd``, work in units of the workload, so that the solver's tolerances
# have the same meaning for every job.

#: Share of the workload that counts as complete: between 1 and the threshold of `finished`, so that
#: rounding on neither side matters.
WHOLE = 1.0 - TOLERANCE / 2.0


def horizon_model(problem: HorizonProblem) -> pyo.ConcreteModel:
    """Return the program of M3.1 with the end rule of ``problem`` (M3.3).

    On-demand to go and expected to go: the objective is ``worth`` (maximise). Target: the objective
    ``progress`` (maximise) is active; `require_progress` then fixes the progress reached and
    activates ``paid`` (minimise). Objectives are in units of ``unit_usd`` or of the workload.
    """
    m = pyo.ConcreteModel(name="horizon")
    m.problem = problem
    add_data(m, problem)
    add_choice(m)
    m.one_size = pyo.Constraint(m.STAGES, rule=one_size)
    m.leaving = pyo.Constraint(m.CHANGES, m.SIZES, rule=leaving)
    m.climbing = pyo.Constraint(m.CHANGES, m.SIZES, rule=climbing)
    m.arriving_up = pyo.Constraint(m.CHANGES, m.SIZES, rule=arriving_up)
    m.descending = pyo.Constraint(m.CHANGES, m.SIZES, rule=descending)
    m.arriving_down = pyo.Constraint(m.CHANGES, m.SIZES, rule=arriving_down)
    fix_first_slot(m, problem)
    add_end(m, problem)
    return m


def add_end(m: pyo.ConcreteModel, problem: HorizonProblem) -> None:
    """Add the end rule of the problem (M3.3)."""
    if problem.end_rule is EndRule.ON_DEMAND_TO_GO:
        add_ending(m, problem)
    elif problem.end_rule is EndRule.EXPECTED_TO_GO:
        add_table(m, problem)
    else:
        add_target(m)


def require_progress(m: pyo.ConcreteModel, progress: float) -> None:
    """Set up the second solve of the target rule: least cost with at least ``progress`` work units (M3.3a)."""
    m.enough = pyo.Constraint(expr=m.done >= progress / m.workload - TOLERANCE / 2.0)
    m.progress.deactivate()
    m.paid.activate()


def chosen_sizes(m: pyo.ConcreteModel) -> list[int]:
    """Return the sizes n per slot from the values of the variables."""
    return [int(m.size[max(m.SIZES, key=lambda j: pyo.value(m.run[i, j]))]) for i in m.SLOTS]


def add_data(m: pyo.ConcreteModel, problem: HorizonProblem) -> None:
    """Add index sets and parameters: ``gain[j]`` in workloads, ``cost[i, j]`` in ``unit_usd`` for the cheapest split (M3.2)."""
    job, window = problem.job, problem.window
    to_go = problem.end_rule is EndRule.ON_DEMAND_TO_GO
    m.workload = job.workload
    m.unit_usd = max(job.value, job.n_max * len(window) * window.on_demand_usd * window.slot_hours)
    m.size = sizes(job)
    m.gain = slot_gains(job, window.slot_hours) / job.workload
    m.cost = slot_costs(job, window) / m.unit_usd
    m.top = len(m.size) - 1
    m.SLOTS = pyo.RangeSet(0, len(window) - 1)
    m.STAGES = pyo.RangeSet(0, len(window) if to_go else len(window) - 1)
    m.CHANGES = pyo.RangeSet(1, m.STAGES.last())
    m.SIZES = pyo.RangeSet(0, m.top)


def add_choice(m: pyo.ConcreteModel) -> None:
    """Add the binaries for reason and size of each stage, the ladder flows between stages, and total work and cost."""
    restart = m.problem.job.restart
    growing = [after_growing(restart, int(n)) for n in m.size]
    shrinking = [after_shrinking(restart, int(n)) for n in m.size]
    m.up = pyo.Var(m.STAGES, m.SIZES, domain=pyo.Binary)
    m.kept = pyo.Var(m.STAGES, m.SIZES, domain=pyo.Binary)
    m.down = pyo.Var(m.STAGES, m.SIZES, domain=pyo.Binary)
    m.run = pyo.Expression(m.STAGES, m.SIZES, rule=lambda m, i, j: m.up[i, j] + m.kept[i, j] + m.down[i, j])
    for name in ("leave_up", "leave_down", "climb", "descend"):
        m.add_component(name, pyo.Var(m.CHANGES, m.SIZES, bounds=(0.0, 1.0)))
    m.work = pyo.Expression(
        m.STAGES,
        rule=lambda m, i: sum(
            m.gain[j] * (growing[j] * m.up[i, j] + m.kept[i, j] + shrinking[j] * m.down[i, j])
            for j in m.SIZES
            if j
        ),
    )
    m.done = pyo.Expression(expr=m.problem.done / m.workload + sum(m.work[i] for i in m.SLOTS))
    m.spent = pyo.Expression(expr=sum(m.cost[i, j] * m.run[i, j] for i in m.SLOTS for j in m.SIZES if j))


def one_size(m: Any, i: int) -> Any:
    """sum_j run(i, j) = 1."""
    return sum(m.run[i, j] for j in m.SIZES) == 1


def leaving(m: Any, i: int, j: int) -> Any:
    """run(i-1, j) = kept(i, j) + leave_up(i, j) + leave_down(i, j)."""
    return m.run[i - 1, j] == m.kept[i, j] + m.leave_up[i, j] + m.leave_down[i, j]


def climbing(m: Any, i: int, j: int) -> Any:
    """climb(i, j) = climb(i, j-1) + leave_up(i, j) - up(i, j), with climb(i, top) = 0."""
    below = m.climb[i, j - 1] if j > 0 else 0.0
    above = m.climb[i, j] if j < m.top else 0.0
    return above == below + m.leave_up[i, j] - m.up[i, j]


def arriving_up(m: Any, i: int, j: int) -> Any:
    """up(i, j) <= climb(i, j-1): a job scales up to a size from below it."""
    return m.up[i, j] <= (m.climb[i, j - 1] if j > 0 else 0.0)


def descending(m: Any, i: int, j: int) -> Any:
    """descend(i, j) = descend(i, j+1) + leave_down(i, j) - down(i, j), with descend(i, 0) = 0."""
    above = m.descend[i, j + 1] if j < m.top else 0.0
    below = m.descend[i, j] if j > 0 else 0.0
    return below == above + m.leave_down[i, j] - m.down[i, j]


def arriving_down(m: Any, i: int, j: int) -> Any:
    """down(i, j) <= descend(i, j+1): a job scales down to a size from above it."""
    return m.down[i, j] <= (m.descend[i, j + 1] if j < m.top else 0.0)


def fix_first_slot(m: pyo.ConcreteModel, problem: HorizonProblem) -> None:
    """Fix the reasons in slot 0 that contradict ``n_previous``: each size has a single possible reason (M2.4)."""
    for j in m.SIZES:
        n = int(m.size[j])
        if n <= problem.n_previous:
            m.up[0, j].fix(0)
        if n != problem.n_previous:
            m.kept[0, j].fix(0)
        if n >= problem.n_previous:
            m.down[0, j].fix(0)


def add_target(m: pyo.ConcreteModel) -> None:
    """Add the two objectives of the target rule: maximal progress, then minimal cost (M3.3a).

    Progress is not capped at the target here: a longest path through the ladder needs no branching,
    with a cap it does.
    """
    m.progress = pyo.Objective(expr=m.done, sense=pyo.maximize)
    m.paid = pyo.Objective(expr=m.spent, sense=pyo.minimize)
    m.paid.deactivate()


def add_ending(m: pyo.ConcreteModel, problem: HorizonProblem) -> None:
    """Add the ending of M3.3b: finish in the window, run k more slots on s_j, or give up for 0.

    Finishing in the window gives V(t + w), the second choice V(t + w + k) - k s_j p_o Delta. Size 0 in stage
    w means finishing or giving up. Work: z_end + mu H(s_j) Delta + (k - 1) H(s_j) Delta >= L unless given up.
    """
    endings = possible_endings(problem)
    last = m.STAGES.last()
    m.ENDINGS = pyo.Set(initialize=list(endings), dimen=2, ordered=True)
    m.ending = pyo.Var(m.ENDINGS, domain=pyo.Binary)
    m.finish = pyo.Var(domain=pyo.Binary)
    of_size: dict[int, list[Any]] = {j: [] for j in m.SIZES}
    for j, k in m.ENDINGS:
        of_size[j].append(m.ending[j, k])
    m.one_ending = pyo.Constraint(
        pyo.RangeSet(1, m.top), rule=lambda m, j: sum(of_size[j], 0.0) == m.run[last, j]
    )
    m.finish_or_give_up = pyo.Constraint(expr=m.finish <= m.run[last, 0])
    later = sum(((k - 1) * m.gain[j] * m.ending[j, k] for j, k in m.ENDINGS), 0.0)
    ended = m.finish + sum(m.run[last, j] for j in m.SIZES if j)
    m.all_done = pyo.Constraint(expr=m.done + m.work[last] + later >= WHOLE * ended)
    value = sum((endings[j, k] / m.unit_usd * m.ending[j, k] for j, k in m.ENDINGS), 0.0)
    finished_value = problem.job.completion_value(problem.slot + len(problem.window)) / m.unit_usd
    m.worth = pyo.Objective(expr=finished_value * m.finish + value - m.spent, sense=pyo.maximize)


def add_table(m: pyo.ConcreteModel, problem: HorizonProblem) -> None:
    """Add the ending of M3.3c: finish in the window for V(t + w), or W(z_end, n_end) from a concave piece of its column.

    piece(j, p) selects column and piece, weight(j, p, b) are the shares of its points: z_end >= sum
    work(b) weight(j, p, b), or z_end >= L if no piece is selected.
    """
    if problem.expected is None:
        raise JobError("a program that ends on expected to go, without its table")
    last, low = m.STAGES.last(), least_progress(problem)
    points = {
        (j, p, b): point
        for j in m.SIZES
        for p, piece in enumerate(concave_pieces(problem.expected, j, low=low, high=most_progress(problem)))
        for b, point in enumerate(piece)
    }
    m.PIECES = pyo.Set(initialize=sorted({(j, p) for j, p, _ in points}), dimen=2, ordered=True)
    m.POINTS = pyo.Set(initialize=list(points), dimen=3, ordered=True)
    m.piece = pyo.Var(m.PIECES, domain=pyo.Binary)
    m.weight = pyo.Var(m.POINTS, bounds=(0.0, 1.0))
    of_size: dict[int, list[Any]] = {j: [] for j in m.SIZES}
    of_piece: dict[tuple[int, int], list[Any]] = {piece: [] for piece in m.PIECES}
    for j, p in m.PIECES:
        of_size[j].append(m.piece[j, p])
    for j, p, b in m.POINTS:
        of_piece[j, p].append(m.weight[j, p, b])
    m.column = pyo.Constraint(m.SIZES, rule=lambda m, j: sum(of_size[j], 0.0) <= m.run[last, j])
    m.inside = pyo.Constraint(m.PIECES, rule=lambda m, j, p: sum(of_piece[j, p]) == m.piece[j, p])
    m.finish = pyo.Expression(expr=1.0 - sum(m.piece[j, p] for j, p in m.PIECES))
    reached = sum(points[at][0] / m.workload * m.weight[at] for at in m.POINTS)
    m.all_done = pyo.Constraint(expr=m.done >= reached + WHOLE * m.finish)
    worth = sum(points[at][1] / m.unit_usd * m.weight[at] for at in m.POINTS)
    finished_value = problem.job.completion_value(problem.slot + len(problem.window)) / m.unit_usd
    m.worth = pyo.Objective(expr=finished_value * m.finish + worth - m.spent, sense=pyo.maximize)


def least_progress(problem: HorizonProblem) -> float:
    """Return a lower bound on the progress (work units) at the window's end: the least efficiency in every slot."""
    job, window = problem.job, problem.window
    gain = slot_gains(job, window.slot_hours).tolist()
    owed = min(least_efficiency(job.restart, n) * g for n, g in zip(sizes(job).tolist(), gain, strict=True))
    return float(problem.done + len(window) * owed)


def most_progress(problem: HorizonProblem) -> float:
    """Return an upper bound on the progress (work units) at the window's end: the best size at full efficiency."""
    gain = slot_gains(problem.job, problem.window.slot_hours)
    return problem.done + len(problem.window) * float(np.max(gain))


def possible_endings(problem: HorizonProblem) -> dict[tuple[int, int], float]:
    """Return V(t + w + k) - k s_j p_o Delta in USD by (j, k), for every possible k with a positive value.

    The progress at the window's end lies between `least_progress` and `most_progress`, which bounds
    k on both sides.
    """
    job, window, end = problem.job, problem.window, problem.slot + len(problem.window)
    size, gain = sizes(job), slot_gains(job, window.slot_hours)
    most_left = job.workload - least_progress(problem)
    least_left = job.workload - most_progress(problem) - TOLERANCE * job.workload
    endings = {}
    for j in range(1, len(size)):
        n, g = int(size[j]), float(gain[j])
        first = least_efficiency(job.restart, n) * g
        for k in range(slots_needed(least_left, g, g), slots_needed(most_left, first, g) + 1):
            worth = job.completion_value(end + k) - k * n * window.on_demand_usd * window.slot_hours
            if worth > 0.0:
                endings[j, k] = worth
    return endings


# ---
# Solving Pyomo models with HiGHS: every outcome of a solve is a status, never an exception (M3.4).

#: Tolerances: work is scaled to a workload of 1, so the constraint tolerance is below the tolerance
#: of "finished". The integrality tolerance is HiGHS's default: with ``mip_feasibility_tolerance``
#: 1e-9, HiGHS 1.15.1 reports plans as optimal that are not (7 of 120 programs with a flat expected
#: to go, whose optimum is to run nothing: it ran instances at a loss, "gap 0"). Search: 16 programs
#: of w = 5, N_max = 16 took 19.7 s in total without restarts and 36.8 s with them; with fewer
#: possible endings they took 6.9 s with short reliability branching and 10.1 s without.
OPTIONS: dict[str, Any] = {
    "primal_feasibility_tolerance": 1e-9,
    "mip_allow_restart": False,
    "mip_pscost_minreliable": 1,
}
#: Relative difference between the solver's objective and the recomputed objective of its plan above
#: which a solve is an error.
TRUST = 1e-6
INTERRUPTED = (
    TerminationCondition.maxTimeLimit,
    TerminationCondition.iterationLimit,
    TerminationCondition.objectiveLimit,
    TerminationCondition.interrupted,
)
# While HiGHS runs, Pyomo redirects the file descriptors of the whole process, so only one solve may
# run at a time.
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a solve: it stops after ``seconds``, within ``relative_gap`` of the bound, or after ``nodes`` nodes if given."""

    seconds: float = 10.0
    relative_gap: float = 1e-6
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not self.seconds > 0 or not self.relative_gap >= 0 or (self.nodes is not None and self.nodes < 0):
            raise SettingsError(f"solver limits {self}", expected="seconds > 0, gap >= 0, nodes >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Result of a solve (M3.4).

    ``objective`` is None without an incumbent, ``bound`` None without a proof. ``gap`` is |bound -
    objective| relative to the larger absolute value, infinite where either is missing. ``seconds``
    is the time reported by the solver. The model's variables contain the incumbent, if any.
    """

    status: PlanStatus
    objective: float | None
    bound: float | None
    gap: float = 0.0
    seconds: float = 0.0


def solve(model: Any, limits: Limits) -> Solution:
    """Solve a Pyomo model with a single active objective by HiGHS; failures are reported in the status, not raised.

    Deterministic: a single thread and the solver's fixed seed; only a time limit can make two runs differ.
    """
    options = dict(OPTIONS)
    if limits.nodes is not None:
        options["mip_max_nodes"] = limits.nodes
    try:
        with _ONE_AT_A_TIME:
            results = Highs().solve(
                model,
                load_solutions=False,
                raise_exception_on_nonoptimal_result=False,
                threads=1,
                time_limit=limits.seconds,
                rel_gap=limits.relative_gap,
                abs_gap=0.0,
                solver_options=options,
            )
            if results.incumbent_objective is not None:
                results.solution_loader.load_vars()
    except (PyomoException, RuntimeError, ValueError, ArithmeticError):
        return Solution(status=PlanStatus.ERROR, objective=None, bound=None, gap=float("inf"), seconds=0.0)
    return solution_of(results)


def solution_of(results: Results) -> Solution:
    """Convert Pyomo's results to a `Solution`."""
    objective, bound = results.incumbent_objective, results.objective_bound
    if bound is not None and abs(bound) == float("inf"):
        bound = None
    return Solution(
        status=status_of(results),
        objective=objective,
        bound=bound,
        gap=relative_gap(objective, bound),
        seconds=float(results.timing_info.highs_time),
    )


def status_of(results: Results) -> PlanStatus:
    """Map the solver's statuses to `PlanStatus`; the only place that does so."""
    incumbent = results.solution_status in (SolutionStatus.optimal, SolutionStatus.feasible)
    end = results.termination_condition
    if end is TerminationCondition.convergenceCriteriaSatisfied:
        return PlanStatus.OPTIMAL if incumbent else PlanStatus.ERROR
    if end in INTERRUPTED:
        return PlanStatus.TIME_LIMIT if incumbent else PlanStatus.NO_INCUMBENT
    if end in (TerminationCondition.provenInfeasible, TerminationCondition.locallyInfeasible):
        return PlanStatus.INFEASIBLE
    return PlanStatus.ERROR


def relative_gap(objective: float | None, bound: float | None) -> float:
    """Return |bound - objective| relative to the larger absolute value; infinite where either is missing.

    >>> relative_gap(99.0, 100.0)
    0.01
    """
    if objective is None or bound is None:
        return float("inf")
    size = max(abs(objective), abs(bound))
    return abs(bound - objective) / size if size > 0 else 0.0


def plan_problem(problem: HorizonProblem, limits: Limits | None = None) -> Plan:
    """Return the plan of a horizon program by the Pyomo model and HiGHS (M3.1, M3.4).

    The numbers of the plan are recomputed from its allocations (M3.5); if the solver's objective differs from
    them by more than `TRUST`, the status is ERROR. Without an incumbent ``allocations`` is empty and the
    numbers are NaN. Raises only `JobError` and `MarketError`, for an invalid program (`validate_problem`).
    """
    validate_problem(problem)
    limits = limits or Limits()
    if nothing_to_do(problem):
        idle = worth(problem, [0] * len(problem.window))
        return _plan(
            idle, Solution(status=PlanStatus.OPTIMAL, objective=idle.objective, bound=idle.objective)
        )
    model = horizon_model(problem)
    if problem.end_rule is EndRule.TARGET:
        return _plan_target(problem, model, limits)
    solution = in_usd(solve(model, limits), model.unit_usd)
    found = worth(problem, chosen_sizes(model)) if solution.objective is not None else None
    return _plan(found, solution, model.unit_usd, maximise=True)


def in_usd(solution: Solution, unit_usd: float) -> Solution:
    """Return a solution with objective and bound converted from units of ``unit_usd`` to USD."""
    objective, bound = solution.objective, solution.bound
    return replace(
        solution,
        objective=None if objective is None else objective * unit_usd,
        bound=None if bound is None else bound * unit_usd,
    )


def _plan_target(problem: HorizonProblem, model: Any, limits: Limits) -> Plan:
    """Solve for maximal progress, then for minimal cost (M3.3a); the two solves share the time limit."""
    first = solve(model, replace(limits, relative_gap=0.0))
    if first.objective is None:
        return _plan(None, first)
    found = worth(problem, chosen_sizes(model))
    if first.status is not PlanStatus.OPTIMAL:
        # Maximal progress is not proved, so the only known bound on its least cost is 0.
        return _plan(found, replace(first, objective=found.objective, bound=0.0, gap=float("inf")))
    require_progress(model, found.end_progress)
    second = solve(model, replace(limits, seconds=max(limits.seconds - first.seconds, 0.1 * limits.seconds)))
    second = replace(in_usd(second, model.unit_usd), seconds=first.seconds + second.seconds)
    if second.objective is not None:
        return _plan(worth(problem, chosen_sizes(model)), second, model.unit_usd)
    if second.status is PlanStatus.NO_INCUMBENT:
        # The first solve's plan is an incumbent of the second.
        bound = max(second.bound or 0.0, 0.0)
        second = replace(second, status=PlanStatus.TIME_LIMIT, objective=found.objective, bound=bound)
        return _plan(found, second)
    return _plan(None, second)


def _plan(found: Worth | None, solution: Solution, unit_usd: float = 0.0, *, maximise: bool = False) -> Plan:
    """Build a plan from recomputed numbers and the solver's bound in USD, an upper bound if ``maximise``, else a lower bound."""
    if found is None or solution.objective is None:
        nan = float("nan")
        status = solution.status
        return Plan(
            allocations=(),
            status=status,
            objective=nan,
            bound=nan if solution.bound is None else solution.bound,
            gap=float("inf"),
            seconds=solution.seconds,
            cost_usd=nan,
            end_progress=nan,
        )
    size = max(abs(found.objective), abs(solution.objective), found.cost_usd)
    if abs(found.objective - solution.objective) > TRUST * max(size, 1e-3 * unit_usd):
        return _plan(None, replace(solution, status=PlanStatus.ERROR))
    bound = found.objective if solution.bound is None else solution.bound
    if abs(bound - found.objective) <= TRUST * max(size, 1e-3 * unit_usd):
        # Within the solver's tolerances the plan may pass the bound; then the bound is met.
        bound = max(bound, found.objective) if maximise else min(bound, found.objective)
    return Plan(
        allocations=found.allocations,
        status=solution.status,
        objective=found.objective,
        bound=bound,
        gap=solution.gap if solution.bound is None else relative_gap(found.objective, bound),
        seconds=solution.seconds,
        cost_usd=found.cost_usd,
        end_progress=found.end_progress,
    )


# ---
# Live solves: the MILP decides, the audit checks its plan, and the exact twin is solved for
# comparison (M3.1, M3.4, M3.5).


@dataclass(slots=True, kw_only=True)
class LiveSolver:
    """Callable solver of horizon programs by the MILP, within ``seconds`` each; records each solve in ``notes`` and ``plans``.

    Every plan is compared with the exact twin's. If both have the same value, the twin's plan is
    used, which breaks ties by rule (M3.2). If the MILP is not proved optimal in time, the twin's
    plan is used, which is exact. If the two contradict each other, the better plan is used with
    status `PlanStatus.DIFFERS`. A note records each case. Notes contain no times: they are stored
    with the decision, and repeating a turn must write the same rows.
    """

    seconds: float
    notes: list[str] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    def __call__(self, problem: HorizonProblem) -> Plan:
        """Return the optimal, audited plan of a program; raises `AuditError` if its numbers do not add up."""
        plan, twin = plan_problem(problem, limits=Limits(seconds=self.seconds)), solve_window(problem)
        audit_plan(problem, twin)
        if plan.status is not PlanStatus.OPTIMAL:
            self.notes.append(f"HiGHS {plan.status.value}, exact twin instead")
            plan = twin
        elif contradicts(problem, plan, twin):
            self.notes.append(
                f"HiGHS {PlanStatus.DIFFERS.value}: {plan.objective:.6g} against {twin.objective:.6g} USD, the better plan taken"
            )
            plan = better(problem, plan, twin)
        else:
            self.notes.append(f"HiGHS optimal, gap {plan.gap:.1e}")
            plan = replace(twin, seconds=plan.seconds) if twin.status is PlanStatus.OPTIMAL else plan
        audit_plan(problem, plan)
        self.plans.append(plan)
        return plan

    def summary(self) -> str:
        """Return how the solves of a decision ended; "" if there was none."""
        return "; ".join(self.notes)


def contradicts(problem: HorizonProblem, plan: Plan, twin: Plan) -> bool:
    """Return whether two plans, both with status optimal, differ in value by more than the tolerance `AGREEMENT` (M3.2).

    Under the target rule, progress is compared first. A twin without status optimal contradicts no plan.
    """
    if twin.status is not PlanStatus.OPTIMAL:
        return False
    job = problem.job
    slack = AGREEMENT * (job.value + max(plan.cost_usd, twin.cost_usd))
    if (
        problem.end_rule is EndRule.TARGET
        and abs(plan.end_progress - twin.end_progress) > AGREEMENT * job.workload
    ):
        return True
    return abs(plan.objective - twin.objective) > slack


def better(problem: HorizonProblem, plan: Plan, twin: Plan) -> Plan:
    """Return the better of two contradicting plans with status DIFFERS and the gap to the other plan's objective."""
    if problem.end_rule is EndRule.TARGET:
        slack = AGREEMENT * problem.job.workload
        ahead = plan.end_progress - twin.end_progress
        milp = ahead > slack or (ahead >= -slack and plan.objective < twin.objective)
    else:
        milp = plan.objective > twin.objective
    chosen, other = (plan, twin) if milp else (twin, plan)
    return replace(
        chosen,
        status=PlanStatus.DIFFERS,
        bound=chosen.objective,
        gap=relative_gap(chosen.objective, other.objective),
        seconds=plan.seconds,
    )


def plan(
    job: Job,
    window: MarketWindow,
    *,
    slot: int = 0,
    progress: Progress | None = None,
    end_rule: EndRule = EndRule.ON_DEMAND_TO_GO,
    seconds: float = 10.0,
) -> Plan:
    """Return the plan with the highest utility over a window, observed or forecast: one program of M3.1, solved and audited.

    Element 0 of ``window`` is the job's slot ``slot``, at which its state is ``progress`` (None: no work done
    yet). Slots at or after the deadline are cut off. ``end_rule`` gives the value of the state after the
    window. A finished job gets a plan without instances. Raises `JobError` or `MarketError` for an invalid
    program (`validate_problem`), in particular if no slot is left before the deadline.
    """
    stands = progress or Progress()
    problem = HorizonProblem(
        job=job,
        slot=slot,
        done=stands.done,
        n_previous=stands.n_previous,
        window=window.cut(0, job.deadline_slots - slot),
        end_rule=end_rule,
    )
    return LiveSolver(seconds=seconds)(problem)
