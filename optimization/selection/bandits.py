"""What bandits would have made of a sequence of jobs, seeing only what the policy earned that they played (M10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimization.selection.contract import BanditLearner, play_bandit
from optimization.selection.rounds import SelectionSummary, checked_tables, summary_of

#: Normal quantile of a 95 % interval.
_Z95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class BanditRuns:
    """One bandit over the same jobs with several seeds of its draws.

    ``runs`` holds one summary a seed; of each, ``drawn`` utilities are what it really earned and regrets are expectations
    under its own chances.
    """

    runs: tuple[SelectionSummary, ...]

    @property
    def learner(self) -> str:
        """The name of the bandit."""
        return self.runs[0].learner

    @property
    def drawn_utility(self) -> float:
        """Mean raw utility earned over all jobs and seeds."""
        return float(np.mean([run.overall.drawn for run in self.runs]))

    @property
    def settled_utility(self) -> float:
        """The same after the first jobs (`selecting.SETTLING`)."""
        return float(np.mean([run.settled.drawn for run in self.runs]))

    @property
    def settled_interval(self) -> tuple[float, float]:
        """95 % interval of `settled_utility` over the seeds' draws, normal; NaN for one seed."""
        values = np.array([run.settled.drawn for run in self.runs])
        if len(values) < 2:
            return math.nan, math.nan
        half = _Z95 * float(values.std(ddof=1)) / math.sqrt(len(values))
        return float(values.mean()) - half, float(values.mean()) + half

    @property
    def settled_share(self) -> float:
        """`settled_utility` in the best fixed policy's over the same jobs; NaN unless that is positive."""
        best = self.runs[0].settled.best_fixed_utility
        return self.settled_utility / best if best > 0 else math.nan

    @property
    def stretch_utilities(self) -> tuple[float, ...]:
        """Mean raw utility earned in each stretch between switches."""
        rows = [[part.drawn for part in run.stretches] for run in self.runs]
        return tuple(np.mean(rows, axis=0).tolist())

    @property
    def regret_curve(self) -> np.ndarray:
        """Mean expected regret against the best single policy after each round, normalised, shape (K,)."""
        return np.asarray(np.mean([run.regret_curve for run in self.runs], axis=0))

    @property
    def shifting_regret_curve(self) -> np.ndarray:
        """The same against the best sequence of policies."""
        return np.asarray(np.mean([run.shifting_regret_curve for run in self.runs], axis=0))

    @property
    def bound_curve(self) -> np.ndarray:
        """The bound of `regret_curve`, infinite where none is proven."""
        return self.runs[0].bound_curve

    @property
    def shifting_bound_curve(self) -> np.ndarray:
        """The bound of `shifting_regret_curve`."""
        return self.runs[0].shifting_bound_curve


def select_with_bandit(
    utilities_normalised: np.ndarray,
    raw_utilities: np.ndarray,
    names: Sequence[str],
    *,
    learner: BanditLearner[Any],
    seeds: Sequence[int],
    cuts: Sequence[int] = (),
) -> BanditRuns:
    """Let a bandit choose among policies job after job, once for each seed.

    Tables and ``cuts`` as for `selecting.select_over`; of the first table the bandit sees one number a job. Raises
    `SettingsError` for tables that do not match or cuts outside the rounds.
    """
    values, raw = checked_tables(utilities_normalised, raw_utilities, names)
    runs = []
    for seed in seeds:
        played, history = play_bandit(learner, names, values, rng=np.random.default_rng([seed, 31]))
        runs.append(summary_of(learner, raw, played, history, cuts=cuts))
    return BanditRuns(runs=tuple(runs))
