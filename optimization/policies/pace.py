"""Uniform progress, least sizes and the safety net shared by the policies (M4.2, M4.3; the net is ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from slackwater.optimization.job.definition import (
    TOLERANCE,
    Job,
    Progress,
    Shares,
    Shortfall,
    Throughput,
    is_finished,
    never_finishes,
    on_demand_to_go,
    rates,
    restart_by_size,
)
from slackwater.optimization.kernels.rules import (
    after_growing,
    efficiency_table,
    slots_needed,
    spot_held,
    usable_spot,
)
from slackwater.optimization.policies.contract import View
from slackwater.optimization.window.plan import Allocation
from slackwater.warehouse.amounts import price as usd_price

#: Relative tolerance of comparisons of work; below the tolerance that declares a job finished, so
#: that the safety net errs on the safe side.
WORK_TOLERANCE = TOLERANCE / 10
HOLD_NOTHING = Allocation(0, 0)
#: Reason shown when a deadline that on-demand could still meet is given up (`priced_net`).
LETS_GO = "finishing on demand would cost more than the job is worth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Constants of a job that are needed in every slot, computed once.

    ``gain[n]`` is H(n) Delta, work units in a slot at full efficiency. ``work[n_previous][n]`` is
    the work of this slot, mu H(n) Delta (M2.4), negative if the change lasts longer than the slot.
    ``reach[k][n_previous]`` is the most work that k slots of on-demand can do after a slot on
    ``n_previous`` instances, the recursion max over n of work[n_previous][n] + reach[k - 1][n]; it
    equals max over n of (mu(n, n_previous) + k - 1) H(n) Delta while H increases and no change
    lasts longer than a slot. ``fastest[k][n_previous]`` is the first n of a sequence that reaches
    it, 0 only if every other choice does less work.
    """

    gain: tuple[float, ...]
    work: tuple[tuple[float, ...], ...]
    reach: tuple[tuple[float, ...], ...]
    fastest: tuple[tuple[int, ...], ...]


def pace(job: Job, slot_hours: float) -> Pace:
    """Return the `Pace` of a job on slots of ``slot_hours`` hours."""
    cached: Pace | None = job.kept.get(slot_hours)
    if cached is None:
        shape = (job.throughput, job.n_min, job.n_max, job.mu_up, job.mu_down)
        cached = job.kept[slot_hours] = _pace(shape, job.deadline_slots, slot_hours)
    return cached


#: Number of results that the caches of this module keep.
MOST_RECENT = 64


@lru_cache(maxsize=MOST_RECENT)
def _pace(shape: tuple[Throughput, int, int, Shares, Shares], slots: int, slot_hours: float) -> Pace:
    throughput, n_min, n_max, mu_up, mu_down = shape
    restart = restart_by_size(mu_up, mu_down, n_max)
    gain = rates(throughput, n_max) * slot_hours
    sizes, now = np.arange(n_min, n_max + 1), efficiency_table(restart, n_max) * gain
    most_work = np.zeros(n_max + 1)
    reach, fastest = [tuple(most_work.tolist())], [(0,) * most_work.size]
    for _ in range(slots):
        work = now[:, sizes] + most_work[sizes]
        # Of sizes that differ by rounding, the least; no instances only if that is truly better.
        slack = WORK_TOLERANCE * np.abs(work).max(axis=1)
        held = work.max(axis=1)
        idle = most_work[0] > held + slack
        first = np.where(idle, 0, sizes[(work >= (held - slack)[:, None]).argmax(axis=1)])
        most_work = np.where(idle, most_work[0], held)
        reach.append(tuple(most_work.tolist()))
        fastest.append(tuple(first.tolist()))
    work_now = tuple(tuple(row) for row in now.tolist())
    return Pace(gain=tuple(gain.tolist()), work=work_now, reach=tuple(reach), fastest=tuple(fastest))


def expected_progress(job: Job, slot: float) -> float:
    """Return Zexp, the work done by the start of ``slot`` at uniform progress: L min(1, t / d) (M3.3a)."""
    return job.workload * min(1.0, slot / job.deadline_slots)


def work_left(view: View) -> float:
    """Return L - z, at least 0, in work units; more than L while progress is owed."""
    return max(0.0, view.job.workload - view.progress.done)


def is_done(view: View) -> bool:
    """Return True if no work is left."""
    return work_left(view) <= WORK_TOLERANCE * view.job.workload


def slot_gain(view: View, n: int) -> float:
    """Return the work of this slot on ``n`` instances, mu H(n) Delta (M2.4), or of what is left of it (M12.10)."""
    numbers = pace(view.job, view.slot_hours)
    return numbers.work[view.progress.n_previous][n] - view.elapsed * numbers.gain[n]


def most_in_slot(view: View) -> float:
    """Return the most work that on-demand can do in this slot, or in what is left of it (M12.10)."""
    numbers, before, part = pace(view.job, view.slot_hours), view.progress.n_previous, view.elapsed
    if not part:
        return numbers.reach[1][before]
    least = view.job.n_min
    return max(
        0.0,
        *(
            work - part * gain
            for work, gain in zip(numbers.work[before][least:], numbers.gain[least:], strict=True)
        ),
    )


def step(progress: Progress, allocation: Allocation, view: View) -> Progress:
    """Return the progress after the slot of ``view``: cost, then work, capped at the workload (M2.4, second half)."""
    job, n = view.job, allocation.total
    paid = (allocation.on_demand * view.on_demand_usd + allocation.spot * view.price) * view.slot_hours
    done = progress.done + slot_gain(view, n)
    return Progress(
        done=job.workload if is_finished(done, job.workload) else done,
        n_previous=n,
        cost_usd=progress.cost_usd + paid,
    )


def least_size(view: View, target: float) -> int:
    """Return the least n with which the work after this slot is at least ``target``.

    If no size reaches it: the size of most work in this slot, or `soonest_size` if growing to n_max
    makes no progress within the slot.
    """
    job, before = view.job, view.progress.n_previous
    slack = WORK_TOLERANCE * job.workload
    missing = min(target, job.workload) - view.progress.done - slack
    if missing <= 0.0:
        return 0
    numbers = pace(job, view.slot_hours)
    if missing <= most_in_slot(view):
        work, gain, part = numbers.work[before], numbers.gain, view.elapsed
        for n in range(job.n_min, job.n_max + 1):
            if work[n] - part * gain[n] >= missing:
                return n
    gains = after_growing(job.restart, job.n_max) > 0.0
    return numbers.fastest[1][before] if gains else soonest_size(view, target)


def soonest_size(view: View, target: float) -> int:
    """Return the least n with which on-demand is soonest back on uniform progress through ``target`` (ours).

    Used when a restart takes a whole slot or longer, so that no size may gain work within the slot.
    The target line is extended beyond this slot: after k slots it is min(target + (k - 1) L / d,
    L). Returns `fastest_size` if the line is not met by d.
    """
    job, done, left = view.job, view.progress.done, slots_left(view)
    numbers = pace(job, view.slot_hours)
    work, rise = numbers.work[view.progress.n_previous], job.workload / job.deadline_slots
    for k in range(2, left + 1):
        missing = min(target + (k - 1) * rise, job.workload) - done - WORK_TOLERANCE * job.workload
        for n in range(job.n_min, job.n_max + 1):
            if work[n] + numbers.reach[k - 1][n] >= missing:
                return n
    return fastest_size(view)


def fastest_size(view: View) -> int:
    """Return the first size of the sequence that does most on-demand work until d.

    If d is out of reach and changes last so long that no instances is the best choice until d,
    returns the size that finishes first after d (ours): waiting would only postpone the restart.
    """
    job, before = view.job, view.progress.n_previous
    numbers = pace(job, view.slot_hours)
    n = numbers.fastest[slots_left(view)][before]
    if n or deadline_in_reach(view):
        return n
    work, left = numbers.work[before], work_left(view)
    return min(
        range(job.n_min, job.n_max + 1), key=lambda size: slots_needed(left, work[size], numbers.gain[size])
    )


def meets_deadline(view: View, n: int) -> bool:
    """Return True if ``n`` instances, held from now on, finish by the deadline."""
    job = view.job
    first = job.efficiency(n, view.progress.n_previous)
    slots = slots_left(view) - view.elapsed
    work = (first + slots - 1) * pace(job, view.slot_hours).gain[n]
    return work >= work_left(view) - WORK_TOLERANCE * job.workload


def least_constant_size(view: View) -> int:
    """Return the least constant size that meets the deadline, or the fastest if none does (M4.1)."""
    for n in range(view.job.n_min, view.job.n_max + 1):
        if meets_deadline(view, n):
            return n
    return fastest_size(view)


def finishing_size(view: View) -> int | None:
    """Return the least n that finishes the job in this slot, or None."""
    job = view.job
    missing = work_left(view) - WORK_TOLERANCE * job.workload
    return None if missing > most_in_slot(view) else least_size(view, job.workload)


def spot_is_cheaper(view: View) -> bool:
    """Return True if spot instances are available and cost less than on-demand (M3.2)."""
    return bool(usable_spot(view.available, view.price, view.on_demand_usd))


def cheapest_split(view: View, n: int) -> Allocation:
    """Return the cheapest allocation of ``n`` instances: spot first if it is cheaper, then on-demand (M3.2)."""
    spot = spot_held(n, view.available, view.price, view.on_demand_usd)
    return Allocation(n - spot, spot)


def all_spot(view: View) -> Allocation:
    """Return all spot up to n_max if it is cheaper than on-demand and at least n_min are available, else nothing.

    Never more than finishes the job in this slot (ours), since the rest would be paid for nothing.
    """
    n = min(view.available, view.job.n_max)
    if not spot_is_cheaper(view) or n < view.job.n_min:
        return HOLD_NOTHING
    enough = finishing_size(view)
    return Allocation(0, n if enough is None else min(n, enough))


def slots_left(view: View) -> int:
    """Return the number of slots to the deadline, including this slot."""
    return view.job.deadline_slots - view.slot


def keeps_deadline(view: View, n: int) -> bool:
    """Return True if on-demand alone can still finish by d after this slot on ``n`` instances."""
    numbers = pace(view.job, view.slot_hours)
    left = work_left(view) - slot_gain(view, n)
    return left <= numbers.reach[slots_left(view) - 1][n] + WORK_TOLERANCE * view.job.workload


def deadline_in_reach(view: View) -> bool:
    """Return True if on-demand alone can finish by d from this slot on."""
    numbers = pace(view.job, view.slot_hours)
    reach = numbers.reach[slots_left(view)][view.progress.n_previous]
    if view.elapsed_hours:
        reach -= view.elapsed * max(numbers.gain)
    return work_left(view) <= reach + WORK_TOLERANCE * view.job.workload


def rush(view: View) -> Allocation:
    """Return the size that does most work until d, spot first if cheaper; in the last slot only the size needed."""
    enough = finishing_size(view)
    return cheapest_split(view, fastest_size(view) if enough is None else enough)


def safety_net(view: View, wish: Allocation) -> Allocation:
    """Return ``wish`` if d stays within reach of on-demand alone after this slot, else N_max (M4.2; exact form ours).

    The spot of this slot counts, later spot is not assumed, and the reach includes the loss of
    mu_up on growing again. A deadline within reach at the first slot therefore stays within reach
    whatever the market does. A deadline out of reach gives the size that does most work by d.
    """
    return wish if keeps_deadline(view, wish.total) else rush(view)


def least_net(view: View, wish: Allocation) -> Allocation:
    """Return an allocation with the guarantee of `safety_net`, of the least size at or above ``wish`` (ours)."""
    if keeps_deadline(view, wish.total):
        return wish
    job = view.job
    for n in range(max(job.n_min, wish.total + 1), job.n_max + 1):
        if keeps_deadline(view, n):
            return cheapest_split(view, n)
    return rush(view)


def worth_finishing(view: View) -> bool:
    """Return whether M2.6, applied in this slot instead of at d, would finish the job on demand (ours).

    Always True for a job with a hard deadline.
    """
    job = view.job
    if job.must_finish:
        return True
    end = on_demand_to_go(
        job,
        done=view.progress.done,
        n_previous=view.progress.n_previous,
        slot=view.slot,
        on_demand_usd=view.on_demand_usd,
        slot_hours=view.slot_hours,
    )
    return end.n > 0


def priced_net(view: View, wish: Allocation) -> Allocation:
    """Return `least_net` if d is within reach and finishing on demand pays (`worth_finishing`), else ``wish`` (M4; ours)."""
    if keeps_deadline(view, wish.total) or not deadline_in_reach(view) or not worth_finishing(view):
        return wish
    return least_net(view, wish)


def always_worth_finishing(job: Job, on_demand_usd: float, slot_hours: float) -> bool:
    """Return whether `priced_net` protects the deadline in every state from which on-demand meets d (ours).

    It is enough to check the states whose rest is most expensive on demand: all of the work, or all
    that can still be done, with no slack left.
    """
    key = on_demand_usd, slot_hours
    cached: bool | None = True if job.must_finish else job.kept.get(key)
    if cached is None:
        cached = job.kept[key] = _always_worth_finishing(job, on_demand_usd, slot_hours)
    return cached


def _always_worth_finishing(job: Job, on_demand_usd: float, slot_hours: float) -> bool:
    reach = [row[0] for row in pace(job, slot_hours).reach]
    enough = next((k for k, work in enumerate(reach) if work >= job.workload), len(reach) - 1)
    return all(
        on_demand_to_go(
            job,
            done=max(0.0, job.workload - reach[k]),
            n_previous=0,
            slot=job.deadline_slots - k,
            on_demand_usd=on_demand_usd,
            slot_hours=slot_hours,
        ).n
        > 0
        for k in (enough, enough - 1)
        if reach[k] > 0.0
    )


def guard_allows_spot(view: View, *, runs: bool = False) -> bool:
    """Return whether the guard of M4.3 allows a job of 0 or N instances to stay off on-demand.

    After a slot without any progress, such as a failed start, at least a slot and a restart must
    remain beyond the work left, so that on-demand is in time even if its start loses a slot. If
    spot is running (``runs``) and continues, the slot loses at most the restart.
    """
    job, n = view.job, view.job.n_max
    slots = work_left(view) / pace(job, view.slot_hours).gain[n]
    restart = max(0.0, 1.0 - after_growing(job.restart, n))
    return slots_left(view) - (restart if runs else 1.0) - slots >= 1.0 + restart - WORK_TOLERANCE


# ---
# Parts of the sentence that explains a decision with the figures of the slot.


def slack_slots(view: View) -> int:
    """Return how many idle slots remain before only the fastest on-demand meets d; negative if d is missed."""
    numbers = pace(view.job, view.slot_hours)
    left = work_left(view)
    for k in range(slots_left(view) + 1):
        if numbers.reach[k][view.progress.n_previous] >= left * (1 - 1e-9):
            return slots_left(view) - k
    missing = left - numbers.reach[slots_left(view)][view.progress.n_previous]
    return -math.ceil(missing / max(numbers.gain) - 1e-9)


def slots_ahead(view: View) -> float:
    """Return the lead over uniform progress in slots, (z - Zexp(t)) / (L / d); negative when behind."""
    job = view.job
    ahead = view.progress.done - expected_progress(job, view.slot + view.elapsed)
    return ahead * job.deadline_slots / job.workload


def pace_text(view: View) -> str:
    """Return, for example, ``the job is 1.3 slots ahead of schedule``; in the first slot the slots to the deadline."""
    if view.slot == 0:
        left = _slots(slots_left(view), 0)
        return f"{left} {'is' if slots_left(view) == 1 else 'are'} left to the deadline"
    ahead = slots_ahead(view)
    if round(abs(ahead), 1) == 0.0:
        return "the job is on schedule"
    return f"the job is {_slots(abs(ahead), 1)} {'ahead of' if ahead > 0 else 'behind'} schedule"


def spot_text(view: View) -> str:
    """Return, for example, ``5 of 8 spot instances are available at 0.31 of on-demand``; a count that nobody saw is "assumed"."""
    if view.above_ceiling:
        return f"spot costs {usd_price(view.quoted)} USD, above the job's highest of {usd_price(view.job.max_spot_usd)}"
    usable = min(view.available, view.job.n_max)
    availability = "available" if view.availability_observed else "assumed to be available"
    text = f"{usable} of {view.job.n_max} spot instances are {'left for this job' if view.others else availability}"
    return f"{text} at {price_text(view)}" if usable else text


def slack_text(view: View) -> str:
    """Return ``slack is 2 slots``, or by how much the fastest on-demand misses the deadline."""
    if not view.on_demand.sold:
        return "no on-demand instances here: the deadline is met only if spot stays available"
    slack = slack_slots(view)
    if deadline_in_reach(view):
        return f"slack is {_slots(max(slack, 0), 0)}"
    return f"even the fastest on-demand allocation misses the deadline by {_slots(-slack, 0)}"


def given_up_text(found: Shortfall) -> str:
    """Return the reason to run nothing because no instances finish the job (M2.7)."""
    return (
        f"no instances: none finish the job before it is given up; {found.n} on-demand need {_slots(found.slots, 0)}, "
        f"the deadline is {_slots(found.left, 0)} away"
    )


def narrate(view: View, allocation: Allocation, *, rule: str = "") -> str:
    """Return the reason for ``allocation`` in one sentence; ``rule`` is the addition of the policy."""
    if is_done(view):
        return "no instances: the job is finished"
    tail = f" ({rule})" if rule else ""
    if not view.observed:
        held = f"{allocation.on_demand} on-demand" if allocation.total else "no instances"
        return f"{held}: the market was not observed in this slot, and {slack_text(view)}{tail}"
    on_demand, spot = allocation.on_demand, allocation.spot
    if spot and not on_demand:
        return f"spot only: spot costs {price_text(view)}, and {pace_text(view)}{tail}"
    if on_demand and spot:
        held = f"{on_demand} on-demand and {spot} spot"
        return f"{held}: {pace_text(view)}, {slack_text(view)}, and {spot_text(view)}{tail}"
    if on_demand:
        return f"on-demand only: {slack_text(view)}, and {spot_text(view)}{tail}"
    if found := never_finishes(view.job, view.progress, slot=view.slot, slot_hours=view.slot_hours):
        return given_up_text(found)
    return f"no instances: {pace_text(view)}, {slack_text(view)}, and {spot_text(view)}{tail}"


def price_text(view: View) -> str:
    """Return ``0.31 of on-demand``, or ``11.80 USD`` if no on-demand price is known."""
    if view.on_demand.known:
        return f"{view.price / view.on_demand_usd:.2f} of on-demand"
    return f"{usd_price(view.price)} USD"


def _slots(count: float, digits: int) -> str:
    text = f"{count:.{digits}f}"
    return f"{text} slot" if text == "1" else f"{text} slots"
