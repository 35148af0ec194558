"""The completeness map of a warehouse in one call."""

from __future__ import annotations

import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.monitoring.completeness import Completeness, classify, read_facts, window_of
from slackwater.warehouse.store.connection import Store


def completeness_of(
    store: Store,
    settings: Settings,
    *,
    start: pd.Timestamp | None = None,
    end: pd.Timestamp | None = None,
    at: pd.Timestamp,
    market: str = "",
) -> Completeness:
    window = window_of(store, settings, start=start, end=end, at=at)
    return classify(read_facts(store, settings, window, pattern=market), settings)
