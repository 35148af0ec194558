"""Streams of fine-tuning jobs for a cluster (M9.5): Poisson arrivals, sizes in tokens, who picks which configurations.

What a configuration really yields there: measured rates, and a smooth surface between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.interpolate import RBFInterpolator

from studies.cluster.simulation import Attempt, Cluster, ClusterJob
from warehouse.errors import SettingsError

#: Picks of one user before somebody who knows takes over.
PATIENCE = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a request can be run with: one model, method and length, and every configuration of the grid, arrays of shape (m,).

    ``true`` are tokens per second over all GPUs, 0 where the configuration fails; ``believed`` what the model without knowledge of
    this family predicts, ``p_valid`` its probability that the configuration runs and ``valid`` its verdict.
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
        """The same family known to the last number."""
        runs = self.true > 0
        return Family(
            name=self.name, gpus=self.gpus, batch=self.batch, true=self.true, believed=np.where(runs, self.true, 1.0),
            p_valid=runs.astype(float), valid=runs,
        )  # fmt: skip

    def as_believed(self) -> Family:
        """The same family as if what is predicted were true; where all is thought to fail, the likeliest runs."""
        runs = self.valid.copy()
        if not runs.any():
            runs[int(np.argmax(self.p_valid))] = True
        return Family(
            name=self.name, gpus=self.gpus, batch=self.batch, true=np.where(runs, self.believed, 0.0), believed=self.believed,
            p_valid=self.p_valid, valid=runs,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadLaw:
    """How much work jobs are: a lognormal number of tokens of this median and sigma (ours; the poster does not say)."""

    median_tokens: float = 20e6
    sigma: float = 1.2

    @property
    def mean_tokens(self) -> float:
        """Mean of the lognormal: median exp(sigma^2 / 2)."""
        return self.median_tokens * float(np.exp(self.sigma**2 / 2))


class BatchHabit(Enum):
    """How an unknowing user sets the number of samples a step."""

    GRID = "total drawn from the grid"
    EIGHT = "8 a GPU, halved after a failure"
    ONE = "1 a GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """What an unknowing user picks (ours; the poster does not say): GPUs by ``shares`` and a batch by ``habit``.

    ``failing``: each pick from the grid is one that fails with this probability, where the family has such; else as it falls.
    """

    name: str
    shares: tuple[tuple[int, float], ...]
    habit: BatchHabit
    failing: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A job before anybody chose its configuration: its family's number, its tokens, its arrival at a rate of one a second."""

    family: int
    tokens: float
    arrival: float
    seed: tuple[int, ...]


def draw_requests(families: int, jobs: int, workload: WorkloadLaw, *, seed: Sequence[int]) -> list[Request]:
    """A Poisson stream: every family equally likely, lognormal tokens, exponential gaps of mean 1 s (scaled to a load later)."""
    rng = np.random.default_rng([*seed, 1])
    arrivals = np.cumsum(rng.exponential(1.0, jobs))
    tokens = workload.median_tokens * np.exp(workload.sigma * rng.standard_normal(jobs))
    which = rng.integers(families, size=jobs)
    return [
        Request(family=int(f), tokens=float(w), arrival=float(t), seed=(*seed, 2, k))
        for k, (f, w, t) in enumerate(zip(which, tokens, arrivals, strict=True))
    ]


def default_picks(family: Family, default: Default, *, seed: Sequence[int]) -> list[int]:
    """Indices of the grid that an unknowing user tries one after the other, the last of which runs.

    A pick whose batch is not a multiple of its GPUs is tried as well and fails (the published rates count such rejections).
    After `PATIENCE` failures the user is given the fastest configuration.
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
    """A configuration of ``width`` GPUs that fails with this probability, or where all of them meet one fate, any of them."""
    own = np.flatnonzero(family.gpus == width)
    wanted = own[(family.true[own] <= 0) == bool(rng.random() < failing)]
    return int(rng.choice(wanted if len(wanted) else own))


def _after_failure(
    default: Default, width: int, a_gpu: int, widths: Sequence[int], rng: np.random.Generator
) -> tuple[int, int]:
    """The next GPUs and samples a GPU: drawn anew on the grid; else fewer samples a GPU, and after one sample more GPUs."""
    if default.habit is BatchHabit.GRID:
        shares = np.array([p for _, p in default.shares])
        return int(rng.choice(widths, p=shares / shares.sum())), a_gpu
    if a_gpu > 1:
        return width, a_gpu // 2
    return min(2 * width, 8), 1


def default_attempts(family: Family, default: Default, *, seed: Sequence[int]) -> tuple[Attempt, ...]:
    """An unknowing user's attempts for a scheduler that takes them in order."""
    return tuple(_attempt(family, i, 1.0) for i in default_picks(family, default, seed=seed))


def default_options(family: Family, default: Default, *, seed: Sequence[int]) -> tuple[Attempt, ...]:
    """An unknowing user's attempts for a scheduler that sets the GPUs: the user's batches in order, on all GPUs that divide them.

    Perfect scaling is believed, as Sia does of a job that it has not seen.
    """
    batches = dict.fromkeys(int(family.batch[i]) for i in default_picks(family, default, seed=seed))
    chosen = [
        i
        for batch in batches
        for i in np.flatnonzero((family.batch == batch) & (batch % family.gpus == 0)).tolist()
    ]
    return tuple(_attempt(family, i, float(family.gpus[i])) for i in _reachable(family, chosen))


def known_attempts(family: Family, eta: float) -> tuple[Attempt, ...]:
    """A model's attempts for a scheduler that takes them in order: least (1 + eta k)/s(k) first, k GPUs at predicted rate s(k).

    That is M8.2's rule, where ``eta`` is the price of a GPU's time in units of the job's: 0 is fastest, infinite cheapest. What
    is thought to fail comes after all else, the likeliest to run first.
    """
    gpus, rate = family.gpus.astype(float), family.believed
    price = (gpus if np.isinf(eta) else 1.0 + eta * gpus) / rate
    order = [
        *_sorted(np.flatnonzero(family.valid), price),
        *_sorted(np.flatnonzero(~family.valid), -family.p_valid),
    ]
    return tuple(_attempt(family, i, float(rate[i])) for i in _until_one_runs(family, order))


def users_widths(family: Family, default: Default, *, seed: Sequence[int]) -> tuple[Attempt, ...]:
    """A model's attempts with the GPUs that the user picked: best predicted batch first, then the user's further picks."""
    chosen: list[int] = []
    for pick in default_picks(family, default, seed=seed):
        own = np.flatnonzero((family.gpus == family.gpus[pick]) & (family.batch % family.gpus == 0))
        hopeful = _sorted(own[family.valid[own]], -family.believed)
        chosen.extend(i for i in hopeful if i not in chosen)
    chosen.extend(i for i in _sorted(np.arange(len(family.gpus)), -family.p_valid) if i not in chosen)
    return tuple(_attempt(family, i, float(family.believed[i])) for i in _until_one_runs(family, chosen))


def known_options(family: Family) -> tuple[Attempt, ...]:
    """A model's attempts for a scheduler that sets the GPUs: for each number of them the best predicted batch first.

    What is thought to fail is believed to have no rate and comes last.
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
    """Attempts up to the first that runs: those behind it are never reached."""
    first = next(k for k, i in enumerate(order) if family.true[i] > 0)
    return list(order[: first + 1])


def _reachable(family: Family, order: Sequence[int]) -> list[int]:
    """The same for each number of GPUs."""
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
    """Jobs of the requests with these attempts, ``rate`` arrivals a second."""
    return [
        ClusterJob(
            name=f"job-{k}", arrival_s=r.arrival / rate, work=r.tokens, attempts=a, predicted_work=r.tokens
        )
        for k, (r, a) in enumerate(zip(requests, attempts, strict=True))
    ]


def gpu_seconds(tokens: float, attempts: Sequence[Attempt], cluster: Cluster) -> float:
    """GPU time of a job whose attempts are taken in order, alone on the cluster: failures, start-up and work."""
    held = 0.0
    for attempt in attempts:
        if attempt.rate > 0:
            return held + attempt.gpus * (cluster.start_up_s + tokens / attempt.rate)
        held += attempt.gpus * cluster.failure_s
    raise SettingsError(f"{len(attempts)} attempts none of which runs", expected="one that runs")


#: Ridge on the thin-plate spline: repeated campaigns of one configuration differ by about 2 %.
SMOOTHING = 0.1
#: How far apart one GPU and several are, and lengths of ratio two, in units of a ratio of two in tokens a GPU and step.
SEVERAL, LENGTH = 2.0, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RateGrid:
    """Configurations of one model and method: GPUs, samples a step over all GPUs, tokens a sample; arrays of one shape."""

    gpus: np.ndarray
    batch: np.ndarray
    tokens_per_sample: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSurface:
    """Rates of one model, method and GPU model: ``measured`` tokens per second over all GPUs at ``grid``, and between them."""

    grid: RateGrid
    measured: np.ndarray

    def __post_init__(self) -> None:
        if not len(self.measured) or not (np.asarray(self.measured) > 0).all():
            raise SettingsError(
                f"a surface of {len(self.measured)} rates, not all positive",
                expected="at least one positive rate",
            )

    def rates(self, grid: RateGrid) -> np.ndarray:
        """Tokens per second over all GPUs: the median of what was measured where something was, else `smooth_rates`."""
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
        """A smoothed thin-plate spline of log rate per GPU over log tokens a GPU and step, log GPUs and log length (ours).

        Kept within the least and the largest measured rate per GPU, so that nothing runs away outside the data.
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
        [
            np.log2(length * grid.batch / gpus),
            np.log2(gpus),
            SEVERAL * (gpus > 1),
            LENGTH * np.log2(length),
        ]
    )
