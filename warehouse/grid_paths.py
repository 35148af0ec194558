"""One variable of a market on a slot grid, as known at the grid's time: values and when each became known (M1.2, M1.3)."""

from __future__ import annotations

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


def grid_path(
    store: Store, grid: Grid, series: KnownSeries, *, age_us: int, probe: KnownSeries | None = None
) -> GridPath:
    """A series on the grid; values older than ``age_us`` are gaps, unless a price is kept alive by the series ``probe``."""
    parameters: dict[str, object] = {
        "sid": series.sid,
        "first_us": grid.first_us,
        "last_us": grid.last_us,
        "step_us": grid.step_us,
        "known_at": grid.known_at,
        "max_age_us": age_us,
    }
    if series.kind == "price":
        parameters["probe_sid"] = -1 if probe is None else probe.sid
        parameters["probe_age_us"] = 0 if probe is None else probe.age(grid)
    columns = store.arrays(read_sql("price_grid" if series.kind == "price" else "count_grid"), parameters)
    return GridPath(values=columns["value"], known_us=columns["known_us"], series=series)


def readings_within(store: Store, grid: Grid, series: KnownSeries | None) -> np.ndarray | None:
    """Readings between slots, shape (slots, m), oldest first; None where the source reads about once a slot."""
    if series is None or grid.first_us is None or not series.nominal_us:
        return None
    m = min(round(grid.step_us / series.nominal_us) - 1, MOST_WITHIN)
    if m < 1:
        return None
    slots, columns = grid_slots(grid), []
    for j in range(m):
        back = grid.step_us * (m - j) // (m + 1)
        between = replace(grid, first_us=grid.first_us - back, last_us=grid.last_us - back)
        path = grid_path(store, between, series, age_us=int(WITHIN_GAPS * series.nominal_us))
        columns.append(np.where(path.known_us <= slots, path.values, np.nan))
    return np.stack(columns, axis=1)


def grid_slots(grid: Grid) -> np.ndarray:
    """The slots in microseconds since the epoch; raises `MarketError` on a grid that has no first one yet."""
    if grid.first_us is None:
        raise MarketError("a grid without a first slot")
    return np.arange(grid.first_us, grid.last_us + 1, grid.step_us, dtype=np.int64)
