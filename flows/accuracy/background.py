"""What stands beside the scores in the report: predictability, probes that alternate, drift, and what errors cost (M6.7, M5.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pandas as pd

from flows.accuracy.error_cost import CostPlan, ErrorCost, error_cost
from flows.accuracy.issued import Medians
from flows.accuracy.kept import kept_path, read_blocks
from flows.accuracy.units import Course
from forecasting.diagnosis.alternation import alternation_sentences, alternations
from forecasting.diagnosis.drift import drift_sentences, drift_table
from forecasting.diagnosis.predictability import predictability
from forecasting.origins.units import units_of
from forecasting.series import Series
from warehouse.errors import DamagedStoreError, MarketError

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """Tables and sentences beside the scores.

    ``predictability`` and ``drift`` are tables of `forecasting.diagnosis.predictability` and `forecasting.diagnosis.drift`,
    ``alternation`` and ``drift_words`` sentences. ``cost`` is None where no job could be drawn; ``notes`` says why.
    """

    predictability: pd.DataFrame
    alternation: tuple[str, ...]
    drift: pd.DataFrame
    drift_words: tuple[str, ...]
    cost: ErrorCost | None
    notes: tuple[str, ...] = ()


#: The default before its intervals are corrected: it plans as the default does, so its errors cost the same.
UNCALIBRATED = "uncalibrated"


def background_of(
    course: Course, *, plan: CostPlan | None = None, progress: Progress | None = None
) -> Background:
    """All of it for the series and models of a backtest; forecasts that it kept are read, not made again.

    ``progress(done, total)`` counts the jobs behind the costs.
    """
    series = [one for panel in course.rolling.panels for one in panel.series]
    drift = drift_table(series)
    priced = {name: one for name, one in course.rolling.predictors.items() if name != UNCALIBRATED}
    try:
        cost = error_cost(
            series,
            priced,
            timetable=course.rolling.timetable,
            plan=plan,
            issued=kept_medians(course),
            progress=progress,
        )
        notes: tuple[str, ...] = ()
    except MarketError as error:
        cost, notes = None, (f"what errors cost was not measured: {error}",)
    return Background(
        predictability=predictability(series, horizon=course.rolling.horizon),
        alternation=tuple(alternation_sentences(alternations(series))),
        drift=drift,
        drift_words=tuple(drift_sentences(drift, series)),
        cost=cost,
        notes=notes,
    )


def kept_medians(course: Course) -> Medians:
    """The medians among the forecasts that a backtest kept; empty if it kept none."""
    medians = Medians()
    if course.keep is None:
        return medians
    for unit in units_of(course.rolling):
        if not _read_by_jobs([course.rolling.panels[unit.panel].series[which] for which, _ in unit.origins]):
            continue
        path = kept_path(course.keep, unit, course.rolling)
        if path.exists():
            with suppress(DamagedStoreError):  # what is missing is made again by those who ask for it
                medians.add(read_blocks(path, unit, course.rolling), course.rolling.panels)
    return medians


def _read_by_jobs(series: Sequence[Series]) -> bool:
    """Whether a job could stand on any of these series: its forecasts are worth reading."""
    return any(one.variable == "count" or one.on_demand_usd > 0 for one in series)
