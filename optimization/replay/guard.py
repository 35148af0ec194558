"""The exact guard (M12.7) around a live decision, and what to run at once if spot is lost (M12.11)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slackwater.optimization.policies.contract import Policy, View
from slackwater.optimization.policies.pace import always_worth_finishing, worth_finishing
from slackwater.optimization.replay.ahead import progress_of
from slackwater.optimization.replay.run import checked
from slackwater.optimization.window.plan import Allocation
from slackwater.optimization.world.simulation import Readings, WorldRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The guard of a job at a decision: its view, and its run in the world before the decision.

    It protects the deadlines that M4 protects: hard ones, and those worth finishing on demand.
    """

    view: View
    run: WorldRun

    @property
    def seconds(self) -> float:
        """Length of a slot, in which no other decision comes."""
        return self.view.slot_hours * 3600.0

    @property
    def next_at(self) -> float:
        """Time of the next decision."""
        return (self.view.slot + 1) * self.seconds

    @property
    def deadline(self) -> float:
        """Time of the deadline."""
        return self.view.job.deadline_slots * self.seconds

    @property
    def protects(self) -> bool:
        """Whether the deadline is to be met on demand if need be."""
        return self.view.on_demand.sold and worth_finishing(self.view)

    def allow(self, wish: Allocation) -> Allocation:
        """Return the wish if it is safe or nothing is, else the closest safe target within the budget."""
        if not self.protects or self.run.is_finished:
            return wish
        safe = self.run.guarded(wish, next_at=self.next_at, deadline=self.deadline)
        if safe == wish or not self._is_safe(safe):
            return wish
        return checked(safe, self.view, "the guard")

    def holds(self, target: Allocation) -> bool:
        """Return whether the deadline is met whatever becomes of spot, now and after every later decision under the guard."""
        if self.run.is_finished:
            return True
        if not self.view.on_demand.sold or not self._is_safe(target) or np.isfinite(self.view.job.budget_usd):
            return False
        return always_worth_finishing(self.view.job, self.view.on_demand_usd, self.view.slot_hours)

    def _is_safe(self, target: Allocation) -> bool:
        return self.run.is_safe(target, next_at=self.next_at, deadline=self.deadline)

    def reason(self, wish: Allocation, allowed: Allocation) -> str:
        """Return why a wish was changed, "" if it was not."""
        if wish == allowed:
            return ""
        return "; with less on-demand the deadline could be missed if spot is lost in this slot"

    def standby(self, policy: Policy[Any], state: Any, target: Allocation) -> Allocation | None:
        """Return the target for the rest of the slot if all spot is lost at its start, None without spot.

        It is the policy's decision on what is left, under the guard.
        """
        if not target.spot:
            return None
        gone = self.run.now + 1.0
        nothing = Readings(times=np.array([gone]), available=np.array([0]), price=np.array([self.view.price]))
        run = self.run.copy(nothing)
        run.decide(target)
        run.advance(gone)
        left = replace(self.view, available=0, others=0, progress=progress_of(self.view.job, run))
        wish, _ = policy.decide(state, left)
        return Guard(view=left, run=run).allow(checked(wish, left, policy.name))
