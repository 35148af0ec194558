"""What every stage of a turn is given: the warehouse, the logical time, the settings, what is read once, and how work is spread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import pandas as pd

from flows.config import Settings
from flows.ledger.runs import LIVE, RunRow, failure_kept
from flows.show.formats import rows_of
from optimization.replay.decision import Fan, in_turn
from warehouse.asof import HistoryRequest, MovingReader, Reader, Span, load_histories
from warehouse.errors import MarketError
from warehouse.history import History
from warehouse.observations import list_markets, list_markets_at
from warehouse.store.connection import Store


class Reads:
    """The observations as the turns of one time, or of a span of times, read them: each history and listing once (M1.2).

    Every answer is the one that the store would give at that time; made after the last of the times has been ingested.
    """

    def __init__(self, store: Store, span: Span | None = None) -> None:
        self._store = store
        self._times = pd.DatetimeIndex([]) if span is None else span.times()
        self._reader = Reader(store) if span is None else MovingReader(store, span)
        self._listings: dict[pd.Timestamp, pd.DataFrame] = {}
        self._listed: dict[pd.Timestamp, list[dict[str, Any]]] = {}
        self._histories: dict[HistoryRequest, History | MarketError] = {}
        # Stages of a backfill read beside each other.
        self._turn = RLock()

    def listed(self, at: pd.Timestamp) -> list[dict[str, Any]]:
        """The rows of `list_markets` as known at a time."""
        with self._turn:
            if at not in self._listings and at in self._times:
                self._listings = list_markets_at(self._store, self._times)
            elif at not in self._listings:
                self._listings[at] = list_markets(self._store, known_at=at)
            if at not in self._listed:
                self._listed[at] = rows_of(self._listings[at])
            return self._listed[at]

    def histories(self, requests: Sequence[HistoryRequest]) -> list[History | MarketError]:
        """What `load_histories` gives, in the order asked for, or why one of them cannot be read."""
        with self._turn:
            new = [one for one in dict.fromkeys(requests) if one not in self._histories]
            try:
                self._histories |= zip(new, self._loaded(new), strict=True)
            except MarketError:
                for one in new:
                    self._histories[one] = self._loaded_or_why(one)
            return [self._histories[one] for one in requests]

    def _loaded(self, requests: Sequence[HistoryRequest]) -> list[History]:
        return load_histories(self._store, requests, reader=self._reader)

    def _loaded_or_why(self, request: HistoryRequest) -> History | MarketError:
        try:
            return self._loaded([request])[0]
        except MarketError as error:
            return error


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of the loop.

    ``at`` is the logical time, a slot's start. With ``own_end`` every market is taken at the end of its own record
    instead, if that is earlier. ``run_id`` names the turn; the same one again writes nothing new. Only the process
    that holds ``store`` writes: what `fan` calls gets values and returns values. ``made`` says whether the turn is made in its own
    slot or afterwards; ``reads`` answers for the observations, which are in by then.
    """

    store: Store
    at: pd.Timestamp
    settings: Settings
    run_id: str
    own_end: bool = False
    fan: Fan = field(default=in_turn)
    say: Callable[[str], None] = field(default=lambda _: None)
    made: str = LIVE
    reads: Reads | None = None

    def listed(self) -> list[dict[str, Any]]:
        """The markets known at the turn's time, as rows."""
        reads = Reads(self.store) if self.reads is None else self.reads
        return reads.listed(self.at)

    def done(self, stage: str, details: Mapping[str, Any]) -> RunRow:
        """The row of the ledger that says that a stage of the turn is done."""
        return RunRow(run=self.run_id, at=self.at, stage=stage, details=details, made=self.made)

    def failure_kept(self, stage: str) -> failure_kept:
        """Within it, why a stage fails is recorded in the ledger of runs."""
        return failure_kept(self.store, self.run_id, at=self.at, stage=stage, say=self.say)


def run_id_of(at: pd.Timestamp, what: str = "run") -> str:
    """The name of the turn at a logical time: the same time gives the same name."""
    return f"{what}-{at:%Y%m%dT%H%M%SZ}"
