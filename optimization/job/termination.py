"""How a job ends on on-demand alone: the termination of M2.6 and the terminal value of M3.3 (b) (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from optimization.job.definition import Job
from optimization.job.progress import finished, needed
from optimization.job.throughput import rates
from warehouse.errors import JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class ToGo:
    """The best ending from a state: ``n`` on-demand instances for ``slots`` slots, worth ``value_usd`` net of their cost.

    n = 0 and slots = 0 mean that the job is finished (value V) or given up (value 0).
    """

    value_usd: float
    n: int
    slots: int


def slots_needed(rest: float, first: float, gain: float) -> int:
    """Slots to do ``rest`` work units at ``first`` in the first slot and ``gain`` in each later one; at least 1.

    >>> slots_needed(10.0, 4.0, 5.0)
    3
    """
    if rest <= first:
        return 1
    k = 1 + max(0, math.ceil((rest - first) / gain - 1e-6))
    while first + (k - 1) * gain < rest:
        k += 1
    return k


def on_demand_to_go(
    job: Job, *, done: float, n_previous: int, slot: int, on_demand_usd: float, slot_hours: float
) -> ToGo:
    """max over constant n of V(slot + k) - k n p_o Delta, or 0 if none is positive (M2.6 with slot = d, M3.3 (b)).

    k is the number of slots that n instances need from ``done`` work units, the first of them at the efficiency of
    M2.4. Of equal values the least n is taken. A finished job is worth V(slot).
    """
    if finished(done, job.workload):
        return ToGo(value_usd=job.completion_value(slot), n=0, slots=0)
    rest = needed(job.workload) - done
    hourly, price = rates(job.throughput, job.n_max).tolist(), on_demand_usd * slot_hours
    best = ToGo(value_usd=0.0, n=0, slots=0)
    for n in range(job.n_min, job.n_max + 1):
        gain = hourly[n] * slot_hours
        k = slots_needed(rest, job.efficiency(n, n_previous) * gain, gain)
        if job.value - k * n * price <= best.value_usd:
            continue  # not even on time
        value = job.completion_value(slot + k) - k * n * price
        if value > best.value_usd:
            best = ToGo(value_usd=value, n=n, slots=k)
    return best


def infeasible_by(job: Job, *, slot_hours: float) -> int:
    """By how many slots on-demand alone misses gamma d at its fastest; 0 if the job can be finished before it (M2.7).

    A job is worth nothing from gamma d on, so finishing needs k < gamma d slots.
    """
    hourly = rates(job.throughput, job.n_max)
    fastest = min(
        slots_needed(
            needed(job.workload), job.mu_up * float(hourly[n]) * slot_hours, float(hourly[n]) * slot_hours
        )
        for n in range(job.n_min, job.n_max + 1)
    )
    last = math.ceil(job.late_limit) - 1
    return max(0, fastest - last)


def check_job(job: Job, *, uses_spot: bool) -> None:
    """Raise `JobError` if spot is asked for a job that cannot resume from a checkpoint (M2.7)."""
    if uses_spot and not job.resumable:
        raise JobError(
            f"job {job.name!r} cannot resume from a checkpoint and may not use spot",
            expected="a resumable job, or no spot",
            remedy="plan it on on-demand only (OD-only), or let it write checkpoints",
        )
