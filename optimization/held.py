"""Where a running job stands, from what was decided for it and what the market then gave (M2.4)."""

from __future__ import annotations

from collections.abc import Mapping

from optimization.job import Job, Progress
from optimization.plan import Allocation
from optimization.policy import View
from optimization.progress import finished
from optimization.replay import Seen, step

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


def held_so_far(
    job: Job, seen: Seen, decided: Mapping[int, Allocation], *, slots: int
) -> tuple[Progress, list[View]]:
    """Progress after the job's first ``slots`` slots if each held what was decided for it, and the view of each slot (ours).

    A slot without a decision held nothing. Spot that was not there, or that a gap leaves unknown, was not held and
    is not paid for. Nothing is paid after the finish, and no later view is given.
    """
    progress = Progress()
    views: list[View] = []
    for slot in range(slots):
        if finished(progress.done, job.workload):
            break
        view = seen.view(job, progress, slot)
        views.append(view)
        progress = step(progress, held(job, decided.get(slot, NOTHING), view.available), view)
    return progress, views
