"""The one tolerance of work: when a job counts as finished (M2.4)."""

from __future__ import annotations

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
