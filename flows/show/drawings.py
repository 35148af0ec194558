"""The drawings of the report page: each function takes plain values and gives one inline ``<svg>`` (matplotlib, no pyplot)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from forecasting.quantiles import Forecast

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Past slots drawn at least, and in units of the forecast's horizon, so that the forecast is never a sliver.
PAST_SLOTS, PAST_HORIZONS = 72, 5
#: (lower level, upper level, colour) of the bands, widest first, by position among the 19 quantile levels.
BANDS: Final = ((0, 18, "band90"), (1, 17, "band80"), (4, 14, "band50"))
#: Colour, dash and marker of the lines of several series, in this order; a tenth series begins again.
LINES: Final = (
    ("series1", "-", "o"),
    ("series2", (0, (5, 2)), "s"),
    ("series3", (0, (2, 1.5)), "^"),
    ("series4", (0, (6, 2, 1, 2)), "D"),
    ("series5", "-", "v"),
    ("series6", (0, (3, 1)), "P"),
    ("series7", (0, (1, 1)), "X"),
    ("series8", (0, (8, 2)), "<"),
)
#: Letters of a policy's name that fit beside the axis; the table has it whole.
NAME_LENGTH: Final = 20
_TICK_HOURS: Final = (0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 720)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series of a line drawing: ``y`` has one value per x, NaN for none; ``style`` indexes `LINES`, -1 is plain ink."""

    label: str
    y: np.ndarray
    style: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A numbered event on the x axis."""

    x: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketPanel:
    """One market's recent past and its forecast: ``price`` and ``available`` have shape (slots,), NaN in gaps."""

    title: str
    source: str
    slots: pd.DatetimeIndex
    price: np.ndarray
    available: np.ndarray
    on_demand_usd: float
    capacity: int
    forecast: Forecast | None
    assumptions: tuple[str, ...] = ()


def panel_step(panel: MarketPanel) -> pd.Timedelta:
    """Slot length of a panel: its forecast's, else the distance of its slots, else half an hour (the default grid)."""
    if panel.forecast is not None:
        return panel.forecast.step
    if len(panel.slots) > 1:
        return pd.Timedelta(panel.slots[1] - panel.slots[0])
    return pd.Timedelta(minutes=30)


def shown_past(panel: MarketPanel) -> slice:
    """The newest slots of a panel that are drawn."""
    horizon = panel.forecast.horizon if panel.forecast is not None else 0
    return slice(max(0, len(panel.slots) - max(PAST_SLOTS, PAST_HORIZONS * horizon)), None)


def gap_runs(missing: np.ndarray) -> list[tuple[int, int]]:
    """Runs of True as half-open ranges.

    >>> gap_runs(np.array([True, False, True, True]))
    [(0, 1), (2, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], missing.astype(int), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def draw_market(panel: MarketPanel, *, name: str) -> str:
    """Price above, count below: the past as steps, gaps hatched, then median and 50, 80 and 90 % bands of the forecast."""
    past = shown_past(panel)
    slots, step = panel.slots[past], panel_step(panel)
    hours = (slots - slots[-1]) / pd.Timedelta(hours=1)
    edges = np.append(np.asarray(hours, dtype=float), step / pd.Timedelta(hours=1))
    with house_style():
        figure = new_figure(380, 250)
        price = figure.add_axes((0.115, 0.5, 0.865, 0.42))
        count = figure.add_axes((0.115, 0.11, 0.865, 0.25))
        _draw_past(price, edges, panel.price[past], panel.on_demand_usd, "on-demand")
        _draw_past(count, edges, panel.available[past], panel.capacity, "capacity")
        end = edges[-1]
        if panel.forecast is not None:
            start = (panel.forecast.slots[0] - slots[-1]) / pd.Timedelta(hours=1)
            end = start + edges[-1] * panel.forecast.horizon
            for axes, q in ((price, panel.forecast.price), (count, panel.forecast.count)):
                _draw_forecast(axes, start, edges[-1], q)
        _finish_market(price, count, slots[-1], float(edges[0]), float(end))
        return inline_svg(figure, name=name, label=f"{panel.title}: spot price and instances available")


def _draw_past(axes: Axes, edges: np.ndarray, values: np.ndarray, limit: float, limit_colour: str) -> None:
    axes.axhline(limit, color=PALETTE[limit_colour], linewidth=1.3, linestyle=(0, (5, 2)))
    for first, last in gap_runs(np.isnan(values)):
        axes.axvspan(
            edges[first], edges[last], facecolor="none", edgecolor=PALETTE["gap"], hatch="////", linewidth=0
        )
    axes.plot(edges, np.append(values, values[-1]), drawstyle="steps-post", color=PALETTE["ink"])


def _draw_forecast(axes: Axes, start: float, step: float, quantiles: np.ndarray) -> None:
    """Quantiles of shape (h, 19); every slot is drawn over its whole length, so a horizon of 1 shows too."""
    x = start + step * np.arange(quantiles.shape[0] + 1)
    q = np.vstack([quantiles, quantiles[-1:]])
    for low, high, colour in BANDS:
        axes.fill_between(x, q[:, low], q[:, high], step="post", color=PALETTE[colour], linewidth=0)
    axes.plot(x, q[:, 9], drawstyle="steps-post", color=PALETTE["median"], linewidth=1.8)
    axes.axvline(start, color=PALETTE["muted"], linewidth=0.9, linestyle=(0, (1, 2)))


def _finish_market(price: Axes, count: Axes, last: pd.Timestamp, low: float, high: float) -> None:
    from matplotlib.ticker import MaxNLocator

    for axes, title in ((price, "price, USD per instance-hour"), (count, "instances available")):
        axes.set_xlim(low, high)
        top = axes.dataLim.intervaly[1]
        axes.set_ylim(0, 1.08 * top if np.isfinite(top) and top > 0 else 1)
        axes.text(0, 1.06, title, transform=axes.transAxes, fontsize=11.5, color=PALETTE["muted"])
    price.yaxis.set_major_locator(MaxNLocator(4, min_n_ticks=2))
    count.yaxis.set_major_locator(MaxNLocator(3, integer=True, min_n_ticks=2))
    ticks, labels = hour_ticks(last, low, high)
    price.set_xticks(ticks, [])
    count.set_xticks(ticks, labels)


def hour_ticks(zero: pd.Timestamp, low: float, high: float) -> tuple[list[float], list[str]]:
    """At most five ticks at round UTC times between ``low`` and ``high`` hours from ``zero``; midnights carry the date.

    >>> hour_ticks(pd.Timestamp("2026-05-04T01:00Z"), -8, 8)[1]
    ['18:00', '4 May', '06:00']
    """
    every = next((h for h in _TICK_HOURS if (high - low) / h <= 5), _TICK_HOURS[-1])
    spacing = pd.Timedelta(hours=every)
    start = (zero + pd.Timedelta(hours=low)).normalize()
    times = pd.date_range(start, zero + pd.Timedelta(hours=high), freq=spacing)
    ticks = [(t - zero) / pd.Timedelta(hours=1) for t in times]
    labels = [f"{t.day} {t:%b}" if t == t.normalize() else f"{t:%H:%M}" for t in times]
    edge = high - 0.04 * (high - low)  # a label further right would be cut off
    inside = [i for i, tick in enumerate(ticks) if low <= tick <= edge]
    return [ticks[i] for i in inside], [labels[i] for i in inside]


def whole_ticks(first: int, last: int) -> list[int]:
    """At most twelve whole numbers from ``first`` to ``last``, round ones when not all of them fit.

    >>> whole_ticks(1, 1), whole_ticks(1, 24)
    ([1], [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24])
    """
    every = next(n * 10**k for k in range(9) for n in (1, 2, 5) if (last - first + 1) / (n * 10**k) <= 12)
    return [n for n in range(first, last + 1) if n % every == 0]


def draw_steps(
    steps: np.ndarray, lines: Sequence[Line], *, name: str, label: str, floor: float | None = None
) -> str:
    """A measure by step ahead, one line a model; with ``floor`` the axis shows 0 and goes no lower than ``floor``."""
    from matplotlib.ticker import MaxNLocator

    with house_style():
        figure = new_figure(380, 215)
        axes = figure.add_axes((0.145, 0.19, 0.835, 0.77))
        for line in lines:
            colour, dash, marker = LINES[line.style % len(LINES)] if line.style >= 0 else ("ink", "-", "o")
            width = 1.5 if line.style >= 0 else 2.6
            axes.plot(
                steps,
                line.y,
                color=PALETTE[colour],
                linestyle=dash,
                linewidth=width,
                marker=marker,
                markersize=4,
            )
        bottom, top = axes.get_ylim()
        if floor is None:
            axes.set_ylim(0, top if top > 0 else 1)
        else:
            axes.axhline(0, color=PALETTE["ink"], linewidth=2.6)
            axes.set_ylim(max(min(bottom, -0.05), floor), max(top, 0.05))
        axes.set_xlim(steps.min() - 0.4, steps.max() + 0.4)
        axes.set_xticks(whole_ticks(int(steps.min()), int(steps.max())))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel("slots ahead", color=PALETTE["muted"], fontsize=10.5)
        return inline_svg(figure, name=name, label=label)


def draw_utilities(
    labels: Sequence[str], utility: np.ndarray, *, baseline: Sequence[bool], bound: float | None, name: str
) -> str:
    """Mean utility per policy as dots, the best at the top; baselines are diamonds, ``bound`` (hindsight) is a line.

    The axis is that of the policies that compete; a value far below them becomes an arrow at the left edge with its number.
    """
    rows, is_baseline = np.arange(len(labels)), np.asarray(baseline, dtype=bool)
    low, high = utility_range(utility, is_baseline, bound)
    with house_style():
        height = 21 * len(labels) + 48
        figure = new_figure(480, height)
        axes = figure.add_axes((0.27, 36 / height, 0.71, 1 - 46 / height))
        axes.grid(axis="both")
        for chosen, marker, colour in ((~is_baseline, "o", "series1"), (is_baseline, "D", "on-demand")):
            inside, outside = chosen & (utility >= low), chosen & (utility < low)
            axes.plot(utility[inside], rows[inside], marker, color=PALETTE[colour], markersize=6.5)
            axes.plot(np.full(outside.sum(), low), rows[outside], "<", color=PALETTE[colour], clip_on=False)
            for row in rows[outside]:
                axes.annotate(
                    f"{utility[row]:.3f}", (low, row), (8, 0), textcoords="offset points", va="center"
                )
        if bound is not None:
            axes.axvline(bound, color=PALETTE["capacity"], linewidth=1.6, linestyle=(0, (4, 2)))
        short = [name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…" for name in labels]
        axes.set_yticks(rows, short)
        for text, marked in zip(axes.get_yticklabels(), baseline, strict=True):
            text.set_color(PALETTE["on-demand" if marked else "ink"])
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.set_xlim(low, high)
        axes.set_xlabel("mean utility, in units of the on-demand-only cost", color=PALETTE["muted"])
        return inline_svg(figure, name=name, label="Mean utility of policies")


def utility_range(utility: np.ndarray, baseline: np.ndarray, bound: float | None) -> tuple[float, float]:
    """Ends of the utility axis.

    It holds all values but those further below the non-baselines than the lowest of these is below the best (or hindsight).
    """
    competing = utility[~baseline] if (~baseline).any() else utility
    high = float(utility.max()) if bound is None else max(float(utility.max()), bound)
    reach = high - float(competing.min())
    low = float(utility[utility >= competing.min() - reach].min())
    margin = 0.06 * (high - low) or 0.05
    return low - margin, high + margin


def draw_weights(lines: Sequence[Line], rest: np.ndarray | None, marks: Sequence[Mark], *, name: str) -> str:
    """Weights in percent over rounds 1..K; the sum of all other policies (``rest``) in a strip of its own above.

    A strip of its own, because at first nearly all weight is in it and the lines would lie on the axis.
    """
    rounds = np.arange(1, lines[0].y.size + 1)
    with house_style():
        figure = new_figure(640, 330)
        axes = figure.add_axes((0.08, 0.13, 0.905, 0.55 if rest is not None else 0.78))
        for line in lines:
            colour, dash, marker = LINES[line.style % len(LINES)]
            axes.plot(
                rounds, 100 * line.y, color=PALETTE[colour], linestyle=dash, linewidth=1.9,
                marker=marker, markersize=4.5, markevery=max(1, rounds.size // 12),
            )  # fmt: skip
        axes.set_ylim(0, None)
        axes.set_xlim(0.5, rounds.size + 0.5)
        axes.set_xticks(whole_ticks(1, rounds.size))
        axes.set_xlabel("round (one job that ended)", color=PALETTE["muted"])
        axes.text(0, 1.03, "weight, %", transform=axes.transAxes, color=PALETTE["muted"])
        for mark in marks:
            axes.axvline(mark.x, color=PALETTE["muted"], linewidth=0.9, linestyle=(0, (1, 2)))
            axes.text(
                mark.x, 1.0, mark.text, transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=10,
                weight="bold", bbox={"boxstyle": "circle,pad=0.2", "fc": PALETTE["grid"], "ec": "none"},
            )  # fmt: skip
        if rest is not None:
            _draw_rest(figure.add_axes((0.08, 0.78, 0.905, 0.15)), rounds, rest)
        return inline_svg(figure, name=name, label="Weights of policies over rounds")


def _draw_rest(axes: Axes, rounds: np.ndarray, rest: np.ndarray) -> None:
    axes.fill_between(rounds, 100 * rest, color=PALETTE["rest"], linewidth=0)
    axes.plot(rounds, 100 * rest, color=PALETTE["muted"], linewidth=1.2, marker=".", markersize=4)
    axes.set_ylim(0, 100)
    axes.set_xlim(0.5, rounds.size + 0.5)
    axes.set_yticks([0, 50, 100])
    axes.set_xticks([])
    axes.text(0, 1.12, "all other policies together, %", transform=axes.transAxes, color=PALETTE["muted"])
