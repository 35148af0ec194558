"""The one way data leaves the warehouse: a market's history on a slot grid, as known at one time (M1.2, M1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from warehouse.assumed import HELD_CONSTANT, BorrowedPath, HistoryAssumptions
from warehouse.choosing import (
    Grid,
    KnownSeries,
    known_series,
    only_product,
    pick_series,
    require_source,
)
from warehouse.errors import MarketError, SettingsError
from warehouse.grid_paths import NEVER, GridPath, grid_path, grid_slots, readings_within
from warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History, Market
from warehouse.lookup import find_on_demand
from warehouse.times import microseconds, moment, utc_index

if TYPE_CHECKING:
    from warehouse.store import Store

_NO_ASSUMPTIONS = HistoryAssumptions()
_FOREVER = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The series that answer, and all that are known."""

    known: list[KnownSeries]
    counts: KnownSeries | None
    price: KnownSeries | None


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
    assumptions: HistoryAssumptions = _NO_ASSUMPTIONS,
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
    if step <= pd.Timedelta(0):
        raise SettingsError(f"step {step}", expected="a positive slot length")
    step_us = microseconds(step, "step")
    last_us = min(microseconds(end, "end"), microseconds(known_at, "known_at")) // step_us * step_us
    grid = Grid(
        first_us=None if start is None else -(-microseconds(start, "start") // step_us) * step_us,
        last_us=last_us,
        step_us=step_us,
        known_at=moment(known_at, "known_at"),
        max_age_us=None if max_age is None else microseconds(max_age, "max_age"),
    )
    chosen = _choose(store, market, grid, source=source, trust=trust, product=product)
    grid = _from_first(grid, market, chosen)
    counts, capacity, stated = _counts(store, market, grid, chosen, assumptions, trust)
    price = _measured_price(store, market, grid, chosen, assumptions, trust)
    borrowed = price.series if assumptions.price_from is not None and price is not None else None
    on_demand, words = find_on_demand(
        store, market, grid, prices=(chosen.price, borrowed), assumptions=assumptions, trust=trust
    )
    if price is None:
        price = _assumed_price(market, grid, assumptions, on_demand)
    used = [
        series for series in (chosen.counts, chosen.price, counts.series, price.series) if series is not None
    ]
    return History(
        market=market,
        step=step,
        known_at=pd.Timestamp(known_at).tz_convert("UTC"),
        frame=_frame(grid, price, counts),
        on_demand_usd=on_demand,
        capacity=capacity,
        capacity_stated=stated,
        real_clock=all(store.conventions.real_clock(series.source) for series in used),
        source=source or used[0].source,
        assumptions=_join_words(chosen, source, counts, price) + counts.words + price.words + words,
        within=readings_within(store, grid, chosen.counts)
        if within and counts.series is chosen.counts
        else None,
    )


def _choose(
    store: Store, market: Market, grid: Grid, *, source: str | None, trust: Sequence[str], product: str | None
) -> _Chosen:
    known = known_series(store, market, grid)
    require_source(known, market, source)
    known = only_product(known, market, product)
    counts = pick_series(known, "availability", grid, preferred=source, trust=trust)
    if counts is not None:
        grid = _starting(grid, counts)
    beside = source or (counts.source if counts is not None else None)
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


def _price_path(store: Store, grid: Grid, series: KnownSeries, known: Sequence[KnownSeries]) -> GridPath:
    """An observed price; one that never changed and was never repeated is a catalogue price and is held."""
    age = series.age(grid)
    if store.conventions.probed_price(series.source):
        probes = (s for s in known if s.kind == "availability" and s.source == series.source)
        return grid_path(store, grid, series, age_us=age, probe=next(probes, None))
    path = grid_path(store, grid, series, age_us=age)
    if not series.single:
        return path
    held = grid_path(store, grid, series, age_us=_FOREVER)
    if np.array_equal(held.values, path.values, equal_nan=True):
        return path
    return replace(held, words=(f"{HELD_CONSTANT} at {series.highest:g} USD",))


def _constant(grid: Grid, value: float, words: str) -> GridPath:
    size = len(grid_slots(grid))
    return GridPath(values=np.full(size, value), known_us=np.full(size, NEVER), words=(words,))


def _counts(
    store: Store,
    market: Market,
    grid: Grid,
    chosen: _Chosen,
    assumptions: HistoryAssumptions,
    trust: Sequence[str],
) -> tuple[GridPath, int, bool]:
    """Counts, the capacity and whether a probe stated it."""
    path: GridPath | None = None
    if assumptions.counts_from is not None:
        path = _borrow(store, grid, assumptions.counts_from, "availability", trust)
    elif chosen.counts is not None:
        path = grid_path(store, grid, chosen.counts, age_us=chosen.counts.age(grid))
    if path is not None and path.series is not None:
        series = path.series
        if series.capacity_stated and series.capacity is not None and series.capacity >= 1:
            return path, series.capacity, True
        return path, max(1, int(series.highest)), False
    if assumptions.always_available is not None:
        count = assumptions.always_available
        return _constant(grid, count, f"counts not observed: {count} instances always available"), count, True
    raise MarketError(
        f"{market.key} has a price but no counts",
        remedy="allow an assumption: always_available (instances that are always there) or counts_from (another market's counts)",
    )


def _measured_price(
    store: Store,
    market: Market,
    grid: Grid,
    chosen: _Chosen,
    assumptions: HistoryAssumptions,
    trust: Sequence[str],
) -> GridPath | None:
    if assumptions.price_from is not None:
        return _borrow(store, grid, assumptions.price_from, "price", trust)
    if chosen.price is not None:
        return _price_path(store, grid, chosen.price, chosen.known)
    if assumptions.constant_price_usd is None and assumptions.spot_share is None:
        raise MarketError(
            f"{market.key} has counts but no price",
            remedy="allow an assumption: constant_price_usd, spot_share (of the on-demand price) or price_from (another market's)",
        )
    return None


def _assumed_price(market: Market, grid: Grid, assumptions: HistoryAssumptions, on_demand: float) -> GridPath:
    if assumptions.constant_price_usd is not None:
        usd = assumptions.constant_price_usd
        return _constant(grid, usd, f"price not observed: constant {usd:g} USD")
    share = assumptions.spot_share or 0.0
    usd = share * on_demand
    return _constant(
        grid, usd, f"price not observed: constant {usd:g} USD, {share:.0%} of the on-demand price"
    )


def _borrow(store: Store, grid: Grid, path: BorrowedPath, kind: str, trust: Sequence[str]) -> GridPath:
    """Another market's path on this grid, read as of the shifted time, so that nothing later than known_at + shift is used."""
    shift_us = microseconds(path.shift, "shift")
    there = replace(
        grid,
        first_us=None if grid.first_us is None else grid.first_us + shift_us,
        last_us=grid.last_us + shift_us,
        known_at=grid.known_at + path.shift.to_pytimedelta(),
    )
    known = known_series(store, path.market, there)
    require_source(known, path.market, path.source)
    known = only_product(known, path.market, path.product)
    series = pick_series(known, kind, there, preferred=path.source, trust=trust)
    if series is None or (path.source is not None and series.source != path.source):
        raise MarketError(
            f"{path.words} has no {'price' if kind == 'price' else 'counts'} to borrow in that range"
        )
    if kind == "price":
        found = _price_path(store, there, series, known)
    else:
        found = grid_path(store, there, series, age_us=series.age(there))
    known_us = np.where(found.known_us == NEVER, NEVER, found.known_us - shift_us)
    name = "price" if kind == "price" else "counts"
    return replace(found, known_us=known_us, words=(f"{name} of another market: {path.words}", *found.words))


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
        index=utc_index(grid_slots(grid)),
    )
