"""Baseline policies: on-demand only, maximal spot utilisation, uniform progress (M4.1-M4.3)."""

from __future__ import annotations

from dataclasses import dataclass, field

from slackwater.optimization.job.definition import Job, check_job
from slackwater.optimization.kernels.rules import after_growing, on_demand_stays
from slackwater.optimization.policies.contract import View
from slackwater.optimization.policies.pace import (
    HOLD_NOTHING,
    WORK_TOLERANCE,
    all_spot,
    cheapest_split,
    expected_progress,
    fastest_size,
    finishing_size,
    is_done,
    keeps_deadline,
    least_constant_size,
    least_size,
    meets_deadline,
    narrate,
    safety_net,
    slots_left,
    spot_is_cheaper,
)
from slackwater.optimization.window.plan import Allocation
from slackwater.warehouse.amounts import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandOnly:
    """OD-only: the smallest constant number of on-demand instances that meets the deadline d (M4.1).

    The first slot counts with efficiency mu_up. If no number meets d, the policy runs the number
    that does most work by d (N_max if H increases), and M2.6 ends the job as for every policy. The
    number is chosen once and changes only if the job falls behind for another reason; a gap has no
    effect. The state is that number. A positive ``size`` is run in every slot instead.
    """

    name: str = "OD-only"
    size: int = 0

    def start(self, job: Job) -> int:
        """Return 0: no number is chosen yet. The job need not be resumable, since it never runs on spot."""
        return 0

    def decide(self, state: int, view: View) -> tuple[Allocation, int]:
        """Return the constant number of on-demand instances."""
        if is_done(view):
            return HOLD_NOTHING, state
        size = self.size or (state if state and meets_deadline(view, state) else 0)
        n = size or least_constant_size(view)
        return Allocation(n, 0), n

    def explain(self, state: int, view: View, allocation: Allocation) -> str:
        """Describe whether the number meets the deadline."""
        if is_done(view):
            return narrate(view, allocation)
        n, left = allocation.on_demand, slots_left(view)
        if meets_deadline(view, n):
            return f"on-demand only: {n} is the smallest constant number that meets the deadline in {plural(left, 'slot')}"
        return f"on-demand only: even {n} instances, the fastest allocation, miss the deadline in {plural(left, 'slot')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaximalSpot:
    """MSU: all spot up to N_max; N_max with on-demand once waiting another slot would miss d (M4.2).

    Spot is skipped if fewer than n_min instances are available, if it costs as much as on-demand or
    more, or if the slot was not observed. The test whether waiting would miss d is exact and
    includes the loss of growing again (ours). With ``trim`` (ours) the policy never runs more
    instances than finish the job within the slot; the published rule pays for N_max to the end. The
    policy has no state.
    """

    trim: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", "MSU-trim" if self.trim else "MSU")

    def start(self, job: Job) -> None:
        """Return no state; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)

    def decide(self, state: None, view: View) -> tuple[Allocation, None]:
        """Return all spot, or N_max where the safety net requires it."""
        if is_done(view):
            return HOLD_NOTHING, None
        if self.trim:
            return safety_net(view, all_spot(view)), None
        n = min(view.available, view.job.n_max)
        wish = Allocation(0, n) if spot_is_cheaper(view) and n >= view.job.n_min else HOLD_NOTHING
        return (wish if keeps_deadline(view, wish.total) else cheapest_split(view, fastest_size(view))), None

    def explain(self, state: None, view: View, allocation: Allocation) -> str:
        """Describe pace, slack and spot of the slot."""
        return narrate(view, allocation)


def trimmed_spot() -> MaximalSpot:
    """Return MSU-trim."""
    return MaximalSpot(trim=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformProgress:
    """UP: all spot up to N_max, on-demand only while behind uniform progress, safety net as in MSU (M4.3).

    Behind means z < Zexp(t); n is then the least size that reaches Zexp(t + 1), spot first. After a
    slot with on-demand, both times are shifted by two changeovers of 1 - mu_up slots: the job
    leaves on-demand only once it is that far ahead (the rule c_p(t) >= c_e(t + 2d) of "Can't Be
    Late", NSDI 2024), and only for spot. Without spot, and in a gap, the on-demand instances keep
    running. Apart from this only the safety net acts in a gap (ours).

    The published form of the policy, a single cluster of N instances, is
    `slackwater.studies.policies.single_cluster`. The state is the number of on-demand instances in the
    previous slot.
    """

    name: str = "UP"

    def start(self, job: Job) -> int:
        """Return 0 on-demand instances; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)
        return 0

    def decide(self, state: int, view: View) -> tuple[Allocation, int]:
        """Return all spot, topped up with on-demand to uniform progress."""
        if is_done(view):
            return HOLD_NOTHING, 0
        allocation = safety_net(view, self._wish(state, view))
        return allocation, allocation.on_demand

    def explain(self, state: int, view: View, allocation: Allocation) -> str:
        """Describe pace, slack and spot of the slot, and whether the hysteresis keeps on-demand running."""
        held = state and allocation.on_demand > 0 and not behind(view, 0.0)
        return narrate(view, allocation, rule=LEFT_FOR_SPOT if held else "")

    def _wish(self, state: int, view: View) -> Allocation:
        spot, lead = all_spot(view), changeovers(state > 0, view)
        short = view.observed and behind(view, lead)
        if short:
            need = least_size(view, expected_progress(view.job, view.slot + 1 + lead))
            return spot if need <= spot.total else cheapest_split(view, need)
        return previous_on_demand(state, view) if state and on_demand_stays(spot.total > 0, short) else spot


#: Reason shown when a job ahead of uniform progress still runs on on-demand.
LEFT_FOR_SPOT = "changes from on-demand only to spot, and only if two changeovers ahead of schedule"


def previous_on_demand(held: int, view: View) -> Allocation:
    """Return the on-demand instances of the previous slot, at least n_min and no more than finish the job (M4.3)."""
    n, enough = max(held, view.job.n_min), finishing_size(view)
    return Allocation(n if enough is None else min(n, enough), 0)


def changeovers(on_demand_held: bool, view: View) -> float:
    """Return the lead that UP requires to leave on-demand: two changeovers to N_max, in slots, or 0 (M4.3)."""
    job = view.job
    return 2.0 * (1.0 - after_growing(job.restart, job.n_max)) if on_demand_held else 0.0


def behind(view: View, lead: float) -> bool:
    """Return True if less work is done than uniform progress reaches ``lead`` slots from now (M4.3)."""
    job = view.job
    return (
        view.progress.done
        < expected_progress(job, view.slot + view.elapsed + lead) - WORK_TOLERANCE * job.workload
    )
