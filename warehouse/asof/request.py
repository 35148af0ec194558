"""What may be asked for when a history is read, and the slots it means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from warehouse.asof.choosing import Grid
from warehouse.asof.on_demand import HistoryAssumptions
from warehouse.errors import SettingsError
from warehouse.history import Market
from warehouse.times import microseconds, moment

#: Nothing is assumed.
NO_ASSUMPTIONS = HistoryAssumptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRequest:
    """One history wanted; the fields are the arguments of `load_history`."""

    market: Market
    end: pd.Timestamp
    step: pd.Timedelta
    known_at: pd.Timestamp
    start: pd.Timestamp | None = None
    source: str | None = None
    trust: Sequence[str] = ()
    product: str | None = None
    max_age: pd.Timedelta | None = None
    assumptions: HistoryAssumptions = NO_ASSUMPTIONS
    within: bool = False

    def grid(self) -> Grid:
        """The slots asked for; raises `SettingsError` for a step or time out of form."""
        if self.step <= pd.Timedelta(0):
            raise SettingsError(f"step {self.step}", expected="a positive slot length")
        step_us = microseconds(self.step, "step")
        last_us = min(microseconds(self.end, "end"), microseconds(self.known_at, "known_at"))
        return Grid(
            first_us=None
            if self.start is None
            else -(-microseconds(self.start, "start") // step_us) * step_us,
            last_us=last_us // step_us * step_us,
            step_us=step_us,
            known_at=moment(self.known_at, "known_at"),
            max_age_us=None if self.max_age is None else microseconds(self.max_age, "max_age"),
        )
