"""Adapter that lifts a policy of one market to the markets of a job (M11.5) (ours)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from slackwater.optimization.market.belief import Forgetting
from slackwater.optimization.moving.definition import (
    MarketsJob,
    MarketsView,
    MultiMarketPolicy,
    Placement,
    is_multi_market,
    net,
    placement,
    priced_net,
)
from slackwater.optimization.policies.contract import Believing, Policy, plans_in_world
from slackwater.optimization.policies.stochastic import Stochastic, tables_in_force


@dataclass(frozen=True, slots=True, kw_only=True)
class InOneMarket:
    """Single-market policy in market ``market``, or in the best market at the start (None).

    The best market is the market of highest value under the stochastic policy.
    """

    multi_market: ClassVar[bool] = True
    policy: Policy[Any]
    market: int | None = None

    @property
    def name(self) -> str:
        """Name such as ``UP in the home market``; market 0 is that of a job with a home."""
        where = {None: "the best at the start", 0: "the home market"}.get(
            self.market, f"market {self.market}"
        )
        return f"{self.policy.name} in {where}"

    @property
    def plans_in_world(self) -> bool:
        """Whether its policy does."""
        return plans_in_world(self.policy)

    def start(self, job: MarketsJob) -> tuple[int | None, Any]:
        """Return the market and the state of the policy there."""
        m = self.market
        return m, self.policy.start(job.runs[m or 0])

    def decide(
        self, state: tuple[int | None, Any], view: MarketsView
    ) -> tuple[Placement, tuple[int | None, Any]]:
        """Return the allocation of the policy in its market."""
        m, own = state
        if m is None:
            m = best_alone(view)
        allocation, own = self.policy.decide(own, view.views[m])
        held = placement(m, allocation)
        if view.place != m and view.deadline_in_reach:
            # The policy ignores the cost of moving there.
            own_net = priced_net if isinstance(self.policy, Believing) else net
            held = own_net(replace(view, only=m), held)
        return held, (m, own)


def best_alone(view: MarketsView) -> int:
    """Return the market of highest value if the job stayed there to its end, including the cost of the move."""
    worth = []
    for m, own in enumerate(view.views):
        tables = tables_in_force(own, Forgetting())
        n = tables.size(
            slot=own.slot, rest=view.work_left, before=own.progress.n_previous, available=own.available,
            price=own.price * own.slot_hours,
        )  # fmt: skip
        worth.append(alone_worth(view, m, n) - (view.move_usd(m) if m != view.place else 0.0))
    return int(np.argmax(worth))


def alone_worth(view: MarketsView, m: int, n: int) -> float:
    """Return the value of running ``n`` in market ``m`` now and staying there, USD, before the cost of the move."""
    own = view.views[m]
    tables = tables_in_force(own, Forgetting())
    return tables.worth(own, view.split(m, n).allocation, view.work_left - view.work(m, n))


def for_markets(policy: Policy[Any] | MultiMarketPolicy[Any], *, of: int = 0) -> MultiMarketPolicy[Any]:
    """Return a multi-market policy unchanged; a policy of one market then decides in the best market at the start.

    ``of`` is the number of markets: a policy decides in the only one, without valuing it.
    """
    return policy if is_multi_market(policy) else InOneMarket(policy=policy, market=0 if of == 1 else None)


def stochastic_at_the_start() -> InOneMarket:
    """Return the stochastic policy in the best market at the start: the strongest policy that never moves."""
    return InOneMarket(policy=Stochastic())
