"""What the warehouse knows: one row per market and source."""

from __future__ import annotations

import numpy as np
import pandas as pd

from warehouse.packaged import read_sql
from warehouse.sources.contract import known_conventions
from warehouse.store.connection import Store
from warehouse.times import microseconds

#: Later than anything that can be known, in microseconds since the epoch.
ANY_TIME_US = 2**62


def list_markets(store: Store, *, known_at: pd.Timestamp | None = None) -> pd.DataFrame:
    """The markets of every source, from rows known at ``known_at`` (None: all), sorted by market and source.

    Columns: market (key), source, provider, region, zone, instance_type, has_price, has_counts, price_rows,
    count_rows (versions kept), first_observed, last_observed (UTC), capacity (stated by the probe, else the largest
    count seen; NaN without counts), capacity_stated, gap_seconds (nominal, NaN if not stated), kind, products
    ("; "-separated), on_demand_usd (latest of this source, USD per hour, NaN if none), real_clock, missing (what
    `load_history` would have to assume or look up).
    """
    when_us = ANY_TIME_US if known_at is None else microseconds(known_at, "known_at")
    return _listed(store, when_us, when_us, 1).drop(columns="place")


def list_markets_at(store: Store, times: pd.DatetimeIndex) -> dict[pd.Timestamp, pd.DataFrame]:
    """`list_markets` as known at each of ascending ``times``, evenly apart, by one statement."""
    first_us, last_us = (microseconds(at, "time") for at in (times[0], times[-1]))
    step_us = (last_us - first_us) // max(1, len(times) - 1) or 1
    frame = _listed(store, first_us, last_us, step_us)
    ends = np.searchsorted(frame["place"], np.arange(len(times) + 1))
    plain = frame.drop(columns="place")
    return {at: plain.iloc[ends[i] : ends[i + 1]].reset_index(drop=True) for i, at in enumerate(times)}


def _listed(store: Store, first_us: int, last_us: int, step_us: int) -> pd.DataFrame:
    """The listings of all times, one after the other; ``place`` numbers them."""
    bounds = {"first_us": first_us, "last_us": last_us, "step_us": step_us}
    frame: pd.DataFrame = store.arrow(read_sql(__package__, "listing"), bounds).to_pandas()
    frame["real_clock"] = [known_conventions().real_clock(source) for source in frame["source"]]
    lacks = {
        "price": ~frame["has_price"],
        "counts": ~frame["has_counts"],
        "on-demand price": frame["on_demand_usd"].isna(),
    }
    frame["missing"] = [
        ", ".join(name for name, lack in lacks.items() if lack.iloc[row]) for row in range(len(frame))
    ]
    return frame


def observed_span(store: Store, source: str) -> tuple[pd.Timestamp | None, pd.Timestamp | None]:
    """When a source was observed first and last, in any of its series; None where it never was."""
    rows = store.execute(
        "SELECT epoch_us(min(first_at)), epoch_us(max(last_at)) FROM ("
        "SELECT min(observed_at) AS first_at, max(observed_at) AS last_at FROM price JOIN series USING (sid) "
        "WHERE source = $source "
        "UNION ALL "
        "SELECT min(observed_at), max(observed_at) FROM availability JOIN series USING (sid) WHERE source = $source)",
        {"source": source},
    )
    first, last = (None if at is None else pd.Timestamp(at, unit="us", tz="UTC") for at in rows[0])
    return first, last


def observed_sources(store: Store) -> list[str]:
    """The labels of all sources that were ever observed, sorted."""
    return [str(source) for (source,) in store.execute("SELECT DISTINCT source FROM series ORDER BY source")]
