"""Squint: a prior over learning rates; the regret depends on the variance against the best policy alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slackwater.optimization.selection.contract import PlayedRounds, Weights, checked_round, even_weights

#: Rates 2^-1 .. 2^-24 serve up to 2^48 rounds; rate 2^-i has prior mass 1/(i (i+1)), in total below
#: 1.
_STEPS = np.arange(1, 25, dtype=float)
_RATES = 2.0**-_STEPS
_LOG_PRIOR = -np.log(_STEPS * (_STEPS + 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class SquintState:
    """State of `Squint`, both arrays of shape (M,).

    ``regret``: summed difference of each policy's utility to the expected utility under the
    weights; ``variance``: sum of its squares.
    """

    names: tuple[str, ...]
    rounds: int
    regret: np.ndarray
    variance: np.ndarray


@dataclass(frozen=True, slots=True)
class Squint:
    """Squint of Koolen and van Erven (COLT 2015) with a discrete prior on rates 2^-i of mass 1/(i (i+1)).

    Weights w_j ~ sum_i prior_i eta_i exp(eta_i R_j - eta_i^2 V_j). As exp(x - x^2) <= 1 + x for x
    >= -1/2, and the weights make sum_j w_j r_j zero, the potential (1/M) sum_j sum_i prior_i
    exp(eta_i R_j - eta_i^2 V_j) never exceeds its initial value, which is below 1. So for every
    policy j and every rate of the grid R_j <= eta_i V_j + (ln M - ln prior_i) / eta_i: the bound
    sqrt(V_j (ln M + ln ln V_j)) up to a factor, with explicit constants.
    """

    @property
    def name(self) -> str:
        """``squint``."""
        return "squint"

    @property
    def memory(self) -> float | None:
        """None: the lead under several rates is no sum."""
        return None

    def start(self, names: Sequence[str]) -> SquintState:
        """Return a state without regret and variance."""
        known = even_weights(names).names
        zero = np.zeros(len(known))
        return SquintState(names=known, rounds=0, regret=zero, variance=zero)

    def learn(self, state: SquintState, utilities: np.ndarray) -> SquintState:
        """Add the regrets of the round and their squares."""
        values = checked_round(state.names, utilities)
        beyond = values - float(self.weights(state).probability @ values)
        return SquintState(
            names=state.names,
            rounds=state.rounds + 1,
            regret=state.regret + beyond,
            variance=state.variance + beyond**2,
        )

    def weights(self, state: SquintState) -> Weights:
        """Return the evidence of each policy over all rates, summed in logs."""
        rate = _RATES[:, None]
        terms = (_LOG_PRIOR + np.log(_RATES))[:, None] + rate * state.regret - rate**2 * state.variance
        top = terms.max(axis=0)
        log_weight = top + np.log(np.exp(terms - top).sum(axis=0))
        return Weights(log_weight=log_weight - log_weight.max(), rounds=state.rounds, names=state.names)

    def static_bounds(self, played: PlayedRounds) -> np.ndarray:
        """Return min_i eta_i V + (ln M - ln prior_i) / eta_i with V of the best policy so far, after each round."""
        size = len(played.names)
        if size == 1:
            return np.zeros(len(played.utilities))
        best = played.utilities.cumsum(axis=0).argmax(axis=1)
        beyond = played.utilities - played.expected[:, None]
        variance = np.cumsum(beyond**2, axis=0)[np.arange(len(best)), best]
        price = (math.log(size) - _LOG_PRIOR) / _RATES
        return np.asarray((_RATES * variance[:, None] + price).min(axis=1))

    def shifting_bounds(self, played: PlayedRounds, shifts: int) -> np.ndarray:
        """Return the static bound for no changes; infinite otherwise, since none is proven."""
        return self.static_bounds(played) if shifts == 0 else np.full(len(played.utilities), np.inf)
