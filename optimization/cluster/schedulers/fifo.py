"""First in, first out, head of line: nobody starts before a job that arrived earlier has started (M9.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from optimization.cluster.simulation import Active, Cluster, fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """Jobs start in the order of arrival, each with the first of its attempts that has not failed, and run to their end.

    A job whose attempt failed keeps its place in the order, so it comes before all that arrived after it (kind to wrong
    configurations: a person who submits again goes to the end of the queue).
    """

    round_s: Final[None] = None

    @property
    def name(self) -> str:
        """Name in tables."""
        return "FIFO"

    def decide(self, now_s: float, jobs: Sequence[Active], cluster: Cluster) -> Mapping[int, int]:
        """All that run, and of those that wait the longest head of the queue that fits (`Scheduler.decide`)."""
        asked = {a.number: a.running for a in jobs if a.running is not None}
        free = [cluster.gpus_per_node] * cluster.nodes
        for active in jobs:
            if active.running is not None:
                free[active.node] -= active.attempt().gpus
        widths: list[int] = []
        for active in jobs:
            if active.running is not None:
                continue
            attempt = next_attempt(active, cluster)
            widths.append(active.job.attempts[attempt].gpus)
            if not fits(free, widths):
                break
            asked[active.number] = attempt
        return asked


def next_attempt(active: Active, cluster: Cluster) -> int:
    """The first attempt of a job that has not failed and fits on a node."""
    return next(
        i
        for i, attempt in enumerate(active.job.attempts)
        if i not in active.failed and attempt.gpus <= cluster.gpus_per_node
    )
