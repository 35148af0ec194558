"""Live solves: the MILP decides, the audit checks it, the exact twin stands in if the time runs out (M3.1, M3.4, M3.5)."""

from __future__ import annotations

from dataclasses import dataclass, field

from optimization.window.audit import audit_plan
from optimization.window.plan import HorizonProblem, Plan, PlanStatus
from optimization.window.solver import Limits, plan_problem
from optimization.window.twin import solve_window


@dataclass(slots=True, kw_only=True)
class LiveSolver:
    """Answers horizon programs by the MILP within ``seconds`` each; keeps how every solve ended in ``notes``, and the ``plans``.

    A solve that is not proved optimal in time is answered by the twin, which is exact, and the note says so. Notes hold
    no seconds: they are kept with the decision, and the same turn again must write the same rows.
    """

    seconds: float
    notes: list[str] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    def __call__(self, problem: HorizonProblem) -> Plan:
        """The optimal plan of one program, audited; raises `AuditError` if its numbers do not add up."""
        plan = plan_problem(problem, limits=Limits(seconds=self.seconds))
        if plan.status is PlanStatus.OPTIMAL:
            self.notes.append(f"HiGHS optimal, gap {plan.gap:.1e}")
        else:
            self.notes.append(f"HiGHS {plan.status.value}, exact twin instead")
            plan = solve_window(problem)
        audit_plan(problem, plan)
        self.plans.append(plan)
        return plan

    def summary(self) -> str:
        """How the solves of one decision ended, "" if there was none."""
        return "; ".join(self.notes)
