"""The drawings of E3: regret against its bound, and weights through a switch of regime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from flows.show.drawings import LINES
from optimization.selection.rounds import SelectionSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes


from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


#: Panels side by side, and the size of each in pixels.
ACROSS, PANEL_WIDTH, PANEL_HEIGHT = 3, 310, 210
#: Below this regret the axis of the panels is linear, above logarithmic: regrets of one drawing differ a hundredfold.
LINEAR_BELOW = 0.1
#: Points drawn of a line at most: more than the pixels can show makes the page large.
POINTS = 240


def drawn_rounds(rounds: int) -> np.ndarray:
    """At most `POINTS` of the rounds 1..K, the first and the last among them."""
    return np.unique(np.linspace(1, rounds, min(rounds, POINTS)).round().astype(int))


def draw_regrets(summaries: Mapping[str, SelectionSummary], *, shifting: bool, name: str) -> str:
    """One panel a learner: its cumulative regret and, dashed, the bound, on one symmetric logarithmic axis."""
    down = -(-len(summaries) // ACROSS)
    with house_style():
        figure = new_figure(ACROSS * PANEL_WIDTH, down * PANEL_HEIGHT)
        panels = figure.subplots(down, ACROSS, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, (learner, summary) in zip(panels, summaries.items(), strict=False):
            _draw_regret(axes, learner, summary, shifting=shifting)
        for axes in panels[len(summaries) :]:
            axes.set_axis_off()
        figure.subplots_adjust(left=0.06, right=0.99, top=0.95, bottom=0.1, hspace=0.3, wspace=0.08)
        label = "Cumulative regret of each learner against its bound"
        return inline_svg(figure, name=name, label=label)


def _draw_regret(axes: Axes, learner: str, summary: SelectionSummary, *, shifting: bool) -> None:
    regret, bound = (
        (summary.shifting_regret_curve, summary.shifting_bound_curve)
        if shifting
        else (summary.regret_curve, summary.bound_curve)
    )
    rounds = drawn_rounds(len(regret))
    axes.axhline(0.0, color=PALETTE["muted"], linewidth=0.8)
    axes.plot(rounds, regret[rounds - 1], color=PALETTE["series1"])
    if np.isfinite(bound).any():
        axes.plot(rounds, bound[rounds - 1], color=PALETTE["series2"], linestyle=(0, (5, 2)))
    axes.set_yscale("symlog", linthresh=LINEAR_BELOW)
    axes.set_yticks([-10, -1, 0, 1, 10, 100], ["−10", "−1", "0", "1", "10", "100"])
    axes.minorticks_off()
    axes.set_xlim(0, len(regret))
    axes.set_title(learner, loc="left", fontsize=11, color=PALETTE["ink"])


def draw_shifting(summaries: Mapping[str, SelectionSummary], cut: int, *, name: str) -> str:
    """Regret of every learner against the best sequence with one change, in one picture; the switch is marked."""
    with house_style():
        figure = new_figure(640, 340)
        axes = figure.add_axes((0.08, 0.26, 0.905, 0.66))
        for i, (learner, summary) in enumerate(summaries.items()):
            colour, dash, marker = LINES[i % len(LINES)]
            curve = summary.shifting_regret_curve
            rounds = drawn_rounds(len(curve))
            axes.plot(
                rounds, curve[rounds - 1], label=learner, color=PALETTE[colour], linestyle=dash, marker=marker,
                markersize=4.5, markevery=max(1, len(rounds) // 12),
            )  # fmt: skip
        _mark_switch(axes, cut)
        axes.set_xlim(0, len(curve))
        axes.set_xlabel("job", color=PALETTE["muted"])
        _legend(axes)
        axes.text(0, 1.02, "regret, normalised", transform=axes.transAxes, color=PALETTE["muted"])
        return inline_svg(figure, name=name, label="Shifting regret of every learner through the switch")


def draw_regret_lines(curves: Mapping[str, np.ndarray], *, name: str) -> str:
    """Cumulative regrets, each of shape (K,), as lines of one picture."""
    with house_style():
        figure = new_figure(640, 380)
        axes = figure.add_axes((0.08, 0.31, 0.905, 0.61))
        for i, (learner, curve) in enumerate(curves.items()):
            colour, dash, marker = LINES[i % len(LINES)]
            rounds = drawn_rounds(len(curve))
            axes.plot(
                rounds, curve[rounds - 1], label=learner, color=PALETTE[colour], linestyle=dash if i < len(LINES) else ":",
                marker=marker, markersize=4.5, markevery=max(1, len(rounds) // 12),
            )  # fmt: skip
        axes.set_xlim(0, max(map(len, curves.values())))
        axes.set_xlabel("job", color=PALETTE["muted"])
        _legend(axes)
        axes.text(0, 1.02, "regret, normalised", transform=axes.transAxes, color=PALETTE["muted"])
        return inline_svg(
            figure, name=name, label="Cumulative regret of bandits beside the learner that sees all"
        )


def draw_weights_through(
    summary: SelectionSummary, shown: Sequence[int], cuts: Sequence[int], *, name: str
) -> str:
    """Weights in percent of the shown policies after each job, of all others together in grey, and the switches."""
    after = summary.weights[1:]
    rounds = drawn_rounds(len(after))
    others = 1.0 - after[:, list(shown)].sum(axis=1)
    with house_style():
        figure = new_figure(640, 340)
        axes = figure.add_axes((0.08, 0.26, 0.905, 0.66))
        axes.fill_between(rounds, 100 * others[rounds - 1].clip(0.0), color=PALETTE["rest"], linewidth=0)
        for i, j in enumerate(shown):
            colour, dash, marker = LINES[i % len(LINES)]
            axes.plot(
                rounds, 100 * after[rounds - 1, j], color=PALETTE[colour], linestyle=dash, marker=marker,
                markersize=4.5, markevery=max(1, len(rounds) // 12), label=f"{summary.names[j]} ({100 * after[-1, j]:.1f} %)",
            )  # fmt: skip
        for cut in cuts:
            _mark_switch(axes, cut)
        axes.set_xlim(0, len(after))
        axes.set_ylim(0, 104)
        axes.set_xlabel("job", color=PALETTE["muted"])
        _legend(axes)
        axes.text(0, 1.02, "weight, %", transform=axes.transAxes, color=PALETTE["muted"])
        return inline_svg(figure, name=name, label="Weights of policies over the jobs")


def _mark_switch(axes: Axes, cut: int) -> None:
    axes.axvline(cut + 0.5, color=PALETTE["muted"], linewidth=0.9, linestyle=(0, (1, 2)))
    axes.text(
        cut + 0.5, 1.02, "switch", transform=axes.get_xaxis_transform(), ha="center", color=PALETTE["muted"]
    )


def _legend(axes: Axes) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, fontsize=9, frameon=False)
