"""Optimization layer: computes plans, decisions, outcomes and policy weights from a job and forecasts.

It is independent of storage, forecasters and schedulers. Names are imported on first use, so that
reading a job file does not import a solver.

`replay.decision` decides a running job, by the policies of one market (`policies`) or of several (`moving`), with the
probabilities of `market` and `belief`. `world` simulates a job in seconds and charges boots, restarts and moves.
`fleet` shares the spot of a slot among jobs, and `selection` chooses the policy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slackwater.optimization.job.definition import (
        Allocation,
        Amdahl,
        Job,
        Linear,
        Power,
        Progress,
        RateTable,
        Throughput,
    )
    from slackwater.optimization.job.request import JobRequest, slot_job
    from slackwater.optimization.market.window import (
        MarketWindow,
        PointForecast,
        market_window,
        point_forecast,
    )
    from slackwater.optimization.policies.contract import Policy, View
    from slackwater.optimization.policies.pool import load_pool, policy_named
    from slackwater.optimization.replay.decision import Decision, Effort, LiveJob, decide, live_job
    from slackwater.optimization.replay.run import replay
    from slackwater.optimization.replay.score import Bracket, hindsight
    from slackwater.optimization.requests.choice import Filled, MarketNow, fill
    from slackwater.optimization.requests.request import TuningRequest
    from slackwater.optimization.selection.contract import Weights
    from slackwater.optimization.selection.learned import learn
    from slackwater.optimization.window.plan import (
        EndRule,
        ExpectedToGo,
        HorizonProblem,
        Outcome,
        Plan,
        PlanStatus,
    )
    from slackwater.optimization.window.solver import plan

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

#: Module -> its names, imported at first use.
_NAMES = {
    "job.definition": "Allocation Amdahl Job Linear Power Progress RateTable Throughput",
    "job.request": "JobRequest slot_job",
    "market.window": "MarketWindow PointForecast market_window point_forecast",
    "policies.contract": "Policy View",
    "policies.pool": "load_pool policy_named",
    "replay.decision": "Decision Effort LiveJob decide live_job",
    "replay.score": "Bracket hindsight",
    "requests.choice": "Filled MarketNow fill",
    "requests.request": "TuningRequest",
    "selection.contract": "Weights",
    "selection.learned": "learn",
    "window.plan": "EndRule ExpectedToGo HorizonProblem Outcome Plan PlanStatus",
    "window.solver": "plan",
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "replay":  # the folder, which is callable too
        return import_module("slackwater.optimization.replay")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
