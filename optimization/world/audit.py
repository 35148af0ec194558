"""Check of an outcome in the world (M12) against its own numbers and the prices of the market (M12.13)."""

from __future__ import annotations

import math

import numpy as np

from slackwater.optimization.kernels.world import HOUR
from slackwater.optimization.window.audit import AGREEMENT, check_utility, check_value_after
from slackwater.optimization.world.replay import WorldCase, WorldOutcome
from slackwater.optimization.world.simulation import SECOND_TOLERANCE
from slackwater.warehouse.errors import AuditError


def audit_in_world(case: WorldCase, outcome: WorldOutcome) -> None:
    """Check money, finish, value and utility of an outcome; raises `AuditError` on the first mismatch.

    Money is the sum of both kinds of instances and of the moves: on-demand and spot within the prices of the
    markets, and each move within the costs of moves. A job is on time if it finishes by its deadline.
    """
    job, windows = case.job.job, [market.window for market in case.cases]
    name = f"outcome of {outcome.policy} on job {job.name!r}"
    if not job.resumable and outcome.spot_hours > 0.0:
        raise AuditError(f"{name}: spot for a job that cannot resume", expected="on-demand only")
    paid = outcome.on_demand_usd + outcome.spot_usd + outcome.moving_usd
    _within(f"{name}: cost", outcome.total_cost_usd, paid, paid, scale=paid)
    on_demand = [window.on_demand_usd for window in windows]
    spot = [usd for readings in case.readings for usd in (readings.price.min(), readings.price.max())]
    moves = case.job.moving.usd[:, ~np.eye(len(windows), dtype=bool)].ravel().tolist() or [0.0]
    for what, amount_paid, amount, prices in (
        ("on demand", outcome.on_demand_usd, outcome.on_demand_hours, on_demand),
        ("on spot", outcome.spot_usd, outcome.spot_hours, spot),
        ("of moves", outcome.moving_usd, outcome.moves, moves),
    ):
        low, high = amount * float(min(prices)), amount * float(max(prices))
        _within(f"{name}: cost {what}", amount_paid, low, high, scale=paid)
    slot_seconds = windows[0].slot_hours * HOUR
    deadline = job.deadline_slots * slot_seconds
    in_time = outcome.finish is not None and outcome.finish <= deadline + SECOND_TOLERANCE
    if outcome.on_time != in_time:
        raise AuditError(f"{name}: on time {outcome.on_time}", expected=f"{in_time}: finish {outcome.finish}")
    slots = None
    if outcome.finish is not None:
        slots = math.ceil((outcome.finish - SECOND_TOLERANCE) / slot_seconds)
    if outcome.finish_slots != slots:
        raise AuditError(f"{name}: finish_slots {outcome.finish_slots}", expected=f"{slots}")
    after = None if outcome.finish is None else outcome.finish / slot_seconds
    check_value_after(name, job, outcome, job.deadline_slots if in_time else after)
    check_utility(name, outcome)


def _within(what: str, amount: float, low: float, high: float, *, scale: float) -> None:
    slack = AGREEMENT * max(scale, 1e-9)
    if not low - slack <= amount <= high + slack:
        raise AuditError(f"{what} {amount}", expected=f"{low}" if low == high else f"{low} to {high}")
