"""What the turns of one stretch of time read of the observations: each history and listing once, however many turns ask (M1.2)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from warehouse.history import History
from warehouse.moving import MovingReader, Span
from warehouse.store import HistoryRequest, Store, list_markets, load_histories


class Reads:
    """Answers for the times of a span from one pass over the observations; made after the last of them has been ingested.

    Every answer is the one that the store would give at that time.
    """

    def __init__(self, store: Store, span: Span) -> None:
        self._store = store
        self._reader = MovingReader(store, span)
        self._at: pd.Timestamp | None = None
        self._listing: pd.DataFrame | None = None
        self._histories: dict[HistoryRequest, History] = {}

    def listing(self, at: pd.Timestamp) -> pd.DataFrame:
        """`list_markets` as known at a time; that of the newest time asked for is kept."""
        self._move(at)
        if self._listing is None:
            self._listing = list_markets(self._store, known_at=at)
        return self._listing

    def histories(self, requests: Sequence[HistoryRequest]) -> list[History]:
        """`load_histories`; those of the newest time asked for are kept."""
        for request in requests:
            self._move(request.known_at)
            break
        new = [one for one in dict.fromkeys(requests) if one not in self._histories]
        self._histories |= zip(new, load_histories(self._store, new, reader=self._reader), strict=True)
        return [self._histories[one] for one in requests]

    def _move(self, at: pd.Timestamp) -> None:
        if at != self._at:
            self._at, self._listing, self._histories = at, None, {}
