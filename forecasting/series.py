"""Input series of the models: a variable of a history on its slot grid, with gaps, bounds and clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from slackwater.forecasting.quantiles import Variable
from slackwater.warehouse.history import ROW_KNOWN_AT, History, Market

_DAY = pd.Timedelta(days=1)
EPOCH = pd.Timestamp(0, tz="UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values of a variable on a slot grid.

    ``values`` has shape (slots,), NaN in gaps (M1.3). ``upper`` has the same shape: the largest possible value as known at
    each slot (M6.3), which is the capacity for counts and, for prices, the maximum of the on-demand price and all prices
    observed so far. ``newest`` (slots,) holds the index of the newest observed value at or before each slot, -1 if there is
    none. ``slots_per_day`` is 0 where time of day has no meaning: without a
    real clock, or if the step does not divide a day. ``first_slot`` is the number of slot 0, counted since the epoch in
    steps. ``market`` is None for values that belong to no market; ``source`` names the origin of the measurements.
    ``on_demand_usd`` is the market's on-demand price (NaN if unknown). ``within`` (slots, m) holds the readings between the
    start of the previous slot and the start of each slot, oldest first, NaN where a reading is missing; m is 0 without
    finer readings. ``capacity_stated`` is False for counts whose bound is the largest count observed instead of a capacity
    stated by the source. ``learned`` (slots,) holds, for the row of each slot, the number of the first slot at whose start
    the row was known; it is empty if every row was known when its slot began.
    """

    variable: Variable
    values: np.ndarray
    upper: np.ndarray
    newest: np.ndarray
    slots_per_day: int
    first_slot: int
    step: pd.Timedelta
    market: Market | None = None
    source: str = ""
    on_demand_usd: float = float("nan")
    within: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    capacity_stated: bool = True
    learned: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def key(self) -> str:
        """Key of the series in a panel: ``market@source``."""
        return f"{self.market.key if self.market else ''}@{self.source}"

    @property
    def end(self) -> int:
        """Number since the epoch of the slot after the last."""
        return self.first_slot + len(self)

    def time(self, place: int) -> pd.Timestamp:
        """Return the start (UTC) of the slot with this index."""
        return EPOCH + (self.first_slot + place) * self.step

    def times(self, places: np.ndarray) -> pd.DatetimeIndex:
        """Return the starts (UTC, microseconds) of the slots with these indices."""
        step = self.step // pd.Timedelta(microseconds=1)
        return pd.DatetimeIndex(((self.first_slot + places) * step).astype("datetime64[us]"), tz="UTC")

    def until(self, slot: int) -> Series:
        """Return the series up to and including a slot, given by its number since the epoch; empty if it begins later."""
        keep = min(max(slot - self.first_slot + 1, 0), len(self))
        return self if keep == len(self) else self.part(0, keep)

    def part(self, start: int, stop: int) -> Series:
        """Return the slots with indices ``start`` to ``stop`` - 1 as a new series."""
        newest = self.newest[start:stop]
        return replace(
            self,
            values=self.values[start:stop],
            upper=self.upper[start:stop],
            newest=np.where(newest >= start, newest - start, -1),
            first_slot=self.first_slot + start,
            within=self.within[start:stop],
            learned=self.learned[start:stop],
        )

    def since(self, slot: int) -> Series:
        """Return the series from a slot (number since the epoch) on; bounds are recomputed from the remaining values."""
        start = min(max(slot - self.first_slot, 0), len(self))
        if not start:
            return self
        rest = self.part(start, len(self))
        return replace(rest, upper=rest._bounds(rest.values))

    def as_of(self, slot: int) -> Series:
        """Return the series as known at the start of a slot: later slots cut off, rows learned after it gaps."""
        known = self.until(slot)
        return known._blank(known.learned > slot) if known.learned.size else known

    def punctual(self) -> Series:
        """Return the series with gaps in rows learned after their slot had begun, so that every origin knew the rest."""
        if not self.learned.size:
            return self
        return self._blank(self.learned > self.first_slot + np.arange(len(self)))

    def late(self, slots: np.ndarray) -> np.ndarray:
        """Return for each slot (number since the epoch) whether a row at or before it was learned only after it."""
        if not self.learned.size:
            return np.zeros(slots.shape, dtype=bool)
        newest = np.maximum.accumulate(self.learned)
        return np.asarray(newest[np.clip(slots - self.first_slot, 0, len(self) - 1)] > slots)

    def _blank(self, blank: np.ndarray) -> Series:
        """Replace these rows by gaps and drop `learned`."""
        on_time = np.zeros(0, dtype=np.int64)
        if not blank.any():
            return replace(self, learned=on_time)
        values = np.where(blank, np.nan, self.values)
        return replace(
            self,
            values=values,
            within=np.where(blank[:, None], np.nan, self.within),
            newest=newest_observed(values),
            upper=self._bounds(values),
            learned=on_time,
        )

    def _bounds(self, values: np.ndarray) -> np.ndarray:
        """Return the bound at each slot as if ``values`` were all values ever observed."""
        if self.variable == "price":
            return np.asarray(np.fmax.accumulate(np.append(self.on_demand_usd, values))[1:])
        return self.upper if self.capacity_stated else largest_so_far(values)

    @property
    def observed(self) -> np.ndarray:
        """The observed values in order of time, without gaps."""
        return np.asarray(self.values[~np.isnan(self.values)])

    def age(self, origins: np.ndarray) -> np.ndarray:
        """Return the age of the newest observed value at each origin in slots, shape (origins,)."""
        return np.asarray(origins - self.newest[origins])

    def last(self, origins: np.ndarray) -> np.ndarray:
        """Return the newest observed value at each origin, shape (origins,); each origin must have such a value."""
        return np.asarray(self.values[self.newest[origins]])


def series_of(history: History, variable: Variable) -> Series:
    """Extract a variable of a history as a series."""
    values = history.price if variable == "price" else history.available
    n = values.shape[0]
    whole = _DAY % history.step == pd.Timedelta(0)
    index = history.slots
    first = int((index[0] - EPOCH) // history.step) if n else 0
    if variable == "price":
        upper = np.fmax.accumulate(np.append(history.on_demand_usd, values))[1:]
    elif history.capacity_stated:
        upper = np.full(n, float(history.capacity))
    else:
        upper = largest_so_far(values)
    return Series(
        variable=variable,
        values=values,
        upper=upper,
        newest=newest_observed(values),
        slots_per_day=int(_DAY / history.step) if history.real_clock and whole else 0,
        first_slot=first,
        step=history.step,
        market=history.market,
        source=history.source,
        on_demand_usd=history.on_demand_usd,
        capacity_stated=history.capacity_stated,
        within=history.within if variable == "count" and history.within is not None else np.zeros((n, 0)),
        learned=_learning_times(history, first),
    )


def _learning_times(history: History, first: int) -> np.ndarray:
    """Compute `Series.learned` from a history; a row without a known time counts as on time."""
    own = first + np.arange(len(history.slots))
    known = history.frame[ROW_KNOWN_AT]
    late = (known > history.slots.to_series(index=known.index)).to_numpy(dtype=bool)
    if not late.any():
        return np.zeros(0, dtype=np.int64)
    after = np.array([-(-(at - history.slots[0]) // history.step) for at in known[late]], dtype=np.int64)
    own[late] = first + after
    return own


def slot_at(at: pd.Timestamp, step: pd.Timedelta) -> int:
    """Return the number since the epoch of the slot that contains a time."""
    return int((at - EPOCH) // step)


def newest_observed(values: np.ndarray) -> np.ndarray:
    """Return the index of the newest value other than NaN at or before each position, shape (slots,); -1 without such a value."""
    places = np.where(np.isnan(values), -1, np.arange(values.shape[0]))
    return np.maximum.accumulate(places)


def largest_so_far(counts: np.ndarray) -> np.ndarray:
    """Return the largest count up to each slot (slots,), 0 before any: the bound where no probe states a capacity."""
    return np.asarray(np.fmax.accumulate(np.append(0.0, counts))[1:])
