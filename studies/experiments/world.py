"""``slackwater experiment world``: policies under the exact guard in the world between decisions (M12), compared with greedy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.command import Answer, progress, say
from slackwater.flows.executor import fan_out
from slackwater.flows.show.blocks import Figure, Fold, Notes, Section, numbers
from slackwater.flows.show.charts import Axis, dots
from slackwater.forecasting.accuracy.intervals import interval_words
from slackwater.optimization.market.window import market_window, record_of
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import Case, PlanMemo
from slackwater.optimization.world.readings import market_readings, readings_inside
from slackwater.optimization.world.replay import Launcher, WorldCase, replay_in_world
from slackwater.studies.experiments.material import (
    COUNT_COLUMNS,
    PRICE_COLUMNS,
    count_tapes,
    price_tapes,
    read_table,
    read_worlds,
)
from slackwater.studies.experiments.study import StudyOptions, quick_look
from slackwater.studies.experiments.world_jobs import DEADLINES, FORMS, LOADS, RECORD_SLOTS, TIMES, hard_job
from slackwater.studies.experiments.world_markets import (
    EVERY_HOURS,
    FAST_EVERY_HOURS,
    MarketRuns,
    Trip,
    market_rows,
    markets_section,
    run_markets,
    trips_of,
)
from slackwater.studies.replays import replay_pool
from slackwater.studies.trials.comparison import resampled
from slackwater.studies.trials.scenarios import Tape, aligned, peers_of, starts
from slackwater.warehouse.errors import MarketError

GREEDY, PLAN = "MSU", "Stochastic(24)"
#: Greedy first, the plan last.
POLICIES: Final = (GREEDY, "Reserve(60)", "Sizing", "UP", "OD-only", PLAN)
#: Rules without a belief that the plan is compared with.
RULES: Final = POLICIES[:-1]
#: The unit of costs is OD-only in the world, at slots.
UNIT: Final = "OD-only"
#: Spot price in units of on-demand; "moving" are the recorded prices of the market.
PRICES: Final = ("0.25", "0.8")
MOVING: Final = "moving"
#: Days between the starts of two jobs in a series.
EVERY_DAYS, FAST_EVERY_DAYS = 2, 6
#: Ways to run the policies: the launchers under the guard, and the launcher at slots without it.
WAYS: Final = ("slots", "readings", "no guard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A start in a series: its counts, readings between slots, record and peers, shared by the jobs that begin there.

    ``within`` are the readings inside the job's slots, ``before`` those between each slot of the record, or the first of the
    job, and the slot before. ``price`` (slots,) in units of on-demand, None for the constant prices `PRICES`. Loads take turns
    from the ``turn``-th on.
    """

    market: str
    series: str
    start: pd.Timestamp
    first: int
    slots: int
    turn: int
    n_max: int
    counts: np.ndarray
    within: np.ndarray | None
    before: np.ndarray | None
    price: np.ndarray | None
    peers: np.ndarray
    hours: float


def market_of(tape: Tape) -> str | None:
    """Return the group of markets of a count series, None for a series that is not used."""
    if tape.bound == 1.0:
        return "V100, 1 instance" if tape.source.endswith(":v100") else None
    names = {"a3-highgpu-1g": "H100, 8 instances", "p3.2xlarge": f"V100, {tape.bound:g} instances"}
    return names.get(tape.market.instance_type, f"{tape.market.instance_type}, {tape.bound:g} instances")


def most_instances(tape: Tape) -> int:
    """Return the most instances of jobs on a count series."""
    return min(8 if tape.market.instance_type == "a3-highgpu-1g" else 16, int(tape.bound))


def stretches(data: Path, *, every_days: int, rng: np.random.Generator) -> list[Stretch]:
    """Return a start every few days in the later half of every series of a folder.

    Series of several instances get constant prices; those of one instance the recorded prices of the same market. Raises
    `MarketError` if no series is long enough.
    """
    counts = read_table(data, "availability", COUNT_COLUMNS)
    tapes = [tape for tape in count_tapes(counts, least_capacity=1) if market_of(tape) is not None]
    paths = {
        (path.market, path.source): path
        for path in price_tapes(read_table(data, "prices", PRICE_COLUMNS), counts)
    }
    found = []
    for place, tape in enumerate(tapes):
        price = None
        if tape.bound == 1.0:
            path = paths.get((tape.market, tape.source))
            if path is None:
                continue
            price = aligned(tape, path) / path.bound
        found += list(_stretches(tape, price, peers_of(tape, tapes), every_days, place, rng))
    if not found:
        raise MarketError(f"{data}: no count series holds {min(DEADLINES)} slots in its later half")
    return found


def _stretches(
    tape: Tape,
    price: np.ndarray | None,
    peers: np.ndarray,
    every_days: int,
    place: int,
    rng: np.random.Generator,
) -> Iterator[Stretch]:
    day = round(pd.Timedelta(days=every_days) / tape.step)
    for i, begin in enumerate(range(tape.half, len(tape), day)):
        slots = DEADLINES[i % len(DEADLINES)]
        at = starts(tape, slots, "test")
        at = at[(at >= begin) & (at < begin + day)]
        if price is not None:
            at = np.array([t for t in at if np.isfinite(price[t : t + slots]).all()], dtype=int)
        if not len(at):
            continue
        first = int(rng.choice(at))
        low = max(0, first - RECORD_SLOTS)
        end = first + slots
        yield Stretch(
            market=str(market_of(tape)),
            series=tape.label,
            start=tape.time(first),
            first=first - low,
            slots=slots,
            turn=i // len(DEADLINES) + place,
            n_max=most_instances(tape),
            counts=tape.values[low:end],
            within=readings_inside(tape.within, first, slots),
            before=None if tape.within is None else tape.within[low : first + 1],
            price=None if price is None else price[low:end],
            peers=peers[:, low:end],
            hours=tape.step / pd.Timedelta(hours=1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of job: throughput, spot price, times and load by their names."""

    form: str
    price: str
    times: str
    load: float


def kinds_of(stretch: Stretch) -> list[Kind]:
    """Return the jobs that begin at a start, each of one load; on one instance all throughputs are linear."""
    forms = ["linear"] if stretch.n_max == 1 else list(FORMS)
    prices = [MOVING] if stretch.price is not None else list(PRICES)
    shapes = itertools.product(forms, prices, TIMES)
    return [
        Kind(form=form, price=price, times=times, load=LOADS[(stretch.turn + i) % len(LOADS)])
        for i, (form, price, times) in enumerate(shapes)
    ]


def world_case(stretch: Stretch, kind: Kind) -> WorldCase:
    """Return the job of a kind that begins at a start, with a hard deadline; on-demand costs 1 USD."""
    hours = stretch.hours
    job = hard_job(
        kind.form, kind.times, load=kind.load, slots=stretch.slots, n_max=stretch.n_max, hours=hours, on_demand_usd=1.0
    )  # fmt: skip
    price = stretch.price
    if price is None:
        price = np.full(len(stretch.counts), float(kind.price))
    job_slots = slice(stretch.first, stretch.first + stretch.slots)
    window = market_window(price[job_slots], stretch.counts[job_slots], on_demand_usd=1.0, slot_hours=hours)
    record = record_of(price, stretch.counts, first=stretch.first, slot_hours=hours, peers=stretch.peers)
    case = Case(job=job, window=window, record=record)
    return WorldCase.of(case, market_readings(window, stretch.within))


def replay_stretch(stretch: Stretch, names: tuple[str, ...]) -> np.ndarray:
    """Replay the policies on the jobs of a start: shape (kinds, ways and the slot model, policies, cost in USD and late)."""
    policies = [policy_named(name) for name in names]
    return np.array([_replay_job(world_case(stretch, kind), policies) for kind in kinds_of(stretch)])


def _replay_job(case: WorldCase, policies: Sequence[Policy[Any]]) -> list[list[list[float]]]:
    memo, (known,) = PlanMemo(), case.cases
    found = []
    for way in WAYS:
        launcher = Launcher.READINGS if way == "readings" else Launcher.SLOTS
        outcomes = replay_in_world(policies, case, launcher=launcher, guard=way != "no guard", memo=memo)
        found.append([[o.total_cost_usd, float(not o.on_time)] for o in outcomes])
    slot_model = replay_pool(policies, known.job, known.window, record=known.record, memo=memo)
    found.append([[o.total_cost_usd, float(not o.on_time)] for o in slot_model])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldRuns:
    """Results of all jobs: ``jobs`` has market, series, start, form, price, times, load and block of each job.

    ``cost`` and ``late`` have shape (jobs, ways and the slot model, policies); costs are in units of on-demand only.
    """

    jobs: pd.DataFrame
    cost: np.ndarray
    late: np.ndarray

    def among(self, keep: np.ndarray) -> WorldRuns:
        """Return the jobs where ``keep`` is True."""
        return WorldRuns(
            jobs=self.jobs[keep].reset_index(drop=True), cost=self.cost[keep], late=self.late[keep]
        )


def run_world(
    found: Sequence[Stretch], *, processes: int = 1, tell: Any = None, names: tuple[str, ...] = POLICIES
) -> WorldRuns:
    """Replay the policies on every job of every start."""
    results = list(fan_out(replay_stretch, found, names, processes=processes, progress=tell))
    rows = [
        {
            "market": stretch.market,
            "series": stretch.series,
            "start": stretch.start,
            "block": f"{stretch.series} {stretch.start.floor('D').isoformat()}",
            "deadline_slots": stretch.slots,
            "form": kind.form,
            "price": kind.price,
            "times": kind.times,
            "load": kind.load,
        }
        for stretch in found
        for kind in kinds_of(stretch)
    ]
    table = np.concatenate(results).astype(float)
    place = names.index(UNIT)
    cost = table[..., 0].copy()
    cost[:, : len(WAYS)] /= table[:, :1, [place], 0]
    cost[:, len(WAYS) :] /= table[:, len(WAYS) :, [place], 0]
    return WorldRuns(jobs=pd.DataFrame(rows), cost=cost, late=table[..., 1])


# ---
# The JSON object.


def cell_row(runs: WorldRuns, way: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return mean cost and late share of every policy, and how much each is cheaper than greedy, with 95 % intervals."""
    cost = runs.cost[:, way]
    draws = resampled(cost, blocks=runs.jobs["block"].to_numpy(), rng=rng)
    mean = cost.mean(axis=0)

    def cheaper_than(other: str) -> dict[str, Any]:
        i = POLICIES.index(other)
        low, high = draws.interval(draws.means[:, [i]] - draws.means)
        return {
            name: {"mean": float(mean[i] - mean[k]), "interval": [float(low[k]), float(high[k])]}
            for k, name in enumerate(POLICIES)
            if k != i
        }

    return {
        "jobs": len(cost),
        "blocks": draws.blocks,
        "cost": dict(zip(POLICIES, mean.tolist(), strict=True)),
        "late": dict(zip(POLICIES, runs.late[:, way].mean(axis=0).tolist(), strict=True)),
        "cheaper_than_greedy": cheaper_than(GREEDY),
        "cheaper_than_plan": cheaper_than(PLAN),
    }


def cells(runs: WorldRuns, columns: Sequence[str], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return a row of `cell_row` for each combination of ``columns`` and each way under the guard."""
    rows = []
    for key, group in runs.jobs.groupby(list(columns), sort=False):
        part = runs.among(runs.jobs.index.isin(group.index))
        for way, name in enumerate(WAYS[:2]):
            rows.append(
                dict(zip(columns, key, strict=True)) | {"decides_at": name} | cell_row(part, way, rng)
            )
    return rows


def overall(runs: WorldRuns) -> dict[str, Any]:
    """Return mean cost and late share of every policy over all jobs, by way and in the slot model."""
    return {
        name.replace(" ", "_"): {
            "cost": dict(zip(POLICIES, runs.cost[:, way].mean(axis=0).tolist(), strict=True)),
            "late": dict(zip(POLICIES, runs.late[:, way].mean(axis=0).tolist(), strict=True)),
        }
        for way, name in enumerate((*WAYS, "slot model"))
    }


def guard_rows(runs: WorldRuns, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return cost and late share of greedy and the plan by market, with the guard and with the net of the slot model."""
    rows = []
    for (market, times), group in runs.jobs.groupby(["market", "times"], sort=False):
        part = runs.among(runs.jobs.index.isin(group.index))
        for name in (GREEDY, PLAN):
            i = POLICIES.index(name)
            draws = resampled(part.cost[:, :3, i], blocks=part.jobs["block"].to_numpy(), rng=rng)
            low, high = draws.interval(draws.means[:, 1:2] - draws.means[:, 2:3])
            rows.append(
                {
                    "market": market,
                    "times": times,
                    "policy": name,
                    "jobs": len(part.jobs),
                    "cost": dict(zip(WAYS, part.cost[:, :3, i].mean(axis=0).tolist(), strict=True)),
                    "late": dict(zip(WAYS, part.late[:, :3, i].mean(axis=0).tolist(), strict=True)),
                    "readings_less_no_guard_interval": [float(low[0]), float(high[0])],
                }
            )
    return rows


def slot_model_rows(runs: WorldRuns, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return by kind of job what the slot model says the plan gains on greedy and how many are late, and what the world says."""
    rows, greedy, plan = [], POLICIES.index(GREEDY), POLICIES.index(PLAN)
    for key, group in runs.jobs.groupby(["form", "price", "times"], sort=False):
        part = runs.among(runs.jobs.index.isin(group.index))
        gain = part.cost[:, :, greedy] - part.cost[:, :, plan]
        draws = resampled(gain, blocks=part.jobs["block"].to_numpy(), rng=rng)
        low, high = draws.interval()
        rows.append(
            dict(zip(("form", "price", "times"), key, strict=True))
            | {"jobs": len(part.jobs)}
            | {
                f"{name}": {"mean": float(gain[:, i].mean()), "interval": [float(low[i]), float(high[i])]}
                for i, name in [(3, "slot_model"), (0, "world_slots"), (1, "world_readings")]
            }
            | {
                "plan_slot_model": float(part.cost[:, 3, plan].mean()),
                "plan_world": float(part.cost[:, 0, plan].mean()),
                "late_without_guard": float(part.late[:, 2, plan].mean()),
            }
        )
    return rows


def world_answer(
    runs: WorldRuns, *, data: Path, seed: int, fast: bool, markets: MarketRuns | None = None
) -> dict[str, Any]:
    """Return the JSON object of the command; ``markets`` are the jobs in several markets, None without any."""
    rng = np.random.default_rng([seed, 1])
    value = {
        "data": str(data),
        "seed": seed,
        "fast": fast,
        "jobs": len(runs.jobs),
        "starts": len(runs.jobs[["series", "start"]].drop_duplicates()),
        "series": sorted(set(runs.jobs["series"])),
        "blocks": len(set(runs.jobs["block"])),
        "replays": int(runs.cost.size),
        "guarded_replays": int(runs.late[:, :2].size),
        "late_under_guard": int(runs.late[:, :2].sum()),
        "overall": overall(runs),
        "cells": cells(runs, ("market", "form", "price", "times"), rng),
        "all_jobs": [{"decides_at": way} | cell_row(runs, i, rng) for i, way in enumerate(WAYS[:2])],
        "all_markets": cells(runs, ("form", "price", "times"), rng),
        "by_load": cells(runs, ("form", "price", "times", "load"), rng),
        "guard": guard_rows(runs, rng),
        "slot_model": slot_model_rows(runs, rng),
        "several_markets": [] if markets is None else market_rows(markets, rng),
    }
    value["findings"] = findings(value)
    return value


def findings(answer: Mapping[str, Any]) -> list[str]:
    """Return sentences on where planning pays, where a rule does as well, and what the guard costs."""
    bare, slot_model = answer["overall"]["no_guard"], answer["overall"]["slot_model"]
    world = answer["overall"]["slots"]
    lines = [
        f"{answer['late_under_guard']} of {answer['guarded_replays']} replays under the exact guard were late, "
        "provided that on-demand is granted at once.",
        f"With the net of the slot model alone {bare['late'][GREEDY]:.0%} of the jobs of {GREEDY} and "
        f"{bare['late'][PLAN]:.0%} of those of {PLAN} were late.",
        f"{PLAN} costs {slot_model['cost'][PLAN]:.3f} in the slot model and {world['cost'][PLAN]:.3f} in the world under the "
        "guard, both with decisions at slots.",
    ]
    groups: dict[str, list[str]] = {}
    for row in answer["all_markets"]:
        if row["decides_at"] == "slots":
            found = plan_verdict(row)
            groups.setdefault(found["verdict"], []).append(_finding(row, found))
    return lines + [f"{word}: {'; '.join(texts)}." for word, texts in groups.items()]


PAYS, AS_WELL, RULE_WINS = "Planning pays", "A rule does as well", "A rule is cheaper than the plan"


def plan_verdict(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether the plan is cheaper than every rule, and the rules that are as cheap or cheaper, by their 95 % intervals.

    `AS_WELL`: the interval of at least one rule contains 0, or lies on its side by too few blocks to tell.
    """
    against = {name: row["cheaper_than_plan"][name]["interval"] for name in RULES}
    cheaper = [name for name, (low, _) in against.items() if low > 0.0]
    even = [name for name, (low, high) in against.items() if not (low > 0.0 or high < 0.0)]
    if cheaper:
        return {"verdict": RULE_WINS, "rules": cheaper}
    return {"verdict": AS_WELL if even else PAYS, "rules": even}


def _finding(row: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    names = found["rules"] or [min(RULES, key=lambda name: row["cost"][name])]
    name = min(names, key=lambda one: float(row["cost"][one]))
    difference = row["cheaper_than_plan"][name]
    low, high = (-end for end in reversed(difference["interval"]))
    return (
        f"{kind_words(row)}: {row['cost'][PLAN]:.3f}, {name} {row['cost'][name]:.3f} "
        f"(plan cheaper by {-difference['mean']:.3f}, {interval_words(low, high, '.3f')})"
    )


def kind_words(row: Mapping[str, Any]) -> str:
    """Return a kind of job in words: ``linear, spot at 0.25, short restarts``."""
    price = "moving prices" if row["price"] == MOVING else f"spot at {row['price']}"
    return f"{row['form']}, {price}, {row['times']} restarts"


def world_study(study: StudyOptions, *, processes: int | None = None) -> Answer:
    """Run the experiment on a folder."""
    every = FAST_EVERY_DAYS if study.fast else EVERY_DAYS
    say(f"read {study.data}")
    found = stretches(study.data, every_days=every, rng=np.random.default_rng(study.seed))
    workers = study.workers(processes)
    with progress("starts", len(found), lines=True) as told:
        runs = run_world(found, processes=workers, tell=told)
    markets, trips = None, trips_in(study)
    if trips:
        with progress("jobs in several markets", len(trips), lines=True) as told:
            markets = run_markets(trips, processes=workers, tell=told)
    return world_report(
        world_answer(runs, data=study.data, seed=study.seed, fast=study.fast, markets=markets)
    )


def trips_in(study: StudyOptions) -> list[Trip]:
    """Return the jobs in several markets of a folder, none if no instance type was probed in two zones at the same time."""
    try:
        worlds = [world for world, _ in read_worlds(study.data, least_capacity=1)]
    except MarketError:
        return []
    every = FAST_EVERY_HOURS if study.fast else EVERY_HOURS
    return trips_of(worlds, every_hours=every, rng=np.random.default_rng([study.seed, 2]))


def world_report(answer: Mapping[str, Any]) -> Answer:
    """Return the report: findings, costs by kind of job, by market and by load, the guard, and what the slot model says."""
    return Answer(
        title="Policies in the world between decisions",
        about=(
            f"{answer['jobs']} jobs with hard deadlines at {answer['starts']} starts in {len(answer['series'])} count series of "
            f"{answer['data']}, seed {answer['seed']}{quick_look(answer)}. Boot 2 minutes; restart 4 minutes and a checkpoint "
            "every 10 (short), or 15 and 60 (long). Costs are in units of on-demand only at slots."
        ),
        value=answer,
        blocks=[
            Section("In short", [Notes(answer["findings"])], "answer"),
            _costs(answer),
            _loads(answer),
            _guard(answer),
            _slot_model(answer),
            *([markets_section(answer["several_markets"])] if answer["several_markets"] else []),
        ],
        notes=[
            "Counts are measured. Spot prices are assumed constant, or those recorded for the market (moving).",
            "The plan is Stochastic(24) on its Markov chains, without issued forecasts, with the tables of the world.",
            "The jobs begin in the later half of each series. Two details of Reserve and Sizing were chosen "
            "on such jobs, nothing else.",
            "Blocks are series and days.",
        ],
    )


def _cost_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return table rows of costs, with the difference between greedy and the plan."""
    return [
        {
            "market": row.get("market", ""),
            "jobs_of": kind_words(row),
            "decides_at": row["decides_at"],
            **row["cost"],
            "gain": row["cheaper_than_greedy"][PLAN]["mean"],
            "from": row["cheaper_than_greedy"][PLAN]["interval"][0],
            "to": row["cheaper_than_greedy"][PLAN]["interval"][1],
            "jobs": row["jobs"],
        }
        for row in rows
    ]


#: Headings of the policies: the plan last.
HEADINGS: Final = {name: name for name in POLICIES} | {GREEDY: f"Greedy ({GREEDY})", PLAN: f"Plan ({PLAN})"}
GAIN: Final = {"gain": "Greedy less plan", "from": "95 % from", "to": "to"}


def _costs(answer: Mapping[str, Any]) -> Section:
    columns = {"jobs_of": "Jobs", "decides_at": "Decides at", **HEADINGS, **GAIN, "jobs": "Number"}
    by_market = {"market": "Market"} | columns
    drawn = [row for row in answer["all_markets"] if row["decides_at"] == "slots"]
    rows = [
        {
            "label": kind_words(row).replace(", spot", "\nspot").replace(", moving", "\nmoving"),
            "value": row["cheaper_than_greedy"][name]["mean"],
            "low": row["cheaper_than_greedy"][name]["interval"][0],
            "high": row["cheaper_than_greedy"][name]["interval"][1],
            "kind": name,
        }
        for row in drawn
        for name in KINDS
    ]
    labels = list(dict.fromkeys(str(row["label"]) for row in rows))
    spec = dots(rows, labels, x=Axis(title="cheaper than greedy"), kinds=KINDS, spans=True)
    return Section(
        "Costs by kind of job",
        [
            "All policies under the exact guard. Bars are 95 % intervals of the paired difference from greedy, decisions at slots.",
            Figure(specs=[spec], label="Cost below greedy by kind of job", width=0),
            numbers(columns, _cost_rows(answer["all_markets"]), digits=3),
            Fold("By market", [numbers(by_market, _cost_rows(answer["cells"]), digits=3)], printed=True),
        ],
        "costs",
    )


#: Policies drawn against greedy, with their colours.
KINDS: Final = {"Reserve(60)": "series2", "Sizing": "series3", PLAN: "series1"}


def _loads(answer: Mapping[str, Any]) -> Section:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in answer["by_load"]:
        own = rows.setdefault((kind_words(row), row["decides_at"]), {})
        own |= {"jobs_of": kind_words(row), "decides_at": row["decides_at"]}
        for name, word in ((PLAN, "plan"), ("Reserve(60)", "reserve"), ("Sizing", "sizing")):
            own[f"{word}{row['load']:g}"] = row["cheaper_than_greedy"][name]["mean"]
    words = {"plan": "Plan", "reserve": "Reserve", "sizing": "Sizing"}
    columns = {f"{word}{load:g}": f"{text} {load:g}" for word, text in words.items() for load in LOADS}
    table = numbers({"jobs_of": "Jobs", "decides_at": "Decides at"} | columns, list(rows.values()), digits=3)
    return Section(
        "By load",
        [
            "Greedy less the policy, by load: the work in units of what the largest size does by the deadline.",
            table,
        ],
        "loads",
    )


def _guard(answer: Mapping[str, Any]) -> Section:
    rows = [
        {
            "market": row["market"],
            "times": row["times"],
            "policy": row["policy"],
            **{f"cost {way}": row["cost"][way] for way in WAYS},
            **{f"late {way}": row["late"][way] for way in WAYS},
            "jobs": row["jobs"],
        }
        for row in answer["guard"]
    ]
    columns = {
        "market": "Market",
        "times": "Restarts",
        "policy": "Policy",
        "cost no guard": "Cost, net of the slot model",
        "late no guard": "Late",
        "cost slots": "Cost, guard at slots",
        "late slots": "Late, guard at slots",
        "cost readings": "Cost, guard at readings",
        "late readings": "Late, guard at readings",
        "jobs": "Jobs",
    }
    table = numbers(columns, rows, digits=3)
    return Section(
        "What it costs to be right",
        [
            "The net of the slot model, decisions at slots, beside the exact guard. A late job's cost includes its ending.",
            table,
        ],
        "guard",
    )


def _slot_model(answer: Mapping[str, Any]) -> Section:
    rows = [
        {
            "jobs_of": kind_words(row),
            **{
                f"{name} {key}": value
                for name in ("slot_model", "world_slots", "world_readings")
                for key, value in zip(
                    ("mean", "from", "to"), (row[name]["mean"], *row[name]["interval"]), strict=True
                )
            },
            "plan": row["plan_slot_model"],
            "world": row["plan_world"],
            "late": row["late_without_guard"],
        }
        for row in answer["slot_model"]
    ]
    columns = {
        "jobs_of": "Jobs",
        "plan": "Plan, slot model",
        "world": "Plan, world at slots",
        "slot_model mean": "Greedy less plan, slot model",
        "slot_model from": "95 % from",
        "slot_model to": "to",
        "world_slots mean": "world at slots",
        "world_slots from": "95 % from ",
        "world_slots to": "to ",
        "world_readings mean": "world at readings",
        "world_readings from": " 95 % from",
        "world_readings to": " to",
        "late": "Late without the guard",
    }
    return Section(
        "What the slot model says of the same jobs",
        [
            "The same jobs and policies replayed in the slot model, where no job is late.",
            numbers(columns, rows, digits=3),
        ],
        "slot-model",
    )
