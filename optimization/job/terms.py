"""From a person's terms to a job's: work units, overheads, the value of a job that must finish (M2.1, M2.6)."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from optimization.job.definition import Job
from optimization.job.progress import TOLERANCE
from optimization.job.throughput import Throughput, rates
from optimization.kernels.rules import efficiency_table, slots_needed_each
from warehouse.errors import JobError

WorkUnit = Literal["tokens", "gpu_hours", "slots"]

#: Share added on top of the least must-finish value, so that rounding cannot turn the last choice into giving up.
VALUE_MARGIN = 0.05


def mu_from_overhead(overhead_hours: float, slot_hours: float) -> float:
    """Share of a slot that still makes progress when a change of size takes ``overhead_hours`` (M2.4).

    mu = 1 - overhead / Delta. It is negative for an overhead longer than a slot (ours): M2.4 charges a change to one slot, which
    then owes the progress of the slots the change reaches into. At the size it was made for the debt is paid back exactly when
    the change would have ended; a size left earlier keeps its debt, which overstates the loss. Raises `JobError` for a negative or
    infinite overhead.

    >>> mu_from_overhead(0.05, 0.5)
    0.9
    >>> mu_from_overhead(0.2, 0.05)
    -3.0
    """
    if not slot_hours > 0 or not 0 <= overhead_hours < math.inf:
        raise JobError(
            f"overhead of {overhead_hours} h in slots of {slot_hours} h",
            expected="a finite overhead >= 0 and slot > 0",
        )
    return 1.0 - overhead_hours / slot_hours


def workload_units(amount: float, unit: WorkUnit, throughput: Throughput, slot_hours: float) -> float:
    """The workload in the units in which ``throughput`` counts (work units per hour).

    ``tokens`` are those units already; a ``gpu_hours`` is what one instance does in an hour, H(1); ``slots``
    are slots of one instance, H(1) Delta each. Raises `JobError` for an amount that is not positive or an
    unknown unit.

    >>> from optimization.job.throughput import Linear
    >>> workload_units(20, "slots", Linear(alpha=2.0), 0.5)
    20.0
    """
    if not (amount > 0 and math.isfinite(amount)):
        raise JobError(f"workload of {amount} {unit}", expected="a positive amount")
    if unit == "tokens":
        return float(amount)
    if unit == "gpu_hours":
        return float(amount) * throughput.rate(1)
    if unit == "slots":
        return float(amount) * throughput.rate(1) * slot_hours
    raise JobError(f"workload unit {unit!r}", expected="tokens, gpu_hours or slots")


def must_finish_value(job: Job, *, on_demand_usd: float, slot_hours: float) -> float:
    """The least value in USD, `VALUE_MARGIN` on top, for which M2.6 never gives up while finishing can still pay (ours).

    M2.6 gives up a rest R at slot t if no constant n has V(t + k) > k n p_o Delta, with k the slots n needs. For n to be
    worth it the value must exceed k n p_o Delta / f(t + k), f = V / v the share left of M2.5; the least such value over n
    grows with R. It is therefore evaluated at the largest rest that can still be finished before gamma d, at most L and what
    t slots can owe (a change may last longer than a slot), for every slot t = 0..d a rest may be judged at (M3.3b asks before d
    too) and every n held before; the largest answer is taken.
    ``job.value`` is not read. Where no whole slot fits between d and gamma d the slots up to d decide alone.
    """
    d, last = job.deadline_slots, math.ceil(job.late_limit) - 1
    sizes = np.arange(job.n_min, job.n_max + 1)
    gain = rates(job.throughput, job.n_max)[sizes] * slot_hours
    first = efficiency_table(job.restart, job.n_max)[:, sizes]
    need, owed = 0.0, max(0.0, -float((first * gain).min()))
    for slot in range(d + 1):
        slots_left = last - slot
        if slots_left < 1:
            continue
        most = ((first + (slots_left - 1)) * gain).max(axis=1)
        rest = np.minimum(job.workload + slot * owed, most)[:, None] - TOLERANCE * job.workload
        k = slots_needed_each(rest, first * gain, gain)
        late = np.maximum(0.0, slot + k - d)
        share = 1.0 - late / ((job.gamma - 1.0) * d)
        price = np.full(k.shape, np.inf)
        np.divide(k * sizes * on_demand_usd * slot_hours, share, out=price, where=(k <= slots_left))
        need = max(need, float(price.min(axis=1).max()))
    return (1.0 + VALUE_MARGIN) * need
