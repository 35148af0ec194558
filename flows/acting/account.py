"""Money paid for the instances of a job, from the times in the ledger and the prices of its markets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from slackwater.flows.acting.contract import Instance, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketPrices:
    """Prices of a market in USD per instance-hour; each spot price holds from its time, in seconds, to the next."""

    on_demand_usd: float
    spot_times: np.ndarray
    spot_usd: np.ndarray

    def usd(self, instance: Instance, now: datetime) -> float:
        """Return the USD paid for an instance from its grant to its end, or to ``now``."""
        start = instance.since.timestamp()
        end = max(start, min(now, instance.ended or now).timestamp())
        if instance.kind == "on_demand":
            return (end - start) / 3600.0 * self.on_demand_usd
        edges = np.clip(np.append(self.spot_times, np.inf), start, end)
        first = edges[0] - start  # before the first price, at that price
        hours = np.diff(edges)
        hours[:1] += first
        return float((hours * self.spot_usd).sum() / 3600.0)

    def rate(self, counts: Mapping[Kind, int], now: datetime) -> float:
        """Return the USD per hour of instances by kind at a time."""
        place = int(np.searchsorted(self.spot_times, now.timestamp(), side="right")) - 1
        spot = float(self.spot_usd[max(place, 0)]) if len(self.spot_usd) else 0.0
        return counts["on_demand"] * self.on_demand_usd + counts["spot"] * spot


def paid_usd(instances: Iterable[Instance], prices: Mapping[str, MarketPrices], now: datetime) -> float:
    """Return the USD paid for instances up to a time, without those of markets whose prices are not known."""
    return sum(
        prices[instance.market].usd(instance, now) for instance in instances if instance.market in prices
    )
