"""AdaHedge: exponential weights whose rate follows from the rounds, without a given range of utilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slackwater.optimization.selection.contract import PlayedRounds, Weights, checked_round, even_weights

LEAST_GAP = 1e-200  # A smaller gap counts as zero: the rate ln M / gap would overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaHedgeState:
    """State of `AdaHedge`: summed utility ``gains`` (M,), and the paper's summed mixability ``gap``, Delta."""

    names: tuple[str, ...]
    rounds: int
    gains: np.ndarray
    gap: float


def _log_weight(state: AdaHedgeState) -> np.ndarray:
    """Return eta (G - max G) with eta = ln M / Delta; even weights while Delta is 0 (all policies earned the same)."""
    if state.gap <= LEAST_GAP:
        return np.zeros(len(state.names))
    lead = state.gains - state.gains.max()
    return np.asarray(lead * (math.log(len(state.names)) / state.gap))


@dataclass(frozen=True, slots=True)
class AdaHedge:
    """AdaHedge of de Rooij, van Erven, Grünwald and Koolen (JMLR 15, 2014), on utilities instead of losses.

    Weights exp(eta_k G) with eta_k = ln M / Delta_{k-1}; Delta sums the mixability gaps, the excess
    of (1/eta) ln sum w exp(eta u) over the mean utility sum w u. Shifting or scaling all utilities
    does not change the weights, so that bounds far wider than the utilities do no harm.
    """

    name: ClassVar[str] = "adahedge"
    memory: ClassVar[float | None] = 1.0

    def start(self, names: Sequence[str]) -> AdaHedgeState:
        """Return a state without gains and gap."""
        known = even_weights(names).names
        return AdaHedgeState(names=known, rounds=0, gains=np.zeros(len(known)), gap=0.0)

    def learn(self, state: AdaHedgeState, utilities: np.ndarray) -> AdaHedgeState:
        """Add the utilities of the round and its mixability gap."""
        values = checked_round(state.names, utilities)
        log_weight = _log_weight(state)
        raised = np.exp(log_weight)
        mean = float(raised @ values) / float(raised.sum())
        if state.gap > LEAST_GAP:
            rate = math.log(len(state.names)) / state.gap
            exponents = log_weight + rate * values
            top = float(exponents.max())  # high rates would underflow plain exponentials
            mixed = (top + math.log(float(np.exp(exponents - top).sum()) / float(raised.sum()))) / rate
        else:
            mixed = float(values.max())
        return AdaHedgeState(
            names=state.names,
            rounds=state.rounds + 1,
            gains=state.gains + values,
            gap=state.gap + max(0.0, mixed - mean),
        )

    def weights(self, state: AdaHedgeState) -> Weights:
        """Return exp(eta G), scaled to a maximum of 1."""
        return Weights(log_weight=_log_weight(state), rounds=state.rounds, names=state.names)

    def static_bounds(self, played: PlayedRounds) -> np.ndarray:
        """Return 2 sqrt(V ln M) + S (4/3 ln M + 2) (theorem 6 of the paper) after each round.

        V sums the variance of the utilities under the weights, S is the largest range of utilities
        in a round.
        """
        size = len(played.names)
        if size == 1:
            return np.zeros(len(played.utilities))
        around = played.utilities - played.expected[:, None]
        spread = np.cumsum((played.chances * around**2).sum(axis=1))
        width = np.maximum.accumulate(np.ptp(played.utilities, axis=1))
        log_size = math.log(size)
        return np.asarray(2.0 * np.sqrt(spread * log_size) + width * (4.0 / 3.0 * log_size + 2.0))

    def shifting_bounds(self, played: PlayedRounds, shifts: int) -> np.ndarray:
        """Return the static bound for no changes; infinite otherwise, since none is proven."""
        return self.static_bounds(played) if shifts == 0 else np.full(len(played.utilities), np.inf)
