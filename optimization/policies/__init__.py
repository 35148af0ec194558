"""Policies of one market, by family name; the pool is a grid over their parameters (M4, M4.8).

A policy decides the instances of a slot from a `contract.View`, all that it sees. `stochastic` decides by default, in the
world by the tables of `holding` (M4.12).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from slackwater.warehouse.plugins import Registry

if TYPE_CHECKING:
    from slackwater.optimization.policies.contract import Policy

#: Entry points of policies in other packages: a class whose instances satisfy `Policy`, with a `NameForm` if it has
#: parameters.
GROUP = "slackwater.policies"
#: Family name -> constructor of its policies, imported at first use.
POLICIES: Registry[Callable[..., Policy[Any]]] = Registry(
    {
        "OD-only": "baselines:OnDemandOnly",
        "MSU": "baselines:MaximalSpot",
        "MSU-trim": "baselines:trimmed_spot",
        "UP": "baselines:UniformProgress",
        "AHANP": "reactive:Ahanp",
        "AHAP": "committed_horizon:Ahap",
        "Reserve": "reserve:Reserve",
        "Sizing": "sizing:Sizing",
        "Stochastic": "stochastic:Stochastic",
    },
    package=__name__,
    group=GROUP,
)
#: Expected form of the name of a policy, for error messages.
POLICY_NAMES = (
    "a name such as OD-only, MSU, UP, AHANP(0.7), AHAP(5,1,0.9) or AHAP(5,3,0.9,last,target), "
    f"an entry point of {GROUP}, or module:Name"
)
