"""What was measured of policies before the first job, shipped as data, as rounds that a learner begins with (M5.6) (ours)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from optimization.selection.contract import Learner, Played, Weights, play
from optimization.selection.learned import awakened
from optimization.selection.learners.blend import Blend
from warehouse.errors import SettingsError

#: What `slackwater experiment selection --prior` and ``experiment markets`` have measured.
DEFAULT_PRIOR = Path(__file__).parents[1] / "data" / "prior.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWorld:
    """Mean share in [0, 1] (M5.2, M11.8) of each policy over ``jobs`` jobs of one source of markets.

    ``source`` is the label of the source, or of what stands for several; ``command`` made it.
    """

    source: str
    command: str
    jobs: int
    share: Mapping[str, float]


def read_prior(path: Path = DEFAULT_PRIOR) -> tuple[MeasuredWorld, ...]:
    """The worlds of a prior file; raises `SettingsError` naming what is wrong with it."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return tuple(_world(row) for row in table.get("world", []))
    except OSError as error:
        raise SettingsError(
            f"prior file {path}: {error.strerror}", remedy="name a readable file, or leave `prior` out"
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(
            f"prior file {path}: {error}",
            expected="[[world]] tables with source, command, jobs and share.POLICY from 0 to 1",
            remedy="make it with `slackwater experiment selection --data DIR --prior FILE`",
        ) from error


def _world(row: Mapping[str, Any]) -> MeasuredWorld:
    share = {str(name): float(value) for name, value in row["share"].items()}
    wrong = [name for name, value in share.items() if not 0.0 <= value <= 1.0]
    if wrong or not share:
        raise ValueError(f"source {row['source']}: share of {', '.join(wrong) or 'no policy'}")
    return MeasuredWorld(
        source=str(row["source"]), command=str(row["command"]), jobs=int(row["jobs"]), share=share
    )


def write_prior(path: Path, worlds: Sequence[MeasuredWorld]) -> None:
    """Write worlds as `read_prior` reads them, best policy first."""
    lines = ["# What was measured of policies before the first job: see optimization/selection/prior.py."]
    for world in worlds:
        lines += ["", "[[world]]", f'source = "{world.source}"', f"command = '{world.command}'"]
        lines += [f"jobs = {world.jobs}", "[world.share]"]
        best = sorted(world.share.items(), key=lambda item: (-item[1], item[0]))
        lines += [f'"{name}" = {share:.6f}' for name, share in best]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def prior_rounds(names: Sequence[str], worlds: Sequence[MeasuredWorld], *, jobs: int) -> np.ndarray:
    """The rounds that stand for what was measured of these policies, worlds in turn, shape (at most ``jobs``, policies).

    Worlds that know none of them are left out, and every other has as many rounds. A policy that a world does not know has NaN
    there. Without such a world there is no round.
    """
    rows = [[world.share.get(name, np.nan) for name in names] for world in worlds]
    known = np.array([row for row in rows if not np.isnan(row).all()]).reshape(-1, len(names))
    return np.tile(known, (jobs // max(1, len(known)), 1))


def informed(learner: Learner[Any], worlds: Sequence[MeasuredWorld], *, jobs: int) -> Learner[Any]:
    """The learner as one that has seen ``worlds``, counted as so many ``jobs``.

    Of a blend its parts have: what was measured is means, and rounds without noise would teach it to trust the part that turns
    fastest.
    """
    if isinstance(learner, Blend):
        return Blend(learners=tuple(informed(part, worlds, jobs=jobs) for part in learner.learners))
    return Informed(learner=learner, worlds=tuple(worlds), jobs=jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Informed:
    """A learner that has seen ``worlds`` before the first round: what was measured elsewhere counts as so many ``jobs`` (ours).

    It begins as the learner would after those rounds (`prior_rounds`), a policy that none of them knows asleep (M5.3).
    """

    learner: Learner[Any]
    worlds: tuple[MeasuredWorld, ...]
    jobs: int
    _started: dict[tuple[str, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """That of the learner."""
        return self.learner.name

    @property
    def memory(self) -> float | None:
        """None: the prior's share of a lead belongs to no job."""
        return None

    def prior(self, names: Sequence[str]) -> np.ndarray:
        """The rounds before the first, (K, policies), without NaN."""
        return awakened(self.learner, names, prior_rounds(names, self.worlds, jobs=self.jobs))

    def start(self, names: Sequence[str]) -> Any:
        """The learner's state after the prior; computed once, as states are never changed."""
        asked = tuple(names)
        if asked not in self._started:
            state = self.learner.start(names)
            for row in self.prior(names):
                state = self.learner.learn(state, row)
            self._started[asked] = state
        return self._started[asked]

    def learn(self, state: Any, utilities: np.ndarray) -> Any:
        """As the learner."""
        return self.learner.learn(state, utilities)

    def weights(self, state: Any) -> Weights:
        """As the learner."""
        return self.learner.weights(state)

    def static_bounds(self, played: Played) -> np.ndarray:
        """The learner's bound over prior and rounds together, and what the best policy of the rounds earned less in the prior.

        Regret over both is what it was over the prior plus what it is over the rounds; so a prior that is wrong costs at most what
        it was wrong by.
        """
        before, both = self._together(played)
        behind = (before.expected[:, None] - before.utilities).sum(axis=0)
        best = played.utilities.cumsum(axis=0).argmax(axis=1)
        return np.asarray(self.learner.static_bounds(both)[len(before.utilities) :] + behind[best])

    def shifting_bounds(self, played: Played, shifts: int) -> np.ndarray:
        """Likewise, as if the sequence began with the policy that the prior thinks least of."""
        before, both = self._together(played)
        behind = (before.expected[:, None] - before.utilities).sum(axis=0)
        most = float(behind.max(initial=0.0))
        return np.asarray(self.learner.shifting_bounds(both, shifts)[len(before.utilities) :] + most)

    def _together(self, played: Played) -> tuple[Played, Played]:
        """The rounds of the prior as the learner would have played them, and these before those that were played."""
        before = play(self.learner, played.names, self.prior(played.names))
        return before, Played(
            names=played.names,
            utilities=np.vstack([before.utilities, played.utilities]),
            chances=np.vstack([before.chances, played.chances]),
        )
