"""Exponentiated gradient and its forgetful form, fixed share (M5.2, M5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slackwater.optimization.selection.contract import (
    ANYTIME,
    PlayedRounds,
    Rate,
    Weights,
    even_weights,
    known_rate,
    shifting_bound,
    shifting_rates,
    static_bound,
    update,
)


def _rounds(played: PlayedRounds) -> list[int]:
    return list(range(1, len(played.utilities) + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentiatedGradient:
    """Weights exp(eta x summed utility) (M5.2), eta_k = sqrt(8 ln M / k), or the rate of a known number of ``rounds``."""

    memory: ClassVar[float | None] = 1.0

    rounds: int | None = None

    @property
    def name(self) -> str:
        """``anytime`` or ``known-rounds``."""
        return "anytime" if self.rounds is None else "known-rounds"

    def _rate(self, size: int) -> Rate:
        return ANYTIME if self.rounds is None else known_rate(size, self.rounds)

    def start(self, names: Sequence[str]) -> Weights:
        """Return even weights."""
        return even_weights(names)

    def learn(self, state: Weights, utilities: np.ndarray) -> Weights:
        """Return the weights after an update of M5.2."""
        return update(state, utilities, rate=self._rate(len(state.names)))

    def weights(self, state: Weights) -> Weights:
        """Return the state, which is the weights."""
        return state

    def static_bounds(self, played: PlayedRounds) -> np.ndarray:
        """Return `static_bound` after each round."""
        size = len(played.names)
        return np.array([static_bound(size, k, rate=self._rate(size)) for k in _rounds(played)])

    def shifting_bounds(self, played: PlayedRounds, shifts: int) -> np.ndarray:
        """Return the static bound for no changes; infinite otherwise, since none is proven."""
        return self.static_bounds(played) if shifts == 0 else np.full(len(played.utilities), np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedShare:
    """Exponentiated gradient that spreads a share of all weight evenly each round (Herbster and Warmuth 1998; M5.4).

    Rate and share minimise the bound for ``shifts`` changes in ``rounds`` rounds; the rate is then
    multiplied by ``haste``, an advantage if utilities differ by far less than the 1 that the bound
    must allow for. The bounds hold at any rate and for any number of rounds.
    """

    memory: ClassVar[float | None] = None

    rounds: int = 1000
    shifts: int = 3
    haste: float = 1.0

    @property
    def name(self) -> str:
        """``fixed-share``, followed by the haste if it is not 1."""
        return "fixed-share" if self.haste == 1.0 else f"fixed-share x{self.haste:g}"

    def rates(self, size: int) -> tuple[float, float]:
        """Return (eta, share) for ``size`` policies."""
        rate, share = shifting_rates(max(size, 2), self.rounds, self.shifts)
        return rate * self.haste, share

    def start(self, names: Sequence[str]) -> Weights:
        """Return even weights."""
        return even_weights(names)

    def learn(self, state: Weights, utilities: np.ndarray) -> Weights:
        """Return the weights after an update of M5.2 with a share."""
        rate, share = self.rates(len(state.names))
        return update(state, utilities, rate=rate, share=share)

    def weights(self, state: Weights) -> Weights:
        """Return the state, which is the weights."""
        return state

    def static_bounds(self, played: PlayedRounds) -> np.ndarray:
        """Return the shifting bound for no changes."""
        return self.shifting_bounds(played, 0)

    def shifting_bounds(self, played: PlayedRounds, shifts: int) -> np.ndarray:
        """Return `shifting_bound` after each round; at most one change per round is counted."""
        size = len(played.names)
        if size == 1:
            return np.zeros(len(played.utilities))
        rate, share = self.rates(size)
        return np.array(
            [
                shifting_bound(size, k, rate=rate, share=share, shifts=min(shifts, k - 1))
                for k in _rounds(played)
            ]
        )
