"""Blend of learners: AdaHedge over learners that weigh the policies in different ways (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from slackwater.optimization.selection.contract import Learner, PlayedRounds, Weights, checked_round, play
from slackwater.optimization.selection.learners.adahedge import AdaHedge, AdaHedgeState
from slackwater.optimization.selection.learners.exponentiated import FixedShare
from slackwater.warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendState:
    """State of each learner, in order, and of the AdaHedge over them."""

    names: tuple[str, ...]
    parts: tuple[Any, ...]
    over: AdaHedgeState


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """Weights sum_j q_j w_j of the weights w_j of ``learners``, with q by AdaHedge on their expected utilities.

    Steady markets suit a learner that never forgets, changing markets a learner that does; the blend needs no
    knowledge of the case. Its regret is at most that of the best learner plus the regret of AdaHedge over the
    few learners, so its bound is the least of their bounds plus that of AdaHedge.
    """

    name: ClassVar[str] = "blend"
    memory: ClassVar[float | None] = None

    learners: tuple[Learner[Any], ...]

    def __post_init__(self) -> None:
        names = [learner.name for learner in self.learners]
        if not names or len(set(names)) != len(names):
            raise SettingsError(f"a blend of {names}", expected="at least one learner, each once")

    def start(self, names: Sequence[str]) -> BlendState:
        """Return every learner at its start, with even trust."""
        return BlendState(
            names=tuple(names),
            parts=tuple(learner.start(names) for learner in self.learners),
            over=AdaHedge().start([learner.name for learner in self.learners]),
        )

    def learn(self, state: BlendState, utilities: np.ndarray) -> BlendState:
        """Update every learner with the round, and AdaHedge with their expected utilities."""
        values = checked_round(state.names, utilities)
        pairs = list(zip(self.learners, state.parts, strict=True))
        earned = [float(learner.weights(part).probability @ values) for learner, part in pairs]
        return BlendState(
            names=state.names,
            parts=tuple(learner.learn(part, values) for learner, part in pairs),
            over=AdaHedge().learn(state.over, np.clip(earned, 0.0, 1.0)),
        )

    def weights(self, state: BlendState) -> Weights:
        """Return sum_j q_j w_j, computed in logs so that no weight underflows."""
        trust = _log_share(AdaHedge().weights(state.over))
        logs = [
            log_q + _log_share(learner.weights(part))
            for log_q, learner, part in zip(trust, self.learners, state.parts, strict=True)
        ]
        log_weight = np.logaddexp.reduce(np.array(logs), axis=0)
        return Weights(log_weight=log_weight - log_weight.max(), rounds=state.over.rounds, names=state.names)

    def static_bounds(self, played: PlayedRounds) -> np.ndarray:
        """Return the least static bound of a learner plus that of AdaHedge over them, after each round."""
        return self.shifting_bounds(played, 0)

    def shifting_bounds(self, played: PlayedRounds, shifts: int) -> np.ndarray:
        """Return the least shifting bound of a learner plus the static bound of AdaHedge, after each round."""
        parts = [play(learner, played.names, played.utilities) for learner in self.learners]
        earned = np.clip(np.stack([part.expected for part in parts], axis=1), 0.0, 1.0)
        over = play(AdaHedge(), [learner.name for learner in self.learners], earned)
        bounds = [
            learner.shifting_bounds(part, shifts) if shifts else learner.static_bounds(part)
            for learner, part in zip(self.learners, parts, strict=True)
        ]
        return np.asarray(np.min(bounds, axis=0) + AdaHedge().static_bounds(over))


def _log_share(weights: Weights) -> np.ndarray:
    """Return the logs of the weights normalised to sum 1."""
    raised = np.exp(weights.log_weight - weights.log_weight.max()).sum()
    return np.asarray(weights.log_weight - weights.log_weight.max() - np.log(raised))


def default_blend() -> Blend:
    """Return the blend of AdaHedge with fixed share at four learning rates."""
    return Blend(learners=(AdaHedge(), *(FixedShare(haste=haste) for haste in (1.0, 8.0, 64.0, 512.0))))
