"""Outlooks of a market slot by slot, each made of what was known in its slot (M8.6, M4.6) (ours)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from optimization.market import Record
from optimization.market_chain import Beliefs, CountChain, count_chain
from optimization.rental_price import Outlook, loss_rate

#: Days of counts from which losses of spot are counted.
LOSS_DAYS = 7.0


@dataclass(slots=True, kw_only=True)
class Outlooks:
    """The outlook of each slot of a record over ``horizon`` slots, the present one first; each is made once.

    The count follows the chain of M4.6, estimated in the slot from the record up to it; the price stays what it is.
    ``capacity`` bounds the count, ``fleet`` is the number of GPUs of which losses are counted.
    """

    record: Record
    on_demand_usd: float
    capacity: int
    fleet: float
    horizon: int
    _made: dict[int, Outlook] = field(default_factory=dict)

    def at(self, slot: int) -> Outlook:
        """The outlook in the slot (counted as the record does); in a gap, and after the record, nothing is on spot."""
        if slot not in self._made:
            self._made[slot] = self._make(slot)
        return self._made[slot]

    def _make(self, slot: int) -> Outlook:
        if self.record.first + slot >= len(self.record.price):
            return self._none()
        past = self.record.until(slot)
        price, count = float(past.price[-1]), float(past.available[-1])
        if not (np.isfinite(price) and np.isfinite(count)) or price >= self.on_demand_usd:
            return self._none()
        hours = self.record.slot_hours
        chain = count_chain(past, self.capacity, slot_hours=hours, beliefs=Beliefs())
        return Outlook(
            count=np.broadcast_to(chain.count.astype(float), (self.horizon, len(chain.count))),
            weight=_ahead(chain, int(count), self.horizon),
            price=np.full(self.horizon, price),
            on_demand_usd=self.on_demand_usd,
            loss_rate=loss_rate(
                past.available[-int(LOSS_DAYS * 24.0 / hours) :], self.fleet, slot_hours=hours
            ),
        )

    def _none(self) -> Outlook:
        return Outlook(
            count=np.zeros((self.horizon, 1)),
            weight=np.ones((self.horizon, 1)),
            price=np.full(self.horizon, self.on_demand_usd),
            on_demand_usd=self.on_demand_usd,
            loss_rate=0.0,
        )


def _ahead(chain: CountChain, count: int, horizon: int) -> np.ndarray:
    """Probabilities of the chain's states in this slot and the ``horizon`` - 1 after it, shape (horizon, states)."""
    weight = np.zeros((horizon, len(chain.count)))
    weight[0, chain.index(count)] = 1.0
    for h in range(1, horizon):
        weight[h] = weight[h - 1] @ chain.transition
    return weight
