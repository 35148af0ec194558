"""A market's belief: its forecasts as marginals, forgetting Markov chains as dynamics (M4.6, M6.9) (ours)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from slackwater.forecasting.quantiles import LEVELS, MOST_COUNT, count_distribution, share_below
from slackwater.optimization.belief.archetypes import Archetypes
from slackwater.optimization.belief.evidence import COUNTS, LAUNCHES, PRICES, PROBES, SCORES, Evidence
from slackwater.optimization.belief.launches import Launches
from slackwater.optimization.belief.mixture import Mixture
from slackwater.optimization.belief.ratings import SlotRatings
from slackwater.optimization.kernels.belief import walk_slots
from slackwater.optimization.kernels.induction import tilt
from slackwater.optimization.kernels.rules import spot_is_cheaper
from slackwater.optimization.market.window import Past, PointForecast, Record
from slackwater.warehouse.errors import SettingsError

#: Largest number of count states of a chain and of sizes of a table: 20 captured 0.002 more of E1's
#: headroom at seven times the work.
MOST_STATES = 10
LEVEL_WIDTH = 0.03  # Price levels closer than this share of the on-demand price are merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """Parameters of the estimation of chains: half-lives in hours, shrinkage strengths in transitions.

    ``own_hours`` and ``peer_hours`` are the half-lives of the market's and its peers' count
    transitions, ``price_hours`` that of price transitions. ``toward_peers`` and ``toward_staying``
    are the strengths of the two shrinkages, ``levels`` the largest number of price levels below
    on-demand, ``price_days`` the length of the price history used.
    """

    own_hours: float = 24.0
    peer_hours: float = 24.0
    price_hours: float = 48.0
    toward_peers: float = 8.0
    toward_staying: float = 4.0
    levels: int = 4
    price_days: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceChain:
    """Markov chain of the price: levels in USD per instance-hour, ascending, shape (K,), and transitions per slot, shape (K, K).

    ``dear``: the last level is the on-demand price and represents every price at or above it, where
    spot instances are of no use (M3.2).
    """

    level_usd: np.ndarray
    transition: np.ndarray
    dear: bool

    def per_slot(self, slot_hours: float) -> PriceChain:
        """Return the chain with levels in USD per instance and slot."""
        return replace(self, level_usd=self.level_usd * slot_hours)

    def index(self, price: float) -> int:
        """Return the level nearest to ``price``; with ``dear``, the last level is for prices at or above on-demand only."""
        on_demand = self.level_usd[-1]
        if self.dear and not spot_is_cheaper(price, on_demand):
            return len(self.level_usd) - 1
        below = self.level_usd[:-1] if self.dear and len(self.level_usd) > 1 else self.level_usd
        return int(np.argmin(np.abs(below - price)))

    def edges(self) -> np.ndarray:
        """Return the lowest price of each level but the first under `index`, shape (K - 1,)."""
        is_expensive = self.dear and len(self.level_usd) > 1
        below = self.level_usd[:-1] if is_expensive else self.level_usd
        middle = (below[1:] + below[:-1]) / 2.0
        return np.append(middle, self.level_usd[-1]) if is_expensive else middle

    def indices(self, price: np.ndarray) -> np.ndarray:
        """Return `index` of each price of an array."""
        below = self.level_usd[:-1] if self.dear and len(self.level_usd) > 1 else self.level_usd
        if len(below) == 1 and not self.dear:
            return np.zeros(price.shape, dtype=np.int64)
        nearest = np.abs(below - price[..., None]).argmin(axis=-1)
        is_expensive = (price >= self.level_usd[-1]) & self.dear
        return np.where(is_expensive, len(self.level_usd) - 1, nearest)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountChain:
    """Chain of counts (S,) from 0, with transitions (S, S) a slot; ``weight`` (S,) transitions a row, None: certain."""

    count: np.ndarray
    transition: np.ndarray
    weight: np.ndarray | None = None

    def index(self, available: float) -> int:
        """Return the state with the largest count not above ``available``."""
        return max(0, int(np.searchsorted(self.count, available, side="right")) - 1)

    def indices(self, available: np.ndarray) -> np.ndarray:
        """Return `index` of each count of an array."""
        return np.maximum(0, np.searchsorted(self.count, available, side="right") - 1)


def even_levels(largest: int) -> np.ndarray:
    """Return all of 0..most, or about `MOST_STATES` of them, evenly spaced."""
    if largest < MOST_STATES:
        return np.arange(largest + 1)
    return np.unique(np.round(np.linspace(0, largest, MOST_STATES)).astype(int))


def weighted_transitions(states: np.ndarray, size: int, half_life_slots: float) -> np.ndarray:
    """Return transition counts (size, size) of rows of states (m, k), -1 unknown; weights halve in ``half_life_slots``."""
    before, after = states[:, :-1], states[:, 1:]
    both_known = (before >= 0) & (after >= 0)
    age = np.arange(before.shape[1])[::-1] / half_life_slots
    weight = np.broadcast_to(0.5**age, before.shape)[both_known]
    cell = before[both_known] * size + after[both_known]
    return np.bincount(cell, weights=weight, minlength=size * size).reshape(size, size)


def _states(counts: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the state of each count of rows (m, k), -1 where unknown."""
    states = np.searchsorted(levels, counts, side="right") - 1
    return np.where(np.isnan(counts), -1, states)


def count_chain(past: Past, levels: np.ndarray, *, slot_hours: float, forgetting: Forgetting) -> CountChain:
    """Return the chain of the count in the present slot; ``levels`` are the counts of its states, ascending from 0.

    Row i is the market's transitions from i plus ``toward_peers`` times the pooled row. The pooled
    row is the transitions of the market and its peers plus ``toward_staying`` times a prior. The
    prior stays with the share of all pooled transitions that stayed, and otherwise moves to the
    states in proportion to the pooled visits.
    """
    size = len(levels)
    transitions = weighted_transitions(
        _states(past.available[None, :], levels), size, forgetting.own_hours / slot_hours
    )
    pooled = transitions + weighted_transitions(
        _states(past.peers, levels), size, forgetting.peer_hours / slot_hours
    )
    total = pooled.sum()
    stayed = (np.trace(pooled) + 4.0) / (total + 5.0)
    visits = pooled.sum(axis=0) + 1.0 / size
    prior = (1.0 - stayed) * (visits / visits.sum())[None, :] + stayed * np.eye(size)
    pull = forgetting.toward_staying
    shared = (pooled + pull * prior) / (pooled.sum(axis=1, keepdims=True) + pull)
    pull = forgetting.toward_peers
    weight = transitions.sum(axis=1) + pull
    row = (transitions + pull * shared) / weight[:, None]
    return CountChain(count=levels, transition=row / row.sum(axis=1, keepdims=True), weight=weight)


def price_chain(
    past: Past,
    price: float,
    on_demand_usd: float,
    *,
    slot_hours: float,
    forgetting: Forgetting,
    dear: bool = False,
) -> PriceChain:
    """Return the chain of the price on levels of ``price_days``, one the present price; ``dear``: one on-demand."""
    recent = past.price[-max(2, int(forgetting.price_days * 24.0 / slot_hours)) :]
    observed = np.minimum(recent[~np.isnan(recent)], on_demand_usd)
    below, dear = (
        observed[observed < on_demand_usd],
        bool(dear or (observed >= on_demand_usd).any() or price >= on_demand_usd),
    )
    levels = _price_levels(below, price, on_demand_usd, forgetting.levels)
    if dear:
        levels = np.append(levels, on_demand_usd)
    size = len(levels)
    middle = (levels[1:] + levels[:-1]) / 2.0
    state = np.searchsorted(middle, np.minimum(recent, on_demand_usd))
    if dear:
        state = np.where(recent >= on_demand_usd, size - 1, np.minimum(state, max(size - 2, 0)))
    state = np.where(np.isnan(recent), -1, state)
    counted = (
        weighted_transitions(state[None, :], size, forgetting.price_hours / slot_hours)
        + 2.0 * np.eye(size)
        + 0.02
    )
    return PriceChain(level_usd=levels, transition=counted / counted.sum(axis=1, keepdims=True), dear=dear)


def _price_levels(below: np.ndarray, price: float, on_demand_usd: float, limit: int) -> np.ndarray:
    """Return at most ``limit`` levels below on-demand: evenly spaced quantiles with close levels merged, and the present price."""
    cheap = spot_is_cheaper(price, on_demand_usd)
    if not len(below):
        return np.array([price]) if cheap else np.empty(0)
    spots = np.quantile(below, (np.arange(limit) + 0.5) / limit)
    kept = [float(spots[0])]
    for level in spots[1:].tolist():
        if level - kept[-1] > LEVEL_WIDTH * on_demand_usd:
            kept.append(level)
    levels = np.array(kept)
    if cheap:
        levels[np.argmin(np.abs(levels - price))] = price
    return np.unique(levels)


# ---
# Joint distribution of a market's counts and prices over the coming slots (M6.9) (ours).

#: Every count up to this number is a state; larger counts share states on an ever coarser grid of
#: this many points.
FINE_COUNTS = 33
COARSE_COUNTS = 16
#: Largest number of rounds for fitting the factors of a slot, and the probability error at which
#: fitting stops early.
ROUNDS = 30
CLOSE = 1e-9
LEAST_SEEN = 1e-9  # Approximate lower bound on the transition probabilities of a drawn chain
#: Share of the variance of counts that is common to the slots of a path, and its time constant
#: (`split_by_common_factor`; chosen, decision 35).
COMMON_SHARE, COMMON_HOURS = 0.5, 12.0
#: Rounds of rescaling that make the mean of the parts equal the distribution, and the smallest
#: probability in a round.
COMMON_ROUNDS, TINY = 12, 1e-15
MOST_KEPT = 128  # Largest number of beliefs stored per market
#: Slots with known states of a request below which its mixture, not the forecast, gives the chance of spot (ours).
FEW_SLOTS = 24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestBelief:
    """Belief about a request of ``size`` instances: its mixture, for the next ``slots`` slots (M13.3).

    ``counts`` (3,) stand for none, part and all of the request. ``is_counted``: the count of the
    present slot was read.
    """

    mixture: Mixture
    size: int
    counts: np.ndarray
    slots: int
    is_counted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MarketPaths:
    """Sampled paths of a market: ``price`` (USD per instance-hour) and ``count`` of the slots after the present, (paths, slots).

    ``present`` (paths,) are sampled counts of the present slot, None where it is read. ``within`` (paths,
    slots, m) are the counts at m evenly spaced times before each of the slots, None: no such readings.
    """

    price: np.ndarray
    count: np.ndarray
    present: np.ndarray | None = None
    within: np.ndarray | None = None

    def cut(self, slots: int) -> MarketPaths:
        """Return the first ``slots`` slots."""
        within = None if self.within is None else self.within[:, :slots]
        return replace(self, price=self.price[:, :slots], count=self.count[:, :slots], within=within)

    def left(self, taken: int) -> MarketPaths:
        """Return the paths of the instances that are left after others take ``taken`` in every later slot."""
        if not taken:
            return self
        within = None if self.within is None else np.maximum(self.within - taken, 0)
        return replace(self, count=np.maximum(self.count - taken, 0), within=within)


def join_paths(parts: Sequence[MarketPaths]) -> MarketPaths:
    """Return the paths of all parts, which have the same fields, one after the other."""
    present = [part.present for part in parts if part.present is not None]
    within = [part.within for part in parts if part.within is not None]
    return MarketPaths(
        price=np.concatenate([part.price for part in parts]),
        count=np.concatenate([part.count for part in parts]),
        present=np.concatenate(present) if present else None,
        within=np.concatenate(within) if within else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Belief:
    """Belief, in a given slot, about the slots after it.

    ``counts`` and ``prices`` are the chains for slots beyond the forecast's horizon of h slots (0: no
    forecast), with prices in USD per instance-hour. ``count_now`` (S,) and ``price_now`` (K,) are the state
    probabilities in the present slot, which is unknown in a gap; ``count_steps`` (h, S, S) and
    ``price_steps`` (h, K, K) the transitions into each slot of the horizon. ``count_distribution`` (h, counts) is the
    forecast's count distribution (`slackwater.forecasting.quantiles.count_distribution`), ``price_quantiles`` (h, 19)
    its price quantiles at `LEVELS`. ``slot`` counts from the first slot of the job or market.

    ``request`` is the belief about a request (M13), from which paths are sampled; None: they are
    walks on the count chain. Where availability is not observed, the count chain has its states too,
    and there is no count distribution.
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
    count_distribution: np.ndarray
    price_quantiles: np.ndarray
    request: RequestBelief | None = None

    @property
    def horizon(self) -> int:
        """Number of slots ahead whose counts have the forecast's distribution."""
        return len(self.count_distribution)

    def count_transitions(self, slots: int) -> np.ndarray:
        """Return the transitions of the states of ``counts`` into each of the next ``slots`` slots, shape (slots, S, S)."""
        return _extend(self.count_steps, self.counts.transition, slots)

    def price_transitions(self, slots: int) -> np.ndarray:
        """Return the transitions of the levels of ``prices`` into each of the next ``slots`` slots, shape (slots, K, K)."""
        return _extend(self.price_steps, self.prices.transition, slots)

    def count_marginals(self, slots: int) -> np.ndarray:
        """Return the probabilities of the states of ``counts`` in each of the next ``slots`` slots, shape (slots, S)."""
        return marginals(self.count_now, self.count_transitions(slots))

    @property
    def is_new(self) -> bool:
        """Whether so few counts were read that the forecast, which has only these, knows less than measured markets do."""
        request = self.request
        return request is not None and request.is_counted and request.mixture.known < FEW_SLOTS

    def chance_of_spot(self, n: int, ahead: int = 1) -> float:
        """Return the probability that at least ``n`` spot instances are available ``ahead`` slots from now (M13.3)."""
        if n <= 0:
            return 1.0
        if self.is_new and self.request is not None:
            mixture, counts = self.request.mixture, self.request.counts
            return float(marginals(mixture.present, mixture.steps(ahead))[-1, counts >= n].sum())
        if ahead <= self.horizon:
            return float(self.count_distribution[ahead - 1, n:].sum())
        return float(self.count_marginals(ahead)[-1, self.counts.count >= n].sum())

    def for_size(self, n_max: int, slots: int, taken: int = 0) -> tuple[CountChain, np.ndarray]:
        """Return the count chain reduced for a job of at most ``n_max`` instances, and its transitions, shape (slots, L, L).

        States merged into a single level are weighted by their probability in that slot, so that the
        marginals remain the belief's. Counts are those left after other jobs take ``taken`` instances.
        """
        left = np.maximum(self.counts.count - taken, 0)
        use = np.unique(left[left <= n_max])
        levels = use[even_levels(len(use) - 1)]
        states, onward = len(self.counts.count), self.count_transitions(slots)
        if np.array_equal(levels, self.counts.count):
            return self.counts, onward
        lump = np.zeros((states, len(levels)))
        lump[np.arange(states), np.searchsorted(levels, left, side="right") - 1] = 1.0
        shares = np.concatenate([self.count_now[None], marginals(self.count_now, onward[:-1])])
        # An unreachable state has almost no weight, but a level made of such states must still have rows.
        weight = lump * (shares[:, :, None] + 1e-12)
        weight /= weight.sum(axis=1, keepdims=True)
        lumped = weight.transpose(0, 2, 1) @ onward @ lump
        far = self.counts.transition.sum(axis=0)[:, None] * lump
        chain = (far / far.sum(axis=0)).T @ self.counts.transition @ lump
        return CountChain(count=levels, transition=chain), lumped

    def draw(self, many: int, rng: np.random.Generator) -> Iterator[Belief]:
        """Yield ``many`` equally likely variants of this belief; their mean distribution in each slot is the belief's.

        The rows of the count chain are drawn from the Dirichlet distribution of their transitions, given
        their ``weight``. The count distribution is split by `split_by_common_factor`: a variant with few instances has few
        in many slots. With a belief about a request, each variant is a market of its own (M13.4).
        """
        chain = self.counts
        if self.request is not None:
            for mixture in self.request.mixture.draw(many, rng):
                yield replace(self, **request_parts(replace(self.request, mixture=mixture)))
            return
        hours = self.slot_hours * np.arange(1, self.horizon + 1)
        for distribution in split_by_common_factor(self.count_distribution, hours, many):
            transition = chain.transition
            if chain.weight is not None:
                alpha = np.maximum(chain.weight[:, None] * transition, LEAST_SEEN)
                gamma = rng.standard_gamma(alpha) + LEAST_SEEN
                transition = gamma / gamma.sum(axis=1, keepdims=True)
            yield replace(
                self,
                counts=replace(chain, transition=transition),
                count_steps=tilt(
                    transition, self.count_now, _sum_by_state(distribution, chain.count), ROUNDS, CLOSE
                ),
                count_distribution=distribution,
            )

    def sample(self, slots: int, *, paths: int, rng: np.random.Generator) -> MarketPaths:
        """Sample paths of the next ``slots`` slots; raises `SettingsError` for fewer than 1 path.

        Count and price are independent. Where a state of the chains represents several values, a
        path keeps the same rank among them in every slot: within the horizon the values of each slot
        follow the forecast's distribution without extra variation between slots.
        """
        if paths < 1:
            raise SettingsError(f"{paths} sampled futures", expected="at least one")
        counts = np.empty((paths, slots), dtype=np.int64)
        present = within = None
        if self.request is None:
            states = _walks(self.count_now, self.count_transitions(slots), paths, rng)
        else:
            request_chain, mixture = self.request.counts, self.request.mixture
            sampled = mixture.sample(slots, paths=paths, rng=rng)
            within = request_chain[mixture.sample_inside(sampled, rng)]
            counts[:] = request_chain[sampled[:, 1:]]
            present = None if self.request.is_counted else request_chain[sampled[:, 0]]
        levels = _walks(self.price_now, self.price_transitions(slots), paths, rng)
        ranks = rng.random((2, paths))
        if self.request is None:
            below = np.concatenate(
                [np.zeros((self.horizon, 1)), np.cumsum(self.count_distribution, axis=1)], axis=1
            )
            counts[:] = self.counts.count[states]
            for k in range(min(slots, self.horizon)):
                counts[:, k] = self._count_at(below[k], states[:, k], ranks[0])
        prices = self.prices.level_usd[levels]
        shares = price_distribution(self.price_quantiles, self.prices)
        floors = np.cumsum(shares, axis=1) - shares
        for k in range(min(slots, len(shares))):
            at = floors[k, levels[:, k]] + ranks[1] * shares[k, levels[:, k]]
            prices[:, k] = np.interp(at, LEVELS, self.price_quantiles[k])
        return MarketPaths(price=prices, count=counts, present=present, within=within)

    def _count_at(self, below: np.ndarray, states: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Return the counts at the given ranks within their states, for the distribution with P(count < n) = ``below[n]``."""
        first = self.counts.count
        last = np.append(first[1:], len(below) - 1) - 1
        low, high = below[first[states]], below[last[states] + 1]
        index = np.searchsorted(below, low + ranks * (high - low), side="right") - 1
        return np.asarray(np.clip(index, first[states], last[states]))


def split_by_common_factor(distribution: np.ndarray, hours: np.ndarray, many: int) -> np.ndarray:
    """Split count distributions (h, n) into ``many`` parts with these as their mean, shape (many, h, n), from low to high counts.

    Slots ``hours`` (h,) ahead are linked by a Gaussian copula with a common normal factor per path;
    the parts are conditional on the midpoints of equal shares of that factor. The factor's share of
    the variance rises to `COMMON_SHARE` with the time constant `COMMON_HOURS`.
    """
    part = COMMON_SHARE * -np.expm1(-hours / COMMON_HOURS)[:, None]
    factor = ndtri((np.arange(many) + 0.5) / many)[:, None, None]
    rank = ndtri(np.clip(np.cumsum(distribution, axis=1), 0.0, 1.0))
    below = ndtr((rank - np.sqrt(part) * factor) / np.sqrt(1.0 - part))
    parts = np.diff(below, axis=2, prepend=0.0)
    for _ in range(COMMON_ROUNDS):
        parts = np.maximum(parts / parts.sum(axis=2, keepdims=True), TINY)
        parts *= distribution / parts.mean(axis=0)
    return np.asarray(parts / parts.sum(axis=2, keepdims=True))


def _extend(steps: np.ndarray, onward: np.ndarray, slots: int) -> np.ndarray:
    """Return the first ``slots`` of ``steps`` (h, S, S), extended with ``onward`` (S, S)."""
    if len(steps) >= slots:
        return steps[:slots]
    return np.concatenate([steps, onward[None].repeat(slots - len(steps), axis=0)])


def marginals(now: np.ndarray, transitions: np.ndarray) -> np.ndarray:
    """Return the state probabilities of a chain in each of the next slots, (slots, S), given those of the present slot, (S,)."""
    probabilities = np.empty(transitions.shape[:2])
    for k, step in enumerate(transitions):
        now = probabilities[k] = now @ step
    return probabilities


def _walks(now: np.ndarray, transitions: np.ndarray, paths: int, rng: np.random.Generator) -> np.ndarray:
    """Sample paths of the states of a chain, shape (paths, slots)."""
    rank = rng.random((1 + len(transitions), paths))
    return walk_slots(np.cumsum(now), np.cumsum(transitions, axis=2, dtype=float), rank)


def price_distribution(quantiles: np.ndarray, prices: PriceChain) -> np.ndarray:
    """Return the probability of each level, assigned as by `PriceChain.index`, for price quantiles (h, 19); shape (h, K)."""
    if not len(quantiles):
        return np.zeros((0, len(prices.level_usd)))
    edges = prices.edges()
    upto = share_below(quantiles, edges)
    rim = np.ones((len(quantiles), 1))
    return np.asarray(np.diff(np.concatenate([0.0 * rim, upto, rim], axis=1), axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The slot of a belief and its observations, NaN in a gap; prices in USD per instance-hour."""

    slot: int
    slot_hours: float
    price: float
    available: float
    on_demand_usd: float


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest known value, NaN if there is none, and its age in slots."""

    value: float
    age: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Common:
    """Parts of a belief that beliefs of the same slot share if they forget prices alike: the prices and the count distribution.

    ``count`` is the newest known count; the other fields are those of `Belief`.
    """

    count: _Newest
    capacity: int
    prices: PriceChain
    price_now: np.ndarray
    price_steps: np.ndarray
    count_distribution: np.ndarray
    price_quantiles: np.ndarray


def make_common(past: Past, issued: PointForecast | None, *, now: Now, forgetting: Forgetting) -> Common:
    """Return the inputs of `make_belief` that do not depend on how counts are forgotten."""
    slot_hours, on_demand_usd = now.slot_hours, now.on_demand_usd
    quantiles_issued = None if issued is None else issued.quantiles
    price, count = _newest(past.price, now.price, past.age), _newest(past.available, now.available, past.age)
    counts = np.append(past.available, count.value)
    capacity = min(
        int(np.nanmax(counts, initial=1.0)) if quantiles_issued is None else quantiles_issued.capacity,
        MOST_COUNT,
    )
    is_expensive = quantiles_issued is not None and bool((quantiles_issued.price >= on_demand_usd).any())
    usd = on_demand_usd if np.isnan(price.value) else price.value
    prices = price_chain(
        past, usd, on_demand_usd, slot_hours=slot_hours, forgetting=forgetting, dear=is_expensive
    )
    price_now = _present_states(prices.transition, prices.index, price)
    quantiles = np.empty((0, len(LEVELS))) if quantiles_issued is None else quantiles_issued.price
    return Common(
        count=count,
        capacity=capacity,
        prices=prices,
        price_now=price_now,
        price_steps=tilt(prices.transition, price_now, price_distribution(quantiles, prices), ROUNDS, CLOSE),
        count_distribution=np.zeros((0, capacity + 1))
        if quantiles_issued is None
        else count_distribution(quantiles_issued.count, capacity, quantiles_issued.tail),
        price_quantiles=quantiles,
    )


def make_belief(
    past: Past,
    issued: PointForecast | None,
    *,
    now: Now,
    forgetting: Forgetting,
    common: Common | None = None,
    request: RequestBelief | None = None,
) -> Belief:
    """Return the belief in the slot ``now`` from the chains of ``past`` and the forecast in force, aligned to that slot.

    Without a forecast, or with a forecast without quantiles, the belief consists of the chains alone. If the
    present slot is a gap, its state is the last observed state, advanced by the chains. ``common`` is the
    result of `make_common` for the same arguments; None computes it. ``request`` is the belief about a
    request, whose states are those of the count chain unless its count was read.
    """
    common = common or make_common(past, issued, now=now, forgetting=forgetting)
    if request is None or request.is_counted:
        parts = _count_parts(past, common, slot_hours=now.slot_hours, forgetting=forgetting)
        parts["request"] = request
    else:
        parts = request_parts(request)
    return Belief(
        slot=now.slot,
        slot_hours=now.slot_hours,
        on_demand_usd=now.on_demand_usd,
        prices=common.prices,
        price_now=common.price_now,
        price_steps=common.price_steps,
        price_quantiles=common.price_quantiles,
        **parts,
    )


def _count_parts(past: Past, common: Common, *, slot_hours: float, forgetting: Forgetting) -> dict[str, Any]:
    """Return the parts of a belief about observed counts: the chain of ``past``, and the count distribution of ``common``."""
    counts = count_chain(past, count_states(common.capacity), slot_hours=slot_hours, forgetting=forgetting)
    count_now = _present_states(counts.transition, counts.index, common.count)
    distribution = _sum_by_state(common.count_distribution, counts.count)
    return {
        "counts": counts,
        "count_now": count_now,
        "count_steps": tilt(counts.transition, count_now, distribution, ROUNDS, CLOSE),
        "count_distribution": common.count_distribution,
    }


REQUEST_SLOTS = 336  # Most slots ahead for which the chain of a request differs by slot


@lru_cache(maxsize=MOST_KEPT)
def request_belief(
    prior: Archetypes,
    states: bytes,
    between: bytes,
    size: int,
    counts: bytes,
    slots: int,
    is_counted: bool,
    ratings: SlotRatings | None,
) -> RequestBelief:
    """Return the belief about ``size`` instances by evidence, as bytes of the arrays of `Launches`, one for all markets."""
    states_known = np.frombuffer(states, dtype=np.int64)
    inside = np.frombuffer(between, dtype=np.int64).reshape(len(states_known), prior.parts - 1)
    return RequestBelief(
        mixture=Mixture.of(prior, states_known, inside, ratings),
        size=size,
        counts=np.frombuffer(counts, dtype=np.int64),
        slots=slots,
        is_counted=is_counted,
    )


@lru_cache(maxsize=MOST_KEPT)
def request_parts(request: RequestBelief) -> dict[str, Any]:
    """Return the parts of a belief about a request: a count chain on none, part and all of it, which differs by slot (M13.3)."""
    counts = np.minimum(request.counts, request.size)
    count, first = np.unique(counts, return_index=True)
    lump = (counts[:, None] == count).astype(float)
    steps = request.mixture.steps(request.slots)[:, first] @ lump
    return {
        "counts": CountChain(count=count, transition=steps[-1]),
        "count_now": request.mixture.present @ lump,
        "count_steps": steps,
        "count_distribution": np.zeros((0, int(count[-1]) + 1)),
        "request": request,
    }


def count_states(capacity: int) -> np.ndarray:
    """Return the counts of a belief's states, ascending from 0: every count below `FINE_COUNTS`, a coarser grid above."""
    if capacity < FINE_COUNTS:
        return np.arange(capacity + 1)
    above = np.round(np.geomspace(FINE_COUNTS, capacity, COARSE_COUNTS)).astype(int)
    return np.concatenate([np.arange(FINE_COUNTS), np.unique(above)])


def _sum_by_state(distribution: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return distributions over counts (h, capacity + 1) summed by state, shape (h, S)."""
    return np.add.reduceat(distribution, counts, axis=1) if len(distribution) else np.zeros((0, len(counts)))


def _newest(values: np.ndarray, now: float, age: int) -> _Newest:
    """Return the newest known value of ``now`` and ``values``, whose last element is ``age`` slots old."""
    observed = np.flatnonzero(~np.isnan(values))
    if not np.isnan(now) or not len(observed):
        return _Newest(float(now), 0)
    return _Newest(float(values[observed[-1]]), age + len(values) - 1 - int(observed[-1]))


def _present_states(transition: np.ndarray, index: Callable[[float], int], newest: _Newest) -> np.ndarray:
    """Return the state probabilities (S,) of the present slot: uniform if no value is known; old values are advanced."""
    states = len(transition)
    if np.isnan(newest.value):
        return np.full(states, 1.0 / states)
    distribution = np.zeros(states)
    distribution[index(newest.value)] = 1.0
    return np.asarray(distribution @ np.linalg.matrix_power(transition, newest.age))


@dataclass(slots=True, kw_only=True, eq=False)
class SlotBeliefs:
    """Beliefs of every slot of a job's market, each computed once on first use from the data known in its slot.

    ``price`` and ``available`` (slots,) are those of the job's slots, NaN in gaps; ``forecasts``
    are the forecasts in force in each slot. ``record`` holds the data before the job, None if there
    are none; ``launches`` are the evidence of a request (M13), None in replays.
    In a look-ahead, ``held`` is the belief used for all later slots: simulated slots add
    no information, so its transitions apply from every state reached.
    """

    price: np.ndarray
    available: np.ndarray
    forecasts: Sequence[PointForecast | None]
    slot_hours: float
    on_demand_usd: float
    record: Record | None = None
    held: Belief | None = None
    launches: Launches | None = None
    _made: dict[tuple[int, Forgetting], Belief] = field(default_factory=dict)
    _common: dict[tuple[int, float, int, float], Common] = field(default_factory=dict)

    def is_ahead(self, slot: int) -> bool:
        """Whether the belief ``held`` applies to ``slot``: in a look-ahead, after the present slot."""
        return self.held is not None and slot > self.held.slot

    def at(self, slot: int, forgetting: Forgetting) -> Belief:
        """Return the belief in ``slot``."""
        if self.held is not None and slot > self.held.slot:
            return self.held
        belief = self._made.get((slot, forgetting))
        if belief is None:
            past, issued, now = self._past(slot), self.forecasts[slot], self._now(slot)
            key = (slot, forgetting.price_hours, forgetting.levels, forgetting.price_days)
            common = self._common.get(key)
            if common is None:
                common = make_common(past, issued, now=now, forgetting=forgetting)
                self._common[key] = common
            request = None if self.launches is None else self._request(self.launches, slot)
            belief = make_belief(past, issued, now=now, forgetting=forgetting, common=common, request=request)
            self._made[slot, forgetting] = belief
            if len(self._made) > MOST_KEPT:
                del self._made[next(iter(self._made))]
            if len(self._common) > MOST_KEPT:
                del self._common[next(iter(self._common))]
        return belief

    def counted_evidence(self, slot: int) -> Evidence:
        """Return the evidence of availability in ``slot`` where its count was read."""
        tried = self.launches
        known = FEW_SLOTS if tried is None else tried.launched_slots(slot) + tried.counted_slots(slot)
        if tried is None or known >= FEW_SLOTS:
            return Evidence(level=COUNTS)
        return Evidence(level=COUNTS, counts=known, markets=len(tried.prior))

    def evidence(self, slot: int) -> Evidence:
        """Return the evidence of availability in ``slot`` where its count was not read."""
        tried = self.launches
        if tried is None:
            return Evidence(level=PRICES)
        launches, counts, ratings = (
            tried.launched_slots(slot),
            tried.counted_slots(slot),
            tried.ratings_at(slot),
        )
        return Evidence(
            level=PROBES if counts else SCORES if ratings else LAUNCHES if launches else PRICES,
            ratings=ratings,
            launches=launches,
            counts=counts,
            count_age_hours=tried.newest_hours,
            markets=len(tried.prior),
        )

    def _request(self, launches: Launches, slot: int) -> RequestBelief:
        """Return the belief about the request of the launches as known in ``slot`` (M13.3)."""
        return request_belief(
            launches.prior,
            launches.until(slot).tobytes(),
            launches.between_until(slot).tobytes(),
            launches.request,
            launches.counts.tobytes(),
            min(REQUEST_SLOTS, max(1, len(self.price) - slot)),
            launches.has_count(slot),
            launches.ratings_at(slot),
        )

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
        counts = self.available[: slot + 1]
        return Past(price=self.price[: slot + 1], available=counts, peers=np.empty((0, len(counts))))
