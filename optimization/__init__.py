"""Forecast and job in; plan, outcome and weights out."""

from optimization.job import Job, Progress
from optimization.market import MarketWindow, PointForecast
from optimization.plan import Allocation, EndRule, ExpectedToGo, HorizonProblem, Outcome, Plan, PlanStatus
from optimization.policy import Policy, View

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
