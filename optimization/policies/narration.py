"""The one sentence that says why a slot looks as it does, with the slot's own numbers."""

from __future__ import annotations

import math

from optimization.policies.contract import View
from optimization.policies.pace import (
    deadline_in_reach,
    expected_progress,
    is_done,
    pace,
    slots_left,
    work_left,
)
from optimization.window.plan import Allocation


def slack_slots(view: View) -> int:
    """Slots that could be spent on nothing before only the fastest on-demand meets d; negative by how many it is missed."""
    numbers = pace(view.job, view.slot_hours)
    left = work_left(view)
    for k in range(slots_left(view) + 1):
        if numbers.reach[k][view.progress.n_previous] >= left * (1 - 1e-9):
            return slots_left(view) - k
    missing = left - numbers.reach[slots_left(view)][view.progress.n_previous]
    return -math.ceil(missing / max(numbers.gain) - 1e-9)


def slots_ahead(view: View) -> float:
    """(z - Zexp(t)) / (L / d): slots of uniform progress ahead, negative when behind."""
    job = view.job
    ahead = view.progress.done - expected_progress(job, view.slot)
    return ahead * job.deadline_slots / job.workload


def pace_text(view: View) -> str:
    """``1.3 slots ahead of uniform progress`` or behind it."""
    ahead = slots_ahead(view)
    return f"{_slots(abs(ahead), 1)} {'ahead of' if ahead >= 0 else 'behind'} uniform progress"


def spot_text(view: View) -> str:
    """``5 of 8 spot instances are there at 0.31 of on-demand``."""
    there = min(view.available, view.job.n_max)
    text = f"{there} of {view.job.n_max} spot instances are there"
    return f"{text} at {_ratio(view)} of on-demand" if there else text


def slack_text(view: View) -> str:
    """``slack is 2 slots``, or by how much the deadline is missed on the fastest on-demand."""
    slack = slack_slots(view)
    if deadline_in_reach(view):
        return f"slack is {_slots(max(slack, 0), 0)}"
    return f"even the fastest on-demand misses the deadline by {_slots(-slack, 0)}"


def narrate(view: View, allocation: Allocation, *, rule: str = "") -> str:
    """Why ``allocation`` was chosen in this slot, in one sentence; ``rule`` is what the policy itself adds."""
    if is_done(view):
        return "nothing: the job is finished"
    tail = f" ({rule})" if rule else ""
    if not view.observed:
        held = f"{allocation.on_demand} on-demand" if allocation.total else "nothing"
        return f"{held}: the market was not observed in this slot, {slack_text(view)}{tail}"
    on_demand, spot = allocation.on_demand, allocation.spot
    if spot and not on_demand:
        return f"spot only: {pace_text(view)}, price {_ratio(view)} of on-demand{tail}"
    if on_demand and spot:
        return f"{on_demand} on-demand beside {spot} spot: {pace_text(view)}, {slack_text(view)}, {spot_text(view)}{tail}"
    if on_demand:
        return f"on-demand because {slack_text(view)} and {spot_text(view)}{tail}"
    return f"nothing: {pace_text(view)}, {slack_text(view)}, {spot_text(view)}{tail}"


def _ratio(view: View) -> str:
    return f"{view.price / view.on_demand_usd:.2f}"


def _slots(count: float, digits: int) -> str:
    text = f"{count:.{digits}f}"
    return f"{text} slot" if text == "1" else f"{text} slots"
