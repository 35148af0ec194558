"""The drawings of the accuracy report: each function takes plain values and gives one inline ``<svg>``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from flows.show.drawings import LINES, whole_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Width and height in CSS pixels of a drawing that stands in the grid of the page.
WIDTH, HEIGHT = 380, 225
#: Coverage this far from nominal is still drawn as kept (the demand on the intervals).
TOLERANCE: Final = 0.02
#: A step of skill smaller than this still gets an axis this tall, so that noise does not look like a mountain.
SMALLEST_SPAN: Final = 0.05

#: The style of one line among many.
FAINT: Final = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One model by step: ``y`` (steps,), NaN for none; ``style`` indexes `LINES`, -1 is last value in plain ink, or `FAINT`.

    ``sure`` (steps,) says where a marker is drawn (where the difference to last value is significant); ``bold`` is the default.
    """

    label: str
    y: np.ndarray
    style: int
    sure: np.ndarray | None = None
    bold: bool = False


def draw_by_step(
    steps: np.ndarray,
    curves: Sequence[Curve],
    *,
    unit: str,
    name: str,
    label: str,
    floor: float | None = None,
) -> str:
    """A measure by step ahead; with ``floor`` a thick line at 0 is last value, and nothing below ``floor`` is drawn."""
    from matplotlib.ticker import MaxNLocator

    with house_style():
        figure = new_figure(WIDTH, HEIGHT)
        axes = figure.add_axes((0.135, 0.175, 0.85, 0.72))
        for curve in sorted(curves, key=lambda c: c.bold):
            _draw_curve(axes, steps, curve)
        bottom, top = _ends(np.concatenate([curve.y for curve in curves])) if curves else (0.0, 1.0)
        if floor is None:
            axes.set_ylim(0, 1.06 * top if top > 0 else 1)
        else:
            axes.axhline(0, color=PALETTE["ink"], linewidth=2.2, zorder=1.5)
            low, high = max(min(bottom, -SMALLEST_SPAN), floor), max(top, SMALLEST_SPAN)
            axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        _step_axis(axes, steps)
        _unit(axes, unit)
        return inline_svg(figure, name=name, label=label)


def _draw_curve(axes: Axes, steps: np.ndarray, curve: Curve) -> None:
    colour, dash, marker = LINES[curve.style % len(LINES)] if curve.style >= 0 else ("ink", "-", "o")
    width = 2.8 if curve.bold else 2.2 if curve.style < 0 else 1.4
    if curve.style == FAINT:
        colour, width = "gap", 1.0
    axes.plot(steps, curve.y, color=PALETTE[colour], linestyle=dash, linewidth=width, zorder=3)
    sure = np.ones(steps.size, dtype=bool) if curve.sure is None else curve.sure
    axes.plot(
        steps[sure], curve.y[sure], linestyle="none", marker=marker, markersize=5.5 if curve.bold else 4.2,
        color=PALETTE[colour], zorder=4,
    )  # fmt: skip


def _ends(values: np.ndarray) -> tuple[float, float]:
    """Smallest and largest finite value, 0 and 0 if there is none."""
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def _step_axis(axes: Axes, steps: np.ndarray) -> None:
    axes.set_xlim(steps.min() - 0.4, steps.max() + 0.4)
    axes.set_xticks(whole_ticks(int(steps.min()), int(steps.max())))
    axes.set_xlabel("slots ahead", color=PALETTE["muted"], fontsize=10.5)


def _unit(axes: Axes, unit: str) -> None:
    axes.text(0, 1.045, unit, transform=axes.transAxes, fontsize=10.5, color=PALETTE["muted"])


def draw_coverage(
    steps: np.ndarray, curves: Sequence[Curve], *, nominal: float, name: str, label: str
) -> str:
    """Share of actual values inside a central interval by step, the nominal share as a thick line, `TOLERANCE` about it shaded."""
    with house_style():
        figure = new_figure(WIDTH, HEIGHT - 20)
        axes = figure.add_axes((0.135, 0.195, 0.85, 0.685))
        axes.axhspan(
            100 * (nominal - TOLERANCE), 100 * (nominal + TOLERANCE), color=PALETTE["grid"], linewidth=0
        )
        axes.axhline(100 * nominal, color=PALETTE["capacity"], linewidth=1.8, zorder=2)
        for curve in sorted(curves, key=lambda c: c.bold):
            _draw_curve(axes, steps, curve)
        bottom, top = _ends(np.concatenate([curve.y for curve in curves])) if curves else (nominal, nominal)
        low, high = (
            min(100 * nominal - 10, bottom - 2),
            max(min(100.0, 100 * nominal + 10), top + 2),
        )
        axes.set_ylim(low, high)
        _step_axis(axes, steps)
        _unit(axes, "actual values inside, %")
        return inline_svg(figure, name=name, label=label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """One model's promises against what came: ``promised`` and ``came`` (bins,), shares of 1, NaN where a bin is empty."""

    label: str
    promised: np.ndarray
    came: np.ndarray
    style: int
    bold: bool = False


def draw_reliability(models: Sequence[Reliability], *, axis: tuple[str, str], name: str, label: str) -> str:
    """Observed share against promised share; on the diagonal a model keeps its promises. ``axis`` names x and y."""
    with house_style():
        figure = new_figure(WIDTH, WIDTH - 40)
        axes = figure.add_axes((0.115, 0.125, 0.84, 0.8))
        axes.grid(axis="both")
        axes.plot([0, 100], [0, 100], color=PALETTE["capacity"], linewidth=1.8)
        for model in sorted(models, key=lambda m: m.bold):
            colour, dash, marker = LINES[model.style % len(LINES)] if model.style >= 0 else ("ink", "-", "o")
            axes.plot(
                100 * model.promised, 100 * model.came, color=PALETTE[colour], linestyle=dash, marker=marker,
                markersize=4.2, linewidth=2.6 if model.bold else 1.3,
            )  # fmt: skip
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 100)
        axes.set_xticks([0, 20, 40, 60, 80, 100])
        axes.set_xlabel(axis[0], color=PALETTE["muted"], fontsize=10.5)
        _unit(axes, axis[1])
        return inline_svg(figure, name=name, label=label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Utility lost against perfect forecasts by model, with the ends of its interval (all (models,)); NaN where unknown.

    ``bold`` is the default, ``reference`` what is no model.
    """

    labels: Sequence[str]
    lost: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bold: np.ndarray
    reference: np.ndarray


def draw_cost(cost: Cost, *, name: str, label: str) -> str:
    """Utility lost by model as dots with intervals, least at the top; 0 is planning with perfect forecasts."""
    rows = np.arange(len(cost.labels))
    with house_style():
        height = 24 * len(rows) + 52
        figure = new_figure(480, height)
        axes = figure.add_axes((0.3, 40 / height, 0.68, 1 - 48 / height))
        axes.grid(axis="both")
        axes.axvline(0, color=PALETTE["capacity"], linewidth=1.8)
        plain = ~cost.bold & ~cost.reference
        kinds = ((plain, "o", "ink"), (cost.reference, "s", "on-demand"), (cost.bold, "D", "series1"))
        for chosen, marker, colour in kinds:
            axes.hlines(rows[chosen], cost.low[chosen], cost.high[chosen], color=PALETTE[colour], linewidth=2)
            axes.plot(cost.lost[chosen], rows[chosen], marker, color=PALETTE[colour], markersize=6.5)
        axes.set_yticks(rows, [short_name(one) for one in cost.labels])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("utility lost, in units of the on-demand cost", color=PALETTE["muted"], fontsize=10.5)
        return inline_svg(figure, name=name, label=label)


def short_name(name: str, length: int = 20) -> str:
    """A name that fits beside an axis; the tables have it whole.

    >>> short_name("a_predictor_with_a_long_name")
    'a_predictor_with_a_…'
    """
    return name if len(name) <= length else name[: length - 1] + "…"
