"""``slackwater experiment fleet``: jobs that compete for the same counts, planned together, one by one, and each alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flows.command import Answer, progress
from flows.config import Settings
from flows.experiments.material import issued_quantiles, read_worlds
from flows.experiments.study import StudyOptions, joins
from flows.show.blocks import Figure, Figures, Fold, Section, numbers
from flows.show.charts import Axis, lines
from forecasting.accuracy.intervals import EVEN, TOO_FEW, interval_words
from forecasting.quantiles import LEVELS
from optimization.fleet.prices import Order, SearchEffort, plan_apart, plan_jointly, plan_one_by_one
from optimization.fleet.problem import JointPlan, JointProblem
from optimization.fleet.search import Search
from optimization.fleet.stream import (
    DEADLINES,
    PRIORITIES,
    Planner,
    StreamJob,
    StreamRun,
    World,
    draw_stream,
    jain,
    run_stream,
)
from optimization.trials.comparison import resampled
from optimization.trials.scenarios import Tape


def forecast_world(world: World, zones: Sequence[Tape], slots: Iterable[int], *, planner: str) -> World:
    """The world with what ``planner`` forecast of the counts in each of ``slots``, as issued then (M6.4)."""
    wanted = sorted(set(slots))
    made = issued_quantiles(
        zones, {zone.label: wanted for zone in zones}, planner=planner, settings=Settings.model_validate({})
    )
    middle = len(LEVELS) // 2
    ahead = {
        zone.market.zone: {slot: told[:, middle] for slot, told in made[zone.label].items()} for zone in zones
    }
    return replace(world, ahead=ahead)


#: Work asked for in units of what the mean counts could do, from plenty to more than there is.
SCARCITIES, FAST_SCARCITIES = (0.3, 1.0, 2.0), (0.3, 2.0)
STREAMS, FAST_STREAMS = 6, 2
ARRIVAL_SLOTS, FAST_ARRIVAL_SLOTS, WINDOW, MARKETS_EACH = 12, 6, 6, 4
PLANNERS = ("last_value", "combined")
EFFORT = SearchEffort(
    rounds=5, steps=4, cells=128, width=10, final_cells=512, sweeps=1, starts=2, whole_jobs=0
)
TOGETHER, ALONE = "together", "alone"
METHODS = (TOGETHER, *(f"one by one, {order}" for order in Order), ALONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCase:
    """One world, forecaster and scarcity: per stream and method a `StreamRun`; ``starts`` (streams,) are their first slots."""

    world: World
    forecaster: str
    scarcity: float
    runs: list[dict[str, StreamRun]]
    starts: Sequence[int]


def fleet_study(study: StudyOptions) -> Answer:
    """Planned together, one by one and alone, over streams of jobs."""
    with progress("streams") as tell:
        value = fleet_answer(study.data, seed=study.seed, fast=study.fast, tell=tell)
    return fleet_report(value)


def fleet_answer(data: Path, *, seed: int, fast: bool, tell: Any) -> dict[str, Any]:
    """All figures of the experiment as plain values; the same folder, seed and form give the same ones."""
    read = read_worlds(data)
    worlds = read[:1] if fast else read
    planners = PLANNERS[:1] if fast else PLANNERS
    scarcities = FAST_SCARCITIES if fast else SCARCITIES
    streams, slots = (FAST_STREAMS, FAST_ARRIVAL_SLOTS) if fast else (STREAMS, ARRIVAL_SLOTS)
    total, done = len(worlds) * len(planners) * len(scarcities) * streams, 0
    cases: list[StreamCase] = []
    for number, (world, zones) in enumerate(worlds):
        rng = np.random.default_rng([seed, number])
        half, last = world.slots // 2, world.slots - slots - max(DEADLINES)
        starts = np.sort(rng.integers(half, last, streams)).tolist()
        known = {t for first in starts for t in range(first, first + slots + max(DEADLINES))}
        for planner in planners:
            seen = world if planner == "last_value" else forecast_world(world, zones, known, planner=planner)
            for scarcity in scarcities:
                case = StreamCase(world=seen, forecaster=planner, scarcity=scarcity, runs=[], starts=starts)
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


def run_methods(world: World, arrivals: Sequence[StreamJob]) -> dict[str, StreamRun]:
    """One stream under every method."""
    planners: dict[str, Planner] = {TOGETHER: partial(plan_jointly, effort=EFFORT), ALONE: _apart}
    planners |= {f"one by one, {order}": partial(_one_by_one, order) for order in Order}
    return {name: run_stream(world, arrivals, planners[name], window=WINDOW) for name in METHODS}


def _one_by_one(order: Order, problem: JointProblem) -> JointPlan:
    return plan_one_by_one(problem, order, searching=Search(problem, cells=EFFORT.cells, width=EFFORT.width))


def _apart(problem: JointProblem) -> JointPlan:
    return plan_apart(problem, searching=Search(problem, cells=EFFORT.cells, width=EFFORT.width))


def weighted(run: StreamRun) -> float:
    """Mean of priority x utility over a stream's jobs; 0 for a stream without jobs."""
    return float(np.mean([end.priority * end.utility for end in run.ended])) if run.ended else 0.0


def _case_of(case: StreamCase) -> dict[str, Any]:
    return {
        "world": case.world.name, "synthetic": case.world.synthetic, "forecaster": case.forecaster,
        "scarcity": case.scarcity,
    }  # fmt: skip


def method_rows(case: StreamCase) -> list[dict[str, Any]]:
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


def gain_rows(case: StreamCase, seed: int) -> list[dict[str, Any]]:
    """Weighted utility together minus that of each other method, with a bootstrap interval over the days of the streams' starts."""
    table = np.array([[weighted(one[method]) for method in METHODS] for one in case.runs])
    day = round(24.0 / case.world.slot_hours)
    drawn = resampled(table, blocks=[first // day for first in case.starts], rng=np.random.default_rng(seed))
    rows = []
    for m, method in enumerate(METHODS[1:], start=1):
        low, high = drawn.interval(drawn.means[:, 0] - drawn.means[:, m])
        gain, base = float((table[:, 0] - table[:, m]).mean()), float(table[:, m].mean())
        rows.append(
            _case_of(case)
            | {
                "over": method, "days": drawn.blocks, "gain": round(gain, 4),
                "low": round(float(low), 4), "high": round(float(high), 4),
                "share": round(100 * gain / abs(base), 2) if base else None,
            }
        )  # fmt: skip
    return rows


def priority_rows(case: StreamCase) -> list[dict[str, Any]]:
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


def notes_of(cases: Sequence[StreamCase], read: Sequence[tuple[World, Any]]) -> list[str]:
    """What has to be said beside the figures."""
    notes = [
        f"{world.name}: counts joined with the prices of other markets (synthetic)"
        if world.synthetic
        else f"{world.name}: counts and catalogue prices of the same zones"
        for world, _ in read
    ]
    notes.append(
        "intervals draw the days on which streams begin, few of them: jobs of one stream share their market, streams of a day too"
    )
    worse = [case for case in cases for row in gain_rows(case, 0) if row["high"] < 0]
    if worse:
        notes.append(f"{len(worse)} comparisons where planning together was worse with an interval below 0")
    return notes


_CASE_WORDS = {"world": "Zones", "forecaster": "Forecaster", "scarcity": "Scarcity"}
_METHOD_WORDS = {
    "method": "Planned", "jobs": "Jobs", "weighted_utility": "Priority x utility", "utility": "Utility", "on_time": "On time",
    "jain": "Jain index", "refused_share": "Spot refused",
}  # fmt: skip
_GAIN_WORDS = {
    "over": "Over",
    "days": "Days",
    "gain": "Gain",
    "low": "95 % from",
    "high": "to",
    "share": "% of the other",
}
_PRIORITY_WORDS = {
    "method": "Planned", "priority": "Priority", "jobs": "Jobs", "on_time": "On time", "utility": "Utility",
}  # fmt: skip


def fleet_report(answer: Mapping[str, Any]) -> Answer:
    """What a person sees: utility against scarcity, what planning together gains, who is on time, how far from the best plan."""
    joined = sorted({row["world"] for row in answer["methods"] if row["synthetic"]})
    priorities = numbers(_CASE_WORDS | _PRIORITY_WORDS, answer["priorities"])
    return Answer(
        title="Many jobs on one market",
        about=(
            f"{answer['streams']} streams of jobs a case, drawn with seed {answer['seed']} from the later half of every record of "
            f"{answer['data']}. Scarcity is the work asked for in units of what the mean counts could do. Plans look "
            f"{answer['window']} slots ahead and are made again in every slot; utilities are in units of each job's "
            f"on-demand-only cost."
        ),
        value=answer,
        banner=joins(f"Counts joined with the prices of other markets: {'; '.join(joined)}.")
        if joined
        else None,
        blocks=[
            _utility(answer),
            _gains(answer),
            Section(
                "On time by priority",
                [
                    "A job of priority 4 counts four times in the sum that joint plans maximise.",
                    Fold("By case, method and priority", [priorities]),
                ],
                "priorities",
            ),
            _gaps(answer),
        ],
        notes=answer["notes"],
    )


def _utility(answer: Mapping[str, Any]) -> Section:
    rows = answer["methods"]
    panels = dict.fromkeys((row["world"], row["forecaster"]) for row in rows)
    return Section(
        "Utility against scarcity",
        [
            "Mean over jobs of priority x utility. Alone means that every job plans as if no other were there and takes "
            "what is left "
            "when its turn comes. Where there is plenty the lines lie close: there is little to gain by planning together.",
            Figures([_scarcity_figure(rows, *panel) for panel in panels]),
            Fold("All figures", [numbers(_CASE_WORDS | _METHOD_WORDS, rows)], printed=True),
        ],
        "utility",
    )


def _scarcity_figure(rows: Sequence[Mapping[str, Any]], world: str, forecaster: str) -> Figure:
    """Priority x utility against scarcity for some zones and a forecaster, a line a method."""
    points = [
        {"x": row["scarcity"], "y": row["weighted_utility"], "series": row["method"]}
        for row in rows
        if (row["world"], row["forecaster"]) == (world, forecaster)
    ]
    spec = lines(
        points, METHODS, x=Axis(title="scarcity", at=sorted({p["x"] for p in points}), zero=False, format="~g"),
        y=Axis(title="priority x utility", zero=False),
    )  # fmt: skip
    title = f"{world}; {forecaster}"
    return Figure(
        specs=[spec], label=f"Priority x utility against scarcity by method: {title}", title=title, width=0
    )


def _gains(answer: Mapping[str, Any]) -> Section:
    hard = max(row["scarcity"] for row in answer["gains"])
    return Section(
        "What planning together gains",
        [
            f"Paired by stream, with 95 % bootstrap intervals over the days of their starts; {EVEN}: the interval holds "
            f"0; {TOO_FEW}: fewer than three days.",
            *(
                f"{row['world']}, {row['forecaster']}, scarcity {row['scarcity']:g}: {row['gain']:+.4f} over {row['over']} "
                f"({interval_words(row['low'], row['high'], '+.4f')})"
                for row in answer["gains"]
                if row["scarcity"] == hard and row["over"] in ("alone", "one by one, slack")
            ),
            Fold("All comparisons", [numbers(_CASE_WORDS | _GAIN_WORDS, answer["gains"])], printed=True),
        ],
        "gains",
    )


def _gaps(answer: Mapping[str, Any]) -> Section:
    rows = [row for row in answer["methods"] if row["gap_median"] is not None]
    return Section(
        "How far from the best plan",
        [
            "Each joint plan comes with a bound that no plan passes; the gap is the distance relative to it. It holds the "
            "plan's own "
            "shortfall and the slack of the bound.",
            numbers(_CASE_WORDS | {"gap_median": "Median gap", "gap_p90": "90 % of gaps below"}, rows),
        ],
        "gaps",
    )
