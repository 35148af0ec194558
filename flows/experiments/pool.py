"""E1: the pool of policies on the scenario grid, beside the baselines and hindsight (M7)."""

from __future__ import annotations

from flows.experiments.runs import PoolRun, run_pool

__all__ = ["PoolRun", "run_pool"]
