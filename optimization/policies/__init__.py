"""Registry of the policies by family name; the pool is a grid over their parameters (M4.8)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from slackwater.optimization.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from slackwater.optimization.policies.committed_horizon import Ahap
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.reactive import Ahanp
from slackwater.optimization.policies.single_cluster import SingleCluster
from slackwater.optimization.policies.stochastic import Stochastic

#: Maps a family name to the constructor of its policies.
POLICIES: dict[str, Callable[..., Policy[Any]]] = {
    "OD-only": OnDemandOnly,
    "MSU": MaximalSpot,
    "MSU-trim": partial(MaximalSpot, trim=True),
    "UP": UniformProgress,
    "UP-single": SingleCluster,
    "AHANP": Ahanp,
    "AHAP": Ahap,
    "Stochastic": Stochastic,
}

__all__ = [
    "POLICIES",
    "Ahanp",
    "Ahap",
    "MaximalSpot",
    "OnDemandOnly",
    "SingleCluster",
    "Stochastic",
    "UniformProgress",
]
