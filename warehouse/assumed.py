"""What may be assumed where nothing was measured, each said in words wherever the result is shown."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from warehouse.errors import SettingsError
from warehouse.history import Market

#: Spot price as a share of on-demand: the floor of AWS's V100 prices in 2021 and 2023 was exactly this.
USUAL_SPOT_SHARE = 0.30
#: How the assumption begins that a price which was read once, or never changed, still holds.
HELD_CONSTANT = "catalogue price held constant"


_NO_SHIFT = pd.Timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BorrowedPath:
    """Another market's path: the value in slot t is that market's value at t + ``shift``, as known at known_at + ``shift``.

    ``source`` None: its most trusted source. ``product`` None: the usual choice.
    """

    market: Market
    source: str | None = None
    product: str | None = None
    shift: pd.Timedelta = _NO_SHIFT

    @property
    def words(self) -> str:
        """``market (source), shifted by ...``."""
        label = self.market.key + (f" ({self.source})" if self.source else "")
        return f"{label}, shifted by {self.shift}" if self.shift else label


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryAssumptions:
    """What `load_history` may assume; without any, a variable that was not observed is an error.

    Where a market has no price: ``constant_price_usd`` (USD per instance-hour), else ``spot_share`` of the on-demand price.
    Where it has no counts: ``always_available`` instances. Where no on-demand price is known: ``on_demand_usd``.
    ``price_from`` / ``counts_from`` take another market's path whether the market has its own or not (a synthetic join, M7).
    """

    constant_price_usd: float | None = None
    spot_share: float | None = None
    price_from: BorrowedPath | None = None
    always_available: int | None = None
    counts_from: BorrowedPath | None = None
    on_demand_usd: float | None = None

    def __post_init__(self) -> None:
        """Raise `SettingsError` on a value out of range."""
        if self.constant_price_usd is not None and not 0 <= self.constant_price_usd < float("inf"):
            raise SettingsError(f"constant price {self.constant_price_usd}", expected="USD per hour >= 0")
        if self.spot_share is not None and not 0 < self.spot_share <= 1:
            raise SettingsError(f"spot share {self.spot_share}", expected="a share of on-demand in (0, 1]")
        if self.always_available is not None and self.always_available < 1:
            raise SettingsError(f"always available {self.always_available}", expected="at least 1 instance")
        if self.on_demand_usd is not None and not 0 < self.on_demand_usd < float("inf"):
            raise SettingsError(f"on-demand price {self.on_demand_usd}", expected="USD per hour > 0")
