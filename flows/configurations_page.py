"""The page of ``slackwater fit-configurations --html``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.configurations_plots import draw_coverage, draw_curve, draw_failures, draw_predicted
from flows.experiments.page import Page, Section, Table, write_page
from flows.inline_svg import house_style

_ERRORS = {"mdape": "MdAPE %", "mape": "MAPE %", "coverage": "Covered %", "width": "High/low"}


def write_configurations_page(answer: Mapping[str, Any], path: Path) -> Path:
    """Write the page of an answer; returns ``path``. Raises `InputError` if it cannot be written."""
    with house_style():
        page = Page(
            title="Configuration knowledge",
            about=(
                f"{answer['runs']} measured fine-tuning runs; every prediction shown is of a configuration that the model "
                f"had not seen (a fifth held out at a time; rounds: {answer['repeats']}; seed {answer['seed']}). "
                "Intervals are meant to cover 90 %."
            ),
            sections=[_predicted(answer), _groups(answer), _curve(answer), _left_out(answer), _validity(answer), _failures(answer)],
            notes=answer["notes"],
        )  # fmt: skip
        return write_page(page, path)


def _predicted(answer: Mapping[str, Any]) -> Section:
    best, new = answer["summary"][0], answer["summary"][1]
    marks = answer["marks"]
    return Section(
        anchor="predicted",
        heading="Predicted against measured",
        sentences=[
            f"The median error is {best['mdape']:.2f} % for configurations never seen, and {new['mdape']:.1f} % for "
            f"language models never seen; {best['coverage']:.1f} % and {new['coverage']:.1f} % lie in the "
            f"intervals. On such data XGBoost was published with {marks['xgboost_mdape']} %, CatBoost with "
            f"{marks['catboost_mdape']} %, nearest neighbours with {marks['knn_mdape']} % (other splits of more rows).",
        ],
        drawing=draw_predicted(answer["points"], name="predicted"),
        table=Table(
            columns={"what": "Tokens/s predicted for", **_ERRORS, "spread": "Spread of MdAPE"},
            rows=answer["summary"],
            digits=2,
        ),
    )


def _groups(answer: Mapping[str, Any]) -> Section:
    return Section(
        anchor="groups",
        heading="Where it errs",
        sentences=[
            "Runs of two GPUs on A100-PCIe lie on two levels, up to five times apart, that nothing recorded tells apart (a bridge "
            "between some pairs of GPUs would do it): the mean error there is that of a few runs on the other level.",
        ],
        drawing=draw_coverage([row for row in answer["by_group"] if row["rows"] > 1], name="coverage"),
        table=Table(
            columns={"method": "Method", "gpu_model": "GPU", "rows": "Rows", **_ERRORS},
            rows=answer["by_group"],
            digits=2,
        ),
    )


def _curve(answer: Mapping[str, Any]) -> Section:
    return Section(
        anchor="curve",
        heading="Learning curve",
        sentences=[
            "The error on a held-out fifth of the configurations, learned from so many rows of the others."
        ],
        drawing=draw_curve(answer["learning_curve"], answer["marks"], name="curve"),
        table=Table(
            columns={"rows": "Rows learned", "spread": "Spread of MdAPE", **_ERRORS},
            rows=answer["learning_curve"],
            digits=2,
        ),
    )


def _left_out(answer: Mapping[str, Any]) -> Section:
    return Section(
        anchor="models",
        heading="Models left out",
        sentences=["All runs of one language model at a time are predicted from those of the others."],
        table=Table(
            columns={"model_name": "Model", "rows": "Rows", **_ERRORS},
            rows=answer["models_left_out"],
            digits=2,
        ),
    )


def _validity(answer: Mapping[str, Any]) -> Section:
    said = answer["measured_valid"][-1]
    return Section(
        anchor="validity",
        heading="Validity (synthetic labels)",
        sentences=[
            "The labels are predictions of a published classifier, not measurements. Grid points are easy to hold out, because "
            "their neighbours stay; whole models are what a new model meets.",
            f"Of {said['runs']} measured runs, all valid, {said['said_valid']:.1f} % are said to be valid without looking at them.",
        ],
        table=Table(
            columns={
                "held_out": "Held out", "classifier": "Error %", "memory": "Memory model alone %",
                "invalid_said_valid": "Invalid said valid %", "valid_said_invalid": "Valid said invalid %",
            },
            rows=answer["validity"],
            digits=1,
        ),
    )  # fmt: skip


def _failures(answer: Mapping[str, Any]) -> Section:
    return Section(
        anchor="failures",
        heading="Failure rates, published and reproduced",
        sentences=[
            "The memory model's rates on the published experiments, whose grid is rebuilt from their margins. Bars span 10 points "
            "on either side of what was published.",
        ],
        drawing=draw_failures(answer["failure_rates"], name="failures"),
        table=Table(
            columns={
                "rate": "Rate", "factor": "Factor", "level": "Level", "published": "Published %",
                "reproduced": "Reproduced %", "difference": "Points apart",
            },
            rows=answer["failure_rates"],
            digits=1,
        ),
        unfold="All rates",
    )  # fmt: skip
