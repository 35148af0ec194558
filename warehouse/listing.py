"""What the warehouse knows: one row per market and source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from warehouse.queries import read_sql
from warehouse.times import moment

if TYPE_CHECKING:
    from warehouse.store import Store


def list_markets(store: Store, *, known_at: pd.Timestamp | None = None) -> pd.DataFrame:
    """The markets of every source, from rows known at ``known_at`` (None: all), sorted by market and source.

    Columns: market (key), source, provider, region, zone, instance_type, has_price, has_counts, price_rows,
    count_rows (versions kept), first_observed, last_observed (UTC), capacity (stated by the probe, else the largest
    count seen; NaN without counts), capacity_stated, gap_seconds (nominal, NaN if not stated), kind, products
    ("; "-separated), on_demand_usd (latest of this source, USD per hour, NaN if none), real_clock, missing (what
    `load_history` would have to assume or look up).
    """
    when = None if known_at is None else moment(known_at, "known_at")
    frame: pd.DataFrame = store.arrow(read_sql("listing"), {"known_at": when}).to_pandas()
    frame["real_clock"] = [store.conventions.real_clock(source) for source in frame["source"]]
    lacks = {
        "price": ~frame["has_price"],
        "counts": ~frame["has_counts"],
        "on-demand price": frame["on_demand_usd"].isna(),
    }
    frame["missing"] = [
        ", ".join(name for name, lack in lacks.items() if lack.iloc[row]) for row in range(len(frame))
    ]
    return frame
