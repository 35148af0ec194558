"""The report of a turn (M5.5, M6.5): decisions, markets, accuracy and policies in one file, the same for the same turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.following import step_of
from slackwater.flows.histories import read_all
from slackwater.flows.ledger.decisions import decisions_by_job, stored_decisions
from slackwater.flows.ledger.endings import endings_of, missed_jobs
from slackwater.flows.ledger.errors import measured_errors
from slackwater.flows.ledger.headline import answers, lateness, missed_apart, overview
from slackwater.flows.ledger.jobs import find_job
from slackwater.flows.places import market_of
from slackwater.flows.show.accuracy import accuracy_blocks
from slackwater.flows.show.blocks import Banner, Block, Column, Figures, Notes, Page, Section, Table
from slackwater.flows.show.formats import duration, text, utc, whole
from slackwater.flows.show.page import write_page
from slackwater.flows.turn.context import Counts, Turn
from slackwater.flows.turn.report.command import decision_blocks
from slackwater.flows.turn.report.leaderboard import (
    PolicyResults,
    leaderboard_blocks,
    policy_results,
    read_board_facts,
)
from slackwater.flows.turn.report.panels import (
    PANEL_SLOTS,
    JobRoute,
    MarketPanel,
    panel,
    panel_figure,
    panel_step,
    routes_section,
)
from slackwater.flows.turn.report.recent_errors import RECENT, measured_window, recent_rows, recent_scores
from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.job.markets import fits
from slackwater.warehouse.documents import read_object
from slackwater.warehouse.errors import InputError
from slackwater.warehouse.history import Market
from slackwater.warehouse.issued import read_forecasts, read_rows
from slackwater.warehouse.store.connection import Store

MOST_ANSWERS = 12  # Most jobs whose answers precede the table of decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Data of the report of a turn.

    ``decisions`` and ``ingested`` are as in the JSON answer of ``slackwater run``. ``accuracy`` is a
    table as `slackwater.flows.turn.report.recent_errors.recent_rows` returns it, and ``planner`` the model
    whose forecasts the decisions use. ``simulated``: the market is simulated. ``notes`` are findings
    as sentences, ``routes`` the routes of multi-market jobs.
    """

    at: pd.Timestamp
    run_id: str
    simulated: bool
    planner: str
    decisions: list[dict[str, Any]]
    accuracy: pd.DataFrame
    learned: PolicyResults
    ingested: dict[str, dict[str, int]]
    panels: list[MarketPanel]
    notes: list[str]
    routes: list[JobRoute] = field(default_factory=list)


def read_report(
    turn: Turn,
    *,
    learned: PolicyResults,
    decisions: list[dict[str, Any]],
    ingested: Counts,
    drawn: list[MarketPanel],
    simulated: bool,
    left_out: Sequence[str] = (),
) -> ReportData:
    """Return the data of the report, with what the warehouse has on its jobs and forecasts; ``drawn`` are its markets."""
    settings = turn.settings
    recent = turn.at - pd.Timedelta(hours=settings.alarms.recent_hours)
    ended = [job for job in turn.jobs() if recent <= job.deadline <= turn.at]
    return ReportData(
        at=turn.at,
        run_id=turn.run_id,
        simulated=simulated,
        decisions=decisions,
        accuracy=turn.read(recent_rows, turn.at, window=measured_window(settings)),
        planner=settings.planner,
        learned=learned,
        routes=turn.read(routes_of, decisions, drawn),
        ingested=ingested,
        panels=drawn,
        notes=[
            *missed_jobs(turn.read(endings_of, ended, known_at=turn.at)),
            *left_out,
            *turn.read(example_notes, decisions),
            *turn.read(undecided_notes, turn.at),
            *learned.findings,
        ],
    )


def example_notes(store: Store, decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a note that the decided jobs are examples, and how to replace them; nothing if a user job is among them."""
    names = [row["job"] for row in decisions]
    origins = {
        str(origin)
        for (origin,) in store.execute(
            "SELECT DISTINCT origin FROM jobs WHERE list_contains($names, name)", {"names": names}
        )
    }
    if origins != {"example"}:
        return []
    return [
        "These jobs are examples, as there is none of yours: `slackwater job add FILE --market MARKET` adds one, and the examples "
        "are set aside."
    ]


def undecided_notes(store: Store, at: pd.Timestamp) -> list[str]:
    """Return notes on user jobs that the turn at a time scored but no turn decided: they ended before the first turn."""
    rows = store.execute(
        "SELECT name, deadline_at FROM jobs WHERE origin = 'user' AND name NOT IN (SELECT job FROM decisions) "
        "AND name IN (SELECT job FROM outcomes WHERE scored_at = $at) ORDER BY deadline_at, name",
        {"at": at},
    )
    return [
        f"Job {name} was over before any turn decided it (deadline {utc(deadline)}): it is replayed, and no instances ran for it."
        for name, deadline in rows
    ]


def stored_report(store: Store, settings: Settings, *, at: pd.Timestamp | None) -> ReportData:
    """Rebuild the report of the newest run, or that at ``at``; raises `InputError` if there is no such run."""
    runs = read_rows(store, "runs", where={"stage": "forecast"}, order_by=["logical_at"])
    if at is not None:
        runs = runs[runs["logical_at"] == at]
    if runs.empty:
        raise InputError(
            f"no run {'at ' + at.isoformat() if at is not None else 'in this warehouse'}",
            remedy="`slackwater run` runs one",
        )
    run, when = str(runs["run"].iloc[-1]), pd.Timestamp(runs["logical_at"].iloc[-1])
    turn = Turn(store=store, at=when, settings=settings, run_id=run, own_end=True)
    measured = measured_errors(store, when)
    decided = stored_decisions(store, {"run": run}, order_by=["job"])
    ingest = read_rows(store, "runs", where={"run": run, "stage": "ingest"})
    drawn = []
    for key, source in dict.fromkeys(zip(measured["market"], measured["source"], strict=True)):
        followed = market_of(turn, f"{key}@{source}")
        start = followed.at - PANEL_SLOTS * step_of(settings)
        issued = read_forecasts(
            store,
            Forecast,
            market=followed.market,
            source=followed.source,
            model=settings.planner,
            start=followed.at,
            end=followed.at,
            step=step_of(settings),
        )
        drawn.append(panel(read_all(turn, [(followed, start)])[0], issued[0] if issued else None))
    return read_report(
        turn,
        learned=policy_results(turn, read_board_facts(turn)),
        decisions=[row for _, row in decided],
        ingested=(read_object(ingest["details"].iloc[-1]) or {}) if len(ingest) else {},
        drawn=drawn,
        simulated=all(source.startswith("simulated") for source in measured["source"]),
    )


def routes_of(
    store: Store, decisions: Sequence[Mapping[str, Any]], drawn: Sequence[MarketPanel]
) -> list[JobRoute]:
    """Return the routes of the multi-market jobs among ``decisions``, up to these, with the matching market panels."""
    moving = {
        str(row["job"]): pd.Timestamp(row["slot"]) for row in decisions if row.get("move_usd") is not None
    }
    found = []
    for job, rows in decisions_by_job(store, list(moving)).items():
        request = find_job(store, job).request
        decided = [row for row in rows if pd.Timestamp(row["slot"]) <= moving[job]]
        been = {request.market, *(str(row["market"]) for row in decided)}
        panels = {
            figure.title: figure
            for figure in reversed(drawn)
            if figure.title in been or fits(request, Market.parse(figure.title), figure.source)
        }
        found.append(JobRoute(job=job, request=request, decided=decided, panels=list(panels.values())[::-1]))
    return found


# ---
# The page


def report_page(data: ReportData) -> Page:
    """Return the page of a turn: decisions, markets, accuracy, policies, ingested rows and notes; no clock is read."""
    simulated = Banner(
        "Simulated market.",
        "The prices and instance counts on this page come from a random generator, not from any provider. Do not rent by them.",
    )
    missed, others = missed_apart([note for note in data.notes if note not in data.learned.findings])
    notes: Block = Notes(others) if others else "Nothing out of the ordinary."
    return Page(
        title="Slackwater: GPUs to run in the next slot",
        short=f"report, {utc(data.at)}",
        about=f"As of {utc(data.at)}, run {data.run_id}. All times are UTC, all prices and costs in USD.",
        banner=simulated if data.simulated else None,
        blocks=[
            *missed,
            decisions_section(data.decisions),
            *([routes_section(data.routes)] if data.routes else []),
            markets_section(data.panels, data.decisions, data.at),
            accuracy_section(data.accuracy, data.planner, slot=slot_length(data.panels)),
            Section("Policies over the jobs that ended", leaderboard_blocks(data.learned), "policies"),
            ingest_section(data.ingested),
            Section("Notes", [notes], "notes"),
        ],
    )


def write_report(data: ReportData, path: Path) -> Path:
    """Write the page of a turn and missing folders atomically; returns ``path``. Raises `InputError` if not writable."""
    return write_page(report_page(data), path, option="--out")


def decisions_section(decisions: Sequence[Mapping[str, Any]]) -> Section:
    """Return the section of the decisions: key figures, the blocks of the terminal, and what the figures assume."""
    if not decisions:
        return Section("What to run", ["No job is open, so there is nothing to decide."], "decisions")
    ranges = answers(
        [row for row in decisions if row.get("shortfall") or row.get("availability_note") is not None][
            :MOST_ANSWERS
        ]
    )
    blocks: list[Block] = [
        overview(decisions),
        *([Notes(ranges)] if ranges else []),
        lateness(decisions),
        *decision_blocks("", decisions),
        "Expected cost, finish and risk are computed from sampled prices and availability. If availability was not observed, "
        "it is assumed to change as in measured markets. The cost is that of the whole job, from start to end.",
    ]
    return Section("What to run", blocks, "decisions")


def slot_length(panels: Sequence[MarketPanel]) -> str:
    """Return the length of a slot in words, "" when the markets differ or there is none."""
    steps = {panel_step(panel) for panel in panels}
    return duration(steps.pop()) if len(steps) == 1 else ""


def markets_section(
    panels: Sequence[MarketPanel], decisions: Sequence[Mapping[str, Any]], at: pd.Timestamp
) -> Section:
    """Return the section with the charts of the markets, those with a decision first."""
    heading = "Markets: observations and forecasts"
    if not panels:
        return Section(heading, ["No market is followed yet; ingest a history to see one."], "markets")
    held = [
        [
            f"{text(row.get('job'))}: run {text(row.get('on_demand'))} on-demand + {text(row.get('spot'))} spot"
            for row in decisions
            if decided_for(panel, row)
        ]
        for panel in panels
    ]
    shown = [
        (panel_figure(panel, held_here, at), bool(held_here))
        for panel, held_here in zip(panels, held, strict=True)
    ]
    blocks: list[Block] = [
        "Above: the spot price; below: the available instances. The solid line shows observations, grey fields gaps. The "
        "forecast begins at the dotted vertical line: the blue line is its median, the darkest band contains the true value "
        "with probability 50 %, the lightest with 90 %. Dashed lines: on-demand price (orange) and capacity (green)."
    ]
    for title, decided in (("With a decision now", True), ("Followed, no decision now", False)):
        group = [figure for figure, has in shown if has == decided]
        if group:
            blocks.append(Section(title, [Figures(group)]))
    return Section(heading, blocks, "markets")


def decided_for(panel: MarketPanel, row: Mapping[str, Any]) -> bool:
    """Return whether a decision is about a panel's market: the same market key, and the same source if both name a source."""
    market, _, source = str(row.get("market") or "").partition("@")
    source = source or str(row.get("source") or "")
    keys = {panel.title.partition("@")[0].strip()}
    if panel.forecast is not None:
        keys.add(panel.forecast.market.key)
    return market in keys and (not source or not panel.source or source == panel.source)


def ingest_section(ingested: Mapping[str, Mapping[str, int]]) -> Section:
    """Return the section with the counts of rows by source; the usual columns first, then any others."""
    usual = [c for c in ("added", "repeated", "rejected") if any(c in counts for counts in ingested.values())]
    others = sorted({c for counts in ingested.values() for c in counts} - set(usual))
    columns = {"source": "Source"} | {
        name: Column(heading=f"Rows {name}", format=whole) for name in usual + others
    }
    rows = [{**counts, "source": source} for source, counts in ingested.items()]
    table = Table("", rows, columns, empty="Nothing was read in this run.")
    return Section("Data read in this run", [table], "ingest")


def accuracy_section(rows: pd.DataFrame, planner: str, *, slot: str = "") -> Section:
    """Return the section on the accuracy of recent forecasts; ``slot`` is the length of a slot in words."""
    heading = "How good the forecasts were"
    scores = recent_scores(rows, planner)
    if not scores:
        none = "No forecast has been measured yet: the slots they speak of have not passed."
        return Section(heading, [none], "accuracy")
    about = f"Forecasts of the last {RECENT.days} days, compared with the observations."
    return Section(
        heading,
        [f"{about} One slot is {slot}." if slot else about, *accuracy_blocks(scores, markets=False)],
        "accuracy",
    )
