"""The job, its progress and its value (M2.1, M2.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from optimization.job.throughput import Throughput, rates
from optimization.kernels.rules import Restart, Value, efficiency, late_limit, value_at
from warehouse.errors import JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A fine-tuning job in slots (M2.1).

    ``workload`` is in work units, ``throughput`` in work units per hour; ``deadline_slots`` counts slots from the job's
    first slot (slot 0). ``mu_up`` / ``mu_down`` are the shares of a slot that still make progress when the number of
    instances grows / shrinks; a change that lasts longer than a slot makes them negative (ours): such a slot owes progress,
    which later ones pay back. ``value`` is in USD; ``gamma`` > 1 is the decay: the value is gone at gamma * d.
    ``must_finish`` records that no value was given and one was chosen that never gives up while finishing is possible.
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
    """Where a job stands at the start of a slot: work done, instances held in the slot before, USD paid so far.

    ``done`` is negative while a change of size that lasts longer than a slot is not paid back yet (ours).
    """

    done: float = 0.0
    n_previous: int = 0
    cost_usd: float = 0.0


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
