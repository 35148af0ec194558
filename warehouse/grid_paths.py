"""One variable of a market on a slot grid, as known at the grid's time: values and when each became known (M1.2, M1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from warehouse.choosing import Grid, KnownSeries
from warehouse.errors import MarketError
from warehouse.queries import read_sql

if TYPE_CHECKING:
    from warehouse.store import Store

#: When a gap became known: the integer of NaT.
NEVER = np.iinfo(np.int64).min
#: At most so many readings between two slots are taken.
MOST_WITHIN = 5
#: A reading between slots older than so many nominal gaps is none (ours).
WITHIN_GAPS = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPath:
    """One variable on the grid: values and when each became known (microseconds, NaT's integer in gaps)."""

    values: np.ndarray
    known_us: np.ndarray
    words: tuple[str, ...] = ()
    series: KnownSeries | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PathAsked:
    """A series wanted on a grid; values older than ``age_us`` are gaps, unless a price is kept alive by the series ``probe``."""

    series: KnownSeries
    grid: Grid
    age_us: int
    probe: KnownSeries | None = None


def grid_paths(store: Store, asked: Sequence[PathAsked]) -> list[GridPath]:
    """Series of one kind on grids of one step, known at one time; one query."""
    if not asked:
        return []
    grids = [one.grid for one in asked]
    parameters: dict[str, object] = {
        "sid": [one.series.sid for one in asked],
        "first_us": [int(grid_slots(grid)[0]) for grid in grids],
        "last_us": [grid.last_us for grid in grids],
        "step_us": grids[0].step_us,
        "known_at": grids[0].known_at,
        "max_age_us": [one.age_us for one in asked],
    }
    price = asked[0].series.kind == "price"
    if price:
        parameters["probe_sid"] = [-1 if one.probe is None else one.probe.sid for one in asked]
        parameters["probe_age_us"] = [0 if one.probe is None else one.probe.age(one.grid) for one in asked]
    columns = store.arrays(read_sql("price_grid" if price else "count_grid"), parameters)
    ends = np.searchsorted(columns["place"], np.arange(len(asked) + 1))
    return [
        GridPath(values=columns["value"][a:b], known_us=columns["known_us"][a:b], series=one.series)
        for one, a, b in zip(asked, ends[:-1], ends[1:], strict=True)
    ]


def within_asked(grid: Grid, series: KnownSeries | None) -> list[PathAsked]:
    """The grids between the slots that `readings_within` reads, oldest first; none where the source reads about once a slot."""
    if series is None or grid.first_us is None or not series.nominal_us:
        return []
    m = min(round(grid.step_us / series.nominal_us) - 1, MOST_WITHIN)
    backs = [grid.step_us * (m - j) // (m + 1) for j in range(m)]
    age_us = int(WITHIN_GAPS * series.nominal_us)
    return [
        PathAsked(
            series=series,
            grid=replace(grid, first_us=grid.first_us - back, last_us=grid.last_us - back),
            age_us=age_us,
        )
        for back in backs
    ]


def readings_within(grid: Grid, paths: Sequence[GridPath]) -> np.ndarray | None:
    """Readings between slots from the paths of `within_asked`, shape (slots, m), oldest first; None without one."""
    if not paths:
        return None
    slots = grid_slots(grid)
    return np.stack([np.where(path.known_us <= slots, path.values, np.nan) for path in paths], axis=1)


def grid_slots(grid: Grid) -> np.ndarray:
    """The slots in microseconds since the epoch; raises `MarketError` on a grid that has no first one yet."""
    if grid.first_us is None:
        raise MarketError("a grid without a first slot")
    return np.arange(grid.first_us, grid.last_us + 1, grid.step_us, dtype=np.int64)
