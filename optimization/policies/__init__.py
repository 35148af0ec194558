"""Registry of the policies by family name; the pool is a grid over their parameters (M4.8)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from slackwater.optimization.policies.ada_switch import AdaSwitch
from slackwater.optimization.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from slackwater.optimization.policies.committed_horizon import Ahap
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.reactive import Ahanp
from slackwater.optimization.policies.receding_gradient import RecedingGradient
from slackwater.optimization.policies.ross import Ross
from slackwater.optimization.policies.single_cluster import SingleCluster
from slackwater.optimization.policies.stochastic import Stochastic
from slackwater.optimization.policies.trust import Trust
from slackwater.optimization.policies.uncertain_window import UncertainWindow

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
    "AdaSwitch": AdaSwitch,
    "RHIG": RecedingGradient,
    "Window": UncertainWindow,
    "Trust": Trust,
    "ROSS": Ross,
}
#: Families that implement other published ideas (M10); the pool experiment reports them separately.
PUBLISHED_IDEAS = ("AdaSwitch", "RHIG", "Window", "Trust", "ROSS")

__all__ = [
    "POLICIES",
    "PUBLISHED_IDEAS",
    "AdaSwitch",
    "Ahanp",
    "Ahap",
    "MaximalSpot",
    "OnDemandOnly",
    "RecedingGradient",
    "Ross",
    "SingleCluster",
    "Stochastic",
    "Trust",
    "UncertainWindow",
    "UniformProgress",
]
