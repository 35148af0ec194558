"""One variable of a market on a slot grid, as known at the grid's time: values and when each became known (M1.2, M1.3).

`Reader` asks the store what several histories need: the same statements for all of them, with longer lists.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from warehouse.asof.choosing import Grid, KnownSeries, known_series
from warehouse.errors import MarketError
from warehouse.history import Market
from warehouse.packaged import read_sql
from warehouse.sources.conventions import Conventions, known_conventions
from warehouse.store.connection import Store

_Asked = TypeVar("_Asked", bound=Hashable)
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
    columns = store.arrays(read_sql(__package__, "price_grid" if price else "count_grid"), parameters)
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


class Reader:
    """Answers from the store, each kept for as long as the reader lives: make one per call, within one state of the file.

    `fetch_known` and `fetch_paths` ask for many at once; what was not fetched before is asked for when it is needed.
    ``conventions``: what is known of the sources beside their rows, by default what is shipped.
    """

    def __init__(self, store: Store, conventions: Conventions | None = None) -> None:
        self.store = store
        self.conventions = conventions or known_conventions()
        self._known: dict[tuple[Market, Grid], list[KnownSeries]] = {}
        self._paths: dict[PathAsked, GridPath] = {}
        self._on_demand: dict[
            tuple[str, str, dt.datetime], list[tuple[int, str, str, str, str, float, int]]
        ] = {}

    def fetch_known(self, asked: Iterable[tuple[Market, Grid]]) -> None:
        """Ask which series several markets have."""
        new = [one for one in dict.fromkeys(asked) if one not in self._known]
        for group in _alike(new, lambda one: (one[1].known_at, one[1].price_age())):
            self._known |= zip(group, known_series(self.store, group), strict=True)

    def known(self, market: Market, grid: Grid) -> list[KnownSeries]:
        """All series of a market that are known at the grid's time."""
        self.fetch_known([(market, grid)])
        return self._known[market, grid]

    def fetch_paths(self, asked: Iterable[PathAsked]) -> None:
        """Ask for several series on their grids."""
        new = [one for one in dict.fromkeys(asked) if one not in self._paths]
        for group in _alike(new, lambda one: (one.series.kind, one.grid.step_us, one.grid.known_at)):
            self._paths |= zip(group, grid_paths(self.store, group), strict=True)

    def path(self, asked: PathAsked) -> GridPath:
        """One series on its grid."""
        self.fetch_paths([asked])
        return self._paths[asked]

    def on_demand(
        self, market: Market, known_at: dt.datetime
    ) -> list[tuple[int, str, str, str, str, float, int]]:
        """Latest on-demand prices stated for the instance type of a market (``on_demand.sql``)."""
        key = market.provider, market.instance_type, known_at
        if key not in self._on_demand:
            values = dict(zip(("provider", "instance_type", "known_at"), key, strict=True))
            self._on_demand[key] = self.store.execute(read_sql(__package__, "on_demand"), values)
        return self._on_demand[key]


def _alike(asked: Iterable[_Asked], key: Callable[[_Asked], Hashable]) -> list[list[_Asked]]:
    """What can be asked for by one statement, together."""
    groups: dict[Hashable, list[_Asked]] = {}
    for one in asked:
        groups.setdefault(key(one), []).append(one)
    return list(groups.values())
