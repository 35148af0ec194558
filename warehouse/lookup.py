"""The on-demand price of a market: what is stated, else the nearest thing known, said in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from warehouse.assumed import HistoryAssumptions
from warehouse.choosing import Grid, KnownSeries, trust_rank
from warehouse.conventions import list_prices
from warehouse.errors import MarketError
from warehouse.history import Market

if TYPE_CHECKING:
    from warehouse.reader import Reader


def find_on_demand(
    reader: Reader,
    market: Market,
    grid: Grid,
    *,
    prices: tuple[KnownSeries | None, KnownSeries | None],
    assumptions: HistoryAssumptions,
    trust: Sequence[str],
) -> tuple[float, tuple[str, ...]]:
    """USD per instance-hour and the assumption behind it, if any; ``prices`` are the market's own series and a borrowed one.

    In this order: the latest price stated in the market's own series; in the borrowed series; in the same provider, region and
    instance type of any source; in any region; the assumed one; the list price; the highest spot price known by then.
    Raises `MarketError` if there is none of them.
    """
    own, borrowed = prices
    if own is not None and own.on_demand_usd is not None and borrowed is None:
        return own.on_demand_usd, ()
    if borrowed is not None and borrowed.on_demand_usd is not None:
        return borrowed.on_demand_usd, (
            f"on-demand price {borrowed.on_demand_usd:g} USD of the borrowed price path",
        )
    if own is not None and own.on_demand_usd is not None:
        return own.on_demand_usd, ()
    elsewhere = _elsewhere(reader, market, grid, trust)
    if elsewhere is not None:
        usd, place = elsewhere
        return usd, (f"on-demand price {usd:g} USD taken from {place}",)
    if assumptions.on_demand_usd is not None:
        usd = assumptions.on_demand_usd
        return usd, (f"on-demand price assumed to be {usd:g} USD",)
    for entry in list_prices():
        listed = entry.price_of(market.provider, market.instance_type)
        if listed is not None:
            return listed, (
                f"on-demand price {listed:g} USD is a list price of {entry.date} ({entry.source})",
            )
    for series in (borrowed, own):
        if series is not None and series.highest > 0:
            return series.highest, (
                f"on-demand price unknown: the highest spot price known, {series.highest:g} USD",
            )
    raise MarketError(
        f"{market.key} has no on-demand price: none observed, none in the list",
        remedy="state one (assumed on-demand price), or ingest prices of this instance type",
    )


def _elsewhere(reader: Reader, market: Market, grid: Grid, trust: Sequence[str]) -> tuple[float, str] | None:
    """The best on-demand price stated for the same instance type: same region first, then same zone, trust, newest."""
    rows = reader.on_demand(market, grid.known_at)
    if not rows:
        return None

    def rank(row: tuple[int, str, str, str, str, float, int]) -> tuple[object, ...]:
        _, region, zone, source, product, _, at_us = row
        return (
            region != market.region,
            zone != market.zone,
            trust_rank(source, trust)[0],
            -at_us,
            source,
            region,
            zone,
            product,
        )

    _, region, zone, source, _, usd, _ = min(rows, key=rank)
    return usd, f"{market.provider}/{region}/{zone} ({source})"
