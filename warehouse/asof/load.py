"""The one way data leaves the warehouse: a market's history on a slot grid, as known at one time (M1.2, M1.3).

A request is answered in three steps: which series answer (`warehouse.asof.choosing`), their values on the slots
(`warehouse.asof.grid`), and what is assumed where nothing was measured, each assumption in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pandas as pd

from warehouse.asof.choosing import Grid, KnownSeries, only_product, pick_series, require_source
from warehouse.asof.grid import NEVER, GridPath, PathAsked, Reader, grid_slots, readings_within, within_asked
from warehouse.asof.on_demand import HELD_CONSTANT, BorrowedPath, HistoryAssumptions, find_on_demand
from warehouse.errors import MarketError, SettingsError
from warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History, Market
from warehouse.store.connection import Store
from warehouse.times import microseconds, moment, utc_index

#: Nothing is assumed.
NO_ASSUMPTIONS = HistoryAssumptions()
_FOREVER = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRequest:
    """One history wanted; the fields are the arguments of `load_history`."""

    market: Market
    end: pd.Timestamp
    step: pd.Timedelta
    known_at: pd.Timestamp
    start: pd.Timestamp | None = None
    source: str | None = None
    trust: Sequence[str] = ()
    product: str | None = None
    max_age: pd.Timedelta | None = None
    assumptions: HistoryAssumptions = NO_ASSUMPTIONS
    within: bool = False

    def grid(self) -> Grid:
        """The slots asked for; raises `SettingsError` for a step or time out of form."""
        if self.step <= pd.Timedelta(0):
            raise SettingsError(f"step {self.step}", expected="a positive slot length")
        step_us = microseconds(self.step, "step")
        last_us = min(microseconds(self.end, "end"), microseconds(self.known_at, "known_at"))
        return Grid(
            first_us=None
            if self.start is None
            else -(-microseconds(self.start, "start") // step_us) * step_us,
            last_us=last_us // step_us * step_us,
            step_us=step_us,
            known_at=moment(self.known_at, "known_at"),
            max_age_us=None if self.max_age is None else microseconds(self.max_age, "max_age"),
        )


def load_history(
    store: Store,
    market: Market,
    *,
    end: pd.Timestamp,
    step: pd.Timedelta,
    known_at: pd.Timestamp,
    start: pd.Timestamp | None = None,
    source: str | None = None,
    trust: Sequence[str] = (),
    product: str | None = None,
    max_age: pd.Timedelta | None = None,
    assumptions: HistoryAssumptions = NO_ASSUMPTIONS,
    within: bool = False,
) -> History:
    """Price and count of a market from ``start`` to ``end`` (slots, both inclusive), from rows known at ``known_at`` only.

    Slots are multiples of ``step`` since the epoch; none is later than min(end, known_at). ``start`` None: from the
    first observation of the counts, else of the price. A slot holds the newest known version of the last observation
    at or before its start (M1.3); one older than ``max_age`` is a gap, NaN. Default ages: counts 3 nominal gaps,
    prices 36 h, at least one slot. A price that its source read at every probe (`Conventions`) holds while the probes
    go on; one that never changed nor was repeated is held, as an assumption.

    ``source`` None: the source with counts in the range that comes first in ``trust`` (globs on the label, the most
    trusted first; unlisted last, alphabetical). The price is of the same source if it has any, else of the most
    trusted one that overlaps, which is an assumption; counts likewise when a source with prices only is named. One
    variable never mixes two sources. ``product``: default Linux/UNIX, then the only one, then "per GPU, min over
    offers", then the first by name. `find_on_demand` tells where the on-demand price comes from.

    ``within``: also the counts read between slots (`History.within`), those that were known by the slot's start: m = step /
    nominal gap - 1 evenly spaced ones, at most `MOST_WITHIN`; the value at each is the last reading at or before it, not
    older than `WITHIN_GAPS` nominal gaps.

    Raises `MarketError` for a market or source without known rows, an empty range, or a variable that was neither
    observed nor may be assumed (it says which assumption supplies it); `SettingsError` for a step or time out of form.
    """
    request = HistoryRequest(
        market=market, end=end, step=step, known_at=known_at, start=start, source=source, trust=trust,
        product=product, max_age=max_age, assumptions=assumptions, within=within,
    )  # fmt: skip
    return load_histories(store, [request])[0]


def load_histories(
    store: Store, requests: Sequence[HistoryRequest], *, reader: Reader | None = None
) -> list[History]:
    """The histories that `load_history` gives one by one, in their order, by a few statements for all of them.

    ``reader`` answers in the place of a new one: a `MovingReader` for many times. Raises what `load_history` raises for the
    first request that cannot be met.
    """
    reader = Reader(store) if reader is None else reader
    grids = [request.grid() for request in requests]
    reader.fetch_known((request.market, grid) for request, grid in zip(requests, grids, strict=True))
    chosen = [_choose(reader, request, grid) for request, grid in zip(requests, grids, strict=True)]
    grids = [
        _from_first(grid, request.market, own)
        for request, grid, own in zip(requests, grids, chosen, strict=True)
    ]
    reader.fetch_paths(
        path
        for request, grid, own in zip(requests, grids, chosen, strict=True)
        for path in _paths_asked(reader, request, grid, own)
    )
    return [
        _history(reader, request, grid, own)
        for request, grid, own in zip(requests, grids, chosen, strict=True)
    ]


def _paths_asked(reader: Reader, request: HistoryRequest, grid: Grid, chosen: _Chosen) -> list[PathAsked]:
    """The paths that a history will be made of, as far as they are of the market itself."""
    asked: list[PathAsked] = []
    if chosen.counts is not None and request.assumptions.counts_from is None:
        asked.append(_count_asked(grid, chosen.counts))
        asked += within_asked(grid, chosen.counts) if request.within else []
    if chosen.price is not None and request.assumptions.price_from is None:
        asked.append(_price_asked(reader, grid, chosen.price, chosen.known))
    return asked


def _history(reader: Reader, request: HistoryRequest, grid: Grid, chosen: _Chosen) -> History:
    market, assumptions = request.market, request.assumptions
    counts, capacity, stated = _counts_of(reader, request, grid, chosen)
    price = _measured_price(reader, request, grid, chosen)
    borrowed = price.series if assumptions.price_from is not None and price is not None else None
    on_demand, words = find_on_demand(
        reader,
        market,
        grid,
        prices=(chosen.price, borrowed),
        assumptions=assumptions,
        trust=request.trust,
    )
    if price is None:
        price = _assumed_price(market, grid, assumptions, on_demand)
    used = [
        series for series in (chosen.counts, chosen.price, counts.series, price.series) if series is not None
    ]
    within = request.within and counts.series is chosen.counts
    between = within_asked(grid, chosen.counts) if within else []
    return History(
        market=market,
        step=request.step,
        known_at=pd.Timestamp(request.known_at).tz_convert("UTC"),
        frame=_frame(grid, price, counts),
        on_demand_usd=on_demand,
        capacity=capacity,
        capacity_stated=stated,
        real_clock=all(reader.conventions.real_clock(series.source) for series in used),
        source=request.source or used[0].source,
        assumptions=_join_words(chosen, request.source, counts, price) + counts.words + price.words + words,
        within=readings_within(grid, [reader.path(path) for path in between]),
    )


def _choose(reader: Reader, request: HistoryRequest, grid: Grid) -> _Chosen:
    known = reader.known(request.market, grid)
    require_source(known, request.market, request.source)
    known = only_product(known, request.market, request.product)
    trust = request.trust
    counts = pick_series(known, "availability", grid, preferred=request.source, trust=trust)
    if counts is not None:
        grid = _starting(grid, counts)
    beside = request.source or (counts.source if counts is not None else None)
    price = pick_series(known, "price", grid, preferred=beside, trust=trust)
    return _Chosen(known=known, counts=counts, price=price)


def _starting(grid: Grid, series: KnownSeries) -> Grid:
    """The grid from the first slot at which the series has a value, if it was not said where to start."""
    if grid.first_us is not None:
        return grid
    return replace(grid, first_us=-(-series.first_us // grid.step_us) * grid.step_us)


def _from_first(grid: Grid, market: Market, chosen: _Chosen) -> Grid:
    first = chosen.counts or chosen.price
    if first is None:
        seen = utc_index(np.array([min(s.first_us for s in chosen.known)], dtype=np.int64))[0]
        raise MarketError(f"{market.key} was first observed at {seen}", expected="a range that ends later")
    grid = _starting(grid, first)
    if grid.first_us is None or grid.first_us > grid.last_us:
        raise MarketError(
            f"{market.key}: no slot between the start and the end asked for",
            expected="a start at or before the end and before what is known",
        )
    return grid


def _join_words(chosen: _Chosen, source: str | None, counts: GridPath, price: GridPath) -> tuple[str, ...]:
    """A variable that comes from another source than the one named was not measured together with the other."""
    primary = source or (counts.series.source if counts.series is not None else None)
    words = []
    for name, series, own in (
        ("counts", counts.series, chosen.counts),
        ("price", price.series, chosen.price),
    ):
        if primary is not None and series is not None and series is own and series.source != primary:
            words.append(f"{name} from another source: {series.source}")
    return tuple(words)


def _frame(grid: Grid, price: GridPath, counts: GridPath) -> pd.DataFrame:
    known = utc_index(np.maximum(price.known_us, counts.known_us))
    return pd.DataFrame(
        {PRICE: price.values.astype(float), AVAILABLE: counts.values.astype(float), ROW_KNOWN_AT: known},
        index=_slots(grid),
    )


@lru_cache(maxsize=64)
def _slots(grid: Grid) -> pd.DatetimeIndex:
    """The slots of a grid as an index: one for all markets that are read on it."""
    return utc_index(grid_slots(grid))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The series that answer, and all that are known."""

    known: list[KnownSeries]
    counts: KnownSeries | None
    price: KnownSeries | None


def _count_asked(grid: Grid, series: KnownSeries) -> PathAsked:
    """Counts on the grid."""
    return PathAsked(series=series, grid=grid, age_us=series.age(grid))


def _price_asked(reader: Reader, grid: Grid, series: KnownSeries, known: Sequence[KnownSeries]) -> PathAsked:
    """A price on the grid; one that its source read at every probe holds while the probes go on."""
    probes = (s for s in known if s.kind == "availability" and s.source == series.source)
    probe = next(probes, None) if reader.conventions.probed_price(series.source) else None
    return PathAsked(series=series, grid=grid, age_us=series.age(grid), probe=probe)


def _price_path(reader: Reader, grid: Grid, series: KnownSeries, known: Sequence[KnownSeries]) -> GridPath:
    """An observed price; one that never changed and was never repeated is a catalogue price and is held."""
    asked = _price_asked(reader, grid, series, known)
    path = reader.path(asked)
    if reader.conventions.probed_price(series.source) or not series.single:
        return path
    held = reader.path(replace(asked, age_us=_FOREVER))
    if np.array_equal(held.values, path.values, equal_nan=True):
        return path
    return replace(held, words=(f"{HELD_CONSTANT} at {series.highest:g} USD",))


def _constant(grid: Grid, value: float, words: str) -> GridPath:
    size = len(grid_slots(grid))
    return GridPath(values=np.full(size, value), known_us=np.full(size, NEVER), words=(words,))


def _counts_of(
    reader: Reader, request: HistoryRequest, grid: Grid, chosen: _Chosen
) -> tuple[GridPath, int, bool]:
    """Counts, the capacity and whether a probe stated it; raises `MarketError` if there are none and none may be assumed."""
    assumptions = request.assumptions
    path: GridPath | None = None
    if assumptions.counts_from is not None:
        path = _borrow(reader, grid, assumptions.counts_from, "availability", request.trust)
    elif chosen.counts is not None:
        path = reader.path(_count_asked(grid, chosen.counts))
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


def _measured_price(reader: Reader, request: HistoryRequest, grid: Grid, chosen: _Chosen) -> GridPath | None:
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


def _assumed_price(market: Market, grid: Grid, assumptions: HistoryAssumptions, on_demand: float) -> GridPath:
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
    found = _price_path(reader, there, series, known) if price else reader.path(_count_asked(there, series))
    known_us = np.where(found.known_us == NEVER, NEVER, found.known_us - shift_us)
    name = "price" if kind == "price" else "counts"
    return replace(found, known_us=known_us, words=(f"{name} of another market: {path.words}", *found.words))
