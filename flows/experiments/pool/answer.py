"""What a run of the pool says: one JSON object, and rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flows.experiments.runner import PoolRun
from optimization.selection.rounds import select_over
from optimization.trials.comparison import (
    Comparison,
    compare,
    headroom_captured,
    relative_gain,
    shown_baselines,
)

#: Columns of a cell, and of the coarser cells of the issue's promise (deadline, load, overhead).
CELL = ("deadline_slots", "load", "mu_up", "n_max")
COARSE = ("deadline_slots", "load", "mu_up")
#: A greedy rule that never holds more than finishes the job (ours): stronger than every published baseline on the open data.
SHARPENED = "MSU-trim"
#: The only figure that paper A publishes: relative gain over baselines, at most.
PAPER_A = 0.548


def comparison_of(
    run: PoolRun, places: np.ndarray | None = None, *, rng: np.random.Generator | None = None
) -> Comparison:
    """Compare the policies of a run on all its jobs, or on those at ``places``."""
    at = np.arange(len(run.jobs)) if places is None else places
    return compare(
        run.policies,
        run.relative[at],
        hindsight_low=(run.jobs["low"].to_numpy(dtype=float) / run.unit)[at],
        hindsight_high=(run.jobs["high"].to_numpy(dtype=float) / run.unit)[at],
        rng=rng,
    )


def policy_rows(run: PoolRun, comparison: Comparison) -> dict[str, dict[str, Any]]:
    """The object ``policies`` of the answer: one entry a policy, best first."""
    order = np.argsort(-comparison.mean, kind="stable")
    return {
        run.policies[i]: {
            "mean_utility": float(comparison.mean[i]),
            "interval": [float(comparison.low[i]), float(comparison.high[i])],
            "ahead_of_baseline_interval": [float(comparison.ahead_low[i]), float(comparison.ahead_high[i])],
            "mean_cost_usd": float(run.cost[:, i].mean()),
            "on_time": float(run.on_time[:, i].mean()),
            "late": float(run.late[:, i].mean()),
            "relative_gain": {name: float(gain[i]) for name, gain in comparison.gain.items()},
            "headroom_captured": float(comparison.headroom[i]),
            "headroom_interval": [float(comparison.headroom_low[i]), float(comparison.headroom_high[i])],
        }
        for i in order
    }


def cell_rows(run: PoolRun, columns: Sequence[str], *, default: str) -> list[dict[str, Any]]:
    """One entry a cell, in the order of the grid: its best policy and baseline, and the headroom each captured.

    The baseline is the best one of the cell, so the measure is as strict in each cell as over all. ``default`` is the policy
    that is best over all cells.
    """
    rows = []
    for key, group in run.jobs.groupby(list(columns), sort=True):
        found = comparison_of(run, group.index.to_numpy())
        values = key if isinstance(key, tuple) else (key,)
        best, own = found.of(found.best), found.of(default)
        rows.append(
            {
                **dict(zip(columns, values, strict=True)),
                "jobs": len(group),
                "best": found.best,
                "baseline": found.baseline,
                "baseline_utility": float(found.mean[found.of(found.baseline)]),
                "best_utility": float(found.mean[best]),
                "hindsight": found.hindsight[1],
                "headroom_captured": float(found.headroom[best]),
                "default_headroom_captured": float(found.headroom[own]),
            }
        )
    return rows


def largest_gains(run: PoolRun) -> list[dict[str, Any]]:
    """For each baseline the cell in which some policy gained most over it, the largest gain first."""
    rows: list[dict[str, Any]] = []
    for name in shown_baselines(run.policies, run.relative.mean(axis=0)):
        best: dict[str, Any] = {}
        for key, group in run.jobs.groupby(list(CELL), sort=True):
            found = comparison_of(run, group.index.to_numpy())
            gain = compare_with(found, name)
            i = int(np.nanargmax(gain)) if np.isfinite(gain).any() else 0
            if np.isfinite(gain[i]) and gain[i] > best.get("gain", -np.inf):
                best = {
                    "baseline": name,
                    "policy": run.policies[i],
                    "gain": float(gain[i]),
                    "cell": dict(zip(CELL, key, strict=True)),
                }
        rows += [best] if best else []
    return sorted(rows, key=lambda row: -row["gain"])


def compare_with(found: Comparison, baseline: str) -> np.ndarray:
    """Relative gain of every policy over one of them, shape (policies,)."""
    return relative_gain(found.mean, found.mean[found.of(baseline)])


def selection_of(run: PoolRun, *, seed: int) -> dict[str, Any]:
    """What the default selector makes of the jobs in their order (M5): the object ``selection`` of the answer."""
    summary = select_over(run.normalised, run.relative, run.policies, seed=seed)
    return {
        "learner": summary.learner,
        "sampled_utility": summary.sampled_utility,
        "leader_utility": summary.leader_utility,
        "best_fixed": summary.best_fixed,
        "best_fixed_utility": summary.overall.best_fixed_utility,
        "regret": summary.regret,
        "bound": summary.bound,
        "after_settling": {
            "jobs": summary.settled.jobs,
            "share_of_best_fixed": summary.settled.share,
        },
    }


def against_sharpened(run: PoolRun, found: Comparison) -> dict[str, Any] | None:
    """The best policy's headroom over MSU-trim, the strongest rule of thumb, which is ours and so no published baseline.

    None where the pool has none.
    """
    if SHARPENED not in run.policies:
        return None
    base, best, high = found.mean[found.of(SHARPENED)], found.mean[found.of(found.best)], found.hindsight[1]
    room = headroom_captured(np.array([best]), np.array([base]), np.array([high]))
    return {"baseline": SHARPENED, "mean_utility": float(base), "headroom_captured": float(room[0])}


def pool_answer(run: PoolRun, *, data: str, seed: int) -> dict[str, Any]:
    """The answer of ``experiment pool --json`` for one run, utilities in units of each job's OD-only cost."""
    found = comparison_of(run, rng=np.random.default_rng([seed, 2]))
    return {
        "data": data,
        "seed": seed,
        "jobs": len(run.jobs),
        "synthetic_jobs": int(run.jobs["synthetic"].sum()),
        "best": found.best,
        "baseline": found.baseline,
        "sharpened": against_sharpened(run, found),
        "hindsight": {"low": found.hindsight[0], "high": found.hindsight[1]},
        "policies": policy_rows(run, found),
        "selection": selection_of(run, seed=seed),
        "cells": cell_rows(run, CELL, default=found.best),
        "cells_by_deadline_load_overhead": cell_rows(run, COARSE, default=found.best),
        "largest_gain": {"paper_a": PAPER_A, "found": largest_gains(run)},
    }
