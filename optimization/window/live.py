"""Live solves: the MILP decides, the audit checks it, the exact twin is asked as well (M3.1, M3.4, M3.5)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from optimization.job.definition import Job, Progress
from optimization.market.window import MarketWindow
from optimization.window.audit import AGREEMENT, audit_plan
from optimization.window.plan import EndRule, HorizonProblem, Plan, PlanStatus
from optimization.window.solver import Limits, plan_problem, relative_gap
from optimization.window.twin import solve_window


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
