"""Optimization layer: computes plans, decisions, outcomes and policy weights from a job and forecasts.

It is independent of storage, forecasters and schedulers. Names are imported on first use, so that
reading a job file does not import a solver.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optimization.job.definition import Amdahl, Job, Linear, Power, Progress, RateTable, Throughput
    from optimization.job.request import JobRequest, slot_job
    from optimization.market.window import MarketWindow, PointForecast, market_window, point_forecast
    from optimization.policies.contract import Policy, View
    from optimization.policies.pool import load_pool, policy_named
    from optimization.replay.decision import Decision, Effort, LiveJob, decide, live_job
    from optimization.replay.run import replay
    from optimization.replay.score import Bracket, hindsight
    from optimization.requests.choice import Filled, MarketNow, fill
    from optimization.requests.request import TuningRequest
    from optimization.selection.contract import Weights
    from optimization.selection.learners import learn
    from optimization.window.plan import (
        Allocation,
        EndRule,
        ExpectedToGo,
        HorizonProblem,
        Outcome,
        Plan,
        PlanStatus,
    )
    from optimization.window.solver import plan

__all__ = [
    "Allocation",
    "Amdahl",
    "Bracket",
    "Decision",
    "Effort",
    "EndRule",
    "ExpectedToGo",
    "Filled",
    "HorizonProblem",
    "Job",
    "JobRequest",
    "Linear",
    "LiveJob",
    "MarketNow",
    "MarketWindow",
    "Outcome",
    "Plan",
    "PlanStatus",
    "PointForecast",
    "Policy",
    "Power",
    "Progress",
    "RateTable",
    "Throughput",
    "TuningRequest",
    "View",
    "Weights",
    "decide",
    "fill",
    "hindsight",
    "learn",
    "live_job",
    "load_pool",
    "market_window",
    "plan",
    "point_forecast",
    "policy_named",
    "replay",
    "slot_job",
]

_HOMES = {
    "Allocation": "optimization.window.plan",
    "Amdahl": "optimization.job.definition",
    "Bracket": "optimization.replay.score",
    "Decision": "optimization.replay.decision",
    "Effort": "optimization.replay.decision",
    "EndRule": "optimization.window.plan",
    "ExpectedToGo": "optimization.window.plan",
    "Filled": "optimization.requests.choice",
    "HorizonProblem": "optimization.window.plan",
    "Job": "optimization.job.definition",
    "JobRequest": "optimization.job.request",
    "Linear": "optimization.job.definition",
    "LiveJob": "optimization.replay.decision",
    "MarketNow": "optimization.requests.choice",
    "MarketWindow": "optimization.market.window",
    "Outcome": "optimization.window.plan",
    "Plan": "optimization.window.plan",
    "PlanStatus": "optimization.window.plan",
    "PointForecast": "optimization.market.window",
    "Policy": "optimization.policies.contract",
    "Power": "optimization.job.definition",
    "Progress": "optimization.job.definition",
    "RateTable": "optimization.job.definition",
    "Throughput": "optimization.job.definition",
    "TuningRequest": "optimization.requests.request",
    "View": "optimization.policies.contract",
    "Weights": "optimization.selection.contract",
    "decide": "optimization.replay.decision",
    "fill": "optimization.requests.choice",
    "hindsight": "optimization.replay.score",
    "learn": "optimization.selection.learners",
    "live_job": "optimization.replay.decision",
    "load_pool": "optimization.policies.pool",
    "market_window": "optimization.market.window",
    "plan": "optimization.window.solver",
    "point_forecast": "optimization.market.window",
    "policy_named": "optimization.policies.pool",
    "slot_job": "optimization.job.request",
}


def __getattr__(name: str) -> Any:
    if name == "replay":  # the folder, which is callable too
        return import_module("optimization.replay")
    if name not in _HOMES:
        raise AttributeError(f"module 'optimization' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
