"""What the reads of several histories ask the store, asked once for all of them: the same statements, longer lists."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, TypeVar

from warehouse.choosing import Grid, KnownSeries, known_series
from warehouse.grid_paths import GridPath, PathAsked, grid_paths
from warehouse.history import Market
from warehouse.queries import read_sql

if TYPE_CHECKING:
    from warehouse.store import Store

_Asked = TypeVar("_Asked", bound=Hashable)


class Reader:
    """Answers from the store, each kept for as long as the reader lives: make one per call, within one state of the file.

    `fetch_known` and `fetch_paths` ask for many at once; what was not fetched before is asked for when it is needed.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
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
            self._on_demand[key] = self.store.execute(read_sql("on_demand"), values)
        return self._on_demand[key]


def _alike(asked: Iterable[_Asked], key: Callable[[_Asked], Hashable]) -> list[list[_Asked]]:
    """What can be asked for by one statement, together."""
    groups: dict[Hashable, list[_Asked]] = {}
    for one in asked:
        groups.setdefault(key(one), []).append(one)
    return list(groups.values())
