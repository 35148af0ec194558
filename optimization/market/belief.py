"""One belief of a market: a joint law of its counts and prices over the coming slots (M6.9) (ours).

The issued forecast says how likely a value is in each slot, chains that forget say how long a value stays and how it moves. Here
they are one: in every slot of the forecast's horizon the transitions of the chains are multiplied by a factor for each state they
lead to, such that from the present state the forecast's own probabilities come out. Whatever else is asked of the future, the
probabilities that are printed, the transitions that the induction goes by, the paths that cost and lateness are sampled from, comes
from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from forecasting.quantiles import LEVELS, count_law, share_below
from optimization.kernels.tilting import tilt
from optimization.market.chains import (
    CountChain,
    Forgetting,
    PriceChain,
    count_chain,
    even_levels,
    price_chain,
)
from optimization.market.window import Past, PointForecast, Record
from warehouse.errors import SettingsError

#: All counts are states up to so many of them; above, they are told apart ever more coarsely.
FINE_COUNTS = 33
COARSE_COUNTS = 16
#: Rounds of fitting the factors of a slot, and the error of a probability at which they end early.
ROUNDS = 30
CLOSE = 1e-9
#: Beliefs that one market keeps.
MOST_KEPT = 128


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Belief:
    """What is believed in one slot of the slots after it.

    ``counts`` and ``prices`` are the chains beyond the forecast's horizon of h slots (0: there was no forecast), prices in USD per
    instance-hour; ``count_now`` (S,) and ``price_now`` (K,) the shares of their states in the present slot, which in a gap is not
    known; ``count_steps`` (h, S, S) and ``price_steps`` (h, K, K) the transitions into each slot of the horizon. ``count_law``
    (h, counts) is the forecast's law on 0..capacity, ``price_quantiles`` (h, 19) its prices at `LEVELS`. ``slot`` counts from the
    first slot of the job or market it was made for.
    """

    slot: int
    slot_hours: float
    on_demand_usd: float
    counts: CountChain
    prices: PriceChain
    count_now: np.ndarray
    price_now: np.ndarray
    count_steps: np.ndarray
    price_steps: np.ndarray
    count_law: np.ndarray
    price_quantiles: np.ndarray

    @property
    def horizon(self) -> int:
        """Slots ahead whose marginals are the forecast's."""
        return len(self.count_steps)

    def count_transitions(self, slots: int) -> np.ndarray:
        """Transitions of the states of ``counts`` into each of the next ``slots`` slots, shape (slots, S, S)."""
        return _then(self.count_steps, self.counts.transition, slots)

    def price_transitions(self, slots: int) -> np.ndarray:
        """Transitions of the levels of ``prices`` into each of the next ``slots`` slots, shape (slots, K, K)."""
        return _then(self.price_steps, self.prices.transition, slots)

    def count_marginals(self, slots: int) -> np.ndarray:
        """Shares of the states of ``counts`` in each of the next ``slots`` slots, shape (slots, S)."""
        return _marginals(self.count_now, self.count_transitions(slots))

    def price_marginals(self, slots: int) -> np.ndarray:
        """Shares of the levels of ``prices`` in each of the next ``slots`` slots, shape (slots, K)."""
        return _marginals(self.price_now, self.price_transitions(slots))

    def chance_of_spot(self, n: int, ahead: int = 1) -> float:
        """P(at least ``n`` spot instances are there ``ahead`` slots from now)."""
        if n <= 0:
            return 1.0
        if ahead <= self.horizon:
            return float(self.count_law[ahead - 1, n:].sum())
        return float(self.count_marginals(ahead)[-1, self.counts.count >= n].sum())

    def for_size(self, n_max: int, slots: int) -> tuple[CountChain, np.ndarray]:
        """The counts as a job of at most ``n_max`` instances tells them apart, and their transitions (slots, L, L).

        States that it counts as one are weighed by how likely they are in that slot, so that the marginals stay those of the
        belief.
        """
        use = self.counts.count[self.counts.count <= n_max]
        levels = use[even_levels(len(use) - 1)]
        states, onward = len(self.counts.count), self.count_transitions(slots)
        if len(levels) == states:
            return self.counts, onward
        lump = np.zeros((states, len(levels)))
        lump[np.arange(states), np.searchsorted(levels, self.counts.count, side="right") - 1] = 1.0
        shares = np.concatenate([self.count_now[None], self.count_marginals(slots)[:-1]])
        # A state that cannot be reached weighs next to nothing, but a lump of such states must still have rows.
        weight = lump * (shares[:, :, None] + 1e-12)
        weight /= weight.sum(axis=1, keepdims=True)
        lumped = weight.transpose(0, 2, 1) @ onward @ lump
        far = self.counts.transition.sum(axis=0)[:, None] * lump
        chain = (far / far.sum(axis=0)).T @ self.counts.transition @ lump
        return CountChain(count=levels, transition=chain), lumped

    def sample(self, slots: int, *, paths: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Prices (USD per instance-hour) and counts of the next ``slots`` slots on sampled futures, both (paths, slots).

        Count and price move independently. Where a state stands for several values a path takes the same rank among them in
        every slot, so that within the horizon each slot's values follow the forecast's law and are not restless. Raises
        `SettingsError` for no path.
        """
        if paths < 1:
            raise SettingsError(f"{paths} sampled futures", expected="at least one")
        counts = np.empty((paths, slots), dtype=np.int64)
        prices = np.empty((paths, slots))
        states = _walks(self.count_now, self.count_transitions(slots), paths, rng)
        levels = _walks(self.price_now, self.price_transitions(slots), paths, rng)
        ranks = rng.random((2, paths))
        below = np.concatenate([np.zeros((self.horizon, 1)), np.cumsum(self.count_law, axis=1)], axis=1)
        shares = price_law(self.price_quantiles, self.prices)
        floors = np.cumsum(shares, axis=1) - shares
        for k in range(slots):
            if k >= self.horizon:
                counts[:, k] = self.counts.count[states[:, k]]
                prices[:, k] = self.prices.level_usd[levels[:, k]]
                continue
            counts[:, k] = self._count_at(below[k], states[:, k], ranks[0])
            at = floors[k, levels[:, k]] + ranks[1] * shares[k, levels[:, k]]
            prices[:, k] = np.interp(at, LEVELS, self.price_quantiles[k])
        return prices, counts

    def _count_at(self, below: np.ndarray, states: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """The counts at the given ranks within their states, by the law with P(count < n) = ``below[n]``."""
        first = self.counts.count
        last = np.append(first[1:], len(below) - 1) - 1
        low, high = below[first[states]], below[last[states] + 1]
        found = np.searchsorted(below, low + ranks * (high - low), side="right") - 1
        return np.asarray(np.clip(found, first[states], last[states]))


def _then(steps: np.ndarray, onward: np.ndarray, slots: int) -> np.ndarray:
    """The first ``slots`` of ``steps`` (h, S, S), followed by ``onward`` (S, S)."""
    later = np.broadcast_to(onward, (max(0, slots - len(steps)), *onward.shape))
    return np.concatenate([steps[:slots], later])


def _marginals(now: np.ndarray, transitions: np.ndarray) -> np.ndarray:
    found = np.empty(transitions.shape[:2])
    for k, step in enumerate(transitions):
        now = found[k] = now @ step
    return found


def _walks(now: np.ndarray, transitions: np.ndarray, paths: int, rng: np.random.Generator) -> np.ndarray:
    """States of a chain on many futures, shape (paths, slots)."""
    upto = np.cumsum(transitions, axis=2)
    found = np.empty((paths, len(transitions)), dtype=np.int64)
    state = np.searchsorted(np.cumsum(now)[:-1], rng.random(paths), side="right")
    for k, step in enumerate(upto):
        state = (step[state, :-1] <= rng.random(paths)[:, None]).sum(axis=1)
        found[:, k] = state
    return found


def price_law(quantiles: np.ndarray, prices: PriceChain) -> np.ndarray:
    """The share of each level in laws of the price given by quantiles (h, 19), shape (h, K), as `PriceChain.index` counts."""
    edges = prices.edges()
    upto = share_below(quantiles, edges)
    rim = np.ones((len(quantiles), 1))
    return np.asarray(np.diff(np.concatenate([0.0 * rim, upto, rim], axis=1), axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The slot a belief is made in, and what is seen in it, NaN in a gap; prices in USD per instance-hour."""

    slot: int
    slot_hours: float
    price: float
    available: float
    on_demand_usd: float


def make_belief(
    past: Past,
    issued: PointForecast | None,
    *,
    now: Now,
    forgetting: Forgetting,
) -> Belief:
    """The belief in the slot ``now``, from the chains of ``past`` and the forecast in force, shifted to that slot.

    Without a forecast, or with one that says no more than a value a slot (no quantiles), the chains alone are believed. Where the
    present slot is a gap its state is the last one seen, moved on by the chains.
    """
    slot_hours, on_demand_usd = now.slot_hours, now.on_demand_usd
    told = None if issued is None else issued.quantiles
    price, count = _newest(past.price, now.price, past.age), _newest(past.available, now.available, past.age)
    known = np.append(past.available, count.value)
    capacity = int(np.nanmax(known, initial=1.0)) if told is None else told.capacity
    dear = told is not None and bool((told.price >= on_demand_usd).any())
    counts = count_chain(past, count_states(capacity), slot_hours=slot_hours, forgetting=forgetting)
    usd = on_demand_usd if np.isnan(price.value) else price.value
    prices = price_chain(past, usd, on_demand_usd, slot_hours=slot_hours, forgetting=forgetting, dear=dear)
    count_now = _present(counts.transition, counts.index, count)
    price_now = _present(prices.transition, prices.index, price)
    quantiles = np.empty((0, len(LEVELS))) if told is None else told.price
    law = np.zeros((0, capacity + 1)) if told is None else count_law(told.count, capacity, told.tail)
    return Belief(
        slot=now.slot,
        slot_hours=slot_hours,
        on_demand_usd=on_demand_usd,
        counts=counts,
        prices=prices,
        count_now=count_now,
        price_now=price_now,
        count_steps=tilt(counts.transition, count_now, _lumped(law, counts.count), ROUNDS, CLOSE),
        price_steps=tilt(prices.transition, price_now, price_law(quantiles, prices), ROUNDS, CLOSE),
        count_law=law,
        price_quantiles=quantiles,
    )


def count_states(capacity: int) -> np.ndarray:
    """The counts that a belief tells apart, ascending from 0: all of them up to `FINE_COUNTS`, above that some."""
    if capacity < FINE_COUNTS:
        return np.arange(capacity + 1)
    above = np.round(np.geomspace(FINE_COUNTS, capacity, COARSE_COUNTS)).astype(int)
    return np.concatenate([np.arange(FINE_COUNTS), np.unique(above)])


def _lumped(law: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Laws (h, capacity + 1) by state, shape (h, S)."""
    return np.add.reduceat(law, counts, axis=1) if len(law) else np.zeros((0, len(counts)))


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest known value, NaN if there is none, and how many slots ago that was."""

    value: float
    age: int


def _newest(values: np.ndarray, now: float, age: int) -> _Newest:
    """Of ``now`` and ``values``, whose last is ``age`` slots old."""
    known = np.flatnonzero(~np.isnan(values))
    if not np.isnan(now) or not len(known):
        return _Newest(float(now), 0)
    return _Newest(float(values[known[-1]]), age + len(values) - 1 - int(known[-1]))


def _present(transition: np.ndarray, index: Callable[[float], int], newest: _Newest) -> np.ndarray:
    """The shares (S,) of the states in the present slot: nothing known says nothing, an old value has moved on since."""
    states = len(transition)
    if np.isnan(newest.value):
        return np.full(states, 1.0 / states)
    then = np.zeros(states)
    then[index(newest.value)] = 1.0
    return np.asarray(then @ np.linalg.matrix_power(transition, newest.age))


@dataclass(slots=True, kw_only=True, eq=False)
class Believed:
    """The belief of every slot of a job's market, each made once when it is asked for, of what was known in its slot.

    ``price`` and ``available`` (slots,) are the job's slots, NaN in gaps; ``forecasts`` those in force in each. ``record`` is
    what came before (None: nothing). ``held``, in a look ahead, is the belief that all later slots go by: nothing that happens
    on the way teaches anything, so its transitions hold from whatever state is reached.
    """

    price: np.ndarray
    available: np.ndarray
    forecasts: Sequence[PointForecast | None]
    slot_hours: float
    on_demand_usd: float
    record: Record | None = None
    held: Belief | None = None
    _made: dict[tuple[int, Forgetting], Belief] = field(default_factory=dict)

    def holds(self, slot: int) -> bool:
        """Whether ``slot`` is looked ahead to."""
        return self.held is not None and slot > self.held.slot

    def at(self, slot: int, forgetting: Forgetting) -> Belief:
        """The belief in ``slot``."""
        if self.held is not None and slot > self.held.slot:
            return self.held
        known = self._made.get((slot, forgetting))
        if known is None:
            known = self._made[slot, forgetting] = make_belief(
                self._past(slot), self.forecasts[slot], now=self._now(slot), forgetting=forgetting
            )
            if len(self._made) > MOST_KEPT:
                del self._made[next(iter(self._made))]
        return known

    def _now(self, slot: int) -> Now:
        return Now(
            slot=slot,
            slot_hours=self.slot_hours,
            price=float(self.price[slot]),
            available=float(self.available[slot]),
            on_demand_usd=self.on_demand_usd,
        )

    def _past(self, slot: int) -> Past:
        if self.record is not None:
            return self.record.until(slot)
        seen = self.available[: slot + 1]
        return Past(price=self.price[: slot + 1], available=seen, peers=np.empty((0, len(seen))))
