"""The report of E2: utility against injected error, where forecasts stop to pay, robustness against consistency."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flows.experiments.drawings import Curve, draw_error, draw_tradeoff
from flows.experiments.pool.ideas import family_of, tradeoff_rows
from flows.experiments.runner import join_banner
from flows.show.blocks import Page, Section, figures, study, study_page
from flows.show.drawing import house_style

#: Lines a panel holds: the two ends of commitment at the least, the middle and the widest window.
DRAWN_OMEGAS = (1, 3, 5)


def error_page(answer: Mapping[str, Any]) -> Page:
    """The page of an answer of ``experiment error``."""
    with house_style():
        return study_page(
            title="Sensitivity to forecast errors (E2)",
            about=(
                f"{answer['jobs']} jobs drawn with seed {answer['seed']} from the later half of every series of {answer['data']}. "
                "Perfect forecasts are made wrong by a known amount (M6.8): prices in units of on-demand, counts in units of the "
                "largest count a probe can see. Utilities are in units of each job's on-demand-only cost."
            ),
            synthetic=join_banner(answer),
            sections=[_curves(answer), _tradeoff(answer)],
            notes=answer["notes"],
        )


def _label(row: Mapping[str, Any]) -> str:
    return f"AHAP({row['omega']},{row['v']})"


def _kind(row: Mapping[str, Any]) -> str:
    return f"{row['growth']}, {row['law'].replace('_', ' ')}"


def _curves(answer: Mapping[str, Any]) -> Section:
    panels: dict[str, list[Curve]] = {}
    for row in answer["curves"]:
        if row["omega"] in DRAWN_OMEGAS and row["v"] in (1, row["omega"]):
            band = answer["prediction_free"]["mean_utility"] + np.array(row["ahead_interval"])
            panels.setdefault(_kind(row), []).append(
                Curve(
                    label=_label(row), mean=np.array(row["mean_utility"]), low=band[:, 0], high=band[:, 1],
                    overtaken_at=row["overtaken_at"],
                )
            )  # fmt: skip
    free = answer["prediction_free"]
    sizes = {f"u{i}": f"Error {size:g}" for i, size in enumerate(answer["sizes"])}
    rows = [
        {
            "policy": _label(row),
            "kind": _kind(row),
            **{f"u{i}": u for i, u in enumerate(row["mean_utility"])},
            "crossing": row["overtaken_at"],
            "one": row["worse_than_one_slot_at"],
        }
        for row in answer["curves"]
    ]
    return study(
        anchor="error",
        heading="Utility against the error",
        sentences=[
            f"The dashed line is {free['policy']}, which reads no forecast: {free['mean_utility']:.4f}. A cross marks the size of "
            "error from which it is the better one. Bars are 95 % intervals of the paired difference from it.",
            *_sentences(answer),
        ],
        figure=draw_error(np.array(answer["sizes"]), panels, free["mean_utility"], name="error"),
        table=figures(
            columns={
                "policy": "Policy",
                "kind": "Error",
                **sizes,
                "crossing": "Overtaken at",
                "one": "Below AHAP(1,1) from",
            },
            rows=rows,
        ),
        unfold="All windows and commitments",
    )


def _sentences(answer: Mapping[str, Any]) -> list[str]:
    reading = [row for row in answer["curves"] if row["omega"] > 1]
    crossed = [row for row in reading if np.isfinite(row["overtaken_at"])]
    if not crossed:
        return ["No policy that plans with forecasts is overtaken within these sizes."]
    first = min(crossed, key=lambda row: row["overtaken_at"])
    ahead = [row for row in reading if not np.isfinite(row["worse_than_one_slot_at"])]
    return [
        f"AHAP(1,1) plans the present slot alone and reads no forecast either: {len(reading) - len(ahead)} of {len(reading)} "
        "curves fall below it within these sizes (last column).",
        f"Of {len(reading)} curves of policies that read forecasts {len(crossed)} are overtaken within these sizes, first "
        f"{_label(first)} under {_kind(first)} errors, at size {first['overtaken_at']:.2f}.",
    ]


def _tradeoff(answer: Mapping[str, Any]) -> Section:
    rows, ahap = tradeoff_rows(answer), answer["robustness"]
    families: dict[str, list[Mapping[str, Any]]] = {}
    for row in answer["published_ideas"]:
        families.setdefault(family_of(row["policy"]), []).append(row)
    return study(
        anchor="robustness",
        heading="Robustness against consistency",
        sentences=[
            "Consistency is the mean utility with perfect forecasts, robustness the worst mean utility over all kinds and sizes of "
            "error. Above the dashed line a policy is better than the one without forecasts whatever the error here.",
            "Dots labelled (omega,v) are AHAP; MSU-trim, UP and ROSS read no forecast, so that the two are one for them.",
        ],
        figure=draw_tradeoff(
            [f"({row['omega']},{row['v']})" for row in ahap],
            np.array([row["consistency"] for row in ahap]),
            np.array([row["robustness"] for row in ahap]),
            answer["prediction_free"]["mean_utility"],
            others={
                family: np.array([[row["consistency"], row["robustness"]] for row in members])
                for family, members in families.items()
            },
            name="tradeoff",
        ),
        table=figures(
            columns={"policy": "Policy", "consistency": "Consistency", "robustness": "Robustness"},
            rows=rows,
        ),
        unfold="Numbers",
    )
