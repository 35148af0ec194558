"""Up-or-down traces of single instances on the slot grid, and their split into training and test parts (M1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from warehouse.errors import MarketError

KEYS = ["source", "provider", "region", "zone", "instance_type"]
#: Shares of time up that part low, medium and high availability (ours; the public benchmark names classes, not limits).
LOW_BELOW, HIGH_FROM = 0.5, 0.8
#: Nominal gaps after which an observation no longer says anything (M1.3).
STALE_GAPS = 3
#: Kinds of counts that say a launch would have worked; listed offers do not.
LAUNCHABLE = ("probe", "held")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Whether one instance could be had, slot by slot: ``up`` (slots,) bool, ``start`` of slot 0 in UTC.

    A slot without a fresh observation counts as down: nobody could have launched on it knowingly; ``gaps`` counts those.
    """

    name: str
    start: pd.Timestamp
    slot_minutes: int
    up: np.ndarray
    gaps: int = 0

    @property
    def year(self) -> int:
        """Year of the first slot."""
        return int(self.start.year)

    @property
    def share(self) -> float:
        """Share of slots that are up."""
        return float(self.up.mean())

    @property
    def availability(self) -> str:
        """Class by share of time up: low, medium or high."""
        if self.share < LOW_BELOW:
            return "low"
        return "high" if self.share >= HIGH_FROM else "medium"


def single_traces(frame: pd.DataFrame, *, slot_minutes: int, least_hours: float) -> list[Trace]:
    """Traces of every series that probes one instance and lasts ``least_hours``, by name.

    ``frame`` is the tidy availability table. Raises `MarketError` if a column is missing or no series fits.
    """
    needed = [*KEYS, "timestamp", "available", "capacity_probed", "gap_seconds", "kind"]
    missing = [column for column in needed if column not in frame.columns]
    if missing:
        raise MarketError(f"an availability table without {missing}", expected=f"columns {needed}")
    launch = frame["kind"].isin(LAUNCHABLE) & frame["available"].notna()
    single = frame[launch & (frame["capacity_probed"] == 1).fillna(False)]
    traces = []
    for key, rows in single.groupby(KEYS, sort=True, dropna=False):
        found = slotted(rows, name="/".join(str(part) for part in key), slot_minutes=slot_minutes)
        if found.up.size * slot_minutes >= least_hours * 60:
            traces.append(found)
    if not traces:
        raise MarketError(
            f"{single.groupby(KEYS, dropna=False).ngroups} series that probe a single instance, none of {least_hours:g} h",
            expected="at least one with capacity_probed = 1 that is long enough",
            remedy="give a folder with longer single-instance availability",
        )
    return traces


def slotted(rows: pd.DataFrame, *, name: str, slot_minutes: int) -> Trace:
    """One series by sample and hold: a slot shows the last observation at or before its start, down if that is stale (M1.3)."""
    rows = rows.drop_duplicates("timestamp", keep="last").sort_values("timestamp")
    times = pd.DatetimeIndex(rows["timestamp"]).as_unit("s").asi8
    step = 60 * slot_minutes
    first = -(-int(times[0]) // step)
    grid = np.arange(first, int(times[-1]) // step + 1, dtype=np.int64) * step
    last = np.searchsorted(times, grid, side="right") - 1
    gap = float(rows["gap_seconds"].astype("float64").median())
    if np.isnan(gap):  # not stated: what was measured
        gap = float(np.median(np.diff(times))) if times.size > 1 else 0.0
    oldest = max(STALE_GAPS * gap, step)
    stale = grid - times[last] > oldest
    up = (rows["available"].to_numpy(dtype=float)[last] >= 1) & ~stale
    start = pd.Timestamp(first * step, unit="s", tz="UTC")
    return Trace(name=name, start=start, slot_minutes=slot_minutes, up=up, gaps=int(stale.sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What is learned from and what is scored: ``label`` says which is which."""

    label: str
    train: tuple[Trace, ...]
    test: tuple[Trace, ...]


def splits(traces: Sequence[Trace]) -> list[Split]:
    """Every year tested with tables trained on all other years; with one year only, its second half with its first.

    Nothing of the test part is learned from. Where years are split a later year may teach an earlier one: two directions
    of one transfer test, not a backtest.
    """
    years = sorted({trace.year for trace in traces})
    if len(years) > 1:
        return [
            Split(
                label=f"{'+'.join(str(y) for y in years if y != year)} -> {year}",
                train=tuple(t for t in traces if t.year != year),
                test=tuple(t for t in traces if t.year == year),
            )
            for year in years
        ]
    halves = [(half(trace, 0), half(trace, 1)) for trace in traces]
    return [
        Split(
            label=f"{years[0]}, first half -> second half",
            train=tuple(a for a, _ in halves),
            test=tuple(b for _, b in halves),
        )
    ]


def half(trace: Trace, which: int) -> Trace:
    """The first (0) or second (1) half of a trace."""
    cut = trace.up.size // 2
    later = pd.Timedelta(minutes=trace.slot_minutes * cut)
    if which == 0:
        return replace(trace, up=trace.up[:cut])
    return replace(trace, start=trace.start + later, up=trace.up[cut:])
