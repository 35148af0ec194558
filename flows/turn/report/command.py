"""Commands ``report`` and ``leaderboard``, and the printed result of a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from slackwater.flows.command import Answer, Query, QueryAt, option
from slackwater.flows.ledger.fields import (
    DECISION,
    INTERVALS,
    as_shown,
    assumed_notes,
    columns_of,
    decision_notes,
    on_demand_price_notes,
)
from slackwater.flows.show.blocks import Block, Notes, Table, Verbatim


def turn_blocks(value: Mapping[str, Any], *, planner: str) -> list[Block]:
    """Return the printed result of a turn, without its decisions, with the errors of the ``planner`` only."""
    from slackwater.flows.ledger.headline import missed_apart
    from slackwater.flows.show.accuracy import describe_comparison
    from slackwater.flows.turn.report.leaderboard import board_table, movers_tables

    missed, notes = missed_apart(value["notes"])
    errors = value["forecast_errors"]
    planner_rows = [
        row | {"compared": describe_comparison(row)} for row in errors if row["model"] == planner
    ] or errors
    counts = [
        f"ingested from {source}: {row['added']} added, {row['repeated']} repeated, {row['rejected']} rejected"
        for source, row in value["ingested"].items()
    ]
    return [
        Table(
            f"Forecast error of {planner} in the last 14 days, pooled over markets; the report has all models",
            planner_rows,
            {"variable": "variable", "step": "slots ahead", "n": "forecasts", "mae": "mean error",
             "mae_last": "of last value", "compared": "compared with last value"},
            empty="no forecast has been compared with an observation yet",
        ),
        *([board_table(value["leaderboard"])] if value["leaderboard"] else []),
        *movers_tables(value.get("movers", ())),
        Notes(notes),
        *counts,
        *missed,
        Verbatim(f"report: {value['report']}"),
    ]  # fmt: skip


def decision_blocks(title: str, rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the table of decisions, with warnings above it and notes on prices and assumptions below it."""
    shown = [as_shown(row) for row in rows]
    table = Table(title, shown, columns_of(DECISION | INTERVALS, rows=shown), cards=True)
    return [*_warnings(rows), table, *_assumptions(rows)]


#: Fields of a decision that are warnings, with their titles.
WARNINGS = {
    "stale": "STALE DATA", "contradicted": "SOURCES DISAGREE", "availability_note": "AVAILABILITY ASSUMED",
    "on_demand_note": "NO ON-DEMAND PRICE",
}  # fmt: skip


def _warnings(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    notes = [f"{title}: {text}" for key, title in WARNINGS.items() for text in decision_notes(rows, key)]
    notes += [f"BUDGET: job {row['job']}: {row['budget_note']}" for row in rows if row.get("budget_note")]
    return [Notes(notes)] if notes else []


def _assumptions(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    listed = [f"On-demand price of {text}" for text in on_demand_price_notes(rows)]
    listed += [f"SYNTHETIC: {text}" for text in assumed_notes(rows)]
    return [Notes(listed)] if listed else []


def decided_blocks(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the answer of a single job as ``plan`` prints it, or a line for each of several, those in trouble first."""
    from slackwater.flows.ledger.headline import answers, decisions_summary, glance_rows

    if len(rows) == 1:
        why = [f"Why: {row['reason']}" for row in rows if row.get("reason")]
        return [*answers(rows), *_warnings(rows), *why, *_assumptions(rows)]
    trouble = answers([row for row in rows if row.get("shortfall") or row.get("worth_note")])
    return [
        decisions_summary(rows),
        *([Notes(trouble)] if trouble else []),
        *_warnings(rows),
        Table(
            "Decisions",
            glance_rows(rows),
            {"job": "job", "run": "run", "where": "where", "cost": "cost", "risk": "risk"},
        ),
        "Cost is expected, for the whole job; risk is that of missing the deadline. `slackwater plan JOB` has the reason, the "
        "finish, and what to do if spot is lost.",
        *_assumptions(rows),
    ]


def report(
    *,
    out: Annotated[Path | None, option("HTML file to write.", metavar="FILE")] = None,
    session: QueryAt = QueryAt(),
) -> Answer:
    """Write the HTML report of the newest run (or of the run at --at) again from the warehouse."""
    from slackwater.flows.turn.report.page import report_page, stored_report, write_report

    with session.reading() as store:
        data = stored_report(store, session.config, at=session.time)
    path = out or session.html or Path("reports") / f"{data.run_id}.html"
    if path != session.html:  # the command kit writes that file
        write_report(data, path)
    return Answer(
        title="Report",
        value={"report": str(path)},
        blocks=[] if path == session.html else [Verbatim(f"report: {path}")],
        page=lambda: report_page(data),
    )


def leaderboard(*, session: Query = Query()) -> Answer:
    """Show the result of every policy over the jobs that ended, and its weight in the selection."""
    import pandas as pd

    from slackwater.flows.turn.context import Turn
    from slackwater.flows.turn.report.leaderboard import leaderboard_answer, policy_results, read_board_facts

    with session.reading() as store:
        at = pd.Timestamp(0, tz="UTC")  # any time will do: the leaderboard does not depend on it
        turn = Turn(store=store, at=at, settings=session.config, run_id="leaderboard")
        return leaderboard_answer(policy_results(turn, read_board_facts(turn)))
