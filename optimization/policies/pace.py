"""Uniform progress, least sizes and the safety net: what the policies share (M4.2, M4.3; the net is ours)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from optimization.job import Job
from optimization.plan import Allocation
from optimization.policy import View
from optimization.throughput import rates

#: Relative slack of a comparison of work, below the one that declares a job finished, so that the net errs to the safe side.
WORK_TOLERANCE = 1e-10
HOLD_NOTHING = Allocation(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Numbers of one job that every slot asks for, computed once.

    ``gain[n]`` is H(n) Delta, work units in a slot at full efficiency, ``work[n_previous][n]`` the work of
    this slot, mu H(n) Delta (M2.4); ``reach[k][n_previous]`` is the most work k slots of on-demand can do
    after holding ``n_previous``, max over n of (mu(n, n_previous) + k - 1) H(n) Delta (M2.4), and
    ``fastest[k][n_previous]`` that n. Later changes of size never do more, since the change pays mu once
    either way.
    """

    gain: tuple[float, ...]
    work: tuple[tuple[float, ...], ...]
    reach: tuple[tuple[float, ...], ...]
    fastest: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=512)
def pace(job: Job, slot_hours: float) -> Pace:
    """The `Pace` of a job on slots of ``slot_hours`` hours."""
    gain = rates(job.throughput, job.n_max) * slot_hours
    sizes = np.arange(job.n_min, job.n_max + 1)
    before = np.arange(job.n_max + 1)
    efficiency = [[job.efficiency(n, held) for n in range(job.n_max + 1)] for held in before.tolist()]
    now = np.array(efficiency) * gain
    reach: list[tuple[float, ...]] = [(0.0,) * before.size]
    fastest: list[tuple[int, ...]] = [(0,) * before.size]
    for k in range(1, job.deadline_slots + 1):
        work = now[:, sizes] + (k - 1) * gain[sizes]
        best = work.argmax(axis=1)
        reach.append(tuple(work[before, best].tolist()))
        fastest.append(tuple(sizes[best].tolist()))
    work_now = tuple(tuple(row) for row in now.tolist())
    return Pace(gain=tuple(gain.tolist()), work=work_now, reach=tuple(reach), fastest=tuple(fastest))


def expected_progress(job: Job, slot: float) -> float:
    """Zexp: the work done by the start of ``slot`` at uniform progress, L min(1, t / d) (M3.3a)."""
    return job.workload * min(1.0, slot / job.deadline_slots)


def work_left(view: View) -> float:
    """L - z, at least 0, in work units."""
    return max(0.0, view.job.workload - view.progress.done)


def is_done(view: View) -> bool:
    """True when no work is left."""
    return work_left(view) <= WORK_TOLERANCE * view.job.workload


def slot_gain(view: View, n: int) -> float:
    """mu H(n) Delta of this slot on ``n`` instances (M2.4)."""
    return pace(view.job, view.slot_hours).work[view.progress.n_previous][n]


def least_size(view: View, target: float) -> int:
    """The least n with which work after this slot is at least ``target`` units; the fastest n if none."""
    job, before = view.job, view.progress.n_previous
    slack = WORK_TOLERANCE * job.workload
    missing = min(target, job.workload) - view.progress.done - slack
    if missing <= 0.0:
        return 0
    numbers = pace(job, view.slot_hours)
    if missing <= numbers.reach[1][before]:
        work = numbers.work[before]
        for n in range(job.n_min, job.n_max + 1):
            if work[n] >= missing:
                return n
    return numbers.fastest[1][before]


def finishing_size(view: View) -> int | None:
    """The least n that finishes the job in this very slot, None if none does."""
    n = least_size(view, view.job.workload)
    return n if slot_gain(view, n) >= work_left(view) - WORK_TOLERANCE * view.job.workload else None


def size_in_reach(view: View, slots: int) -> int:
    """The least n now with which on-demand can still be at Zexp(t + slots) by then; the fastest if none."""
    job = view.job
    numbers = pace(job, view.slot_hours)
    work, later = numbers.work[view.progress.n_previous], numbers.reach[slots - 1]
    missing = expected_progress(job, view.slot + slots) - view.progress.done - WORK_TOLERANCE * job.workload
    if later[0] >= missing:
        return 0
    for n in range(job.n_min, job.n_max + 1):
        if work[n] + later[n] >= missing:
            return n
    return numbers.fastest[slots][view.progress.n_previous]


def spot_is_cheaper(view: View) -> bool:
    """True when a spot instance is there and costs less than on-demand (M3.2)."""
    return view.available > 0 and view.price < view.on_demand_usd


def split(view: View, n: int) -> Allocation:
    """The cheapest allocation of ``n`` instances: spot first if it is cheaper, the rest on demand (M3.2)."""
    spot = min(n, view.available) if spot_is_cheaper(view) else 0
    return Allocation(n - spot, spot)


def all_spot(view: View) -> Allocation:
    """All spot up to n_max if it is cheaper than on-demand and at least n_min are there, else nothing.

    Never more than finishes the job in this slot (ours): the rest would be paid for nothing.
    """
    n = min(view.available, view.job.n_max)
    if not spot_is_cheaper(view) or n < view.job.n_min:
        return HOLD_NOTHING
    enough = finishing_size(view)
    return Allocation(0, n if enough is None else min(n, enough))


def slots_left(view: View) -> int:
    """Slots from this one to the deadline, this one included."""
    return view.job.deadline_slots - view.slot


def keeps_deadline(view: View, n: int) -> bool:
    """True if after this slot on ``n`` instances on-demand alone can still finish by d."""
    numbers = pace(view.job, view.slot_hours)
    left = work_left(view) - numbers.work[view.progress.n_previous][n]
    return left <= numbers.reach[slots_left(view) - 1][n] + WORK_TOLERANCE * view.job.workload


def deadline_in_reach(view: View) -> bool:
    """True if on-demand alone can finish by d from here."""
    reach = pace(view.job, view.slot_hours).reach[slots_left(view)][view.progress.n_previous]
    return work_left(view) <= reach + WORK_TOLERANCE * view.job.workload


def rush(view: View) -> Allocation:
    """The size that does most work until d, trimmed in the finishing slot; spot first where it is cheaper."""
    enough = finishing_size(view)
    fastest = pace(view.job, view.slot_hours).fastest[slots_left(view)][view.progress.n_previous]
    return split(view, fastest if enough is None else enough)


def safety_net(view: View, wish: Allocation) -> Allocation:
    """``wish`` if waiting one more slot with it still leaves d in reach of on-demand alone, else N_max (M4.2; exact form ours).

    The spot of this slot counts, none is assumed later, and the loss of mu_up on growing again is in the
    reach. If d is in reach at the first slot it therefore stays in reach whatever the market does. Where it
    is out of reach the answer is the size that does most work by d.
    """
    return wish if keeps_deadline(view, wish.total) else rush(view)


def least_net(view: View, wish: Allocation) -> Allocation:
    """The same promise as `safety_net`, kept with the least size at or above ``wish`` (ours)."""
    if keeps_deadline(view, wish.total):
        return wish
    job = view.job
    for n in range(max(job.n_min, wish.total + 1), job.n_max + 1):
        if keeps_deadline(view, n):
            return split(view, n)
    return rush(view)
