"""Streams of fine-tuning jobs for a cluster (M9.5): Poisson arrivals, sizes in tokens, configurations chosen by users or models.

Measured rates and a smooth surface between them give the true rate of a configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.interpolate import RBFInterpolator

from slackwater.studies.cluster.simulation import Attempt, Cluster, ClusterJob
from slackwater.warehouse.errors import SettingsError

#: Attempts of a user before the fastest configuration is used.
PATIENCE = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All configurations of a model, method and length, in arrays of shape (m,).

    ``true``: tokens per second over all GPUs, 0 if the configuration fails. ``believed``: the rate predicted by a model trained
    without this family. ``p_valid``: its probability that the configuration runs; ``valid``: its classification. Raises
    `SettingsError` unless the arrays have equal length, a configuration runs and all predicted rates are positive.
    """

    name: str
    gpus: np.ndarray
    batch: np.ndarray
    true: np.ndarray
    believed: np.ndarray
    p_valid: np.ndarray
    valid: np.ndarray

    def __post_init__(self) -> None:
        sizes = {len(getattr(self, n)) for n in ("gpus", "batch", "true", "believed", "p_valid", "valid")}
        if len(sizes) != 1 or not (self.true > 0).any() or not (self.believed > 0).all():
            raise SettingsError(
                f"family {self.name!r} with arrays of {sorted(sizes)} entries, {int((self.true > 0).sum())} of which run",
                expected="arrays of one length, a configuration that runs and positive predicted rates",
            )

    def seen_by_oracle(self) -> Family:
        """Return the family with predictions equal to the true values."""
        runs = self.true > 0
        return Family(
            name=self.name, gpus=self.gpus, batch=self.batch, true=self.true, believed=np.where(runs, self.true, 1.0),
            p_valid=runs.astype(float), valid=runs,
        )  # fmt: skip

    def as_believed(self) -> Family:
        """Return the family with true values equal to the predictions.

        If all configurations are predicted to fail, the most likely to run counts as valid.
        """
        runs = self.valid.copy()
        if not runs.any():
            runs[int(np.argmax(self.p_valid))] = True
        return Family(
            name=self.name, gpus=self.gpus, batch=self.batch, true=np.where(runs, self.believed, 0.0), believed=self.believed,
            p_valid=self.p_valid, valid=runs,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadLaw:
    """Distribution of job sizes: lognormal number of tokens with this median and sigma (ours; the poster does not specify it)."""

    median_tokens: float = 20e6
    sigma: float = 1.2

    @property
    def mean_tokens(self) -> float:
        """Mean of the lognormal distribution: median exp(sigma^2 / 2)."""
        return self.median_tokens * float(np.exp(self.sigma**2 / 2))


class BatchHabit(Enum):
    """Rule by which a user without a model sets the number of samples per step."""

    GRID = "total drawn from the grid"
    EIGHT = "8 a GPU, halved after a failure"
    ONE = "1 a GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """Configuration choice of a user without a model (ours; the poster does not specify it).

    ``shares``: weights of the numbers of GPUs. ``habit``: rule for the batch. ``failing``: probability that a pick from the grid
    is a failing configuration, if the family has both kinds; None uses the habit alone.
    """

    name: str
    shares: tuple[tuple[int, float], ...]
    habit: BatchHabit
    failing: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Job before a configuration is chosen: the family's index, tokens, and the arrival time at a rate of one job per second."""

    family: int
    tokens: float
    arrival: float
    seed: tuple[int, ...]


def draw_requests(families: int, jobs: int, workload: WorkloadLaw, *, seed: Sequence[int]) -> list[Request]:
    """Draw a Poisson stream of requests.

    Families are equally likely, tokens lognormal, gaps exponential with mean 1 s (scaled to a load later).
    """
    rng = np.random.default_rng([*seed, 1])
    arrivals = np.cumsum(rng.exponential(1.0, jobs))
    tokens = workload.median_tokens * np.exp(workload.sigma * rng.standard_normal(jobs))
    which = rng.integers(families, size=jobs)
    return [
        Request(family=int(f), tokens=float(w), arrival=float(t), seed=(*seed, 2, k))
        for k, (f, w, t) in enumerate(zip(which, tokens, arrivals, strict=True))
    ]


def default_picks(family: Family, default: Default, *, seed: Sequence[int]) -> list[int]:
    """Return the indices of the grid that a user without a model tries in order; the last of them runs.

    A pick whose batch is not a multiple of its GPUs is also tried and fails (the published rates count such rejections).
    After `PATIENCE` picks without success the fastest configuration is used.
    """
    rng = np.random.default_rng(list(seed))
    widths = [g for g, _ in default.shares]
    shares = np.array([p for _, p in default.shares])
    batches = np.unique(family.batch)
    picks: list[int] = []
    width = int(rng.choice(widths, p=shares / shares.sum()))
    a_gpu = 8 if default.habit is BatchHabit.EIGHT else 1
    for _ in range(PATIENCE):
        batch = int(rng.choice(batches)) if default.habit is BatchHabit.GRID else a_gpu * width
        pick = int(np.flatnonzero((family.gpus == width) & (family.batch == batch))[0])
        if default.failing is not None:
            pick = _pick_by_fate(family, width, default.failing, rng)
        if pick not in picks:
            picks.append(pick)
            if family.true[pick] > 0:
                return picks
        width, a_gpu = _after_failure(default, width, a_gpu, widths, rng)
    return [*picks, int(np.argmax(family.true))]


def _pick_by_fate(family: Family, width: int, failing: float, rng: np.random.Generator) -> int:
    """Draw a configuration of ``width`` GPUs that fails with probability ``failing``, or any if all of them fail or all run."""
    own = np.flatnonzero(family.gpus == width)
    wanted = own[(family.true[own] <= 0) == bool(rng.random() < failing)]
    return int(rng.choice(wanted if len(wanted) else own))


def _after_failure(
    default: Default, width: int, a_gpu: int, widths: Sequence[int], rng: np.random.Generator
) -> tuple[int, int]:
    """Return the next GPUs and samples per GPU: redrawn for the grid; else fewer samples per GPU, and after 1 sample more GPUs."""
    if default.habit is BatchHabit.GRID:
        shares = np.array([p for _, p in default.shares])
        return int(rng.choice(widths, p=shares / shares.sum())), a_gpu
    if a_gpu > 1:
        return width, a_gpu // 2
    return min(2 * width, 8), 1


def default_attempts(family: Family, default: Default, *, seed: Sequence[int]) -> tuple[Attempt, ...]:
    """Return the attempts of a user without a model, for a scheduler that takes them in order."""
    return tuple(_attempt(family, i, 1.0) for i in default_picks(family, default, seed=seed))


def default_options(family: Family, default: Default, *, seed: Sequence[int]) -> tuple[Attempt, ...]:
    """Return the attempts of a user without a model, for a scheduler that sets the GPUs.

    These are the user's batches in order, on every number of GPUs that divides them. Expected rates assume perfect scaling, as
    in Sia for a new job.
    """
    batches = dict.fromkeys(int(family.batch[i]) for i in default_picks(family, default, seed=seed))
    chosen = [
        i
        for batch in batches
        for i in np.flatnonzero((family.batch == batch) & (batch % family.gpus == 0)).tolist()
    ]
    return tuple(_attempt(family, i, float(family.gpus[i])) for i in _reachable(family, chosen))


def known_attempts(family: Family, eta: float) -> tuple[Attempt, ...]:
    """Return a model's attempts for a scheduler that takes them in order: least (1 + eta k)/s(k) first (M8.2).

    s(k) is the predicted rate on k GPUs. ``eta`` is the price of a GPU's time in units of the job's time: 0 gives the fastest
    configuration, infinity the cheapest. Configurations predicted to fail come last, the most likely to run first.
    """
    gpus, rate = family.gpus.astype(float), family.believed
    price = (gpus if np.isinf(eta) else 1.0 + eta * gpus) / rate
    order = [
        *_sorted(np.flatnonzero(family.valid), price),
        *_sorted(np.flatnonzero(~family.valid), -family.p_valid),
    ]
    return tuple(_attempt(family, i, float(rate[i])) for i in _until_one_runs(family, order))


def users_widths(family: Family, default: Default, *, seed: Sequence[int]) -> tuple[Attempt, ...]:
    """Return a model's attempts with the GPUs that the user picked: best predicted batch first, then the user's next picks.

    All remaining configurations follow, the most likely to run first.
    """
    chosen: list[int] = []
    for pick in default_picks(family, default, seed=seed):
        own = np.flatnonzero((family.gpus == family.gpus[pick]) & (family.batch % family.gpus == 0))
        hopeful = _sorted(own[family.valid[own]], -family.believed)
        chosen.extend(i for i in hopeful if i not in chosen)
    chosen.extend(i for i in _sorted(np.arange(len(family.gpus)), -family.p_valid) if i not in chosen)
    return tuple(_attempt(family, i, float(family.believed[i])) for i in _until_one_runs(family, chosen))


def known_options(family: Family) -> tuple[Attempt, ...]:
    """Return a model's attempts for a scheduler that sets the GPUs: for each number of GPUs the best predicted batch first.

    Configurations predicted to fail have expected rate 0 and come last.
    """
    hopeful = _sorted(np.flatnonzero(family.valid), -family.believed)
    doubtful = _sorted(np.flatnonzero(~family.valid), -family.p_valid)
    believed = np.where(family.valid, family.believed, 0.0)
    chosen = _reachable(family, [*hopeful, *doubtful])
    return tuple(_attempt(family, i, float(believed[i])) for i in chosen)


def _attempt(family: Family, i: int, believed: float) -> Attempt:
    return Attempt(gpus=int(family.gpus[i]), rate=float(family.true[i]), believed=believed)


def _sorted(indices: np.ndarray, key: np.ndarray) -> list[int]:
    return [int(i) for i in indices[np.argsort(key[indices], kind="stable")]]


def _until_one_runs(family: Family, order: Sequence[int]) -> list[int]:
    """Return the attempts up to the first that runs: later attempts are never used."""
    first = next(k for k, i in enumerate(order) if family.true[i] > 0)
    return list(order[: first + 1])


def _reachable(family: Family, order: Sequence[int]) -> list[int]:
    """Return, for each number of GPUs, the attempts up to the first that runs."""
    done: set[int] = set()
    kept = []
    for i in order:
        gpus = int(family.gpus[i])
        if gpus not in done:
            kept.append(i)
            if family.true[i] > 0:
                done.add(gpus)
    return kept


def stream(
    requests: Sequence[Request], attempts: Sequence[tuple[Attempt, ...]], *, rate: float
) -> list[ClusterJob]:
    """Return the jobs of the requests with these attempts, at ``rate`` arrivals per second."""
    return [
        ClusterJob(
            name=f"job-{k}", arrival_s=r.arrival / rate, work=r.tokens, attempts=a, predicted_work=r.tokens
        )
        for k, (r, a) in enumerate(zip(requests, attempts, strict=True))
    ]


def gpu_seconds(tokens: float, attempts: Sequence[Attempt], cluster: Cluster) -> float:
    """Return the GPU time of a job alone on the cluster with attempts taken in order: failures, start-up and work.

    Raises `SettingsError` if no attempt runs.
    """
    held = 0.0
    for attempt in attempts:
        if attempt.rate > 0:
            return held + attempt.gpus * (cluster.start_up_s + tokens / attempt.rate)
        held += attempt.gpus * cluster.failure_s
    raise SettingsError(f"{len(attempts)} attempts none of which runs", expected="one that runs")


#: Ridge on the thin-plate spline: repeated measurements of a configuration differ by about 2 %.
SMOOTHING = 0.1
#: Feature distances, in units of a factor of two in tokens per GPU and step: between one GPU and several, and between
#: sequence lengths of ratio two.
SEVERAL, LENGTH = 2.0, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RateGrid:
    """Configurations of a model and method in arrays of one shape: GPUs, samples per step over all GPUs, tokens per sample."""

    gpus: np.ndarray
    batch: np.ndarray
    tokens_per_sample: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSurface:
    """Rates of a model, method and GPU model: ``measured`` tokens per second over all GPUs at ``grid``, smoothed between them.

    Raises `SettingsError` unless there is a rate and all rates are positive.
    """

    grid: RateGrid
    measured: np.ndarray

    def __post_init__(self) -> None:
        if not len(self.measured) or not (np.asarray(self.measured) > 0).all():
            raise SettingsError(
                f"a surface of {len(self.measured)} rates, not all positive",
                expected="at least one positive rate",
            )

    def rates(self, grid: RateGrid) -> np.ndarray:
        """Return tokens per second over all GPUs: the median of the measurements if there are any, else `smooth_rates`."""
        known: dict[tuple[int, int, int], list[float]] = {}
        for key, rate in zip(_keys(self.grid), self.measured, strict=True):
            known.setdefault(key, []).append(float(rate))
        smooth = self.smooth_rates(grid)
        return np.array(
            [
                float(np.median(known[key])) if key in known else float(rate)
                for key, rate in zip(_keys(grid), smooth, strict=True)
            ]
        )

    def smooth_rates(self, grid: RateGrid) -> np.ndarray:
        """Return rates from a smoothed thin-plate spline of log rate per GPU (ours).

        The features are log tokens per GPU and step, log GPUs, one GPU or several, and log length. Results are clipped to the range
        of measured rates per GPU, so that extrapolation stays bounded. With too few measurements the median is used instead.
        """
        per_gpu = np.log(np.asarray(self.measured, dtype=float) / self.grid.gpus)
        here, there = _features(self.grid), _features(grid)
        varies = np.ptp(here, axis=0) > 0
        if not varies.any() or len(per_gpu) <= varies.sum() + 1:
            return np.asarray(np.exp(np.median(per_gpu)) * grid.gpus)
        spline = RBFInterpolator(here[:, varies], per_gpu, kernel="thin_plate_spline", smoothing=SMOOTHING)
        return np.asarray(np.exp(np.clip(spline(there[:, varies]), per_gpu.min(), per_gpu.max())) * grid.gpus)


def _keys(grid: RateGrid) -> list[tuple[int, int, int]]:
    return [
        (int(g), int(b), int(t))
        for g, b, t in zip(grid.gpus, grid.batch, grid.tokens_per_sample, strict=True)
    ]


def _features(grid: RateGrid) -> np.ndarray:
    gpus, length = np.asarray(grid.gpus, dtype=float), np.asarray(grid.tokens_per_sample, dtype=float)
    return np.column_stack(
        [np.log2(length * grid.batch / gpus), np.log2(gpus), SEVERAL * (gpus > 1), LENGTH * np.log2(length)]
    )
