"""The job: how fast it runs, how far it is, what it is worth, and how it ends on on-demand alone (M2.1, M2.2, M2.4-M2.6)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np

from optimization.kernels.rules import (
    MOST_SLOTS,
    Restart,
    Value,
    after_growing,
    efficiency,
    ending,
    late_limit,
    slots_needed,
    value_at,
)
from warehouse.errors import JobError

#: A job is finished when its progress is within this share of the workload. Sums of slot gains carry rounding
#: errors of about 1e-15 each, so that a plan which finishes exactly must not fail by them.
TOLERANCE = 1e-9


def needed(workload: float) -> float:
    """The progress at which a workload counts as done.

    >>> needed(100.0) < 100.0
    True
    """
    return workload * (1.0 - TOLERANCE)


def finished(done: float, workload: float) -> bool:
    """True once ``done`` work units finish the job: z >= L, up to `TOLERANCE` (M2.4)."""
    return done >= needed(workload)


# ---
# How fast a job runs on n instances: H(n) in work units per hour (M2.2).


class Throughput(Protocol):
    """H(n), work units per hour on n instances; H(0) = 0. An immutable, hashable value."""

    def __hash__(self) -> int:
        """Equal throughputs have equal hashes."""
        ...

    def rate(self, n: int) -> float:
        """Work units per hour on ``n`` instances."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """H(n) = alpha n + beta for n >= 1 (paper A)."""

    alpha: float = 1.0
    beta: float = 0.0

    def rate(self, n: int) -> float:
        """Work units per hour on ``n`` instances."""
        return self.alpha * n + self.beta if n >= 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Amdahl:
    """H(n) = scale / ((1 - f) + f / n): a share f of the work is parallel."""

    parallel: float
    scale: float = 1.0

    def rate(self, n: int) -> float:
        """Work units per hour on ``n`` instances."""
        return self.scale / ((1.0 - self.parallel) + self.parallel / n) if n >= 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """H(n) = scale n^p."""

    exponent: float
    scale: float = 1.0

    def rate(self, n: int) -> float:
        """Work units per hour on ``n`` instances."""
        return self.scale * float(n) ** self.exponent if n >= 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTable:
    """H(n) measured: ``rates[n - 1]`` work units per hour on n instances."""

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(self.rates))

    def rate(self, n: int) -> float:
        """Work units per hour on ``n`` instances; raises `JobError` beyond the table."""
        if n < 1:
            return 0.0
        if n > len(self.rates):
            raise JobError(
                f"throughput table ends at {len(self.rates)} instances, asked for {n}", remedy="lower n_max"
            )
        return self.rates[n - 1]


@lru_cache(maxsize=512)
def rates(throughput: Throughput, n_max: int) -> np.ndarray:
    """H(0..n_max), shape (n_max + 1,), work units per hour; one array for all who ask, closed for writing.

    Raises `JobError` if any rate is not positive and finite. A throughput is a hashable value.
    """
    table = np.array([throughput.rate(n) for n in range(n_max + 1)], dtype=float)
    if not np.isfinite(table).all() or (table[1:] <= 0).any():
        raise JobError(f"throughput {throughput} gives rates {table[1:]}", expected="positive finite rates")
    table.flags.writeable = False
    return table


# ---
# The job, its progress and its value (M2.1, M2.5).


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A fine-tuning job in slots (M2.1).

    ``workload`` is in work units, ``throughput`` in work units per hour; ``deadline_slots`` counts slots from the job's
    first slot (slot 0). ``mu_up`` / ``mu_down`` are the shares of a slot that still make progress when the number of
    instances grows / shrinks; a change that lasts longer than a slot makes them negative (ours): such a slot owes progress,
    which later ones pay back. ``value`` is in USD; ``gamma`` > 1 is the decay: the value is gone at gamma * d.
    ``must_finish`` records that no value was given and one was chosen that never gives up while finishing is possible.
    ``gpus`` is the number of GPUs of an instance, None where it is not known; no rule reads it, answers show it.
    ``max_spot_usd`` is the highest price of a spot instance-hour at which the job runs spot, ``budget_usd`` the most that it may
    cost in all (M2.10).
    ``restart`` and ``worth`` are made of these, as the rules of M2.4 and M2.5 read them.
    """

    name: str
    workload: float
    deadline_slots: int
    n_min: int
    n_max: int
    throughput: Throughput
    mu_up: float = 1.0
    mu_down: float = 1.0
    value: float
    gamma: float = 1.5
    resumable: bool = True
    must_finish: bool = False
    gpus: int | None = None
    max_spot_usd: float = math.inf
    budget_usd: float = math.inf
    restart: Restart = field(init=False, repr=False, compare=False)
    worth: Value = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        validate_job(self)
        object.__setattr__(self, "restart", Restart(float(self.mu_up), float(self.mu_down)))
        worth = Value(float(self.value), int(self.deadline_slots), float(self.gamma))
        object.__setattr__(self, "worth", worth)

    @property
    def late_limit(self) -> float:
        """gamma d, in slots: from here on the job is worth nothing."""
        return late_limit(self.worth)

    def completion_value(self, slots: float) -> float:
        """V(T), USD, for a job finished after ``slots`` slots (M2.5)."""
        return value_at(self.worth, slots)

    def efficiency(self, n: int, n_previous: int) -> float:
        """mu of M2.4 for a slot on ``n`` instances after one on ``n_previous``."""
        return efficiency(self.restart, n, n_previous)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a job stands at the start of a slot: work done, instances held in the slot before, USD paid so far, and its place.

    ``done`` is negative while a change of size that lasts longer than a slot is not paid back yet (ours). ``place`` counts
    among the
    markets of a job that may move (M11); a job of one market has no other.
    """

    done: float = 0.0
    n_previous: int = 0
    cost_usd: float = 0.0
    place: int = 0


def validate_job(job: Job) -> None:
    """Raise `JobError` on the first contradiction."""
    if not job.workload > 0:
        raise JobError(f"job {job.name!r}: workload {job.workload}", expected="a positive workload")
    if job.deadline_slots < 1:
        raise JobError(
            f"job {job.name!r}: deadline of {job.deadline_slots} slots", expected="at least one slot"
        )
    if not 1 <= job.n_min <= job.n_max:
        raise JobError(
            f"job {job.name!r}: n_min {job.n_min}, n_max {job.n_max}", expected="1 <= n_min <= n_max"
        )
    if not (-math.inf < job.mu_up <= 1.0 and -math.inf < job.mu_down <= 1.0):
        raise JobError(
            f"job {job.name!r}: mu_up {job.mu_up}, mu_down {job.mu_down}",
            expected="finite shares of a slot, at most 1 (below 0: the change lasts longer than a slot)",
        )
    if not job.gamma > 1.0:
        raise JobError(f"job {job.name!r}: gamma {job.gamma}", expected="a decay above 1")
    if job.value < 0:
        raise JobError(f"job {job.name!r}: value {job.value} USD", expected="a value >= 0")
    rates(job.throughput, job.n_max)


# ---
# The ending on on-demand alone: M2.6, and the terminal value of M3.3 (b) (ours).


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


#: Money by which rounding may pass a budget, USD.
ROUNDING_USD = 1e-6


def guard_usd(job: Job, progress: Progress, *, left: int, on_demand_usd: float, slot_hours: float) -> float:
    """Return the least that on-demand alone costs from where the job stands to its end, USD; 0 for a finished job.

    Within ``left`` slots, or where on-demand alone cannot finish it in them, in whatever time it takes.
    """
    rest = needed(job.workload) - progress.done
    if rest <= 0:
        return 0.0
    sizes, gain = _held(job, slot_hours)
    slots = [
        slots_needed(rest, job.efficiency(n, progress.n_previous) * g, g)
        for n, g in zip(sizes[1:], gain[1:], strict=True)
    ]
    in_time = min(slots) <= left
    instances = min(n * k for n, k in zip(sizes[1:], slots, strict=True) if k <= left or not in_time)
    return instances * on_demand_usd * slot_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """That even the fastest choice of on-demand instances misses a deadline (M2.7).

    ``n`` instances need ``slots`` slots for the rest where ``left`` are left; ``enough`` is the least number above n_max that would
    do, None where that is not known or no number up to `MOST_TRIED` does.
    """

    n: int
    slots: int
    left: int
    enough: int | None


#: Instances up to which a number that would do is looked for.
MOST_TRIED = 1024


def shortfall(job: Job, progress: Progress, *, slot: int, slot_hours: float) -> Shortfall | None:
    """Why a job cannot be done by d from where it stands at a slot; None where on-demand alone can still do it."""
    rest, left = needed(job.workload) - progress.done, job.deadline_slots - slot
    sizes, gain = _held(job, slot_hours)
    if rest <= 0:
        return None
    tried = [
        (slots_needed(rest, job.efficiency(n, progress.n_previous) * g, g), n, g)
        for n, g in zip(sizes[1:], gain[1:], strict=True)
    ]
    # Of sizes for which no number of slots is enough the one that does most.
    slots, n, _ = min(tried, key=lambda one: (one[0], -one[2] if one[0] >= MOST_SLOTS else 0.0, one[1]))
    if slots <= left:
        return None
    return Shortfall(n=n, slots=slots, left=left, enough=_enough(job, rest, left, slot_hours))


def _enough(job: Job, rest: float, left: int, slot_hours: float) -> int | None:
    for n in range(job.n_max + 1, MOST_TRIED + 1) if left > 0 else ():
        try:
            gain = job.throughput.rate(n) * slot_hours
        except JobError:  # a table says nothing of more than it has
            return None
        if slots_needed(rest, after_growing(job.restart, n) * gain, gain) <= left:
            return n
    return None


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
