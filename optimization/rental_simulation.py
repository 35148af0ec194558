"""Streams of jobs played against fixed widths and against clusters of a fixed size (M8.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np
from numba import njit

from optimization.rental import Rental
from optimization.rental_frontier import JobType
from optimization.rental_sizes import ArrivalLaw, SizeLaw, arrival_times
from optimization.rental_speedup import Speedup, TableSpeedup
from warehouse.errors import SettingsError

#: Share of a stream that passes before anything is measured, so that the system is in its steady state.
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
        """From this hour on it is measured."""
        return WARM * self.hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of a stream: mean response time of jobs that came after the warm-up, and mean GPUs held from then on."""

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
    types: Sequence[JobType], *, hours: float, arrivals: ArrivalLaw, sizes: SizeLaw, rng: np.random.Generator
) -> Stream:
    """A stream of all types over ``hours``; each arrives by itself."""
    times = [arrival_times(arrivals, kind.rate_per_hour, hours, rng) for kind in types]
    size = [kind.mean_hours * sizes.draw(rng, len(own)) for kind, own in zip(types, times, strict=True)]
    index = np.repeat(np.arange(len(types)), [len(own) for own in times])
    joined = np.concatenate(times)
    order = np.argsort(joined, kind="stable")
    return Stream(time=joined[order], kind=index[order], size=np.concatenate(size)[order], hours=hours)


def drawn_widths(rental: Rental, stream: Stream, rng: np.random.Generator) -> np.ndarray:
    """A width for each job by its type's shares, shape (n,)."""
    ticket = rng.random(len(stream.time))
    first = np.array([one.shares[0].width for one in rental.types])
    last = np.array([one.shares[-1].width for one in rental.types])
    chance = np.array([one.shares[0].probability for one in rental.types])
    return np.asarray(np.where(ticket < chance[stream.kind], first[stream.kind], last[stream.kind]))


def play_widths(types: Sequence[JobType], width: np.ndarray, stream: Stream) -> Played:
    """Every job gets its width at once and holds it to its end: nothing queues (M8.1)."""
    took = stream.size / paces(types, width, stream)
    begin, end = np.maximum(stream.time, stream.warm), np.minimum(stream.time + took, stream.hours)
    held = float((width * np.maximum(end - begin, 0.0)).sum()) / (stream.hours - stream.warm)
    return Played(response_hours=_mean_response(stream, took), gpus=held)


def paces(types: Sequence[JobType], width: np.ndarray, stream: Stream) -> np.ndarray:
    """s(width) of each job, shape (n,)."""
    found = np.empty(len(width))
    for i, kind in enumerate(types):
        for own in np.unique(width[stream.kind == i]).tolist():
            found[(stream.kind == i) & (width == own)] = kind.speedup.at(own)
    return found


def play_fifo(types: Sequence[JobType], gpus: int, width: int, stream: Stream) -> Played:
    """A cluster of ``gpus``, cut into groups of ``width``; jobs wait in order of arrival for a free group.

    Raises `SettingsError` if the load is more than the groups can do.
    """
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
    return Played(response_hours=_mean_response(stream, end - stream.time), gpus=float(gpus))


def play_sharing(types: Sequence[JobType], gpus: int, stream: Stream) -> Played:
    """A cluster of ``gpus`` of which every present job has an equal part, less than one GPU if they are many.

    Raises `SettingsError` if the load is more than the cluster can do.
    """
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
    return Played(response_hours=_mean_response(stream, end - stream.time), gpus=float(gpus))


def shared_pace(speedup: Speedup, width: float) -> float:
    """s at any width: within the widths of use as it is, no faster beyond them, and in proportion below the smallest."""
    least = float(speedup.gpus[0]) if isinstance(speedup, TableSpeedup) else 1.0
    return width if width < least else speedup.at(min(width, speedup.most))


@njit(cache=True)
def _share(time: np.ndarray, kind: np.ndarray, size: np.ndarray, pace: np.ndarray) -> np.ndarray:
    """End of each job under equal sharing, NaN from where more jobs are present than ``pace`` (types, jobs + 1) knows."""
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


def estimate(play: Callable[[np.random.Generator], Played], *, streams: int, seed: int) -> Estimate:
    """Means of ``play`` over ``streams`` independent streams, with the standard errors of those means.

    Equal seeds give equal streams to whatever is compared. Raises `SettingsError` for fewer than two streams.
    """
    if streams < 2:
        raise SettingsError(f"{streams} streams", expected="at least 2: an error needs a spread")
    seeds = np.random.SeedSequence(seed).spawn(streams)
    found = [play(np.random.default_rng(one)) for one in seeds]
    response = np.array([one.response_hours for one in found])
    gpus = np.array([one.gpus for one in found])
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
