"""Interface of the selection's learners: weights over policies from utilities in [0, 1] (M5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from slackwater.optimization.job.definition import Job
from slackwater.warehouse.errors import SettingsError

# ---
# Selection by exponentiated gradient with full information, and its regret (M5). Three schedules of
# the learning rate and share, each with its bound, all on utilities in [0, 1]:
# - ``known_rate(M, K)``: eta = sqrt(8 ln M / K), regret after K rounds <= sqrt(K ln M / 2) (M5.2);
# - `ANYTIME`: eta_k = sqrt(8 ln M / k) for round k, weights exp(eta_k x summed utility), regret <=
#   2 sqrt(K ln M / 2) + sqrt(ln M / 8) at every K (Cesa-Bianchi and Lugosi 2006, theorem 2.3);
# - fixed share (M5.4): after each round a share alpha of all weight is spread evenly, so that the
#   regret against the best *sequence* of policies with m changes is bounded (same book, theorem
#   5.2; Herbster and Warmuth 1998).

#: Learning rate for an unknown number of rounds.
ANYTIME: Literal["anytime"] = "anytime"
Rate = float | Literal["anytime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weights of the policies ``names`` after ``rounds`` rounds: ``log_weight`` (M,), with maximum 0."""

    log_weight: np.ndarray
    rounds: int
    names: tuple[str, ...]

    @property
    def probability(self) -> np.ndarray:
        """Weights normalised to sum 1, shape (M,)."""
        raised = np.exp(self.log_weight - self.log_weight.max())
        return np.asarray(raised / raised.sum())


def even_weights(names: Sequence[str]) -> Weights:
    """Return the weights before the first round; raises `SettingsError` for no policy or a repeated name."""
    if not names or len(set(names)) != len(names):
        raise SettingsError(
            f"{len(names)} policies, {len(set(names))} names", expected="at least one, each once"
        )
    return Weights(log_weight=np.zeros(len(names)), rounds=0, names=tuple(names))


def utility_bounds(job: Job, *, on_demand_usd: float, slot_hours: float) -> tuple[float, float]:
    """Return fixed bounds of a job's utility, USD: minus the cost of N_max on-demand to gamma d, and v (M5.2)."""
    return -job.n_max * on_demand_usd * slot_hours * job.late_limit, job.value


def normalise(utilities: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Return utilities in USD as shares of the job's bounds, clipped to [0, 1] (M5.2)."""
    low, high = bounds
    return np.clip((np.asarray(utilities, dtype=float) - low) / (high - low), 0.0, 1.0)


def known_rate(policies: int, rounds: int) -> float:
    """Return eta = sqrt(8 ln M / K) for a known number K of rounds (M5.2)."""
    return math.sqrt(8.0 * math.log(policies) / rounds)


def update(weights: Weights, utilities: np.ndarray, *, rate: Rate, share: float = 0.0) -> Weights:
    """Return the weights after another round of normalised utilities, shape (M,) (M5.2, M5.4).

    w_i <- w_i exp(eta u_i), then w_i <- (1 - share) w_i + share sum(w) / M. With `ANYTIME` the
    weights after k rounds are exp(eta_{k+1} (u_i summed over k rounds)); `ANYTIME` excludes a
    share, which forgets by itself. Raises `SettingsError` for utilities of another shape or outside
    [0, 1], a negative rate or a share outside [0, 1).
    """
    utilities = checked_round(weights.names, utilities)
    if not 0.0 <= share < 1.0 or (share > 0.0 and rate == ANYTIME):
        raise SettingsError(
            f"share {share} at rate {rate}", expected="0 <= share < 1, and 0 at the anytime rate"
        )
    size, rounds = len(weights.names), weights.rounds + 1
    if rate == ANYTIME:
        now, then = known_rate(size, rounds), known_rate(size, rounds + 1)
        log_weight = weights.log_weight * (then / now if size > 1 else 1.0) + then * utilities
    elif rate >= 0.0:
        log_weight = weights.log_weight + rate * utilities
    else:
        raise SettingsError(f"learning rate {rate}", expected="a rate >= 0")
    log_weight = log_weight - log_weight.max()
    if share > 0.0:
        even = math.log(share / size) + np.log(np.exp(log_weight).sum())
        log_weight = np.logaddexp(math.log1p(-share) + log_weight, even)
        log_weight = log_weight - log_weight.max()
    return Weights(log_weight=log_weight, rounds=rounds, names=weights.names)


def leader(weights: Weights) -> str:
    """Return the policy of the largest weight, the first of ties."""
    return weights.names[int(np.argmax(weights.log_weight))]


def static_bound(policies: int, rounds: int, *, rate: Rate) -> float:
    """Return the bound of the regret after ``rounds`` rounds against the best single policy.

    Fixed rate eta: ln M / eta + eta K / 8, which is sqrt(K ln M / 2) at `known_rate`. `ANYTIME`: 2
    sqrt(K ln M / 2) + sqrt(ln M / 8).
    """
    log_size = math.log(policies)
    if policies == 1:
        return 0.0
    if rate == ANYTIME:
        return 2.0 * math.sqrt(rounds * log_size / 2.0) + math.sqrt(log_size / 8.0)
    return log_size / rate + rate * rounds / 8.0


def shifting_bound(policies: int, rounds: int, *, rate: float, share: float, shifts: int) -> float:
    """Return the regret bound of fixed share against the best sequence of policies with ``shifts`` changes (M5.4).

    (m + 1) ln M / eta + ln(1 / (alpha^m (1 - alpha)^(K - m - 1))) / eta + eta K / 8, with m changes
    and share alpha.
    """
    stay = max(rounds - shifts - 1, 0)
    changes = -shifts * math.log(share) - stay * math.log1p(-share)
    return ((shifts + 1) * math.log(policies) + changes) / rate + rate * rounds / 8.0


def shifting_rates(policies: int, rounds: int, shifts: int) -> tuple[float, float]:
    """Return (eta, share) that minimise `shifting_bound` for ``shifts`` changes: alpha = m / (K - 1)."""
    share = shifts / max(rounds - 1, 1) if shifts else 0.5 / max(rounds, 2)
    share = min(share, 0.5)
    at_one = shifting_bound(policies, rounds, rate=1.0, share=share, shifts=shifts) - rounds / 8.0
    return math.sqrt(8.0 * at_one / rounds), share


# ---
# Protocols of the learners: weights before each round, learned with full information, with a proven
# bound (M5). A learner receives a row of utilities per round, each in [0, 1], with an entry for
# each policy (M5.1, M5.2), and gives the weights of the policies before the round. ``Learner`` is
# the protocol, `learners` holds the implementations, and `play` runs a learner over a table.

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRounds:
    """Played rounds: ``utilities`` and ``chances`` (the weights before each round), both of shape (K, M).

    ``drawn`` (K,) is the policy played in each round if learning depended on it (bandit feedback), else None.
    """

    names: tuple[str, ...]
    utilities: np.ndarray
    chances: np.ndarray
    drawn: np.ndarray | None = None

    @property
    def expected(self) -> np.ndarray:
        """Mean utility under the weights in each round, shape (K,)."""
        return np.asarray((self.chances * self.utilities).sum(axis=1))

    @property
    def static_regret(self) -> np.ndarray:
        """Utility of the best single policy so far minus the expected utility under the weights, shape (K,)."""
        best = self.utilities.cumsum(axis=0).max(axis=1)
        return np.asarray(best - self.expected.cumsum())


class Learner(Protocol[S]):
    """Update rule of the weights; a pure function of past rounds, so that weights can be rebuilt (M5.3).

    ``memory`` describes the lead of a policy over another: a number g in (0, 1] if the lead is a common
    factor times the sum of utility differences, each weighted by g^age; None if it is no such sum.
    """

    @property
    def name(self) -> str:
        """Name of the learner in the settings."""
        ...

    @property
    def memory(self) -> float | None:
        """Decay factor g of the lead, or None (see the class)."""
        ...

    def start(self, names: Sequence[str]) -> S:
        """Return the state before the first round."""
        ...

    def learn(self, state: S, utilities: np.ndarray) -> S:
        """Return the state after a round of ``utilities`` (M,) in [0, 1]; raises `SettingsError` for other values."""
        ...

    def weights(self, state: S) -> Weights:
        """Return the weights for the next round."""
        ...

    def static_bounds(self, played: PlayedRounds) -> np.ndarray:
        """Return a proven bound of the regret against the best single policy after each round, shape (K,)."""
        ...

    def shifting_bounds(self, played: PlayedRounds, shifts: int) -> np.ndarray:
        """Return the bound against the best sequence with ``shifts`` changes (M5.4); infinite if none is proven."""
        ...


def weigh(
    learner: Learner[Any], names: Sequence[str], utilities: np.ndarray, *, after: int = 0
) -> list[Weights]:
    """Return the weights before round 1, 2, ..., K and after K, from stored utilities of shape (K, M) (M5.3).

    ``after`` omits the weights before that many rounds. Equal utilities in equal order give bitwise
    equal weights.
    """
    state = learner.start(names)
    history = [] if after else [learner.weights(state)]
    for k, row in enumerate(np.asarray(utilities, dtype=float), start=1):
        state = learner.learn(state, row)
        if k >= after:
            history.append(learner.weights(state))
    return history


def play(learner: Learner[Any], names: Sequence[str], utilities: np.ndarray) -> PlayedRounds:
    """Return the rounds as the learner would have played them, each with weights from earlier rounds only."""
    values = np.asarray(utilities, dtype=float)
    history = weigh(learner, names, values)[:-1]
    chances = np.array([weights.probability for weights in history]).reshape(values.shape)
    return PlayedRounds(names=tuple(names), utilities=values, chances=chances)


def checked_round(names: Sequence[str], utilities: np.ndarray) -> np.ndarray:
    """Return ``utilities`` as floats; raises `SettingsError` unless each policy has a utility in [0, 1]."""
    values = np.asarray(utilities, dtype=float)
    if values.shape != (len(names),):
        raise SettingsError(
            f"utilities of shape {values.shape}", expected=f"({len(names)},), one for each policy"
        )
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise SettingsError(
            f"utilities from {values.min()} to {values.max()}",
            expected="shares in [0, 1]",
            remedy="use normalised(utilities, utility_bounds(job, ...))",
        )
    return values
