"""The accuracy page put together: what a reader wants first stands first; the same tables give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from flows.accuracy.page.answer import answer
from flows.accuracy.page.background import fallback_view, predictability_view
from flows.accuracy.page.calibration import calibration_view
from flows.accuracy.page.market_figures import daily_grid, fans_grid
from flows.accuracy.page.markets import markets_view
from flows.accuracy.page.money import money_view
from flows.accuracy.page.pooled import class_rows, pooled_view
from flows.accuracy.page.reading import TITLES, Models, market_parts
from flows.show.drawing import PALETTE, house_style
from flows.show.drawings import line_swatch
from flows.show.formats import duration, plural, utc
from flows.show.page import render_template
from forecasting.accuracy.columns import Accuracy
from warehouse.errors import InputError

if TYPE_CHECKING:
    from flows.accuracy.error_cost import ErrorCost

#: Columns of the marks of drift.
DRIFT_COLUMNS: Final = ("variable", "market", "at", "found")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the tables do not say themselves.

    ``data`` names the folder or warehouse. ``uncalibrated`` is the name under which the default was scored before its intervals
    were calibrated ("" if it was not). ``alternation`` and ``drift`` are sentences on probes that alternate and on drift.
    ``no_cost`` says why the costs of the errors could not be measured.
    """

    data: str
    uncalibrated: str = ""
    alternation: Sequence[str] = ()
    drift: Sequence[str] = ()
    no_cost: str = ""


def render_accuracy_page(
    accuracy: Accuracy,
    *,
    about: About,
    predictability: pd.DataFrame | None = None,
    drift: pd.DataFrame | None = None,
    cost: ErrorCost | None = None,
) -> str:
    """The whole page as text; names are escaped, no clock is read.

    ``predictability`` is the table of `forecasting.diagnosis.predictability`, ``drift`` has columns variable, market, at,
    found, ``cost`` is what `flows.accuracy.error_cost` found. Raises `InputError` if nothing was scored or a table lacks a column.
    """
    if accuracy.scores.empty:
        raise InputError(
            "accuracy report: no series was scored",
            expected="at least one series with observed slots in both halves",
            remedy="see the notes on what was left out",
        )
    _refuse_lacking("marks of drift", drift, DRIFT_COLUMNS)
    models = Models.of(accuracy.scores["model"].astype(str), accuracy.default)
    with house_style():  # set once for all drawings
        return render_template(
            "accuracy.html",
            {
                "palette": PALETTE,
                "head": _head(accuracy, about),
                "blocks": [
                    _block(variable, accuracy, about, predictability, drift)
                    for variable in TITLES
                    if (accuracy.scores["variable"] == variable).any()
                ],
                "no_cost": about.no_cost,
                "drift_words": about.drift,
                "money": money_view(cost, accuracy.pooled, models),
                "notes": accuracy.notes,
                "swatch": line_swatch,
                "parts": market_parts,
            },
        )


def _refuse_lacking(what: str, table: pd.DataFrame | None, columns: Sequence[str]) -> None:
    lacking = [column for column in columns if table is not None and column not in table.columns]
    if lacking:
        raise InputError(f"{what} without {', '.join(lacking)}", expected=", ".join(columns))


def _head(accuracy: Accuracy, about: About) -> dict[str, Any]:
    scores = accuracy.scores
    horizon = int(scores["step"].max())
    first_steps = scores[
        (scores["step"] == scores["step"].min()) & (scores["model"] == scores["model"].iloc[0])
    ]
    return {
        "data": about.data,
        "slot": duration(accuracy.step),
        "horizon": plural(horizon, "slot"),
        "ahead": duration(accuracy.step * horizon),
        "markets": {v: int(scores.loc[scores["variable"] == v, "market"].nunique()) for v in TITLES},
        "origins": f"{int(first_steps['n'].sum()):,}",
        "default": accuracy.default,
        "periods": _periods(accuracy.periods),
    }


def _periods(periods: pd.DataFrame) -> list[str]:
    """First and last origin of every source."""
    if periods.empty:
        return []
    ends = periods.groupby("source").agg(start=("start", "min"), end=("end", "max")).sort_index()
    return [
        f"{source}: {utc(start)} to {utc(end)}"
        + (" (dates unknown, counted from 1970)" if pd.Timestamp(end).year <= 1970 else "")
        for source, (start, end) in zip(ends.index, ends.to_numpy(), strict=True)
    ]


def _block(
    variable: str,
    accuracy: Accuracy,
    about: About,
    predictability: pd.DataFrame | None,
    drift: pd.DataFrame | None,
) -> dict[str, Any]:
    """Everything of one variable."""
    scores = accuracy.scores[accuracy.scores["variable"] == variable]
    pooled = accuracy.pooled[accuracy.pooled["variable"] == variable]
    models = Models.of(scores["model"].astype(str), accuracy.default)
    marks = None if drift is None else drift[drift["variable"] == variable]
    return {
        "variable": variable,
        "title": TITLES[variable],
        "models": models,
        "legend": [
            {"name": name, "label": models.title(name), "style": models.style(name)} for name in models.names
        ],
        "answer": answer(variable, scores, pooled, models),
        "pooled": pooled_view(variable, scores, pooled, models),
        "classes": class_rows(accuracy.classes[accuracy.classes["variable"] == variable], models),
        "markets": markets_view(variable, scores, models),
        "calibration": calibration_view(variable, accuracy, models, about.uncalibrated),
        "fans": fans_grid(variable, accuracy, models),
        "daily": daily_grid(variable, accuracy, models, marks),
        "marked": marks is not None,
        "background": predictability_view(variable, predictability, about.alternation),
        "fallbacks": fallback_view(variable, scores, models, accuracy.reasons),
    }
