"""Prior of the selection: policy measurements shipped as data, used as initial rounds of a learner (M5.6) (ours)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slackwater.optimization.selection.contract import Learner, PlayedRounds, Weights, play
from slackwater.optimization.selection.learned import fill_sleeping
from slackwater.optimization.selection.learners.blend import Blend
from slackwater.warehouse.documents import EXAMPLES, read_toml
from slackwater.warehouse.errors import SettingsError

#: Measurements of `slackwater experiment selection --prior` and ``experiment markets``.
DEFAULT_PRIOR = Path(__file__).parents[1] / "data" / "prior.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWorld:
    """Mean share in [0, 1] (M5.2, M11.8) of each policy over ``jobs`` jobs of one source of markets.

    ``source`` is the label of the source, or of a group of sources; ``command`` is the command that
    measured it.
    """

    source: str
    command: str
    jobs: int
    share: Mapping[str, float]


def read_prior(path: Path = DEFAULT_PRIOR) -> tuple[MeasuredWorld, ...]:
    """Return the worlds of a prior file; raises `SettingsError` for an invalid file."""
    table = read_toml(path, "prior file", error=SettingsError)
    try:
        return tuple(_world(row) for row in table.get("world", []))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(
            f"prior file {path}: {error}",
            expected="[[world]] tables with source, command, jobs and share.POLICY from 0 to 1",
            remedy=EXAMPLES["prior file"],
        ) from error


def _world(row: Mapping[str, Any]) -> MeasuredWorld:
    share = {str(name): float(value) for name, value in row["share"].items()}
    wrong = [name for name, value in share.items() if not 0.0 <= value <= 1.0]
    if wrong or not share:
        raise ValueError(f"source {row['source']}: share of {', '.join(wrong) or 'no policy'}")
    return MeasuredWorld(
        source=str(row["source"]), command=str(row["command"]), jobs=int(row["jobs"]), share=share
    )


def prior_rounds(names: Sequence[str], worlds: Sequence[MeasuredWorld], *, jobs: int) -> np.ndarray:
    """Return the rounds that represent the measurements, worlds in turn, shape (at most ``jobs``, policies).

    Worlds without any of the policies are omitted, all others have equally many rounds. A policy
    that is missing in a world has NaN there. Without such a world there are no rounds.
    """
    rows = [[world.share.get(name, np.nan) for name in names] for world in worlds]
    measured = np.array([row for row in rows if not np.isnan(row).all()]).reshape(-1, len(names))
    return np.tile(measured, (jobs // max(1, len(measured)), 1))


def inform_learner(learner: Learner[Any], worlds: Sequence[MeasuredWorld], *, jobs: int) -> Learner[Any]:
    """Return the learner with ``worlds`` as its prior, weighted as ``jobs`` jobs.

    In a blend only the parts get the prior: the measurements are means, and rounds without noise
    would teach the blend to trust the part that changes fastest.
    """
    if isinstance(learner, Blend):
        return Blend(learners=tuple(inform_learner(part, worlds, jobs=jobs) for part in learner.learners))
    return InformedLearner(learner=learner, worlds=tuple(worlds), jobs=jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class InformedLearner:
    """Learner with a prior: measurements of ``worlds`` count as so many ``jobs`` before the first round (ours).

    It starts in the state of the learner after those rounds (`prior_rounds`); a policy in none of
    the worlds is asleep (M5.3).
    """

    learner: Learner[Any]
    worlds: tuple[MeasuredWorld, ...]
    jobs: int
    _started: dict[tuple[str, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the learner without the prior."""
        return self.learner.name

    @property
    def memory(self) -> float | None:
        """None: the part of a lead that stems from the prior belongs to no job."""
        return None

    def prior(self, names: Sequence[str]) -> np.ndarray:
        """Return the rounds of the prior, shape (K, policies), without NaN."""
        return fill_sleeping(self.learner, names, prior_rounds(names, self.worlds, jobs=self.jobs))

    def start(self, names: Sequence[str]) -> Any:
        """Return the learner's state after the prior; cached, since states are immutable."""
        pool_names = tuple(names)
        if pool_names not in self._started:
            state = self.learner.start(names)
            for row in self.prior(names):
                state = self.learner.learn(state, row)
            self._started[pool_names] = state
        return self._started[pool_names]

    def learn(self, state: Any, utilities: np.ndarray) -> Any:
        """Return the state after the round, as the learner without the prior."""
        return self.learner.learn(state, utilities)

    def weights(self, state: Any) -> Weights:
        """Return the weights for the next round, as the learner without the prior."""
        return self.learner.weights(state)

    def static_bounds(self, played: PlayedRounds) -> np.ndarray:
        """Return the learner's bound over prior and rounds, plus the deficit of the rounds' best policy in the prior.

        The regret over both is the sum of the regret over the prior and that over the rounds; so a
        wrong prior costs at most its error.
        """
        before, both = self._with_prior(played)
        behind = (before.expected[:, None] - before.utilities).sum(axis=0)
        best = played.utilities.cumsum(axis=0).argmax(axis=1)
        return np.asarray(self.learner.static_bounds(both)[len(before.utilities) :] + behind[best])

    def shifting_bounds(self, played: PlayedRounds, shifts: int) -> np.ndarray:
        """Return the shifting bound likewise, for a sequence that starts with the policy of the lowest prior."""
        before, both = self._with_prior(played)
        behind = (before.expected[:, None] - before.utilities).sum(axis=0)
        most = float(behind.max(initial=0.0))
        return np.asarray(self.learner.shifting_bounds(both, shifts)[len(before.utilities) :] + most)

    def _with_prior(self, played: PlayedRounds) -> tuple[PlayedRounds, PlayedRounds]:
        """Return the prior's rounds as the learner would have played them, and these followed by the played rounds."""
        before = play(self.learner, played.names, self.prior(played.names))
        return before, PlayedRounds(
            names=played.names,
            utilities=np.vstack([before.utilities, played.utilities]),
            chances=np.vstack([before.chances, played.chances]),
        )
