"""What a market and its peers had shown, slot by slot, for policies that learn from it: the record of a job (M4.6, M1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from flows.turn.context import Turn
from flows.turn.markets import Followed, step_of, turn_history
from optimization.market.chains import Forgetting
from optimization.market.window import Record, record_of
from warehouse.errors import MarketError
from warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History, Market

#: How far before a job its record reaches: as far back as chains read.
RECORD_SPAN = pd.Timedelta(days=Forgetting().price_days)
#: Most peers of a market that are read.
MOST_PEERS = 12


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


@dataclass(slots=True, kw_only=True)
class PeerReader:
    """Reads the peers of markets at a turn's time, each history once, from ``start`` on."""

    turn: Turn
    start: pd.Timestamp
    _listed: Sequence[Mapping[str, Any]] | None = None
    _read: dict[Followed, History | None] = field(default_factory=dict)

    def peers_of(self, followed: Followed) -> list[History]:
        """Histories of the other markets of the same source and instance type, at most `MOST_PEERS`.

        Those of the same region come first, then by name. They hold what was known at the turn's time, whatever the time
        of ``followed``: `market_record` leaves out what was not known by its.
        """
        if self._listed is None:
            self._listed = self.turn.listed()
        market = followed.market
        kind = (followed.source, market.instance_type)
        others = [
            row
            for row in self._listed
            if (row["source"], row["instance_type"]) == kind
            and row["has_counts"]
            and row["market"] != market.key
        ]
        ranked = sorted(others, key=lambda row: (row["region"] != market.region, row["market"]))
        found = [self._history(row) for row in ranked[:MOST_PEERS]]
        return [history for history in found if history is not None]

    def _history(self, row: Mapping[str, Any]) -> History | None:
        step = step_of(self.turn.settings)
        last = pd.Timestamp(str(row["last_observed"])).ceil(step)
        peer = Followed(
            market=Market.parse(str(row["market"])),
            source=str(row["source"]),
            at=min(last, self.turn.at.floor(step)),
        )
        if peer not in self._read:
            self._read[peer] = _readable_history(self.turn, peer, self.start)
        return self._read[peer]


def _readable_history(turn: Turn, followed: Followed, start: pd.Timestamp) -> History | None:
    """A market's history from ``start``, None where there is none to read."""
    try:
        return turn_history(turn, followed, start=start)
    except MarketError:
        return None
