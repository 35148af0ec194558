"""A blend of learners: AdaHedge over learners, each of which weighs the policies its own way (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimization.selection.contract import Learner, Played, Weights, checked_round, play
from optimization.selection.learners.adahedge import AdaHedge, AdaHedgeState
from warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendState:
    """The state of each learner, in order, and of the AdaHedge over them."""

    names: tuple[str, ...]
    parts: tuple[Any, ...]
    over: AdaHedgeState


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """Weights sum_j q_j w_j of ``learners``' weights w_j, with q by AdaHedge on what each of them expected to earn.

    Steady markets suit a learner that never forgets, changing ones a learner that does; which it will be
    need not be known. The regret against anything is at most the best learner's plus AdaHedge's over so few
    of them, so its bounds are the least of theirs plus that.
    """

    learners: tuple[Learner[Any], ...]

    def __post_init__(self) -> None:
        names = [learner.name for learner in self.learners]
        if not names or len(set(names)) != len(names):
            raise SettingsError(f"a blend of {names}", expected="at least one learner, each once")

    @property
    def name(self) -> str:
        """``blend``."""
        return "blend"

    @property
    def memory(self) -> float | None:
        """None: its parts remember differently."""
        return None

    def start(self, names: Sequence[str]) -> BlendState:
        """Every learner at its start, trusted alike."""
        return BlendState(
            names=tuple(names),
            parts=tuple(learner.start(names) for learner in self.learners),
            over=AdaHedge().start([learner.name for learner in self.learners]),
        )

    def learn(self, state: BlendState, utilities: np.ndarray) -> BlendState:
        """One round for every learner, and one for AdaHedge over what they expected."""
        values = checked_round(state.names, utilities)
        pairs = list(zip(self.learners, state.parts, strict=True))
        earned = [float(learner.weights(part).probability @ values) for learner, part in pairs]
        return BlendState(
            names=state.names,
            parts=tuple(learner.learn(part, values) for learner, part in pairs),
            over=AdaHedge().learn(state.over, np.clip(earned, 0.0, 1.0)),
        )

    def weights(self, state: BlendState) -> Weights:
        """sum_j q_j w_j, in logs so that no policy's weight vanishes."""
        trust = _log_share(AdaHedge().weights(state.over))
        logs = [
            log_q + _log_share(learner.weights(part))
            for log_q, learner, part in zip(trust, self.learners, state.parts, strict=True)
        ]
        log_weight = np.logaddexp.reduce(np.array(logs), axis=0)
        return Weights(log_weight=log_weight - log_weight.max(), rounds=state.over.rounds, names=state.names)

    def static_bounds(self, played: Played) -> np.ndarray:
        """The least static bound of a learner plus AdaHedge's over them, after each round."""
        return self.shifting_bounds(played, 0)

    def shifting_bounds(self, played: Played, shifts: int) -> np.ndarray:
        """The least shifting bound of a learner plus AdaHedge's static one over them, after each round."""
        parts = [play(learner, played.names, played.utilities) for learner in self.learners]
        earned = np.clip(np.stack([part.expected for part in parts], axis=1), 0.0, 1.0)
        over = play(AdaHedge(), [learner.name for learner in self.learners], earned)
        bounds = [
            learner.shifting_bounds(part, shifts) if shifts else learner.static_bounds(part)
            for learner, part in zip(self.learners, parts, strict=True)
        ]
        return np.asarray(np.min(bounds, axis=0) + AdaHedge().static_bounds(over))


def _log_share(weights: Weights) -> np.ndarray:
    """The logs of the weights that sum to 1."""
    raised = np.exp(weights.log_weight - weights.log_weight.max()).sum()
    return np.asarray(weights.log_weight - weights.log_weight.max() - np.log(raised))
