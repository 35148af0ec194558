"""A policy that goes by a wrong H(n): what an error of the predicted throughput costs while progress is reported (M9.4) (ours)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from optimization.job.definition import Job
from optimization.policies.committed_horizon import Solve
from optimization.policies.contract import Policy, View
from optimization.replay.run import Planning
from optimization.window.plan import Allocation

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Misjudged(Generic[S]):
    """``policy`` deciding for the job it ``believes`` in, while progress is that of the job it is asked for.

    The two may differ in their throughput, not in their sizes or slots. Every slot the policy is told the true work done,
    as if it were reported, but it never learns how fast the job is.
    """

    policy: Policy[S]
    believes: Job

    @property
    def name(self) -> str:
        """The name of the policy that decides."""
        return self.policy.name

    def start(self, job: Job) -> S:
        """The policy's state for the job it believes in."""
        return self.policy.start(self.believes)

    def decide(self, state: S, view: View) -> tuple[Allocation, S]:
        """What the policy decides for the job it believes in."""
        return self.policy.decide(state, self._seen(view))

    def explain(self, state: S, view: View, allocation: Allocation) -> str:
        """The policy's own reason."""
        return self.policy.explain(state, self._seen(view), allocation)

    def with_solver(self, solve: Solve) -> Misjudged[S]:
        """The same with its programs answered by ``solve``; policies without any are left as they are."""
        inner = self.policy.with_solver(solve) if isinstance(self.policy, Planning) else self.policy
        return Misjudged(policy=inner, believes=self.believes)

    def _seen(self, view: View) -> View:
        return replace(view, job=self.believes)
