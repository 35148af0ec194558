"""Job order on the cluster when only some sizes are predicted (M10): the rule of `optimization.partial_predictions` in rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimization.cluster import Cluster
from optimization.cluster_engine import Active
from optimization.cluster_policies.fifo import next_attempt

#: Share of its remaining time that a running job is put forward by, so that near-equals do not swap for nothing.
STICKINESS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialOrder:
    """Every round jobs are taken in the order of their index while GPUs last, each with the first attempt that has not failed.

    The index of a predicted job is its predicted remaining time on that attempt, of an unpredicted one (or one that has
    outlived its prediction) the time it has run: least attained first, which is round robin among those that arrive together.
    Halved for a job that is running. Round robin by rounds, because a change costs a restart here (ours).
    """

    round_s: float = 300.0

    @property
    def name(self) -> str:
        """Name in tables."""
        return "partial predictions"

    def decide(self, now_s: float, jobs: Sequence[Active], cluster: Cluster) -> Mapping[int, int]:
        """The jobs of least index that fit (`Scheduler.decide`)."""
        asked: dict[int, int] = {}
        room = cluster.gpus
        for active in sorted(jobs, key=lambda a: (index_s(a, now_s, cluster), a.number)):
            attempt = next_attempt(active, cluster) if active.running is None else active.running
            gpus = active.job.attempts[attempt].gpus
            if gpus <= room:
                asked[active.number] = attempt
                room -= gpus
        return asked


def index_s(active: Active, now_s: float, cluster: Cluster) -> float:
    """The place of a job in the order, seconds: the less the earlier."""
    attempt = active.job.attempts[next_attempt(active, cluster) if active.running is None else active.running]
    since = 0.0
    if active.running is not None:
        since = max(0.0, now_s - active.since_s - cluster.start_up_s)
    done = active.attained + since * attempt.rate
    predicted = active.job.predicted_work
    if predicted is not None and done < predicted and attempt.believed > 0:
        index = (predicted - done) / attempt.believed
    else:
        index = active.gpu_s / attempt.gpus + since
    return index * (STICKINESS if active.running is not None else 1.0)
