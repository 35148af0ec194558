"""The drawings of the page of ``slackwater fit-configurations``: plain values in, one inline ``<svg>`` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from flows.show.blocks import Page, Section, figures, study, study_page
from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from flows.show.drawings import LINES

#: How the rates of the drawing are called.
_RATES: Final = {"failure_rate": "fails", "valid_rate": "valid", "runtime_failure_rate": "fails running"}


def draw_predicted(points: Mapping[str, Sequence[Any]], *, name: str) -> str:
    """Predicted against measured tokens per second, both logarithmic, one colour and mark a method."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    measured, predicted = np.array(points["tokens_per_second"]), np.array(points["predicted"])
    methods = np.array(points["method"])
    with house_style():
        figure = new_figure(480, 400)
        axes = figure.add_axes((0.14, 0.13, 0.83, 0.84))
        axes.grid(axis="both")
        span = np.array([min(measured.min(), predicted.min()), max(measured.max(), predicted.max())])
        axes.plot(span, span, color=PALETTE["ink"], linewidth=1)
        for k, method in enumerate(sorted(set(methods))):
            colour, _, marker = LINES[k]
            chosen = methods == method
            axes.plot(
                measured[chosen],
                predicted[chosen],
                marker,
                color=PALETTE[colour],
                markersize=4,
                alpha=0.65,
                label=method,
            )
        for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
            scale("log")
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("measured tokens per second", color=PALETTE["muted"])
        axes.set_ylabel("predicted", color=PALETTE["muted"])
        axes.legend(frameon=False, loc="lower right")
        return inline_svg(figure, name=name, label="Predicted against measured tokens per second")


def draw_curve(rows: Sequence[Mapping[str, Any]], marks: Mapping[str, float], *, name: str) -> str:
    """Median error by rows learned with its spread over repeats; published marks as dashed lines."""
    size = np.array([row["rows"] for row in rows])
    error = np.array([row["mdape"] for row in rows])
    spread = np.nan_to_num(np.array([row["spread"] for row in rows], dtype=float))
    with house_style():
        figure = new_figure(560, 280)
        axes = figure.add_axes((0.09, 0.17, 0.66, 0.74))
        axes.errorbar(size, error, yerr=spread, color=PALETTE["series1"], marker="o", markersize=5, capsize=3)
        for key, text in (
            ("knn_mdape", "nearest neighbours"),
            ("catboost_mdape", "CatBoost"),
            ("xgboost_mdape", "XGBoost"),
        ):
            axes.axhline(marks[key], color=PALETTE["muted"], linewidth=1, linestyle=(0, (4, 2)))
            axes.annotate(
                f"{text} {marks[key]} %", (1.01, marks[key]), xycoords=("axes fraction", "data"), va="center", fontsize=10,
                color=PALETTE["muted"], annotation_clip=False,
            )  # fmt: skip
        axes.set_ylim(0, max(marks["knn_mdape"] * 1.15, float((error + spread).max()) * 1.05))
        axes.set_xlim(0, size.max() * 1.03)
        axes.set_xlabel("rows learned", color=PALETTE["muted"])
        axes.text(0, 1.03, "MdAPE, %", transform=axes.transAxes, color=PALETTE["muted"])
        return inline_svg(figure, name=name, label="Median error by rows learned")


def draw_coverage(rows: Sequence[Mapping[str, Any]], *, name: str) -> str:
    """Median error (left) and coverage of the 90 % intervals (right) by method and GPU model."""
    labels = [f"{row['method']}, {_short(row['gpu_model'])} ({row['rows']})" for row in rows]
    at = np.arange(len(rows))
    with house_style():
        height = 24 * len(rows) + 64
        figure = new_figure(640, height)
        for k, (key, title) in enumerate((("mdape", "MdAPE, %"), ("coverage", "covered, %"))):
            axes = figure.add_axes((0.29 + 0.36 * k, 30 / height, 0.33, 1 - 58 / height))
            axes.grid(axis="both")
            values = np.array([row[key] for row in rows])
            axes.plot(values, at, "o" if k == 0 else "s", color=PALETTE[f"series{k + 1}"], markersize=6)
            if k:
                axes.axvline(90, color=PALETTE["ink"], linewidth=1, linestyle=(0, (4, 2)))
                axes.set_xlim(min(45, float(values.min()) - 4), 104)
            else:
                _clip(axes, values, at)
            axes.set_yticks(at, labels if k == 0 else [])
            axes.set_ylim(len(rows) - 0.4, -0.6)
            axes.text(0, 1.03, title, transform=axes.transAxes, color=PALETTE["muted"])
        return inline_svg(figure, name=name, label="Median error and coverage by method and GPU model")


def draw_failures(rates: Sequence[Mapping[str, Any]], *, name: str) -> str:
    """Published rates (bars of 10 points either side) and those of the memory model (dots), by method and GPU model."""
    rows = [row for row in rates if row["factor"] in ("method", "gpu_model") and row["rate"] in _RATES]
    at = np.arange(len(rows))
    published = np.array([row["published"] for row in rows])
    found = np.array([row["reproduced"] for row in rows])
    with house_style():
        height = 24 * len(rows) + 56
        figure = new_figure(560, height)
        axes = figure.add_axes((0.3, 36 / height, 0.67, 1 - 46 / height))
        axes.grid(axis="both")
        axes.hlines(at, published - 10, published + 10, color=PALETTE["rest"], linewidth=7)
        axes.plot(published, at, "|", color=PALETTE["ink"], markersize=13, markeredgewidth=2)
        within = np.abs(found - published) <= 10
        axes.plot(found[within], at[within], "o", color=PALETTE["series1"], markersize=6)
        axes.plot(found[~within], at[~within], "D", color=PALETTE["series2"], markersize=7)
        axes.set_yticks(at, [f"{row['level']}, {_RATES[row['rate']]}" for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("percent of experiments", color=PALETTE["muted"])
        return inline_svg(figure, name=name, label="Failure rates, published and reproduced")


def _clip(axes: Any, values: np.ndarray, at: np.ndarray) -> None:
    """Keep the axis at the usual errors; a value far beyond becomes an arrow with its number."""
    edge = 2.5 * float(np.median(values))
    axes.set_xlim(0, edge)
    for row in at[values > edge]:
        axes.plot([edge], [row], ">", color=PALETTE["series1"], clip_on=False)
        axes.annotate(
            f"{values[row]:.0f}", (edge, row), (-8, 0), textcoords="offset points", va="center", ha="right"
        )


def _short(gpu_model: str) -> str:
    return gpu_model.removeprefix("NVIDIA-").replace("-80GB", "")


# ---
# The page of ``slackwater fit-configurations --html``.

_ERRORS = {"mdape": "MdAPE %", "mape": "MAPE %", "coverage": "Covered %", "width": "High/low"}


def configurations_page(answer: Mapping[str, Any]) -> Page:
    """The page of an answer."""
    with house_style():
        return study_page(
            title="Configuration knowledge",
            about=(
                f"{answer['runs']} measured fine-tuning runs; every prediction shown is of a configuration that the model "
                f"had not seen (a fifth held out at a time; rounds: {answer['repeats']}; seed {answer['seed']}). "
                "Intervals are meant to cover 90 %."
            ),
            sections=[_predicted(answer), _groups(answer), _curve(answer), _left_out(answer), _validity(answer), _failures(answer)],
            notes=answer["notes"],
        )  # fmt: skip


def _predicted(answer: Mapping[str, Any]) -> Section:
    best, new = answer["summary"][0], answer["summary"][1]
    marks = answer["marks"]
    return study(
        anchor="predicted",
        heading="Predicted against measured",
        sentences=[
            f"The median error is {best['mdape']:.2f} % for configurations never seen, and {new['mdape']:.1f} % for "
            f"language models never seen; {best['coverage']:.1f} % and {new['coverage']:.1f} % lie in the "
            f"intervals. On such data XGBoost was published with {marks['xgboost_mdape']} %, CatBoost with "
            f"{marks['catboost_mdape']} %, nearest neighbours with {marks['knn_mdape']} % (other splits of more rows).",
        ],
        figure=draw_predicted(answer["points"], name="predicted"),
        table=figures(
            columns={"what": "Tokens/s predicted for", **_ERRORS, "spread": "Spread of MdAPE"},
            rows=answer["summary"],
            digits=2,
        ),
    )


def _groups(answer: Mapping[str, Any]) -> Section:
    return study(
        anchor="groups",
        heading="Where it errs",
        sentences=[
            "Runs of two GPUs on A100-PCIe lie on two levels, up to five times apart, that nothing recorded tells apart (a bridge "
            "between some pairs of GPUs would do it): the mean error there is that of a few runs on the other level.",
        ],
        figure=draw_coverage([row for row in answer["by_group"] if row["rows"] > 1], name="coverage"),
        table=figures(
            columns={"method": "Method", "gpu_model": "GPU", "rows": "Rows", **_ERRORS},
            rows=answer["by_group"],
            digits=2,
        ),
    )


def _curve(answer: Mapping[str, Any]) -> Section:
    return study(
        anchor="curve",
        heading="Learning curve",
        sentences=[
            "The error on a held-out fifth of the configurations, learned from so many rows of the others."
        ],
        figure=draw_curve(answer["learning_curve"], answer["marks"], name="curve"),
        table=figures(
            columns={"rows": "Rows learned", "spread": "Spread of MdAPE", **_ERRORS},
            rows=answer["learning_curve"],
            digits=2,
        ),
    )


def _left_out(answer: Mapping[str, Any]) -> Section:
    return study(
        anchor="models",
        heading="Models left out",
        sentences=["All runs of one language model at a time are predicted from those of the others."],
        table=figures(
            columns={"model_name": "Model", "rows": "Rows", **_ERRORS},
            rows=answer["models_left_out"],
            digits=2,
        ),
    )


def _validity(answer: Mapping[str, Any]) -> Section:
    said = answer["measured_valid"][-1]
    return study(
        anchor="validity",
        heading="Validity (synthetic labels)",
        sentences=[
            "The labels are predictions of a published classifier, not measurements. Grid points are easy to hold out, because "
            "their neighbours stay; whole models are what a new model meets.",
            f"Of {said['runs']} measured runs, all valid, {said['said_valid']:.1f} % are said to be valid without looking at them.",
        ],
        table=figures(
            columns={
                "held_out": "Held out", "classifier": "Error %", "memory": "Memory model alone %",
                "invalid_said_valid": "Invalid said valid %", "valid_said_invalid": "Valid said invalid %",
            },
            rows=answer["validity"],
            digits=1,
        ),
    )  # fmt: skip


def _failures(answer: Mapping[str, Any]) -> Section:
    return study(
        anchor="failures",
        heading="Failure rates, published and reproduced",
        sentences=[
            "The memory model's rates on the published experiments, whose grid is rebuilt from their margins. Bars span 10 points "
            "on either side of what was published.",
        ],
        figure=draw_failures(answer["failure_rates"], name="failures"),
        table=figures(
            columns={
                "rate": "Rate", "factor": "Factor", "level": "Level", "published": "Published %",
                "reproduced": "Reproduced %", "difference": "Points apart",
            },
            rows=answer["failure_rates"],
            digits=1,
        ),
        unfold="All rates",
    )  # fmt: skip
