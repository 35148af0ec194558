"""Listing of the observed markets and sources: one row per market and source, as known at a time (M1.1, M1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from slackwater.warehouse.catalogue import (
    UNKNOWN_RANK,
    OnDemandTerms,
    known_conventions,
    list_price,
    rank_sql,
    terms_for,
    unplanned_words,
)
from slackwater.warehouse.documents import read_sql
from slackwater.warehouse.history import NOT_SOLD, OBSERVED, UNKNOWN, OnDemandOrigin
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import microseconds

ANY_TIME_US = 2**62  # A time after all known_at times, in microseconds since the epoch


def list_markets(store: Store, *, known_at: pd.Timestamp | None = None) -> pd.DataFrame:
    """Return the markets of every source, from rows known at ``known_at`` (None: all), sorted by market and source.

    Columns: market (key), source, provider, region, zone, instance_type, has_price, has_counts,
    price_rows, count_rows (stored versions), first_observed, last_observed, first_counted, last_counted,
    last_priced (UTC, NaT without), capacity (stated by the probe, else the largest observed count; 1 without
    counts), capacity_stated, gap_seconds
    (nominal: stated, else measured; NaN for a single count), kind, products ("; "-separated), on_demand_usd (latest of this
    source, USD per hour, NaN if none), real_clock, missing (the variables that `load_history` would
    have to assume or look up). has_price and on_demand_usd refer to the product used for planning
    (`slackwater.warehouse.catalogue`), price_rows and products to all.
    """
    when_us = ANY_TIME_US if known_at is None else microseconds(known_at, "known_at")
    return _list_at_times(store, when_us, when_us, 1).drop(columns="place")


def list_markets_at(store: Store, times: pd.DatetimeIndex) -> dict[pd.Timestamp, pd.DataFrame]:
    """Return `list_markets` as known at each of ``times`` (ascending, evenly spaced), in a single query."""
    first_us, last_us = (microseconds(at, "time") for at in (times[0], times[-1]))
    step_us = (last_us - first_us) // max(1, len(times) - 1) or 1
    frame = _list_at_times(store, first_us, last_us, step_us)
    ends = np.searchsorted(frame["place"], np.arange(len(times) + 1))
    plain = frame.drop(columns="place")
    return {at: plain.iloc[ends[i] : ends[i + 1]].reset_index(drop=True) for i, at in enumerate(times)}


def _list_at_times(store: Store, first_us: int, last_us: int, step_us: int) -> pd.DataFrame:
    """Return the listings of all times, one after the other; the column ``place`` is the index of the time."""
    bounds = {"first_us": first_us, "last_us": last_us, "step_us": step_us}
    statement = read_sql(__package__, "listing").replace("{product_rank}", rank_sql("product"))
    statement = statement.replace("{unknown_rank}", str(UNKNOWN_RANK))
    table = store.arrow(statement, bounds)
    frame: pd.DataFrame = table.to_pandas()
    frame["real_clock"] = [known_conventions().real_clock(source) for source in frame["source"]]
    frame["missing"] = [_missing_variables(row) for row in table.to_pylist()]
    return frame


def with_on_demand(
    frame: pd.DataFrame, *, terms: Sequence[OnDemandTerms] = (), known_at: pd.Timestamp | None = None
) -> pd.DataFrame:
    """Return a listing with the on-demand price used by plans (``on_demand_usd``) and its origin (``on_demand_from``), see M1.1.

    The price is NaN where none is known or nothing is sold on demand; ``missing`` then includes it.
    ``terms`` are those of the settings.
    """
    rows = frame.to_dict("records")
    observed: dict[tuple[str, str], list[tuple[str, str, float, str, float]]] = {}
    for row in rows:
        if not np.isnan(row["on_demand_usd"]):
            place = f"{row['provider']}/{row['region']}/{row['zone']} ({row['source']})"
            own = (row["region"], row["zone"], -row["last_observed"].timestamp(), place, row["on_demand_usd"])
            observed.setdefault((row["provider"], row["instance_type"]), []).append(own)
    found: list[tuple[float, str, str]] = []
    for row in rows:
        at = row["last_observed"] if known_at is None else known_at
        usd, origin = _listed_on_demand(row, terms, observed, at)
        missing = [name for name in row["missing"].split(", ") if name and name != "on-demand price"]
        missing += [] if origin.known else ["on-demand price" if origin.sold else "on-demand"]
        found.append((usd, str(origin), ", ".join(missing)))
    return frame.assign(
        on_demand_usd=np.array([usd for usd, _, _ in found], dtype=float),
        on_demand_from=[origin for _, origin, _ in found],
        missing=[words for _, _, words in found],
    )


def _listed_on_demand(
    row: Mapping[Any, Any],
    terms: Sequence[OnDemandTerms],
    observed: Mapping[tuple[str, str], Sequence[tuple[str, str, float, str, float]]],
    at: pd.Timestamp,
) -> tuple[float, OnDemandOrigin]:
    """Return the on-demand price of a listing row and its origin; ``observed``: by provider and instance type."""
    term = terms_for(row["market"], terms)
    if term is not None:
        if term.usd is None:
            return np.nan, OnDemandOrigin(kind=NOT_SOLD, words=term.stated_in)
        return term.usd, OnDemandOrigin(kind=term.stated_in)
    if not np.isnan(row["on_demand_usd"]):
        return row["on_demand_usd"], OBSERVED
    if others := observed.get((row["provider"], row["instance_type"])):
        *_, place, usd = min(
            others, key=lambda price: (price[0] != row["region"], price[1] != row["zone"], *price[2:])
        )
        return usd, OnDemandOrigin(kind="elsewhere", words=place)
    listed = list_price(row["provider"], row["region"], row["instance_type"], at.to_pydatetime())
    if listed is None:
        return np.nan, OnDemandOrigin(kind=UNKNOWN)
    if listed.usd is None:
        return np.nan, OnDemandOrigin(kind=NOT_SOLD, words=listed.words)
    return listed.usd, OnDemandOrigin(kind="catalogue", words=listed.words)


def _missing_variables(row: Mapping[str, Any]) -> str:
    """Return the missing variables of a listing row; prices of products not used for planning do not count."""
    other = [name for name in str(row["products"]).split("; ") if name]
    price = f"Linux price ({unplanned_words(other)})" if other else "price"
    lacks = {
        price: not row["has_price"],
        "counts": not row["has_counts"],
        "on-demand price": pd.isna(row["on_demand_usd"]),
    }
    return ", ".join(name for name, lack in lacks.items() if lack)


def observed_span(store: Store, source: str | None = None) -> tuple[pd.Timestamp | None, pd.Timestamp | None]:
    """Return the first and last observation time of a source (None: of all sources); None without observations."""
    rows = store.execute(
        "SELECT epoch_us(min(first_at)), epoch_us(max(last_at)) FROM ("
        "SELECT min(observed_at) AS first_at, max(observed_at) AS last_at FROM price JOIN series USING (sid) "
        "WHERE source = coalesce($source, source) "
        "UNION ALL "
        "SELECT min(observed_at), max(observed_at) FROM availability JOIN series USING (sid) "
        "WHERE source = coalesce($source, source))",
        {"source": source},
    )
    first, last = (None if at is None else pd.Timestamp(at, unit="us", tz="UTC") for at in rows[0])
    return first, last


def observed_sources(store: Store) -> list[str]:
    """Return the labels of all observed sources, sorted."""
    return [str(source) for (source,) in store.execute("SELECT DISTINCT source FROM series ORDER BY source")]
