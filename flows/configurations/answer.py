"""Errors of ``fit-configurations`` on configurations that the model had not seen, as plain values and as sections of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.command import Answer
from slackwater.flows.show.blocks import Figure, Figures, Section, numbers
from slackwater.flows.show.charts import Axis, dots, scatter
from slackwater.forecasting.configurations.scores import MeasuringEffort, errors, errors_by, held_out

_PERCENT: Final = (
    "mdape", "mape", "coverage", "spread", "classifier", "memory", "invalid_said_valid", "valid_said_invalid", "said_valid",
)  # fmt: skip
#: Headings of the errors.
ERRORS: Final = {"mdape": "MdAPE %", "mape": "MAPE %", "coverage": "Covered %", "width": "High/low"}


def measured_errors(
    runs: pd.DataFrame, *, rng: np.random.Generator, effort: MeasuringEffort, tell: Callable[[], None]
) -> dict[str, Any]:
    """Return the errors of predicted throughput on held-out configurations; shares are converted to percent."""
    scored = held_out(runs, rng=rng, effort=effort, tell=tell)
    repeats = pd.DataFrame([errors(part) for _, part in scored.groupby("repeat")])
    summary: dict[Any, Any] = {
        "what": "configurations never seen", **repeats.mean().to_dict(), "spread": spread(repeats["mdape"]),
        "coverage_spread": 100 * spread(repeats["coverage"]),
    }  # fmt: skip
    points = scored[scored["repeat"] == 0][["method", "gpu_model", "tokens_per_second", "predicted"]]
    return {
        "runs": len(runs), "left_out": runs.attrs.get("left_out"), "repeats": effort.repeats,
        "summary": percent([summary]),
        "by_group": percent(errors_by(scored, ["method", "gpu_model"]).to_dict("records")),
        "by_source": percent(errors_by(scored, ["source"]).to_dict("records")),
        "points": points.to_dict("list"),
    }  # fmt: skip


def percent(rows: list[dict[Any, Any]]) -> list[dict[str, Any]]:
    """Return the rows with shares converted to percent."""
    return [
        {str(key): 100 * value if key in _PERCENT else value for key, value in row.items()} for row in rows
    ]


def spread(values: pd.Series) -> float:
    """Return the standard deviation over repeats; NaN for a single one."""
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def about_words(answer: Mapping[str, Any]) -> str:
    """Return what was measured and how."""
    return (
        f"{answer['runs']} measured fine-tuning runs; every prediction shown is of a configuration that the model "
        f"had not seen (a fifth held out at a time; rounds: {answer['repeats']}; seed {answer['seed']}). "
        "Intervals are meant to cover 90 %."
    )


def configurations_report(answer: Mapping[str, Any]) -> Answer:
    """Return the answer of ``fit-configurations`` with its sections."""
    return Answer(
        title="Configuration knowledge",
        about=about_words(answer),
        value=answer,
        blocks=[predicted_section(answer), groups_section(answer)],
        notes=[
            f"{answer['left_out']} rows were left out of {answer['runs'] + answer['left_out']}: their token account "
            "is four times too high, and a quarter of it fits no neighbour.",
            f"The model is stored in {answer['model']}.",
        ],
    )


def _short(gpu_model: str) -> str:
    return gpu_model.removeprefix("NVIDIA-").replace("-80GB", "")


def predicted_section(answer: Mapping[str, Any], words: str = "") -> Section:
    """Return the section on predicted and measured throughput; ``words`` continue its first sentence."""
    best, points = answer["summary"][0], answer["points"]
    rows = [
        {"x": measured, "y": predicted, "series": method}
        for measured, predicted, method in zip(
            points["tokens_per_second"], points["predicted"], points["method"], strict=True
        )
    ]
    ends = [*points["tokens_per_second"], *points["predicted"]]
    low, high = min(ends), max(ends)

    def draw() -> list[dict[str, Any]]:
        x, y = (
            Axis(title=f"{kind} tokens per second", low=low, high=high, log=True, format=",.0f")
            for kind in ("measured", "predicted")
        )
        return [scatter(rows, sorted(set(points["method"])), diagonal=(low, high), height=400, x=x, y=y)]

    columns = {"what": "Tokens/s predicted for", **ERRORS, "spread": "Spread of MdAPE"}
    return Section(
        "Predicted against measured",
        [
            f"The median error is {best['mdape']:.2f} % for configurations never seen; {best['coverage']:.1f} % of them lie in the "
            f"intervals.{words}",
            Figure(specs=draw, label="Predicted against measured tokens per second", width=540),
            numbers(columns, answer["summary"], digits=2),
        ],
        "predicted",
    )


def groups_section(answer: Mapping[str, Any]) -> Section:
    """Return the section on the errors by method and GPU model, and by source."""
    shown = [row for row in answer["by_group"] if row["rows"] > 1]
    columns = {"method": "Method", "gpu_model": "GPU", "rows": "Rows", **ERRORS}
    return Section(
        "Where it errs",
        [
            Figures(_group_figures(shown)),
            numbers(columns, answer["by_group"], digits=2),
            numbers(
                {"source": "Source", "rows": "Rows", **ERRORS},
                answer["by_source"],
                digits=2,
                title="By source",
            ),
        ],
        "groups",
    )


def _group_figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Plot median error and coverage of the 90 % intervals by method and GPU model.

    The axis of errors ends at 2.5 times their median: larger errors are drawn at the edge, labelled with their value.
    """
    labels = [f"{row['method']}, {_short(row['gpu_model'])} ({row['rows']})" for row in rows]
    edge = 2.5 * median(row["mdape"] for row in rows)
    errors = [
        {"label": label, "kind": "", "value": min(row["mdape"], edge),
         "beyond": f"{row['mdape']:.0f}" if row["mdape"] > edge else None}
        for label, row in zip(labels, rows, strict=True)
    ]  # fmt: skip
    covered = [
        {"label": label, "kind": "", "value": row["coverage"]}
        for label, row in zip(labels, rows, strict=True)
    ]
    least = min(45.0, min(row["coverage"] for row in rows) - 4)

    share = Axis(title="covered, %", low=least, high=104)
    return [
        Figure(
            specs=lambda: [dots(errors, labels, x=Axis(title="MdAPE, %", low=0, high=edge))],
            label="Median error by method and GPU model",
            title="Median error",
            width=0,
        ),
        Figure(
            specs=lambda: [dots(covered, labels, x=share, kinds={"": "series2"}, rule=90.0)],
            label="Coverage by method and GPU model",
            title="Covered by 90 % intervals",
            width=0,
        ),
    ]
