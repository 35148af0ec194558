"""What every learner of the selection is: weights before each round, learned from full information, with a proven bound (M5).

A learner sees one row of utilities a round, each in [0, 1] and one for each policy (M5.1, M5.2), and says beforehand how
far it trusts each policy. ``Learner`` is the protocol, `learners` holds the implementations; `play` runs one over a table.

A `BanditLearner` is told less: of a round only what the policy earned that it played (M10). Nothing hands it the other
utilities, so it cannot read them; `play_bandit` runs one over a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from optimization.selection.weights import Weights
from warehouse.errors import SettingsError

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Rounds that were played: ``utilities`` and ``chances`` (what the weights were before each round), both (K, M).

    ``drawn`` (K,): the policy played in each round, where what was learned hung on it (bandit feedback), else None.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that a round shows under bandit feedback: the policy played (its place), what it earned in [0, 1], and the
    chance that it had of being played."""

    policy: int
    utility: float
    chance: float


class BanditLearner(Protocol[S]):
    """How trust moves when only the played policy's utility is seen (M10); a pure function of what was seen.

    The policy of a round is drawn by the weights, since what is learned rests on the chances that were really used.
    Bounds speak of the expectation over the draws against rounds fixed beforehand, unless the learner says otherwise.
    """

    @property
    def name(self) -> str:
        """The name it is shown by."""
        ...

    def start(self, names: Sequence[str]) -> S:
        """The state before the first round."""
        ...

    def learn(self, state: S, seen: Seen) -> S:
        """The state after one more round; raises `SettingsError` for a utility outside [0, 1] or a policy that is none."""
        ...

    def weights(self, state: S) -> Weights:
        """The chances for the next round; a policy that will not be played has log weight -inf."""
        ...

    def static_bounds(self, played: Played) -> np.ndarray:
        """As `Learner.static_bounds`; infinite where none is proven."""
        ...

    def shifting_bounds(self, played: Played, shifts: int) -> np.ndarray:
        """As `Learner.shifting_bounds`."""
        ...


def weigh(
    learner: Learner[Any], names: Sequence[str], utilities: np.ndarray, *, after: int = 0
) -> list[Weights]:
    """The weights before round 1, 2, ..., K and after K, from stored utilities of shape (K, M) (M5.3).

    ``after`` leaves out those before so many rounds were seen. The same utilities in the same order give the same weights to the
    last bit.
    """
    state = learner.start(names)
    history = [] if after else [learner.weights(state)]
    for k, row in enumerate(np.asarray(utilities, dtype=float), start=1):
        state = learner.learn(state, row)
        if k >= after:
            history.append(learner.weights(state))
    return history


def play(learner: Learner[Any], names: Sequence[str], utilities: np.ndarray) -> Played:
    """The rounds as the learner would have played them, each weight made from earlier rounds only."""
    values = np.asarray(utilities, dtype=float)
    history = weigh(learner, names, values)[:-1]
    chances = np.array([weights.probability for weights in history]).reshape(values.shape)
    return Played(names=tuple(names), utilities=values, chances=chances)


def play_bandit(
    learner: BanditLearner[Any], names: Sequence[str], utilities: np.ndarray, *, rng: np.random.Generator
) -> tuple[Played, list[Weights]]:
    """Draw a policy by weight round after round, and tell the learner what that one earned, nothing else.

    Returns the rounds with what was drawn, and the weights before round 1, 2, ..., K and after K. Raises
    `SettingsError` for utilities of another shape or outside [0, 1].
    """
    values = np.asarray(utilities, dtype=float)
    state, history, drawn = learner.start(names), [], []
    for row in values:
        checked_round(names, row)
        weights = learner.weights(state)
        chances = weights.probability
        place = min(int(np.searchsorted(np.cumsum(chances), rng.random(), side="right")), len(names) - 1)
        history.append(weights)
        drawn.append(place)
        state = learner.learn(
            state, Seen(policy=place, utility=float(row[place]), chance=float(chances[place]))
        )
    chances = np.array([weights.probability for weights in history]).reshape(values.shape)
    played = Played(names=tuple(names), utilities=values, chances=chances, drawn=np.array(drawn, dtype=int))
    return played, [*history, learner.weights(state)]


def checked_seen(names: Sequence[str], seen: Seen) -> Seen:
    """``seen`` as it is; raises `SettingsError` unless it names a policy, a utility in [0, 1] and a chance in (0, 1]."""
    if 0 <= seen.policy < len(names) and 0.0 <= seen.utility <= 1.0 and 0.0 < seen.chance <= 1.0 + 1e-9:
        return seen
    raise SettingsError(
        f"policy {seen.policy} of {len(names)}, utility {seen.utility}, chance {seen.chance}",
        expected="a policy of the pool, a share in [0, 1], a chance in (0, 1]",
        remedy="use normalised(utilities, utility_bounds(job, ...))",
    )


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
