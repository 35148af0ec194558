"""What ``accuracy`` does: measure forecasts on every series of a folder or warehouse, print the scores or one JSON
object (E4)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from flows.accuracy.series import VARIABLES, Asked, Measured, measured_panels
from flows.accuracy.units import Course, run_course
from flows.clock import parse_time
from flows.command.answer import plain, print_json, print_table, say_to_stderr
from flows.command.context import warehouse_for
from flows.config import Settings, read_settings
from flows.experiments.runner import cores, job_progress
from flows.show.table import rows_of
from forecasting.accuracy.columns import FLOOR, Accuracy
from forecasting.origins.rolling import REFIT, Rolling, models_of, panel_models
from forecasting.predictors import PREDICTORS
from warehouse.errors import SettingsError

#: The default model: the first of these that is registered.
DEFAULT_MODELS = ("combined", "markov")
#: The name under which the default model is shown beside its own.
DEFAULT = "default"
#: Steps of the printed table.
SHOWN_STEPS = (1, 2, 4, 8, 12, 24, 48, 72, 96)
#: Days as people write them; pandas wants them large.
_DAYS = re.compile(r"d$")
#: Longest horizon that can be asked for: 12 hours of 10-minute slots are 72 of them.
LONGEST = 96
#: What a reader of the numbers has to know of them.
ABOUT_COVERAGE = (
    "coverage_P is the mean share of the randomised probability integral transform within the central P % (in expectation, "
    "nothing is drawn), so that point masses of counts and of prices that stay put do not lift it; coverage_P_closed is the share "
    "of values in the closed interval of the quantiles, ends included, which they do lift"
)
ABOUT_CLASSES = (
    "class: counts by the capacity their source states (0/1, 2-15, 16 and more; offers where none is stated), prices by whether "
    "they changed once a day or more in the training part (moving, still); skills are null where last value never erred"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyOptions:
    """The command's options as they were given; None is the default of each. Raises `SettingsError` on a horizon out of range."""

    market: str | None = None
    since: str | None = None
    step: str | None = None
    variable: str | None = None
    models: Sequence[str] = ()
    refit: str | None = None
    horizon: int = 12
    keep: Path | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.horizon <= LONGEST:
            raise SettingsError(f"--horizon {self.horizon}", expected=f"1 to {LONGEST} slots")


def accuracy_command(
    options: AccuracyOptions,
    *,
    data: Path | None,
    db: Path,
    settings: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """``slackwater accuracy``: every model beside last value, by market and step, pooled and apart."""
    chosen = _with_step(read_settings(settings), options.step)
    measured = read_measured(options, chosen, data=data, db=db)
    with _kept_in(_keep_folder(options, data, db), needed=html is not None) as keep:
        course = course_of(measured, options, chosen, keep=keep)
        course = course if html is None else with_uncalibrated(course)
        processes = options.workers or cores()
        with job_progress("forecasting and scoring") as tell:
            accuracy = run_course(course, processes=processes, progress=tell, notes=measured.notes)
        where = str(data) if data is not None else str(db)
        if html is not None:
            write_page(html, accuracy, course, where, processes=processes)
    if as_json:
        print_json(answer_of(accuracy, where))
        return
    print_accuracy(accuracy)
    if html is not None:
        print(f"report: {html}")


@contextmanager
def _kept_in(folder: Path | None, *, needed: bool) -> Iterator[Path | None]:
    """The folder, or where none is given but forecasts are read again, one that is thrown away after."""
    if folder is not None or not needed:
        yield folder
        return
    with TemporaryDirectory(prefix="slackwater-") as passing:
        yield Path(passing)


def read_measured(options: AccuracyOptions, settings: Settings, *, data: Path | None, db: Path) -> Measured:
    """The series that are asked for, from a folder or from the warehouse."""
    if options.variable is not None and options.variable not in VARIABLES:
        raise SettingsError(f"--variable {options.variable}", expected=f"one of {', '.join(VARIABLES)}")
    asked = Asked(
        market=options.market,
        variables=[one for one in VARIABLES if options.variable in (None, one)],
        since=parse_time(options.since, "--since") if options.since else None,
    )
    with warehouse_for(db, data, say=say_to_stderr) as store, job_progress("reading series") as tell:
        return measured_panels(store, settings, asked, progress=tell)


def course_of(
    measured: Measured, options: AccuracyOptions, settings: Settings, *, keep: Path | None
) -> Course:
    """The backtest of the measured series with the models asked for, last value first."""
    names = list(dict.fromkeys([FLOOR, *(options.models or [*settings.models, default_model()])]))
    every = {variable: _duration(options.refit, "--refit") for variable in REFIT} if options.refit else REFIT
    rolling = Rolling(
        panels=measured.panels,
        parts=measured.parts,
        models={name: panel_models(name) for name in names},
        horizon=options.horizon,
        refit=every,
    )
    default = default_model()
    return Course(rolling=rolling, default=default if default in names else names[-1], keep=keep)


def with_uncalibrated(course: Course) -> Course:
    """The same backtest with the default before its intervals are corrected beside it: only the page shows both (M6.6)."""
    from forecasting.predictors.combined import uncalibrated

    if course.default != "combined":
        return course
    beside = {**course.rolling.models, uncalibrated().name: models_of(uncalibrated())}
    return replace(course, rolling=replace(course.rolling, models=beside))


def default_model() -> str:
    """The default model's own name."""
    return next(name for name in DEFAULT_MODELS if name in PREDICTORS)


def _keep_folder(options: AccuracyOptions, data: Path | None, db: Path) -> Path | None:
    """``--keep``, else beside the warehouse, else nowhere: a folder that is only looked at leaves nothing behind."""
    if options.keep is not None or data is not None:
        return options.keep
    return db.with_name(f"{db.stem}.forecasts")


def _with_step(settings: Settings, step: str | None) -> Settings:
    if step is None:
        return settings
    minutes = _duration(step, "--step") / pd.Timedelta(minutes=1)
    if minutes != int(minutes) or not 3 <= minutes <= 1440:
        raise SettingsError(f"--step {step}", expected="whole minutes from 3min to 1d")
    return settings.model_copy(update={"step_minutes": int(minutes)})


def _duration(text: str, option: str) -> pd.Timedelta:
    """A duration such as 10min, 1h, 7d; raises `SettingsError`."""
    try:
        width = pd.Timedelta(_DAYS.sub("D", text.strip()))
    except ValueError as error:
        raise SettingsError(f"{option} {text}", expected="a duration such as 10min, 1h or 7d") from error
    if not width > pd.Timedelta(0):  # NaT is not
        raise SettingsError(f"{option} {text}", expected="a positive duration")
    return width


def answer_of(accuracy: Accuracy, data: str) -> dict[str, Any]:
    """The JSON object: what was measured, the models, rows pooled, by market and by class of markets, and notes; what is not
    defined is null."""
    twice = DEFAULT if accuracy.default == default_model() else None
    return {
        "data": data,
        "step_minutes": int(accuracy.step / pd.Timedelta(minutes=1)),
        "models": [*accuracy.models, *([twice] if twice else [])],
        "pooled": _rows(accuracy.pooled, accuracy.default, twice),
        "markets": _rows(accuracy.scores, accuracy.default, twice),
        "classes": _rows(accuracy.classes, accuracy.default, twice),
        "default": accuracy.default,
        "notes": [*accuracy.notes, ABOUT_COVERAGE, ABOUT_CLASSES],
    }


def _rows(table: pd.DataFrame, default: str, twice: str | None) -> list[dict[str, Any]]:
    """The table's rows in its order, those of the default model once more under ``twice``."""
    rows = rows_of(table)
    if twice is not None:
        rows += [row | {"model": twice} for row in rows if row["model"] == default]
    return [plain(row) for row in rows]


def print_accuracy(accuracy: Accuracy) -> None:
    """The pooled table, that of the classes, the markets' at the first step, and what was left out."""
    columns = {
        "variable": "variable", "model": "model", "step": "slots ahead", "n": "n", "mae": "MAE", "rmse": "RMSE",
        "pinball": "pinball", "skill_pinball": "pinball skill", "skill_mae": "MAE skill",
        "coverage_80": "in 80 %", "coverage_90": "in 90 %", "brier": "Brier", "share_worse": "markets worse",
        "fallback_share": "fallback",
    }  # fmt: skip
    step = int(accuracy.step / pd.Timedelta(minutes=1))
    print_table(
        f"Forecast error, pooled over markets; slots of {step} min (skill: over last value)",
        _shown_rows(accuracy.pooled, ["variable", "step"]),
        columns,
    )
    columns = {
        "variable": "variable", "class": "class", "markets": "markets", "step": "slots ahead",
        "skill_pinball": "pinball skill", "skill_brier": "Brier skill", "worst_skill_pinball": "worst market",
        "coverage_80": "in 80 %", "coverage_90": "in 90 %",
    }  # fmt: skip
    classes = accuracy.classes[accuracy.classes["model"] == accuracy.default]
    print_table(f"{accuracy.default}, by class of markets", _shown_rows(classes, ["variable"]), columns)
    own = accuracy.scores[(accuracy.scores["model"] == accuracy.default) & (accuracy.scores["step"] == 1)]
    columns = {
        "variable": "variable", "market": "market", "n": "n", "mae": "MAE", "skill_pinball": "pinball skill",
        "skill_mae": "MAE skill", "dm_p": "p (Diebold-Mariano)", "coverage_80": "in 80 %",
    }  # fmt: skip
    print_table(f"{accuracy.default}, one slot ahead, by market", rows_of(own), columns)
    for note in (*accuracy.notes, ABOUT_COVERAGE, ABOUT_CLASSES):
        print(f"note: {note}")


def _shown_rows(table: pd.DataFrame, order: list[str]) -> list[dict[str, Any]]:
    """The rows of `SHOWN_STEPS`, sorted."""
    return rows_of(table[table["step"].isin(SHOWN_STEPS)].sort_values(order, kind="stable"))


def write_page(path: Path, accuracy: Accuracy, course: Course, data: str, *, processes: int) -> None:
    """The HTML report: scores, predictability, drift, and what the errors cost; ``course`` keeps its forecasts."""
    from flows.accuracy.background import background_of
    from flows.accuracy.error_cost import CostPlan
    from flows.accuracy.page.page import About, write_accuracy_page

    with job_progress("what the errors cost") as tell:
        beside = background_of(course, plan=CostPlan(processes=processes), progress=tell)
    write_accuracy_page(
        path,
        accuracy,
        about=About(
            data=data,
            uncalibrated="uncalibrated" if "uncalibrated" in accuracy.models else "",
            alternation=beside.alternation,
            drift=beside.drift_words,
            no_cost="; ".join(beside.notes),
        ),
        predictability=beside.predictability,
        drift=beside.drift,
        cost=beside.cost,
    )
