"""Where a running job stands, from what was decided for it, what the market then gave, and what was reported of it (M2.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from optimization.job.definition import Job, Progress
from optimization.job.progress import finished
from optimization.policies.contract import View
from optimization.policies.pace import slot_gain
from optimization.replay.run import Seen, step
from optimization.window.plan import Allocation

NOTHING = Allocation(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What somebody saw of a running job: it counts from the start of ``slot`` on (ours).

    ``done`` is the work done, in work units (None: not said), ``size`` the number of instances held (None: not said). Both were
    true a share ``early`` of a slot before the start of ``slot``, in [0, 1).
    """

    slot: int
    done: float | None = None
    size: int | None = None
    early: float = 0.0


def held(job: Job, decided: Allocation, available: int) -> Allocation:
    """What could be held of a decision: no more spot than there is, and nothing at all below ``n_min``.

    >>> from optimization.job.throughput import Linear
    >>> job = Job(name="j", workload=9, deadline_slots=9, n_min=1, n_max=8, throughput=Linear(), value=1)
    >>> held(job, Allocation(1, 4), 2)
    Allocation(on_demand=1, spot=2)
    """
    kept = Allocation(decided.on_demand, min(decided.spot, available))
    return kept if kept.total >= job.n_min else NOTHING


def held_so_far(
    job: Job,
    seen: Seen,
    decided: Mapping[int, Allocation],
    *,
    slots: int,
    reported: Sequence[Reported] = (),
) -> tuple[Progress, list[View]]:
    """Progress after the job's first ``slots`` slots if each held what was decided for it, and the view of each slot (ours).

    A slot without a decision held nothing. Spot that was not there, or that a gap leaves unknown, was not held and
    is not paid for. Nothing is paid after the finish, and no later view is given. ``reported``, ascending in time, sets the
    progress and the size at the start of its slots (those after ``slots`` are not looked at); what is paid stays that of
    the decisions.
    """
    progress = Progress()
    views: list[View] = []
    for slot in range(slots):
        progress = _corrected(job, seen, progress, slot, reported)
        if finished(progress.done, job.workload):
            continue
        view = seen.view(job, progress, slot)
        views.append(view)
        progress = step(progress, held(job, decided.get(slot, NOTHING), view.available), view)
    return _corrected(job, seen, progress, slots, reported), views


def _corrected(job: Job, seen: Seen, progress: Progress, slot: int, reported: Sequence[Reported]) -> Progress:
    """``progress`` at the start of ``slot`` with what was reported for it in the place of what was reckoned."""
    for one in reported:
        if one.slot != slot:
            continue
        size = progress.n_previous if one.size is None else held_size(job, one.size)
        done = progress.done
        if one.done is not None:
            done = min(job.workload, one.done + _rest_of_slot(job, seen, one, size))
            done = job.workload if finished(done, job.workload) else done
        progress = replace(progress, done=done, n_previous=size)
    return progress


def held_size(job: Job, reported: int) -> int:
    """The size a policy is told of: nothing below ``n_min`` makes progress, and none reckons with more than ``n_max``."""
    return min(reported, job.n_max) if reported >= job.n_min else 0


def _rest_of_slot(job: Job, seen: Seen, report: Reported, size: int) -> float:
    """Work done from the report to the end of its slot, at the size then held and without another change."""
    if not report.early or not size:
        return 0.0
    view = seen.view(job, Progress(n_previous=size), report.slot - 1)
    return report.early * slot_gain(view, size)
