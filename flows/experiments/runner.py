"""Replay many policies on many scenarios, over processes, with the same results in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from optimization.policies.contract import Policy
from optimization.replay.run import replay_pool, spread
from optimization.replay.score import hindsight
from optimization.selection.contract import utility_bounds
from optimization.trials.scenarios import Scenario
from optimization.window.audit import audit_outcome
from optimization.window.plan import Outcome
from warehouse.errors import SettingsError

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRun:
    """What every policy made of every job.

    ``jobs`` has one row a job: job, deadline_slots, load, mu_up, n_max, counts, path, source, synthetic, start (UTC),
    unit (the OD-only cost, USD), low and high (hindsight's bracket, USD), bound_low and bound_high (the bounds of M5.2, USD).
    ``utility`` and ``cost`` (USD), ``on_time`` and ``late`` have shape (jobs, policies), in the order of ``jobs`` and ``policies``.
    Late is finished after d; what is neither was given up.
    """

    jobs: pd.DataFrame
    policies: tuple[str, ...]
    utility: np.ndarray
    cost: np.ndarray
    on_time: np.ndarray
    late: np.ndarray

    @property
    def unit(self) -> np.ndarray:
        """Each job's OD-only cost, USD, shape (jobs,)."""
        return self.jobs["unit"].to_numpy(dtype=float)

    @property
    def relative(self) -> np.ndarray:
        """Utilities in units of each job's OD-only cost, shape (jobs, policies)."""
        return np.asarray(self.utility / self.unit[:, None])

    @property
    def normalised(self) -> np.ndarray:
        """Utilities in the fixed bounds of M5.2, clipped to [0, 1], shape (jobs, policies)."""
        low = self.jobs["bound_low"].to_numpy(dtype=float)[:, None]
        high = self.jobs["bound_high"].to_numpy(dtype=float)[:, None]
        return np.asarray(np.clip((self.utility - low) / (high - low), 0.0, 1.0))


def run_pool(
    scenarios: Sequence[Scenario],
    policies: Sequence[Policy[Any]],
    *,
    processes: int = 1,
    progress: Progress | None = None,
) -> PoolRun:
    """Replay ``policies`` on every scenario with its issued forecasts, and bracket hindsight.

    Every outcome is audited (M3.5). Spread over ``processes`` the results are the same, in the same order. ``progress(done,
    total)`` counts jobs. Raises `SettingsError` for no job, no policy, a policy named twice, or less than one process.
    """
    names = [policy.name for policy in policies]
    if not scenarios or not names or len(set(names)) < len(names):
        raise SettingsError(
            f"{len(scenarios)} jobs and {len(names)} policies, {len(set(names))} of different names",
            expected="at least one of each, no policy twice",
        )
    rows = list(spread(_score, scenarios, tuple(policies), processes=processes, progress=progress))
    table = np.array([row.results for row in rows], dtype=float)
    return PoolRun(
        jobs=pd.DataFrame([row.job for row in rows]),
        policies=tuple(names),
        utility=table[:, 0],
        cost=table[:, 1],
        on_time=table[:, 2] > 0,
        late=table[:, 3] > 0,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One job: its row of the table, and utility, cost, on time and late of every policy, shape (4, policies)."""

    job: dict[str, Any]
    results: np.ndarray


def _score(scenario: Scenario, policies: tuple[Policy[Any], ...]) -> _Row:
    outcomes = replay_pool(
        policies, scenario.job, scenario.window, forecasts=scenario.forecasts, record=scenario.record
    )
    for outcome in outcomes:
        audit_outcome(scenario.job, scenario.window, outcome)
    return _Row(job_row(scenario), results_of(outcomes))


def results_of(outcomes: Sequence[Outcome]) -> np.ndarray:
    """Utility and cost (USD), on time and late (1 or 0) of each outcome, shape (4, outcomes)."""
    return np.array(
        [
            [o.utility_usd for o in outcomes],
            [o.total_cost_usd for o in outcomes],
            [float(o.on_time) for o in outcomes],
            [float(not o.on_time and o.finish_slots is not None) for o in outcomes],
        ]
    )


def job_row(scenario: Scenario) -> dict[str, Any]:
    """The row of `PoolRun.jobs`, hindsight included."""
    draw, cell, window = scenario.draw, scenario.draw.cell, scenario.window
    bracket = hindsight(scenario.job, window)
    low, high = utility_bounds(scenario.job, on_demand_usd=window.on_demand_usd, slot_hours=window.slot_hours)
    return {
        "job": draw.name,
        "deadline_slots": cell.deadline_slots,
        "load": cell.load,
        "mu_up": cell.mu_up,
        "n_max": cell.n_max,
        "counts": draw.counts.label,
        "path": draw.path.label,
        "source": draw.counts.source,
        "synthetic": draw.synthetic,
        "start": scenario.at,
        "unit": scenario.unit,
        "low": bracket.low,
        "high": bracket.high,
        "bound_low": low,
        "bound_high": high,
    }
