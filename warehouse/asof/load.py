"""The one way data leaves the warehouse: a market's history on a slot grid, as known at one time (M1.2, M1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from warehouse.asof.choosing import Grid, KnownSeries, only_product, pick_series, require_source
from warehouse.asof.grid import GridPath, PathAsked, Reader, grid_slots, readings_within, within_asked
from warehouse.asof.measured import Chosen, assumed_price, count_asked, counts_of, measured_price, price_asked
from warehouse.asof.on_demand import HistoryAssumptions, find_on_demand
from warehouse.asof.request import NO_ASSUMPTIONS, HistoryRequest
from warehouse.errors import MarketError
from warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History, Market
from warehouse.times import utc_index

if TYPE_CHECKING:
    from warehouse.store.connection import Store


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


def _paths_asked(reader: Reader, request: HistoryRequest, grid: Grid, chosen: Chosen) -> list[PathAsked]:
    """The paths that a history will be made of, as far as they are of the market itself."""
    asked: list[PathAsked] = []
    if chosen.counts is not None and request.assumptions.counts_from is None:
        asked.append(count_asked(grid, chosen.counts))
        asked += within_asked(grid, chosen.counts) if request.within else []
    if chosen.price is not None and request.assumptions.price_from is None:
        asked.append(price_asked(reader, grid, chosen.price, chosen.known))
    return asked


def _history(reader: Reader, request: HistoryRequest, grid: Grid, chosen: Chosen) -> History:
    market, assumptions = request.market, request.assumptions
    counts, capacity, stated = counts_of(reader, request, grid, chosen)
    price = measured_price(reader, request, grid, chosen)
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
        price = assumed_price(market, grid, assumptions, on_demand)
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
        real_clock=all(reader.store.conventions.real_clock(series.source) for series in used),
        source=request.source or used[0].source,
        assumptions=_join_words(chosen, request.source, counts, price) + counts.words + price.words + words,
        within=readings_within(grid, [reader.path(path) for path in between]),
    )


def _choose(reader: Reader, request: HistoryRequest, grid: Grid) -> Chosen:
    known = reader.known(request.market, grid)
    require_source(known, request.market, request.source)
    known = only_product(known, request.market, request.product)
    trust = request.trust
    counts = pick_series(known, "availability", grid, preferred=request.source, trust=trust)
    if counts is not None:
        grid = _starting(grid, counts)
    beside = request.source or (counts.source if counts is not None else None)
    price = pick_series(known, "price", grid, preferred=beside, trust=trust)
    return Chosen(known=known, counts=counts, price=price)


def _starting(grid: Grid, series: KnownSeries) -> Grid:
    """The grid from the first slot at which the series has a value, if it was not said where to start."""
    if grid.first_us is not None:
        return grid
    return replace(grid, first_us=-(-series.first_us // grid.step_us) * grid.step_us)


def _from_first(grid: Grid, market: Market, chosen: Chosen) -> Grid:
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


def _join_words(chosen: Chosen, source: str | None, counts: GridPath, price: GridPath) -> tuple[str, ...]:
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
