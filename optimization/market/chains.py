"""How a market moves: chains of the count and of the price, from history known now (M4.6) (ours).

The market changes over days, so transitions are forgotten with a half-life; a market shows few transitions in a day, so its
own are shrunk toward those of its peers, and all of them toward staying put. Both chains are of the first order and move
independently of each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from optimization.market.window import Past

#: Most count states of a chain and sizes of a table: 20 captured 0.002 more of E1's headroom at seven times the work.
MOST_STATES = 10
#: Prices nearer to each other than this share of on-demand are one level.
LEVEL_WIDTH = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """How chains are estimated: half-lives in hours, and strengths of the pulls in transitions.

    ``own_hours`` and ``peer_hours`` are the half-lives of the market's and its peers' transitions, ``price_hours`` that of
    the price's; ``toward_peers`` and ``toward_staying`` the strengths of the two pulls; ``levels`` the most price levels below
    on-demand; ``price_days`` how far back prices are read.
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
    """Price levels in USD per instance-hour, ascending, shape (K,), and their transitions per slot, shape (K, K).

    ``dear``: the last level, at the on-demand price, stands for every price at or above it, where spot is of no use (M3.2).
    """

    level_usd: np.ndarray
    transition: np.ndarray
    dear: bool

    def per_slot(self, slot_hours: float) -> PriceChain:
        """The same with levels in USD per instance and slot."""
        return replace(self, level_usd=self.level_usd * slot_hours)

    def index(self, price: float) -> int:
        """The level nearest to ``price``; at or above on-demand the last, below it never that one."""
        on_demand = self.level_usd[-1]
        if self.dear and price >= on_demand:
            return len(self.level_usd) - 1
        below = self.level_usd[:-1] if self.dear and len(self.level_usd) > 1 else self.level_usd
        return int(np.argmin(np.abs(below - price)))

    def edges(self) -> np.ndarray:
        """The prices from which on each level but the first is the one of `index`, shape (K - 1,)."""
        dear = self.dear and len(self.level_usd) > 1
        below = self.level_usd[:-1] if dear else self.level_usd
        middle = (below[1:] + below[:-1]) / 2.0
        return np.append(middle, self.level_usd[-1]) if dear else middle

    def indices(self, price: np.ndarray) -> np.ndarray:
        """`index` of many prices, of their shape (n,)."""
        below = self.level_usd[:-1] if self.dear and len(self.level_usd) > 1 else self.level_usd
        nearest = np.abs(below - price[:, None]).argmin(axis=1)
        dear = (price >= self.level_usd[-1]) & self.dear
        return np.where(dear, len(self.level_usd) - 1, nearest)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountChain:
    """Counts of the states, ascending from 0, shape (S,), and their transitions per slot, shape (S, S)."""

    count: np.ndarray
    transition: np.ndarray

    def index(self, available: float) -> int:
        """The state of the largest count not above ``available``."""
        return max(0, int(np.searchsorted(self.count, available, side="right")) - 1)

    def indices(self, available: np.ndarray) -> np.ndarray:
        """`index` of many counts, of their shape (n,)."""
        return np.maximum(0, np.searchsorted(self.count, available, side="right") - 1)


def even_levels(most: int) -> np.ndarray:
    """All of 0..most, or about `MOST_STATES` of them spread evenly."""
    if most < MOST_STATES:
        return np.arange(most + 1)
    return np.unique(np.round(np.linspace(0, most, MOST_STATES)).astype(int))


def forgotten(states: np.ndarray, size: int, half_life_slots: float) -> np.ndarray:
    """Transition counts (size, size) of rows of states (m, k), -1 where unknown, each halved every ``half_life_slots``."""
    before, after = states[:, :-1], states[:, 1:]
    known = (before >= 0) & (after >= 0)
    age = np.arange(before.shape[1])[::-1] / half_life_slots
    weight = np.broadcast_to(0.5**age, before.shape)[known]
    cell = before[known] * size + after[known]
    return np.bincount(cell, weights=weight, minlength=size * size).reshape(size, size)


def _states(counts: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """State of each count of rows (m, k): -1 where unknown."""
    found = np.searchsorted(levels, np.nan_to_num(counts, nan=0.0), side="right") - 1
    return np.where(np.isnan(counts), -1, found)


def count_chain(past: Past, levels: np.ndarray, *, slot_hours: float, forgetting: Forgetting) -> CountChain:
    """The chain of the count as it looks in the present slot; ``levels`` are the counts of its states, ascending from 0.

    Row i is own transitions from i plus ``toward_peers`` times the pooled row; the pooled row is own and peers' transitions
    plus ``toward_staying`` times a prior that stays with the share of all pooled transitions that stayed and else goes where
    they went.
    """
    size = len(levels)
    own = forgotten(_states(past.available[None, :], levels), size, forgetting.own_hours / slot_hours)
    pooled = own + forgotten(_states(past.peers, levels), size, forgetting.peer_hours / slot_hours)
    total = pooled.sum()
    stayed = (np.trace(pooled) + 4.0) / (total + 5.0)
    visits = pooled.sum(axis=0) + 1.0 / size
    prior = (1.0 - stayed) * (visits / visits.sum())[None, :] + stayed * np.eye(size)
    pull = forgetting.toward_staying
    shared = (pooled + pull * prior) / (pooled.sum(axis=1, keepdims=True) + pull)
    pull = forgetting.toward_peers
    row = (own + pull * shared) / (own.sum(axis=1, keepdims=True) + pull)
    return CountChain(count=levels, transition=row / row.sum(axis=1, keepdims=True))


def price_chain(
    past: Past,
    price: float,
    on_demand_usd: float,
    *,
    slot_hours: float,
    forgetting: Forgetting,
    dear: bool = False,
) -> PriceChain:
    """The chain of the price on levels among the last ``price_days``; the level nearest to the present price is that price.

    ``dear``: prices at or above on-demand are expected, whether or not any was seen.
    """
    recent = past.price[-max(2, int(forgetting.price_days * 24.0 / slot_hours)) :]
    seen = np.minimum(recent[~np.isnan(recent)], on_demand_usd)
    below, dear = (
        seen[seen < on_demand_usd],
        bool(dear or (seen >= on_demand_usd).any() or price >= on_demand_usd),
    )
    levels = _price_levels(below, price, on_demand_usd, forgetting.levels)
    if dear:
        levels = np.append(levels, on_demand_usd)
    size = len(levels)
    middle = (levels[1:] + levels[:-1]) / 2.0
    state = np.searchsorted(middle, np.minimum(recent, on_demand_usd))
    if dear:
        state = np.where(
            np.nan_to_num(recent, nan=0.0) >= on_demand_usd, size - 1, np.minimum(state, max(size - 2, 0))
        )
    state = np.where(np.isnan(recent), -1, state)
    counted = forgotten(state[None, :], size, forgetting.price_hours / slot_hours) + 2.0 * np.eye(size) + 0.02
    return PriceChain(level_usd=levels, transition=counted / counted.sum(axis=1, keepdims=True), dear=dear)


def _price_levels(below: np.ndarray, price: float, on_demand_usd: float, most: int) -> np.ndarray:
    """At most ``most`` levels below on-demand: evenly spaced quantiles, those too near to each other merged; the present price."""
    cheap = price < on_demand_usd
    if not len(below):
        return np.array([price]) if cheap else np.empty(0)
    spots = np.quantile(below, (np.arange(most) + 0.5) / most)
    kept = [float(spots[0])]
    for level in spots[1:].tolist():
        if level - kept[-1] > LEVEL_WIDTH * on_demand_usd:
            kept.append(level)
    levels = np.array(kept)
    if cheap:
        levels[np.argmin(np.abs(levels - price))] = price
    return np.unique(levels)
