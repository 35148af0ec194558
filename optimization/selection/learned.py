"""Learned state of the selection: utilities, leader and regret over its rounds (M5)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from slackwater.optimization.selection.contract import Learner, PlayedRounds, Weights, leader, weigh
from slackwater.optimization.selection.learners import learner_named
from slackwater.warehouse.amounts import plural
from slackwater.warehouse.errors import SettingsError


def learn(utilities: Mapping[str, Sequence[float]], *, learner: str = "default") -> Weights:
    """Return the weights of the policies after the given rounds (M5.2).

    ``utilities`` maps every policy name to its utility in each round, a share in [0, 1] (see `normalised`).
    Raises `SettingsError` for values outside [0, 1] and for policies with different numbers of rounds.
    """
    rounds = {len(utilities_of_policy) for utilities_of_policy in utilities.values()}
    if len(rounds) > 1:
        raise SettingsError(f"policies with {sorted(rounds)} rounds", expected="every policy in every round")
    table = np.array(list(utilities.values()), dtype=float).T
    return weigh(learner_named(learner), list(utilities), table)[-1]


# ---
# Utility of each policy on each ended job, and the leading policy. A utility belongs to a policy
# and a job, not to a pool. A policy that joins the pool later has no utility on earlier jobs until
# it is replayed on them; it sleeps on them. The utility of a sleeping policy is the learner's
# expectation over the awake policies. So it neither gains nor loses on these jobs, and the others
# retain their earnings (sleeping specialists: Freund, Schapire, Singer and Warmuth 1997).

#: Number of newest jobs on which a policy new in the pool is replayed (ours); it sleeps on older jobs.
REPLAYED_JOBS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rounds of the selection, a round per ended job, in the order in which they were learned.

    ``utilities`` in [0, 1] has shape (rounds, policies), NaN where a policy slept. ``known_us`` of the same
    shape is the time at which each utility was learned, in microseconds since 1970 (UTC), 0 if there is none.
    """

    jobs: tuple[str, ...]
    names: tuple[str, ...]
    utilities: np.ndarray
    known_us: np.ndarray

    @property
    def asleep(self) -> np.ndarray:
        """Mask of the rounds in which a policy slept, shape (rounds, policies)."""
        return np.asarray(np.isnan(self.utilities))

    def before(self, at_us: int) -> Rounds:
        """Return the rounds learned before a time; utilities learned at exactly that time are excluded (decision 3)."""
        known = ~self.asleep & (self.known_us < at_us)
        rows = np.flatnonzero(known.any(axis=1))
        return Rounds(
            jobs=tuple(self.jobs[i] for i in rows),
            names=self.names,
            utilities=np.where(known[rows], self.utilities[rows], np.nan),
            known_us=np.where(known[rows], self.known_us[rows], 0),
        )

    def only(self, jobs: Collection[str]) -> Rounds:
        """Return the rounds of the given jobs, in the stored order."""
        rows = [i for i, job in enumerate(self.jobs) if job in set(jobs)]
        return Rounds(
            jobs=tuple(self.jobs[i] for i in rows),
            names=self.names,
            utilities=self.utilities[rows],
            known_us=self.known_us[rows],
        )

    def begins(self, longer: Rounds) -> bool:
        """Return whether these are the first rounds of ``longer``, so that its weights include the weights of these."""
        size = len(self.jobs)
        return self.jobs == longer.jobs[:size] and np.array_equal(
            self.utilities, longer.utilities[:size], equal_nan=True
        )

    def with_job(self, job: str, utilities: Mapping[str, float], at_us: int) -> Rounds:
        """Return the rounds with the utilities of some policies on a job added; known utilities are unchanged."""
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
        """Return the policies that were not replayed on a job."""
        if job not in self.jobs:
            return self.names
        slept = self.asleep[self.jobs.index(job)]
        return tuple(name for name, sleeps in zip(self.names, slept, strict=True) if sleeps)

    def settled_jobs(self) -> set[str]:
        """Return the jobs that need no further replay: complete, or older than the newest `REPLAYED_JOBS` jobs."""
        complete = ~self.asleep.any(axis=1)
        old = np.arange(len(self.jobs)) < len(self.jobs) - REPLAYED_JOBS
        return {job for job, done in zip(self.jobs, complete | old, strict=True) if done}

    def full(self, learner: Learner[Any]) -> np.ndarray:
        """Return the utilities with sleepers filled in by ``learner``, so that information is full again (M5.1)."""
        return fill_sleeping(learner, self.names, self.utilities)

    def weights(self, learner: Learner[Any], *, after: int = 0) -> list[Weights]:
        """Return the weights before each round and after the last (M5.3); see `weigh` for ``after``."""
        return weigh(learner, self.names, self.full(learner), after=after)

    def newest(self, learner: Learner[Any]) -> Weights:
        """Return the last of `weights`."""
        return self.weights(learner, after=len(self.jobs))[-1]


def fill_sleeping(learner: Learner[Any], names: Sequence[str], utilities: np.ndarray) -> np.ndarray:
    """Replace each NaN of ``utilities`` (rounds, policies) by its round's mean under the weights of the other policies."""
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
    """Return the leading policy by weights learned from ``jobs`` jobs, and the reason why it decides."""
    name = leader(weights)
    weight = float(weights.probability[list(weights.names).index(name)])
    since = f"leads after {plural(jobs, 'job')}" if jobs else "leads by the results of experiments"
    return name, f"{since}, weight {weight:.3f}"


# ---
# Regret of the selection over its rounds, and the jobs that changed the leader (M5.2-M5.5).


def round_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Pivot ledger rows (job, policy, ``normalised``) to a row per round and a column per policy.

    Both are in order of first appearance. Raises `SettingsError` if a job lacks a policy, since the
    bounds require full information (M5.1).
    """
    jobs, policies = list(dict.fromkeys(rows["job"])), list(dict.fromkeys(rows["policy"]))
    table = rows.pivot(index="job", columns="policy", values="normalised").reindex(
        index=jobs, columns=policies
    )
    holes = np.flatnonzero(table.isna().to_numpy().any(axis=1))
    if holes.size:
        raise SettingsError(
            f"job {jobs[holes[0]]!r} has no utility for some policy", remedy="replay the whole pool on it"
        )
    return table


def learner_regret(ledger: pd.DataFrame, learner: Learner[Any]) -> pd.DataFrame:
    """Return the cumulative regret per round of selection by weight and of following the leader (M5.3).

    ``ledger`` has rows (job, policy, ``normalised`` in [0, 1]), jobs in the order of the rounds.
    Columns: round, job, leader, expected (mean utility under the weights), followed (utility of the
    leader), static_regret and static_regret_leader (against the best single policy so far) and static_bound.
    """
    table = round_table(ledger)
    utilities = table.to_numpy(dtype=float)
    history = weigh(learner, list(table.columns), utilities)
    led = np.array([int(np.argmax(weights.log_weight)) for weights in history[:-1]])
    chances = np.array([weights.probability for weights in history[:-1]])
    played = PlayedRounds(names=history[0].names, utilities=utilities, chances=chances)
    followed = utilities[np.arange(len(led)), led]
    best = utilities.cumsum(axis=0).max(axis=1)
    return pd.DataFrame(
        {
            "round": np.arange(1, len(led) + 1),
            "job": list(table.index),
            "leader": [played.names[i] for i in led],
            "expected": played.expected,
            "followed": followed,
            "static_regret": played.static_regret,
            "static_regret_leader": best - followed.cumsum(),
            "static_bound": learner.static_bounds(played),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChange:
    """Change of the leader: in round ``round`` (1-based) job ``job`` put ``after`` ahead of ``before``.

    ``moved`` lists the jobs since the start by how far each increased the lead of ``after`` over ``before``
    in log weight, largest first; negative values decreased it. The sum is the lead of ``after``.
    """

    round: int
    job: str
    before: str
    after: str
    moved: tuple[tuple[str, float], ...]

    def sentence(self) -> str:
        """Return, for example, ``AHANP(0.7) overtook UP after job j4, mostly by j4 (+0.31), j2 (+0.12)``."""
        named = ", ".join(f"{job} ({by:+.2f})" for job, by in self.moved[:3] if by > 0)
        return f"{self.after} overtook {self.before} after job {self.job}, mostly by {named or 'small steps'}"


def why_leader_changed(
    ledger: pd.DataFrame, history: Sequence[Weights], *, memory: float | None = None
) -> list[LeaderChange]:
    """Return every change of the leader, with the jobs that caused it (M5.5).

    ``ledger`` as for `learner_regret`; ``history`` holds the weights before each round and after the
    last (`weigh`). With ``memory`` g (`Learner.memory`) the lead is attributed to the
    jobs in proportion to g^age (u_after - u_before), its exact components; otherwise job k is
    attributed the change of log w_after - log w_before in its round.
    """
    table = round_table(ledger)
    jobs, utilities = [str(job) for job in table.index], table.to_numpy(dtype=float)
    if len(history) != len(jobs) + 1:
        raise SettingsError(f"{len(history)} weights for {len(jobs)} rounds", expected="one more than rounds")
    logs = np.array([weights.log_weight for weights in history])
    led = [int(np.argmax(row)) for row in logs]
    names, changes = history[0].names, []
    for k, job in enumerate(jobs):
        before, after = led[k], led[k + 1]
        if before == after:
            continue
        lead = logs[: k + 2, after] - logs[: k + 2, before]
        ahead = utilities[: k + 1, after] - utilities[: k + 1, before]
        by = np.diff(lead) if memory is None else _shared_out(lead[-1], ahead, memory)
        steps = sorted(zip(jobs, by.tolist(), strict=False), key=lambda item: -item[1])
        changes.append(
            LeaderChange(round=k + 1, job=job, before=names[before], after=names[after], moved=tuple(steps))
        )
    return changes


def _shared_out(lead: float, ahead: np.ndarray, memory: float) -> np.ndarray:
    """Attribute the lead to the rounds in proportion to memory^age times the utility difference of each round."""
    parts = ahead * memory ** np.arange(len(ahead) - 1, -1, -1, dtype=float)
    whole = float(parts.sum())
    return np.asarray(parts * (lead / whole if whole else 0.0))
