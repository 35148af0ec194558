"""Markets that a request could run on: which GPUs their instances hold, and what they have shown lately (M9.1, M1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from warehouse.amounts import price
from warehouse.errors import MarketError
from warehouse.history import AVAILABLE, PRICE, History, Market
from warehouse.packaged import read_data

#: What a market has shown lately is read over this long.
LATELY = pd.Timedelta(days=1)
#: Markets of the same GPU and the same number of GPUs an instance that are looked at closely.
EACH_KIND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """What one instance of a type holds: ``gpus`` GPUs of the model ``gpu_model``, named as in the measured runs."""

    provider: str
    instance_type: str
    gpu_model: str
    gpus: int
    sizes: bool = False


@cache
def gpu_types() -> tuple[GpuType, ...]:
    """The entries of ``optimization/requests/data/gpu_instances.toml``."""
    return tuple(GpuType(**entry) for entry in read_data(__package__, "gpu_instances")["instance"])


def gpu_type_of(market: Market) -> GpuType | None:
    """What an instance of a market holds, None for a type that is not in the table.

    A marketplace's ``<type>_xN`` is a machine of N; the bare type counts machines of different sizes together and is none.

    >>> gpu_type_of(Market.parse("primeintellect/any/all/A100_80GB_SXM4_x4")).gpus
    4
    """
    base, mark, count = market.instance_type.rpartition("_x")
    for entry in gpu_types():
        if entry.provider != market.provider:
            continue
        if entry.sizes:
            if mark and base == entry.instance_type and count.isdigit() and int(count) > 0:
                return GpuType(
                    provider=entry.provider,
                    instance_type=market.instance_type,
                    gpu_model=entry.gpu_model,
                    gpus=entry.gpus * int(count),
                )
        elif market.instance_type == entry.instance_type:
            return entry
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A market with what its instances hold and what it has shown over `LATELY`.

    ``at`` is the time it is looked at. ``spot_usd`` is its last observed spot price, NaN where none was observed lately, and
    ``on_demand_usd`` the on-demand price, both USD per instance-hour. ``counts`` are the counts of its observed slots.
    """

    market: Market
    source: str
    at: pd.Timestamp
    gpu: GpuType
    on_demand_usd: float
    spot_usd: float
    counts: tuple[int, ...]

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
        """What ``instances`` cost an hour if spot goes on as lately and on-demand gives the rest: a guess, for ranking only
        (ours).
        """
        if np.isnan(self.spot_usd):
            return instances * self.on_demand_usd
        share = self.spot_share(instances) if self.spot_usd < self.on_demand_usd else 0.0
        return instances * (share * self.spot_usd + (1.0 - share) * self.on_demand_usd)


def offer_of(history: History) -> Offer:
    """What a market offers at the time its history is known; raises `MarketError` for an instance type whose GPU is not known."""
    gpu = gpu_type_of(history.market)
    if gpu is None:
        raise MarketError(
            f"{history.market.key}: which GPU its instance type has is not known",
            expected=f"one of {', '.join(sorted({one.instance_type for one in gpu_types()}))}",
        )
    lately = history.frame.loc[history.known_at - LATELY :]
    prices, counts = lately[PRICE].dropna(), lately[AVAILABLE].dropna()
    return Offer(
        market=history.market,
        source=history.source,
        at=history.known_at,
        gpu=gpu,
        on_demand_usd=history.on_demand_usd,
        spot_usd=float(prices.iloc[-1]) if len(prices) else float("nan"),
        counts=tuple(int(count) for count in counts),
    )


def cheapest_offers(offers: Sequence[Offer], left_out: list[str]) -> list[Offer]:
    """Of every kind (GPU model and GPUs an instance) the `EACH_KIND` cheapest lately; why others are left out goes into
    ``left_out``.
    """
    kinds: dict[tuple[str, int], list[Offer]] = {}
    for offer in offers:
        kinds.setdefault((offer.gpu.gpu_model, offer.gpu.gpus), []).append(offer)
    kept = []
    for own in kinds.values():
        own.sort(key=lambda one: (one.screened_usd(_wide(one)) / _wide(one), one.key))
        kept += own[:EACH_KIND]
        cheapest = own[0].screened_usd(_wide(own[0])) / _wide(own[0])
        left_out += [
            f"{one.key}: {price(one.screened_usd(_wide(one)) / _wide(one))} USD an instance-hour by its last day, "
            f"{own[0].key} {price(cheapest)}"
            for one in own[EACH_KIND:]
        ]
    return kept


def _wide(offer: Offer) -> int:
    """Instances of 8 GPUs, or one."""
    return max(1, 8 // offer.gpu.gpus)
