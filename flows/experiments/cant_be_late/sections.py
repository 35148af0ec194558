"""The report of the single-instance scoreboard: share of the gap closed by setting, scores, what each state variable adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flows.experiments.cant_be_late.study import (
    ABLATION_COLUMNS,
    POLICY_COLUMNS,
    ablation_rows,
    heading,
    policy_rows,
)
from flows.show.blocks import Page, Section, figures, study, study_page
from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from flows.show.drawings import LINES

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
