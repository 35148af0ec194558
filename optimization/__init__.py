"""Forecast and job in; plan, decision, outcome and weights out. Knows no storage, no forecaster and no scheduler."""

from optimization.job.definition import Job, Progress
from optimization.job.request import JobRequest, slot_job
from optimization.job.throughput import Amdahl, Linear, Power, Table, Throughput
from optimization.market.window import MarketWindow, PointForecast, market_window, point_forecast
from optimization.policies.contract import Policy, View
from optimization.policies.pool import load_pool, policy_named
from optimization.replay.decision import Decision, Effort, decide
from optimization.replay.hindsight import Bracket, hindsight
from optimization.replay.run import replay
from optimization.replay.standing import LiveJob, live_job
from optimization.requests.fill import Filled, fill
from optimization.requests.plan import MarketNow
from optimization.requests.request import TuningRequest
from optimization.selection.learners import learn
from optimization.selection.weights import Weights
from optimization.window.live import plan
from optimization.window.plan import (
    Allocation,
    EndRule,
    ExpectedToGo,
    HorizonProblem,
    Outcome,
    Plan,
    PlanStatus,
)

# `replay` is the verb here: its folder is imported by its own modules' names only.
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
    "Table",
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
