"""What every learner of the selection is: weights before each round, learned from full information, with a proven bound (M5).

A learner sees one row of utilities a round, each in [0, 1] and one for each policy (M5.1, M5.2), and says beforehand how
far it trusts each policy. ``Learner`` is the protocol, `learners` holds the implementations; `play` runs one over a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from optimization.selection import Weights
from warehouse.errors import SettingsError

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Rounds that were played: ``utilities`` and ``chances`` (what the weights were before each round), both (K, M)."""

    names: tuple[str, ...]
    utilities: np.ndarray
    chances: np.ndarray

    @property
    def expected(self) -> np.ndarray:
        """Mean utility under the weights in each round, shape (K,)."""
        return np.asarray((self.chances * self.utilities).sum(axis=1))

    @property
    def static_regret(self) -> np.ndarray:
        """Utility of the best single policy so far minus what the weights expected to earn, shape (K,)."""
        best = self.utilities.cumsum(axis=0).max(axis=1)
        return np.asarray(best - self.expected.cumsum())


class Learner(Protocol[S]):
    """How trust moves from round to round; a pure function of the rounds seen, so that weights can be rebuilt (M5.3).

    ``memory`` says what the lead of one policy over another is made of: a number g in (0, 1] if it is a
    common factor times the sum of utility differences, each g^age; None if it is no such sum.
    """

    @property
    def name(self) -> str:
        """The name it is chosen by in the settings."""
        ...

    @property
    def memory(self) -> float | None:
        """See above."""
        ...

    def start(self, names: Sequence[str]) -> S:
        """The state before the first round."""
        ...

    def learn(self, state: S, utilities: np.ndarray) -> S:
        """The state after one more round, ``utilities`` of shape (M,) in [0, 1]; raises `SettingsError` for others."""
        ...

    def weights(self, state: S) -> Weights:
        """The weights for the next round."""
        ...

    def static_bounds(self, played: Played) -> np.ndarray:
        """After each round a proven bound of the regret against the best single policy, shape (K,)."""
        ...

    def shifting_bounds(self, played: Played, shifts: int) -> np.ndarray:
        """The same against the best sequence of policies with ``shifts`` changes (M5.4); infinite where none is proven."""
        ...


def weigh(learner: Learner[Any], names: Sequence[str], utilities: np.ndarray) -> list[Weights]:
    """The weights before round 1, 2, ..., K and after K, from stored utilities of shape (K, M) (M5.3).

    The same utilities in the same order give the same weights to the last bit.
    """
    state = learner.start(names)
    history = [learner.weights(state)]
    for row in np.asarray(utilities, dtype=float):
        state = learner.learn(state, row)
        history.append(learner.weights(state))
    return history


def play(learner: Learner[Any], names: Sequence[str], utilities: np.ndarray) -> Played:
    """The rounds as the learner would have played them, each weight made from earlier rounds only."""
    values = np.asarray(utilities, dtype=float)
    history = weigh(learner, names, values)[:-1]
    chances = np.array([weights.probability for weights in history]).reshape(values.shape)
    return Played(names=tuple(names), utilities=values, chances=chances)


def checked_round(names: Sequence[str], utilities: np.ndarray) -> np.ndarray:
    """``utilities`` as floats; raises `SettingsError` unless there is one in [0, 1] for each policy."""
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
