"""The accuracy report as a page, made from the tables of a backtest, most important results first (M6.5 to M6.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pandas as pd

from slackwater.flows.accuracy.page.by_market import daily_section, fans_section, markets_section
from slackwater.flows.accuracy.page.sections import (
    TITLES,
    answer_section,
    calibration_section,
    fallbacks_section,
    method_section,
    money_section,
    pooled_section,
    predictability_section,
)
from slackwater.flows.show.blocks import Block, Fold, Notes, Page
from slackwater.flows.show.formats import duration, plural, utc
from slackwater.forecasting.accuracy.tables import Accuracy
from slackwater.warehouse.errors import InputError

if TYPE_CHECKING:
    from slackwater.flows.accuracy.error_cost import ErrorCost

#: Required columns of the table of drift.
DRIFT_COLUMNS: Final = ("variable", "market", "at", "found")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Information for the page that the tables do not contain.

    ``data`` names the folder or warehouse. ``uncalibrated`` is the name under which the default was
    scored before calibration of its intervals ("" if it was not). ``alternation`` and ``drift`` are
    sentences on alternating probes and on drift. ``no_cost`` explains why the cost of errors could
    not be measured.
    """

    data: str
    uncalibrated: str = ""
    alternation: Sequence[str] = ()
    drift: Sequence[str] = ()
    no_cost: str = ""


def accuracy_page(
    accuracy: Accuracy,
    *,
    about: About,
    predictability: pd.DataFrame | None = None,
    drift: pd.DataFrame | None = None,
    cost: ErrorCost | None = None,
) -> Page:
    """Return the whole report as a page; it does not depend on the current time.

    ``predictability`` is the table of `slackwater.forecasting.diagnosis.predictability`, ``drift`` has columns
    variable, market, at, found, ``cost`` is the result of `slackwater.flows.accuracy.error_cost`. Raises
    `InputError` if nothing was scored or a table lacks a column.
    """
    if accuracy.scores.empty:
        raise InputError(
            "accuracy report: no series was scored",
            expected="at least one series with observed slots in both halves",
            remedy="see the notes on what was left out",
        )
    _refuse_lacking("marks of drift", drift, DRIFT_COLUMNS)
    return Page(
        title="How good the forecasts are",
        about=(
            "Forecasts of the spot price and of the number of instances one could hold, scored against what "
            "came later. “Last value”, which says that nothing will change, is shown beside every model: a "
            "model earns its place only where it does better."
        ),
        blocks=[
            *_head(accuracy, about),
            answer_section(accuracy),
            pooled_section(accuracy),
            money_section(accuracy, cost, about.no_cost),
            markets_section(accuracy),
            calibration_section(accuracy, about.uncalibrated),
            fans_section(accuracy),
            daily_section(accuracy, drift, about.drift),
            predictability_section(accuracy, predictability, about.alternation),
            fallbacks_section(accuracy),
            method_section(int(accuracy.scores["step"].max()), accuracy.notes),
        ],
    )


def _refuse_lacking(what: str, table: pd.DataFrame | None, columns: Sequence[str]) -> None:
    lacking = [column for column in columns if table is not None and column not in table.columns]
    if lacking:
        raise InputError(f"{what} without {', '.join(lacking)}", expected=", ".join(columns))


def _head(accuracy: Accuracy, about: About) -> list[Block]:
    """Return a short description of the measured data."""
    scores = accuracy.scores
    horizon = int(scores["step"].max())
    first_steps = scores[
        (scores["step"] == scores["step"].min()) & (scores["model"] == scores["model"].iloc[0])
    ]
    series = {v: int(scores.loc[scores["variable"] == v, "market"].nunique()) for v in TITLES}
    facts = [
        f"Data: {about.data}",
        f"Series: {series['count']} of counts, {series['price']} of prices",
        f"Slot and horizon: {duration(accuracy.step)}; {plural(horizon, 'slot')} ahead ({duration(accuracy.step * horizon)})",
        "Split: each series’ first half to train on, its second half forecast slot by slot from what was known at each origin: "
        f"{int(first_steps['n'].sum()):,} origins",
        f"Default model: {accuracy.default}",
    ]
    periods = _periods(accuracy.periods)
    if not periods:
        return [Notes(facts)]
    return [
        Notes(facts),
        Fold(f"Origins tested, by source ({plural(len(periods), 'source')})", [Notes(periods)]),
    ]


def _periods(periods: pd.DataFrame) -> list[str]:
    """Return first and last origin of every source, as text."""
    if periods.empty:
        return []
    ends = periods.groupby("source").agg(start=("start", "min"), end=("end", "max")).sort_index()
    return [
        f"{source}: {utc(start)} to {utc(end)}"
        + (" (dates unknown, counted from 1970)" if pd.Timestamp(end).year <= 1970 else "")
        for source, (start, end) in zip(ends.index, ends.to_numpy(), strict=True)
    ]
