"""What ``slackwater fit-configurations`` measures, as one plain object; shares become percent here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from forecasting.configurations.model import ConfigurationModel
from forecasting.configurations.scores import (
    CURVE_SIZES,
    FAST,
    FOLDS,
    FULL,
    SPLITS,
    Effort,
    errors,
    errors_by,
    held_out,
    impossible_labels,
    label_errors,
    learning_curve,
    measured_said_valid,
    models_left_out,
)
from forecasting.configurations.validity import failure_rates, read_labels, read_statistics

#: How thorough the measurement is, by ``--fast``.
EVALUATIONS: Final = {False: FULL, True: FAST}
#: Published marks of M9.2 and M9.3, percent.
MARKS: Final = {"xgboost_mdape": 7.2, "catboost_mdape": 8.4, "knn_mdape": 11.5, "autoconf_error": 8.4}
_PERCENT: Final = (
    "mdape", "mape", "coverage", "spread", "classifier", "memory", "invalid_said_valid", "valid_said_invalid", "said_valid",
)  # fmt: skip


def steps(model: ConfigurationModel, *, fast: bool) -> int:
    """Models that will be fitted to measure one: what a progress bar counts."""
    effort = EVALUATIONS[fast]
    counts = model.throughput.runs["model_name"].value_counts()
    left_out = int((counts >= effort.least_rows).sum())
    labels = sum(4 if "GPU models" in split else FOLDS for split, _ in SPLITS)
    return effort.repeats * FOLDS + left_out + effort.curve_repeats * (len(CURVE_SIZES) + 1) + labels


def measured_answer(
    model: ConfigurationModel, data: Path, *, seed: int, effort: Effort, tell: Callable[[], None]
) -> dict[str, Any]:
    """Errors of throughput and validity predicted for what was held out, and failure rates beside the published ones."""
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
    """Rows whose shares have become percent."""
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
    """Mean and spread over repeats per size; the last size (all of the training part) differs by a few rows between repeats."""
    sizes = curve["rows"].where(curve["rows"].isin(CURVE_SIZES), int(curve["rows"].max()))
    return [
        {"rows": int(size), "mdape": part["mdape"].mean(), "spread": _spread(part["mdape"]), "mape": part["mape"].mean(),
         "coverage": part["coverage"].mean(), "width": part["width"].mean()}
        for size, part in curve.groupby(sizes)
    ]  # fmt: skip


def _spread(values: pd.Series) -> float:
    """Standard deviation over repeats; NaN for one."""
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
