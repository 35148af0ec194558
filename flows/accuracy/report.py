"""Implementation of ``accuracy``: measure forecasts on every series of a folder or warehouse, and report the scores (E4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from slackwater.flows.accuracy.blocks import Background, report_blocks
from slackwater.flows.accuracy.command import AccuracyOptions
from slackwater.flows.accuracy.series import (
    VARIABLES,
    MeasuredSeries,
    SeriesChoice,
    accuracy_of_vintages,
    measured_panels,
)
from slackwater.flows.accuracy.units import BacktestPlan, cores, run_course
from slackwater.flows.command import Session, parsed_duration, parsed_time, progress
from slackwater.flows.config import Settings
from slackwater.flows.show.blocks import Block
from slackwater.flows.show.formats import plain, rows_of
from slackwater.flows.turn.estimates import timetable_of
from slackwater.forecasting.accuracy.tables import Accuracy
from slackwater.forecasting.diagnosis.drift import drift_table
from slackwater.forecasting.diagnosis.predictability import predictability
from slackwater.forecasting.origins import Rolling, Timetable
from slackwater.forecasting.predictors import DEFAULT as DEFAULT_MODEL
from slackwater.forecasting.predictors import FLOOR, make_predictor
from slackwater.warehouse.errors import SettingsError

DEFAULT = "default"  # Second name under which the default model is listed
LONGEST = 96  # Longest horizon: 12 hours are 72 slots of 10 minutes
#: Explanations of the measures, listed with the results.
ABOUT_COVERAGE = (
    "coverage_P is the mean share of the randomised probability integral transform within the central P % (in expectation, "
    "nothing is drawn), so that point masses of counts and of prices that stay put do not lift it; coverage_P_closed is the share "
    "of values in the closed interval of the quantiles, ends included, which they do lift"
)
ABOUT_CLASSES = (
    "class: counts by the capacity their source states (0/1, 2-15, 16 and more; offers where none is stated), prices by whether "
    "they changed once a day or more in the look-back before the first origin (moving, still); skills are null where last value "
    "never erred"
)


def measured_accuracy(options: AccuracyOptions, session: Session) -> tuple[dict[str, Any], list[Block]]:
    """Measure every model, by market and step and pooled; return the values and the blocks of the answer.

    With ``--html`` the blocks also have the predictability and the changes of the series; with
    ``--json`` alone there are no blocks.
    """
    if not 1 <= options.horizon <= LONGEST:
        raise SettingsError(f"--horizon {options.horizon}", expected=f"1 to {LONGEST} slots")
    settings, data = _with_step(session.config, options.step), session.data
    anew = data is not None or options.backtest
    measured = read_measured(options, settings, session)
    course = course_of(measured, options, settings, keep=_keep_folder(options, data, session.db))
    if anew:
        with progress("forecasting and scoring") as tell:
            accuracy = run_course(
                course, processes=options.workers or cores(), progress=tell, notes=measured.notes
            )
    else:
        accuracy = _score_issued(course, measured, options, session)
    where = str(session.db if data is None else data)
    if session.json and session.html is None:
        return answer_of(accuracy, where), []
    background = None if session.html is None else background_of(course)
    return answer_of(accuracy, where), answer_blocks(accuracy, where, background)


def background_of(course: BacktestPlan) -> Background:
    """Return the predictability and the changes of the measured series."""
    series = [series for panel in course.rolling.panels for series in panel.series]
    return Background(predictability=predictability(series), drift=drift_table(series))


def answer_blocks(accuracy: Accuracy, data: str, background: Background | None = None) -> list[Block]:
    """Return the blocks of an accuracy answer."""
    return report_blocks(accuracy, data=data, notes=notes_of(accuracy), background=background)


def _score_issued(
    course: BacktestPlan, measured: MeasuredSeries, options: AccuracyOptions, session: Session
) -> Accuracy:
    """Score the stored forecasts of a warehouse as issued."""
    with session.market_data() as store, progress("scoring the issued forecasts") as tell:
        return accuracy_of_vintages(
            store,
            measured,
            course.rolling.models,
            horizon=options.horizon,
            timetable=course.rolling.timetable,
            default=course.default,
            since=parsed_time(options.since, "--since"),
            progress=tell,
        )


def read_measured(options: AccuracyOptions, settings: Settings, session: Session) -> MeasuredSeries:
    """Return the selected series, from a folder or from the warehouse."""
    if options.variable is not None and options.variable not in VARIABLES:
        raise SettingsError(f"--variable {options.variable}", expected=f"one of {', '.join(VARIABLES)}")
    choice = SeriesChoice(
        market=options.market,
        variables=[variable for variable in VARIABLES if options.variable in (None, variable)],
        since=parsed_time(options.since, "--since"),
    )
    with session.market_data() as store, progress("reading series") as tell:
        return measured_panels(store, settings, choice, progress=tell)


def course_of(
    measured: MeasuredSeries, options: AccuracyOptions, settings: Settings, *, keep: Path | None
) -> BacktestPlan:
    """Return the backtest of the measured series with the selected models, last value first."""
    names = list(dict.fromkeys([FLOOR, *(options.models or [*settings.models, DEFAULT_MODEL])]))
    timetable = timetable_of(settings)
    if options.refit:
        every = parsed_duration(options.refit, "--refit")
        timetable = Timetable(
            price=replace(timetable.price, refit_every=every),
            count=replace(timetable.count, refit_every=every),
        )
    rolling = Rolling(
        panels=measured.panels,
        origins=measured.origins,
        predictors={name: make_predictor(name) for name in names},
        horizon=options.horizon,
        timetable=timetable,
    )
    default = DEFAULT_MODEL
    return BacktestPlan(rolling=rolling, default=default if default in names else names[-1], keep=keep)


def _keep_folder(options: AccuracyOptions, data: Path | None, db: Path) -> Path | None:
    """Return ``--keep``, else a folder next to the warehouse; None for ``--data``, since reading a folder must leave no files."""
    if options.keep is not None or data is not None:
        return options.keep
    return db.with_name(f"{db.stem}.forecasts")


def _with_step(settings: Settings, step: str | None) -> Settings:
    if step is None:
        return settings
    minutes = parsed_duration(step, "--step") / pd.Timedelta(minutes=1)
    if minutes != int(minutes) or not 3 <= minutes <= 1440:
        raise SettingsError(f"--step {step}", expected="whole minutes from 3min to 1d")
    return settings.model_copy(update={"step_minutes": int(minutes)})


def answer_of(accuracy: Accuracy, data: str) -> dict[str, Any]:
    """Return the JSON object: data, models, rows pooled, by market and by class, and notes; undefined values are null."""
    twice = DEFAULT if accuracy.default == DEFAULT_MODEL else None
    return {
        "data": data,
        "step_minutes": int(accuracy.step / pd.Timedelta(minutes=1)),
        "models": [*accuracy.models, *([twice] if twice else [])],
        "pooled": _rows(accuracy.pooled, accuracy.default, twice),
        "markets": _rows(accuracy.scores, accuracy.default, twice),
        "classes": _rows(accuracy.classes, accuracy.default, twice),
        "default": accuracy.default,
        "notes": notes_of(accuracy),
    }


def notes_of(accuracy: Accuracy) -> list[str]:
    """Return the notes on series left out, and on the measures if there are any."""
    return [*accuracy.notes, *([] if accuracy.scores.empty else [ABOUT_COVERAGE, ABOUT_CLASSES])]


def _rows(table: pd.DataFrame, default: str, twice: str | None) -> list[dict[str, Any]]:
    """Return the rows of a table, with those of the default model repeated under the name ``twice``."""
    rows = rows_of(table)
    if twice is not None:
        rows += [row | {"model": twice} for row in rows if row["model"] == default]
    return [plain(row) for row in rows]
