"""The policies by the name of their family; a pool is a grid over their parameters (M4.8)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from optimization.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from optimization.policies.committed_horizon import Ahap
from optimization.policies.reactive import Ahanp
from optimization.policies.single_cluster import SingleCluster
from optimization.policies.stochastic import Stochastic
from optimization.policy import Policy

#: Family name -> how one of its policies is made from its parameters.
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
