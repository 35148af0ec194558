"""What may be assumed where nothing was measured, each said in words wherever the result is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pandas as pd

from warehouse.asof.choosing import Grid, KnownSeries, trust_rank
from warehouse.asof.grid import Reader
from warehouse.errors import MarketError, SettingsError
from warehouse.history import Market
from warehouse.packaged import read_data

#: Spot price as a share of on-demand: the floor of AWS's V100 prices in 2021 and 2023 was exactly this.
USUAL_SPOT_SHARE = 0.30
#: How the assumption begins that a price which was read once, or never changed, still holds.
HELD_CONSTANT = "catalogue price held constant"


_NO_SHIFT = pd.Timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BorrowedPath:
    """Another market's path: the value in slot t is that market's value at t + ``shift``, as known at known_at + ``shift``.

    ``source`` None: its most trusted source. ``product`` None: the usual choice.
    """

    market: Market
    source: str | None = None
    product: str | None = None
    shift: pd.Timedelta = _NO_SHIFT

    @property
    def words(self) -> str:
        """``market (source), shifted by ...``."""
        label = self.market.key + (f" ({self.source})" if self.source else "")
        return f"{label}, shifted by {self.shift}" if self.shift else label


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryAssumptions:
    """What `load_history` may assume; without any, a variable that was not observed is an error.

    Where a market has no price: ``constant_price_usd`` (USD per instance-hour), else ``spot_share`` of the on-demand price.
    Where it has no counts: ``always_available`` instances. Where no on-demand price is known: ``on_demand_usd``.
    ``price_from`` / ``counts_from`` take another market's path whether the market has its own or not (a synthetic join, M7).
    """

    constant_price_usd: float | None = None
    spot_share: float | None = None
    price_from: BorrowedPath | None = None
    always_available: int | None = None
    counts_from: BorrowedPath | None = None
    on_demand_usd: float | None = None

    def __post_init__(self) -> None:
        """Raise `SettingsError` on a value out of range."""
        if self.constant_price_usd is not None and not 0 <= self.constant_price_usd < float("inf"):
            raise SettingsError(f"constant price {self.constant_price_usd}", expected="USD per hour >= 0")
        if self.spot_share is not None and not 0 < self.spot_share <= 1:
            raise SettingsError(f"spot share {self.spot_share}", expected="a share of on-demand in (0, 1]")
        if self.always_available is not None and self.always_available < 1:
            raise SettingsError(f"always available {self.always_available}", expected="at least 1 instance")
        if self.on_demand_usd is not None and not 0 < self.on_demand_usd < float("inf"):
            raise SettingsError(f"on-demand price {self.on_demand_usd}", expected="USD per hour > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPrice:
    """An on-demand list price: USD per instance-hour, or per GPU-hour (``per_gpu``: then times N for ``<type>_xN``)."""

    provider: str
    instance_type: str
    usd: float
    per_gpu: bool
    date: str
    source: str

    def price_of(self, provider: str, instance_type: str) -> float | None:
        """USD per hour of an instance of this type, None if this entry says nothing about it."""
        if provider != self.provider:
            return None
        base, mark, gpus = instance_type.rpartition("_x")
        if instance_type == self.instance_type:
            return self.usd
        if self.per_gpu and mark and base == self.instance_type and gpus.isdigit():
            return self.usd * int(gpus)
        return None


@cache
def list_prices() -> tuple[ListPrice, ...]:
    """The entries of ``warehouse/asof/data/on_demand_prices.toml``."""
    return tuple(
        ListPrice(
            provider=entry["provider"],
            instance_type=entry["instance_type"],
            usd=float(entry["usd_per_hour"]),
            per_gpu=bool(entry.get("per_gpu", False)),
            date=str(entry["date"]),
            source=entry["source"],
        )
        for entry in read_data(__package__, "on_demand_prices")["price"]
    )


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
