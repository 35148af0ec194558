"""``slackwater experiment cant-be-late``: re-implementation of the public single-instance benchmark on 0/1 traces (M4.6, M7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.command import Answer, say
from slackwater.flows.show.blocks import Figure, Fold, Section, numbers
from slackwater.flows.show.charts import Axis, dots
from slackwater.forecasting.accuracy.intervals import interval_words
from slackwater.optimization.job.definition import Job, Linear
from slackwater.optimization.market.window import market_window, record_of
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import PlanMemo
from slackwater.optimization.replay.score import hindsight
from slackwater.studies.audit import audit_outcome
from slackwater.studies.experiments.material import COUNT_COLUMNS, read_table
from slackwater.studies.experiments.study import StudyOptions
from slackwater.studies.replays import replay_pool
from slackwater.studies.single_instance import (
    DEADLINE_HOURS,
    DEFAULT,
    EAGER,
    NAIVE,
    PLAIN,
    PUBLISHED,
    Scores,
    Setting,
    Split,
    Trace,
    Window,
    blocks_of,
    mean_gap_interval,
    score_split,
    settings,
    single_traces,
    splits,
)
from slackwater.studies.trials.comparison import resampled
from slackwater.studies.trials.scenarios import GAMMA, VALUE_FACTOR
from slackwater.warehouse.errors import MarketError

SLOT_MINUTES: Final = 10
#: Hours between the starts of two runs in a trace.
EVERY_HOURS, FAST_EVERY_HOURS = 12, 48
#: Minimum length of a trace, so that runs of the longest deadline can start at several times in it.
LEAST_HOURS: Final = 2 * max(DEADLINE_HOURS)
CLASSES: Final = ("low", "medium", "high")
#: Settings for the same jobs in the product's replay: slot length, hours between the starts of two runs, and policies of
#: the pool, the authors' UP first.
OWN_SLOT_MINUTES: Final = 30
OWN_EVERY_HOURS, OWN_FAST_EVERY_HOURS = 48, 192
OWN_POLICIES: Final = ("UP-single", "UP", "MSU-trim", "Stochastic")


def cant_be_late_answer(data: Path, *, seed: int, fast: bool) -> dict[str, Any]:
    """Run the benchmark on a folder's single-instance traces and return the JSON object of the command.

    ``variants``: an entry for each direction, class of availability, deadline and overhead, with and without the last slot of a
    run. ``settings``: the same for all classes together, with 95 % intervals. ``summary``: the default policy's share of the gap
    over the settings. ``own_replay``: the same jobs under the product's rules (see `own_replay`). Raises `SourceFileError` for an
    unusable table and `MarketError` if no trace is long enough.
    """
    table = read_table(data, "availability", COUNT_COLUMNS)
    traces = single_traces(table, slot_minutes=SLOT_MINUTES, least_hours=LEAST_HOURS)
    scores = [
        scored
        for split in splits(traces)
        for scored in score_split(split, every_hours=FAST_EVERY_HOURS if fast else EVERY_HOURS, told=say)
    ]
    if not scores:
        raise MarketError(
            f"{data}: no test trace of {min(DEADLINE_HOURS)} h", expected="one that a run fits into"
        )
    rng = np.random.default_rng(seed)
    whole = [setting_row(s, rng=rng) for s in scores]
    return {
        "variants": [
            variant_row(part) | {"availability": availability}
            for s in scores
            for availability in CLASSES
            if (part := s.among(availability)).windows
        ],
        "settings": whole,
        "summary": summary(scores, whole, rng=rng),
        "own_replay": own_replay(table, rng=rng, fast=fast),
        "traces": [trace_row(trace) for trace in traces],
        "data": str(data),
        "seed": seed,
        "fast": fast,
        "notes": notes(traces, scores, fast=fast),
    }


def variant_row(scores: Scores) -> dict[str, Any]:
    """Return an entry of ``variants`` or ``settings``: mean bill, score, misses and share of the gap of every policy."""
    setting = scores.setting
    return {
        "availability": "all",
        "loses_last_slot": setting.loses_last_slot,
        "deadline_h": setting.deadline_minutes / 60,
        "overhead_h": setting.overhead_minutes / 60,
        "split": scores.split.label,
        "runs": len(scores.windows),
        "policies": {
            name: {
                "mean_cost_usd": float(scores.of(name).mean()),
                "score": setting.score(float(scores.of(name).mean())),
                "misses": int(scores.missed[:, i].sum()),
                "gap_closed": scores.gap_closed(name),
                "gap_closed_from_eager": scores.gap_closed(name, start=EAGER),
            }
            for i, name in enumerate(scores.names)
        },
        "optimum_usd": float(scores.best.mean()),
        "optimum_score": setting.score(float(scores.best.mean())),
        "on_demand_usd": setting.on_demand_only_usd,
        "spot_only_usd": setting.spot_only_usd,
    }


def setting_row(scores: Scores, *, rng: np.random.Generator) -> dict[str, Any]:
    """Return an entry of ``settings``: a variant with the interval of the default's share of the gap."""
    low, high = scores.gap_interval(DEFAULT, rng=rng)
    return variant_row(scores) | {"gap_closed_interval": [low, high]}


def summary(
    scores: Sequence[Scores], rows: Sequence[dict[str, Any]], *, rng: np.random.Generator
) -> dict[str, Any]:
    """Return the figures of `account` where the last slot of a run is lost and, as ``kept``, where it counts."""
    lost, kept = (
        account(
            [s for s in scores if s.setting.loses_last_slot == loses],
            [row for row in rows if row["loses_last_slot"] == loses],
            rng=rng,
        )
        for loses in (True, False)
    )
    costs = guard_costs([s for s in scores if not s.setting.loses_last_slot], rng=rng, pair=(PLAIN, NAIVE))
    return {"default": DEFAULT, **lost, "kept": kept, "guard_costs": costs}


def account(
    scores: Sequence[Scores], rows: Sequence[dict[str, Any]], *, rng: np.random.Generator
) -> dict[str, Any]:
    """Return shares of the gap closed, averaged over the settings of all directions, and misses over all runs."""
    names = scores[0].names
    shares = {name: [row["policies"][name]["gap_closed"] for row in rows] for name in names}
    eager = {name: [row["policies"][name]["gap_closed_from_eager"] for row in rows] for name in names}
    return {
        "runs": sum(len(s.windows) for s in scores),
        "gap_closed": {name: mean(values) for name, values in shares.items()},
        "gap_closed_from_eager": {name: mean(values) for name, values in eager.items()},
        "gap_closed_interval": list(mean_gap_interval(scores, DEFAULT, rng=rng)),
        "gap_closed_from_eager_interval": list(mean_gap_interval(scores, DEFAULT, rng=rng, start=EAGER)),
        "least_gap_closed": min((v for v in shares[DEFAULT] if np.isfinite(v)), default=float("nan")),
        "misses": {name: int(sum(s.missed[:, i].sum() for s in scores)) for i, name in enumerate(names)},
    }


def guard_costs(
    scores: Sequence[Scores], *, rng: np.random.Generator, pair: tuple[str, str]
) -> dict[str, Any]:
    """Return the cost of the guard of M4.3 over all runs, in units of on-demand throughout.

    It is the mean bill of the second policy of ``pair`` minus that of the first. The bootstrap draws runs by trace and interval
    of the longest deadline.
    """
    longest = max(s.setting.slots for s in scores)
    dearer = np.concatenate([(s.of(pair[1]) - s.of(pair[0])) / s.setting.on_demand_only_usd for s in scores])
    blocks = [(s.split.label, w.trace.name, w.start // longest) for s in scores for w in s.windows]
    low, high = resampled(dearer[:, None], blocks=blocks, rng=rng).interval()
    return {
        "dearer": float(dearer.mean()),
        "interval": [float(low[0]), float(high[0])],
        "runs": len(dearer),
        "blocks": len(set(blocks)),
    }


def own_replay(table: pd.DataFrame, *, rng: np.random.Generator, fast: bool) -> dict[str, Any]:
    """Return the object ``own_replay``: policies of the pool on such jobs under M2.4, compared with hindsight (M4.7).

    ``settings`` has a row for each setting, ``gap_closed`` the mean shares of the gap measured from the first of `OWN_POLICIES`.
    """
    start, last = OWN_POLICIES[0], OWN_POLICIES[-1]
    found = own_scores(table, every_hours=OWN_FAST_EVERY_HOURS if fast else OWN_EVERY_HOURS)
    rows: list[dict[str, Any]] = [
        {
            "deadline_h": scores.setting.deadline_minutes / 60,
            "overhead_h": scores.setting.overhead_minutes / 60,
            "runs": len(scores.windows),
            "policies": {
                name: {
                    "mean_cost_usd": float(scores.of(name).mean()),
                    "misses": int(scores.missed[:, i].sum()),
                    "gap_closed": scores.gap_closed(name, start=start),
                }
                for i, name in enumerate(scores.names)
            },
            "gap_closed_interval": list(scores.gap_interval(last, rng=rng, start=start)),
            "optimum_usd": float(scores.best.mean()),
        }
        for scores in found
    ]
    shares = {name: mean([row["policies"][name]["gap_closed"] for row in rows]) for name in OWN_POLICIES}
    intervals = {
        name: list(mean_gap_interval(found, name, rng=rng, start=start)) for name in OWN_POLICIES[1:] if found
    }
    return {"settings": rows, "gap_closed": shares, "gap_closed_intervals": intervals}


def own_scores(table: pd.DataFrame, *, every_hours: int) -> list[Scores]:
    """Return the scores of `OWN_POLICIES` on jobs that begin in the second half of every trace; settings without a job are omitted.

    The policies know the trace before the job and no forecast. The cost is the job's value minus the utility.
    """
    traces = single_traces(table, slot_minutes=OWN_SLOT_MINUTES, least_hours=LEAST_HOURS)
    every = 60 * every_hours // OWN_SLOT_MINUTES
    found = []
    for setting in settings(OWN_SLOT_MINUTES, loses_last_slot=False):
        places = [
            Window(trace=trace, start=start)
            for trace in traces
            for start in range(trace.up.size // 2, trace.up.size - setting.slots + 1, every)
        ]
        if not places:
            continue
        say(
            f"own replay: deadline {setting.deadline_minutes // 60} h, overhead {setting.overhead_minutes} min"
        )
        figures = np.array([own_run(setting, place) for place in places])
        count = len(OWN_POLICIES)
        found.append(
            Scores(
                split=Split(label="later halves", train=(), test=tuple(traces)),
                setting=setting, names=OWN_POLICIES, windows=tuple(places), cost=figures[:, :count],
                missed=figures[:, count:-1] > 0,
                best=figures[:, -1], block=blocks_of(setting, places),
            )
        )  # fmt: skip
    return found


def own_run(setting: Setting, place: Window) -> list[float]:
    """Return the costs (USD) and the misses (1 or 0) of `OWN_POLICIES` on a job, followed by the cost of hindsight."""
    d, hours, end = setting.slots, setting.slot_minutes / 60, place.start + setting.slots
    count = place.trace.up[:end].astype(float)
    price = np.full(end, setting.spot_usd_per_hour)
    market = market_window(
        price[place.start :],
        count[place.start :],
        on_demand_usd=setting.on_demand_usd_per_hour,
        slot_hours=hours,
    )
    kept = 1.0 - setting.overhead_minutes / setting.slot_minutes
    job = Job(
        name=place.trace.name,
        workload=setting.work_minutes / 60,
        deadline_slots=d,
        n_min=1,
        n_max=1,
        throughput=Linear(),
        mu_up=kept,
        mu_down=kept,
        value=VALUE_FACTOR * setting.on_demand_only_usd,
        gamma=GAMMA,
    )
    record = record_of(price, count, first=place.start, slot_hours=hours)
    policies, memo = [policy_named(name) for name in OWN_POLICIES], PlanMemo()
    outcomes = replay_pool(policies, job, market, record=record, memo=memo)
    for outcome in outcomes:
        audit_outcome(job, market, outcome)
    return [
        *(job.value - outcome.utility_usd for outcome in outcomes),
        *(float(not outcome.on_time) for outcome in outcomes),
        job.value - hindsight(job, market).high,
    ]


def mean(values: Sequence[float]) -> float:
    """Return the mean of the finite values, NaN if there is none."""
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else float("nan")


def trace_row(trace: Trace) -> dict[str, Any]:
    """Return the description of a trace for the result."""
    return {
        "name": trace.name,
        "start": trace.start,
        "hours": trace.up.size * trace.slot_minutes / 60,
        "share_up": trace.share,
        "availability": trace.availability,
        "gap_slots": trace.gaps,
    }


def notes(traces: Sequence[Trace], scores: Sequence[Scores], *, fast: bool) -> list[str]:
    """Return notes that are needed to read the figures."""
    every = FAST_EVERY_HOURS if fast else EVERY_HOURS
    found = [
        f"{len(traces)} traces of one instance, at least {LEAST_HOURS} h long; "
        f"a run starts every {every} h in each test trace, so runs overlap",
        "costs of OD and spot-only in the score: work plus one overhead, in whole slots",
        f"{PUBLISHED} is the single-cluster form of its paper: on on-demand it stays while spot is down, and until two overheads "
        f"ahead of schedule even while spot is up; {EAGER!r} leaves for spot at once. Shares of the gap are given from either",
        "the last slot of a spot instance that is lost does no work, as in the public simulators; in settings with the last slot "
        "kept it counts in full, as in the paper",
        f"{DEFAULT!r}, {NAIVE!r} and the ablations take spot, and wait, only where on-demand still finishes after a slot "
        f"without work, with the overhead of a start of spot to spare (M4.3); {DEFAULT!r} expects to lose the last slot of a run "
        "until a loss has kept it",
        "learned from the training traces only; nothing is known of the market before a run",
    ]
    if len({trace.year for trace in traces}) == 1:
        found.append("the traces are of one year: tables are learned on each one's first half")
    gaps = sum(trace.gaps for trace in traces)
    if gaps:
        found.append(f"{gaps} slots without a fresh observation count as down")
    short = {s.setting.deadline_minutes // 60: len({w.trace.name for w in s.windows}) for s in scores}
    if len(set(short.values())) > 1:
        found.append(f"traces that hold a run, by deadline in hours: {short}")
    return found


def cant_be_late_study(study: StudyOptions) -> Answer:
    """Return the scoreboard of the public benchmark on the traces of a folder."""
    return cant_be_late_report(cant_be_late_answer(study.data, seed=study.seed, fast=study.fast))


#: Headings of the tables.
POLICY_COLUMNS: Final = {
    "policy": "policy", "mean_cost_usd": "mean cost, USD", "score": "score", "misses": "misses",
    "gap_closed": "gap closed from UP", "gap_closed_from_eager": "from UP without hysteresis",
}  # fmt: skip
ABLATION_COLUMNS: Final = {
    "policy": "policy", "gap_closed": "gap closed from UP", "gap_closed_from_eager": "from UP without hysteresis",
    "misses": "misses", "kept": "gap closed where the last slot counts",
}  # fmt: skip

TRACE_COLUMNS: Final = {
    "name": "Trace", "start": "From", "hours": "Hours", "share_up": "Share up", "availability": "Class",
}  # fmt: skip


def heading(row: dict[str, Any]) -> str:
    """Return the name of a setting."""
    low, high = row["gap_closed_interval"]
    return (
        f"{row['split']}: deadline {row['deadline_h']:.0f} h, overhead {60 * row['overhead_h']:.0f} min, "
        f"last slot {'lost' if row['loses_last_slot'] else 'kept'}, {row['runs']} runs "
        f"(gap closed by {DEFAULT}: 95 % interval {interval_words(low, high, '.3f')})"
    )


def policy_rows(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a setting's table, the optimum last."""
    rows = [{"policy": name, **figures} for name, figures in row["policies"].items()]
    best = {"mean_cost_usd": row["optimum_usd"], "score": row["optimum_score"], "misses": 0}
    return [*rows, {"policy": "optimum (all known)", **best, "gap_closed": 1.0, "gap_closed_from_eager": 1.0}]


def ablation_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the table of state variables, by increasing share of the gap closed."""
    keys = ("gap_closed", "gap_closed_from_eager", "misses")
    names = sorted(found["gap_closed"], key=lambda name: found["gap_closed"][name])
    return [
        {"policy": name, **{key: found[key][name] for key in keys}, "kept": found["kept"]["gap_closed"][name]}
        for name in names
    ]


#: Smaller shares of the gap are not drawn, because they would compress the others.
LEAST_SHARE = -0.5


def cant_be_late_report(answer: Mapping[str, Any]) -> Answer:
    """Return the report: share of the gap closed by setting, scores, and the contribution of each state variable."""
    return Answer(
        title="One instance that cannot be late",
        about=(
            f"48 h of work on one instance, spot or on-demand, in 10-minute slots; {answer['summary']['runs']} runs on the "
            f"single-instance traces of {answer['data']}. Cost in USD; the score is 0 for on-demand throughout and 100 for one "
            "uninterrupted spot run."
        ),
        value=answer,
        blocks=[
            _gaps(answer),
            Section(
                "What each state variable adds",
                [
                    "Shares of the gap closed, mean over the settings, each policy learned from the same traces.",
                    numbers(ABLATION_COLUMNS, ablation_rows(answer["summary"]), digits=3),
                ],
                "ablation",
            ),
            Section(
                "Every setting",
                [
                    numbers(POLICY_COLUMNS, policy_rows(row), digits=3, title=heading(row))
                    for row in answer["settings"]
                ],
                "settings",
            ),
            _variants(answer),
            _own(answer["own_replay"]),
            Section("Traces", [Fold("All traces used", [numbers(TRACE_COLUMNS, answer["traces"], digits=2)])], "traces"),
        ],
        notes=answer["notes"],
    )  # fmt: skip


def _gaps(answer: Mapping[str, Any]) -> Section:
    found = answer["summary"]
    name = found["default"]
    return Section(
        "Share of the gap closed between uniform progress and the optimum",
        [
            f"On average over the settings {name!r} closes {found['gap_closed'][name]:.3f} of the gap from UP, at least "
            f"{found['least_gap_closed']:.3f} in each, and {found['gap_closed_from_eager'][name]:.3f} from UP without hysteresis; "
            f"where the last slot of a run counts, {found['kept']['gap_closed'][name]:.3f}.",
            f"It missed {found['misses'][name]} of {found['runs']} deadlines, {PUBLISHED} {found['misses'][PUBLISHED]}, "
            f"{PLAIN!r} {found['misses'][PLAIN]}. Where the last slot counts, the guard (M4.3) costs "
            f"{_cost_words(found['guard_costs'])}.",
            _shares_figure([row for row in answer["settings"] if row["loses_last_slot"]], default=name),
        ],
        "gap",
    )


def _cost_words(cost: Mapping[str, Any]) -> str:
    """Return text such as ``0.0012 of on-demand throughout (0.0010 to 0.0014; 40 blocks)``."""
    low, high = cost["interval"]
    return (
        f"{cost['dearer']:.4f} of on-demand throughout ({interval_words(low, high)}; {cost['blocks']} blocks)"
    )


def _shares_figure(settings: Sequence[Mapping[str, Any]], *, default: str) -> Figure:
    """Return the chart of the share of the gap closed: a row for each setting, a mark for each policy.

    Shares below `LEAST_SHARE` are omitted.
    """
    names = [n for n in settings[0]["policies"] if n.startswith(("stochastic", "UP,"))]
    labels = [f"{s['split']}, {s['deadline_h']:.0f} h, {60 * s['overhead_h']:.0f} min" for s in settings]
    rows = []
    for label, setting in zip(labels, settings, strict=True):
        for name in names:
            share = setting["policies"][name]["gap_closed"]
            low, high = setting["gap_closed_interval"] if name == default else (None, None)
            if share >= LEAST_SHARE:
                rows.append({"label": label, "value": share, "kind": name, "low": low, "high": high})
    left = min(0.0, *(row["value"] for row in rows), *(row["low"] for row in rows if row["low"] is not None))
    spec = dots(
        rows, labels, rule=0.0, spans=True, kinds={name: f"series{1 + k % 8}" for k, name in enumerate(names)},
        x=Axis(title="share of the gap from UP (0) to the optimum (1)", low=max(LEAST_SHARE, left - 0.03), high=1.0),
        height=28 * len(labels),
    )  # fmt: skip
    told = "Bars are 95 % intervals of the default policy, from a bootstrap over blocks of runs that hardly overlap."
    return Figure(specs=[spec], label="Share of the gap closed by setting and policy", captions=[told])


def _own(found: Mapping[str, Any]) -> Section:
    rows = [
        {
            "deadline": f"{row['deadline_h']:.0f} h", "overhead": f"{60 * row['overhead_h']:.0f} min", "runs": row["runs"],
            **{name: figures["gap_closed"] for name, figures in row["policies"].items()},
            "low": row["gap_closed_interval"][0], "high": row["gap_closed_interval"][1],
            "misses": sum(figures["misses"] for figures in row["policies"].values()),
        }
        for row in found["settings"]
    ]  # fmt: skip
    start, last = OWN_POLICIES[0], OWN_POLICIES[-1]
    columns = {
        "deadline": "Deadline", "overhead": "Overhead", "runs": "Runs", **{name: name for name in OWN_POLICIES[1:]},
        "low": f"{last}, 95 % from", "high": "to", "misses": "Misses",
    }  # fmt: skip
    return Section(
        "The same jobs in the product's own replay",
        [
            f"Half-hour slots, jobs that begin in the later half of each trace, no forecast. Share of the gap closed from {start}, "
            f"UP as its authors have it, to hindsight; {last} on average {found['gap_closed'][last]:.3f}, MSU-trim "
            f"{found['gap_closed']['MSU-trim']:.3f}. Here on-demand that takes the place of lost spot at once pays no restart "
            "(M2.4); in the public rules it pays the full one.",
            numbers(columns, rows, digits=3),
        ],
        "own-replay",
    )


def _variants(answer: Mapping[str, Any]) -> Section:
    default = answer["summary"]["default"]
    rows = [
        {
            "split": row["split"], "availability": row["availability"], "deadline": f"{row['deadline_h']:.0f} h",
            "overhead": f"{60 * row['overhead_h']:.0f} min", "last": "lost" if row["loses_last_slot"] else "kept",
            "runs": row["runs"], "up": row["policies"]["UP"]["mean_cost_usd"],
            "cost": row["policies"][default]["mean_cost_usd"], "optimum": row["optimum_usd"],
            "gap": row["policies"][default]["gap_closed"], "misses": row["policies"][default]["misses"],
        }
        for row in answer["variants"]
    ]  # fmt: skip
    columns = {
        "split": "Train -> test", "availability": "Availability", "deadline": "Deadline", "overhead": "Overhead",
        "last": "Last slot", "runs": "Runs",
        "up": "UP, USD", "cost": f"{default}, USD", "optimum": "Optimum, USD", "gap": "Gap closed", "misses": "Misses",
    }  # fmt: skip
    return Section("By availability", [numbers(columns, rows, digits=3)], "variants")
