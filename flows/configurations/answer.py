"""Measurements of ``fit-configurations``, as plain values and as sections of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.command import Answer
from slackwater.flows.show.blocks import Figure, Figures, Fold, Section, numbers
from slackwater.forecasting.configurations.model import ConfigurationModel
from slackwater.forecasting.configurations.scores import (
    CURVE_SIZES,
    FAST,
    FOLDS,
    FULL,
    SPLITS,
    MeasuringEffort,
    errors,
    errors_by,
    held_out,
    impossible_labels,
    label_errors,
    learning_curve,
    measured_said_valid,
    models_left_out,
)
from slackwater.forecasting.configurations.validity import failure_rates, read_labels, read_statistics

# ---
# Measurements as plain values; shares are converted to percent here.

EVALUATIONS: Final = {False: FULL, True: FAST}  # Effort of the measurement, by ``--fast``
#: Published errors for comparison (M9.2, M9.3), percent.
MARKS: Final = {"xgboost_mdape": 7.2, "catboost_mdape": 8.4, "knn_mdape": 11.5, "autoconf_error": 8.4}
_PERCENT: Final = (
    "mdape", "mape", "coverage", "spread", "classifier", "memory", "invalid_said_valid", "valid_said_invalid", "said_valid",
)  # fmt: skip


def steps(model: ConfigurationModel, *, fast: bool) -> int:
    """Return the number of models fitted to measure ``model``, for a progress bar."""
    effort = EVALUATIONS[fast]
    counts = model.throughput.runs["model_name"].value_counts()
    left_out = int((counts >= effort.least_rows).sum())
    labels = sum(4 if "GPU models" in split else FOLDS for split, _ in SPLITS)
    return effort.repeats * FOLDS + left_out + effort.curve_repeats * (len(CURVE_SIZES) + 1) + labels


def measured_answer(
    model: ConfigurationModel, data: Path, *, seed: int, effort: MeasuringEffort, tell: Callable[[], None]
) -> dict[str, Any]:
    """Return errors of predicted throughput and validity on held-out data, and failure rates with the published rates."""
    runs, labels = model.throughput.runs, read_labels(data)
    rng = np.random.default_rng(seed)
    scored = held_out(runs, rng=rng, effort=effort, tell=tell)
    left = models_left_out(runs, effort=effort, tell=tell)
    curve = learning_curve(runs, rng=rng, effort=effort, tell=tell)
    rates = failure_rates(read_statistics(data), runs, model.checks.classifier.memory)
    answer: dict[str, Any] = {
        "data": str(data), "seed": seed, "runs": len(runs), "left_out": runs.attrs.get("left_out"),
        "repeats": effort.repeats, "marks": MARKS,
        "summary": _summary(scored, left),
        "by_group": percent(errors_by(scored, ["method", "gpu_model"]).to_dict("records")),
        "by_source": percent(errors_by(scored, ["source"]).to_dict("records")),
        "learning_curve": percent(_curve(curve)),
        "models_left_out": percent(errors_by(left, ["model_name"]).to_dict("records")),
        "validity": percent(label_errors(labels, rng=rng, tell=tell)),
        "measured_valid": percent(measured_said_valid(runs, model.checks)),
        "failure_rates": rates.to_dict("records"),
        "points": scored[scored["repeat"] == 0][["method", "gpu_model", "tokens_per_second", "predicted"]].to_dict("list"),
    }  # fmt: skip
    answer["notes"] = _notes(answer, impossible_labels(labels))
    return answer


def percent(rows: list[dict[Any, Any]]) -> list[dict[str, Any]]:
    """Return the rows with shares converted to percent."""
    return [
        {str(key): 100 * value if key in _PERCENT else value for key, value in row.items()} for row in rows
    ]


def _summary(scored: pd.DataFrame, left: pd.DataFrame) -> list[dict[str, Any]]:
    repeats = pd.DataFrame([errors(part) for _, part in scored.groupby("repeat")])
    mean = repeats.mean().to_dict()
    sizes = left["model_name"].map(left["model_name"].value_counts())
    rows: list[dict[Any, Any]] = [
        {"what": "configurations never seen", **mean, "spread": _spread(repeats["mdape"]),
         "coverage_spread": 100 * _spread(repeats["coverage"])},
        {"what": "models never seen", **errors(left)},
        {"what": "models never seen, of 20 rows and more", **errors(left[sizes >= 20])},
    ]  # fmt: skip
    return percent(rows)


def _curve(curve: pd.DataFrame) -> list[dict[str, Any]]:
    """Return mean and spread over repeats by training size; the last size, the whole training set, varies by a few rows."""
    sizes = curve["rows"].where(curve["rows"].isin(CURVE_SIZES), int(curve["rows"].max()))
    return [
        {"rows": int(size), "mdape": part["mdape"].mean(), "spread": _spread(part["mdape"]), "mape": part["mape"].mean(),
         "coverage": part["coverage"].mean(), "width": part["width"].mean()}
        for size, part in curve.groupby(sizes)
    ]  # fmt: skip


def _spread(values: pd.Series) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def _notes(answer: dict[str, Any], impossible: dict[str, int]) -> list[str]:
    checked = [
        row for row in answer["failure_rates"]
        if row["factor"] in ("method", "gpu_model") and row["rate"] in ("failure_rate", "valid_rate")
    ]  # fmt: skip
    far = [f"{row['level']} ({row['difference']:+.1f})" for row in checked if abs(row["difference"]) > 10]
    return [
        f"{answer['left_out']} rows were left out of {answer['runs'] + answer['left_out']}: their token account "
        "is four times too high, and a quarter of it fits no neighbour.",
        "Validity labels are SYNTHETIC: predictions of a published classifier on a grid, smooth where real failures are not. "
        f"{impossible['called_valid']} of {impossible['labels']} whose weights alone exceed the GPUs' memory are called valid.",
        f"Failure rates: {len(checked) - len(far)} of {len(checked)} (three methods, four GPU models) are within 10 points"
        + (f"; not {', '.join(far)}." if far else "."),
        "The published experiments are known by their margins alone: batches beyond 128 are put on A100-SXM, and every model "
        "measured with a method on a GPU model counts alike there.",
    ]


# ---
# Sections of the page.

#: Labels of the rates in the figure.
_RATES: Final = {"failure_rate": "fails", "valid_rate": "valid", "runtime_failure_rate": "fails running"}
_ERRORS: Final = {"mdape": "MdAPE %", "mape": "MAPE %", "coverage": "Covered %", "width": "High/low"}


def configurations_report(answer: Mapping[str, Any]) -> Answer:
    """Return the answer of ``fit-configurations`` with its sections."""
    return Answer(
        title="Configuration knowledge",
        about=(
            f"{answer['runs']} measured fine-tuning runs; every prediction shown is of a configuration that the model "
            f"had not seen (a fifth held out at a time; rounds: {answer['repeats']}; seed {answer['seed']}). "
            "Intervals are meant to cover 90 %."
        ),
        value=answer,
        blocks=[
            _predicted(answer),
            _groups(answer),
            _curve_section(answer),
            _left_out(answer),
            _validity(answer),
            _failures(answer),
        ],
        notes=[
            *answer["notes"],
            *([f"The model is kept in {answer['model']}."] if "model" in answer else []),
        ],
    )


def _short(gpu_model: str) -> str:
    return gpu_model.removeprefix("NVIDIA-").replace("-80GB", "")


def _predicted(answer: Mapping[str, Any]) -> Section:
    best, new = answer["summary"][0], answer["summary"][1]
    marks, points = answer["marks"], answer["points"]
    rows = [
        {"x": measured, "y": predicted, "series": method}
        for measured, predicted, method in zip(
            points["tokens_per_second"], points["predicted"], points["method"], strict=True
        )
    ]
    ends = [*points["tokens_per_second"], *points["predicted"]]
    low, high = min(ends), max(ends)

    def draw() -> list[dict[str, Any]]:
        from slackwater.flows.show.charts import Axis, scatter

        x, y = (
            Axis(title=f"{kind} tokens per second", low=low, high=high, log=True, format=",.0f")
            for kind in ("measured", "predicted")
        )
        return [scatter(rows, sorted(set(points["method"])), diagonal=(low, high), height=400, x=x, y=y)]

    columns = {"what": "Tokens/s predicted for", **_ERRORS, "spread": "Spread of MdAPE"}
    return Section(
        "Predicted against measured",
        [
            f"The median error is {best['mdape']:.2f} % for configurations never seen, and {new['mdape']:.1f} % for "
            f"language models never seen; {best['coverage']:.1f} % and {new['coverage']:.1f} % lie in the "
            f"intervals. On such data XGBoost was published with {marks['xgboost_mdape']} %, CatBoost with "
            f"{marks['catboost_mdape']} %, nearest neighbours with {marks['knn_mdape']} % (other splits of more rows).",
            Figure(specs=draw, label="Predicted against measured tokens per second", width=540),
            numbers(columns, answer["summary"], digits=2),
        ],
        "predicted",
    )


def _groups(answer: Mapping[str, Any]) -> Section:
    shown = [row for row in answer["by_group"] if row["rows"] > 1]
    columns = {"method": "Method", "gpu_model": "GPU", "rows": "Rows", **_ERRORS}
    return Section(
        "Where it errs",
        [
            "Runs of two GPUs on A100-PCIe lie on two levels, up to five times apart, that nothing recorded tells apart (a bridge "
            "between some pairs of GPUs would do it): the mean error there is that of a few runs on the other level.",
            Figures(_group_figures(shown)),
            numbers(columns, answer["by_group"], digits=2),
            numbers(
                {"source": "Source", "rows": "Rows", **_ERRORS},
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

    def draw_errors() -> list[dict[str, Any]]:
        from slackwater.flows.show.charts import Axis, dots

        return [dots(errors, labels, x=Axis(title="MdAPE, %", low=0, high=edge))]

    def draw_coverage() -> list[dict[str, Any]]:
        from slackwater.flows.show.charts import Axis, dots

        x = Axis(title="covered, %", low=least, high=104)
        return [dots(covered, labels, x=x, kinds={"": "series2"}, rule=90.0)]

    return [
        Figure(
            specs=draw_errors, label="Median error by method and GPU model", title="Median error", width=0
        ),
        Figure(
            specs=draw_coverage,
            label="Coverage by method and GPU model",
            title="Covered by 90 % intervals",
            width=0,
        ),
    ]


def _curve_section(answer: Mapping[str, Any]) -> Section:
    rows, marks = answer["learning_curve"], answer["marks"]
    known = {"knn_mdape": "nearest neighbours", "catboost_mdape": "CatBoost", "xgboost_mdape": "XGBoost"}
    spreads = [row["spread"] if row["spread"] == row["spread"] else 0.0 for row in rows]
    points = [
        {"x": row["rows"], "y": row["mdape"], "low": row["mdape"] - spread, "high": row["mdape"] + spread, "series": "model"}
        for row, spread in zip(rows, spreads, strict=True)
    ]  # fmt: skip
    top = max(marks["knn_mdape"] * 1.15, max(point["high"] for point in points) * 1.05)

    def draw() -> list[dict[str, Any]]:
        from slackwater.flows.show.charts import Axis, lines

        rule = {f"{text} {marks[key]} %": marks[key] for key, text in known.items()}
        x = Axis(title="rows learned", low=0, high=1.03 * max(point["x"] for point in points))
        return [
            lines(points, ["model"], spans=True, rule=rule, x=x, y=Axis(title="MdAPE, %", low=0, high=top))
        ]

    columns = {"rows": "Rows learned", "spread": "Spread of MdAPE", **_ERRORS}
    return Section(
        "Learning curve",
        [
            "The error on a held-out fifth of the configurations, learned from so many rows of the others.",
            Figure(specs=draw, label="Median error by rows learned", width=620),
            numbers(columns, rows, digits=2),
        ],
        "curve",
    )


def _left_out(answer: Mapping[str, Any]) -> Section:
    columns = {"model_name": "Model", "rows": "Rows", **_ERRORS}
    return Section(
        "Models left out",
        [
            "All runs of one language model at a time are predicted from those of the others.",
            numbers(columns, answer["models_left_out"], digits=2),
        ],
        "models",
    )


def _validity(answer: Mapping[str, Any]) -> Section:
    said = answer["measured_valid"][-1]
    columns = {
        "held_out": "Held out", "classifier": "Error %", "memory": "Memory model alone %",
        "invalid_said_valid": "Invalid said valid %", "valid_said_invalid": "Valid said invalid %",
    }  # fmt: skip
    measured = {"method": "Method", "runs": "Runs", "said_valid": "Said valid %"}
    return Section(
        "Validity (synthetic labels)",
        [
            "The labels are predictions of a published classifier, not measurements. Grid points are easy to hold out, because "
            "their neighbours stay; whole models are what a new model meets.",
            f"Of {said['runs']} measured runs, all valid, {said['said_valid']:.1f} % are said to be valid without looking at them.",
            numbers(columns, answer["validity"], digits=1),
            numbers(
                measured, answer["measured_valid"], digits=1, title="Measured (valid) runs said to be valid"
            ),
        ],
        "validity",
    )


def _failures(answer: Mapping[str, Any]) -> Section:
    columns = {
        "rate": "Rate", "factor": "Factor", "level": "Level", "published": "Published %", "reproduced": "Reproduced %",
        "difference": "Points apart",
    }  # fmt: skip
    return Section(
        "Failure rates, published and reproduced",
        [
            "The memory model's rates on the published experiments, whose grid is rebuilt from their margins. Bars span 10 points "
            "on either side of what was published.",
            _failures_figure(answer["failure_rates"]),
            Fold("All rates", [numbers(columns, answer["failure_rates"], digits=1)], printed=True),
        ],
        "failures",
    )


def _failures_figure(rates: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot published rates (ticks with bars of +-10 points) and rates of the memory model, by method and GPU model."""
    near, far = "reproduced, within 10 points", "further apart"
    rows = [
        {
            "label": f"{row['level']}, {_RATES[row['rate']]}", "value": row["reproduced"], "beside": row["published"],
            "low": row["published"] - 10, "high": row["published"] + 10,
            "kind": near if abs(row["reproduced"] - row["published"]) <= 10 else far,
        }
        for row in rates
        if row["factor"] in ("method", "gpu_model") and row["rate"] in _RATES
    ]  # fmt: skip

    def draw() -> list[dict[str, Any]]:
        from slackwater.flows.show.charts import Axis, dots

        labels, x = [str(row["label"]) for row in rows], Axis(title="percent of experiments")
        return [dots(rows, labels, x=x, spans=True, kinds={near: "series1", far: "series2"})]

    return Figure(specs=draw, label="Failure rates, published and reproduced", width=660)
