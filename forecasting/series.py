"""One variable of a history as the models see it: values with gaps, the bound known at each slot, the clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from forecasting.quantiles import Variable
from warehouse.history import ROW_KNOWN_AT, History, Market

_DAY = pd.Timedelta(days=1)
EPOCH = pd.Timestamp(0, tz="UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A variable on its slot grid.

    ``values`` has shape (slots,), NaN in gaps (M1.3). ``upper`` has the same shape: the largest value possible as known at
    each slot (M6.3): the capacity for counts, for prices the dearer of on-demand and the dearest seen so far. ``newest`` gives
    for each slot the index of the newest observed one at or before it, -1 if none. ``companion`` holds the other variable.
    ``slots_per_day`` is 0 where time of day means nothing (no real clock, or a step that does not divide a day); ``first_slot``
    numbers slot 0 since the epoch in units of the step. ``market`` is None for numbers that belong to none, ``source`` where they
    were measured; ``on_demand_usd`` is the market's on-demand price (NaN if unknown). ``within`` (slots, m) holds the readings
    between a slot's start and the one before, oldest first, NaN where there was none; m is 0 where nothing finer is known.
    ``capacity_stated`` is False for counts whose bound is the largest one seen, not one that the source states.
    ``learned`` (slots,) numbers the first slot at whose start the row of each slot was known; it has no elements where
    every row was known when its slot began.
    """

    variable: Variable
    values: np.ndarray
    companion: np.ndarray
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
        """``market@source``, what a series is called in a panel."""
        return f"{self.market.key if self.market else ''}@{self.source}"

    @property
    def end(self) -> int:
        """The number since the epoch of the slot after the last."""
        return self.first_slot + len(self)

    def time(self, place: int) -> pd.Timestamp:
        """When the slot at a place (index) begins, UTC."""
        return EPOCH + (self.first_slot + place) * self.step

    def times(self, places: np.ndarray) -> pd.DatetimeIndex:
        """When the slots at these places (indices) begin, UTC, in microseconds."""
        step = self.step // pd.Timedelta(microseconds=1)
        return pd.DatetimeIndex(((self.first_slot + places) * step).astype("datetime64[us]"), tz="UTC")

    def until(self, slot: int) -> Series:
        """The series up to and with the slot of that number since the epoch; empty if it begins later."""
        keep = min(max(slot - self.first_slot + 1, 0), len(self))
        return self if keep == len(self) else self.part(0, keep)

    def part(self, start: int, stop: int) -> Series:
        """The slots ``start`` to before ``stop`` (indices) as a series of its own."""
        newest = self.newest[start:stop]
        return replace(
            self,
            values=self.values[start:stop],
            companion=self.companion[start:stop],
            upper=self.upper[start:stop],
            newest=np.where(newest >= start, newest - start, -1),
            first_slot=self.first_slot + start,
            within=self.within[start:stop],
            learned=self.learned[start:stop],
        )

    def since(self, slot: int) -> Series:
        """The series from the slot of that number on, as if nothing had been before: its bounds too are of what is left."""
        start = min(max(slot - self.first_slot, 0), len(self))
        if not start:
            return self
        rest = self.part(start, len(self))
        return replace(rest, upper=rest._bounds(rest.values))

    def as_of(self, slot: int) -> Series:
        """What was known at the start of a slot (its number since the epoch): later slots cut off, rows learned later gaps."""
        known = self.until(slot)
        return known._blank(known.learned > slot) if known.learned.size else known

    def punctual(self) -> Series:
        """The series with gaps where a row was learned after its slot had begun: all it shows was known at every origin."""
        if not self.learned.size:
            return self
        return self._blank(self.learned > self.first_slot + np.arange(len(self)))

    def late(self, slots: np.ndarray) -> np.ndarray:
        """For each of these slots (numbers since the epoch), whether a row of its past was learned only after it."""
        if not self.learned.size:
            return np.zeros(slots.shape, dtype=bool)
        newest = np.maximum.accumulate(self.learned)
        return np.asarray(newest[np.clip(slots - self.first_slot, 0, len(self) - 1)] > slots)

    def _blank(self, gone: np.ndarray) -> Series:
        """Gaps in these rows, and nothing said of when rows were learned."""
        on_time = np.zeros(0, dtype=np.int64)
        if not gone.any():
            return replace(self, learned=on_time)
        values = np.where(gone, np.nan, self.values)
        return replace(
            self,
            values=values,
            companion=np.where(gone, np.nan, self.companion),
            within=np.where(gone[:, None], np.nan, self.within),
            newest=newest_observed(values),
            upper=self._bounds(values),
            learned=on_time,
        )

    def _bounds(self, values: np.ndarray) -> np.ndarray:
        """The bound known at each slot where these are all the values that there ever were."""
        if self.variable == "price":
            return np.asarray(np.fmax.accumulate(np.append(self.on_demand_usd, values))[1:])
        return self.upper if self.capacity_stated else largest_so_far(values)

    @property
    def observed(self) -> np.ndarray:
        """The values that are not gaps, in order."""
        return np.asarray(self.values[~np.isnan(self.values)])

    def age(self, origins: np.ndarray) -> np.ndarray:
        """Slots since the newest observed value at each origin, shape (origins,)."""
        return np.asarray(origins - self.newest[origins])

    def last(self, origins: np.ndarray) -> np.ndarray:
        """The newest observed value at each origin, shape (origins,); each origin must have one."""
        return np.asarray(self.values[self.newest[origins]])


def series_of(history: History, variable: Variable) -> Series:
    """Take one variable out of a history."""
    prices, counts = history.price, history.available
    values, companion = (prices, counts) if variable == "price" else (counts, prices)
    n = values.shape[0]
    whole = _DAY % history.step == pd.Timedelta(0)
    index = history.slots
    first = int((index[0] - EPOCH) // history.step) if n else 0
    if variable == "price":
        upper = np.fmax.accumulate(np.append(history.on_demand_usd, prices))[1:]
    elif history.capacity_stated:
        upper = np.full(n, float(history.capacity))
    else:
        upper = largest_so_far(counts)
    return Series(
        variable=variable,
        values=values,
        companion=companion,
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
        learned=_learned(history, first),
    )


def _learned(history: History, first: int) -> np.ndarray:
    """`Series.learned` of a history; a row of which nothing is known was never late."""
    own = first + np.arange(len(history.slots))
    known = history.frame[ROW_KNOWN_AT]
    late = (known > history.slots.to_series(index=known.index)).to_numpy(dtype=bool)
    if not late.any():
        return np.zeros(0, dtype=np.int64)
    after = np.array([-(-(at - history.slots[0]) // history.step) for at in known[late]], dtype=np.int64)
    own[late] = first + after
    return own


def slot_at(at: pd.Timestamp, step: pd.Timedelta) -> int:
    """The number since the epoch of the slot that a time falls in."""
    return int((at - EPOCH) // step)


def newest_observed(values: np.ndarray) -> np.ndarray:
    """Index of the newest non-NaN value at or before each position, -1 before the first, shape (slots,)."""
    places = np.where(np.isnan(values), -1, np.arange(values.shape[0]))
    return np.maximum.accumulate(places)


def largest_so_far(counts: np.ndarray) -> np.ndarray:
    """The largest count at or before each slot, 0 before the first: the bound where no probe states one, shape (slots,)."""
    return np.asarray(np.fmax.accumulate(np.append(0.0, counts))[1:])
