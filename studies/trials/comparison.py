"""Comparison of policies with baselines and hindsight over many jobs: relative gain and headroom captured, with intervals (M7).

Intervals come from a bootstrap (`resampled`) that draws blocks of jobs sharing slots, never single jobs. It is paired: all
policies are resampled together, so that common variation cancels in a comparison.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import norm, t

from slackwater.forecasting.accuracy.intervals import LEAST_BLOCKS
from slackwater.warehouse.errors import SettingsError

#: Number of resamples for an interval, and its level.
REPEATS, LEVEL = 2000, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Resamples:
    """Means over resamples of the jobs: ``means`` (repeats, columns), with each resample shared by all columns.

    ``blocks``: number of blocks drawn.
    """

    means: np.ndarray
    blocks: int

    def interval(
        self, samples: np.ndarray | None = None, *, level: float = LEVEL
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the interval of ``samples`` (repeats, ...), a statistic of each row of `means`, as two arrays (...).

        Without ``samples`` it is the interval of the means. With fewer blocks the percentiles lie further out, as Student's t does
        compared with the normal distribution (Hesterberg's expanded percentiles). NaN samples are ignored. The interval is
        (NaN, NaN) for a column that is all NaN, and for every column with fewer than `LEAST_BLOCKS` blocks.
        """
        table = np.asarray(self.means if samples is None else samples, dtype=float)
        if self.blocks < LEAST_BLOCKS:
            return np.full(table.shape[1:], np.nan), np.full(table.shape[1:], np.nan)
        reach = t.ppf((1.0 + level) / 2.0, self.blocks - 1) * np.sqrt(self.blocks / (self.blocks - 1.0))
        empty = np.isnan(table).all(axis=0)
        tail = norm.sf(reach)
        low, high = np.nanquantile(np.where(empty, 0.0, table), [tail, 1.0 - tail], axis=0)
        return np.where(empty, np.nan, low), np.where(empty, np.nan, high)


def resampled(
    values: np.ndarray,
    *,
    blocks: Sequence[Hashable] | np.ndarray,
    rng: np.random.Generator,
    repeats: int = REPEATS,
) -> Resamples:
    """Return means of ``values`` (jobs, columns) over resamples with replacement of whole blocks, the bootstrap of all experiments.

    ``blocks`` (jobs,) names the block of each job: jobs of a block share slots, as jobs of the same series and day do
    (`day_blocks`). Raises `SettingsError` without jobs, for values that are not finite, or if the numbers of blocks and jobs
    differ.
    """
    table = np.asarray(values, dtype=float)
    if table.ndim != 2 or not len(table) or not np.isfinite(table).all():
        raise SettingsError(
            f"values of shape {table.shape}, {int((~np.isfinite(table)).sum())} of them not finite",
            expected="a finite table of at least one job",
        )
    if len(blocks) != len(table):
        raise SettingsError(f"{len(blocks)} blocks for {len(table)} jobs", expected="the block of each job")
    block = pd.factorize(pd.Index(list(blocks)))[0]
    sizes = np.bincount(block).astype(float)
    sums = np.zeros((len(sizes), table.shape[1]))
    np.add.at(sums, block, table)
    drawn = rng.multinomial(len(sizes), np.full(len(sizes), 1.0 / len(sizes)), size=repeats)
    return Resamples(means=np.asarray(drawn @ sums / (drawn @ sizes)[:, None]), blocks=len(sizes))


def day_blocks(series: Iterable[str], starts: Iterable[pd.Timestamp]) -> np.ndarray:
    """Return the block of each job: its series and the day in which it starts, shape (jobs,)."""
    days = [pd.Timestamp(start).floor("D").isoformat() for start in starts]
    return np.array([f"{name} {day}" for name, day in zip(series, days, strict=True)], dtype=object)


#: Baselines of improvements: these policies, and AHANP at its best sigma (M7).
BASELINES = ("OD-only", "MSU", "UP")
#: Headroom below this, in units of the OD-only cost, counts as zero: the baseline is as good as hindsight.
NO_HEADROOM = 1e-9


def relative_gain(utility: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """Return (U - U_b) / |U_b|, NaN where the baseline's utility is 0 (M7)."""
    size = np.abs(baseline)
    return np.asarray(
        np.divide(utility - baseline, size, out=np.full(np.shape(utility - baseline), np.nan), where=size > 0)
    )


def headroom_captured(utility: np.ndarray, baseline: np.ndarray, hindsight: np.ndarray) -> np.ndarray:
    """Return (U - U_b) / (U_hindsight - U_b), NaN where there is no headroom (M7)."""
    room = np.asarray(hindsight - baseline)
    gain = utility - baseline
    shape = np.broadcast_shapes(np.shape(gain), room.shape)
    return np.asarray(
        np.divide(gain, room, out=np.full(shape, np.nan), where=np.broadcast_to(room > NO_HEADROOM, shape))
    )


def baseline_places(names: Sequence[str]) -> list[int]:
    """Return the indices of the baselines: `BASELINES` and every AHANP; `SettingsError` if there is none."""
    places = [i for i, name in enumerate(names) if name in BASELINES or re.fullmatch(r"AHANP\(.*\)", name)]
    if not places:
        raise SettingsError("a pool without baselines", expected=f"one of {', '.join(BASELINES)} or an AHANP")
    return places


def shown_baselines(names: Sequence[str], mean: np.ndarray) -> list[str]:
    """Return the baselines to compare with: those of `BASELINES` that are present, and the AHANP with the best mean."""
    reactive = [i for i in baseline_places(names) if names[i] not in BASELINES]
    best = [names[max(reactive, key=lambda i: mean[i])]] if reactive else []
    return [name for name in names if name in BASELINES] + best


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of policies by means over jobs in units of each job's OD-only cost; arrays have shape (policies,).

    ``low`` and ``high`` are 95 % bootstrap intervals of ``mean``; ``ahead_low`` and ``ahead_high`` those of its paired difference
    from the baseline. ``baseline`` is the baseline with the best mean on these same jobs, which is the strictest choice.
    ``headroom`` is NaN where there is none.
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
        """Policy with the largest mean, the first in a tie."""
        return self.names[int(self.mean.argmax())]

    def of(self, name: str) -> int:
        """Return the index of a policy; raises `SettingsError` if it is missing."""
        if name not in self.names:
            raise SettingsError(f"policy {name!r}", expected=f"one of the {len(self.names)} compared")
        return self.names.index(name)


def compare(
    names: Sequence[str],
    utility: np.ndarray,
    *,
    hindsight_low: np.ndarray,
    hindsight_high: np.ndarray,
    blocks: np.ndarray | None = None,
    rng: np.random.Generator | None = None,
) -> Comparison:
    """Compare policies on jobs: ``utility`` (jobs, policies), hindsight's bracket (jobs,), all in units of the OD-only cost.

    Headroom is measured up to the upper end of hindsight, which can only understate the captured share. ``blocks`` (jobs,) are
    those of `resampled`; without ``blocks`` or ``rng`` the intervals are NaN.
    """
    table = np.column_stack([utility, hindsight_low, hindsight_high])
    mean = table.mean(axis=0)
    places = baseline_places(names)
    base = max(places, key=lambda i: mean[i])
    count = len(names)
    nothing = np.full(count, np.nan)
    low = high = ahead_low = ahead_high = room_low = room_high = nothing
    if rng is not None and blocks is not None:
        draws = resampled(table, blocks=blocks, rng=rng)
        samples = draws.means
        low, high = (edge[:count] for edge in draws.interval())
        ahead_low, ahead_high = draws.interval(samples[:, :count] - samples[:, [base]])
        bases = samples[:, places].max(axis=1, keepdims=True)  # each resample chooses its best baseline again
        room_low, room_high = draws.interval(headroom_captured(samples[:, :count], bases, samples[:, -1:]))
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
