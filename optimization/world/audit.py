"""Check of an outcome in the world (M12) against its own numbers and the prices of the market (M12.13)."""

from __future__ import annotations

import math

from slackwater.optimization.job.definition import Job
from slackwater.optimization.kernels.world import HOUR
from slackwater.optimization.window.audit import AGREEMENT, check_utility, check_value_after
from slackwater.optimization.world.replay import WorldOutcome
from slackwater.optimization.world.simulation import SECOND_TOLERANCE, Readings
from slackwater.warehouse.errors import AuditError


def audit_in_world(
    job: Job, outcome: WorldOutcome, readings: Readings, *, on_demand_usd: float, slot_hours: float
) -> None:
    """Check money, finish, value and utility of an outcome; raises `AuditError` on the first mismatch.

    Money is the sum of both kinds of instances: on-demand at its price, spot within the prices that
    were read. A job is on time if it finishes by its deadline.
    """
    name = f"outcome of {outcome.policy} on job {job.name!r}"
    if not job.resumable and outcome.spot_hours > 0.0:
        raise AuditError(f"{name}: spot for a job that cannot resume", expected="on-demand only")
    paid = outcome.on_demand_usd + outcome.spot_usd
    _within(f"{name}: cost", outcome.total_cost_usd, paid, paid, scale=paid)
    own = outcome.on_demand_hours * on_demand_usd
    _within(f"{name}: cost on demand", outcome.on_demand_usd, own, own, scale=paid)
    low, high = (float(end) for end in (readings.price.min(), readings.price.max()))
    _within(
        f"{name}: cost on spot",
        outcome.spot_usd,
        outcome.spot_hours * low,
        outcome.spot_hours * high,
        scale=paid,
    )
    slot_seconds = slot_hours * HOUR
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


def _within(what: str, found: float, low: float, high: float, *, scale: float) -> None:
    slack = AGREEMENT * max(scale, 1e-9)
    if not low - slack <= found <= high + slack:
        raise AuditError(f"{what} {found}", expected=f"{low}" if low == high else f"{low} to {high}")
