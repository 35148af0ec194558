"""``slackwater experiment fleet``: jobs that compete for the same counts, planned together, one by one, and each alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flows.command import Answer
from flows.command.progress import progress
from flows.experiments.command import StudyOptions
from flows.experiments.fleet.worlds import forecast_world, read_worlds
from flows.show.blocks import Block, Notes, Table
from optimization.fleet.orders import Order, plan_apart, plan_one_by_one
from optimization.fleet.prices import Effort, plan_jointly
from optimization.fleet.problem import JointPlan, JointProblem
from optimization.fleet.search import Search
from optimization.fleet.stream import (
    DEADLINES,
    PRIORITIES,
    Arrival,
    Planner,
    Run,
    World,
    draw_stream,
    jain,
    run_stream,
)
from optimization.trials.comparison import interval, resampled_means

#: Work asked for in units of what the mean counts could do, from plenty to more than there is.
SCARCITIES, FAST_SCARCITIES = (0.3, 1.0, 2.0), (0.3, 2.0)
STREAMS, FAST_STREAMS = 6, 2
ARRIVAL_SLOTS, FAST_ARRIVAL_SLOTS, WINDOW, MARKETS_EACH = 12, 6, 6, 4
PLANNERS = ("last_value", "combined")
EFFORT = Effort(rounds=5, steps=4, cells=128, width=10, final_cells=512, sweeps=1, starts=2, whole_jobs=0)
TOGETHER, ALONE = "together", "alone"
METHODS = (TOGETHER, *(f"one by one, {order}" for order in Order), ALONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One world, forecaster and scarcity: per stream and method a `Run`."""

    world: World
    forecaster: str
    scarcity: float
    runs: list[dict[str, Run]]


def fleet_study(study: StudyOptions) -> Answer:
    """Planned together, one by one and alone, over streams of jobs."""
    from flows.experiments.fleet.sections import fleet_page

    with progress("streams") as tell:
        value = fleet_answer(study.data, seed=study.seed, fast=study.fast, tell=tell)
    blocks: list[Block] = [
        Table(
            "Mean priority x utility of a job, in units of its on-demand-only cost",
            value["methods"],
            METHOD_COLUMNS,
        ),
        Table("Together minus the others, paired by stream", value["gains"], GAIN_COLUMNS),
        Notes(value["notes"]),
    ]
    return Answer(title="Many jobs on one market", value=value, blocks=blocks, page=lambda: fleet_page(value))


_CASE = {"world": "zones", "forecaster": "forecaster", "scarcity": "scarcity"}
METHOD_COLUMNS = {
    **_CASE, "method": "planned", "weighted_utility": "weighted", "utility": "utility", "on_time": "on time",
    "jain": "Jain", "refused_share": "spot refused",
}  # fmt: skip
GAIN_COLUMNS = {
    **_CASE,
    "over": "over",
    "gain": "gain",
    "low": "95 % from",
    "high": "to",
    "share": "% of |other|",
}


def fleet_answer(data: Path, *, seed: int, fast: bool, tell: Any) -> dict[str, Any]:
    """All figures of the experiment as plain values; the same folder, seed and form give the same ones."""
    read = read_worlds(data)
    worlds = read[:1] if fast else read
    planners = PLANNERS[:1] if fast else PLANNERS
    scarcities = FAST_SCARCITIES if fast else SCARCITIES
    streams, slots = (FAST_STREAMS, FAST_ARRIVAL_SLOTS) if fast else (STREAMS, ARRIVAL_SLOTS)
    total, done = len(worlds) * len(planners) * len(scarcities) * streams, 0
    cases: list[Case] = []
    for number, (world, zones) in enumerate(worlds):
        rng = np.random.default_rng([seed, number])
        half, last = world.slots // 2, world.slots - slots - max(DEADLINES)
        starts = np.sort(rng.integers(half, last, streams)).tolist()
        known = {t for first in starts for t in range(first, first + slots + max(DEADLINES))}
        for planner in planners:
            seen = world if planner == "last_value" else forecast_world(world, zones, known, planner=planner)
            for scarcity in scarcities:
                case = Case(world=seen, forecaster=planner, scarcity=scarcity, runs=[])
                for k, first in enumerate(starts):
                    drawn = draw_stream(
                        world, first=first, slots=slots, scarcity=scarcity,
                        markets_each=min(MARKETS_EACH, len(world.counts)), rng=np.random.default_rng([seed, number, k]),
                    )  # fmt: skip
                    case.runs.append(run_methods(seen, drawn))
                    done += 1
                    tell(done, total)
                cases.append(case)
    return {
        "data": str(data), "seed": seed, "fast": fast, "streams": streams, "window": WINDOW,
        "methods": [row for case in cases for row in method_rows(case)],
        "gains": [row for case in cases for row in gain_rows(case, seed)],
        "priorities": [row for case in cases for row in priority_rows(case)],
        "notes": notes_of(cases, read),
    }  # fmt: skip


def run_methods(world: World, arrivals: Sequence[Arrival]) -> dict[str, Run]:
    """One stream under every method."""
    planners: dict[str, Planner] = {TOGETHER: partial(plan_jointly, effort=EFFORT), ALONE: _apart}
    planners |= {f"one by one, {order}": partial(_one_by_one, order) for order in Order}
    return {name: run_stream(world, arrivals, planners[name], window=WINDOW) for name in METHODS}


def _one_by_one(order: Order, problem: JointProblem) -> JointPlan:
    return plan_one_by_one(problem, order, searching=Search(problem, cells=EFFORT.cells, width=EFFORT.width))


def _apart(problem: JointProblem) -> JointPlan:
    return plan_apart(problem, searching=Search(problem, cells=EFFORT.cells, width=EFFORT.width))


def weighted(run: Run) -> float:
    """Mean of priority x utility over a stream's jobs; 0 for a stream without jobs."""
    return float(np.mean([end.priority * end.utility for end in run.ended])) if run.ended else 0.0


def _case_of(case: Case) -> dict[str, Any]:
    return {
        "world": case.world.name, "synthetic": case.world.synthetic, "forecaster": case.forecaster,
        "scarcity": case.scarcity,
    }  # fmt: skip


def method_rows(case: Case) -> list[dict[str, Any]]:
    """Per method: means over streams of weighted and plain utility, on-time share, fairness, refusals, gaps."""
    rows = []
    for method in METHODS:
        runs = [one[method] for one in case.runs]
        ended = [end for run in runs for end in run.ended]
        asked = sum(run.refused + run.held for run in runs)
        gaps = [gap for run in runs for gap in run.gaps] if method == TOGETHER else []
        rows.append(
            _case_of(case)
            | {
                "method": method,
                "jobs": len(ended),
                "weighted_utility": round(float(np.mean([weighted(run) for run in runs])), 4),
                "utility": round(float(np.mean([end.utility for end in ended])), 4) if ended else None,
                "on_time": round(float(np.mean([end.on_time for end in ended])), 4) if ended else None,
                "jain": round(
                    float(np.mean([jain([e.utility for e in run.ended]) for run in runs if run.ended])), 4
                ),
                "refused_share": round(sum(run.refused for run in runs) / asked, 4) if asked else 0.0,
                "gap_median": round(float(np.median(gaps)), 5) if gaps else None,
                "gap_p90": round(float(np.quantile(gaps, 0.9)), 5) if gaps else None,
            }
        )
    return rows


def gain_rows(case: Case, seed: int) -> list[dict[str, Any]]:
    """Weighted utility together minus that of each other method, with a bootstrap interval over streams."""
    table = np.array([[weighted(one[method]) for method in METHODS] for one in case.runs])
    drawn = resampled_means(table, rng=np.random.default_rng(seed))
    rows = []
    for m, method in enumerate(METHODS[1:], start=1):
        low, high = interval(drawn[:, 0] - drawn[:, m])
        gain, base = float((table[:, 0] - table[:, m]).mean()), float(table[:, m].mean())
        rows.append(
            _case_of(case)
            | {
                "over": method, "gain": round(gain, 4), "low": round(float(low), 4), "high": round(float(high), 4),
                "share": round(100 * gain / abs(base), 2) if base else None,
            }
        )  # fmt: skip
    return rows


def priority_rows(case: Case) -> list[dict[str, Any]]:
    """On-time share and mean utility by priority and method."""
    rows = []
    for method in METHODS:
        for priority in PRIORITIES:
            ended = [end for one in case.runs for end in one[method].ended if end.priority == priority]
            if ended:
                rows.append(
                    _case_of(case)
                    | {
                        "method": method, "priority": priority, "jobs": len(ended),
                        "on_time": round(float(np.mean([end.on_time for end in ended])), 4),
                        "utility": round(float(np.mean([end.utility for end in ended])), 4),
                    }
                )  # fmt: skip
    return rows


def notes_of(cases: Sequence[Case], read: Sequence[tuple[World, Any]]) -> list[str]:
    """What has to be said beside the figures."""
    notes = [
        f"{world.name}: counts joined with the prices of other markets (synthetic)"
        if world.synthetic
        else f"{world.name}: counts and catalogue prices of the same zones"
        for world, _ in read
    ]
    notes.append(
        "intervals are over streams, few of them: jobs of one stream share their market and are not independent"
    )
    worse = [case for case in cases for row in gain_rows(case, 0) if row["high"] < 0]
    if worse:
        notes.append(f"{len(worse)} comparisons where planning together was worse with an interval below 0")
    return notes
