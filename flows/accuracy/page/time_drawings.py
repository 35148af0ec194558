"""The drawings of one market: forecasts as they were issued with what came, and its loss day by day with the drift marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from flows.accuracy.page.drawings import HEIGHT, WIDTH
from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from flows.show.drawings import BANDS, gap_runs, hour_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Forecasts drawn side by side for a market.
FANS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fan:
    """A forecast as it was issued, and what came.

    ``quantiles`` has shape (h, 19), ``actual`` (h,) NaN in gaps; ``title`` says when it was issued. ``past`` (p,) are the values
    before, the last of them that of the slot in which it was issued.
    """

    title: str
    quantiles: np.ndarray
    actual: np.ndarray
    past: np.ndarray


def draw_fans(fans: Sequence[Fan], *, limit: float, unit: str, name: str, label: str) -> str:
    """Up to `FANS` forecasts of one market side by side: bands, median and, in ink, the values before and after.

    All stand in one pair of axes, each moved right of the one before (axes are what takes the time). ``limit`` is the capacity (NaN
    if there is none), a dashed line where it is near what is drawn.
    """
    shown = list(fans)[:FANS]
    low, high = _range(shown, limit)
    with house_style():
        figure = new_figure(WIDTH, 185)
        axes = figure.add_axes((0.105, 0.2, 0.87, 0.6))
        axes.axhline(limit, color=PALETTE["on-demand"], linewidth=1.1, linestyle=(0, (5, 2)))
        axes.set_ylim(low, high)
        ticks: list[float] = []
        labels: list[str] = []
        left = 0.0
        for fan in shown:
            begin = left + fan.past.size - 0.5  # where slot 0 stands, so that slot 1 begins half a slot later
            _draw_fan(axes, fan, begin)
            steps = sorted({1, fan.actual.size})
            ticks, labels = ticks + [begin + step for step in steps], labels + [str(step) for step in steps]
            left = begin + fan.actual.size + 0.5 + APART
        axes.set_xlim(0, max(left - APART, 1.0))
        axes.set_xticks(ticks, labels)
        _finish_fans(axes, whole=unit == "instances")
        figure.text(0.008, 0.945, unit, fontsize=10.5, color=PALETTE["muted"], va="center")
        figure.text(0.975, 0.03, "slots ahead", fontsize=10.5, color=PALETTE["muted"], ha="right")
        return inline_svg(figure, name=name, label=label)


#: Slots left free between two forecasts.
APART: Final = 1.6


def _range(fans: Sequence[Fan], limit: float) -> tuple[float, float]:
    """Ends of the common axis: everything drawn, the limit too unless it is far off and would flatten the rest."""
    values = np.concatenate([np.concatenate([f.quantiles.ravel(), f.actual, f.past]) for f in fans])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if np.isfinite(limit) and limit <= low + 2.5 * max(high - low, 1e-9):
        high = max(high, limit)
    span = high - low
    if span <= 1e-9:
        span = 0.2 * abs(high) or 1.0
    return max(low - 0.08 * span, -0.08 * span), high + 0.08 * span


def _draw_fan(axes: Axes, fan: Fan, begin: float) -> None:
    """Every slot is drawn over its whole length, so that a forecast of one slot shows too; slot 0 stands at ``begin``."""
    past, horizon = fan.past.size, fan.actual.size
    edges = begin + np.arange(horizon + 1) + 0.5
    q = np.vstack([fan.quantiles, fan.quantiles[-1:]])
    for lower, upper, colour in BANDS:
        axes.fill_between(
            edges, q[:, lower], q[:, upper], step="post", facecolor=PALETTE[colour],
            edgecolor=PALETTE[colour], linewidth=0.8,
        )  # fmt: skip
    axes.plot(edges, q[:, 9], drawstyle="steps-post", color=PALETTE["median"], linewidth=1.6)
    path, places = np.append(fan.past, fan.actual), begin + np.arange(-past, horizon + 1) + 0.5
    for first, last in gap_runs(np.isnan(path)):
        axes.axvspan(
            places[first], places[last], facecolor="none", edgecolor=PALETTE["gap"], hatch="////", linewidth=0
        )
    axes.plot(places, np.append(path, path[-1:]), drawstyle="steps-post", color=PALETTE["ink"], linewidth=1.8)
    axes.axvline(edges[0], color=PALETTE["muted"], linewidth=0.9, linestyle=(0, (1, 2)))
    axes.text(
        (places[0] + places[-1]) / 2, 1.06, fan.title, transform=axes.get_xaxis_transform(), ha="center",
        fontsize=10.5, color=PALETTE["muted"],
    )  # fmt: skip


def _finish_fans(axes: Axes, *, whole: bool) -> None:
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    axes.yaxis.set_major_locator(MaxNLocator(4, integer=whole, min_n_ticks=2))
    axes.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """When a change could first be told, and what was found."""

    at: pd.Timestamp
    found: str


def draw_daily(
    days: pd.DatetimeIndex, losses: Sequence[tuple[np.ndarray, bool]], *, marks: Sequence[Drift], unit: str,
    name: str, label: str,
) -> str:  # fmt: skip
    """Mean loss by day of last value (ink) and the default (bold); a triangle and a dotted line where drift was raised.

    ``losses`` holds (loss (days,), whether it is the default's). Days without a measured forecast are breaks in the lines.
    """
    from matplotlib.ticker import MaxNLocator

    with house_style():
        figure = new_figure(WIDTH, HEIGHT - 45)
        axes = figure.add_axes((0.135, 0.16, 0.85, 0.68))
        zero = days[-1]
        hours = np.asarray((days - zero) / pd.Timedelta(hours=1), dtype=float)
        edges = np.append(hours, hours[-1] + 24)
        for values, bold in losses:
            colour = PALETTE["series1" if bold else "ink"]
            axes.plot(
                edges, np.append(values, values[-1:]), drawstyle="steps-post", color=colour,
                linewidth=2.4 if bold else 1.4,
            )  # fmt: skip
        finite = np.concatenate([values[np.isfinite(values)] for values, _ in losses] or [np.zeros(1)])
        top = float(finite.max()) if finite.size else 0.0
        axes.set_ylim(0, 1.12 * top if top > 0 else 1)
        _mark_drift(axes, [(mark.at - zero) / pd.Timedelta(hours=1) for mark in marks])
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xticks(*hour_ticks(zero, float(edges[0]), float(edges[-1])))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.text(0, 1.07, unit, transform=axes.transAxes, fontsize=10.5, color=PALETTE["muted"])
        return inline_svg(figure, name=name, label=label)


def _mark_drift(axes: Axes, hours: Sequence[float]) -> None:
    for at in hours:
        axes.axvline(at, color=PALETTE["series2"], linewidth=1.1, linestyle=(0, (2, 1.5)))
        axes.plot(
            [at],
            [1.0],
            "v",
            color=PALETTE["series2"],
            markersize=7,
            clip_on=False,
            transform=axes.get_xaxis_transform(),
        )
