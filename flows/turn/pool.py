"""Policies to choose from in a turn, with the rounds learned so far and the learner (M5, M11.9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.ledger.rounds import stored_rounds
from slackwater.flows.turn.context import Turn
from slackwater.optimization.job.request import JobRequest
from slackwater.optimization.moving import MULTI_MARKET_POLICIES
from slackwater.optimization.moving.adapter import InOneMarket
from slackwater.optimization.moving.definition import MultiMarketPolicy
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pool import DEFAULT_POOL, load_pool, policy_named
from slackwater.optimization.policies.stochastic import Stochastic
from slackwater.optimization.selection.contract import Learner, Weights, weigh
from slackwater.optimization.selection.learned import Rounds, leading
from slackwater.optimization.selection.learners import learner_named
from slackwater.optimization.selection.prior import (
    DEFAULT_PRIOR,
    MeasuredWorld,
    inform_learner,
    prior_rounds,
    read_prior,
)
from slackwater.warehouse.errors import PolicyError
from slackwater.warehouse.times import microseconds

P = TypeVar("P")  # Single-market or multi-market policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Generic[P]):
    """Policies with their rounds and learner; ``first`` decides before any round, unless the learner is ``informed`` (M5.6)."""

    policies: tuple[P, ...]
    rounds: Rounds
    learner: Learner[Any]
    first: P
    informed: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the policies."""
        return self.rounds.names

    def lacking(self, job: str) -> list[P]:
        """Return the policies that were not replayed on a job."""
        lacking = self.rounds.lacking(job)
        return [policy for name, policy in zip(self.names, self.policies, strict=True) if name in lacking]

    def weights_after(self) -> list[np.ndarray]:
        """Return the weights after each round, each of shape (policies,)."""
        return [weights.probability for weights in self.rounds.weights(self.learner)[1:]]

    def deciding(self, times: Sequence[pd.Timestamp]) -> list[tuple[P, str]]:
        """Return the policy that decides at each time, and why: the leader by the rounds learned before (decision 3)."""
        known = [self.rounds.before(microseconds(at, "at")) for at in times]
        # Times whose rounds are the first rounds of this group share one pass over them.
        prefixes = [len(state.jobs) for state in known if state.jobs and state.begins(self.rounds)]
        first = min(prefixes, default=0)
        table = self.rounds.full(self.learner) if prefixes else self.rounds.utilities
        shared = weigh(self.learner, self.names, table, after=first) if prefixes else []
        found: list[tuple[P, str]] = []
        for state in known:
            seen = len(state.jobs)
            if not seen:
                found.append(self._first_leader())
            elif state.begins(self.rounds):
                found.append(self._leader_of(shared[seen - first], seen))
            else:
                found.append(self._leader_of(state.newest(self.learner), seen))
        return found

    def _first_leader(self) -> tuple[P, str]:
        if not self.informed:
            return self.first, "no job has ended yet"
        return self._leader_of(self.learner.weights(self.learner.start(self.names)), 0)

    def _leader_of(self, weights: Weights, jobs: int) -> tuple[P, str]:
        name, why = leading(weights, jobs)
        return self.policies[self.names.index(name)], why


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciders:
    """Policies that decide single- and multi-market jobs, each with the reason ("": no multi-market round yet, M11.9)."""

    in_one_market: tuple[Policy[Any], str]
    among_markets: tuple[MultiMarketPolicy[Any], str]

    def of(self, request: JobRequest) -> tuple[Policy[Any] | MultiMarketPolicy[Any], str]:
        """Return the policy that decides a job, and why."""
        return self.among_markets if request.may_move else self.in_one_market


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Group[Policy[Any]]):
    """Single-market policies of the settings, and multi-market policies as a separate group (M11.9)."""

    movers: Group[MultiMarketPolicy[Any]]

    def with_rounds(self, rounds: Rounds, of_movers: Rounds) -> Pool:
        """Return the pool with other rounds."""
        return replace(self, rounds=rounds, movers=replace(self.movers, rounds=of_movers))

    def group(self, request: JobRequest) -> Group[Any]:
        """Return the policies that are replayed on a job and decide it."""
        return self.movers if request.may_move else self

    def deciders(self, times: Sequence[pd.Timestamp]) -> list[Deciders]:
        """Return for each time the policies that decide, and why."""
        known = [bool(self.movers.rounds.before(microseconds(at, "at")).jobs) for at in times]
        return [
            Deciders(in_one_market=group, among_markets=(policy, why if knows else ""))
            for group, (policy, why), knows in zip(
                self.deciding(times), self.movers.deciding(times), known, strict=True
            )
        ]

    def settled_jobs(self) -> set[str]:
        """Return the jobs on which no policy is left to be replayed (`Rounds.settled`)."""
        return self.rounds.settled_jobs() | self.movers.rounds.settled_jobs()


def read_pool(turn: Turn) -> Pool:
    """Return the policy pool of the settings and the multi-market policies, with the rounds stored in the warehouse."""
    settings = turn.settings
    policies, learner = load_pool(settings.pool or DEFAULT_POOL), informed_learner(settings)
    names, movers = [policy.name for policy in policies], list(MULTI_MARKET_POLICIES)
    rounds, of_movers = (turn.read(stored_rounds, names_of_group) for names_of_group in (names, movers))
    return Pool(
        policies=tuple(policies),
        rounds=rounds,
        learner=learner,
        first=policy_named(settings.first_policy),
        informed=_is_informed(settings, names),
        movers=Group(
            policies=tuple(MULTI_MARKET_POLICIES.values()),
            rounds=of_movers,
            learner=learner,
            first=MULTI_MARKET_POLICIES[movers[0]],
            informed=_is_informed(settings, movers),
        ),
    )


def policies_named(turn: Turn, request: JobRequest, names: Sequence[str]) -> list[Any]:
    """Return the policies of some names (``all``: the replayed ones); raises `PolicyError` or `SettingsError` if unknown."""
    if not request.may_move:
        if "all" in names:
            return list(read_pool(turn).policies)
        for name in names:
            if name in MULTI_MARKET_POLICIES:
                raise PolicyError(
                    f"policy {name!r} of a job in one market",
                    expected="a policy for one market",
                    remedy="`slackwater leaderboard` lists them; a multi-market policy needs a job with `markets`",
                )
        return [policy_named(name) for name in names]
    at_home = [] if request.market is None else [InOneMarket(policy=Stochastic(), market=0)]
    known = {**MULTI_MARKET_POLICIES, **{policy.name: policy for policy in at_home}}
    for name in names:
        if name not in ("all", *known):
            raise PolicyError(
                f"policy {name!r} of a job that may run in several markets",
                expected=f"all, or one of {', '.join(map(repr, known))}",
            )
    return [known[name] for name in (known if "all" in names else dict.fromkeys(names))]


def informed_learner(settings: Settings) -> Learner[Any]:
    """Return the learner of the settings, initialised with earlier measurements (M5.6)."""
    return _informed_learner(settings.learner, settings.prior or DEFAULT_PRIOR, settings.prior_jobs)


@lru_cache(maxsize=8)
def _informed_learner(learner: str, prior: Path, jobs: int) -> Learner[Any]:
    """Return the informed learner, cached because a learner caches its initial state."""
    return inform_learner(learner_named(learner), _worlds(prior), jobs=jobs)


@lru_cache(maxsize=8)
def _worlds(prior: Path) -> tuple[MeasuredWorld, ...]:
    """Return the measured worlds, cached because a process may run many turns."""
    return read_prior(prior)


def _is_informed(settings: Settings, names: Sequence[str]) -> bool:
    worlds = _worlds(settings.prior or DEFAULT_PRIOR)
    return len(prior_rounds(names, worlds, jobs=settings.prior_jobs)) > 0


def deciding_policy(turn: Turn) -> tuple[Policy[Any], str]:
    """Return the policy that decides at the turn's time, and why."""
    return read_pool(turn).deciding([turn.at])[0]
