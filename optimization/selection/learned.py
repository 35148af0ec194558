"""What the selection has learned: the utility of each policy on each job that ended, and which policy leads by it (M5).

A utility belongs to a policy and a job, not to a pool. A policy that comes to the pool later lacks the jobs before it until it
is replayed on them: on those it slept. A sleeper's utility is what the learner expected of the policies that were awake. So it
neither gains nor loses on them, and the others keep what they have earned (specialists that sleep: Freund, Schapire, Singer and
Warmuth 1997).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimization.selection.contract import Learner, weigh
from optimization.selection.weights import Weights, leader

#: Newest jobs on which a policy that is new in the pool is replayed (ours); on older ones it sleeps.
REPLAYED_JOBS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """One round a job that ended, in the order in which they were learned.

    ``utilities`` in [0, 1] has shape (rounds, policies), NaN where a policy slept; ``known_us`` of the same shape says when each
    was learned, in microseconds since 1970 (UTC), 0 where there is none.
    """

    jobs: tuple[str, ...]
    names: tuple[str, ...]
    utilities: np.ndarray
    known_us: np.ndarray

    @property
    def asleep(self) -> np.ndarray:
        """Where a policy slept, shape (rounds, policies)."""
        return np.asarray(np.isnan(self.utilities))

    def before(self, at_us: int) -> Rounds:
        """What was learned before a time; what was learned at it, if that is the first (decision 3)."""
        known = ~self.asleep & (self.known_us < at_us)
        if not known.any():
            known = ~self.asleep & (self.known_us <= at_us)
        rows = np.flatnonzero(known.any(axis=1))
        return Rounds(
            jobs=tuple(self.jobs[i] for i in rows),
            names=self.names,
            utilities=np.where(known[rows], self.utilities[rows], np.nan),
            known_us=np.where(known[rows], self.known_us[rows], 0),
        )

    def begins(self, longer: Rounds) -> bool:
        """Whether these are the first rounds of ``longer``, so that their weights are among those of the longer ones."""
        size = len(self.jobs)
        return self.jobs == longer.jobs[:size] and np.array_equal(
            self.utilities, longer.utilities[:size], equal_nan=True
        )

    def with_job(self, job: str, utilities: Mapping[str, float], at_us: int) -> Rounds:
        """The rounds with what was learned of some policies on a job; what is known of them already stays."""
        fresh = np.array([utilities.get(name, np.nan) for name in self.names])
        if job not in self.jobs:
            return Rounds(
                jobs=(*self.jobs, job),
                names=self.names,
                utilities=np.vstack([self.utilities, fresh]),
                known_us=np.vstack([self.known_us, np.where(np.isnan(fresh), 0, at_us)]),
            )
        row = self.jobs.index(job)
        values, known = self.utilities.copy(), self.known_us.copy()
        new = np.isnan(values[row]) & ~np.isnan(fresh)
        values[row, new], known[row, new] = fresh[new], at_us
        return Rounds(jobs=self.jobs, names=self.names, utilities=values, known_us=known)

    def lacking(self, job: str) -> tuple[str, ...]:
        """The policies that were not replayed on a job."""
        if job not in self.jobs:
            return self.names
        slept = self.asleep[self.jobs.index(job)]
        return tuple(name for name, sleeps in zip(self.names, slept, strict=True) if sleeps)

    def settled(self) -> set[str]:
        """The jobs on which nothing is left to be replayed: no policy lacks them, or `REPLAYED_JOBS` newer ones are there."""
        complete = ~self.asleep.any(axis=1)
        old = np.arange(len(self.jobs)) < len(self.jobs) - REPLAYED_JOBS
        return {job for job, done in zip(self.jobs, complete | old, strict=True) if done}

    def full(self, learner: Learner[Any]) -> np.ndarray:
        """The utilities with those of sleepers as ``learner`` expected of the others: full information again (M5.1)."""
        return awakened(learner, self.names, self.utilities)

    def weights(self, learner: Learner[Any], *, after: int = 0) -> list[Weights]:
        """The weights before each round and after the last, rebuilt from the utilities (M5.3); see `weigh` for ``after``."""
        return weigh(learner, self.names, self.full(learner), after=after)

    def newest(self, learner: Learner[Any]) -> Weights:
        """The last of `weights`."""
        return self.weights(learner, after=len(self.jobs))[-1]


def awakened(learner: Learner[Any], names: Sequence[str], utilities: np.ndarray) -> np.ndarray:
    """``utilities`` (rounds, policies), each NaN replaced by the mean of its round under the learner's weights of the others."""
    values = np.asarray(utilities, dtype=float)
    if not np.isnan(values).any():
        return values
    filled = values.copy()
    state = learner.start(names)
    for row in filled:
        slept = np.isnan(row)
        if slept.any():
            trust = learner.weights(state).probability[~slept]
            even = np.full(trust.size, 1.0 / trust.size)
            row[slept] = np.clip((trust / trust.sum() if trust.sum() > 0 else even) @ row[~slept], 0.0, 1.0)
        state = learner.learn(state, row)
    return filled


def leading(weights: Weights, jobs: int) -> tuple[str, str]:
    """The policy that leads by weights learned from so many jobs, and why it decides."""
    name = leader(weights)
    weight = float(weights.probability[list(weights.names).index(name)])
    return name, f"leads after {jobs} jobs, weight {weight:.3f}"
