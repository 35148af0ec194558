"""Simulation of job streams on fixed widths and fixed clusters, baselines of a rental (M8.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

import numpy as np
from numba import njit
from scipy.optimize import brentq

from slackwater.optimization.renting.budget import JobType, Rental, Share, TypeRental, rent
from slackwater.optimization.renting.speedup import SizeDistribution, Speedup, TableSpeedup
from slackwater.warehouse.errors import SettingsError

#: Share of a stream that is excluded from measurements as warm-up, so that the system is in steady state.
WARM = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Jobs in order of arrival, arrays of shape (n,): time in hours, index of the type, size in hours on one GPU."""

    time: np.ndarray
    kind: np.ndarray
    size: np.ndarray
    hours: float

    @property
    def warm(self) -> float:
        """Hour from which results are measured."""
        return WARM * self.hours


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMeans:
    """Results of a stream after the warm-up: mean response time of arriving jobs, and mean number of GPUs."""

    response_hours: float
    gpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Means over independent streams with their standard errors."""

    response_hours: float
    response_error: float
    gpus: float
    gpus_error: float


def job_stream(
    types: Sequence[JobType], *, hours: float, sizes: SizeDistribution, rng: np.random.Generator
) -> Stream:
    """Return a stream of all types over ``hours``; the types arrive independently, in Poisson streams."""
    times = [np.sort(rng.uniform(0.0, hours, rng.poisson(kind.rate_per_hour * hours))) for kind in types]
    return stream_of(types, times, hours=hours, sizes=sizes, rng=rng)


def stream_of(
    types: Sequence[JobType],
    times: Sequence[np.ndarray],
    *,
    hours: float,
    sizes: SizeDistribution,
    rng: np.random.Generator,
) -> Stream:
    """Return the stream of the given arrival ``times`` of each type, in [0, ``hours``), with drawn sizes."""
    size = [
        kind.mean_hours * sizes.draw(rng, len(arrivals)) for kind, arrivals in zip(types, times, strict=True)
    ]
    index = np.repeat(np.arange(len(types)), [len(arrivals) for arrivals in times])
    joined = np.concatenate(times)
    order = np.argsort(joined, kind="stable")
    return Stream(time=joined[order], kind=index[order], size=np.concatenate(size)[order], hours=hours)


def drawn_widths(rental: Rental, stream: Stream, rng: np.random.Generator) -> np.ndarray:
    """Draw a width for each job by the shares of its type, shape (n,)."""
    ticket = rng.random(len(stream.time))
    first = np.array([kind.shares[0].width for kind in rental.types])
    last = np.array([kind.shares[-1].width for kind in rental.types])
    chance = np.array([kind.shares[0].probability for kind in rental.types])
    return np.asarray(np.where(ticket < chance[stream.kind], first[stream.kind], last[stream.kind]))


def play_widths(types: Sequence[JobType], width: np.ndarray, stream: Stream) -> StreamMeans:
    """Simulate jobs that get their width at once and retain it to the end: no queueing (M8.1)."""
    took = stream.size / paces(types, width, stream)
    begin, end = np.maximum(stream.time, stream.warm), np.minimum(stream.time + took, stream.hours)
    held = float((width * np.maximum(end - begin, 0.0)).sum()) / (stream.hours - stream.warm)
    return StreamMeans(response_hours=_mean_response(stream, took), gpus=held)


def paces(types: Sequence[JobType], width: np.ndarray, stream: Stream) -> np.ndarray:
    """Return s(width) of each job, shape (n,)."""
    found = np.empty(len(width))
    for i, kind in enumerate(types):
        for size in np.unique(width[stream.kind == i]).tolist():
            found[(stream.kind == i) & (width == size)] = kind.speedup.at(size)
    return found


def play_fifo(types: Sequence[JobType], gpus: int, width: int, stream: Stream) -> StreamMeans:
    """Simulate ``gpus`` in groups of ``width``, first come, first served; raises `SettingsError` if overloaded."""
    groups = gpus // width
    need = sum(kind.load / shared_pace(kind.speedup, float(width)) for kind in types)
    _check_cluster(gpus, groups, need, f"in groups of {width}")
    free = [0.0] * groups
    heapify(free)
    pace = np.array([shared_pace(kind.speedup, float(width)) for kind in types])
    service = stream.size / pace[stream.kind]
    end = np.empty(len(service))
    for i, (arrived, took) in enumerate(zip(stream.time.tolist(), service.tolist(), strict=True)):
        end[i] = max(arrived, free[0]) + took
        heapreplace(free, float(end[i]))
    return StreamMeans(response_hours=_mean_response(stream, end - stream.time), gpus=float(gpus))


def play_sharing(types: Sequence[JobType], gpus: int, stream: Stream) -> StreamMeans:
    """Simulate a cluster of ``gpus`` that present jobs share equally; raises `SettingsError` if overloaded."""
    _check_cluster(gpus, gpus, sum(kind.load for kind in types), "shared equally")
    most = 4096
    pace = np.array(
        [[shared_pace(kind.speedup, gpus / max(present, 1)) for present in range(most + 1)] for kind in types]
    )
    end = _share(stream.time, stream.kind, stream.size, pace)
    if np.isnan(end).any():
        raise SettingsError(
            f"more than {most} jobs at once on {gpus} GPUs", expected="a cluster that keeps up"
        )
    return StreamMeans(response_hours=_mean_response(stream, end - stream.time), gpus=float(gpus))


def shared_pace(speedup: Speedup, width: float) -> float:
    """Return s at any width: constant above the largest usable width, proportional below the smallest."""
    least = float(speedup.gpus[0]) if isinstance(speedup, TableSpeedup) else 1.0
    return width if width < least else speedup.at(min(width, speedup.most))


@njit(cache=True)
def _share(time: np.ndarray, kind: np.ndarray, size: np.ndarray, pace: np.ndarray) -> np.ndarray:
    """Return the end of each job under equal sharing, NaN once more jobs are present than ``pace`` (types, jobs + 1) has."""
    most, count = pace.shape[1] - 1, time.shape[0]
    end = np.full(count, np.nan)
    left = np.empty(most + 1)
    who = np.empty(most + 1, dtype=np.int64)
    present, now, following = 0, 0.0, 0
    while following < count or present > 0:
        soonest, first = np.inf, -1
        for j in range(present):
            ends = now + left[j] / pace[kind[who[j]], present]
            if ends < soonest:
                soonest, first = ends, j
        arrives = time[following] if following < count else np.inf
        until = min(soonest, arrives)
        for j in range(present):
            left[j] -= (until - now) * pace[kind[who[j]], present]
        now = until
        if soonest <= arrives:
            end[who[first]] = now
            present -= 1
            left[first], who[first] = left[present], who[present]
            continue
        if present == most:
            return end
        left[present], who[present] = size[following], following
        present += 1
        following += 1
    return end


def estimate(play: Callable[[np.random.Generator], StreamMeans], *, streams: int, seed: int) -> Estimate:
    """Return means and standard errors of ``play`` over at least two ``streams``; equal seeds, equal streams."""
    if streams < 2:
        raise SettingsError(f"{streams} streams", expected="at least 2: an error needs a spread")
    seeds = np.random.SeedSequence(seed).spawn(streams)
    found = [play(np.random.default_rng(seed)) for seed in seeds]
    response = np.array([result.response_hours for result in found])
    gpus = np.array([result.gpus for result in found])
    root = float(np.sqrt(streams))
    return Estimate(
        response_hours=float(response.mean()),
        response_error=float(response.std(ddof=1)) / root,
        gpus=float(gpus.mean()),
        gpus_error=float(gpus.std(ddof=1)) / root,
    )


def _mean_response(stream: Stream, took: np.ndarray) -> float:
    counted = stream.time >= stream.warm
    if not counted.any():
        raise SettingsError(f"a stream of {stream.hours:g} h without a job", expected="a longer stream")
    return float(took[counted].mean())


def _check_cluster(gpus: int, capacity: int, need: float, how: str) -> None:
    if need >= capacity:
        raise SettingsError(
            f"a cluster of {gpus} GPUs {how} for a load of {need:.4g} of {capacity}: unstable",
            expected="less load than it can do",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Renting:
    """Renting problem: types, a budget, whole widths or not, and the price of a GPU in units of the budget (1: GPUs)."""

    types: tuple[JobType, ...]
    budget: float
    whole: bool = False
    price: float = 1.0

    @property
    def least_budget(self) -> float:
        """Budget below which the load is not covered at any width (M8.1)."""
        return self.price * load_of(self.types)

    @property
    def covered(self) -> bool:
        """Whether the budget exceeds the load."""
        return self.budget > self.least_budget * (1.0 + 1e-9)

    def rental(self) -> Rental:
        """Return the optimal rental; raises as `slackwater.optimization.renting.budget.rent`."""
        prices = None if self.price == 1.0 else [self.price] * len(self.types)
        return rent(self.types, self.budget, whole=self.whole, prices=prices)


def budget_frontier(renting: Renting, budgets: Sequence[float]) -> list[Rental]:
    """Return the rental of each budget, without the budgets that do not cover the load."""
    found = [replace(renting, budget=budget) for budget in budgets]
    return [result.rental() for result in found if result.covered]


def load_of(types: Sequence[JobType]) -> float:
    """Return the least budget in GPUs: sum of rho_i at the width that occupies the fewest (M8.1)."""
    return sum(kind.load * _least_occupied(kind) for kind in types)


def _least_occupied(kind: JobType) -> float:
    table = getattr(kind.speedup, "gpus", None)
    return 1.0 if table is None else min(k / kind.speedup.at(float(k)) for k in table)


def equal_widths(types: Sequence[JobType], budget: float) -> Rental:
    """Return all jobs at the same width, the largest that the budget covers, limited by the largest of each type.

    A table is interpolated between measured widths. Raises `SettingsError` if the budget does not
    cover the load.
    """

    def gpus_at(width: float) -> float:
        return sum(kind.gpus for kind in fixed_rental(types, width, budget).types)

    if gpus_at(1.0) > budget:
        raise SettingsError(
            f"a budget of {budget:.6g} GPUs for {gpus_at(1.0):.6g} at width 1",
            expected="a budget that covers it",
        )
    widest = 1.0
    while gpus_at(2.0 * widest) <= budget and widest < 2**30:
        widest *= 2.0
    if gpus_at(2.0 * widest) <= budget:
        return fixed_rental(types, widest, budget)
    width = brentq(lambda k: gpus_at(k) - budget, widest, 2.0 * widest, xtol=1e-12)
    return fixed_rental(types, float(width), budget)


def fixed_rental(types: Sequence[JobType], width: float, budget: float) -> Rental:
    """Return all jobs at ``width`` GPUs, or at the nearest usable width of their type."""
    chosen = []
    for kind in types:
        least = float(getattr(kind.speedup, "gpus", (1,))[0])
        clipped = min(max(width, least), kind.speedup.most)
        pace = shared_pace(kind.speedup, clipped)
        response = kind.mean_hours / pace
        loss = float(kind.delay.expected_loss(np.array([response]))[0])
        chosen.append(
            TypeRental(
                kind=kind,
                shares=(Share(width=clipped, probability=1.0),),
                response_hours=response,
                gpus=kind.load * clipped / pace,
                spend=kind.load * clipped / pace,
                loss_per_hour=kind.rate_per_hour * loss,
            )
        )
    return Rental(
        types=tuple(chosen),
        budget=budget,
        spend=sum(rented.spend for rented in chosen),
        multiplier=float("nan"),
    )
