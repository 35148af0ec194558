"""What a market and its peers had shown, slot by slot, for policies that learn from it: the record of a job (M4.6, M1.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from optimization.market.chains import Forgetting
from optimization.market.window import Record, record_of
from warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History

#: How far before a job its record reaches: as far back as chains read.
RECORD_SPAN = pd.Timedelta(days=Forgetting().price_days)


def record_start(first: pd.Timestamp) -> pd.Timestamp:
    """The earliest slot of the record of a job whose first slot is ``first``."""
    return first - RECORD_SPAN


def market_record(
    history: History,
    peers: Sequence[History],
    *,
    first: pd.Timestamp,
    last: pd.Timestamp,
    known_by: pd.Timestamp,
) -> Record:
    """The record of a job on the market of ``history``, from `record_start` (or where the history begins) to slot ``last``.

    ``first`` is the job's slot 0 and ``known_by`` when its policy began to look: the job's first slot in a replay, the present
    one for a live decision. A row that was learned after both its own slot and ``known_by`` is a gap here, as a view of its
    slot could not have read it; a value that was revised later is one too, because a history keeps the newest version only.
    ``peers`` are histories of other markets; each counts where it was known by the same rule and is NaN elsewhere.
    """
    before = (first - history.slots[0]) // history.step if len(history.slots) else 0
    before = max(0, min(before, RECORD_SPAN // history.step))
    grid = pd.date_range(first - before * history.step, last, freq=history.step)
    return record_of(
        _known(history, PRICE, grid, known_by),
        _known(history, AVAILABLE, grid, known_by),
        first=before,
        slot_hours=history.slot_hours,
        peers=np.array([_known(peer, AVAILABLE, grid, known_by) for peer in peers]).reshape(-1, len(grid)),
        hour=(grid[0] - grid[0].floor("D")) / pd.Timedelta(hours=1) if history.real_clock else None,
    )


def _known(history: History, column: str, grid: pd.DatetimeIndex, known_by: pd.Timestamp) -> np.ndarray:
    """A column on ``grid``, NaN in gaps and where the row was learned later than its slot and ``known_by``."""
    slots, frame = history.slots, history.frame
    found = np.full(len(grid), np.nan)
    if not len(slots) or not len(grid):
        return found
    if (grid[0] - slots[0]) % history.step:  # no slot of the one is one of the other
        return found
    # Both grids are regular: what they have in common is a slice of each.
    offset = (grid[0] - slots[0]) // history.step
    first, end = max(0, -offset), min(len(grid), len(slots) - offset)
    if end <= first:
        return found
    own = slice(first + offset, end + offset)
    values = frame[column].to_numpy(dtype=float)[own]
    if history.known_at > known_by:  # else nothing in it was learned later
        at = grid[first:end]
        late = frame[ROW_KNOWN_AT].array[own] > at.where(at > known_by, known_by)
        values = np.where(late, np.nan, values)
    found[first:end] = values
    return found
