"""The accuracy report as a Prefect flow: the same units in a few large tasks, on any executor (M6.5)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from prefect.artifacts import create_markdown_artifact
from pydantic import Field

from slackwater.flows.accuracy.command import TITLE, AccuracyOptions
from slackwater.flows.accuracy.report import answer_blocks, answer_of, background_of, course_of, read_measured
from slackwater.flows.accuracy.units import BacktestPlan, accuracy_from, score_unit
from slackwater.flows.command import DEFAULT_DB, Session, say
from slackwater.flows.engine.flows import RUNNER, tasks_of
from slackwater.flows.runs import Db, SettingsFile, artifact_key, has_warehouse, named_flow, run_name
from slackwater.flows.show.blocks import Page
from slackwater.flows.show.markdown import markdown_of
from slackwater.flows.show.page import write_page
from slackwater.forecasting.accuracy.tables import Accuracy
from slackwater.forecasting.origins import units_of

#: The report is not urgent: long delays before retries, and a timeout (seconds) well before the
#: next day's report.
TRIES, RETRY_SECONDS, TIMEOUT = 2, 300, 6 * 3600


def accuracy_on_engine(course: BacktestPlan, *, notes: tuple[str, ...] = ()) -> Accuracy:
    """Return the result of `slackwater.flows.accuracy.units.run_course`, computed in tasks of the current flow run."""
    units = units_of(course.rolling)
    say(f"score {len(units)} units")
    scored = tasks_of(score_unit, [{"unit": unit, "course": course} for unit in units])
    return accuracy_from(course, iter(scored), notes=notes)


@named_flow(
    "accuracy-report",
    run_name=run_name("accuracy", slots=False),
    task_runner=RUNNER,
    persist_result=False,
    retries=TRIES,
    retry_delay_seconds=RETRY_SECONDS,
    timeout_seconds=TIMEOUT,
)
def accuracy_report(
    db: Db = DEFAULT_DB,
    *,
    html: Annotated[
        Path | None, Field(description="File for the page; by default no page is written.")
    ] = None,
    keep: Annotated[
        Path | None, Field(description="Folder for stored forecasts; by default next to the warehouse.")
    ] = None,
    settings: SettingsFile = None,
) -> dict[str, Any]:
    """Measure every series of a warehouse again, write the page, and return the answer of
    ``slackwater accuracy --json``.

    Forecasts are stored in ``keep`` (default: next to the warehouse), so a daily run computes only
    new forecasts. Before the first turn the answer is empty.
    """
    if not has_warehouse(db):
        return {}
    options, session = AccuracyOptions(), Session(db=db, settings=settings)
    chosen = session.config
    measured = read_measured(options, chosen, session)
    folder = keep or db.with_name(f"{db.stem}.forecasts")
    course = course_of(measured, options, chosen, keep=folder)
    accuracy = accuracy_on_engine(course, notes=measured.notes)
    blocks = answer_blocks(accuracy, str(db), background_of(course))
    page = [] if html is None else [f"The page: {html}"]
    create_markdown_artifact(
        key=artifact_key(db, "forecast-errors"), markdown=markdown_of([*blocks, *page]), description=TITLE
    )
    if html is not None:
        write_page(Page(title=TITLE, blocks=blocks), html, option="html")
    return answer_of(accuracy, str(db))
