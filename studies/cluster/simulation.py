"""Simulation of a cluster of GPUs shared by fine-tuning jobs (M9.5).

A job is a list of configurations to try. The simulation alone advances time, progress and GPU allocation; a scheduler decides
which jobs run with which attempt. No job is split over nodes; widths that are powers of two always fit after repacking.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy.stats import t as student

from slackwater.warehouse.errors import AuditError, JobError, SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Homogeneous cluster and its start-up times.

    Every start or restart takes ``start_up_s`` seconds before work is done (Sia's restart penalty). A configuration that does
    not run fails ``failure_s`` seconds after its start (ours: model loading up to the first step). Raises `SettingsError`
    without a node or GPU, or for negative times.
    """

    nodes: int = 8
    gpus_per_node: int = 8
    start_up_s: float = 30.0
    failure_s: float = 120.0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1 or self.start_up_s < 0 or self.failure_s < 0:
            raise SettingsError(
                f"a cluster of {self.nodes} nodes of {self.gpus_per_node} GPUs, start-up {self.start_up_s} s, "
                f"failure {self.failure_s} s",
                expected="at least one node of one GPU and times that are not negative",
            )

    @property
    def gpus(self) -> int:
        """Number of GPUs in the cluster."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Configuration of a job: ``gpus`` on one node, at ``rate`` units of work per second, 0 if it fails.

    ``believed`` is the rate that a scheduler expects; 0 if it expects a failure. Only schedulers read it.
    """

    gpus: int
    rate: float
    believed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """Job with its arrival time, its work, and its attempts in the order in which its user (or a model) would try them.

    ``predicted_work`` is the predicted size, None without a prediction. Raises `JobError` unless the work is positive, the
    arrival is not negative, an attempt runs, and all attempts have at least one GPU and rates that are not negative.
    """

    name: str
    arrival_s: float
    work: float
    attempts: tuple[Attempt, ...]
    predicted_work: float | None = None

    def __post_init__(self) -> None:
        if (
            not any(attempt.rate > 0 for attempt in self.attempts)
            or not self.work > 0
            or not self.arrival_s >= 0
        ):
            raise JobError(
                f"cluster job {self.name!r} of work {self.work:g} at {self.arrival_s:g} s with {len(self.attempts)} attempts, "
                f"{sum(a.rate > 0 for a in self.attempts)} of which run",
                expected="positive work, an arrival from 0 on and an attempt that runs",
            )
        if any(a.gpus < 1 or not a.rate >= 0 or not a.believed >= 0 for a in self.attempts):
            raise JobError(
                f"cluster job {self.name!r} has an attempt without GPUs or of negative rate",
                expected="at least one GPU and rates from 0 on",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Uninterrupted run of job number ``job`` with attempt number ``attempt`` on a node, from ``start_s`` to ``end_s``.

    ``failed``: the attempt does not run and ended in a failure. ``work``: the work done in this time.
    """

    job: int
    attempt: int
    node: int
    gpus: int
    start_s: float
    end_s: float
    work: float
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRun:
    """Result of a simulation: ``finished_s`` in the order of ``jobs``, and all segments in the order in which they ended."""

    scheduler: str
    cluster: Cluster
    jobs: tuple[ClusterJob, ...]
    finished_s: tuple[float, ...]
    segments: tuple[Segment, ...]

    @property
    def completion_s(self) -> np.ndarray:
        """Job completion times (JCT), from arrival to end, in seconds, shape (jobs,)."""
        return np.asarray(np.array(self.finished_s) - np.array([job.arrival_s for job in self.jobs]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Metrics of a run; times in seconds.

    ``utilisation``: share of GPU time allocated between the first and the last arrival. ``waiting_s``: mean time from arrival to
    the first start. ``restarts``: mean number per job of starts after the first that do not follow a failure. ``failed_starts``:
    mean number per job of attempts that failed. ``gpu_hours``: all GPU time allocated.
    """

    jobs: int
    mean_s: float
    p50_s: float
    p99_s: float
    waiting_s: float
    makespan_s: float
    utilisation: float
    restarts: float
    failed_starts: float
    gpu_hours: float


def metrics_of(run: ClusterRun) -> Metrics:
    """Return the metrics of a run (M9.5); the main metric is the mean completion time."""
    jct = run.completion_s
    held = sum(s.gpus * (s.end_s - s.start_s) for s in run.segments)
    first = np.full(len(run.jobs), np.inf)
    for segment in run.segments:
        first[segment.job] = min(first[segment.job], segment.start_s)
    arrivals = np.array([job.arrival_s for job in run.jobs])
    makespan = max(run.finished_s) - float(arrivals.min())
    failed = sum(s.failed for s in run.segments)
    return Metrics(
        jobs=len(jct),
        mean_s=float(jct.mean()),
        p50_s=float(np.quantile(jct, 0.5)),
        p99_s=float(np.quantile(jct, 0.99)),
        waiting_s=float((first - arrivals).mean()),
        makespan_s=makespan,
        utilisation=held_share(run, float(arrivals.min()), float(arrivals.max())),
        restarts=(len(run.segments) - failed - len(jct)) / len(jct),
        failed_starts=failed / len(jct),
        gpu_hours=held / 3600.0,
    )


def held_share(run: ClusterRun, start_s: float, end_s: float) -> float:
    """Return the share of GPU time allocated between two times; NaN for an empty interval."""
    held = sum(s.gpus * max(0.0, min(s.end_s, end_s) - max(s.start_s, start_s)) for s in run.segments)
    return held / (run.cluster.gpus * (end_s - start_s)) if end_s > start_s else float("nan")


def reduction_interval(default: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Return the reduction over paired streams and its 95 % interval: 1 - geometric mean of other/default.

    The interval is Student's t on the logs, because a reduction cannot exceed 1. Inputs have shape (streams,) or
    (settings, streams); the logs are averaged over settings first, so that streams stay independent.
    """
    logs = np.atleast_2d(np.log(np.asarray(other, dtype=float) / np.asarray(default, dtype=float))).mean(
        axis=0
    )
    mean, low, high = mean_interval(logs.tolist())
    return 1.0 - float(np.exp(mean)), 1.0 - float(np.exp(high)), 1.0 - float(np.exp(low))


def mean_interval(values: Sequence[float], *, level: float = 0.95) -> tuple[float, float, float]:
    """Return the mean of independent streams and its Student's t interval; (mean, NaN, NaN) for a single stream.

    >>> [round(x, 3) for x in mean_interval([0.5, 0.7])]
    [0.6, -0.671, 1.871]
    """
    sample = np.asarray(values, dtype=float)
    mean = float(sample.mean())
    if len(sample) < 2:
        return mean, float("nan"), float("nan")
    half = float(student.ppf(0.5 + level / 2, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
    return mean, mean - half, mean + half


def best_fit(free: Sequence[int], gpus: int) -> int | None:
    """Return the node with the fewest free GPUs that has ``gpus`` free, the first in a tie; None if no node has.

    >>> best_fit([8, 3, 2], 2), best_fit([1, 1], 2)
    (2, None)
    """
    fitting = [(room, node) for node, room in enumerate(free) if room >= gpus]
    return min(fitting)[1] if fitting else None


def pack(
    wanted: Mapping[int, int], held: Mapping[int, tuple[int, int]], *, nodes: int, gpus_per_node: int
) -> dict[int, int]:
    """Return a node for every job of ``wanted`` (job -> GPUs), moving as few jobs of ``held`` (job -> (node, GPUs)) as possible.

    A job with an unchanged number of GPUs stays on its node, and the others take the best fit. If a job does not fit, all jobs
    are packed again, the largest first, each on its old node if that has room. Widths that divide each other then always fit
    if their sum does. A job that does not fit anywhere is omitted.
    """
    free = [gpus_per_node] * nodes
    placed: dict[int, int] = {}
    for job, gpus in wanted.items():
        if job in held and held[job][1] == gpus:
            placed[job] = held[job][0]
            free[placed[job]] -= gpus
    news = sorted((job for job in wanted if job not in placed), key=lambda job: (-wanted[job], job))
    for job in news:
        node = best_fit(free, wanted[job])
        if node is None:
            return _pack_anew(wanted, held, [gpus_per_node] * nodes)
        placed[job] = node
        free[node] -= wanted[job]
    return placed


def _pack_anew(
    wanted: Mapping[int, int], held: Mapping[int, tuple[int, int]], free: list[int]
) -> dict[int, int]:
    placed: dict[int, int] = {}
    for job in sorted(wanted, key=lambda job: (-wanted[job], job not in held, job)):
        old = held[job][0] if job in held else None
        node = old if old is not None and free[old] >= wanted[job] else best_fit(free, wanted[job])
        if node is not None:
            placed[job] = node
            free[node] -= wanted[job]
    return placed


def fits(free: Sequence[int], widths: Sequence[int]) -> bool:
    """Return whether jobs of ``widths`` GPUs can start on the nodes' ``free`` GPUs without moving a job, placed as by `pack`.

    >>> fits([8, 3], [2, 8]), fits([7, 7], [8])
    (True, False)
    """
    room = list(free)
    for gpus in sorted(widths, reverse=True):
        node = best_fit(room, gpus)
        if node is None:
            return False
        room[node] -= gpus
    return True


#: Times closer than this, in seconds, are one event.
SAME_TIME = 1e-9


@dataclass(slots=True)
class Active:
    """Job that has arrived and not ended; the simulation updates it and a scheduler only reads it.

    ``running``: the current attempt or None. ``observed``: observed rate of every attempt that has done work. ``gpu_s``: GPU time
    of the segments that have ended.
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
        """Starts beyond the first that do not follow a failure."""
        return max(0, self.starts - len(self.failed) - 1)

    def attempt(self) -> Attempt:
        """Return the running attempt."""
        return self.job.attempts[self.held()]

    def held(self) -> int:
        """Return the number of the running attempt. Raises `AuditError` if the job does not run."""
        if self.running is None:
            raise AuditError(f"cluster job {self.job.name!r} runs with no attempt", expected="a running job")
        return self.running


class Scheduler(Protocol):
    """Scheduler that decides which jobs run with which attempt.

    With ``round_s`` None it decides at every arrival and end, otherwise only every ``round_s`` seconds.
    """

    @property
    def name(self) -> str:
        """Name in tables."""

    @property
    def round_s(self) -> float | None:
        """Length of a round in seconds."""

    def decide(self, now_s: float, jobs: Sequence[Active], cluster: Cluster) -> Mapping[int, int]:
        """Return job number -> attempt for every job that runs from now on; jobs that are not named stop or wait.

        ``jobs`` are all active jobs in order of arrival. The sum of GPUs must not exceed the cluster's.
        """


def simulate(jobs: Sequence[ClusterJob], scheduler: Scheduler, cluster: Cluster) -> ClusterRun:
    """Simulate a stream of jobs until the last job ends.

    Exact in time: progress is linear between events, and a job ends when its work is done. Deterministic. Raises `SettingsError`
    without jobs or if no attempt of a job runs on a node, and `AuditError` if a scheduler requests GPUs that do not exist or
    leaves jobs waiting forever on an empty cluster.
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
    """State of a call of `simulate`."""

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
