"""Uniform progress in its published form: a cluster of N instances, or none (M4.3; "Can't Be Late", NSDI 2024)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from slackwater.optimization.job.definition import Allocation, Job, check_job
from slackwater.optimization.kernels.rules import after_growing, on_demand_stays
from slackwater.optimization.policies.baselines import LEFT_FOR_SPOT
from slackwater.optimization.policies.contract import NameForm, View
from slackwater.optimization.policies.pace import (
    HOLD_NOTHING,
    WORK_TOLERANCE,
    expected_progress,
    guard_allows_spot,
    is_done,
    narrate,
    pace,
    safety_net,
    slots_left,
    spot_is_cheaper,
    work_left,
)
from slackwater.warehouse.errors import SettingsError


class Holding(StrEnum):
    """Purchase option of the cluster in the previous slot.

    `TO_THE_END` is on-demand that the safety net does not leave any more.
    """

    NOTHING = "nothing"
    SPOT = "spot"
    ON_DEMAND = "on_demand"
    TO_THE_END = "to_the_end"


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleCluster:
    """UP-single: 0 or N instances, all spot or all on-demand, with a changeover of delta hours (M4.3).

    N is the size with the largest H, N_max if H increases. With R slots left, C slots of work at N
    and delta in slots, the rules of the paper are:

    - *Exploitation*: a cluster on spot stays on spot while spot is available for all of it.
    - *Hysteresis*: on-demand is left only for spot, never to idle, and only at progress of Zexp(t +
      2 delta) or more.
    - *Safety net*: if R - 1 < C + 2 delta, another idle slot would leave less than two changeovers,
      so the cluster runs on-demand to the end.
    - *Uniform progress*: otherwise spot if available, on-demand when behind Zexp(t), else nothing.
    - *Thrifty*: nothing once finished.

    ``changeover_hours`` may exceed a slot; None takes the value of the job, (1 - mu_up) Delta, the
    actual cost of a start. Another value makes the policy more or less careful, but does not change
    the cost of a change. In a gap on-demand continues, and nothing is started unless the safety net
    requires it. The exact safety net of all policies applies on top (ours), so that a job within
    reach of on-demand is never late; in the last slot its size may differ. With ``guard`` the
    cluster runs on-demand to the end once the guard of M4.3 fails.

    Raises `SettingsError` for a changeover that is negative or infinite.
    """

    name_form: ClassVar = NameForm(optional={"changeover_hours": float}, words={"guard": {"guard": True}})
    changeover_hours: float | None = None
    guard: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        hours = self.changeover_hours
        if hours is not None and not 0.0 <= hours < float("inf"):
            raise SettingsError(f"UP-single changeover of {hours} h", expected="a finite time >= 0")
        said = [*([] if hours is None else [f"{hours:g}"]), *(["guard"] if self.guard else [])]
        object.__setattr__(self, "name", f"UP-single({','.join(said)})" if said else "UP-single")

    def start(self, job: Job) -> Holding:
        """Return an idle cluster; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)
        return Holding.NOTHING

    def decide(self, state: Holding, view: View) -> tuple[Allocation, Holding]:
        """Return the result of the paper's rules in their order, subject to the exact safety net."""
        if is_done(view):
            return HOLD_NOTHING, Holding.NOTHING
        n = cluster_size(view)
        after = self._next(state, view, n)
        runs = after is state is Holding.SPOT
        if self.guard and after in (Holding.NOTHING, Holding.SPOT) and not guard_allows_spot(view, runs=runs):
            after = Holding.TO_THE_END
        wish = {Holding.NOTHING: HOLD_NOTHING, Holding.SPOT: Allocation(0, n)}.get(after, Allocation(n, 0))
        held = safety_net(view, wish)
        if held.on_demand:
            after = after if after is Holding.TO_THE_END else Holding.ON_DEMAND
            return Allocation(held.total, 0), after
        return held, after

    def explain(self, state: Holding, view: View, allocation: Allocation) -> str:
        """Describe pace, slack and spot of the slot, and the rule that determines the purchase option."""
        after = self.decide(state, view)[1]
        rule = ""
        if after is Holding.TO_THE_END:
            rule = "on-demand to the end: less than two changeovers remain"
        elif after is state is Holding.ON_DEMAND and not self._behind(view, 0.0):
            rule = LEFT_FOR_SPOT
        return narrate(view, allocation, rule=rule)

    def _next(self, state: Holding, view: View, n: int) -> Holding:
        spot = view.observed and spot_is_cheaper(view) and view.available >= n
        if state is Holding.TO_THE_END:
            return state
        if state is Holding.SPOT and spot:
            return Holding.SPOT
        lead = 2.0 * self._changeover_slots(view, n)
        if state is Holding.ON_DEMAND and on_demand_stays(spot, self._behind(view, lead)):
            return Holding.ON_DEMAND
        if self._runs_out(view, n, lead):
            return Holding.TO_THE_END
        if spot:
            return Holding.SPOT
        return Holding.ON_DEMAND if view.observed and self._behind(view, 0.0) else Holding.NOTHING

    def _changeover_slots(self, view: View, n: int) -> float:
        if self.changeover_hours is None:
            return 1.0 - after_growing(view.job.restart, n)
        return self.changeover_hours / view.slot_hours

    @staticmethod
    def _runs_out(view: View, n: int, lead: float) -> bool:
        """Return R - 1 < C + 2 delta."""
        slots = work_left(view) / pace(view.job, view.slot_hours).gain[n]
        return slots_left(view) - 1 < slots + lead - WORK_TOLERANCE

    @staticmethod
    def _behind(view: View, lead: float) -> bool:
        job = view.job
        return view.progress.done < expected_progress(job, view.slot + lead) - WORK_TOLERANCE * job.workload


def cluster_size(view: View) -> int:
    """Return N: the least size with the largest H."""
    gain = pace(view.job, view.slot_hours).gain
    return max(range(view.job.n_min, view.job.n_max + 1), key=gain.__getitem__)
