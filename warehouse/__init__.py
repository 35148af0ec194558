"""Storage of observations, forecasts, decisions and outcomes; independent of any model.

>>> from slackwater.warehouse import Market, ingest, load_history, open_store
>>> with open_store(":memory:") as store:
...     counts = ingest(store, "simulated", start="2026-01-01", end="2026-01-02")
>>> counts.rejected
0
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackwater.warehouse.asof import HistoryAssumptions, load_history
    from slackwater.warehouse.errors import (
        InputError,
        MarketError,
        SettingsError,
        SlackwaterError,
        SourceFileError,
        StoreError,
    )
    from slackwater.warehouse.history import History, Market
    from slackwater.warehouse.listing import list_markets
    from slackwater.warehouse.observations import Appended, ingest
    from slackwater.warehouse.store.connection import Store, open_reader, open_store

#: Module of each public name; loaded on first use, so that importing `slackwater.warehouse.errors` does not
#: import pandas.
_PLACES = {
    "Appended": "observations",
    "History": "history",
    "HistoryAssumptions": "asof",
    "InputError": "errors",
    "Market": "history",
    "MarketError": "errors",
    "SettingsError": "errors",
    "SlackwaterError": "errors",
    "SourceFileError": "errors",
    "Store": "store.connection",
    "StoreError": "errors",
    "ingest": "observations",
    "list_markets": "listing",
    "load_history": "asof",
    "open_reader": "store.connection",
    "open_store": "store.connection",
}

__all__ = [
    "Appended",
    "History",
    "HistoryAssumptions",
    "InputError",
    "Market",
    "MarketError",
    "SettingsError",
    "SlackwaterError",
    "SourceFileError",
    "Store",
    "StoreError",
    "ingest",
    "list_markets",
    "load_history",
    "open_reader",
    "open_store",
]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'warehouse' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
