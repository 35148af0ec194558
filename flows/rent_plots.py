"""The drawings of the renting page: each function takes plain values and gives one inline ``<svg>``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.inline_svg import PALETTE, house_style, inline_svg, new_figure
from flows.plots import LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_frontier(answer: Mapping[str, Any], key: str, *, name: str, label: str) -> str:
    """Budget against ``key`` (response_hours or loss_per_hour) of the optimum and of equal widths; baselines are marks."""
    rows = answer["frontier"]
    budget = np.array([row["budget"] for row in rows])
    with house_style():
        figure = new_figure(640, 300)
        axes = figure.add_axes((0.1, 0.17, 0.88, 0.72))
        for k, (what, column) in enumerate(
            (("fixed widths, optimal", key), ("equal widths", f"equal_widths_{key}"))
        ):
            values = np.array([row.get(column, np.nan) for row in rows], dtype=float)
            colour, dash, _ = LINES[k]
            axes.plot(budget, values, color=PALETTE[colour], linestyle=dash, linewidth=2, label=what)
        axes.axvline(answer["least_budget"], color=PALETTE["muted"], linewidth=1, linestyle=(0, (1, 2)))
        axes.annotate(
            " load", (answer["least_budget"], 0.99), xycoords=("data", "axes fraction"), va="top",
            color=PALETTE["muted"],
        )  # fmt: skip
        axes.plot(
            [answer["budget"]],
            [answer[key]],
            "o",
            color=PALETTE["series1"],
            markersize=8,
            label="this budget",
        )
        if key == "response_hours":
            _draw_clusters(axes, answer)
        axes.set_yscale("log")
        _plain_log(axes)
        axes.set_xlim(min(float(budget.min()), answer["least_budget"]) * 0.97, float(budget.max()) * 1.02)
        axes.set_xlabel(f"budget, {answer['unit']}", color=PALETTE["muted"])
        axes.text(0, 1.04, f"{label} (logarithmic)", transform=axes.transAxes, color=PALETTE["muted"])
        axes.legend(loc="upper right", frameon=False, fontsize=10)
        return inline_svg(figure, name=name, label=f"Budget against {label}")


def _draw_clusters(axes: Axes, answer: Mapping[str, Any]) -> None:
    """The simulated clusters of a fixed size, at the budget they are paid from."""
    marks = (("FIFO", "s", "series4"), ("equal sharing", "D", "series3"))
    for row in answer["baselines"]:
        for what, marker, colour in marks:
            if row["policy"].endswith(what) and row.get("simulated_response_hours") is not None:
                axes.plot(
                    [answer["budget"]], [row["simulated_response_hours"]], marker, color=PALETTE[colour],
                    markersize=7, linestyle="", label=row["policy"],
                )  # fmt: skip


def _plain_log(axes: Axes) -> None:
    """Plain numbers at round values of a logarithmic axis, however little of a decade it shows."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    wide = high / low > 30
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if wide else (1.0, 2.0, 3.0, 5.0, 7.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, axis="y", which="major")


def draw_sensitivity(rows: Sequence[Mapping[str, Any]], *, name: str) -> str:
    """Response time in units of that at the rates given, by arrival rate, one line a type and one for all."""
    scopes = list(dict.fromkeys(row["arrivals_of"] for row in rows))
    with house_style():
        figure = new_figure(640, 280)
        axes = figure.add_axes((0.1, 0.18, 0.6, 0.7))
        for k, scope in enumerate(scopes):
            own = [row for row in rows if row["arrivals_of"] == scope and row["response_hours"] is not None]
            here = next((row["response_hours"] for row in own if row["factor"] == 1.0), None)
            if here is None:
                continue
            colour, dash, marker = LINES[k % len(LINES)]
            axes.plot(
                [row["factor"] for row in own], [row["response_hours"] / here for row in own], color=PALETTE[colour],
                linestyle=dash, marker=marker, markersize=5, label=scope if len(scope) <= 24 else scope[:23] + "…",
            )  # fmt: skip
        axes.set_yscale("log")
        _plain_log(axes)
        axes.set_xticks(sorted({row["factor"] for row in rows}))
        axes.set_xlabel("arrivals, times those given", color=PALETTE["muted"])
        axes.text(
            0, 1.04, "response time, times that of today (logarithmic)", transform=axes.transAxes,
            color=PALETTE["muted"],
        )  # fmt: skip
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.02), frameon=False, fontsize=10)
        return inline_svg(figure, name=name, label="Response time by arrival rate")
