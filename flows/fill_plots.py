"""The drawings of a filled request: H(n) with its interval, the configurations' costs, and what was held slot by slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from flows.inline_svg import PALETTE, house_style, inline_svg, new_figure
from flows.plots import hour_ticks, whole_ticks

WIDE = 460


def draw_widths(widths: Sequence[Mapping[str, Any]]) -> str:
    """Predicted tokens per second by number of instances: the median and the 90 % interval."""
    n = np.array([row["instances"] for row in widths])
    median, low, high = (
        np.array([row[key] for row in widths]) for key in ("tokens_per_second", "low", "high")
    )
    with house_style():
        figure = new_figure(WIDE, 225)
        axes = figure.add_axes((0.14, 0.2, 0.84, 0.7))
        axes.errorbar(
            n, median, yerr=(median - low, high - median), fmt="none", ecolor=PALETTE["band50"], elinewidth=7
        )
        axes.plot(n, median, color=PALETTE["median"], marker="o", markersize=5)
        axes.set_ylim(0, 1.08 * float(high.max()))
        axes.set_xlim(n[0] - 0.5, n[-1] + 0.5)
        axes.set_xticks(whole_ticks(int(n[0]), int(n[-1])))
        axes.set_xlabel("instances held", color=PALETTE["muted"])
        axes.text(0, 1.04, "tokens per second that count", transform=axes.transAxes, color=PALETTE["muted"])
        return inline_svg(figure, name="widths", label="Predicted tokens per second by number of instances")


def draw_costs(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a configuration: expected cost with its 10 to 90 % range, on-demand alone, and what the replay cost.

    ``rows`` have label, expected, p10, p90, on_demand and paid, all but the label USD or None.
    """
    with house_style():
        height = 80 + 44 * len(rows)
        figure = new_figure(WIDE, height)
        axes = figure.add_axes((0.03, 40 / height, 0.94, 1 - 74 / height))
        for place, row in enumerate(rows):
            y = -place
            axes.text(0, y + 0.22, row["label"], fontsize=10.5, color=PALETTE["ink"], va="bottom")
            if row["expected"] is not None:
                axes.plot([row["p10"], row["p90"]], [y, y], color=PALETTE["band50"], linewidth=7, zorder=2)
                axes.plot(row["expected"], y, marker="o", color=PALETTE["median"], zorder=3)
            axes.plot(row["on_demand"], y, marker="D", color=PALETTE["on-demand"], zorder=3)
            if row["paid"] is not None:
                axes.plot(row["paid"], y, marker="X", markersize=9, color=PALETTE["ink"], zorder=4)
        axes.set_ylim(-len(rows) + 0.5, 0.8)
        axes.set_xlim(left=0)
        axes.set_yticks([])
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("USD", color=PALETTE["muted"])
        return inline_svg(figure, name="costs", label="Cost of each configuration")


def draw_held(slots: Sequence[Mapping[str, Any]], *, step: pd.Timedelta) -> str:
    """Instances held slot by slot, spot below and on-demand above it, with what the market had."""
    start = pd.Timestamp(slots[0]["slot"])
    hours = step / pd.Timedelta(hours=1)
    edges = np.arange(len(slots) + 1) * hours
    spot, alone = (np.array([row[key] for row in slots], dtype=float) for key in ("spot", "on_demand"))
    there = np.array([np.nan if row["available"] is None else row["available"] for row in slots], dtype=float)
    with house_style():
        figure = new_figure(WIDE, 240)
        axes = figure.add_axes((0.07, 0.16, 0.91, 0.72))
        axes.stairs(spot, edges, fill=True, color=PALETTE["band50"], linewidth=0)
        axes.stairs(spot + alone, edges, baseline=spot, fill=True, color=PALETTE["on-demand"], linewidth=0)
        top = float((spot + alone).max()) * 1.3 + 1
        shown = np.minimum(np.append(there, there[-1]), top)
        axes.plot(edges, shown, drawstyle="steps-post", color=PALETTE["ink"], linewidth=1.2)
        axes.set_ylim(0, top)
        axes.set_xlim(0, edges[-1])
        axes.set_xticks(*hour_ticks(start, 0.0, float(edges[-1])))
        axes.text(0, 1.04, "instances", transform=axes.transAxes, color=PALETTE["muted"])
        return inline_svg(figure, name="held", label="Instances held in every slot")
