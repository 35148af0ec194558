"""Experiment ``configurations``: errors of configuration knowledge for other models, fewer rows, labels and failure rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.command import Answer, progress, say
from slackwater.flows.configurations.answer import (
    ERRORS,
    about_words,
    groups_section,
    measured_errors,
    percent,
    predicted_section,
    spread,
)
from slackwater.flows.show.blocks import Figure, Fold, Section, numbers
from slackwater.forecasting.configurations.model import ConfigurationModel, fit_configurations
from slackwater.forecasting.configurations.scores import FOLDS, errors, errors_by
from slackwater.forecasting.configurations.validity import read_labels
from slackwater.studies.experiments.configuration_scores import (
    CURVE_SIZES,
    FAST,
    FULL,
    SPLITS,
    StudyEffort,
    failure_rates,
    impossible_labels,
    label_errors,
    learning_curve,
    measured_said_valid,
    models_left_out,
    read_statistics,
)
from slackwater.studies.experiments.study import StudyOptions

#: Published errors for comparison (M9.2, M9.3), percent.
MARKS: Final = {"xgboost_mdape": 7.2, "catboost_mdape": 8.4, "knn_mdape": 11.5, "autoconf_error": 8.4}


def configurations_study(study: StudyOptions) -> Answer:
    """Fit configuration knowledge to the measured runs of a folder, and measure its errors."""
    folder = study.data / "finetune" if (study.data / "finetune").is_dir() else study.data
    effort = FAST if study.fast else FULL
    say(f"fit on {folder}")
    model = fit_configurations(folder, seed=study.seed)
    with progress("measuring", steps(model, effort)) as tell:
        done = 0

        def one_more() -> None:
            nonlocal done
            done += 1
            tell(done)

        return configurations_answer(model, folder, seed=study.seed, effort=effort, tell=one_more)


def steps(model: ConfigurationModel, effort: StudyEffort) -> int:
    """Return the number of models fitted to measure ``model``, for a progress bar."""
    counts = model.throughput.runs["model_name"].value_counts()
    left_out = int((counts >= effort.least_rows).sum())
    labels = sum(4 if "GPU models" in split else FOLDS for split, _ in SPLITS)
    return effort.repeats * FOLDS + left_out + effort.curve_repeats * (len(CURVE_SIZES) + 1) + labels


def configurations_answer(
    model: ConfigurationModel, data: Path, *, seed: int, effort: StudyEffort, tell: Callable[[], None]
) -> Answer:
    """Return the errors of ``model`` on held-out data with the published failure rates, and its page."""
    runs, labels = model.throughput.runs, read_labels(data)
    rng = np.random.default_rng(seed)
    answer: dict[str, Any] = {"data": str(data), "seed": seed, "marks": MARKS}
    answer |= measured_errors(runs, rng=rng, effort=effort, tell=tell)
    left = models_left_out(runs, effort=effort, tell=tell)
    curve = learning_curve(runs, rng=rng, effort=effort, tell=tell)
    rates = failure_rates(read_statistics(data), runs, model.checks.classifier.memory)
    answer["summary"] += _left_out_summary(left)
    answer |= {
        "learning_curve": percent(_curve(curve)),
        "models_left_out": percent(errors_by(left, ["model_name"]).to_dict("records")),
        "validity": percent(label_errors(labels, rng=rng, tell=tell)),
        "measured_valid": percent(measured_said_valid(runs, model.checks)),
        "failure_rates": rates.to_dict("records"),
    }
    answer["notes"] = _notes(answer, impossible_labels(labels))
    return Answer(
        title="Configuration knowledge",
        about=about_words(answer),
        value=answer,
        blocks=[
            predicted_section(answer, _published(answer)),
            groups_section(answer),
            PAIRS,
            _curve_section(answer),
            _left_out(answer),
            _validity(answer),
            _failures(answer),
        ],
        notes=answer["notes"],
    )


#: Note on the largest errors.
PAIRS: Final = (
    "Runs of two GPUs on A100-PCIe lie on two levels, up to five times apart, that nothing recorded tells apart (a bridge "
    "between some pairs of GPUs would do it): the mean error there is that of a few runs on the other level."
)


def _left_out_summary(left: pd.DataFrame) -> list[dict[str, Any]]:
    sizes = left["model_name"].map(left["model_name"].value_counts())
    rows: list[dict[Any, Any]] = [
        {"what": "models never seen", **errors(left)},
        {"what": "models never seen, of 20 rows and more", **errors(left[sizes >= 20])},
    ]
    return percent(rows)


def _published(answer: Mapping[str, Any]) -> str:
    """Return the error for language models never seen, and the published errors of other methods."""
    new, marks = answer["summary"][1], answer["marks"]
    return (
        f" For language models never seen it is {new['mdape']:.1f} %, and {new['coverage']:.1f} % lie in the intervals. "
        f"On such data XGBoost was published with {marks['xgboost_mdape']} %, CatBoost with {marks['catboost_mdape']} %, "
        f"nearest neighbours with {marks['knn_mdape']} % (other splits of more rows)."
    )


def _curve(curve: pd.DataFrame) -> list[dict[str, Any]]:
    """Return mean and spread over repeats by training size; the last size, the whole training set, varies by a few rows."""
    sizes = curve["rows"].where(curve["rows"].isin(CURVE_SIZES), int(curve["rows"].max()))
    return [
        {"rows": int(size), "mdape": part["mdape"].mean(), "spread": spread(part["mdape"]), "mape": part["mape"].mean(),
         "coverage": part["coverage"].mean(), "width": part["width"].mean()}
        for size, part in curve.groupby(sizes)
    ]  # fmt: skip


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


#: Labels of the rates in the figure.
_RATES: Final = {"failure_rate": "fails", "valid_rate": "valid", "runtime_failure_rate": "fails running"}


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

    columns = {"rows": "Rows learned", "spread": "Spread of MdAPE", **ERRORS}
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
    columns = {"model_name": "Model", "rows": "Rows", **ERRORS}
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
