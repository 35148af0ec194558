"""The simulation of a cluster: the only owner of time, progress and GPUs; a scheduler says who runs with which attempt (M9.5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from optimization.cluster import Attempt, Cluster, ClusterJob, ClusterRun, Segment
from optimization.cluster_nodes import pack
from warehouse.errors import AuditError, SettingsError

#: Two times closer than this are one event (seconds).
SAME_TIME = 1e-9


@dataclass(slots=True)
class Active:
    """A job that has arrived and not ended, as the engine keeps it and a scheduler reads it (and must not change it).

    ``running`` is the attempt it runs with, or None; ``observed`` the rate seen of every attempt that has done work;
    ``attained`` the work done so far, ``gpu_s`` the GPU time held in stays that ended.
    """

    number: int
    job: ClusterJob
    remaining: float
    running: int | None = None
    node: int = -1
    since_s: float = 0.0
    starts: int = 0
    failed: set[int] = field(default_factory=set)
    observed: dict[int, float] = field(default_factory=dict)
    gpu_s: float = 0.0

    @property
    def attained(self) -> float:
        """Work done up to the last stop."""
        return self.job.work - self.remaining

    @property
    def restarts(self) -> int:
        """Starts beyond the first that follow no failure."""
        return max(0, self.starts - len(self.failed) - 1)

    def attempt(self) -> Attempt:
        """The attempt it runs with."""
        return self.job.attempts[self.held()]

    def held(self) -> int:
        """The number of the attempt it runs with. Raises `AuditError` if it does not run."""
        if self.running is None:
            raise AuditError(f"cluster job {self.job.name!r} runs with no attempt", expected="a running job")
        return self.running


class Scheduler(Protocol):
    """Who runs, and how. ``round_s`` None: asked at every arrival and end; else asked every ``round_s`` seconds only."""

    @property
    def name(self) -> str:
        """Name in tables."""

    @property
    def round_s(self) -> float | None:
        """Length of a round in seconds."""

    def decide(self, now_s: float, jobs: Sequence[Active], cluster: Cluster) -> Mapping[int, int]:
        """Job number -> attempt for every job that shall run from now on; what is not named stops or waits.

        ``jobs`` are all active ones in the order of arrival. The sum of GPUs may not pass the cluster's.
        """


def simulate(jobs: Sequence[ClusterJob], scheduler: Scheduler, cluster: Cluster) -> ClusterRun:
    """Run a stream of jobs to the end of the last one.

    Exact in time: between events progress is linear, an end falls where the work is done. Deterministic. Raises `SettingsError`
    for no jobs, or a job no attempt of which fits on a node, and `AuditError` if a scheduler asks for GPUs that are not there or
    lets the cluster stand idle for good while jobs wait.
    """
    _require_fitting(jobs, cluster)
    return _Simulation(jobs, scheduler, cluster).run()


def _require_fitting(jobs: Sequence[ClusterJob], cluster: Cluster) -> None:
    if not jobs:
        raise SettingsError("a stream of no jobs", expected="at least one job")
    for job in jobs:
        if not any(a.rate > 0 and a.gpus <= cluster.gpus_per_node for a in job.attempts):
            raise SettingsError(
                f"cluster job {job.name!r} runs only on more than the {cluster.gpus_per_node} GPUs of a node",
                expected="an attempt that runs on one node",
            )


class _Simulation:
    """The moving parts of one `simulate`."""

    def __init__(self, jobs: Sequence[ClusterJob], scheduler: Scheduler, cluster: Cluster) -> None:
        self.jobs, self.scheduler, self.cluster = tuple(jobs), scheduler, cluster
        order = sorted(range(len(jobs)), key=lambda number: (jobs[number].arrival_s, number))
        self.coming = [(jobs[number].arrival_s, number) for number in reversed(order)]
        self.active: dict[int, Active] = {}
        self.finished = [math.nan] * len(jobs)
        self.segments: list[Segment] = []
        self.ends: dict[int, float] = {}

    def run(self) -> ClusterRun:
        round_s, tick = self.scheduler.round_s, 0.0
        while self.coming or self.active:
            now = self._next_event(tick if round_s is not None else None)
            self._end(now)
            self._arrive(now)
            if round_s is None:
                self._schedule(now)
            elif now >= tick - SAME_TIME:
                self._schedule(tick)
                tick += round_s
                if not self.active and self.coming:
                    tick = max(tick, round_s * math.ceil(self.coming[-1][0] / round_s))
        return ClusterRun(
            scheduler=self.scheduler.name,
            cluster=self.cluster,
            jobs=self.jobs,
            finished_s=tuple(self.finished),
            segments=tuple(self.segments),
        )

    def _next_event(self, tick: float | None) -> float:
        times = list(self.ends.values())
        if self.coming:
            times.append(self.coming[-1][0])
        if tick is not None:
            times.append(tick)
        if not times:
            raise AuditError(
                f"{self.scheduler.name} lets {len(self.active)} jobs wait on an empty cluster",
                expected="a scheduler that runs what fits",
            )
        return min(times)

    def _arrive(self, now: float) -> None:
        while self.coming and self.coming[-1][0] <= now + SAME_TIME:
            number = self.coming.pop()[1]
            job = self.jobs[number]
            self.active[number] = Active(number=number, job=job, remaining=job.work)

    def _end(self, now: float) -> None:
        for number in [n for n, end in self.ends.items() if end <= now + SAME_TIME]:
            active, end = self.active[number], self.ends[number]
            failed = active.attempt().rate <= 0
            if failed:
                active.failed.add(active.held())
            self._stop(active, end, failed=failed)
            if not failed:
                active.remaining = 0.0
                self.finished[number] = end
                del self.active[number]

    def _stop(self, active: Active, now: float, *, failed: bool = False) -> None:
        attempt = active.attempt()
        worked = max(0.0, now - active.since_s - self.cluster.start_up_s)
        done = min(active.remaining, worked * attempt.rate)
        self.segments.append(
            Segment(
                job=active.number, attempt=active.held(), node=active.node,
                gpus=attempt.gpus, start_s=active.since_s, end_s=now, work=done, failed=failed,
            )
        )  # fmt: skip
        active.remaining -= done
        active.gpu_s += attempt.gpus * (now - active.since_s)
        active.running, active.node = None, -1
        del self.ends[active.number]

    def _schedule(self, now: float) -> None:
        if not self.active:
            return
        for active in self.active.values():
            if active.running is not None and now > active.since_s + self.cluster.start_up_s:
                rate = active.attempt().rate
                if rate > 0:
                    active.observed[active.running] = rate
        asked = self.scheduler.decide(now, list(self.active.values()), self.cluster)
        self._require_possible(asked)
        wanted = {number: self.jobs[number].attempts[attempt].gpus for number, attempt in asked.items()}
        held = {
            number: (active.node, active.attempt().gpus)
            for number, active in self.active.items()
            if active.running is not None and asked.get(number) == active.running
        }
        places = pack(wanted, held, nodes=self.cluster.nodes, gpus_per_node=self.cluster.gpus_per_node)
        self._apply(now, asked, places)

    def _require_possible(self, asked: Mapping[int, int]) -> None:
        gpus = sum(self.jobs[number].attempts[attempt].gpus for number, attempt in asked.items())
        wrong = [n for n, a in asked.items() if n not in self.active or a in self.active[n].failed]
        if gpus > self.cluster.gpus or wrong:
            raise AuditError(
                f"{self.scheduler.name} asks for {gpus} of {self.cluster.gpus} GPUs, for jobs {wrong} that ended or failed so",
                expected="active jobs, attempts that have not failed, and no more GPUs than there are",
            )

    def _apply(self, now: float, asked: Mapping[int, int], places: Mapping[int, int]) -> None:
        for number, active in self.active.items():
            stays = asked.get(number) == active.running and places.get(number) == active.node
            if active.running is not None and not stays:
                self._stop(active, now)
        for number, node in places.items():
            active = self.active[number]
            if active.running is None:
                active.running, active.node, active.since_s = asked[number], node, now
                active.starts += 1
                attempt = active.attempt()
                self.ends[number] = now + (
                    self.cluster.start_up_s + active.remaining / attempt.rate
                    if attempt.rate > 0
                    else self.cluster.failure_s
                )
