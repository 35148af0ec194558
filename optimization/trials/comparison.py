"""Policies beside baselines and hindsight over many jobs: relative gain and headroom captured, with intervals (M7).

The bootstrap is paired over jobs: all policies are resampled together, so that what they share cancels in a comparison.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from warehouse.errors import SettingsError

#: Resamples behind an interval, and its level.
REPEATS, LEVEL = 2000, 0.95


def resampled_means(
    values: np.ndarray,
    *,
    rng: np.random.Generator,
    repeats: int = REPEATS,
    blocks: np.ndarray | None = None,
) -> np.ndarray:
    """Means of ``values`` (jobs, columns) over ``repeats`` resamples of the jobs with replacement, shape (repeats, columns).

    Each resample is the same for all columns. Jobs of one of ``blocks`` (jobs,) are drawn together. Raises `SettingsError` for
    no job, or values that are not finite.
    """
    table = np.asarray(values, dtype=float)
    if table.ndim != 2 or not len(table) or not np.isfinite(table).all():
        raise SettingsError(
            f"values of shape {table.shape}, {int((~np.isfinite(table)).sum())} of them not finite",
            expected="a finite table of at least one job",
        )
    if blocks is None:
        of, sizes = table, np.ones(len(table))
    else:
        block = np.unique(blocks, return_inverse=True)[1]
        sizes = np.bincount(block).astype(float)
        of = np.zeros((len(sizes), table.shape[1]))
        np.add.at(of, block, table)
    drawn = rng.multinomial(len(of), np.full(len(of), 1.0 / len(of)), size=repeats)
    return np.asarray(drawn @ of / (drawn @ sizes)[:, None])


def interval(samples: np.ndarray, *, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """The central percentile interval of ``samples`` (repeats, ...), NaN ones left out, two arrays of shape (...).

    A column of which no sample is a number has the interval (NaN, NaN).
    """
    table = np.asarray(samples, dtype=float)
    empty = np.isnan(table).all(axis=0)
    filled = np.where(empty, 0.0, table)
    low, high = np.nanquantile(filled, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=0)
    return np.where(empty, np.nan, low), np.where(empty, np.nan, high)


#: What an improvement is measured against: these policies, and AHANP at its best sigma (M7).
BASELINES = ("OD-only", "MSU", "UP")
#: Headroom below this, in units of the OD-only cost, is none: a baseline that is as good as hindsight leaves nothing to capture.
NO_HEADROOM = 1e-9


def relative_gain(utility: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """(U - U_b) / |U_b|, NaN where the baseline's utility is 0 (M7)."""
    size = np.abs(baseline)
    return np.asarray(
        np.divide(utility - baseline, size, out=np.full(np.shape(utility - baseline), np.nan), where=size > 0)
    )


def headroom_captured(utility: np.ndarray, baseline: np.ndarray, hindsight: np.ndarray) -> np.ndarray:
    """(U - U_b) / (U_hindsight - U_b), NaN where there is no headroom (M7)."""
    room = np.asarray(hindsight - baseline)
    gain = utility - baseline
    shape = np.broadcast_shapes(np.shape(gain), room.shape)
    return np.asarray(
        np.divide(gain, room, out=np.full(shape, np.nan), where=np.broadcast_to(room > NO_HEADROOM, shape))
    )


def baseline_places(names: Sequence[str]) -> list[int]:
    """Places of the policies that count as baselines: `BASELINES` and every AHANP; `SettingsError` if there is none."""
    places = [i for i, name in enumerate(names) if name in BASELINES or re.fullmatch(r"AHANP\(.*\)", name)]
    if not places:
        raise SettingsError("a pool without baselines", expected=f"one of {', '.join(BASELINES)} or an AHANP")
    return places


def shown_baselines(names: Sequence[str], mean: np.ndarray) -> list[str]:
    """The baselines to compare with: those of `BASELINES` that are there, and the AHANP of the best mean."""
    reactive = [i for i in baseline_places(names) if names[i] not in BASELINES]
    best = [names[max(reactive, key=lambda i: mean[i])]] if reactive else []
    return [name for name in names if name in BASELINES] + best


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Means over jobs in units of each job's OD-only cost, and what they say; arrays have shape (policies,).

    ``low`` and ``high`` are 95 % intervals of ``mean``, ``ahead_low`` and ``ahead_high`` of its paired difference from the
    baseline, all by the bootstrap; ``baseline`` is the best of the baselines by mean, chosen on these very jobs, which is
    the strictest choice. ``headroom`` is NaN where there is none.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    ahead_low: np.ndarray
    ahead_high: np.ndarray
    hindsight: tuple[float, float]
    baseline: str
    gain: dict[str, np.ndarray]
    headroom: np.ndarray
    headroom_low: np.ndarray
    headroom_high: np.ndarray

    @property
    def best(self) -> str:
        """The policy of the largest mean, the first of those that tie."""
        return self.names[int(self.mean.argmax())]

    def of(self, name: str) -> int:
        """The place of a policy; raises `SettingsError` if it is not there."""
        if name not in self.names:
            raise SettingsError(f"policy {name!r}", expected=f"one of the {len(self.names)} compared")
        return self.names.index(name)


def compare(
    names: Sequence[str],
    utility: np.ndarray,
    *,
    hindsight_low: np.ndarray,
    hindsight_high: np.ndarray,
    rng: np.random.Generator | None = None,
) -> Comparison:
    """Compare policies on jobs: ``utility`` (jobs, policies), hindsight's bracket (jobs,), all in units of the OD-only cost.

    Headroom is measured up to the upper end of hindsight, which can only understate what was captured. Without ``rng`` no
    intervals are made (they are NaN).
    """
    table = np.column_stack([utility, hindsight_low, hindsight_high])
    mean = table.mean(axis=0)
    places = baseline_places(names)
    base = max(places, key=lambda i: mean[i])
    count = len(names)
    nothing = np.full(count, np.nan)
    low = high = ahead_low = ahead_high = room_low = room_high = nothing
    if rng is not None:
        samples = resampled_means(table, rng=rng)
        low, high = (edge[:count] for edge in interval(samples))
        ahead_low, ahead_high = interval(samples[:, :count] - samples[:, [base]])
        bases = samples[:, places].max(
            axis=1, keepdims=True
        )  # the best baseline is chosen anew in each resample
        room_low, room_high = interval(headroom_captured(samples[:, :count], bases, samples[:, -1:]))
    return Comparison(
        names=tuple(names),
        mean=mean[:count],
        low=low,
        high=high,
        ahead_low=ahead_low,
        ahead_high=ahead_high,
        hindsight=(float(mean[-2]), float(mean[-1])),
        baseline=names[base],
        gain={
            name: relative_gain(mean[:count], mean[list(names).index(name)])
            for name in shown_baselines(names, mean)
        },
        headroom=headroom_captured(mean[:count], mean[base], mean[-1]),
        headroom_low=room_low,
        headroom_high=room_high,
    )
