"""The page of ``experiment probing``: cost and errors against the price of a probe, for each class of series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.experiments.probing.answer import CHOSEN, COLUMNS, EQUAL_COLUMNS, HELD, HINDSIGHT
from flows.show.blocks import Page, figures, study, study_page
from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from flows.show.drawings import LINES

#: The rules that are drawn.
DRAWN = ("best", "best, last value", "best, not relearned", "greedy", HELD, HINDSIGHT)


def probing_page(answer: Mapping[str, Any]) -> Page:
    """The page; the same answer gives the same page."""
    look = "; a quick look, not a result" if answer["fast"] else ""
    sections = [study(anchor="findings", heading="Findings", sentences=answer["findings"])]
    for name, own in answer["classes"].items():
        anchor = "single" if name == "0/1" else "counts"
        sections += [
            study(
                anchor=anchor,
                heading=f"Cost against the price of a probe: {own['series']} series, {name}",
                sentences=[
                    "Errors and probes together, beside those of the interval that was best on the first half (100 %).",
                    "The best rule waits after each count as long as its chain says, greedy until the expected loss of a slot "
                    "exceeds the price of a probe.",
                ],
                figure=draw_costs(own["rules"], name=f"{anchor}-drawing"),
                table=figures(columns=COLUMNS, rows=own["rules"]),
                unfold="Numbers",
            ),
            study(
                anchor=f"{anchor}-equal",
                heading=f"Errors at the same number of probes: {name}",
                sentences=["The fixed interval here is the one that probes as often as the best rule did."],
                table=figures(columns=EQUAL_COLUMNS, rows=own["equal_probes"]),
            ),
        ]
    return study_page(
        title="How often to probe when a probe costs money",
        about=f"{len(answer['series'])} probed series of {answer['data']}, seed {answer['seed']}{look}.",
        sections=sections,
        notes=answer["notes"],
    )


def draw_costs(rows: list[Mapping[str, Any]], *, name: str) -> str:
    """Cost of each drawn rule in percent of the chosen interval's, against the price of a probe."""
    base = {row["price"]: row["cost"] for row in rows if row["rule"] == CHOSEN}
    prices = sorted(base)
    with house_style():
        figure = new_figure(640, 360)
        axes = figure.add_axes((0.08, 0.3, 0.905, 0.62))
        axes.axhline(100.0, color=PALETTE["muted"], linewidth=0.9)
        for i, rule in enumerate(DRAWN):
            colour, dash, marker = LINES[i % len(LINES)]
            cost = {row["price"]: row["cost"] for row in rows if row["rule"] == rule}
            axes.plot(
                prices, [100.0 * cost[p] / base[p] for p in prices], label=rule, color=PALETTE[colour], linestyle=dash,
                marker=marker, markersize=4.5,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(prices, [f"{p:g}" for p in prices])
        axes.minorticks_off()
        axes.set_xlabel("price of a probe, instance-hours", color=PALETTE["muted"])
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize=9, frameon=False)
        axes.text(
            0, 1.02, "cost, % of the chosen interval's", transform=axes.transAxes, color=PALETTE["muted"]
        )
        return inline_svg(
            figure, name=name, label="Cost of probing rules beside a fixed interval, by price of a probe"
        )
