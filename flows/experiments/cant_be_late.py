"""``slackwater experiment cant-be-late``: the public single-instance benchmark, re-implemented, on 0/1 traces (M4.6, M7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from flows.command import Answer
from flows.command.progress import say
from flows.experiments.material import COUNT_COLUMNS, read_table
from flows.experiments.options import StudyOptions
from flows.show.blocks import Block, Notes, Page, Section, Table, figures, study, study_page
from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from flows.show.drawings import LINES
from optimization.single_instance.scoreboard import (
    BLANK,
    DEADLINE_HOURS,
    DEFAULT,
    EAGER,
    PUBLISHED,
    Scores,
    score_split,
)
from optimization.single_instance.traces import Trace, single_traces, splits
from warehouse.errors import MarketError

SLOT_MINUTES: Final = 10
#: Hours between the starts of two runs in a trace.
EVERY_HOURS, FAST_EVERY_HOURS = 12, 48
#: A trace is used if runs of the longest deadline can start at several times in it.
LEAST_HOURS: Final = 2 * max(DEADLINE_HOURS)
CLASSES: Final = ("low", "medium", "high")


def cant_be_late_answer(data: Path, *, seed: int, fast: bool) -> dict[str, Any]:
    """Run the benchmark on a folder's single-instance traces; the JSON object of the command.

    ``variants``: one per direction, class of availability, deadline and overhead; ``settings``: the same with all classes
    together, with 95 % intervals; ``summary``: the default policy's share of the gap over the settings. Raises
    `SourceFileError` for a table that cannot be used and `MarketError` if it has no trace long enough.
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
        "summary": summary(scores, whole),
        "traces": [trace_row(trace) for trace in traces],
        "data": str(data),
        "seed": seed,
        "fast": fast,
        "notes": notes(traces, scores, fast=fast),
    }


def variant_row(scores: Scores) -> dict[str, Any]:
    """One entry of ``variants`` or ``settings``: mean bill, score, misses and share of the gap of every policy."""
    setting = scores.setting
    return {
        "availability": "all",
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
    """One entry of ``settings``: as a variant, with the interval of the default's share of the gap."""
    low, high = scores.gap_interval(DEFAULT, rng=rng)
    return variant_row(scores) | {"gap_closed_interval": [low, high]}


def summary(scores: Sequence[Scores], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares of the gap closed, averaged over the settings of all directions, and misses over all runs."""
    names = scores[0].names
    shares = {name: [row["policies"][name]["gap_closed"] for row in rows] for name in names}
    eager = {name: [row["policies"][name]["gap_closed_from_eager"] for row in rows] for name in names}
    return {
        "default": DEFAULT,
        "runs": sum(len(s.windows) for s in scores),
        "gap_closed": {name: mean(values) for name, values in shares.items()},
        "gap_closed_from_eager": {name: mean(values) for name, values in eager.items()},
        "least_gap_closed": min((v for v in shares[DEFAULT] if np.isfinite(v)), default=float("nan")),
        "misses": {name: int(sum(s.missed[:, i].sum() for s in scores)) for i, name in enumerate(names)},
    }


def mean(values: Sequence[float]) -> float:
    """Mean of the finite values, NaN if there is none."""
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else float("nan")


def trace_row(trace: Trace) -> dict[str, Any]:
    """What a trace is, for the answer."""
    return {
        "name": trace.name,
        "start": trace.start,
        "hours": trace.up.size * trace.slot_minutes / 60,
        "share_up": trace.share,
        "availability": trace.availability,
        "gap_slots": trace.gaps,
    }


def notes(traces: Sequence[Trace], scores: Sequence[Scores], *, fast: bool) -> list[str]:
    """What must be known to read the figures."""
    every = FAST_EVERY_HOURS if fast else EVERY_HOURS
    found = [
        f"{len(traces)} traces of one instance, at least {LEAST_HOURS} h long; "
        f"a run starts every {every} h in each test trace, so runs overlap",
        "costs of OD and spot-only in the score: work plus one overhead, in whole slots",
        f"{PUBLISHED} is the single-cluster form of its paper: once on on-demand it stays until two overheads ahead of schedule, "
        f"even while spot is up; {EAGER!r} leaves at once. Shares of the gap are given from either",
        f"{BLANK!r} is the default policy with nothing known of the market before the job",
        "learned from the training traces only; what is known of a test trace before a run starts is what the run may look back on",
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
    """The scoreboard of the public benchmark on the traces of a folder."""
    value = cant_be_late_answer(study.data, seed=study.seed, fast=study.fast)
    return Answer(
        title="One instance that cannot be late",
        value=value,
        blocks=scoreboard_blocks(value),
        page=lambda: cant_be_late_page(value),
    )


def scoreboard_blocks(answer: dict[str, Any]) -> list[Block]:
    """The tables of the scoreboard for a person."""
    blocks: list[Block] = []
    for row in answer["settings"]:
        blocks.append(Table(heading(row), policy_rows(row), POLICY_COLUMNS))
    blocks.append(
        Table(
            "What each state variable adds: share of the gap closed, mean over the settings",
            ablation_rows(answer["summary"]),
            ABLATION_COLUMNS,
        )
    )
    blocks.append(Notes(answer["notes"]))
    return blocks


#: Headings of the tables.
POLICY_COLUMNS: Final = {
    "policy": "policy", "mean_cost_usd": "mean cost, USD", "score": "score", "misses": "misses",
    "gap_closed": "gap closed from UP", "gap_closed_from_eager": "from UP without hysteresis",
}  # fmt: skip
ABLATION_COLUMNS: Final = {
    "policy": "policy", "gap_closed": "gap closed from UP", "gap_closed_from_eager": "from UP without hysteresis",
    "misses": "misses",
}  # fmt: skip


def heading(row: dict[str, Any]) -> str:
    """Name of a setting."""
    return (
        f"{row['split']}: deadline {row['deadline_h']:.0f} h, overhead {60 * row['overhead_h']:.0f} min, {row['runs']} runs "
        f"(gap closed by {DEFAULT}: 95 % from {row['gap_closed_interval'][0]:.3f} to {row['gap_closed_interval'][1]:.3f})"
    )


def policy_rows(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of a setting's table, the optimum last."""
    rows = [{"policy": name, **figures} for name, figures in row["policies"].items()]
    best = {"mean_cost_usd": row["optimum_usd"], "score": row["optimum_score"], "misses": 0}
    return [*rows, {"policy": "optimum (all known)", **best, "gap_closed": 1.0, "gap_closed_from_eager": 1.0}]


def ablation_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table of state variables, from least to most of the gap closed."""
    keys = ("gap_closed", "gap_closed_from_eager", "misses")
    names = sorted(found["gap_closed"], key=lambda name: found["gap_closed"][name])
    return [{"policy": name, **{key: found[key][name] for key in keys}} for name in names]


# The report of the single-instance scoreboard: share of the gap closed by setting, scores, what each state variable adds.

#: Shares of the gap below it would squeeze the others together.
LEAST_SHARE = -0.5


def cant_be_late_page(answer: Mapping[str, Any]) -> Page:
    """The page of an answer of ``experiment cant-be-late``."""
    with house_style():
        return study_page(
            title="One instance that cannot be late",
            about=(
                f"48 h of work on one instance, spot or on-demand, in 10-minute slots; {answer['summary']['runs']} runs on the "
                f"single-instance traces of {answer['data']}. Cost in USD; the score is 0 for on-demand throughout and 100 for one "
                "uninterrupted spot run."
            ),
            sections=[
                _gaps(answer),
                _ablation(answer),
                *_settings(answer),
                _variants(answer),
                _traces(answer),
            ],
            notes=answer["notes"],
        )


def _gaps(answer: Mapping[str, Any]) -> Section:
    found = answer["summary"]
    name = found["default"]
    return study(
        anchor="gap",
        heading="Share of the gap closed between uniform progress and the optimum",
        sentences=[
            f"On average over the settings {name!r} closes {found['gap_closed'][name]:.3f} of the gap from UP, at least "
            f"{found['least_gap_closed']:.3f} in each, and {found['gap_closed_from_eager'][name]:.3f} from UP without hysteresis.",
            f"It missed {found['misses'][name]} of {found['runs']} deadlines.",
            "Bars are 95 % intervals of the default policy, from a bootstrap over blocks of runs that hardly overlap.",
        ],
        figure=draw_shares(answer["settings"], default=name),
    )


def draw_shares(rows: list[dict[str, Any]], *, default: str) -> str:
    """Share of the gap closed, one line a setting, one mark a policy; what lies below `LEAST_SHARE` is left out."""
    names = [n for n in rows[0]["policies"] if n.startswith("stochastic") or n.startswith("UP,")]
    place = np.arange(len(rows))
    height = 34 * len(rows) + 110
    figure = new_figure(760, height)
    axes = figure.add_axes((0.33, 44 / height, 0.64, 1 - 110 / height))
    axes.grid(axis="both")
    for k, name in enumerate(names):
        share = np.array([row["policies"][name]["gap_closed"] for row in rows], dtype=float)
        share[share < LEAST_SHARE] = np.nan
        colour, _, marker = LINES[k % len(LINES)]
        size = 8 if name == default else 5.5
        axes.plot(share, place, marker, color=PALETTE[colour], markersize=size, label=name)
        if name == default:
            low, high = np.array([row["gap_closed_interval"] for row in rows], dtype=float).T
            axes.hlines(place, low, high, color=PALETTE[colour], linewidth=1.6)
    axes.axvline(0, color=PALETTE["ink"], linewidth=1.2)
    axes.set_yticks(
        place, [f"{r['split']}, {r['deadline_h']:.0f} h, {60 * r['overhead_h']:.0f} min" for r in rows]
    )
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(max(LEAST_SHARE, axes.get_xlim()[0]), 1.0)
    axes.set_xlabel("share of the gap from UP (0) to the optimum (1)", color=PALETTE["muted"])
    axes.legend(loc="lower left", bbox_to_anchor=(-0.5, 1.01), ncols=3, fontsize=9.5, frameon=False)
    return inline_svg(figure, name="shares", label="Share of the gap closed by setting and policy")


def _ablation(answer: Mapping[str, Any]) -> Section:
    return study(
        anchor="ablation",
        heading="What each state variable adds",
        sentences=[
            "Shares of the gap closed, mean over the settings, each policy learned from the same traces."
        ],
        table=figures(columns=ABLATION_COLUMNS, rows=ablation_rows(answer["summary"]), digits=3),
    )


def _settings(answer: Mapping[str, Any]) -> list[Section]:
    return [
        study(
            anchor=f"setting-{i}",
            heading=heading(row),
            table=figures(columns=POLICY_COLUMNS, rows=policy_rows(row), digits=3),
        )
        for i, row in enumerate(answer["settings"])
    ]


def _variants(answer: Mapping[str, Any]) -> Section:
    default = answer["summary"]["default"]
    rows = [
        {
            "split": row["split"], "availability": row["availability"], "deadline": f"{row['deadline_h']:.0f} h",
            "overhead": f"{60 * row['overhead_h']:.0f} min", "runs": row["runs"], "up": row["policies"]["UP"]["mean_cost_usd"],
            "cost": row["policies"][default]["mean_cost_usd"], "optimum": row["optimum_usd"],
            "gap": row["policies"][default]["gap_closed"], "misses": row["policies"][default]["misses"],
        }
        for row in answer["variants"]
    ]  # fmt: skip
    columns = {
        "split": "Train -> test", "availability": "Availability", "deadline": "Deadline", "overhead": "Overhead", "runs": "Runs",
        "up": "UP, USD", "cost": f"{default}, USD", "optimum": "Optimum, USD", "gap": "Gap closed", "misses": "Misses",
    }  # fmt: skip
    return study(
        anchor="variants", heading="By availability", table=figures(columns=columns, rows=rows, digits=3)
    )


def _traces(answer: Mapping[str, Any]) -> Section:
    columns = {
        "name": "Trace",
        "start": "From",
        "hours": "Hours",
        "share_up": "Share up",
        "availability": "Class",
    }
    return study(
        anchor="traces",
        heading="Traces",
        table=figures(columns=columns, rows=answer["traces"], digits=2),
        unfold="All traces used",
    )
