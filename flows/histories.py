"""Histories of followed markets as known at a time, each read once (M1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Protocol

import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.following import FollowedMarket, MarketListing, step_of
from slackwater.flows.show.formats import rows_of
from slackwater.warehouse.asof import (
    HistoryAssumptions,
    HistoryRequest,
    MovingReader,
    Reader,
    Span,
    load_histories,
)
from slackwater.warehouse.errors import HistoryError, MarketError, why_raised
from slackwater.warehouse.history import History
from slackwater.warehouse.listing import list_markets, list_markets_at
from slackwater.warehouse.store.connection import Store


class Reads:
    """Cache of the observations for turns at one time or over a span of times; reads each history and listing once (M1.2).

    The results equal those of the store at that time. Create it after the observations of the last
    of the times are ingested.
    """

    def __init__(self, store: Store, span: Span | None = None) -> None:
        self._store = store
        self._times = pd.DatetimeIndex([]) if span is None else span.times()
        self._reader = Reader(store) if span is None else MovingReader(store, span)
        self._listings: dict[pd.Timestamp, pd.DataFrame] = {}
        self._listed: dict[pd.Timestamp, list[dict[str, Any]]] = {}
        self._histories: dict[HistoryRequest, History | MarketError] = {}
        # Stages of a backfill read concurrently.
        self._turn = RLock()

    def market_rows(self, at: pd.Timestamp) -> list[dict[str, Any]]:
        """Return the rows of `list_markets` as known at a time."""
        with self._turn:
            if at not in self._listings and at in self._times:
                self._listings = list_markets_at(self._store, self._times)
            elif at not in self._listings:
                self._listings[at] = list_markets(self._store, known_at=at)
            if at not in self._listed:
                self._listed[at] = rows_of(self._listings[at])
            return self._listed[at]

    def histories(self, requests: Sequence[HistoryRequest]) -> list[History | MarketError]:
        """Return the results of `load_histories` in the order of ``requests``, or the error for a history that cannot be read."""
        with self._turn:
            new = [wanted for wanted in dict.fromkeys(requests) if wanted not in self._histories]
            try:
                self._histories |= zip(new, self._load(new), strict=True)
            except (MarketError, HistoryError, MemoryError):
                for wanted in new:
                    self._histories[wanted] = self._loaded_or_why(wanted)
            return [self._histories[request] for request in requests]

    def _load(self, requests: Sequence[HistoryRequest]) -> list[History]:
        return load_histories(self._store, requests, reader=self._reader)

    def _loaded_or_why(self, request: HistoryRequest) -> History | MarketError:
        try:
            return self._load([request])[0]
        except MarketError as error:
            return error
        except (HistoryError, MemoryError) as error:
            return MarketError(f"market {request.market.key}: {why_raised(error)}")


class MarketReader(MarketListing, Protocol):
    """Markets of a warehouse as known at a time, and their histories: a turn, or `KnownMarkets` without a turn."""

    @property
    def store(self) -> Store:
        """The warehouse."""

    @property
    def observations(self) -> Reads:
        """The cache of observations."""

    def market_rows(self, at: pd.Timestamp | None = None) -> list[dict[str, Any]]:
        """Return the markets known at a time (None: ``self.at``) as rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMarkets:
    """Markets of a warehouse as known at a time, without a turn."""

    store: Store
    at: pd.Timestamp
    settings: Settings
    own_end: bool = False
    observations: Reads = field(init=False)

    def __post_init__(self) -> None:
        """Create the cache of observations."""
        object.__setattr__(self, "observations", Reads(self.store))

    def market_rows(self, at: pd.Timestamp | None = None) -> list[dict[str, Any]]:
        """Return the markets known at a time (None: ``self.at``) as rows."""
        return self.observations.market_rows(self.at if at is None else at)


def history_request(
    followed: FollowedMarket,
    settings: Settings,
    *,
    start: pd.Timestamp | None,
    on_demand_usd: float | None = None,
) -> HistoryRequest:
    """Return the request for a market's history as known at its time, on the slot grid and assumptions of the settings.

    The history includes the counts observed between slots, if any. ``on_demand_usd`` is assumed
    where no on-demand price was observed.
    """
    return HistoryRequest(
        market=followed.market,
        start=start,
        end=followed.at,
        step=step_of(settings),
        known_at=followed.at,
        source=followed.source,
        trust=settings.trust,
        assumptions=HistoryAssumptions(
            spot_share=settings.assumed_spot_share,
            always_available=settings.assumed_capacity or None,
            on_demand_usd=on_demand_usd,
        ),
        within=True,
        on_demand=(*followed.on_demand, *settings.on_demand_terms),
    )


def read_history(
    store: Store,
    followed: FollowedMarket,
    *,
    settings: Settings,
    start: pd.Timestamp | None = None,
    on_demand_usd: float | None = None,
) -> History:
    """Return the history of a followed market for a `history_request`."""
    request = history_request(followed, settings, start=start, on_demand_usd=on_demand_usd)
    return load_histories(store, [request])[0]


def read_all(
    known: MarketReader, followed_markets: Sequence[tuple[FollowedMarket, pd.Timestamp]]
) -> list[History]:
    """Return the history of each market from a start on, in order; raises the first `MarketError`."""
    found = []
    for history in try_histories(known, followed_markets):
        if isinstance(history, MarketError):
            raise history
        found.append(history)
    return found


def try_histories(
    known: MarketReader, followed_markets: Sequence[tuple[FollowedMarket, pd.Timestamp]]
) -> list[History | MarketError]:
    """Return the history of each market from a start on, or the error that prevents it, with a few statements for all."""
    return known.observations.histories(
        [history_request(followed, known.settings, start=start) for followed, start in followed_markets]
    )
