"""What a market has shown lately: a guess at what its instances cost, to rank many markets before any is planned on (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from warehouse.history import AVAILABLE, OBSERVED, PRICE, History, Market, OnDemandOrigin

#: What a market has shown lately is read over this long.
LATELY = pd.Timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lately:
    """A market with what it has shown over `LATELY`.

    ``at`` is the time it is looked at. ``spot_usd`` is its last observed spot price, NaN where none was observed lately, and
    ``on_demand_usd`` the on-demand price, both USD per instance-hour; ``on_demand`` says where it comes from.
    ``counts`` are the counts of its observed slots.
    """

    market: Market
    source: str
    at: pd.Timestamp
    on_demand_usd: float
    spot_usd: float
    counts: tuple[int, ...]
    on_demand: OnDemandOrigin = OBSERVED

    @property
    def key(self) -> str:
        """``market@source``: how the command line and the tables name it."""
        return f"{self.market.key}@{self.source}"

    def spot_share(self, instances: int) -> float:
        """Mean share of ``instances`` that spot could have given lately; 0 if nothing was observed."""
        if not self.counts:
            return 0.0
        return float(np.minimum(np.array(self.counts), instances).mean() / instances)

    def screened_usd(self, instances: int) -> float:
        """What ``instances`` cost an hour if spot goes on as lately and on-demand gives the rest."""
        if np.isnan(self.spot_usd):
            return instances * self.on_demand_usd
        share = self.spot_share(instances) if self.spot_usd < self.on_demand_usd else 0.0
        return instances * (share * self.spot_usd + (1.0 - share) * self.on_demand_usd)


def shown_lately(history: History) -> Lately:
    """What a market has shown over `LATELY` at the time its history is known."""
    lately = history.frame.loc[history.known_at - LATELY :]
    prices, counts = lately[PRICE].dropna(), lately[AVAILABLE].dropna()
    return Lately(
        market=history.market,
        source=history.source,
        at=history.known_at,
        on_demand_usd=history.on_demand_usd,
        spot_usd=float(prices.iloc[-1]) if len(prices) else float("nan"),
        counts=tuple(int(count) for count in counts),
        on_demand=history.on_demand,
    )
