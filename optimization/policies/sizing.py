"""Sizing: the least number of instances that does the rest in the time left, spot first (M4.11) (ours)."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.optimization.job.definition import Job, check_job
from slackwater.optimization.policies.contract import View
from slackwater.optimization.policies.pace import (
    HOLD_NOTHING,
    cheapest_split,
    is_done,
    least_constant_size,
    narrate,
    safety_net,
)
from slackwater.optimization.window.plan import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Sizing: the least constant size that meets the deadline, evaluated anew in every slot, spot first (M4.11).

    It is the size of OD-only on whatever is cheaper. A change to one instance less, which restarts
    the others, is not made. Where H(n) is not linear, fewer instances do
    more work for the money. In a gap only the safety net acts. The policy reads no
    forecast and has no state.
    """

    name: str = "Sizing"

    def start(self, job: Job) -> None:
        """Return no state; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)

    def decide(self, state: None, view: View) -> tuple[Allocation, None]:
        """Return the least constant size, spot first."""
        if is_done(view):
            return HOLD_NOTHING, None
        if not view.observed:
            return safety_net(view, HOLD_NOTHING), None
        n, before = least_constant_size(view), view.progress.n_previous
        return safety_net(view, cheapest_split(view, before if before == n + 1 else n)), None

    def explain(self, state: None, view: View, allocation: Allocation) -> str:
        """Describe pace, slack and spot of the slot."""
        return narrate(view, allocation)
