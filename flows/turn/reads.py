"""What the turns of one stretch of time read of the observations: each history and listing once, however many turns ask (M1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from flows.show.table import rows_of
from warehouse.asof.load import HistoryRequest, load_histories
from warehouse.asof.moving import MovingReader, Span
from warehouse.history import History
from warehouse.observations.listing import list_markets, list_markets_at
from warehouse.store.connection import Store


class Reads:
    """Answers for the times of a span from one pass over the observations; made after the last of them has been ingested.

    Every answer is the one that the store would give at that time.
    """

    def __init__(self, store: Store, span: Span) -> None:
        self._store = store
        self._times = span.times()
        self._reader = MovingReader(store, span)
        self._listings: dict[pd.Timestamp, pd.DataFrame] = {}
        self._listed: dict[pd.Timestamp, list[dict[str, Any]]] = {}
        self._histories: dict[HistoryRequest, History] = {}

    def listing(self, at: pd.Timestamp) -> pd.DataFrame:
        """`list_markets` as known at a time."""
        if at not in self._listings and at in self._times:
            self._listings = list_markets_at(self._store, self._times)
        elif at not in self._listings:
            self._listings[at] = list_markets(self._store, known_at=at)
        return self._listings[at]

    def listed(self, at: pd.Timestamp) -> list[dict[str, Any]]:
        """The rows of `listing`."""
        if at not in self._listed:
            self._listed[at] = rows_of(self.listing(at))
        return self._listed[at]

    def histories(self, requests: Sequence[HistoryRequest]) -> list[History]:
        """`load_histories`, each kept."""
        new = [one for one in dict.fromkeys(requests) if one not in self._histories]
        self._histories |= zip(new, load_histories(self._store, new, reader=self._reader), strict=True)
        return [self._histories[one] for one in requests]
