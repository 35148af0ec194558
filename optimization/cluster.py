"""A cluster of GPUs shared by fine-tuning jobs (M9.5): jobs as lists of configurations to try, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from warehouse.errors import JobError, SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A homogeneous cluster and what starting a job costs.

    ``start_up_s`` seconds pass after every start or restart before work is done (Sia's restart penalty); a configuration that
    does not run fails ``failure_s`` seconds after its start (ours: model loading up to the first step). Raises `SettingsError`.
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
        """All GPUs."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One configuration a job may be started with: ``gpus`` on one node, at ``rate`` units of work a second, 0 if it fails.

    ``believed`` is the rate that a scheduler expects; 0 means that it is expected to fail. Only schedulers read it.
    """

    gpus: int
    rate: float
    believed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """A job: when it arrives, how much work it is, and its attempts in the order in which its user (or a model) would try them.

    ``predicted_work`` is what is known of its size beforehand, None if nothing is. At least one attempt must run, else it
    raises `JobError`.
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
    """A stay of a job on a node: attempt ``attempt`` of job number ``job`` from ``start_s`` to ``end_s``.

    ``failed`` is the end of an attempt that does not run; ``work`` is what was done during the stay.
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
    """What became of every job: ``finished_s`` in the order of ``jobs``, and all stays in the order in which they ended."""

    scheduler: str
    cluster: Cluster
    jobs: tuple[ClusterJob, ...]
    finished_s: tuple[float, ...]
    segments: tuple[Segment, ...]

    @property
    def completion_s(self) -> np.ndarray:
        """Job completion times (JCT): from arrival to the end, seconds, shape (jobs,)."""
        return np.asarray(np.array(self.finished_s) - np.array([job.arrival_s for job in self.jobs]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """A run in numbers: seconds, but ``utilisation`` (share of GPU time held until the last job came), and counts.

    ``waiting_s`` is the mean time from arrival to the first start; ``restarts`` are starts beyond a job's first that follow no
    failure, ``failed_starts`` attempts that did not run, both per job. ``gpu_hours`` is all GPU time held.
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
    """The numbers of a run (M9.5); the metric is the mean completion time."""
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
    """Share of the GPU time of a stretch that was held; NaN for one of no length."""
    held = sum(s.gpus * max(0.0, min(s.end_s, end_s) - max(s.start_s, start_s)) for s in run.segments)
    return held / (run.cluster.gpus * (end_s - start_s)) if end_s > start_s else float("nan")


def reduction_interval(default: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """The reduction over paired streams and its 95 % interval: 1 - geometric mean of other/default, by Student's t on the logs.

    Shape (streams,) or (settings, streams); of several settings a stream's logs are averaged first, so that streams stay
    independent. On the logs because a reduction cannot pass 1.
    """
    logs = np.atleast_2d(np.log(np.asarray(other, dtype=float) / np.asarray(default, dtype=float))).mean(
        axis=0
    )
    mean, low, high = mean_interval(logs.tolist())
    return 1.0 - float(np.exp(mean)), 1.0 - float(np.exp(high)), 1.0 - float(np.exp(low))


def mean_interval(values: Sequence[float], *, level: float = 0.95) -> tuple[float, float, float]:
    """Mean of independent streams and its interval by Student's t; (mean, NaN, NaN) for one stream.

    >>> [round(x, 3) for x in mean_interval([0.5, 0.7])]
    [0.6, -0.671, 1.871]
    """
    sample = np.asarray(values, dtype=float)
    mean = float(sample.mean())
    if len(sample) < 2:
        return mean, float("nan"), float("nan")
    half = float(student.ppf(0.5 + level / 2, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
    return mean, mean - half, mean + half
