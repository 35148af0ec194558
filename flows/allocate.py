"""Decide the next slot of every open job: live solves by the MILP, expected cost and lateness by sampled futures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from flows.config import Settings
from flows.job_report import Report, as_reported, counting
from flows.jobfile import JobRequest, first_slot, slot_job
from flows.known_past import market_record
from forecasting.forecast import Forecast
from forecasting.paths import sample_paths
from optimization.held import held_so_far
from optimization.job import Job, Progress
from optimization.live import LiveSolver
from optimization.market import market_window, point_forecast
from optimization.plan import Allocation
from optimization.policies import OnDemandOnly
from optimization.policy import Policy, View
from optimization.progress import finished
from optimization.replay import Planning, Seen, catch_up, see
from optimization.risk import Expected, simulate_ahead
from optimization.termination import infeasible_by
from warehouse.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob:
    """A job that is running: its market slot by slot (later slots are gaps), what was decided so far, by slot, and ``reports`` of
    what was really done and held."""

    request: JobRequest
    job: Job
    start: pd.Timestamp
    slot: int
    history: History
    seen: Seen
    decided: Mapping[int, Allocation]
    forecast: Forecast | None
    reports: Sequence[Report] = ()

    @property
    def now(self) -> pd.Timestamp:
        """Start of the slot to decide."""
        return self.start + self.slot * self.history.step

    @property
    def deadline(self) -> pd.Timestamp:
        """End of the last slot before the deadline."""
        return self.start + self.job.deadline_slots * self.history.step

    def standing(
        self, slots: int | None = None, reports: Sequence[Report] | None = None
    ) -> tuple[Progress, list[View]]:
        """Where the job stands after its first ``slots`` slots (None: at the slot to decide), and the view of each of them.

        It held what was decided for it, from the newest of ``reports`` (None: its own) on (M2.4).
        """
        said = as_reported(
            self.reports if reports is None else reports,
            self.request,
            self.job,
            start=self.start,
            step=self.history.step,
        )
        slots = self.slot if slots is None else slots
        return held_so_far(self.job, self.seen, self.decided, slots=slots, reported=said)

    def progress(self) -> Progress:
        """Where the job stands at the slot to decide."""
        return self.standing()[0]

    @property
    def progress_report(self) -> Report | None:
        """The report its progress goes back to, None if it is reckoned from the decisions alone."""
        said = [one for one in self.reports if one.finished or one.progress is not None]
        return said[-1] if said else None


def open_job(
    request: JobRequest,
    history: History,
    *,
    decided: Mapping[pd.Timestamp, Allocation],
    forecasts: Sequence[Forecast],
    peers: Sequence[History] = (),
    reports: Sequence[Report] = (),
) -> OpenJob:
    """Line a placed request up with its market's history; the slot to decide is the history's last.

    ``forecasts`` are the planner's vintages in the job's slots so far; nothing later than the present slot is kept. What the
    history holds from before the job, and ``peers`` beside it, become the record, which ends at the present slot. Of ``reports``
    those count that are about the present slot's start or before and were known by then.
    """
    step = history.step
    job = slot_job(request, step=step, on_demand_usd=history.on_demand_usd)
    start = first_slot(request, step)
    grid = pd.date_range(start, periods=job.deadline_slots, freq=step)
    rows = history.frame.reindex(grid)
    window = market_window(
        rows["price_usd"].to_numpy(dtype=float),
        rows["available"].to_numpy(dtype=float),
        on_demand_usd=history.on_demand_usd,
        slot_hours=history.slot_hours,
    )
    now = history.known_at.floor(step)
    issued = {forecast.issued_at: forecast for forecast in forecasts if forecast.issued_at <= now}
    points = [point_forecast(issued[slot]) if slot in issued else None for slot in grid]
    record = market_record(history, peers, first=start, last=now, known_by=now)
    return OpenJob(
        request=request,
        job=job,
        start=start,
        slot=round((now - start) / step),
        history=history,
        seen=see(job, window, points, record),
        decided={round((slot - start) / step): allocation for slot, allocation in decided.items()},
        forecast=issued.get(now),
        reports=tuple(counting(reports, known_at=now)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The next slot of one job, who decided it, why, and what to expect."""

    running: OpenJob
    allocation: Allocation
    policy: str
    reason: str
    expected: Expected
    solver: str
    progress: Progress
    planned: tuple[Allocation, ...] | None

    def row(self) -> dict[str, Any]:
        """The decision as plain values, the form of ``decisions`` in the JSON answer."""
        running, forecast = self.running, self.running.forecast
        finish = running.start + self.expected.finish_slots * running.history.step
        return {
            "job": running.job.name,
            "market": running.history.market.key,
            "slot": running.now.isoformat(),
            "on_demand": self.allocation.on_demand,
            "spot": self.allocation.spot,
            "policy": self.policy,
            "reason": self.reason,
            "expected_cost_usd": round(self.expected.cost_usd, 4),
            "expected_finish": finish.floor("s").isoformat(),
            "late_probability": round(self.expected.late_probability, 4),
            "deadline": running.deadline.isoformat(),
            "source": running.history.source,
            "must_finish": running.job.must_finish,
            "forecaster": forecast.predictor if forecast else None,
            "fallback": forecast.fallback if forecast else "no forecast",
            "solver": self.solver,
            "synthetic": list(running.history.assumptions),
            "slot_end": (running.now + running.history.step).isoformat(),
            "step_minutes": running.history.step / pd.Timedelta(minutes=1),
            "on_demand_usd_per_hour": running.history.on_demand_usd,
            "expected_cost_p10_usd": round(self.expected.cost_p10_usd, 4),
            "expected_cost_p90_usd": round(self.expected.cost_p90_usd, 4),
            **self._progress(),
            "planned": self._planned(),
        }

    def _progress(self) -> dict[str, Any]:
        """The progress it was decided at, and where that figure comes from."""
        running, report = self.running, self.running.progress_report
        workload = running.request.workload
        share = self.progress.done / running.job.workload
        return {
            "progress": round(share * workload.amount, 6),
            "progress_share": round(share, 6),
            "workload": workload.amount,
            "workload_unit": workload.unit,
            "progress_from": "reported" if report else "decided",
            "progress_reported_at": report.reported_at.isoformat() if report else None,
            "held_before": self.progress.n_previous,
        }

    def _planned(self) -> list[dict[str, Any]] | None:
        """What the plan behind the decision holds in the slots after it; None where the policy makes no plan."""
        if self.planned is None:
            return None
        step = self.running.history.step
        return [
            {
                "slot": (self.running.now + (k + 1) * step).isoformat(),
                "on_demand": allocation.on_demand,
                "spot": allocation.spot,
            }
            for k, allocation in enumerate(self.planned)
        ]


def decide(running: OpenJob, policy: Policy[Any], *, settings: Settings) -> Decision:
    """Ask a policy for the slot at hand and look ahead over sampled futures.

    A job that cannot resume from a checkpoint may not use spot: OD-only decides for it, and the reason says so (M2.7).
    """
    refused = ""
    if not running.job.resumable:
        policy, refused = OnDemandOnly(), "cannot resume from a checkpoint, so no spot; "
    live = LiveSolver(seconds=settings.solver_seconds)
    asked = policy.with_solver(live) if isinstance(policy, Planning) else policy
    progress, views = running.standing()
    state = catch_up(policy, running.job, views)
    view = running.seen.view(running.job, progress, running.slot)
    allocation, _ = asked.decide(state, view)
    short = infeasible_by(running.job, slot_hours=running.seen.slot_hours)
    hopeless = (
        f"best effort: on-demand alone is {short} slots too slow to finish while it is worth anything; "
    )
    reason = refused + (hopeless if short else "") + policy.explain(state, view, allocation)
    return Decision(
        running=running,
        allocation=allocation,
        policy=policy.name,
        reason=_with_chance(reason, running.forecast, allocation),
        expected=simulate_ahead(policy, state, view, *_futures(running, settings)),
        solver=live.summary(),
        progress=progress,
        planned=live.plans[-1].allocations[1:] if live.plans else None,
    )


def is_finished(running: OpenJob) -> bool:
    """True if the job has done its work before the slot to decide."""
    return finished(running.progress().done, running.job.workload)


def _futures(running: OpenJob, settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Sampled prices and counts of the slots after this one up to the deadline, each of shape (paths, slots)."""
    slots, forecast = running.job.deadline_slots - running.slot - 1, running.forecast
    if forecast is None or slots == 0:
        price = np.full((1, slots), running.seen.price[running.slot])
        return price, np.full((1, slots), running.seen.available[running.slot], dtype=np.int64)
    prices, counts = sample_paths(forecast, n=settings.risk_paths, rng=np.random.default_rng(settings.seed))
    take = np.minimum(np.arange(slots), forecast.horizon - 1)
    return prices[:, take], counts[:, take]


def _with_chance(reason: str, forecast: Forecast | None, allocation: Allocation) -> str:
    """The policy's reason, with the chance of spot in the next slot that a person would want to know."""
    if forecast is None:
        return reason
    wanted = max(allocation.total, 1)
    return f"{reason}; P(spot >= {wanted} in the next slot) = {forecast.probability_at_least(wanted, 1):.2f}"
