"""Interface of learners with bandit feedback, which observe only the utility of the policy that was played (M10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from slackwater.optimization.selection.contract import PlayedRounds, Weights, checked_round
from slackwater.warehouse.errors import SettingsError

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class BanditFeedback:
    """Feedback of a round to a bandit: the policy played (its index), its utility in [0, 1] and its probability."""

    policy: int
    utility: float
    chance: float


class BanditLearner(Protocol[S]):
    """Update rule of the weights under bandit feedback (M10); a pure function of the feedback.

    The policy of a round is drawn by the weights, because learning depends on the probabilities
    actually used. Bounds hold in expectation over the draws against rounds fixed beforehand, unless
    the learner states otherwise.
    """

    @property
    def name(self) -> str:
        """Name shown for the learner."""
        ...

    def start(self, names: Sequence[str]) -> S:
        """Return the state before the first round."""
        ...

    def learn(self, state: S, seen: BanditFeedback) -> S:
        """Return the state after a round; raises `SettingsError` for a utility outside [0, 1] or an unknown policy."""
        ...

    def weights(self, state: S) -> Weights:
        """Return the probabilities for the next round; a policy that will not be played has log weight -inf."""
        ...

    def static_bounds(self, played: PlayedRounds) -> np.ndarray:
        """Return the bounds as `Learner.static_bounds`; infinite if none is proven."""
        ...

    def shifting_bounds(self, played: PlayedRounds, shifts: int) -> np.ndarray:
        """Return the bounds as `Learner.shifting_bounds`."""
        ...


def play_bandit(
    learner: BanditLearner[Any], names: Sequence[str], utilities: np.ndarray, *, rng: np.random.Generator
) -> tuple[PlayedRounds, list[Weights]]:
    """Draw a policy by weight in each round and give the learner the utility of this policy only.

    Returns the rounds with the draws, and the weights before round 1, 2, ..., K and after K. Raises
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
            state, BanditFeedback(policy=place, utility=float(row[place]), chance=float(chances[place]))
        )
    chances = np.array([weights.probability for weights in history]).reshape(values.shape)
    played = PlayedRounds(
        names=tuple(names), utilities=values, chances=chances, drawn=np.array(drawn, dtype=int)
    )
    return played, [*history, learner.weights(state)]


def checked_seen(names: Sequence[str], seen: BanditFeedback) -> BanditFeedback:
    """Return ``seen`` unchanged; raises `SettingsError` for an unknown policy or values out of range.

    The utility must be in [0, 1] and the probability in (0, 1].
    """
    if 0 <= seen.policy < len(names) and 0.0 <= seen.utility <= 1.0 and 0.0 < seen.chance <= 1.0 + 1e-9:
        return seen
    raise SettingsError(
        f"policy {seen.policy} of {len(names)}, utility {seen.utility}, chance {seen.chance}",
        expected="a policy of the pool, a share in [0, 1], a chance in (0, 1]",
        remedy="use normalised(utilities, utility_bounds(job, ...))",
    )
