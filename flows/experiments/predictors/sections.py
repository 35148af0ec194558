"""The page of ``experiment predictors``: forecasters alone, ways of choosing, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flows.experiments.predictors.answer import ARM_COLUMNS, COLUMNS
from flows.experiments.runner import join_banner
from flows.show.blocks import Page, figures, study, study_page
from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure


def predictors_page(answer: Mapping[str, Any]) -> Page:
    """The page; the same answer gives the same page."""
    look = "; a quick look, not a result" if answer["fast"] else ""
    sections = [study(anchor="findings", heading="Findings", sentences=answer["findings"])]
    for place, (policy, own) in enumerate(answer["policies"].items()):
        sections += [
            study(
                anchor=f"ways-{place}",
                heading=f"Ways of choosing under {policy}",
                sentences=[
                    f"Utility beside always planning with {answer['default']}, in hundredths of a job's on-demand-only cost, with "
                    "95 % intervals (paired, bootstrap over jobs). Learners by utility see what planning with every forecaster "
                    "earned; bandits only what the one they chose earned; the least error so far looks at accuracy alone."
                ],
                figure=draw_ahead(own, name=f"ahead-{place}"),
                table=figures(columns=COLUMNS, rows=own["ways"]),
                unfold="Numbers",
            ),
            study(
                anchor=f"arms-{place}",
                heading=f"Each forecaster alone under {policy}",
                table=figures(columns=ARM_COLUMNS, rows=own["arms"]),
            ),
        ]
    return study_page(
        title="Choosing among forecasters of unknown accuracy",
        about=(
            f"{answer['jobs']} jobs on {answer['markets']} count series of the test part of {answer['data']}, seed "
            f"{answer['seed']}{look}. Utilities are in units of each job's on-demand-only cost."
        ),
        sections=sections,
        notes=answer["notes"],
        synthetic=join_banner(answer),
    )


def draw_ahead(own: Mapping[str, Any], *, name: str) -> str:
    """One line a way and a forecaster: how far ahead of the default, with its interval."""
    rows = [*own["arms"], *own["ways"]]
    labels = [str(row.get("arm", row.get("way"))) for row in rows]
    with house_style():
        figure = new_figure(640, 40 + 22 * len(rows))
        axes = figure.add_axes((0.40, 0.1, 0.585, 0.84))
        axes.axvline(0.0, color=PALETTE["muted"], linewidth=0.9)
        for y, row in enumerate(rows):
            colour, marker = (PALETTE["series2"], "s") if "arm" in row else (PALETTE["series1"], "o")
            low, mid, high = (100 * row[key] for key in ("ahead_low", "ahead", "ahead_high"))
            axes.plot([low, high], [y, y], color=colour, linewidth=1.6)
            axes.plot([mid], [y], color=colour, marker=marker, markersize=5)
        axes.set_yticks(np.arange(len(rows)), labels, fontsize=9)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel("ahead of the default, hundredths of on-demand-only cost", color=PALETTE["muted"])
        return inline_svg(figure, name=name, label="Ways of choosing beside the default forecaster")
