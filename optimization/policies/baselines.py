"""The baselines: on-demand only, maximal spot utilisation, uniform progress (M4.1-M4.3)."""

from __future__ import annotations

from dataclasses import dataclass, field

from optimization.job.definition import Job, check_job
from optimization.kernels.rules import after_growing, on_demand_stays
from optimization.policies.contract import View
from optimization.policies.pace import (
    HOLD_NOTHING,
    WORK_TOLERANCE,
    all_spot,
    expected_progress,
    fastest_size,
    finishing_size,
    is_done,
    keeps_deadline,
    least_size,
    narrate,
    pace,
    safety_net,
    slots_left,
    split,
    spot_is_cheaper,
    work_left,
)
from optimization.window.plan import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandOnly:
    """OD-only: the least constant n on demand that meets d, its first slot counted at mu_up (M4.1).

    If no n meets d it holds the n that does most work by d (N_max where H grows), and M2.6 ends the job from
    there like every other. The number is chosen once and kept, unless the job fell behind for another reason;
    a gap changes nothing. State: that number.
    """

    name: str = "OD-only"

    def start(self, job: Job) -> int:
        """Nothing chosen yet; spot is never held, so the job need not be resumable."""
        return 0

    def decide(self, state: int, view: View) -> tuple[Allocation, int]:
        """The constant number."""
        if is_done(view):
            return HOLD_NOTHING, state
        n = state if state and _meets_deadline(view, state) else _least_constant(view)
        return Allocation(n, 0), n

    def explain(self, state: int, view: View, allocation: Allocation) -> str:
        """Whether the number meets the deadline."""
        if is_done(view):
            return narrate(view, allocation)
        n, left = allocation.on_demand, slots_left(view)
        if _meets_deadline(view, n):
            return f"on-demand only: {n} is the least constant number that meets the deadline in {left} slots"
        return f"on-demand only: even {n} instances, the fastest choice, do not meet the deadline in {left} slots"


def _meets_deadline(view: View, n: int) -> bool:
    job = view.job
    first = job.efficiency(n, view.progress.n_previous)
    work = (first + slots_left(view) - 1) * pace(job, view.slot_hours).gain[n]
    return work >= work_left(view) - WORK_TOLERANCE * job.workload


def _least_constant(view: View) -> int:
    job = view.job
    for n in range(job.n_min, job.n_max + 1):
        if _meets_deadline(view, n):
            return n
    return fastest_size(view)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaximalSpot:
    """MSU: all spot up to N_max, on-demand only once waiting one more slot would miss d; then N_max (M4.2).

    Spot below n_min, dearer than or as dear as on-demand, or not observed, is not taken. "Waiting would miss d" is exact, with
    the loss of growing again (ours). With ``trim`` (ours) it never holds more than finishes the job in the slot: the published
    rule pays for N_max to the end. It has no state.
    """

    trim: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", "MSU-trim" if self.trim else "MSU")

    def start(self, job: Job) -> None:
        """No state; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)

    def decide(self, state: None, view: View) -> tuple[Allocation, None]:
        """All spot, or N_max when the safety net calls."""
        if is_done(view):
            return HOLD_NOTHING, None
        if self.trim:
            return safety_net(view, all_spot(view)), None
        n = min(view.available, view.job.n_max)
        wish = Allocation(0, n) if spot_is_cheaper(view) and n >= view.job.n_min else HOLD_NOTHING
        return (wish if keeps_deadline(view, wish.total) else split(view, fastest_size(view))), None

    def explain(self, state: None, view: View, allocation: Allocation) -> str:
        """Pace, slack and spot of the slot."""
        return narrate(view, allocation)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformProgress:
    """UP: spot up to N_max whenever there is any, on-demand only while behind Zexp, safety net as in MSU (M4.3).

    Behind means z < Zexp(t); then n is the least that reaches Zexp(t + 1), spot first. After a slot with
    on-demand both are taken two changeovers of 1 - mu_up slots later, so on-demand is left only when that far
    ahead (the paper's rule c_p(t) >= c_e(t + 2d), "Can't Be Late", NSDI 2024), and only for spot: without any, and in a
    gap, what is held on demand stays. Else only the safety net acts in a gap (ours). The paper's own form, one cluster of N
    instances, is `optimization.policies.single_cluster`. State: how many were held on demand in the slot before.
    """

    name: str = "UP"

    def start(self, job: Job) -> int:
        """No on-demand held; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)
        return 0

    def decide(self, state: int, view: View) -> tuple[Allocation, int]:
        """Spot, topped up to uniform progress."""
        if is_done(view):
            return HOLD_NOTHING, 0
        allocation = safety_net(view, self._wish(state, view))
        return allocation, allocation.on_demand

    def explain(self, state: int, view: View, allocation: Allocation) -> str:
        """Pace, slack and spot of the slot, and whether the hysteresis holds it."""
        held = state and allocation.on_demand > 0 and not behind(view, 0.0)
        return narrate(view, allocation, rule=LEFT_FOR_SPOT if held else "")

    def _wish(self, state: int, view: View) -> Allocation:
        spot, lead = all_spot(view), changeovers(state > 0, view)
        short = view.observed and behind(view, lead)
        if short:
            need = least_size(view, expected_progress(view.job, view.slot + 1 + lead))
            return spot if need <= spot.total else split(view, need)
        return kept(state, view) if state and on_demand_stays(spot.total > 0, short) else spot


#: Why a job ahead of uniform progress is still on on-demand.
LEFT_FOR_SPOT = "on-demand is left only for spot, and two changeovers ahead"


def kept(held: int, view: View) -> Allocation:
    """As many on demand as the ``held`` of the slot before, in n_min .. what finishes the job in this slot (M4.3)."""
    n, enough = max(held, view.job.n_min), finishing_size(view)
    return Allocation(n if enough is None else min(n, enough), 0)


def changeovers(on_demand_held: bool, view: View) -> float:
    """Two changeovers to N_max, in slots, after a slot with on-demand, else 0: the lead that UP asks for (M4.3)."""
    job = view.job
    return 2.0 * (1.0 - after_growing(job.restart, job.n_max)) if on_demand_held else 0.0


def behind(view: View, lead: float) -> bool:
    """True if less is done than uniform progress comes to ``lead`` slots from now (M4.3)."""
    job = view.job
    return view.progress.done < expected_progress(job, view.slot + lead) - WORK_TOLERANCE * job.workload
