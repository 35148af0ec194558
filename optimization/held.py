"""Where a running job stands, from what was decided for it and what the market then gave (M2.4)."""

from __future__ import annotations

from collections.abc import Mapping

from optimization.job import Job, Progress
from optimization.market import MarketWindow
from optimization.plan import Allocation
from optimization.throughput import rates

NOTHING = Allocation(0, 0)


def held(job: Job, decided: Allocation, available: int) -> Allocation:
    """What could be held of a decision: no more spot than there is, and nothing at all below ``n_min``.

    >>> from optimization.throughput import Linear
    >>> job = Job(name="j", workload=9, deadline_slots=9, n_min=1, n_max=8, throughput=Linear(), value=1)
    >>> held(job, Allocation(1, 4), 2)
    Allocation(on_demand=1, spot=2)
    """
    kept = Allocation(decided.on_demand, min(decided.spot, available))
    return kept if kept.total >= job.n_min else NOTHING


def held_so_far(job: Job, window: MarketWindow, decided: Mapping[int, Allocation], *, slots: int) -> Progress:
    """Progress after the job's first ``slots`` slots if each held what was decided for it (ours).

    A slot without a decision held nothing. Spot that was not there, or that a gap leaves unknown, was not held and
    is not paid for. ``window`` must cover those slots; progress stops at the workload, and so does the paying.
    """
    gain = rates(job.throughput, job.n_max) * window.slot_hours
    done, previous, cost = 0.0, 0, 0.0
    for slot in range(slots):
        if done >= job.workload:
            break
        kept = held(job, decided.get(slot, NOTHING), int(window.available[slot]))
        hourly = kept.on_demand * window.on_demand_usd + kept.spot * float(window.price[slot])
        cost += hourly * window.slot_hours
        done += job.efficiency(kept.total, previous) * float(gain[kept.total])
        previous = kept.total
    return Progress(done=min(done, job.workload), n_previous=previous, cost_usd=cost)
