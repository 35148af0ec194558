"""The worlds of ``experiment fleet``: real zones of one kind on common slots, with the forecasts that were issued in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flows.command import Answer
from flows.command.progress import progress
from flows.config import Settings
from flows.experiments.material import (
    COUNT_COLUMNS,
    PRICE_COLUMNS,
    STEP,
    count_tapes,
    issued_quantiles,
    price_tapes,
    read_table,
)
from flows.experiments.options import StudyOptions
from flows.show.blocks import Block, Notes, Page, Section, Table, figures, study, study_page
from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from flows.show.drawings import LINES
from forecasting.quantiles import LEVELS
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
from optimization.trials.tapes import Tape, aligned
from warehouse.errors import MarketError

#: Least zones that make a market to share.
LEAST_ZONES = 2
#: Shorter records hold no stream in their later half.
LEAST_SLOTS = 200


def read_worlds(folder: Path) -> list[tuple[World, list[Tape]]]:
    """Every kind of instance that at least two zones of one source probed at the same time, with the count series behind it.

    Prices are the zones' own where the source has them (one that was stored once is a catalogue's, and held); else, a synthetic
    join, those of the instance type's longest price series in the folder, begun at its first slot. The kinds with most zones
    come first. Raises `MarketError` if no kind has two zones.
    """
    prices = read_table(folder, "prices", PRICE_COLUMNS)
    counts = read_table(folder, "availability", COUNT_COLUMNS)
    paths = list(price_tapes(prices, counts))
    kinds: dict[tuple[object, ...], list[Tape]] = {}
    for tape in count_tapes(counts):
        kinds.setdefault((*tape.kind, tape.first, len(tape)), []).append(tape)
    worlds = []
    for zones in kinds.values():
        if len(zones) >= LEAST_ZONES and len(zones[0]) >= LEAST_SLOTS:
            world = _world(zones, paths, prices)
            if world is not None:
                worlds.append((world, zones))
    if not worlds:
        raise MarketError(
            f"{folder}: no instance type was probed in two zones at the same time",
            expected="counts of at least two zones of one source",
            remedy="give a folder with more zones",
        )
    return sorted(worlds, key=lambda one: (-len(one[1]), one[0].name))


def _world(zones: Sequence[Tape], paths: Sequence[Tape], prices: pd.DataFrame) -> World | None:
    own = {(path.market, path.source): path for path in paths}
    hours = STEP / pd.Timedelta(hours=1)
    joined = [path for path in paths if path.market.instance_type == zones[0].market.instance_type]
    joined.sort(key=lambda path: (-len(path), path.label))
    price, dear, synthetic = {}, {}, False
    for z, zone in enumerate(zones):
        path = own.get((zone.market, zone.source))
        values = np.full(len(zone), np.nan)
        if path is not None:
            values = aligned(zone, path) if len(path) else np.full(len(zone), _stated_once(prices, path))
        if path is None or not np.isfinite(values).any():
            long_enough = [one for one in joined if len(one) >= len(zone)]
            if not long_enough:
                return None
            path, synthetic = long_enough[z % len(long_enough)], True
            values = path.values[: len(zone)]
        price[zone.market.zone] = _held(values)
        dear[zone.market.zone] = path.bound
    kind = f"{zones[0].market.instance_type}, {zones[0].market.provider}, {len(zones)} zones"
    return World(
        name=kind,
        counts={zone.market.zone: zone.values for zone in zones},
        prices=price,
        on_demand_usd=dear,
        slot_hours=hours,
        synthetic=synthetic,
    )


def _stated_once(prices: pd.DataFrame, path: Tape) -> float:
    """The one price of a series that begins and ends with it: a catalogue's."""
    own = prices["source"].eq(path.source) & prices["zone"].eq(path.market.zone)
    own &= prices["instance_type"].eq(path.market.instance_type) & prices["region"].eq(path.market.region)
    return float(prices.loc[own, "spot_price_usd_per_hour"].iloc[-1])


def _held(values: np.ndarray) -> np.ndarray:
    """Gaps of a price held at the last one known; before the first, at the first."""
    return pd.Series(values).ffill().bfill().to_numpy(dtype=float)


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


# ``slackwater experiment fleet``: jobs that compete for the same counts, planned together, one by one, and each alone.

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


# The page of ``experiment fleet``: utility against scarcity, what planning together gains, who is on time, how fair it is.

_CASE_WORDS = {"world": "Zones", "forecaster": "Forecaster", "scarcity": "Scarcity"}


def fleet_page(answer: Mapping[str, Any]) -> Page:
    """The page of an answer of ``experiment fleet``."""
    joined = sorted({row["world"] for row in answer["methods"] if row["synthetic"]})
    return study_page(
        title="Many jobs on one market",
        about=(
            f"{answer['streams']} streams of jobs a case, drawn with seed {answer['seed']} from the later half of every record of "
            f"{answer['data']}. Scarcity is the work asked for in units of what the mean counts could do. Plans look "
            f"{answer['window']} slots ahead and are made again in every slot; utilities are in units of each job's "
            f"on-demand-only cost."
        ),
        synthetic=f"Counts joined with the prices of other markets: {'; '.join(joined)}." if joined else "",
        sections=[_utility(answer), _gains(answer), _priorities(answer), _gaps(answer)],
        notes=answer["notes"],
    )


def _utility(answer: Mapping[str, Any]) -> Section:
    return study(
        anchor="utility",
        heading="Utility against scarcity",
        sentences=(
            "Mean over jobs of priority x utility. Alone means that every job plans as if no other were there and takes "
            "what is left "
            "when its turn comes. Where there is plenty the lines lie close: there is little to gain by planning together.",
        ),
        figure=draw_scarcity(answer["methods"]),
        table=figures(
            columns=_CASE_WORDS
            | {
                "method": "Planned", "jobs": "Jobs", "weighted_utility": "Priority x utility", "utility": "Utility",
                "on_time": "On time", "jain": "Jain index", "refused_share": "Spot refused",
            },
            rows=answer["methods"],
        ),
        unfold="All figures",
    )  # fmt: skip


def _gains(answer: Mapping[str, Any]) -> Section:
    hard = max(row["scarcity"] for row in answer["gains"])
    said = [
        f"{row['world']}, {row['forecaster']}, scarcity {row['scarcity']:g}: {row['gain']:+.4f} over {row['over']} "
        f"({row['low']:+.4f} to {row['high']:+.4f})"
        for row in answer["gains"]
        if row["scarcity"] == hard and row["over"] in ("alone", "one by one, slack")
    ]
    return study(
        anchor="gains",
        heading="What planning together gains",
        sentences=("Paired by stream, with 95 % bootstrap intervals over streams.", *said),
        table=figures(
            columns=_CASE_WORDS
            | {"over": "Over", "gain": "Gain", "low": "From", "high": "To", "share": "% of the other"},
            rows=answer["gains"],
        ),
        unfold="All comparisons",
    )


def _priorities(answer: Mapping[str, Any]) -> Section:
    return study(
        anchor="priorities",
        heading="On time by priority",
        sentences=("A job of priority 4 counts four times in the sum that joint plans maximise.",),
        table=figures(
            columns=_CASE_WORDS
            | {
                "method": "Planned",
                "priority": "Priority",
                "jobs": "Jobs",
                "on_time": "On time",
                "utility": "Utility",
            },
            rows=answer["priorities"],
        ),
        unfold="By case, method and priority",
    )


def _gaps(answer: Mapping[str, Any]) -> Section:
    rows = [row for row in answer["methods"] if row["gap_median"] is not None]
    return study(
        anchor="gaps",
        heading="How far from the best plan",
        sentences=(
            "Each joint plan comes with a bound that no plan passes; the gap is the distance relative to it. It holds the "
            "plan's own "
            "shortfall and the slack of the bound.",
        ),
        table=figures(
            columns=_CASE_WORDS | {"gap_median": "Median gap", "gap_p90": "90 % of gaps below"}, rows=rows
        ),
    )


def draw_scarcity(rows: Sequence[Mapping[str, Any]]) -> str:
    """Priority x utility against scarcity, one panel for zones and forecaster, one line a method; two panels a row."""
    panels = list(dict.fromkeys((row["world"], row["forecaster"]) for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    with house_style():
        height = 235 * down + 70
        figure = new_figure(400 * across, height)
        for p, panel in enumerate(panels):
            left, top = (p % across) / across, 1 - (235 * (p // across) + 30) / height
            axes = figure.add_axes((left + 0.16 / across, top - 165 / height, 0.8 / across, 165 / height))
            for m, method in enumerate(methods):
                own = [
                    row
                    for row in rows
                    if (row["world"], row["forecaster"]) == panel and row["method"] == method
                ]
                colour, dash, marker = LINES[m % len(LINES)]
                axes.plot(
                    [row["scarcity"] for row in own],
                    [row["weighted_utility"] for row in own],
                    color=PALETTE[colour], linestyle=dash, marker=marker, markersize=5, linewidth=1.7, label=method,
                )  # fmt: skip
            axes.set_xticks(sorted({row["scarcity"] for row in rows}))
            axes.text(0, 1.05, f"{panel[0]}; {panel[1]}", transform=axes.transAxes, fontsize=10.5)
            axes.set_xlabel("scarcity", color=PALETTE["muted"])
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="lower center", ncols=2 if across == 1 else 3, frameon=False, fontsize=10,
            bbox_to_anchor=(0.5, 0.0),
        )  # fmt: skip
        return inline_svg(figure, name="scarcity", label="Priority x utility against scarcity by method")
