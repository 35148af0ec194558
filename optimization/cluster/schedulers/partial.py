"""Job order when only some sizes are predicted (M10), on one machine and, in rounds, on the cluster.

Round robin for the rest, shortest predicted first, mixed. The setting is that of "Non-clairvoyant scheduling with partial
predictions" (ICML 2024): preemption is free, the sum of completion times counts, and B of n sizes are predicted. The rule
is ours, in its spirit; the paper's bounds are not claimed for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimization.cluster.schedulers.fifo import next_attempt
from optimization.cluster.simulation import Active, Cluster
from warehouse.errors import SettingsError

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


#: Work smaller than this share of the largest size is none: it is the rounding of sums.
NONE_LEFT = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A job as the rule sees it: the work done so far, and the predicted size, None if there is none."""

    attained: float
    predicted: float | None

    @property
    def known(self) -> bool:
        """Whether the prediction still says something: a job that has outlived it counts as unpredicted."""
        return self.predicted is not None and self.attained < self.predicted


def turn(standings: Sequence[Standing]) -> list[int]:
    """Positions of the jobs that share the machine now: one predicted job alone, or all unpredicted ones in round robin.

    A predicted job's index is its predicted remaining work, that of the unpredicted together the least work any of them has
    had: what has had x units is thought to need about x more. The least index runs, a predicted job first of equals, then the
    earlier one. All predicted is shortest remaining (predicted) time first; none predicted is
    round robin.

    >>> turn([Standing(attained=0.0, predicted=5.0), Standing(attained=2.0, predicted=None)])
    [1]
    """
    known = [
        (s.predicted - s.attained, i) for i, s in enumerate(standings) if s.known and s.predicted is not None
    ]
    unknown = [i for i, s in enumerate(standings) if not s.known]
    if known and (not unknown or min(known)[0] <= min(standings[i].attained for i in unknown)):
        return [min(known)[1]]
    return unknown


def completion_times(
    arrivals: Sequence[float], sizes: Sequence[float], predicted: Sequence[float | None]
) -> np.ndarray:
    """When each job ends on one machine of speed 1 under `turn`, exact (shares are fluid), shape (jobs,).

    Raises `SettingsError` unless the three are of one length, sizes and predictions positive.
    """
    _require_sound(arrivals, sizes, predicted)
    tiny = NONE_LEFT * max(sizes)
    order = sorted(range(len(sizes)), key=lambda i: (arrivals[i], i), reverse=True)
    attained = np.zeros(len(sizes))
    ends = np.full(len(sizes), np.nan)
    here: list[int] = []
    now = 0.0
    while here or order:
        if not here:
            now = max(now, arrivals[order[-1]])
        while order and arrivals[order[-1]] <= now:
            here.append(order.pop())
        running = [
            here[k]
            for k in turn([Standing(attained=float(attained[i]), predicted=predicted[i]) for i in here])
        ]
        step = _until_next(running, here, attained, sizes, predicted) * len(running)
        if order:
            step = min(step, arrivals[order[-1]] - now)
        attained[running] += step / len(running)
        now += step
        for i in running:
            guess = predicted[i]
            if guess is not None and abs(attained[i] - guess) <= tiny:
                attained[i] = max(attained[i], guess)
            if attained[i] >= sizes[i] - tiny:
                ends[i] = now
                here.remove(i)
    return ends


def _until_next(
    running: Sequence[int],
    here: Sequence[int],
    attained: np.ndarray,
    sizes: Sequence[float],
    predicted: Sequence[float | None],
) -> float:
    """Work of each running job until one ends, outlives its prediction, or a predicted job's turn comes."""
    step = min(sizes[i] - attained[i] for i in running)
    alone = predicted[running[0]]
    if alone is not None and attained[running[0]] < alone:
        return float(min(step, alone - attained[running[0]]))
    least = min(attained[i] for i in running)
    known = [g - attained[i] for i in here if (g := predicted[i]) is not None and attained[i] < g]
    return float(min(step, min(known) - least)) if known else float(step)


def _require_sound(
    arrivals: Sequence[float], sizes: Sequence[float], predicted: Sequence[float | None]
) -> None:
    wrong = [x for x in (*sizes, *(p for p in predicted if p is not None)) if not x > 0]
    if not len(arrivals) == len(sizes) == len(predicted) > 0 or wrong:
        raise SettingsError(
            f"{len(arrivals)} arrivals, {len(sizes)} sizes, {len(predicted)} predictions, {len(wrong)} not positive",
            expected="the same number of each, at least one, and positive sizes",
        )


def partly_known(
    sizes: Sequence[float], *, share: float, error: float, rng: np.random.Generator
) -> list[float | None]:
    """Predictions of a random ``share`` of the sizes, each wrong by a lognormal factor of sigma ``error``."""
    known = rng.permutation(len(sizes)) < round(share * len(sizes))
    factor = np.exp(error * rng.standard_normal(len(sizes)))
    return [float(s * f) if k else None for s, f, k in zip(sizes, factor, known, strict=True)]
