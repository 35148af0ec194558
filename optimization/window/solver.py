"""Solving Pyomo models with HiGHS: how a solve ended is a value, never an exception (M3.4)."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any

from pyomo.common.errors import PyomoException
from pyomo.contrib.solver.common.results import Results, SolutionStatus, TerminationCondition
from pyomo.contrib.solver.solvers.highs import Highs

from optimization.job.definition import Job, Progress
from optimization.market.window import MarketWindow
from optimization.window.audit import AGREEMENT, audit_plan
from optimization.window.plan import (
    EndRule,
    HorizonProblem,
    Plan,
    PlanStatus,
    Worth,
    nothing_to_do,
    validate_problem,
    worth,
)
from optimization.window.program import chosen_sizes, horizon_model, require_progress
from optimization.window.twin import solve_window
from warehouse.errors import SettingsError

#: Tolerances: work is scaled to a workload of 1, so that of constraints is below the tolerance of "finished". That of whole
#: numbers is HiGHS's own: with ``mip_feasibility_tolerance`` 1e-9, HiGHS 1.15.1 calls plans optimal that are not (7 of 120 programs
#: whose expected to go is flat, all best left alone: it held instances at a loss, "gap 0"). Search: on 16 programs of
#: w = 5, N_max = 16 it took 19.7 s in all without restarts against 36.8 s with, and, with fewer endings to choose from, 6.9 s with
#: short reliability branching against 10.1 s.
OPTIONS: dict[str, Any] = {
    "primal_feasibility_tolerance": 1e-9,
    "mip_allow_restart": False,
    "mip_pscost_minreliable": 1,
}
#: Relative difference between the solver's objective and the plan's own beyond which the solve counts as an error.
TRUST = 1e-6
INTERRUPTED = (
    TerminationCondition.maxTimeLimit,
    TerminationCondition.iterationLimit,
    TerminationCondition.objectiveLimit,
    TerminationCondition.interrupted,
)
# While HiGHS runs, Pyomo redirects the file descriptors of the whole process: one solve at a time.
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a solve may stop: after ``seconds``, or within ``relative_gap`` of the bound; ``nodes`` of the search tree if given."""

    seconds: float = 10.0
    relative_gap: float = 1e-6
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not self.seconds > 0 or not self.relative_gap >= 0 or (self.nodes is not None and self.nodes < 0):
            raise SettingsError(f"solver limits {self}", expected="seconds > 0, gap >= 0, nodes >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """How a solve ended (M3.4).

    ``objective`` is None without an incumbent, ``bound`` None without a proof; ``gap`` is |bound - objective| over the larger
    of the two in size, infinite where either is missing. ``seconds`` is the solver's own account. With an
    incumbent the model's variables hold it. ``detail`` says in the solver's words what happened.
    """

    status: PlanStatus
    objective: float | None
    bound: float | None
    gap: float = 0.0
    seconds: float = 0.0
    detail: str = ""


def solve(model: Any, limits: Limits) -> Solution:
    """Solve a Pyomo model with one active objective by HiGHS; the outcome is in the status, nothing is raised for it.

    Deterministic: one thread, the solver's fixed seed; only a time limit can make two runs differ.
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
    except (PyomoException, RuntimeError, ValueError, ArithmeticError) as error:
        return Solution(
            status=PlanStatus.ERROR,
            objective=None,
            bound=None,
            gap=float("inf"),
            seconds=0.0,
            detail=f"{type(error).__name__}: {error}",
        )
    return solution_of(results)


def solution_of(results: Results) -> Solution:
    """Pyomo's results as a `Solution`."""
    objective, bound = results.incumbent_objective, results.objective_bound
    if bound is not None and abs(bound) == float("inf"):
        bound = None
    return Solution(
        status=status_of(results),
        objective=objective,
        bound=bound,
        gap=relative_gap(objective, bound),
        seconds=float(results.timing_info.highs_time),
        detail=results.termination_condition.name,
    )


def status_of(results: Results) -> PlanStatus:
    """The one place where the solver's words become ours."""
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
    """|bound - objective| over the larger of the two in size; infinite where either is missing.

    >>> relative_gap(99.0, 100.0)
    0.01
    """
    if objective is None or bound is None:
        return float("inf")
    size = max(abs(objective), abs(bound))
    return abs(bound - objective) / size if size > 0 else 0.0


def plan_problem(problem: HorizonProblem, limits: Limits | None = None) -> Plan:
    """The plan of a horizon program by the Pyomo model and HiGHS (M3.1, M3.4).

    The numbers of the plan are those of its own allocations (M3.5), not the solver's; a solver whose objective differs from them
    by more than `TRUST` gets status ERROR. Without an incumbent ``allocations`` is empty and the numbers are NaN. Raises `JobError`
    or `MarketError` for a program that makes no sense (`validate_problem`), and nothing else.
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
    """A solution whose objective was counted in units of ``unit_usd``, in USD."""
    objective, bound = solution.objective, solution.bound
    return replace(
        solution,
        objective=None if objective is None else objective * unit_usd,
        bound=None if bound is None else bound * unit_usd,
    )


def _plan_target(problem: HorizonProblem, model: Any, limits: Limits) -> Plan:
    """Most progress first, then least cost (M3.3a): two solves that share the time limit."""
    first = solve(model, replace(limits, relative_gap=0.0))
    if first.objective is None:
        return _plan(None, first)
    found = worth(problem, chosen_sizes(model))
    if first.status is not PlanStatus.OPTIMAL:
        # The most progress is not proved, so of its least cost nothing is known but that it is not negative.
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
    """The plan that states its own numbers, with the solver's proof in USD: of a worth if ``maximise``, else of a cost."""
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
        # A bound that the plan passes by the solver's tolerances is met, not passed.
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
# Live solves: the MILP decides, the audit checks it, the exact twin is asked as well (M3.1, M3.4, M3.5).


@dataclass(slots=True, kw_only=True)
class LiveSolver:
    """Answers horizon programs by the MILP within ``seconds`` each; keeps how every solve ended in ``notes``, and the ``plans``.

    Every plan is compared with the twin's. Where they are worth the same the twin's is taken, which settles ties by rule (M3.2). A
    solve that is not proved optimal in time is answered by the twin, which is exact; one that contradicts the twin has the
    status `PlanStatus.DIFFERS` and the better plan of the two. The note says so. Notes hold no seconds: they are kept with the
    decision, and the same turn again must write the same rows.
    """

    seconds: float
    notes: list[str] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    def __call__(self, problem: HorizonProblem) -> Plan:
        """The optimal plan of one program, audited; raises `AuditError` if its numbers do not add up."""
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
        """How the solves of one decision ended, "" if there was none."""
        return "; ".join(self.notes)


def contradicts(problem: HorizonProblem, plan: Plan, twin: Plan) -> bool:
    """True if two plans that are both called optimal are not worth the same (M3.2), by more than the solver's gap.

    Under the target rule what they reach counts first. A twin that ran out of labels contradicts nobody.
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
    """The better of two plans that contradict each other, with that as its status; the other's objective tells the gap."""
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
    """What to hold in the slots of a window, seen or forecast, for the most utility: one program of M3.1, solved and audited.

    Element 0 of ``window`` is the job's slot ``slot``, where it stands at ``progress`` (None: nothing is done yet); slots at or
    after the deadline are cut off. After the window counts what ``end_rule`` says. Raises `JobError` where the job is not worth
    a program (no slot left, a work that is done).
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
