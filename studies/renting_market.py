"""Stream of jobs rented on a real market (M8.6), and budget prices learned while the budget is spent (M10)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from slackwater.optimization.kernels.rules import spot_is_cheaper
from slackwater.optimization.market.belief import CountChain, Forgetting, count_chain, even_levels
from slackwater.optimization.market.window import MarketWindow, Record
from slackwater.optimization.renting.budget import JobType, Rental, rent
from slackwater.optimization.renting.price import PriceOutlook, affordable, loss_rate
from slackwater.optimization.renting.simulation import Stream, shared_pace
from slackwater.warehouse.errors import SettingsError

#: Days of counts from which losses of spot are estimated.
LOSS_DAYS = 7.0


@dataclass(slots=True, kw_only=True)
class Outlooks:
    """Outlooks of each slot of a record over ``horizon`` slots, starting with the slot; each computed once.

    The count follows the chain of M4.6, estimated in the slot from the record up to it; the price
    stays constant. ``capacity`` limits the count, ``fleet`` is the number of GPUs whose losses are
    counted.
    """

    record: Record
    on_demand_usd: float
    capacity: int
    fleet: float
    horizon: int
    _made: dict[int, PriceOutlook] = field(default_factory=dict)

    def at(self, slot: int) -> PriceOutlook:
        """Return the outlook in the slot (indexed as in the record); no spot in a gap and after the record."""
        if slot not in self._made:
            self._made[slot] = self._make(slot)
        return self._made[slot]

    def _make(self, slot: int) -> PriceOutlook:
        if self.record.first + slot >= len(self.record.price):
            return self._none()
        past = self.record.until(slot)
        price, count = float(past.price[-1]), float(past.available[-1])
        if not (np.isfinite(price) and np.isfinite(count) and spot_is_cheaper(price, self.on_demand_usd)):
            return self._none()
        hours = self.record.slot_hours
        chain = count_chain(past, even_levels(self.capacity), slot_hours=hours, forgetting=Forgetting())
        return PriceOutlook(
            count=np.broadcast_to(chain.count.astype(float), (self.horizon, len(chain.count))),
            weight=_ahead(chain, int(count), self.horizon),
            price=np.full(self.horizon, price),
            on_demand_usd=self.on_demand_usd,
            loss_rate=loss_rate(
                past.available[-int(LOSS_DAYS * 24.0 / hours) :], self.fleet, slot_hours=hours
            ),
        )

    def _none(self) -> PriceOutlook:
        return PriceOutlook(
            count=np.zeros((self.horizon, 1)),
            weight=np.ones((self.horizon, 1)),
            price=np.full(self.horizon, self.on_demand_usd),
            on_demand_usd=self.on_demand_usd,
            loss_rate=0.0,
        )


def _ahead(chain: CountChain, count: int, horizon: int) -> np.ndarray:
    """Return the state probabilities in this slot and the next ``horizon`` - 1, shape (horizon, states)."""
    weight = np.zeros((horizon, len(chain.count)))
    weight[0, chain.index(count)] = 1.0
    for h in range(1, horizon):
        weight[h] = weight[h - 1] @ chain.transition
    return weight


# ---
# Price of the budget, learned while the budget is spent: dual prices for an average budget (M10).
#
# "Constrained online two-stage stochastic optimization" (2024) keeps to a long-run average with a
# dual price that moves along the gradient of the constraint after every arrival. Details that are
# not public are ours: the first stage is the price, set before the arrival is observed; the second
# stage is the best choice at that price once loss and cost of every choice are known.
#
# Spending plans: a budget that varies over time, followed by a dual price (M10).
#
# "No-regret learning under adversarial resource constraints: a spending plan is all you need"
# (2025) replaces the average budget of dual methods by a plan of the spending in each round, so
# that the regret against any strategy that follows the plan is small even for adversarial prices.
# The update is the gradient step of `DualPrice.paid` against the plan's round (ours where the
# paper's details are not public).


@dataclass(frozen=True, slots=True, kw_only=True)
class DualPrice:
    """Price of a unit of budget in units of loss, and its change per unit overspent."""

    price: float
    step: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.price < np.inf or not 0.0 < self.step < np.inf:
            raise SettingsError(
                f"a dual price of {self.price} with steps of {self.step}",
                expected="a price of at least 0 and a positive step",
            )

    def choose(self, loss: np.ndarray, cost: np.ndarray) -> int:
        """Return the argmin of loss + price x cost over the choices, shapes (K,); the cheapest of equal choices."""
        total = loss + self.price * cost
        best = np.flatnonzero(total <= total.min())
        return int(best[np.argmin(cost[best])])

    def paid(self, cost: float, budget: float) -> DualPrice:
        """Return the price after a round: price + step (cost - budget), at least 0."""
        return replace(self, price=max(0.0, self.price + self.step * (cost - budget)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Results of a sequence of choices: per round the choice, its loss and cost, and the price before it, shapes (T,)."""

    choice: np.ndarray
    loss: np.ndarray
    cost: np.ndarray
    price: np.ndarray


def spend_along(loss: np.ndarray, cost: np.ndarray, budget: np.ndarray, dual: DualPrice) -> Spent:
    """Choose round by round without information from later rounds.

    Losses and costs have shape (T, K), budgets (T,). A constant budget is an average budget, a
    varying budget is a spending plan. Raises `SettingsError` if shapes differ.
    """
    if loss.shape != cost.shape or loss.ndim != 2 or budget.shape != loss.shape[:1]:
        raise SettingsError(
            f"losses {loss.shape}, costs {cost.shape}, budgets {budget.shape}",
            expected="(T, K), (T, K) and (T,)",
        )
    choice, price = np.empty(len(loss), dtype=np.int64), np.empty(len(loss))
    for t in range(len(loss)):
        price[t], choice[t] = dual.price, dual.choose(loss[t], cost[t])
        dual = dual.paid(float(cost[t, choice[t]]), float(budget[t]))
    rounds = np.arange(len(loss))
    return Spent(choice=choice, loss=loss[rounds, choice], cost=cost[rounds, choice], price=price)


def overspend_bound(loss: np.ndarray, cost: np.ndarray, budget: np.ndarray, dual: DualPrice) -> float:
    """Return a bound of the spending of `spend_along` beyond the sum of the budgets, for any sequence (ours).

    Above the steepest slope P = max over rounds and choices of (extra loss of the cheapest choice)
    / (its saving), the cheapest choice is taken. So the price never exceeds max(P, start) + step
    (max cost - min budget)+ + step sum (cheapest - budget)+, and the sum of the price changes, step
    sum (cost - budget), is at most its end minus its start:

        sum (cost - budget) <= (max(P, start) - start) / step + (max cost - min budget)+ + sum (cheapest - budget)+.
    """
    cheapest = np.argmin(cost, axis=1)
    rounds = np.arange(len(cost))
    least, worst = cost[rounds, cheapest], loss[rounds, cheapest]
    saving = cost - least[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(saving > 0, (worst[:, None] - loss) / saving, 0.0)
    dearest = max(float(slope.max(initial=0.0)), dual.price)
    jump = max(0.0, float(cost.max() - budget.min()))
    return (dearest - dual.price) / dual.step + jump + float(np.maximum(least - budget, 0.0).sum())


#: Bisections of the multiplier's interval in hindsight.
HALVINGS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingPlan:
    """Spending of each round, shape (T,), in the unit of the costs."""

    budget: np.ndarray

    def __post_init__(self) -> None:
        if (
            self.budget.ndim != 1
            or not len(self.budget)
            or not (self.budget >= 0).all()
            or not self.budget.sum() > 0
        ):
            raise SettingsError(
                f"a plan of shape {self.budget.shape} and sum {float(np.sum(self.budget)):g}",
                expected="at least one round, none below 0, and something to spend",
            )

    @property
    def average(self) -> SpendingPlan:
        """The same total spread evenly: the plan of an average budget."""
        return SpendingPlan(budget=np.full(len(self.budget), self.budget.mean()))


def daily_plan(
    rounds: int,
    *,
    average: float,
    busy: float,
    slot_hours: float,
    busy_hours: tuple[float, float] = (8.0, 20.0),
) -> SpendingPlan:
    """Return a daily plan: ``busy`` times the average in the busy hours, the remainder in the other hours.

    Round 0 begins at midnight. Raises `SettingsError` if the busy hours would exceed the total.
    """
    hour = np.arange(rounds) * slot_hours % 24.0
    inside = (hour >= busy_hours[0]) & (hour < busy_hours[1])
    share = (busy_hours[1] - busy_hours[0]) / 24.0
    if not 0.0 <= busy * share <= 1.0:
        raise SettingsError(
            f"{busy} times the average in {share:.0%} of the day", expected="no more than all of it"
        )
    return SpendingPlan(budget=average * np.where(inside, busy, (1.0 - busy * share) / (1.0 - share)))


def follow(loss: np.ndarray, cost: np.ndarray, plan: SpendingPlan, dual: DualPrice) -> Spent:
    """Choose round by round along the plan, shapes (T, K)."""
    return spend_along(loss, cost, plan.budget, dual)


def regret_bound(spent: Spent, plan: SpendingPlan, dual: DualPrice) -> float:
    """Return a bound of the loss beyond that of any choices within the plan in every round, for any sequence.

    start^2 / (2 step) + step / 2 sum (cost - plan)^2: at its price every round's choice is no worse
    than the comparator's, and the contribution of the prices is bounded by gradient descent against
    price 0.
    """
    return dual.price**2 / (2.0 * dual.step) + dual.step / 2.0 * float(
        ((spent.cost - plan.budget) ** 2).sum()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """Best fixed multiplier with its total loss and cost.

    It is the least multiplier at which all rounds together cost no more than the plan.
    """

    price: float
    loss: float
    cost: float


def best_fixed(loss: np.ndarray, cost: np.ndarray, total: float) -> Hindsight:
    """Return the best fixed multiplier in hindsight for ``total`` spending over all rounds, by bisection.

    It may shift money between rounds, unlike a plan. If even the cheapest choices cost more, these
    are taken.
    """

    def at(price: float) -> tuple[float, float]:
        pick = np.argmin(loss + price * cost + 1e-12 * cost, axis=1)
        rounds = np.arange(len(loss))
        return float(loss[rounds, pick].sum()), float(cost[rounds, pick].sum())

    if at(0.0)[1] <= total:
        return Hindsight(price=0.0, loss=at(0.0)[0], cost=at(0.0)[1])
    low, high = 0.0, 1.0
    while at(high)[1] > total and high < 1e12:
        low, high = high, 4.0 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if at(middle)[1] > total else (low, middle)
    return Hindsight(price=high, loss=at(high)[0], cost=at(high)[1])


# ---
# Stream of jobs on a real market: every job retains its width, on spot if available, else on demand
# (M8.6) (ours).
#
# Order within a slot (M2.4): price and count are observed; lost spot GPUs are taken from the newest
# jobs first; jobs with on-demand GPUs move to free spot if that pays; jobs arrive and get their
# width; all pay and work. A job whose GPUs change pauses for the restart time and pays meanwhile.
# Spot freed inside a slot is available from the next slot.
#
# Renters on a market: at list price, at the effective price, by a dual price, along a spending plan
# (M8.6, M10).


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Possible widths, whole GPUs ascending from 1, and hours lost by a job whose GPUs change."""

    widths: np.ndarray
    restart_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Information at the arrival of a job: expected loss and cost for each width, shapes (K,).

    ``ticket`` is a uniform random number of the job, for renters that mix widths.
    """

    slot: int
    kind: int
    ticket: float
    loss: np.ndarray
    cost: np.ndarray


class Renter(Protocol):
    """Rule that chooses the width of every arriving job, without information from later slots.

    At the end of each slot it receives the committed cost.
    """

    uses_spot: bool = True

    def slot_begins(self, slot: int) -> None:
        """Start a slot; its price and count are known."""
        return

    @abstractmethod
    def width(self, arrival: Arrival) -> int:
        """Return the index of the width for the arriving job."""

    def slot_ends(self, slot: int, committed: float, paid: float) -> None:
        """End a slot: ``committed`` is the expected cost of the admitted jobs, ``paid`` the payment for all running jobs."""
        return


@dataclass(slots=True, kw_only=True)
class _Running:
    """Running job: index in the stream, width, spot part, work left on one GPU and remaining pause, in hours."""

    job: int
    kind: int
    width: int
    spot: int
    left: float
    pause: float
    begins: float
    pace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """Results of a stream on a market: per job response hours and USD, shape (n,); per slot USD; total GPU-hours.

    ``restarts`` counts the losses of spot that stopped a job.
    """

    response_hours: np.ndarray
    cost_usd: np.ndarray
    slot_usd: np.ndarray
    gpu_hours: float
    spot_gpu_hours: float
    restarts: int


@dataclass(slots=True, kw_only=True)
class _Books:
    """Running totals of a simulation."""

    response: np.ndarray
    cost: np.ndarray
    slot_usd: list[float] = field(default_factory=list)
    gpu_hours: float = 0.0
    spot_hours: float = 0.0
    restarts: int = 0


def rent_on_market(
    types: Sequence[JobType],
    stream: Stream,
    window: MarketWindow,
    renter: Renter,
    *,
    outlook: Callable[[int], PriceOutlook],
    rules: Rules,
) -> Rented:
    """Simulate a stream (hours from slot 0 of ``window``) to the end of its last job; no spot after the window.

    ``outlook`` of a slot must use only information of that slot. Deterministic.
    """
    ticket = np.random.default_rng(len(stream.time)).random(len(stream.time))
    paces = np.array([[shared_pace(kind.speedup, float(k)) for k in rules.widths] for kind in types])
    books = _Books(response=np.zeros(len(stream.time)), cost=np.zeros(len(stream.time)))
    running: list[_Running] = []
    slot, following, step = 0, 0, window.slot_hours
    while following < len(stream.time) or running:
        price, free = _spot(window, slot, renter.uses_spot)
        free = _take_lost(running, free, rules, books)
        free = _move(running, types, free, (price, window.on_demand_usd), rules)
        renter.slot_begins(slot)
        committed = 0.0
        while following < len(stream.time) and stream.time[following] < (slot + 1) * step:
            kind = int(stream.kind[following])
            held = sum(one.width for one in running)
            offer = _offer(types[kind], paces[kind], outlook(slot), held, rules, step, renter.uses_spot)
            made = Arrival(
                slot=slot, kind=kind, ticket=float(ticket[following]), loss=offer[0], cost=offer[1]
            )
            i = renter.width(made)
            committed += float(made.cost[i])
            width = int(rules.widths[i])
            spot = min(width, free)
            free -= spot
            running.append(
                _Running(
                    job=following, kind=kind, width=width, spot=spot, left=float(stream.size[following]), pause=0.0,
                    begins=float(stream.time[following]), pace=float(paces[kind, i]),
                )
            )  # fmt: skip
            following += 1
        running = _work(
            running, (slot * step, (slot + 1) * step), (price, window.on_demand_usd), stream, books
        )
        renter.slot_ends(slot, committed, books.slot_usd[-1])
        slot += 1
    return Rented(
        response_hours=books.response,
        cost_usd=books.cost,
        slot_usd=np.array(books.slot_usd),
        gpu_hours=books.gpu_hours,
        spot_gpu_hours=books.spot_hours,
        restarts=books.restarts,
    )


def _spot(window: MarketWindow, slot: int, uses_spot: bool) -> tuple[float, int]:
    """Return price and count of usable spot in a slot: none from the on-demand price up (M3.2), none after the record."""
    if not uses_spot or slot >= len(window) or not spot_is_cheaper(window.price[slot], window.on_demand_usd):
        return window.on_demand_usd, 0
    return float(window.price[slot]), int(window.available[slot])


def _take_lost(running: Sequence[_Running], available: int, rules: Rules, books: _Books) -> int:
    """Take lost spot from the newest jobs, which continue on demand after a restart; return the free spot."""
    over = sum(one.spot for one in running) - available
    for one in reversed(running):
        if over <= 0:
            break
        taken = min(one.spot, over)
        if taken:
            one.spot -= taken
            over -= taken
            one.pause += rules.restart_hours
            books.restarts += 1
    return available - sum(one.spot for one in running)


def _move(
    running: Sequence[_Running], types: Sequence[JobType], free: int, price: tuple[float, float], rules: Rules
) -> int:
    """Move jobs to free spot, oldest first, if the saving over a mean job's length pays for the restart.

    Returns the spot that remains free.
    """
    spot_usd, on_demand_usd = price
    for one in running:
        moved = min(one.width - one.spot, free)
        if moved <= 0 or one.pause > 0:
            continue
        hours = types[one.kind].mean_hours / one.pace
        after = (one.spot + moved) * spot_usd + (one.width - one.spot - moved) * on_demand_usd
        if hours * moved * (on_demand_usd - spot_usd) > rules.restart_hours * after:
            one.spot += moved
            one.pause += rules.restart_hours
            free -= moved
    return free


def _offer(
    kind: JobType,
    pace: np.ndarray,
    outlook: PriceOutlook,
    held: int,
    rules: Rules,
    step: float,
    uses_spot: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return expected loss and cost of a job of mean size at each width, shapes (K,).

    ``held`` GPUs of older jobs have priority for spot.
    """
    hours = kind.mean_hours / pace
    if not uses_spot:
        return kind.delay.expected_loss(hours), hours * rules.widths * outlook.on_demand_usd
    left = np.clip(outlook.count[None] - held, 0.0, rules.widths[:, None, None])
    spot = (left * outlook.weight[None]).sum(axis=2)
    slots = np.clip(np.ceil(hours / step).astype(int), 1, spot.shape[1])
    mean_spot = np.cumsum(spot, axis=1)[np.arange(len(hours)), slots - 1] / slots
    mean_price = np.cumsum(outlook.price)[slots - 1] / slots
    hours = hours * (1.0 + mean_spot / rules.widths * outlook.loss_rate * rules.restart_hours)
    paid = mean_spot * mean_price + (rules.widths - mean_spot) * outlook.on_demand_usd
    return kind.delay.expected_loss(hours), hours * paid


def _work(
    running: Sequence[_Running],
    span: tuple[float, float],
    price: tuple[float, float],
    stream: Stream,
    books: _Books,
) -> list[_Running]:
    """Pay and work for all jobs until the end of the slot or of the job; return the unfinished jobs."""
    begin, end = span
    going: list[_Running] = []
    paid = 0.0
    for one in running:
        start = max(begin, one.begins)
        stands = min(one.pause, end - start)
        finish = start + stands + one.left / one.pace
        active = min(end, finish) - start
        usd = active * (one.spot * price[0] + (one.width - one.spot) * price[1])
        books.cost[one.job] += usd
        books.gpu_hours += active * one.width
        books.spot_hours += active * one.spot
        paid += usd
        if finish <= end:
            books.response[one.job] = finish - stream.time[one.job]
            continue
        one.left -= (active - stands) * one.pace
        one.pause -= stands
        going.append(one)
    books.slot_usd.append(paid)
    return going


class FixedRenter(Renter):
    """Renter with the widths of a rental, whole GPUs, mixed as in the rental; on demand only unless ``uses_spot``."""

    def __init__(self, rental: Rental, *, uses_spot: bool) -> None:
        self.rental = rental
        self.uses_spot = uses_spot

    def width(self, arrival: Arrival) -> int:
        """Return the width by the shares of the job's type and its ticket."""
        shares = self.rental.types[arrival.kind].shares
        last = arrival.ticket >= shares[0].probability
        return round(shares[-1 if last else 0].width) - 1


class EffectiveRenter(FixedRenter):
    """Renter with the rental of the budget at the effective price of a GPU.

    The rental is recomputed every ``every`` slots from the current outlook.
    """

    def __init__(
        self,
        types: Sequence[JobType],
        budget_usd: Callable[[int], float],
        outlook: Callable[[int], PriceOutlook],
        *,
        restart_hours: float,
        every: int,
    ) -> None:
        self._types, self._budget, self._outlook = types, budget_usd, outlook
        self._restart_hours, self._every = restart_hours, every
        super().__init__(self._planned(0), uses_spot=True)

    def slot_begins(self, slot: int) -> None:
        """Recompute the rental if it is due."""
        if slot % self._every == 0:
            self.rental = self._planned(slot)

    def _planned(self, slot: int) -> Rental:
        budget = self._budget(slot)
        price = affordable(self._outlook(slot), budget, overhead_hours=self._restart_hours)
        slowed = [replace(kind, mean_hours=kind.mean_hours * (1.0 + price.lost)) for kind in self._types]
        return covered_rental(slowed, budget, price.paid_usd)


class MultiplierRenter(Renter):
    """Renter that takes the best width at a fixed price of a USD, given the spot expected for the job."""

    def __init__(self, price: float) -> None:
        self.dual = DualPrice(price=price, step=1.0)

    def width(self, arrival: Arrival) -> int:
        """Return the argmin of loss + price x cost."""
        return self.dual.choose(arrival.loss, arrival.cost)


class PlanRenter(MultiplierRenter):
    """Renter along a spending plan: price(t) = factor x base(t), with a factor that follows the commitments (ours).

    ``base`` is the multiplier of the rental that the plan's slot would pay for at the effective
    price of the time: a gradient step alone cannot follow a plan that changes within a day. After
    each slot the factor moves by step x (expected cost of the slot's jobs - the plan's slot), and
    `overspend_bound` holds for it with P / min base in place of P.
    """

    def __init__(self, factor: DualPrice, plan: SpendingPlan, base: Callable[[int], float]) -> None:
        super().__init__(0.0)
        self._factor, self._plan, self._base = factor, plan, base

    def slot_begins(self, slot: int) -> None:
        """Set the price of the slot."""
        self.dual = DualPrice(price=self._factor.price * self._base(slot), step=self._factor.step)

    def slot_ends(self, slot: int, committed: float, paid: float) -> None:
        """Apply the gradient step on the committed cost: payments come too late for control."""
        budget = float(self._plan.budget[min(slot, len(self._plan.budget) - 1)])
        self._factor = self._factor.paid(committed, budget)


def covered_rental(types: Sequence[JobType], budget_usd: float, price_usd: float) -> Rental:
    """Return the whole widths for a budget.

    If the budget does not cover the load, widths are 1 (or the cheapest), because jobs are not
    rejected.
    """
    prices = [price_usd] * len(types)
    try:
        return rent(types, budget_usd, whole=True, prices=prices)
    except SettingsError:
        least = sum(kind.load for kind in types) * price_usd
        return rent(types, least * (1.0 + 1e-6), whole=True, prices=prices)
