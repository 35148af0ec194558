"""Who rents on a market: at list price, at the effective price, by a dual price, along a spending plan (M8.6, M10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from optimization.dual_price import DualPrice
from optimization.rental import Rental, rent
from optimization.rental_frontier import JobType
from optimization.rental_market import Offer, Renter
from optimization.rental_price import Outlook, affordable
from optimization.spending_plan import SpendingPlan
from warehouse.errors import SettingsError


class FixedRenter(Renter):
    """The widths of one rental, whole GPUs, mixed as it says; on demand alone unless ``uses_spot``."""

    def __init__(self, rental: Rental, *, uses_spot: bool) -> None:
        self.rental = rental
        self.uses_spot = uses_spot

    def width(self, offer: Offer) -> int:
        """By the shares of the job's type and its ticket."""
        shares = self.rental.types[offer.kind].shares
        last = offer.ticket >= shares[0].probability
        return round(shares[-1 if last else 0].width) - 1


class EffectiveRenter(FixedRenter):
    """The rental of the budget at the effective price of a GPU, planned again every ``every`` slots from the outlook then."""

    def __init__(
        self,
        types: Sequence[JobType],
        budget_usd: Callable[[int], float],
        outlook: Callable[[int], Outlook],
        *,
        restart_hours: float,
        every: int,
    ) -> None:
        self._types, self._budget, self._outlook = types, budget_usd, outlook
        self._restart_hours, self._every = restart_hours, every
        super().__init__(self._planned(0), uses_spot=True)

    def slot_begins(self, slot: int) -> None:
        """Plan again where it is time to."""
        if slot % self._every == 0:
            self.rental = self._planned(slot)

    def _planned(self, slot: int) -> Rental:
        budget = self._budget(slot)
        price = affordable(self._outlook(slot), budget, overhead_hours=self._restart_hours)
        slowed = [replace(kind, mean_hours=kind.mean_hours * (1.0 + price.lost)) for kind in self._types]
        return covered_rental(slowed, budget, price.paid_usd)


class MultiplierRenter(Renter):
    """The width that is best at one price of a USD for all jobs, with what spot is expected to be left for the job."""

    def __init__(self, price: float) -> None:
        self.dual = DualPrice(price=price, step=1.0)

    def width(self, offer: Offer) -> int:
        """argmin of loss + price x cost."""
        return self.dual.choose(offer.loss, offer.cost)


class PlanRenter(MultiplierRenter):
    """A factor on prices known beforehand that moves with what was committed: price(t) = factor x base(t) (ours).

    ``base`` is the multiplier of the rental that the plan's slot would pay for, at the effective price then: a gradient alone
    cannot follow a plan that turns within a day. The factor moves after each slot by step x (what its jobs are expected
    to cost - the plan's slot), and `overspend_bound` holds for it with P / min base in the place of P.
    """

    def __init__(self, factor: DualPrice, plan: SpendingPlan, base: Callable[[int], float]) -> None:
        super().__init__(0.0)
        self._factor, self._plan, self._base = factor, plan, base

    def slot_begins(self, slot: int) -> None:
        """The price of the slot."""
        self.dual = DualPrice(price=self._factor.price * self._base(slot), step=self._factor.step)

    def slot_ends(self, slot: int, committed: float, paid: float) -> None:
        """The gradient step, on what was committed: what is paid comes too late to steer by."""
        budget = float(self._plan.budget[min(slot, len(self._plan.budget) - 1)])
        self._factor = self._factor.paid(committed, budget)


def covered_rental(types: Sequence[JobType], budget_usd: float, price_usd: float) -> Rental:
    """The whole widths for a budget; width 1 (or the cheapest) where the budget does not cover the load: jobs are not sent away."""
    prices = [price_usd] * len(types)
    try:
        return rent(types, budget_usd, whole=True, prices=prices)
    except SettingsError:
        least = sum(kind.load for kind in types) * price_usd
        return rent(types, least * (1.0 + 1e-6), whole=True, prices=prices)
