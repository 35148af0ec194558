"""Independent recomputation of a multi-market outcome in the slot model (M3.5, M11.2)."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.moving.definition import MarketsJob
from slackwater.optimization.window.plan import Outcome
from slackwater.warehouse.errors import AuditError


def audit_moved(job: MarketsJob, windows: Sequence[MarketWindow], outcome: Outcome) -> None:
    """Recompute counts, moves, cost, progress, ending and utility; raises `AuditError` on the first difference."""
    run, moving, hours = job.job, job.moving, windows[0].slot_hours
    place, before, done, paid, moves = job.home, 0, 0.0, 0.0, 0
    for t, (market, held) in enumerate(zip(outcome.places or (), outcome.allocations, strict=True)):
        if done >= run.workload * (1.0 - 1e-9):
            raise AuditError(f"{outcome.policy}: slot {t} holds {held} after the finish", expected="nothing")
        if market is None:
            if held.total:
                raise AuditError(f"{outcome.policy}: slot {t} holds {held} in no market", expected="a market")
            before = 0
            continue
        own, window = job.runs[market], windows[market]
        if not own.n_min <= held.total <= own.n_max or not 0 <= held.spot <= window.available[t]:
            raise AuditError(
                f"{outcome.policy}: slot {t} holds {held} in market {market}",
                expected=f"{own.n_min}..{own.n_max} instances, at most {window.available[t]} of them spot",
            )
        gain = own.throughput.rate(held.total) * hours
        if place is not None and market != place:
            mu = max(0.0, own.mu_up - moving.taken) if own.mu_up >= 0 else own.mu_up
            paid += float(moving.usd[min(t, len(moving.usd) - 1), place, market])
            moves += 1
        else:
            mu = own.mu_up if held.total > before else own.mu_down if held.total < before else 1.0
        paid += (held.on_demand * window.on_demand_usd + held.spot * float(window.price[t])) * hours
        done, place, before = done + mu * gain, market, held.total
    _agree(outcome.policy, "moves", outcome.moves, moves)
    _agree(outcome.policy, "cost", outcome.cost_usd, paid)
    _agree(outcome.policy, "progress", outcome.progress, min(done, run.workload))
    on_time = done >= run.workload * (1.0 - 1e-9)
    if on_time != (outcome.finished_slot is not None):
        raise AuditError(
            f"{outcome.policy}: finished in slot {outcome.finished_slot}", expected=f"progress {done}"
        )
    if on_time:
        worth, after = run.completion_value(len(outcome.allocations)), 0.0
    else:
        worth, after = _audited_ending(job, windows, place, before, done)
    _agree(outcome.policy, "cost after the deadline", outcome.termination_cost_usd, after)
    _agree(outcome.policy, "utility", outcome.utility_usd, worth - paid - after)


def _audited_ending(
    job: MarketsJob, windows: Sequence[MarketWindow], place: int | None, before: int, done: float
) -> tuple[float, float]:
    """Return (V, USD paid) of the best constant on-demand size in a market after d, by trying all."""
    best, found = 0.0, (0.0, 0.0)
    hours = windows[0].slot_hours
    for market, (own, window) in enumerate(zip(job.runs, windows, strict=True)):
        moved = place is not None and market != place
        for n in range(own.n_min, own.n_max + 1):
            gain = own.throughput.rate(n) * hours
            mu = own.efficiency(n, 0 if market != place else before)
            if moved:
                mu = max(0.0, own.mu_up - job.moving.taken) if own.mu_up >= 0 else own.mu_up
            slots, left = 1, own.workload * (1.0 - 1e-9) - done - mu * gain
            while left > 0 and own.deadline_slots + slots < own.late_limit:
                left -= gain
                slots += 1
            if left > 0:
                continue
            worth = own.completion_value(own.deadline_slots + slots)
            usd = slots * n * window.on_demand_usd * hours + (
                float(job.moving.usd[min(own.deadline_slots, len(job.moving.usd) - 1), place, market])
                if moved
                else 0.0
            )
            if worth - usd > best:
                best, found = worth - usd, (worth, usd)
    return found


def _agree(policy: str, what: str, said: float, found: float) -> None:
    if abs(said - found) > 1e-6 * max(1.0, abs(found)):
        raise AuditError(f"{policy}: {what} {said}", expected=f"{found}, as the audit finds it")
