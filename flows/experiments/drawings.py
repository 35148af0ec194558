"""The drawings of the experiments' reports: each function takes plain values and gives one inline ``<svg>``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from flows.show.drawings import LINES
from flows.turn.page import utility_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: At this much headroom captured, either way, a cell of the heat map has its full colour.
FULL_COLOUR = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Means with their intervals, one a policy, the best at the top; ``baseline`` marks the policies compared with."""

    labels: Sequence[str]
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    baseline: np.ndarray


def draw_intervals(dots: Dots, *, bound: float, name: str) -> str:
    """Mean utility by policy with its interval; ``bound`` (hindsight) is a line.

    A policy far below the others becomes an arrow at the left edge with its number.
    """
    rows, marked = np.arange(len(dots.labels)), np.asarray(dots.baseline, dtype=bool)
    left, right = utility_range(dots.mean, marked, bound)
    seen = dots.mean >= left
    left, right = (
        min(left, float(np.nanmin(dots.low[seen]))),
        max(right, float(np.nanmax(dots.high[seen]))),
    )
    with house_style():
        height = 21 * len(dots.labels) + 48
        figure = new_figure(560, height)
        axes = figure.add_axes((0.3, 36 / height, 0.68, 1 - 46 / height))
        axes.grid(axis="both")
        for chosen, marker, colour in ((~marked, "o", "series1"), (marked, "D", "on-demand")):
            at = chosen & seen
            axes.hlines(rows[at], dots.low[at], dots.high[at], color=PALETTE[colour], linewidth=1.6)
            axes.plot(dots.mean[at], rows[at], marker, color=PALETTE[colour], markersize=6)
            for row in rows[chosen & ~seen]:
                axes.plot([left], [row], "<", color=PALETTE[colour], clip_on=False)
                axes.annotate(
                    f"{dots.mean[row]:.3f}", (left, row), (8, 0), textcoords="offset points", va="center"
                )
        axes.axvline(bound, color=PALETTE["capacity"], linewidth=1.6, linestyle=(0, (4, 2)))
        axes.set_yticks(rows, list(dots.labels))
        for text, is_baseline in zip(axes.get_yticklabels(), marked, strict=True):
            text.set_color(PALETTE["on-demand" if is_baseline else "ink"])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(left, right)
        axes.set_xlabel("mean utility, in units of the on-demand-only cost", color=PALETTE["muted"])
        return inline_svg(figure, name=name, label="Mean utility of policies with 95 % intervals")


def draw_gains(labels: Sequence[str], gains: dict[str, np.ndarray], *, name: str) -> str:
    """Relative gain in percent over each baseline, one strip a baseline, each on its own scale."""
    rows = np.arange(len(labels))
    with house_style():
        height = 21 * len(labels) + 64
        figure = new_figure(760, height)
        width = 0.76 / len(gains)
        for k, (base, gain) in enumerate(gains.items()):
            axes = figure.add_axes((0.22 + k * width, 36 / height, 0.86 * width, 1 - 66 / height))
            axes.grid(axis="both")
            axes.axvline(0, color=PALETTE["ink"], linewidth=1)
            axes.plot(100 * gain, rows, "o", color=PALETTE[LINES[k % len(LINES)][0]], markersize=6)
            axes.set_yticks(rows, list(labels) if k == 0 else [])
            axes.set_ylim(len(rows) - 0.4, -0.6)
            axes.locator_params(axis="x", nbins=4)
            axes.text(0, 1.02, f"over {base}, %", transform=axes.transAxes, color=PALETTE["muted"])
        return inline_svg(figure, name=name, label="Relative gain over each baseline, percent")


def draw_heat(values: np.ndarray, rows: Sequence[str], columns: Sequence[str], *, name: str) -> str:
    """A table of shares coloured by value, shape (rows, columns): above 0 green, below 0 orange, NaN empty."""
    with house_style():
        height = 30 * len(rows) + 60
        figure = new_figure(96 * len(columns) + 170, height)
        axes = figure.add_axes(
            (160 / (96 * len(columns) + 170), 0.02, 0.99 - 160 / (96 * len(columns) + 170), 1 - 60 / height)
        )
        axes.grid(visible=False)
        for i, j in np.ndindex(values.shape):
            value = float(values[i, j])
            if not np.isfinite(value):
                axes.text(j, i, "–", ha="center", va="center", color=PALETTE["muted"])
                continue
            shade = 0.85 * min(1.0, abs(value) / FULL_COLOUR)
            colour = PALETTE["series3" if value > 0 else "series2"]
            axes.fill(
                [j - 0.48, j + 0.48, j + 0.48, j - 0.48],
                [i - 0.46, i - 0.46, i + 0.46, i + 0.46],
                color=colour,
                alpha=shade,
                linewidth=0,
            )
            axes.text(j, i, f"{value:.2f}", ha="center", va="center")
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.xaxis.tick_top()
        axes.set_xticks(np.arange(len(columns)), list(columns))
        axes.set_yticks(np.arange(len(rows)), list(rows))
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        return inline_svg(figure, name=name, label="Headroom captured by cell")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Utility of one policy by error size, with its interval and where it is overtaken (NaN: nowhere)."""

    label: str
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    overtaken_at: float


def draw_error(sizes: np.ndarray, panels: dict[str, list[Curve]], level: float, *, name: str) -> str:
    """Utility against the size of the error, one panel a kind of error; the dashed line is the policy without forecasts."""
    with house_style():
        figure = new_figure(820, 650)
        ends = [(float(c.mean.min()), float(c.mean.max())) for curves in panels.values() for c in curves]
        low, high = min([level, *(e[0] for e in ends)]), max([level, *(e[1] for e in ends)])
        margin = 0.08 * (high - low) or 0.01
        for k, (title, curves) in enumerate(panels.items()):
            axes = figure.add_axes((0.07 + 0.48 * (k % 2), 0.6 - 0.47 * (k // 2), 0.43, 0.34))
            _draw_curves(axes, sizes, curves, level)
            axes.set_ylim(low - margin, high + margin)
            axes.set_title(title, loc="left", fontsize=11, color=PALETTE["ink"])
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=len(labels), fontsize=10, frameon=False)
        return inline_svg(figure, name=name, label="Utility against the size of the forecast error")


def _draw_curves(axes: Axes, sizes: np.ndarray, curves: Sequence[Curve], level: float) -> None:
    """One panel of `draw_error`: lines with a bar for the interval of each point, set apart a little."""
    for i, curve in enumerate(curves):
        colour, dash, marker = LINES[i % len(LINES)]
        x = sizes + 0.008 * (i - len(curves) / 2)
        axes.vlines(x, curve.low, curve.high, color=PALETTE[colour], linewidth=1, alpha=0.45)
        axes.plot(
            x,
            curve.mean,
            color=PALETTE[colour],
            linestyle=dash,
            marker=marker,
            markersize=4.5,
            label=curve.label,
        )
        if np.isfinite(curve.overtaken_at):
            axes.plot(
                [curve.overtaken_at], [level], "x", color=PALETTE[colour], markersize=9, markeredgewidth=2
            )
    axes.axhline(level, color=PALETTE["ink"], linewidth=1.4, linestyle=(0, (4, 2)))
    axes.set_xticks(sizes)
    axes.set_xlabel("size of the error", color=PALETTE["muted"])


def draw_tradeoff(
    labels: Sequence[str],
    consistency: np.ndarray,
    robustness: np.ndarray,
    level: float,
    *,
    name: str,
    others: Mapping[str, np.ndarray] | None = None,
) -> str:
    """Robustness (worst utility under errors) against consistency (under perfect forecasts), one dot a policy.

    ``others`` are further policies by family, (members, 2) each: a mark of its own for each family, told in the legend.
    """
    with house_style():
        figure = new_figure(620, 420)
        axes = figure.add_axes((0.12, 0.13, 0.85, 0.83))
        axes.grid(axis="both")
        axes.axhline(level, color=PALETTE["ink"], linewidth=1.4, linestyle=(0, (4, 2)))
        axes.plot(consistency, robustness, "o", color=PALETTE["series1"], markersize=6)
        for label, x, y in zip(labels, consistency, robustness, strict=True):
            axes.annotate(
                label, (x, y), (6, 3), textcoords="offset points", fontsize=9, color=PALETTE["muted"]
            )
        for i, (family, points) in enumerate((others or {}).items()):
            colour = PALETTE[f"series{2 + i % 7}"]
            axes.plot(*points.T, "sD^vP*X"[i % 7], color=colour, markersize=6, linestyle="none", label=family)
        if others:
            axes.legend(loc="upper left", fontsize=9, frameon=False)
        axes.margins(0.12)
        axes.set_xlabel("consistency: utility with perfect forecasts", color=PALETTE["muted"])
        axes.set_ylabel("robustness: worst mean utility under errors", color=PALETTE["muted"])
        return inline_svg(figure, name=name, label="Robustness against consistency")
