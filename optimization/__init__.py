"""Forecast and job in; plan, outcome and weights out."""

from optimization.job.definition import Job, Progress
from optimization.market.window import MarketWindow, PointForecast
from optimization.policies.contract import Policy, View
from optimization.window.plan import (
    Allocation,
    EndRule,
    ExpectedToGo,
    HorizonProblem,
    Outcome,
    Plan,
    PlanStatus,
)

__all__ = [
    "Allocation",
    "EndRule",
    "ExpectedToGo",
    "HorizonProblem",
    "Job",
    "MarketWindow",
    "Outcome",
    "Plan",
    "PlanStatus",
    "PointForecast",
    "Policy",
    "Progress",
    "View",
]
