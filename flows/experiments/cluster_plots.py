"""The drawings of the report on the cluster: each function takes plain values and gives one inline ``<svg>``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flows.inline_svg import PALETTE, house_style, inline_svg, new_figure
from flows.plots import LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line with intervals: ``y``, ``low`` and ``high`` by ``x``; ``style`` indexes `flows.plots.LINES`."""

    label: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    style: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What the two axes of a panel say; ``ticks`` on x and ``ends`` of y where given."""

    x: str
    y: str
    ticks: Sequence[float] = ()
    ends: tuple[float, float] | None = None


def draw_panels(
    panels: Mapping[str, Sequence[Series]], axis: Axis, *, levels: Mapping[str, float], name: str, label: str
) -> str:
    """Panels side by side on one scale, a title each; ``levels`` (by title) are dashed lines, such as a published figure."""
    with house_style():
        figure = new_figure(820, 370)
        width = 0.91 / len(panels)
        drawn: Axes | None = None
        for k, (title, series) in enumerate(panels.items()):
            axes = figure.add_axes((0.075 + k * width, 0.24, 0.88 * width, 0.62), sharey=drawn)
            drawn = axes
            for line in series:
                _draw_series(axes, line)
            if title in levels:
                axes.axhline(levels[title], color=PALETTE["ink"], linewidth=1.4, linestyle=(0, (4, 2)))
            if axis.ends is not None:
                axes.set_ylim(*axis.ends)
            if axis.ticks:
                axes.set_xticks(list(axis.ticks), [f"{tick:g}" for tick in axis.ticks])
            axes.set_xlabel(axis.x, color=PALETTE["muted"])
            axes.tick_params(labelleft=k == 0)
            axes.set_title(title, loc="left", fontsize=11.5, color=PALETTE["ink"])
        figure.text(0.012, 0.955, axis.y, color=PALETTE["muted"])
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="lower center", ncols=min(3, len(labels)), fontsize=10.5, frameon=False
        )
        return inline_svg(figure, name=name, label=label)


def _draw_series(axes: Axes, line: Series) -> None:
    colour, dash, marker = LINES[line.style % len(LINES)]
    axes.vlines(line.x, line.low, line.high, color=PALETTE[colour], linewidth=1.4, alpha=0.55)
    axes.plot(
        line.x, line.y, color=PALETTE[colour], linestyle=dash, marker=marker, markersize=5, label=line.label
    )


def draw_badness(panels: Mapping[str, Sequence[Series]], *, levels: Mapping[str, float], name: str) -> str:
    """Reduction against how bad the default is; the thin curve is what an empty cluster would give, 1 - 1/slowdown."""
    with house_style():
        figure = new_figure(820, 370)
        width = 0.91 / len(panels)
        drawn: Axes | None = None
        for k, (title, series) in enumerate(panels.items()):
            axes = figure.add_axes((0.075 + k * width, 0.24, 0.88 * width, 0.62), sharey=drawn)
            drawn = axes
            right = max(float(line.x.max()) for line in series)
            grid = np.linspace(1.0, 1.08 * right, 80)
            axes.plot(
                grid,
                100 * (1 - 1 / grid),
                color=PALETTE["muted"],
                linewidth=1.1,
                label="empty cluster",
            )
            for line in series:
                _draw_series(axes, line)
            axes.axhline(levels[title], color=PALETTE["ink"], linewidth=1.4, linestyle=(0, (4, 2)))
            axes.set_ylim(0, 100)
            axes.set_xlim(1, 1.08 * right)
            axes.tick_params(labelleft=k == 0)
            axes.set_xlabel("time of the default over that of the predicted pick", color=PALETTE["muted"])
            axes.set_title(title, loc="left", fontsize=11.5, color=PALETTE["ink"])
        figure.text(0.012, 0.955, "reduction of mean completion time, %", color=PALETTE["muted"])
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=10.5, frameon=False)
        return inline_svg(figure, name=name, label="Reduction against how bad the default is")
