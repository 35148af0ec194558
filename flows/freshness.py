"""Test whether the newest observation of a market is too old to decide on (M1.3)."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from slackwater.flows.show.formats import age, utc
from slackwater.warehouse.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Test whether the newest observation of a market exceeds its maximal age (M1.3) at the slot to decide.

    ``clock``: present time, used instead of the slot if later, for markets that are read at the end
    of their records.
    """

    clock: pd.Timestamp | None = None

    def stale(self, history: History, slot: pd.Timestamp) -> str | None:
        """Return a note that a market's newest count (or price, without counts) is too old for a slot, else None."""
        name, seen, limit = "count", history.newest_count, history.count_max_age
        if seen is None:
            name, seen, limit = "price", history.newest_price, history.price_max_age
        at = slot if self.clock is None else max(slot, self.clock)
        if seen is None or limit is None or at - seen <= limit:
            return None
        what = "this slot" if at == slot else "now: this slot is long over"
        return (
            f"the newest {name} of {history.market.key} is from {utc(seen)}, {age(at - seen)} before {what}"
        )
