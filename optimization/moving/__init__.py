"""Multi-market jobs: a job runs in one of several markets at a time and may move between them (M11) (ours)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.warehouse.plugins import Registry

if TYPE_CHECKING:
    from slackwater.optimization.moving.definition import MultiMarketPolicy

#: Name -> multi-market policy, imported at first use. Jobs are scored with these policies, and the
#: deciding policy is selected from them; the first decides on a tie.
MULTI_MARKET_POLICIES: Registry[MultiMarketPolicy[Any]] = Registry(
    {
        "MeanField": "policies:MeanField",
        "Greedy": "policies:GreedySpot",
        "Stochastic(24) in the best at the start": "adapter:stochastic_at_the_start",
    },
    package=__name__,
    make=lambda create: create(),
)
