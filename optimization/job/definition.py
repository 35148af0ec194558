"""The job model: throughput, progress, value, and the ending on on-demand instances alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from slackwater.optimization.kernels.rules import (
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
from slackwater.warehouse.errors import JobError

#: Relative tolerance on the workload at which a job counts as finished. Sums of slot gains carry
#: rounding errors of about 1e-15 each, and a plan that finishes exactly must not fail by them.
TOLERANCE = 1e-9


def work_needed(workload: float) -> float:
    """Return the progress, in work units, at which a workload counts as done.

    >>> work_needed(100.0) < 100.0
    True
    """
    return workload * (1.0 - TOLERANCE)


def is_finished(done: float, workload: float) -> bool:
    """Return whether ``done`` work units finish the job: z >= L, up to `TOLERANCE` (M2.4)."""
    return done >= work_needed(workload)


# ---
# Throughput: H(n), work units per hour on n instances (M2.2).


class Throughput(Protocol):
    """Throughput H(n) in work units per hour on n instances, with H(0) = 0; immutable and hashable."""

    def __hash__(self) -> int:
        """Return the hash; equal throughputs have equal hashes."""
        ...

    def rate(self, n: int) -> float:
        """Return the work units per hour on ``n`` instances."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Linear throughput H(n) = alpha n + beta for n >= 1 (paper A)."""

    alpha: float = 1.0
    beta: float = 0.0

    def rate(self, n: int) -> float:
        """Return the work units per hour on ``n`` instances."""
        return self.alpha * n + self.beta if n >= 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Amdahl:
    """Amdahl throughput H(n) = scale / ((1 - f) + f / n), where the share f of the work is parallel."""

    parallel: float
    scale: float = 1.0

    def rate(self, n: int) -> float:
        """Return the work units per hour on ``n`` instances."""
        return self.scale / ((1.0 - self.parallel) + self.parallel / n) if n >= 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Power-curve throughput H(n) = scale n^p."""

    exponent: float
    scale: float = 1.0

    def rate(self, n: int) -> float:
        """Return the work units per hour on ``n`` instances."""
        return self.scale * float(n) ** self.exponent if n >= 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTable:
    """Measured throughput: ``rates[n - 1]`` is H(n), work units per hour on n instances."""

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(self.rates))

    def rate(self, n: int) -> float:
        """Return the work units per hour on ``n`` instances; raises `JobError` beyond the end of the table."""
        if n < 1:
            return 0.0
        if n > len(self.rates):
            raise JobError(
                f"throughput table ends at {len(self.rates)} instances, requested: {n}", remedy="lower n_max"
            )
        return self.rates[n - 1]


@lru_cache(maxsize=512)
def rates(throughput: Throughput, n_max: int) -> np.ndarray:
    """Return H(0..n_max), work units per hour, cached and read-only; raises `JobError` unless positive and finite."""
    table = np.array([throughput.rate(n) for n in range(n_max + 1)], dtype=float)
    if not np.isfinite(table).all() or (table[1:] <= 0).any():
        raise JobError(f"throughput {throughput} gives rates {table[1:]}", expected="positive finite rates")
    table.flags.writeable = False
    return table


# ---
# The job, its progress and its value (M2.1, M2.5).


#: Shares of a slot that make progress after a change of size: for all sizes, or by size from 0 to n_max.
Shares = float | tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTimes:
    """Times that instances take in a market, in seconds (M12).

    ``boot`` passes from the grant of an instance until it is up, ``restart`` whenever the group
    forms anew, ``checkpoint`` of working time between checkpoints (0: every moment is one).
    ``notice_saves``: a provider's notice before a loss is long enough to save. ``on_demand_wait``
    passes until on-demand is granted.
    """

    boot: float
    restart: float
    checkpoint: float
    notice_saves: bool = False
    on_demand_wait: float = 0.0

    def restart_seconds(self, n: int) -> float:
        """Return the time until a group of ``n`` instances that are up works: the only statement of the time of a restart."""
        return self.restart

    def new_seconds(self, n: int) -> float:
        """Return the time from a request until a new group of ``n`` on-demand instances works."""
        return self.on_demand_wait + self.boot + self.restart_seconds(n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A fine-tuning job on a grid of slots (M2.1).

    ``workload`` is in work units, ``throughput`` in work units per hour. ``deadline_slots`` counts
    slots from the job's first slot, slot 0.

    ``mu_up`` and ``mu_down`` are the shares of a slot that still make progress when the number of instances
    grows or shrinks, for all sizes or by size from 0 to n_max. They are negative where a change takes longer
    than a slot (ours): that slot makes negative progress, which later slots make up for.

    ``value`` is in USD; with the decay ``gamma`` > 1 the value reaches 0 at gamma * d.
    ``must_finish`` is True if the request gave no value and the value was imputed, so that the job
    is never given up while finishing is possible.

    ``gpus`` is the number of GPUs of an instance, None if unknown; it is used in answers only.
    ``max_spot_usd`` is the highest price of a spot instance-hour at which the job runs spot
    instances, ``budget_usd`` the highest total cost in USD (M2.10). ``times`` are those of the
    instances in the world of M12, None if not stated.

    ``restart`` and ``worth`` hold the restart shares and the value in the form that the rules of
    M2.4 and M2.5 take, ``kept`` results that depend on the job alone, once computed
    (`slackwater.optimization.policies.pace`).
    """

    name: str
    workload: float
    deadline_slots: int
    n_min: int
    n_max: int
    throughput: Throughput
    mu_up: Shares = 1.0
    mu_down: Shares = 1.0
    value: float
    gamma: float = 1.5
    resumable: bool = True
    must_finish: bool = False
    gpus: int | None = None
    max_spot_usd: float = math.inf
    budget_usd: float = math.inf
    times: InstanceTimes | None = None
    restart: Restart = field(init=False, repr=False, compare=False)
    worth: Value = field(init=False, repr=False, compare=False)
    kept: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        validate_job(self)
        object.__setattr__(self, "restart", restart_by_size(self.mu_up, self.mu_down, self.n_max))
        worth = Value(float(self.value), int(self.deadline_slots), float(self.gamma))
        object.__setattr__(self, "worth", worth)

    @property
    def late_limit(self) -> float:
        """The end of the value's decay, gamma d in slots: a job that finishes at or after it has no value."""
        return late_limit(self.worth)

    def completion_value(self, slots: float) -> float:
        """Return V(T) in USD for a job that finishes after ``slots`` slots (M2.5)."""
        return value_at(self.worth, slots)

    def efficiency(self, n: int, n_previous: int) -> float:
        """Return mu of M2.4 for a slot on ``n`` instances after a slot on ``n_previous``."""
        return efficiency(self.restart, n, n_previous)


def restart_by_size(mu_up: Shares, mu_down: Shares, n_max: int) -> Restart:
    """Return the overhead of a change of size as the rules of M2.4 read it; shares are for all sizes or by size."""
    up, down = np.ones(n_max + 1), np.ones(n_max + 1)
    up[:], down[:] = mu_up, mu_down
    return Restart(up, down)


def times_of(job: Job, slot_hours: float) -> InstanceTimes:
    """Return the times of the job's instances; by default no boot, and a restart of `1 - mu_up` slots (M2.4)."""
    restart = (1.0 - after_growing(job.restart, job.n_max)) * slot_hours * 3600.0
    return job.times or InstanceTimes(boot=0.0, restart=restart, checkpoint=0.0)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Numbers of on-demand and spot instances in a slot."""

    on_demand: int
    spot: int

    @property
    def total(self) -> int:
        """Total number of instances, n = n_o + n_s."""
        return self.on_demand + self.spot


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """State of a job at the start of a slot: work done, instances in the previous slot, USD paid, and market.

    ``done`` is negative while the overhead of a change of size longer than a slot is not yet made
    up for (ours). ``place`` is the index of the current market among the markets of a multi-market
    job (M11), 0 for a single-market job.
    """

    done: float = 0.0
    n_previous: int = 0
    cost_usd: float = 0.0
    place: int = 0


def validate_job(job: Job) -> None:
    """Raise `JobError` on the first invalid field of a job."""
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
    shares = np.concatenate(restart_by_size(job.mu_up, job.mu_down, job.n_max))
    if not ((shares > -math.inf) & (shares <= 1.0)).all():
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
# The ending on on-demand instances alone: M2.6, and the terminal value of M3.3 (b) (ours).


@dataclass(frozen=True, slots=True, kw_only=True)
class ToGo:
    """Best ending: ``n`` on-demand for ``slots`` slots, value less cost in USD; 0 and 0: finished, or given up (0)."""

    value_usd: float
    n: int
    slots: int


def on_demand_to_go(
    job: Job, *, done: float, n_previous: int, slot: int, on_demand_usd: float, slot_hours: float
) -> ToGo:
    """Return the ending that maximises V(slot + k) - k n p_o Delta over constant n (M2.6 with slot = d, M3.3 (b)).

    k is the number of slots that n instances need from ``done`` work units, with the efficiency of
    M2.4 in the first slot. If no ending has a positive value the job is given up with value 0. Ties
    go to the smallest n. The value of a finished job is V(slot).
    """
    sizes, gain = _work_by_size(job, slot_hours)
    best = ending(
        sizes, gain, job.restart, job.worth, on_demand_usd * slot_hours, slot, work_needed(job.workload) - done,
        n_previous,
    )  # fmt: skip
    return ToGo(value_usd=best.usd, n=sizes[best.size], slots=best.slots)


@lru_cache(maxsize=512)
def _work_by_size(job: Job, slot_hours: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the sizes (0 and n_min..n_max) and the work of each in a slot; cached, since a job needs many endings."""
    gain = rates(job.throughput, job.n_max) * slot_hours
    sizes = (0, *range(job.n_min, job.n_max + 1))
    return sizes, tuple(float(gain[n]) for n in sizes)


def _finishes(job: Job, rest: float, before: int, slot_hours: float) -> list[tuple[int, int, float]]:
    """Return for each size the slots that ``rest`` work takes after ``before`` instances, the size, and its work in a slot."""
    sizes, gain = _work_by_size(job, slot_hours)
    return [
        (slots_needed(rest, job.efficiency(n, before) * g, g), n, g)
        for n, g in zip(sizes[1:], gain[1:], strict=True)
    ]


ROUNDING_USD = 1e-6  # Tolerance for rounding errors when a cost is compared with a budget, USD


def guard_usd(job: Job, progress: Progress, *, left: int, on_demand_usd: float, slot_hours: float) -> float:
    """Return the least cost in USD of finishing on a constant on-demand size within ``left`` slots, else at all."""
    rest = work_needed(job.workload) - progress.done
    if rest <= 0:
        return 0.0
    finishes = _finishes(job, rest, progress.n_previous, slot_hours)
    in_time = min(finishes)[0] <= left
    instances = min(n * k for k, n, _ in finishes if k <= left or not in_time)
    return instances * on_demand_usd * slot_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Evidence that even the fastest on-demand size misses the deadline (M2.7).

    ``n`` instances need ``slots`` slots for the remaining work where only ``left`` are left; the work ends
    after ``worked`` slots, within the last of them.
    ``enough`` is the smallest size above n_max that would be in time; None if the throughput is not
    known for it or no size up to `MOST_TRIED` is enough.
    """

    n: int
    slots: int
    worked: float
    left: int
    enough: int | None


MOST_TRIED = 1024  # Largest number of instances tried when looking for a size that would be in time


def shortfall(job: Job, progress: Progress, *, slot: int, slot_hours: float) -> Shortfall | None:
    """Return why a job cannot finish by its deadline from its state at a slot; None if on-demand alone still can."""
    rest, left = work_needed(job.workload) - progress.done, job.deadline_slots - slot
    if rest <= 0:
        return None
    # If no size ever finishes, take the size with the most work per slot.
    slots, n, each = min(
        _finishes(job, rest, progress.n_previous, slot_hours),
        key=lambda finish: (finish[0], -finish[2] if finish[0] >= MOST_SLOTS else 0.0, finish[1]),
    )
    if slots <= left:
        return None
    surplus = (slots - 1 + job.efficiency(n, progress.n_previous)) * each - rest
    worked = slots - max(0.0, surplus / each) if slots < MOST_SLOTS else slots
    return Shortfall(
        n=n, slots=slots, worked=worked, left=left, enough=_least_enough(job, rest, left, slot_hours)
    )


def never_finishes(job: Job, progress: Progress, *, slot: int, slot_hours: float) -> Shortfall | None:
    """Return why on-demand alone finishes only when the job is worth nothing any more, None if it is in time (M2.7)."""
    found = shortfall(job, progress, slot=slot, slot_hours=slot_hours)
    return found if found is not None and slot + found.slots >= job.late_limit else None


def _least_enough(job: Job, rest: float, left: int, slot_hours: float) -> int | None:
    grown = after_growing(job.restart, job.n_max)  # a larger group is taken to restart as the largest does
    for n in range(job.n_max + 1, MOST_TRIED + 1) if left > 0 else ():
        try:
            gain = job.throughput.rate(n) * slot_hours
        except JobError:  # a rate table has no entry beyond its end
            return None
        if slots_needed(rest, grown * gain, gain) <= left:
            return n
    return None


def infeasible_by(job: Job, *, slot_hours: float) -> int:
    """Return the slots by which the fastest on-demand size misses gamma d, where the value is 0; 0 if none (M2.7)."""
    fastest, _, _ = min(_finishes(job, work_needed(job.workload), 0, slot_hours))
    last = math.ceil(job.late_limit) - 1
    return max(0, fastest - last)


def check_job(job: Job, *, uses_spot: bool) -> None:
    """Raise `JobError` if a job that cannot resume from a checkpoint is to use spot instances (M2.7)."""
    if uses_spot and not job.resumable:
        raise JobError(
            f"job {job.name!r} cannot resume from a checkpoint and may not use spot",
            expected="a resumable job, or no spot",
            remedy="let it write checkpoints, or name a single market: there it is planned with on-demand only (OD-only)",
        )
