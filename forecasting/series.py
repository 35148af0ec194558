"""One variable of a history as the models see it: values with gaps, the bound known at each slot, the clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from forecasting.forecast import Variable
from warehouse.history import History, Market

_DAY = pd.Timedelta(days=1)


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
        )

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
    dearest = np.fmax.accumulate(np.append(history.on_demand_usd, prices))[1:]
    upper = dearest if variable == "price" else capacities(history)
    whole = _DAY % history.step == pd.Timedelta(0)
    index = history.slots
    epoch = pd.Timestamp(0, tz="UTC")
    return Series(
        variable=variable,
        values=values,
        companion=companion,
        upper=upper.astype(float),
        newest=newest_observed(values),
        slots_per_day=int(_DAY / history.step) if history.real_clock and whole else 0,
        first_slot=int((index[0] - epoch) // history.step) if n else 0,
        step=history.step,
        market=history.market,
        source=history.source,
        on_demand_usd=history.on_demand_usd,
        capacity_stated=history.capacity_stated,
        within=history.within if variable == "count" and history.within is not None else np.zeros((n, 0)),
    )


def newest_observed(values: np.ndarray) -> np.ndarray:
    """Index of the newest non-NaN value at or before each position, -1 before the first, shape (slots,)."""
    places = np.where(np.isnan(values), -1, np.arange(values.shape[0]))
    return np.maximum.accumulate(places)


def capacities(history: History) -> np.ndarray:
    """The capacity as known at each slot, shape (slots,), the same that `History.until` would give there."""
    n = len(history.slots)
    if history.capacity_stated:
        return np.full(n, history.capacity)
    seen = np.fmax.accumulate(np.append(0.0, history.available))[1:].astype(np.int64)
    return np.where(history.slots >= history.known_at, history.capacity, seen)
