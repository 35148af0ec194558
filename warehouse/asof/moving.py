"""Histories as known at each of many times, read once: what a reader would find at every one of them, without asking again.

A row counts from the time it was known (M1.2). Where every row of a series was known by the first of the times at or after it was
observed, what was known at a time is a prefix of what is known at the last; other series are read time by time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from warehouse.asof.choosing import KnownSeries, SlotGrid
from warehouse.asof.load import GridPath, PathAsked, Reader, grid_paths, grid_slots
from warehouse.errors import SettingsError
from warehouse.history import Market
from warehouse.packaged import read_sql
from warehouse.store.connection import Store
from warehouse.times import microseconds, moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Times of reading, ``step`` apart from ``first`` to ``last``, both included; ``since`` is how far back most reads reach."""

    first: pd.Timestamp
    last: pd.Timestamp
    step: pd.Timedelta
    since: pd.Timestamp

    def __post_init__(self) -> None:
        """Raise `SettingsError` unless the step is positive and leads from the first time to the last."""
        if not self.step > pd.Timedelta(0) or self.last < self.first or (self.last - self.first) % self.step:
            raise SettingsError(
                f"times from {self.first} to {self.last} every {self.step}", expected="whole positive steps"
            )

    def times(self) -> pd.DatetimeIndex:
        """The times, ascending."""
        return pd.date_range(self.first, self.last, freq=self.step)


class MovingReader(Reader):
    """A reader for the times of a span: the answers are those of a new `Reader` at each of them.

    It lives within one state of the observations: rows that were ingested after it was made are not seen. Whatever does not
    fit the span (another time, a series with rows learned late) is asked of the store as ever.
    """

    def __init__(self, store: Store, span: Span) -> None:
        super().__init__(store)
        self._span = span
        self._times = {moment(at, "time") for at in span.times()}
        self._late = {
            int(sid) for (sid,) in store.execute(read_sql(__package__, "late_series"), self._grid())
        }
        self._at_times: dict[tuple[Market, int], dict[int, list[KnownSeries]]] = {}
        self._long: dict[tuple[int, int, int, int, int, int], tuple[int, GridPath]] = {}

    def _grid(self) -> dict[str, int]:
        return {
            "first_us": microseconds(self._span.first, "first"),
            "last_us": microseconds(self._span.last, "last"),
            "step_us": microseconds(self._span.step, "step"),
        }

    def fetch_known(self, asked: Iterable[tuple[Market, SlotGrid]]) -> None:
        """Ask which series several markets have: for all times of the span at once."""
        new = [one for one in dict.fromkeys(asked) if one not in self._known]
        fitting = [one for one in new if self._fits(one[1])]
        ages = {grid.price_age() for _, grid in fitting}
        for age in ages:
            lacking = {market for market, grid in fitting if grid.price_age() == age}
            self._fetch_times([one for one in lacking if (one, age) not in self._at_times], age)
        rest = []
        for market, grid in new:
            found = self._at_times.get((market, grid.price_age())) if self._fits(grid) else None
            if found is None or any(one.sid in self._late for own in found.values() for one in own):
                rest.append((market, grid))
            else:
                self._known[market, grid] = found.get(grid.last_us, [])
        super().fetch_known(rest)

    def _fits(self, grid: SlotGrid) -> bool:
        """Whether a grid ends at a time of the span, which is when it is read."""
        return grid.known_at in self._times and grid.last_us == _us(grid.known_at)

    def _fetch_times(self, markets: Sequence[Market], age_us: int) -> None:
        if not markets:
            return
        rows = self.store.execute(
            read_sql(__package__, "series_known_at"),
            {
                "provider": [market.provider for market in markets],
                "region": [market.region for market in markets],
                "zone": [market.zone for market in markets],
                "instance_type": [market.instance_type for market in markets],
                "known_at": moment(self._span.last, "last"),
                "repeat_us": age_us,
                "times_us": [microseconds(at, "time") for at in self._span.times()],
            },
        )
        for market in markets:
            self._at_times[market, age_us] = {}
        for time_us, place, *row in rows:
            one = KnownSeries(**dict(zip(KnownSeries.__slots__, row, strict=True)))
            self._at_times[markets[place], age_us].setdefault(time_us, []).append(one)

    def fetch_paths(self, asked: Iterable[PathAsked]) -> None:
        """Ask for several series on their grids: cut out of paths that reach over the whole span."""
        new = [one for one in dict.fromkeys(asked) if one not in self._paths]
        fitting = [one for one in new if self._may_cut(one)]
        self._fetch_long(fitting)
        for one in fitting:
            begin, path = self._long[_line(one)]
            first = _first_us(one)
            a, b = (
                (slot - begin) // one.grid.step_us for slot in (first, one.grid.last_us + one.grid.step_us)
            )
            self._paths[one] = GridPath(
                values=path.values[a:b], known_us=path.known_us[a:b], series=one.series
            )
        super().fetch_paths(one for one in new if one not in self._paths)

    def _may_cut(self, asked: PathAsked) -> bool:
        """Whether what is asked for is a part of what is known at the end of the span."""
        sids = {asked.series.sid} | ({asked.probe.sid} if asked.probe is not None else set())
        return (
            asked.grid.known_at in self._times
            and asked.grid.last_us <= _us(asked.grid.known_at)
            and asked.grid.first_us is not None
            and not sids & self._late
        )

    def _fetch_long(self, asked: Sequence[PathAsked]) -> None:
        """Read the long paths that are not there yet, or do not begin early enough."""
        wanted: dict[tuple[int, int, int, int, int, int], PathAsked] = {}
        for one in asked:
            line, first = _line(one), _first_us(one)
            if line in self._long and self._long[line][0] <= first:
                continue
            step = one.grid.step_us
            early = min(first, microseconds(self._span.since, "since") // step * step + first % step)
            if line in wanted:
                early = min(early, _first_us(wanted[line]))
            last_us = microseconds(self._span.last, "last")
            end = last_us - (last_us - first) % step
            grid = replace(one.grid, first_us=early, last_us=end, known_at=moment(self._span.last, "last"))
            wanted[line] = replace(one, grid=grid)
        groups: dict[tuple[str, int], list[PathAsked]] = {}
        for one in wanted.values():
            groups.setdefault((one.series.kind, one.grid.step_us), []).append(one)
        for group in groups.values():
            for one, path in zip(group, grid_paths(self.store, group), strict=True):
                self._long[_line(one)] = (_first_us(one), path)


def _line(asked: PathAsked) -> tuple[int, int, int, int, int, int]:
    """What tells one long path from another: series, step, phase of the grid, age, and the probe that keeps a price alive."""
    step = asked.grid.step_us
    probe = asked.probe
    return (
        asked.series.sid,
        step,
        (asked.grid.first_us or 0) % step,
        asked.age_us,
        -1 if probe is None else probe.sid,
        0 if probe is None else probe.age(asked.grid),
    )


def _first_us(asked: PathAsked) -> int:
    """The first slot asked for; `MovingReader` cuts no path that has none yet."""
    return int(grid_slots(asked.grid)[0]) if asked.grid.first_us is None else asked.grid.first_us


def _us(at: dt.datetime) -> int:
    return microseconds(pd.Timestamp(at), "time")
