"""The page of ``experiment fleet``: utility against scarcity, what planning together gains, who is on time, how fair it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flows.show.blocks import Page, Section, figures, study, study_page
from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from flows.show.drawings import LINES

_CASE = {"world": "Zones", "forecaster": "Forecaster", "scarcity": "Scarcity"}


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
            columns=_CASE
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
            columns=_CASE
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
            columns=_CASE
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
            columns=_CASE | {"gap_median": "Median gap", "gap_p90": "90 % of gaps below"}, rows=rows
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
