"""Counts and price of a market on its grid: measured, taken from another market, or assumed (M1.2, M1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from warehouse.asof.choosing import Grid, KnownSeries, only_product, pick_series, require_source
from warehouse.asof.grid import NEVER, GridPath, PathAsked, Reader, grid_slots
from warehouse.asof.on_demand import HELD_CONSTANT, BorrowedPath, HistoryAssumptions
from warehouse.asof.request import HistoryRequest
from warehouse.errors import MarketError
from warehouse.history import Market
from warehouse.times import microseconds

_FOREVER = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The series that answer, and all that are known."""

    known: list[KnownSeries]
    counts: KnownSeries | None
    price: KnownSeries | None


def count_asked(grid: Grid, series: KnownSeries) -> PathAsked:
    """Counts on the grid."""
    return PathAsked(series=series, grid=grid, age_us=series.age(grid))


def price_asked(reader: Reader, grid: Grid, series: KnownSeries, known: Sequence[KnownSeries]) -> PathAsked:
    """A price on the grid; one that its source read at every probe holds while the probes go on."""
    probes = (s for s in known if s.kind == "availability" and s.source == series.source)
    probe = next(probes, None) if reader.store.conventions.probed_price(series.source) else None
    return PathAsked(series=series, grid=grid, age_us=series.age(grid), probe=probe)


def _price_path(reader: Reader, grid: Grid, series: KnownSeries, known: Sequence[KnownSeries]) -> GridPath:
    """An observed price; one that never changed and was never repeated is a catalogue price and is held."""
    asked = price_asked(reader, grid, series, known)
    path = reader.path(asked)
    if reader.store.conventions.probed_price(series.source) or not series.single:
        return path
    held = reader.path(replace(asked, age_us=_FOREVER))
    if np.array_equal(held.values, path.values, equal_nan=True):
        return path
    return replace(held, words=(f"{HELD_CONSTANT} at {series.highest:g} USD",))


def _constant(grid: Grid, value: float, words: str) -> GridPath:
    size = len(grid_slots(grid))
    return GridPath(values=np.full(size, value), known_us=np.full(size, NEVER), words=(words,))


def counts_of(
    reader: Reader, request: HistoryRequest, grid: Grid, chosen: Chosen
) -> tuple[GridPath, int, bool]:
    """Counts, the capacity and whether a probe stated it; raises `MarketError` if there are none and none may be assumed."""
    assumptions = request.assumptions
    path: GridPath | None = None
    if assumptions.counts_from is not None:
        path = _borrow(reader, grid, assumptions.counts_from, "availability", request.trust)
    elif chosen.counts is not None:
        path = reader.path(count_asked(grid, chosen.counts))
    if path is not None and path.series is not None:
        series = path.series
        if series.capacity_stated and series.capacity is not None and series.capacity >= 1:
            return path, series.capacity, True
        return path, max(1, int(series.highest)), False
    if assumptions.always_available is not None:
        count = assumptions.always_available
        return _constant(grid, count, f"counts not observed: {count} instances always available"), count, True
    raise MarketError(
        f"{request.market.key} has a price but no counts",
        remedy="allow an assumption: always_available (instances that are always there) or counts_from (another market's counts)",
    )


def measured_price(reader: Reader, request: HistoryRequest, grid: Grid, chosen: Chosen) -> GridPath | None:
    """The market's own price or another's; None if one may be assumed; raises `MarketError` if none may."""
    assumptions = request.assumptions
    if assumptions.price_from is not None:
        return _borrow(reader, grid, assumptions.price_from, "price", request.trust)
    if chosen.price is not None:
        return _price_path(reader, grid, chosen.price, chosen.known)
    if assumptions.constant_price_usd is None and assumptions.spot_share is None:
        raise MarketError(
            f"{request.market.key} has counts but no price",
            remedy="allow an assumption: constant_price_usd, spot_share (of the on-demand price) or price_from (another market's)",
        )
    return None


def assumed_price(market: Market, grid: Grid, assumptions: HistoryAssumptions, on_demand: float) -> GridPath:
    """A constant price, said in words."""
    if assumptions.constant_price_usd is not None:
        usd = assumptions.constant_price_usd
        return _constant(grid, usd, f"price not observed: constant {usd:g} USD")
    share = assumptions.spot_share or 0.0
    usd = share * on_demand
    return _constant(
        grid, usd, f"price not observed: constant {usd:g} USD, {share:.0%} of the on-demand price"
    )


def _borrow(reader: Reader, grid: Grid, path: BorrowedPath, kind: str, trust: Sequence[str]) -> GridPath:
    """Another market's path on this grid, read as of the shifted time, so that nothing later than known_at + shift is used."""
    shift_us = microseconds(path.shift, "shift")
    there = replace(
        grid,
        first_us=None if grid.first_us is None else grid.first_us + shift_us,
        last_us=grid.last_us + shift_us,
        known_at=grid.known_at + path.shift.to_pytimedelta(),
    )
    known = reader.known(path.market, there)
    require_source(known, path.market, path.source)
    known = only_product(known, path.market, path.product)
    series = pick_series(known, kind, there, preferred=path.source, trust=trust)
    if series is None or (path.source is not None and series.source != path.source):
        raise MarketError(
            f"{path.words} has no {'price' if kind == 'price' else 'counts'} to borrow in that range"
        )
    price = kind == "price"
    found = _price_path(reader, there, series, known) if price else reader.path(count_asked(there, series))
    known_us = np.where(found.known_us == NEVER, NEVER, found.known_us - shift_us)
    name = "price" if kind == "price" else "counts"
    return replace(found, known_us=known_us, words=(f"{name} of another market: {path.words}", *found.words))
