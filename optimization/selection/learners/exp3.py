"""EXP3 and two of its kind: exponential weights when only the played policy's utility is seen (M10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimization.selection.contract import BanditFeedback, Played, Weights, checked_seen, even_weights
from warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class LossState:
    """``losses``: summed estimates of 1 - utility of each policy, shape (M,)."""

    names: tuple[str, ...]
    rounds: int
    losses: np.ndarray


def _rounds(played: Played) -> np.ndarray:
    return np.arange(1, len(played.utilities) + 1, dtype=float)


def _only_static(bounds: np.ndarray, shifts: int) -> np.ndarray:
    return bounds if shifts == 0 else np.full(len(bounds), np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exp3:
    """EXP3 for an unknown number of rounds (Auer et al. 2002, in the form of Bubeck and Cesa-Bianchi 2012, theorem 3.1).

    Weights exp(-eta_k L) with L the summed losses, the seen one divided by its chance; eta_k = h sqrt(ln M / (M k)).
    The same proof gives, for any ``haste`` h, an expected regret of at most (h + 1/h) sqrt(M k ln M).
    """

    haste: float = 1.0

    def __post_init__(self) -> None:
        if not self.haste > 0.0:
            raise SettingsError(f"haste {self.haste}", expected="a positive number")

    @property
    def name(self) -> str:
        """``exp3``, with the haste if there is any."""
        return "exp3" if self.haste == 1.0 else f"exp3 x{self.haste:g}"

    def start(self, names: Sequence[str]) -> LossState:
        """No loss yet."""
        known = even_weights(names).names
        return LossState(names=known, rounds=0, losses=np.zeros(len(known)))

    def learn(self, state: LossState, seen: BanditFeedback) -> LossState:
        """Add (1 - utility) / chance to the played policy's losses, nothing to the others'."""
        checked_seen(state.names, seen)
        losses = state.losses.copy()
        losses[seen.policy] += (1.0 - seen.utility) / seen.chance
        return LossState(names=state.names, rounds=state.rounds + 1, losses=losses)

    def weights(self, state: LossState) -> Weights:
        """exp(-eta L) at the rate of the next round."""
        rate = self.haste * _rate(len(state.names), state.rounds + 1)
        return Weights(
            log_weight=-rate * (state.losses - state.losses.min()), rounds=state.rounds, names=state.names
        )

    def static_bounds(self, played: Played) -> np.ndarray:
        """(h + 1/h) sqrt(M k ln M), in expectation over the draws."""
        size = len(played.names)
        return np.asarray((self.haste + 1.0 / self.haste) * np.sqrt(_rounds(played) * size * math.log(size)))

    def shifting_bounds(self, played: Played, shifts: int) -> np.ndarray:
        """The static bound without a change; with one, none is proven."""
        return _only_static(self.static_bounds(played), shifts)


def _rate(size: int, k: int) -> float:
    """sqrt(ln M / (M k))."""
    return math.sqrt(math.log(size) / (size * k))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exp3IX:
    """EXP3-IX (Neu 2015): the seen loss is divided by its chance plus gamma_k, so that no estimate is wild.

    eta_k = 2 gamma_k = sqrt(ln M / (M k)). With probability 1 - ``delta``, against anything: regret of what was drawn
    <= 4 sqrt(M k ln M) + (2 sqrt(M k / ln M) + 1) ln(2 / delta) (its theorem 1).
    """

    delta: float = 0.05

    @property
    def name(self) -> str:
        """``exp3-ix``."""
        return "exp3-ix"

    def start(self, names: Sequence[str]) -> LossState:
        """No loss yet."""
        return Exp3().start(names)

    def learn(self, state: LossState, seen: BanditFeedback) -> LossState:
        """Add (1 - utility) / (chance + gamma)."""
        checked_seen(state.names, seen)
        gamma = _rate(len(state.names), state.rounds + 1) / 2.0
        losses = state.losses.copy()
        losses[seen.policy] += (1.0 - seen.utility) / (seen.chance + gamma)
        return LossState(names=state.names, rounds=state.rounds + 1, losses=losses)

    def weights(self, state: LossState) -> Weights:
        """exp(-eta L) at the rate of the next round."""
        return Exp3().weights(state)

    def static_bounds(self, played: Played) -> np.ndarray:
        """The bound above, with probability 1 - delta of what was drawn."""
        size, rounds = len(played.names), _rounds(played)
        if size == 1:
            return np.zeros(len(rounds))
        log_size = math.log(size)
        sure = (2.0 * np.sqrt(size * rounds / log_size) + 1.0) * math.log(2.0 / self.delta)
        return np.asarray(4.0 * np.sqrt(size * rounds * log_size) + sure)

    def shifting_bounds(self, played: Played, shifts: int) -> np.ndarray:
        """The static bound without a change; with one, none is proven."""
        return _only_static(self.static_bounds(played), shifts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exp3S:
    """EXP3.S (Auer, Cesa-Bianchi, Freund and Schapire 2002, section 8): EXP3 that can follow a switch of regime (M5.4).

    Chances (1 - gamma) w / W + gamma / M; the played policy's weight grows by exp(gamma u / (chance M)), then e alpha
    W / M is added to each. Expected regret against any sequence with m changes after K rounds is at most
    M ((m + 1) ln(M / alpha) + e alpha K) / gamma + (e - 1) gamma K (their theorem 8.1); alpha = 1 / ``rounds``, and
    gamma makes that least for ``shifts`` changes in ``rounds`` rounds.
    """

    rounds: int = 1000
    shifts: int = 3

    @property
    def name(self) -> str:
        """``exp3.s``."""
        return "exp3.s"

    def explored(self, size: int) -> float:
        """gamma, the share of rounds in which a policy is drawn at random."""
        hard = (self.shifts + 1) * math.log(size * self.rounds) + math.e
        return min(1.0, math.sqrt(size * hard / ((math.e - 1.0) * self.rounds)))

    def start(self, names: Sequence[str]) -> Weights:
        """Even weights."""
        return even_weights(names)

    def learn(self, state: Weights, seen: BanditFeedback) -> Weights:
        """One update of the weights before chances are mixed."""
        checked_seen(state.names, seen)
        size = len(state.names)
        log_weight = state.log_weight.copy()
        log_weight[seen.policy] += self.explored(size) * seen.utility / (seen.chance * size)
        total = np.logaddexp.reduce(state.log_weight)
        log_weight = np.logaddexp(log_weight, total + 1.0 - math.log(self.rounds * size))
        return Weights(log_weight=log_weight - log_weight.max(), rounds=state.rounds + 1, names=state.names)

    def weights(self, state: Weights) -> Weights:
        """(1 - gamma) w / W + gamma / M."""
        gamma = self.explored(len(state.names))
        mixed = np.log((1.0 - gamma) * state.probability + gamma / len(state.names))
        return Weights(log_weight=mixed - mixed.max(), rounds=state.rounds, names=state.names)

    def static_bounds(self, played: Played) -> np.ndarray:
        """The shifting bound without a change."""
        return self.shifting_bounds(played, 0)

    def shifting_bounds(self, played: Played, shifts: int) -> np.ndarray:
        """The bound above, in expectation over the draws; no sequence changes more than once a round."""
        size, rounds = len(played.names), _rounds(played)
        if size == 1:
            return np.zeros(len(rounds))
        gamma, alpha = self.explored(size), 1.0 / self.rounds
        hard = (np.minimum(shifts, rounds - 1) + 1.0) * math.log(size / alpha)
        return np.asarray(size * (hard + math.e * alpha * rounds) / gamma + (math.e - 1.0) * gamma * rounds)
