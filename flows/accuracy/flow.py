"""The accuracy report as a Prefect flow: the same units in a few large tasks, on any task runner of the engine (M6.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner
from pydantic import Field

from slackwater.flows.accuracy.command import TITLE
from slackwater.flows.accuracy.report import (
    AccuracyOptions,
    answer_blocks,
    answer_of,
    background_of,
    course_of,
    read_measured,
)
from slackwater.flows.accuracy.units import BacktestPlan, UnitScores, accuracy_from, score_unit
from slackwater.flows.command import DEFAULT_DB, Session, progress, say
from slackwater.flows.engine.flows import RUNNER, TASKS_A_STAGE
from slackwater.flows.runs import Db, SettingsFile, begun, named_flow, run_name
from slackwater.flows.show.blocks import Page
from slackwater.flows.show.page import write_page
from slackwater.forecasting.accuracy.tables import Accuracy
from slackwater.forecasting.origins import Unit, units_of

#: The report is not urgent: long delays before retries, and a timeout (seconds) well before the
#: next day's report.
TRIES, RETRY_SECONDS, TIMEOUT = 2, 300, 6 * 3600


class CourseUnits:
    """Units of a backtest, opaque to the engine, which would otherwise search every array for futures."""

    __slots__ = ("course", "units")

    def __init__(self, course: BacktestPlan, units: Sequence[Unit]) -> None:
        self.course = course
        self.units = tuple(units)


class ScoredPart:
    """Scores of a part, opaque to the engine for the same reason."""

    __slots__ = ("scored",)

    def __init__(self, scored: list[UnitScores]) -> None:
        self.scored = scored


def accuracy_on_engine(
    course: BacktestPlan, *, runner: TaskRunner[PrefectFuture[Any]] = RUNNER, notes: tuple[str, ...] = ()
) -> Accuracy:
    """Run `slackwater.flows.accuracy.units.run_course` as a flow on ``runner``, with the same results.

    `slackwater.flows.engine.run.prepare_engine` must be called first.
    """
    made: list[ScoredPart] = score_course.with_options(task_runner=runner)(
        CourseUnits(course, units_of(course.rolling))
    )
    return accuracy_from(course, _in_order(made), notes=notes)


def _in_order(parts: Sequence[ScoredPart]) -> Iterator[UnitScores]:
    for part in parts:
        yield from part.scored


@task(name="score-units", cache_policy=NO_CACHE, persist_result=False, retries=1)
def score_units(part: CourseUnits) -> ScoredPart:
    """Forecast and score the units of a part, one after the other; stored forecasts are reused."""
    return ScoredPart([score_unit(unit, part.course) for unit in part.units])


@flow(name="score-course", task_runner=RUNNER, validate_parameters=False, persist_result=False)
def score_course(whole: CourseUnits) -> list[ScoredPart]:
    """Score all units in at most `slackwater.flows.engine.flows.TASKS_A_STAGE` tasks of consecutive units, in order."""
    say(f"score {len(whole.units)} units")
    size = -(-len(whole.units) // TASKS_A_STAGE)
    parts = [CourseUnits(whole.course, whole.units[i : i + size]) for i in range(0, len(whole.units), size)]
    made: list[ScoredPart] = []
    with progress("units scored", len(whole.units)) as tell:
        for future in [score_units.submit(part) for part in parts]:
            made.append(future.result())
            tell(sum(len(one.scored) for one in made))
    return made


@named_flow(
    "accuracy-report",
    run_name=run_name("accuracy", slots=False),
    persist_result=False,
    retries=TRIES,
    retry_delay_seconds=RETRY_SECONDS,
    timeout_seconds=TIMEOUT,
)
def accuracy_report(
    db: Db = DEFAULT_DB,
    *,
    html: Annotated[Path | None, Field(description="Where the page goes; by default nowhere.")] = None,
    keep: Annotated[
        Path | None, Field(description="Folder in which forecasts are kept; by default beside the warehouse.")
    ] = None,
    settings: SettingsFile = None,
) -> dict[str, Any]:
    """Measure every series of a warehouse again, write the page, and return the answer of
    ``slackwater accuracy --json``.

    Forecasts are stored in ``keep`` (default: next to the warehouse), so a daily run computes only
    new forecasts. Before the first turn the answer is empty.
    """
    if not begun(db):
        return {}
    options, session = AccuracyOptions(), Session(db=db, settings=settings)
    chosen = session.config
    measured = read_measured(options, chosen, session)
    folder = keep or db.with_name(f"{db.stem}.forecasts")
    course = course_of(measured, options, chosen, keep=folder)
    accuracy = accuracy_on_engine(course, notes=measured.notes)
    if html is not None:
        blocks = answer_blocks(accuracy, str(db), background_of(course))
        write_page(Page(title=TITLE, blocks=blocks), html, option="html")
    return answer_of(accuracy, str(db))
