"""What a single-instance market shows as a Markov chain: up or down, how long already, and how often lately (M4.6, ours).

Stay times are not memoryless: an up run that has lasted hours is far likelier to last another slot than one that has just
begun. So the state holds the *age* of the current run in bins that grow, and the *share* of the last day that was up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from warehouse.errors import PolicyError, SettingsError

#: First slot of every age bin, roughly a factor of 1.5 apart; a run is 1 slot old when it begins.
AGES: Final = (1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 95, 144, 216)
#: Limits between the bins of the share that was up.
SHARES: Final = (0.2, 0.4, 0.6, 0.8)
#: Pseudo-slots of half availability that the share of a market begins with, while little of it has been seen.
BLANK_SLOTS: Final = 6
#: Pseudo-slots by which a thin row is drawn to the flip rate of its age, and that to the rate of all ages.
SHRINK_SLOTS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A Markov chain of what a market shows: state k is up or down and moves to ``to[start[k]:start[k + 1]]`` with ``chance``.

    ``up`` (K,) bool, ``start`` (K + 1,) int64, ``to`` int64 and ``chance`` float: the rows of a sparse stochastic matrix. Raises
    `PolicyError` if a row does not sum to 1.
    """

    up: np.ndarray
    start: np.ndarray
    to: np.ndarray
    chance: np.ndarray

    def __post_init__(self) -> None:
        sums = np.add.reduceat(self.chance, self.start[:-1])
        if self.start.size != self.up.size + 1 or np.abs(sums - 1).max() > 1e-9 or self.chance.min() < 0:
            raise PolicyError(
                f"transition rows that sum to {sums.min():.6f}..{sums.max():.6f}", expected="1 in every row"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketStates:
    """Which state a market is in after each slot: (up or down, bin of the share, bin of the age).

    ``ages`` are the first slots of the age bins, ``shares`` the limits of the share bins (none: the share is not
    looked at), ``window`` the slots over which the share is taken. Raises `SettingsError` if the bins do not ascend.
    """

    ages: tuple[int, ...] = AGES
    shares: tuple[float, ...] = SHARES
    window: int = 144

    def __post_init__(self) -> None:
        if self.ages[:1] != (1,) or list(self.ages) != sorted(set(self.ages)):
            raise SettingsError(f"age bins {self.ages}", expected="ascending slots from 1")
        if list(self.shares) != sorted(set(self.shares)) or self.window < 1:
            raise SettingsError(
                f"share bins {self.shares} over {self.window} slots", expected="ascending limits"
            )

    @property
    def count(self) -> int:
        """Number of states."""
        return 2 * (len(self.shares) + 1) * len(self.ages)

    def code(self, up: np.ndarray) -> np.ndarray:
        """State after every slot, shape (slots,) int64; entry t looks at ``up[: t + 1]`` only (M4.9)."""
        age = np.searchsorted(self.ages, run_ages(up), side="right") - 1
        share = np.searchsorted(self.shares, recent_share(up, self.window))
        return np.asarray((up.astype(np.int64) * (len(self.shares) + 1) + share) * len(self.ages) + age)


def run_ages(up: np.ndarray) -> np.ndarray:
    """Slots that the current up or down run has lasted, from 1.

    >>> run_ages(np.array([True, True, False, True]))
    array([1, 2, 1, 1])
    """
    begins = np.ones(up.size, dtype=bool)
    begins[1:] = up[1:] != up[:-1]
    at = np.arange(up.size)
    return at - np.maximum.accumulate(np.where(begins, at, 0)) + 1


def recent_share(up: np.ndarray, window: int) -> np.ndarray:
    """Share of the last ``window`` slots that were up, drawn to one half while fewer than `BLANK_SLOTS` are seen."""
    total = np.concatenate([[0.0], np.cumsum(up)])
    after = np.arange(1, up.size + 1)
    before = np.maximum(0, after - window)
    seen = after - before
    return np.asarray((total[after] - total[before] + 0.5 * BLANK_SLOTS) / (seen + BLANK_SLOTS))


def estimate(states: MarketStates, traces: Sequence[np.ndarray]) -> Chain:
    """The chain of ``states`` pooled over 0/1 traces, thin rows shrunk (M4.6).

    A row is the observed moves plus `SHRINK_SLOTS` of what its age alone says: a flip at the pooled rate of that age (itself
    shrunk to the rate of all ages), else staying in its share and growing older at the pace of its bin.
    Raises `PolicyError` if there is no move to learn from.
    """
    moves = np.zeros((states.count, states.count))
    for up in traces:
        code = states.code(up)
        np.add.at(moves, (code[:-1], code[1:]), 1.0)
    if not moves.any():
        raise PolicyError("no two slots in a row to learn from", expected="traces of several slots")
    rows = moves + SHRINK_SLOTS * prior_rows(states, moves)
    rows /= rows.sum(axis=1, keepdims=True)
    source, to = np.nonzero(rows)
    start = np.searchsorted(source, np.arange(states.count + 1))
    per_side = states.count // 2
    return Chain(up=np.arange(states.count) >= per_side, start=start, to=to, chance=rows[source, to])


def prior_rows(states: MarketStates, moves: np.ndarray) -> np.ndarray:
    """Rows (K, K) in which only the age sets the chance of a flip."""
    ages, shares = len(states.ages), len(states.shares) + 1
    shape = (2, shares, ages)
    side = np.arange(states.count) // (shares * ages)
    flipped = np.where(side[:, None] != side[None, :], moves, 0.0).sum(axis=1).reshape(shape)
    seen = moves.sum(axis=1).reshape(shape)
    overall = (flipped.sum(axis=(1, 2)) + 0.5) / (seen.sum(axis=(1, 2)) + 1.0)
    by_age = flipped.sum(axis=1) + SHRINK_SLOTS * overall[:, None]
    by_age /= seen.sum(axis=1) + SHRINK_SLOTS
    rows = np.zeros((states.count, states.count))
    for k in range(states.count):
        up, share, age = np.unravel_index(k, shape)
        flip = by_age[up, age]
        last = age + 1 == ages
        older = 0.0 if last else 1.0 / (states.ages[age + 1] - states.ages[age])
        rows[k, np.ravel_multi_index((1 - up, share, 0), shape)] = flip
        rows[k, k] += (1 - flip) * (1 - older)
        if not last:
            rows[k, k + 1] = (1 - flip) * older
    return rows
