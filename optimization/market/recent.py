"""Recent prices and counts of a market, and a cost estimate from them to rank many markets before planning (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from slackwater.warehouse.history import AVAILABLE, OBSERVED, PRICE, History, Market, OnDemandOrigin

RECENT_PERIOD = pd.Timedelta(days=1)  # Length of the recent period


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentMarket:
    """A market with its prices and counts over the recent period `RECENT_PERIOD`.

    ``at`` is the end of the period. ``spot_usd`` is the last spot price observed in it, NaN if none was
    observed, and ``on_demand_usd`` the on-demand price, both in USD per instance-hour; ``on_demand`` is the
    origin of the on-demand price. ``counts`` are the counts of the observed slots.
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
        """``market@source``, the name of the market on the command line and in the tables."""
        return f"{self.market.key}@{self.source}"

    def spot_share(self, instances: int) -> float:
        """Return the mean share of ``instances`` that was available as spot recently; 0 if nothing was observed."""
        if not self.counts:
            return 0.0
        return float(np.minimum(np.array(self.counts), instances).mean() / instances)

    def screened_usd(self, instances: int) -> float:
        """Return the cost of ``instances`` in USD per hour with the recent spot share and price, and on-demand for the rest."""
        if np.isnan(self.spot_usd):
            return instances * self.on_demand_usd
        share = self.spot_share(instances) if self.spot_usd < self.on_demand_usd else 0.0
        return instances * (share * self.spot_usd + (1.0 - share) * self.on_demand_usd)


def recent_market(history: History) -> RecentMarket:
    """Return a market's prices and counts over the period `RECENT_PERIOD` that ends at the history's ``known_at``."""
    recent = history.frame.loc[history.known_at - RECENT_PERIOD :]
    prices, counts = recent[PRICE].dropna(), recent[AVAILABLE].dropna()
    return RecentMarket(
        market=history.market,
        source=history.source,
        at=history.known_at,
        on_demand_usd=history.on_demand_usd,
        spot_usd=float(prices.iloc[-1]) if len(prices) else float("nan"),
        counts=tuple(int(count) for count in counts),
        on_demand=history.on_demand,
    )
