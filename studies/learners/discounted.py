"""Exponentiated gradient on utilities that are discounted by age, which decides no job (M5.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slackwater.optimization.selection.contract import PlayedRounds, Weights, even_weights, update
from slackwater.warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Discounted:
    """Exponentiated gradient on utilities that are discounted by age (ours; M5.4).

    Weights exp(eta sum_s g^(k-s) u_s) with g = 2^(-1/half_life). Let R_k be the regret with the
    same discount. As ln mean exp(eta g R) <= g ln mean exp(eta R) (Jensen) and a round adds at most
    eta^2 / 8 to it (Hoeffding), R_k <= B = ln M / eta + eta / (8 (1 - g)); eta minimises B, times
    ``haste``. The regret of rounds r+1..s is R_s - R_r + (1 - g) (R_r + ... + R_{s-1}), hence the
    undiscounted regret after K rounds is at most (1 + (1 - g) (K - 1)) B, and with m changes of
    policy at most (1 + (1 - g) (K - 1)) B + m (B + 1 / (1 - g)).
    """

    half_life: float = 100.0
    haste: float = 1.0

    def __post_init__(self) -> None:
        if not (self.half_life > 0.0 and self.haste > 0.0):
            raise SettingsError(
                f"half-life of {self.half_life} rounds, haste {self.haste}", expected="both positive"
            )

    @property
    def name(self) -> str:
        """``discounted``, followed by the half-life and the haste unless they are 100 and 1."""
        own = "" if self.half_life == 100.0 else f" {self.half_life:g}"
        return f"discounted{own}" + ("" if self.haste == 1.0 else f" x{self.haste:g}")

    @property
    def keep(self) -> float:
        """g, the discount factor per round."""
        return float(2.0 ** (-1.0 / self.half_life))

    @property
    def memory(self) -> float | None:
        """g, the discount factor per round."""
        return self.keep

    def rate(self, size: int) -> float:
        """Return eta for ``size`` policies."""
        return self.haste * math.sqrt(8.0 * (1.0 - self.keep) * math.log(size))

    def start(self, names: Sequence[str]) -> Weights:
        """Return even weights."""
        return even_weights(names)

    def learn(self, state: Weights, utilities: np.ndarray) -> Weights:
        """Return the weights after log w <- g log w and an update of M5.2."""
        faded = Weights(log_weight=self.keep * state.log_weight, rounds=state.rounds, names=state.names)
        return update(faded, utilities, rate=self.rate(len(state.names)))

    def weights(self, state: Weights) -> Weights:
        """Return the state, which is the weights."""
        return state

    def static_bounds(self, played: PlayedRounds) -> np.ndarray:
        """Return (1 + (1 - g) (k - 1)) B."""
        return self.shifting_bounds(played, 0)

    def shifting_bounds(self, played: PlayedRounds, shifts: int) -> np.ndarray:
        """Return (1 + (1 - g) (k - 1)) B + m (B + 1 / (1 - g)), with m limited to k - 1."""
        size, lost = len(played.names), 1.0 - self.keep
        if size == 1:
            return np.zeros(len(played.utilities))
        eta = self.rate(size)
        most = math.log(size) / eta + eta / (8.0 * lost)
        rounds = np.arange(len(played.utilities), dtype=float)
        return np.asarray((1.0 + lost * rounds) * most + np.minimum(shifts, rounds) * (most + 1.0 / lost))
