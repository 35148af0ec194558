"""Count series and price paths on a slot grid, and how they are cut: sample and hold, halves, peers (M1.3, M7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from forecasting.quantiles import Variable
from warehouse.errors import SettingsError
from warehouse.history import Market

Part = Literal["train", "test"]
#: Slots of the training half that come before its first job, so that there is something to have learned from (ours).
WARM_SLOTS = 48
#: Share of a job's slots that may be gaps; a start with more is not drawn (ours).
MOST_GAPS = 0.05
#: Readings between two slots that are kept, at most.
MOST_WITHIN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """One recorded variable of one market on a regular grid, NaN in gaps (M1.3), shape (slots,).

    A count series holds instances and ``bound`` is the largest count its probe can see; a price path holds USD per
    instance-hour and ``bound`` is its on-demand price. ``first`` is the start of slot 0; ``product`` says what a price buys.
    ``within`` (slots, m), if given, holds counts probed between a slot's start and the one before, oldest first, NaN
    where there was none.
    """

    variable: Variable
    market: Market
    source: str
    product: str = ""
    values: np.ndarray
    bound: float
    first: pd.Timestamp
    step: pd.Timedelta
    real_clock: bool
    within: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def label(self) -> str:
        """``market@source``, with the product where there is one."""
        return f"{self.market.key}@{self.source}" + (f" ({self.product})" if self.product else "")

    @property
    def kind(self) -> tuple[str, str]:
        """What peers share: source and instance type."""
        return self.source, self.market.instance_type

    @property
    def half(self) -> int:
        """The first slot of the test part: each series is split in the middle of its time."""
        return len(self) // 2

    def time(self, slot: int) -> pd.Timestamp:
        """Start of a slot."""
        return self.first + slot * self.step

    def changes(self) -> int:
        """Changes of value between neighbouring observed slots in the first half."""
        seen = self.values[: self.half]
        seen = seen[np.isfinite(seen)]
        return int(np.count_nonzero(np.diff(seen)))


def sample_and_hold(
    times: np.ndarray, values: np.ndarray, grid: np.ndarray, *, max_age: np.timedelta64
) -> np.ndarray:
    """The last of ``values`` observed at or before each slot of ``grid``, NaN where it is older than ``max_age`` (M1.3).

    ``times`` (n,) ascending and ``grid`` (slots,) are datetime64 of one unit; the result has shape (slots,).
    """
    place = np.searchsorted(times, grid, side="right") - 1
    known = place >= 0
    place = np.maximum(place, 0)
    fresh = known & (grid - times[place] <= max_age)
    return np.where(fresh, np.asarray(values, dtype=float)[place], np.nan)


def held_within(
    times: np.ndarray, values: np.ndarray, grid: np.ndarray, *, gap: np.timedelta64
) -> np.ndarray:
    """What was probed between a slot's start and the one before, evenly spaced, oldest first, shape (slots, m).

    m is the number of probes every ``gap`` that a slot of the regular ``grid`` has beside the one at its start, at most
    `MOST_WITHIN`; a reading older than one and a half gaps is NaN.
    """
    step = grid[1] - grid[0] if len(grid) > 1 else gap
    m = min(max(round(step / gap) - 1, 0), MOST_WITHIN)
    age = gap + gap // 2
    columns = [
        sample_and_hold(times, values, grid - step * (m - j) // (m + 1), max_age=age) for j in range(m)
    ]
    return np.column_stack(columns) if columns else np.zeros((len(grid), 0))


def aligned(tape: Tape, other: Tape) -> np.ndarray:
    """``other`` on the slots of ``tape``, NaN outside its record, shape (slots of tape,)."""
    shift = int((other.first - tape.first) // tape.step)
    out = np.full(len(tape), np.nan)
    begin, end = max(0, shift), min(len(tape), shift + len(other))
    if begin < end:
        out[begin:end] = other.values[begin - shift : end - shift]
    return out


def peers_of(tape: Tape, tapes: Sequence[Tape]) -> np.ndarray:
    """The other tapes of the same kind on the slots of ``tape``, shape (peers, slots)."""
    others = [aligned(tape, other) for other in tapes if other.kind == tape.kind and other is not tape]
    return np.array(others) if others else np.empty((0, len(tape)))


def starts(tape: Tape, slots: int, part: Part) -> np.ndarray:
    """Slots at which a job of ``slots`` slots may begin so that it lies in one part and is not mostly gaps, ascending.

    Test: the second half. Train: the first half, after `WARM_SLOTS` where it is long enough. At most `MOST_GAPS` of the job's
    slots may be gaps.
    """
    low, high = (tape.half, len(tape)) if part == "test" else (0, tape.half)
    if part == "train":
        low = max(0, min(WARM_SLOTS, high - slots))
    if high - low < slots:
        return np.empty(0, dtype=np.int64)
    gaps = np.concatenate([[0], np.cumsum(np.isnan(tape.values))])
    at = np.arange(low, high - slots + 1)
    return np.asarray(at[gaps[at + slots] - gaps[at] <= MOST_GAPS * slots])


def moving_paths(paths: Sequence[Tape], *, most: int) -> list[Tape]:
    """At most ``most`` paths of each source, so that many flat ones do not drown the others (ours).

    Instance types take turns; within a type those that change most often in their first half come first, then by label.
    The types themselves are ordered by their liveliest path.
    """
    if most < 1:
        raise SettingsError(f"{most} paths a source", expected="at least one")
    chosen: list[Tape] = []
    for source in sorted({path.source for path in paths}):
        types: dict[str, list[Tape]] = {}
        ranked = sorted(
            (path for path in paths if path.source == source), key=lambda path: (-path.changes(), path.label)
        )
        for path in ranked:
            types.setdefault(path.kind[1], []).append(path)
        rounds = max(len(group) for group in types.values())
        turns = [group[i] for i in range(rounds) for group in types.values() if i < len(group)]
        chosen += turns[:most]
    return chosen
