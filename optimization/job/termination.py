"""How a job ends on on-demand alone: the termination of M2.6 and the terminal value of M3.3 (b) (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from optimization.job.definition import Job
from optimization.job.progress import needed
from optimization.job.throughput import rates
from optimization.kernels.rules import after_growing, ending, slots_needed
from warehouse.errors import JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class ToGo:
    """The best ending from a state: ``n`` on-demand instances for ``slots`` slots, worth ``value_usd`` net of their cost.

    n = 0 and slots = 0 mean that the job is finished (value V) or given up (value 0).
    """

    value_usd: float
    n: int
    slots: int


def on_demand_to_go(
    job: Job, *, done: float, n_previous: int, slot: int, on_demand_usd: float, slot_hours: float
) -> ToGo:
    """max over constant n of V(slot + k) - k n p_o Delta, or 0 if none is positive (M2.6 with slot = d, M3.3 (b)).

    k is the number of slots that n instances need from ``done`` work units, the first of them at the efficiency of
    M2.4. Of equal values the least n is taken. A finished job is worth V(slot).
    """
    sizes, gain = _held(job, slot_hours)
    best = ending(
        sizes, gain, job.restart, job.worth, on_demand_usd * slot_hours, slot, needed(job.workload) - done,
        n_previous,
    )  # fmt: skip
    return ToGo(value_usd=best.usd, n=sizes[best.size], slots=best.slots)


@lru_cache(maxsize=512)
def _held(job: Job, slot_hours: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Sizes (0 and n_min..n_max) and the work each does in a slot: a job asks for many endings."""
    gain = rates(job.throughput, job.n_max) * slot_hours
    sizes = (0, *range(job.n_min, job.n_max + 1))
    return sizes, tuple(float(gain[n]) for n in sizes)


def infeasible_by(job: Job, *, slot_hours: float) -> int:
    """By how many slots on-demand alone misses gamma d at its fastest; 0 if the job can be finished before it (M2.7).

    A job is worth nothing from gamma d on, so finishing needs k < gamma d slots.
    """
    sizes, gain = _held(job, slot_hours)
    rest = needed(job.workload)
    fastest = min(
        slots_needed(rest, after_growing(job.restart, n) * g, g)
        for n, g in zip(sizes[1:], gain[1:], strict=True)
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
