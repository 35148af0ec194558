"""The drawing of the renting experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure


def draw_renters(rows: Sequence[Mapping[str, Any]], *, budget: float, name: str) -> str:
    """Two strips: cost of delay with the interval of its difference from list price, and spend beside the budget."""
    order = np.arange(len(rows))
    level = next(row["loss"] for row in rows if row["renter"] == "list price")
    with house_style():
        height = 26 * len(rows) + 70
        figure = new_figure(640, height)
        bottom, tall = 42 / height, 1 - 74 / height
        left = figure.add_axes((0.25, bottom, 0.4, tall))
        right = figure.add_axes((0.69, bottom, 0.29, tall))
        for axes in (left, right):
            axes.grid(axis="both")
            axes.set_ylim(len(rows) - 0.5, -0.5)
        for i, row in enumerate(rows):
            colour = PALETTE["on-demand" if row["renter"] == "list price" else "series1"]
            marker = "D" if row["renter"] == "list price" else "o"
            low, high = row["loss_less_list_interval"]
            left.hlines(i, level + low, level + high, color=colour, linewidth=1.8)
            left.plot([row["loss"]], [i], marker, color=colour, markersize=6.5)
            right.plot([row["spend"]], [i], marker, color=colour, markersize=6.5)
        left.set_yticks(order, [row["renter"] for row in rows])
        right.set_yticks(order, [])
        left.set_xlim(left=0)
        right.set_xlim(left=0)
        right.axvline(budget, color=PALETTE["capacity"], linewidth=1.6, linestyle=(0, (4, 2)))
        left.text(0, 1.04, "cost of delay an hour", transform=left.transAxes, color=PALETTE["muted"])
        right.text(0, 1.04, "spend (dashed: budget)", transform=right.transAxes, color=PALETTE["muted"])
        return inline_svg(figure, name=name, label="Cost of delay and spend by renter")
