"""The page of ``experiment probing``: cost and errors against the price of a probe, for each class of series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.experiments.page import Page, Section, Table
from flows.experiments.probing_answer import ALWAYS, CHOSEN, COLUMNS, EQUAL_COLUMNS, HINDSIGHT
from flows.inline_svg import PALETTE, house_style, inline_svg, new_figure
from flows.plots import LINES

#: The rules that are drawn.
DRAWN = ("best", "greedy", CHOSEN, HINDSIGHT, ALWAYS)


def probing_page(answer: Mapping[str, Any]) -> Page:
    """The page; the same answer gives the same page."""
    look = "; a quick look, not a result" if answer["fast"] else ""
    sections = [Section(anchor="findings", heading="Findings", sentences=answer["findings"])]
    for name, own in answer["classes"].items():
        anchor = "single" if name == "0/1" else "counts"
        sections += [
            Section(
                anchor=anchor,
                heading=f"Cost against the price of a probe: {own['series']} series, {name}",
                sentences=[
                    "Errors and probes together, in what an instance missed or missing costs in an hour; both axes are logarithmic.",
                    "The best rule waits after each count as long as its chain says, greedy until the expected loss of a slot "
                    "exceeds the price; the fixed interval was chosen on the first half.",
                ],
                drawing=draw_costs(own["rules"], name=f"{anchor}-drawing"),
                table=Table(columns=COLUMNS, rows=own["rules"]),
                unfold="Numbers",
            ),
            Section(
                anchor=f"{anchor}-equal",
                heading=f"Errors at the same number of probes: {name}",
                sentences=["The fixed interval here is the one that probes as often as the best rule did."],
                table=Table(columns=EQUAL_COLUMNS, rows=own["equal_probes"]),
            ),
        ]
    return Page(
        title="How often to probe when a probe costs money",
        about=f"{len(answer['series'])} probed series of {answer['data']}, seed {answer['seed']}{look}.",
        sections=sections,
        notes=answer["notes"],
    )


def draw_costs(rows: list[Mapping[str, Any]], *, name: str) -> str:
    """Cost an hour of each drawn rule against the price of a probe."""
    with house_style():
        figure = new_figure(640, 360)
        axes = figure.add_axes((0.11, 0.3, 0.875, 0.62))
        for i, rule in enumerate(DRAWN):
            colour, dash, marker = LINES[i % len(LINES)]
            own = [row for row in rows if row["rule"] == rule]
            axes.plot(
                [row["price"] for row in own], [row["cost"] for row in own], label=rule, color=PALETTE[colour], linestyle=dash,
                marker=marker, markersize=4.5,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("price of a probe, instance-hours", color=PALETTE["muted"])
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize=9, frameon=False)
        axes.text(0, 1.02, "cost an hour, instance-hours", transform=axes.transAxes, color=PALETTE["muted"])
        return inline_svg(figure, name=name, label="Cost of probing against the price of a probe")
