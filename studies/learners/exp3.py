"""EXP3 and two variants: exponential weights under bandit feedback (M10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slackwater.optimization.selection.contract import PlayedRounds, Weights, even_weights
from slackwater.studies.learners.contract import BanditFeedback, checked_seen
from slackwater.warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class LossState:
    """State of `Exp3` and `Exp3IX`.

    ``losses``: summed estimates of 1 - utility of each policy, shape (M,).
    """

    names: tuple[str, ...]
    rounds: int
    losses: np.ndarray


def _rounds(played: PlayedRounds) -> np.ndarray:
    return np.arange(1, len(played.utilities) + 1, dtype=float)


def _only_static(bounds: np.ndarray, shifts: int) -> np.ndarray:
    return bounds if shifts == 0 else np.full(len(bounds), np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exp3:
    """EXP3 for an unknown number of rounds (Auer et al. 2002; form of Bubeck and Cesa-Bianchi 2012, theorem 3.1).

    Weights exp(-eta_k L) with L the summed losses, each observed loss divided by its probability;
    eta_k = h sqrt(ln M / (M k)). The same proof gives, for any ``haste`` h, an expected regret of
    at most (h + 1/h) sqrt(M k ln M).
    """

    haste: float = 1.0

    def __post_init__(self) -> None:
        if not self.haste > 0.0:
            raise SettingsError(f"haste {self.haste}", expected="a positive number")

    @property
    def name(self) -> str:
        """``exp3``, followed by the haste if it is not 1."""
        return "exp3" if self.haste == 1.0 else f"exp3 x{self.haste:g}"

    def start(self, names: Sequence[str]) -> LossState:
        """Return a state without losses."""
        known = even_weights(names).names
        return LossState(names=known, rounds=0, losses=np.zeros(len(known)))

    def learn(self, state: LossState, seen: BanditFeedback) -> LossState:
        """Add (1 - utility) / chance to the losses of the played policy, nothing to the others."""
        checked_seen(state.names, seen)
        losses = state.losses.copy()
        losses[seen.policy] += (1.0 - seen.utility) / seen.chance
        return LossState(names=state.names, rounds=state.rounds + 1, losses=losses)

    def weights(self, state: LossState) -> Weights:
        """Return exp(-eta L) at the rate of the next round."""
        rate = self.haste * _rate(len(state.names), state.rounds + 1)
        return Weights(
            log_weight=-rate * (state.losses - state.losses.min()), rounds=state.rounds, names=state.names
        )

    def static_bounds(self, played: PlayedRounds) -> np.ndarray:
        """Return (h + 1/h) sqrt(M k ln M), in expectation over the draws."""
        size = len(played.names)
        return np.asarray((self.haste + 1.0 / self.haste) * np.sqrt(_rounds(played) * size * math.log(size)))

    def shifting_bounds(self, played: PlayedRounds, shifts: int) -> np.ndarray:
        """Return the static bound for no changes; infinite otherwise, since none is proven."""
        return _only_static(self.static_bounds(played), shifts)


def _rate(size: int, k: int) -> float:
    """Return sqrt(ln M / (M k))."""
    return math.sqrt(math.log(size) / (size * k))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exp3IX:
    """EXP3-IX (Neu 2015): the observed loss is divided by its probability plus gamma_k, which limits every estimate.

    eta_k = 2 gamma_k = sqrt(ln M / (M k)). With probability 1 - ``delta``, against any sequence of
    utilities, the regret of the draws is at most 4 sqrt(M k ln M) + (2 sqrt(M k / ln M) + 1) ln(2 /
    delta) (theorem 1 there).
    """

    delta: float = 0.05

    @property
    def name(self) -> str:
        """``exp3-ix``."""
        return "exp3-ix"

    def start(self, names: Sequence[str]) -> LossState:
        """Return a state without losses."""
        return Exp3().start(names)

    def learn(self, state: LossState, seen: BanditFeedback) -> LossState:
        """Add (1 - utility) / (chance + gamma) to the losses of the played policy."""
        checked_seen(state.names, seen)
        gamma = _rate(len(state.names), state.rounds + 1) / 2.0
        losses = state.losses.copy()
        losses[seen.policy] += (1.0 - seen.utility) / (seen.chance + gamma)
        return LossState(names=state.names, rounds=state.rounds + 1, losses=losses)

    def weights(self, state: LossState) -> Weights:
        """Return exp(-eta L) at the rate of the next round."""
        return Exp3().weights(state)

    def static_bounds(self, played: PlayedRounds) -> np.ndarray:
        """Return the bound of the class, which holds for the draws with probability 1 - delta."""
        size, rounds = len(played.names), _rounds(played)
        if size == 1:
            return np.zeros(len(rounds))
        log_size = math.log(size)
        sure = (2.0 * np.sqrt(size * rounds / log_size) + 1.0) * math.log(2.0 / self.delta)
        return np.asarray(4.0 * np.sqrt(size * rounds * log_size) + sure)

    def shifting_bounds(self, played: PlayedRounds, shifts: int) -> np.ndarray:
        """Return the static bound for no changes; infinite otherwise, since none is proven."""
        return _only_static(self.static_bounds(played), shifts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exp3S:
    """EXP3.S (Auer, Cesa-Bianchi, Freund and Schapire 2002, section 8): EXP3 that follows regime switches (M5.4).

    Probabilities (1 - gamma) w / W + gamma / M; the weight of the played policy grows by exp(gamma
    u / (chance M)), then e alpha W / M is added to each. The expected regret against any sequence
    with m changes after K rounds is at most M ((m + 1) ln(M / alpha) + e alpha K) / gamma + (e - 1)
    gamma K (theorem 8.1 there); alpha = 1 / ``rounds``, and gamma minimises this for ``shifts``
    changes in ``rounds`` rounds.
    """

    rounds: int = 1000
    shifts: int = 3

    @property
    def name(self) -> str:
        """``exp3.s``."""
        return "exp3.s"

    def explored(self, size: int) -> float:
        """Return gamma, the share of rounds in which a policy is drawn at random."""
        hard = (self.shifts + 1) * math.log(size * self.rounds) + math.e
        return min(1.0, math.sqrt(size * hard / ((math.e - 1.0) * self.rounds)))

    def start(self, names: Sequence[str]) -> Weights:
        """Return even weights."""
        return even_weights(names)

    def learn(self, state: Weights, seen: BanditFeedback) -> Weights:
        """Update the weights before the even mixing."""
        checked_seen(state.names, seen)
        size = len(state.names)
        log_weight = state.log_weight.copy()
        log_weight[seen.policy] += self.explored(size) * seen.utility / (seen.chance * size)
        total = np.logaddexp.reduce(state.log_weight)
        log_weight = np.logaddexp(log_weight, total + 1.0 - math.log(self.rounds * size))
        return Weights(log_weight=log_weight - log_weight.max(), rounds=state.rounds + 1, names=state.names)

    def weights(self, state: Weights) -> Weights:
        """Return (1 - gamma) w / W + gamma / M."""
        gamma = self.explored(len(state.names))
        mixed = np.log((1.0 - gamma) * state.probability + gamma / len(state.names))
        return Weights(log_weight=mixed - mixed.max(), rounds=state.rounds, names=state.names)

    def static_bounds(self, played: PlayedRounds) -> np.ndarray:
        """Return the shifting bound for no changes."""
        return self.shifting_bounds(played, 0)

    def shifting_bounds(self, played: PlayedRounds, shifts: int) -> np.ndarray:
        """Return the bound of the class, in expectation over the draws; at most one change per round is counted."""
        size, rounds = len(played.names), _rounds(played)
        if size == 1:
            return np.zeros(len(rounds))
        gamma, alpha = self.explored(size), 1.0 / self.rounds
        hard = (np.minimum(shifts, rounds - 1) + 1.0) * math.log(size / alpha)
        return np.asarray(size * (hard + math.e * alpha * rounds) / gamma + (math.e - 1.0) * gamma * rounds)
