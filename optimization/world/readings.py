"""Readings of a market in the world: its slots, and the counts read between them (M12.10)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slackwater.optimization.kernels.world import HOUR
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.replay.run import SlotMarket
from slackwater.optimization.world.simulation import Readings
from slackwater.warehouse.errors import MarketError


def market_readings(market: MarketWindow | SlotMarket, within: np.ndarray | None = None) -> Readings:
    """Return the readings of a market, in seconds from its first slot: the slots, and the counts read between them.

    ``within`` (slots, m) are the counts between the start of each slot and the next, evenly spaced
    and oldest first, NaN where none was read; without them the slots are the only readings. Prices
    are those of the slots. In a gap there is no spot.

    Raises `MarketError` if market and ``within`` have different slots.
    """
    slots, seconds = len(market.price), market.slot_hours * HOUR
    between = np.full((slots, 0), np.nan) if within is None else np.asarray(within, dtype=float)
    if between.ndim != 2 or len(between) != slots:
        raise MarketError(f"readings of shape {between.shape} in {slots} slots", expected="one row per slot")
    per_slot = between.shape[1] + 1
    times = np.arange(slots)[:, None] * seconds + np.arange(per_slot) * (seconds / per_slot)
    observed = np.array(market.observed)
    price = np.array(market.price if market.quoted is None else market.quoted)
    usd = np.where(observed, price, market.on_demand_usd)
    counts = np.column_stack([np.array(market.available, dtype=float), between])
    counts[~observed] = 0.0
    is_known = np.isfinite(counts)
    return Readings(
        times=times[is_known],
        available=counts[is_known],
        price=np.broadcast_to(usd[:, None], counts.shape)[is_known],
    )


def with_losses(readings: Readings, losses: Sequence[tuple[float, int]]) -> Readings:
    """Return readings with losses (second, spot left; ascending), which replace one of the same second; prices stay."""
    times, counts, prices = readings.times, readings.available, readings.price
    for second, left in losses:
        place = int(np.searchsorted(times, second))
        after = place + (place < len(times) and times[place] == second)
        usd = prices[after - 1] if after else np.nan
        times, counts, prices = (
            np.concatenate([column[:place], [value], column[after:]])
            for column, value in ((times, second), (counts, left), (prices, usd))
        )
    return Readings(times=times, available=counts, price=prices) if losses else readings


def readings_inside(within: np.ndarray | None, first: int, slots: int) -> np.ndarray | None:
    """Return the readings inside ``slots`` slots from ``first`` on, from those between each slot and the slot before.

    ``within`` is `History.within`; ``first`` may be before its first slot. The readings inside the
    last slot of a record are unknown.
    """
    if within is None:
        return None
    inside = np.full((slots, within.shape[1]), np.nan)
    begin = max(0, -(first + 1))
    known = within[first + 1 + begin : max(0, first + 1 + slots)]
    inside[begin : begin + len(known)] = known
    return inside
