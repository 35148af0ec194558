"""Results of a turn as a report: the leaderboard, findings, and the HTML page (M5.5, M6.5)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.ledger.endings import ReportedOutcomes, missed_jobs, reported_outcomes
from slackwater.flows.ledger.fields import (
    BASELINES,
    BOARD_SHOWN,
    DECISION,
    INTERVALS,
    as_shown,
    availability_told,
    board_rows,
    columns_of,
    contradicted_told,
    folded_board,
    on_demand_told,
    stale_told,
    zone_of,
)
from slackwater.flows.ledger.fields import chance as chance_told
from slackwater.flows.ledger.headline import (
    WORRYING,
    answers,
    is_observed,
    missed_apart,
    overview,
    risk_mark,
    savings,
)
from slackwater.flows.ledger.jobs import find_job, stored_jobs
from slackwater.flows.ledger.records import decisions_by_job, measured_errors, outcome_frame, stored_decisions
from slackwater.flows.show.blocks import (
    UNMEASURED,
    Banner,
    Block,
    Column,
    Figure,
    Figures,
    Fold,
    Notes,
    Page,
    Section,
    Table,
)
from slackwater.flows.show.charts import (
    Axis,
    Fan,
    area,
    cut_told,
    dots,
    error_ceiling,
    fan,
    held,
    lines,
    skill_floor,
)
from slackwater.flows.show.charts import route as route_chart
from slackwater.flows.show.formats import (
    MISSING,
    as_number,
    duration,
    listed,
    missing,
    number,
    percent,
    plural,
    price,
    rows_of,
    significant,
    text,
    usd,
    utc,
    whole,
)
from slackwater.flows.show.page import write_page
from slackwater.flows.show.skills import ABOUT_VERDICTS, compared, nothing_compared, steps_compared
from slackwater.flows.turn.context import (
    Counts,
    Group,
    Pool,
    Turn,
    market_of,
    read_all,
    read_pool,
)
from slackwater.flows.turn.following import step_of
from slackwater.flows.turn.recent_errors import RECENT, STEPS, errors_of, measured_window, recent_rows
from slackwater.forecasting.accuracy.intervals import TOO_FEW, skills_by_block
from slackwater.forecasting.accuracy.tables import (
    COMMON,
    pooled_scores,
    scaled_losses,
    shared_scores,
    with_common,
)
from slackwater.forecasting.predictors import FLOOR
from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.job.request import JobRequest
from slackwater.optimization.job.units import instance_range
from slackwater.optimization.moving.score import BEST_MARKET
from slackwater.optimization.moving.terms import fits
from slackwater.optimization.replay.score import leaderboard
from slackwater.optimization.selection.learned import learner_regret, why_leader_changed
from slackwater.warehouse.documents import read_object
from slackwater.warehouse.errors import InputError, JobError
from slackwater.warehouse.history import AVAILABLE, PRICE, History, Market
from slackwater.warehouse.issued import read_forecasts, read_rows
from slackwater.warehouse.store.connection import Store

# ---
# Results of a turn as a report: the leaderboard, findings as sentences, and the data of the page (M5.5).

#: Past slots in a market panel of the report.
PANEL_SLOTS = 336
#: Keys of an error row in the JSON answer, in order.
ACCURACY_KEYS = (
    "market", "source", "variable", "model", "step", "n", "mae", "rmse", "mase", "pinball",
    "skill_mae", "skill_pinball", "coverage_80", "brier", "fallback_share", "scale", "skill_low", "skill_high", "days", "verdict",
)  # fmt: skip


def report_data(
    turn: Turn,
    *,
    learned: TaughtByJobs,
    decisions: list[dict[str, Any]],
    ingested: Counts,
    drawn: list[MarketPanel],
    simulated: bool,
    left_out: Sequence[str] = (),
) -> ReportData:
    """Return the data of the report."""
    after, rounds = learned.pool.weights_after(), learned.pool.rounds
    recent = turn.at - pd.Timedelta(hours=turn.settings.alarms.recent_hours)
    ended = [
        job for job in stored_jobs(turn.store, known_at=turn.terms_at) if recent <= job.deadline <= turn.at
    ]
    missed = missed_jobs(turn.store, ended, known_at=turn.at)
    return ReportData(
        at=turn.at,
        run_id=turn.run_id,
        simulated=simulated,
        decisions=decisions,
        accuracy=recent_rows(turn.store, turn.at, window=measured_window(turn.settings)),
        leaderboard=learned.leaderboard,
        movers=learned.movers,
        routes=routes_of(turn.store, decisions, drawn),
        weights=pd.DataFrame(
            np.array(after).reshape(len(after), len(rounds.names)), columns=list(rounds.names)
        ),
        round_jobs=list(rounds.jobs),
        ingested=ingested,
        panels=drawn,
        notes=[
            *missed,
            *left_out,
            *examples_told(turn.store, decisions),
            *over_told(turn),
            *learned.findings,
        ],
    )


def examples_told(store: Store, decisions: Sequence[Mapping[str, Any]]) -> list[str]:
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


def over_told(turn: Turn) -> list[str]:
    """Return notes on user jobs that this turn scored but no turn decided: they ended before the first turn."""
    rows = turn.store.execute(
        "SELECT name, deadline_at FROM jobs WHERE origin = 'user' AND name NOT IN (SELECT job FROM decisions) "
        "AND name IN (SELECT job FROM outcomes WHERE scored_at = $at) ORDER BY deadline_at, name",
        {"at": turn.at},
    )
    return [
        f"Job {name} was over before any turn decided it (deadline {utc(deadline)}): it is replayed, and nothing was held for it."
        for name, deadline in rows
    ]


def stored_report(store: Store, settings: Settings, *, at: pd.Timestamp | None) -> ReportData:
    """Rebuild the report of the newest run, or of the run at ``at``, from the warehouse.

    Raises `InputError` if there is no such run.
    """
    runs = read_rows(store, "runs", where={"stage": "forecast"}, order_by=["logical_at"])
    if at is not None:
        runs = runs[runs["logical_at"] == at]
    if runs.empty:
        raise InputError(
            f"no run {'at ' + at.isoformat() if at is not None else 'in this warehouse'}",
            remedy="`slackwater run` makes one",
        )
    run, when = str(runs["run"].iloc[-1]), pd.Timestamp(runs["logical_at"].iloc[-1])
    turn = Turn(store=store, at=when, settings=settings, run_id=run, own_end=True)
    measured = measured_errors(store, when)
    decided = stored_decisions(store, {"run": run}, order_by=["job"])
    ingest = read_rows(store, "runs", where={"run": run, "stage": "ingest"})
    drawn, sources = [], set()
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
        sources.add(source)
    return report_data(
        turn,
        learned=learned(turn),
        decisions=[row for _, row in decided],
        ingested=(read_object(ingest["details"].iloc[-1]) or {}) if len(ingest) else {},
        drawn=drawn,
        simulated=all(source.startswith("simulated") for source in sources),
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
        own = [row for row in rows if pd.Timestamp(row["slot"]) <= moving[job]]
        been = {request.market, *(str(row["market"]) for row in own)}
        panels = {
            one.title: one
            for one in reversed(drawn)
            if one.title in been or fits(request, Market.parse(one.title), one.source)
        }
        found.append(JobRoute(job=job, request=request, decided=own, panels=list(panels.values())[::-1]))
    return found


def accuracy_rows(accuracy: pd.DataFrame) -> list[dict[str, Any]]:
    """Return error rows as plain values, with None for undefined values."""
    if accuracy.empty:
        return []
    keys = [key for key in ACCURACY_KEYS if key in accuracy.columns]
    rows: list[dict[str, Any]] = json.loads(accuracy[keys].to_json(orient="records", double_precision=6))
    return rows


def panel(history: History, forecast: Forecast | None) -> MarketPanel:
    """Return the recent past and the planning forecast of a market."""
    tail = history.frame.iloc[-PANEL_SLOTS:]
    return MarketPanel(
        title=history.market.key,
        source=history.source,
        slots=pd.DatetimeIndex(tail.index),
        price=tail[PRICE].to_numpy(dtype=float),
        available=np.where(history.availability_observed, tail[AVAILABLE].to_numpy(dtype=float), np.nan),
        on_demand_usd=history.on_demand_usd,
        capacity=history.capacity,
        forecast=forecast,
        assumptions=history.assumptions,
        availability_observed=history.availability_observed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaughtByJobs:
    """Results over ended jobs: the leaderboard, best policy first and empty before the first job, and findings.

    ``movers`` is the leaderboard of the multi-market policies, over the multi-market jobs.
    """

    pool: Pool
    leaderboard: list[dict[str, Any]]
    findings: list[str]
    movers: list[dict[str, Any]]


def learned(turn: Turn, pool: Pool | None = None) -> TaughtByJobs:
    """Return the results of the pool (None: as stored in the warehouse) and of the multi-market policies over all scored jobs."""
    pool = read_pool(turn) if pool is None else pool
    reported = reported_outcomes(turn.store)
    outcomes = outcome_frame(turn.store, pool.names)
    moved = outcome_frame(turn.store, [*pool.movers.names, BEST_MARKET])
    board = _board_rows(pool, outcomes, reported)
    movers = _board_rows(pool.movers, moved, reported)
    if board:
        findings = _findings(pool, outcomes, board)
    elif movers:
        findings = []
    else:
        name, why = pool.deciding([turn.at])[0]
        mover = pool.movers.deciding([turn.at])[0][0]
        findings = [
            f"No job has ended yet, so no policy has a record here; {name.name} decides: it {why}. Where a job may move, "
            f"{mover.name} does."
        ]
    return TaughtByJobs(
        pool=pool,
        leaderboard=board,
        findings=[*findings, *_movers_found(movers), *([reported.sentence()] if board or movers else [])],
        movers=movers,
    )


def _board_rows(
    group: Group[Any], outcomes: pd.DataFrame, reported: ReportedOutcomes
) -> list[dict[str, Any]]:
    """Return the leaderboard of a group; the weight of a hindsight baseline is 0."""
    if outcomes.empty:
        return []
    board = leaderboard(outcomes, group.rounds.newest(group.learner))
    return [
        {
            "policy": row["policy"],
            "jobs": int(row["jobs"]),
            "mean_utility": round(float(row["mean_utility"]), 6),
            "mean_utility_usd": round(float(row["mean_utility_usd"]), 4),
            "mean_cost_usd": round(float(row["mean_cost_usd"]), 4),
            "mean_saved_usd": None
            if pd.isna(row["mean_saved_usd"])
            else round(float(row["mean_saved_usd"]), 4),
            "saved_share": None
            if pd.isna(row["mean_saved_usd"])
            else round(float(row["mean_saved_usd"] / row["mean_on_demand_only_usd"]), 6),
            "mean_hindsight_usd": None
            if pd.isna(row["mean_hindsight_usd"])
            else round(float(row["mean_hindsight_usd"]), 4),
            "on_time": round(float(row["on_time"]), 4),
            "reported_jobs": len(own := reported.by_policy.get(row["policy"], ())),
            "reported_on_time": round(sum(own) / len(own), 4) if own else None,
            "gap_to_hindsight": round(float(row["gap_to_hindsight"]), 6),
            "weight": 0.0 if pd.isna(row["weight"]) else round(float(row["weight"]), 6),
        }
        for row in rows_of(board)
    ]


def _movers_found(board: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a finding on the best multi-market policy and the leader that decides next."""
    movers = [row for row in board if row["policy"] != BEST_MARKET]
    if not movers:
        return []
    best, led = movers[0], max(movers, key=lambda row: row["weight"])
    return [
        f"Best mover over {plural(best['jobs'], 'ended job')} that may move: {_cost_told(best)}; {led['policy']} leads "
        f"with {percent(led['weight'])} of the weight."
    ]


def _cost_told(row: Mapping[str, Any]) -> str:
    """Return the cost of a policy per job compared with on-demand only and, if known, with hindsight."""
    known = row["mean_hindsight_usd"]
    return (
        f"{row['policy']}, {usd(row['mean_cost_usd'])} USD a job, "
        + (
            "no on-demand price known, "
            if row["mean_saved_usd"] is None
            else f"{usd(row['mean_saved_usd'])} USD ({percent(row['saved_share'])}) less than on-demand only, "
        )
        + f"on time in {percent(row['on_time'])} of the replays"
        + ("" if known is None else f"; hindsight {usd(known)} USD")
    )


def _findings(pool: Pool, outcomes: pd.DataFrame, board: list[dict[str, Any]]) -> list[str]:
    """Return findings on the leader and the reason, the baselines, forecast errors, and regret with its bound."""
    by_name = {row["policy"]: row for row in board}
    best = board[0]
    notes = [f"Best policy over {plural(best['jobs'], 'ended job')}: {_cost_told(best)}."]
    for name in ("UP", "MSU", "OD-only"):
        if name in by_name and name != best["policy"]:
            row = by_name[name]
            dearer = row["mean_cost_usd"] - best["mean_cost_usd"]
            notes.append(
                f"{name} costs {usd(abs(dearer))} USD a job {'more' if dearer >= 0 else 'less'}, on time in "
                f"{percent(row['on_time'])} of the replays."
            )
    lost = outcomes.groupby("policy")["lost_to_forecast_error"].mean().dropna()
    if len(lost):
        most = str(lost.idxmax())
        notes.append(
            f"Wrong forecasts cost {best['policy']} {lost.get(best['policy'], 0.0):.3f} of the on-demand-only cost a job, "
            f"and {most} most, {lost[most]:.3f}, beside what it makes of perfect forecasts."
        )
    rounds, learner = pool.rounds, pool.learner
    utilities = rounds.full(learner)
    ledger = pd.DataFrame(
        [
            {"job": job, "policy": name, "normalised": value}
            for job, row in zip(rounds.jobs, utilities, strict=True)
            for name, value in zip(pool.names, row.tolist(), strict=True)
        ]
    )
    last = learner_regret(ledger, learner).iloc[-1]
    notes.append(
        f"Selection by {learner.name} after {len(rounds.jobs)} jobs: regret {last['static_regret']:.3f} "
        f"(bound {last['static_bound']:.3f}) against the best single policy, {last['static_regret_leader']:.3f} "
        "when following the leader."
    )
    changes = why_leader_changed(ledger, rounds.weights(learner), memory=learner.memory)
    notes += [change.sentence() + "." for change in changes[-2:]]
    return notes


# ---
# The report page of a turn: one HTML file that needs no network, byte-identical for the same turn.
#
# It shows decisions, markets, accuracy (M6.5), policies and their weights (M5), and ingested rows;
# the UI reuses some sections.


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketPanel:
    """Recent past and forecast of one market: ``price`` and ``available`` have shape (slots,), NaN in gaps.

    If availability was not observed, ``available`` is NaN in every slot and is not drawn.
    """

    title: str
    source: str
    slots: pd.DatetimeIndex
    price: np.ndarray
    available: np.ndarray
    on_demand_usd: float
    capacity: int
    forecast: Forecast | None
    assumptions: tuple[str, ...] = ()
    availability_observed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRoute:
    """The markets of a multi-market job over time: ``decided`` are its decisions, ascending, ``panels`` its market panels."""

    job: str
    request: JobRequest
    decided: list[dict[str, Any]]
    panels: list[MarketPanel]

    def sizes(self, market: str) -> tuple[int, int]:
        """Return the least and the most instances that the job may run in a market; (1, 1) where unknown."""
        try:
            return instance_range(self.request, Market.parse(market))
        except JobError:  # the type is too large for the job, or its GPUs are unknown
            return 1, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Data of the report of a turn.

    ``decisions``, ``leaderboard`` and ``ingested`` are as in the JSON answer of ``slackwater run``.
    ``accuracy`` is a long table with columns market, variable ("price" | "count"), model, step
    (1-based), n, mae, rmse, mase, pinball, skill_mae, skill_pinball, coverage_80, brier and
    fallback_share; a table of several days also has ``day`` and
    `slackwater.forecasting.accuracy.tables.COMMON`. ``weights`` has one row per round (in order) and one
    column per policy, each row summing to 1; ``round_jobs`` names the job of each round.
    ``simulated``: the market is simulated. ``notes`` are findings as sentences; ``movers`` is the
    leaderboard of the multi-market policies, and ``routes`` are the routes of multi-market jobs.
    """

    at: pd.Timestamp
    run_id: str
    simulated: bool
    decisions: list[dict[str, Any]]
    accuracy: pd.DataFrame
    leaderboard: list[dict[str, Any]]
    weights: pd.DataFrame
    round_jobs: list[str]
    ingested: dict[str, dict[str, int]]
    panels: list[MarketPanel]
    notes: list[str]
    movers: list[dict[str, Any]] = field(default_factory=list)
    routes: list[JobRoute] = field(default_factory=list)


def report_page(data: ReportData) -> Page:
    """Return the page of a turn: sections decisions, markets, accuracy, policies, weights, ingest and notes.

    No clock is read, so that the same data give the same page. Raises `InputError` if the accuracy
    table or the weights do not have the form required by `ReportData`.
    """
    simulated = Banner(
        "Simulated market.",
        "The prices and instance counts on this page come from a random generator, not from any provider. Do not rent by them.",
    )
    missed, others = missed_apart(data.notes)
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
            accuracy_section(data.accuracy, slot=slot_length(data.panels)),
            policies_section(data.leaderboard),
            *([movers_section(data.movers)] if data.movers else []),
            weights_section(data.weights, data.round_jobs),
            ingest_section(data.ingested),
            Section("Notes", [notes], "notes"),
        ],
    )


def write_report(data: ReportData, path: Path) -> Path:
    """Write the page of a turn atomically, so that no reader sees a partial file; returns ``path``.

    Missing folders are created. Raises `InputError` if the file cannot be written.
    """
    return write_page(report_page(data), path, option="--out")


def decisions_section(decisions: Sequence[Mapping[str, Any]]) -> Section:
    """Return the section with the decision table and its summary."""
    if not decisions:
        return Section("What to run", ["No job is open, so there is nothing to decide."], "decisions")
    shown = [_decision_row(row) for row in decisions]
    table = Table("", shown, columns_of(DECISION | INTERVALS, rows=shown), cards=True)
    note = (
        "Expected cost, finish and risk are computed from sampled prices and availability. If availability was not observed, "
        "they hold if spot is never lost. The cost is that of the whole job, from start to end."
    )
    told = [f"STALE DATA: {text}" for text in stale_told(decisions)]
    told += [f"SOURCES DISAGREE: {text}" for text in contradicted_told(decisions)]
    told += [f"AVAILABILITY UNKNOWN: {text}" for text in availability_told(decisions)]
    told += [f"NO ON-DEMAND PRICE: {text}" for text in on_demand_told(decisions)]
    told += [f"BUDGET: job {row['job']}: {row['budget_note']}" for row in decisions if row.get("budget_note")]
    old = [Notes(told)] if told else []
    ranges = answers([row for row in decisions if row.get("shortfall") or not is_observed(row)])
    first: list[Block] = [overview(decisions), *([Notes(ranges)] if ranges else []), _lateness(decisions)]
    return Section("What to run", [*first, *old, table, note], "decisions")


def decisions_summary(decisions: Sequence[Mapping[str, Any]]) -> str:
    """Return a summary of the decisions: total instances, total expected cost, and the jobs at risk."""
    on_demand, spot = (
        sum(int(as_number(row.get(key)) or 0) for row in decisions) for key in ("on_demand", "spot")
    )
    gpus = [as_number(row.get("gpus")) for row in decisions]
    in_all = "" if None in gpus else f" ({plural(int(sum(one or 0 for one in gpus)), 'GPU')} in all)"
    return (
        f"{plural(len(decisions), 'job')}: run {plural(on_demand, 'on-demand instance')} and "
        f"{plural(spot, 'spot instance')}{in_all} in the slot. {_total_cost(decisions)}. "
    ) + _lateness(decisions)


def _total_cost(decisions: Sequence[Mapping[str, Any]]) -> str:
    """Return the expected cost of all jobs; of jobs in unobserved markets it is a lower bound, and stated apart."""
    observed = [row for row in decisions if is_observed(row)]
    others = [row for row in decisions if not is_observed(row)]
    parts = []
    if observed or not others:
        parts.append(f"Expected cost, from start to end: {_cost_sum(observed)}{_saving(observed)}")
    if others:
        alone = [as_number(row.get("on_demand_only_usd")) for row in others]
        known = [cost for cost in alone if cost is not None]
        high = f", {usd(sum(known))} USD with on-demand only" if len(known) == len(others) else ""
        parts.append(
            f"Cost of {plural(len(others), 'job')} without observed availability: at least {_cost_sum(others)} "
            f"if spot is never lost{high}"
        )
    return ". ".join(parts)


def _cost_sum(decisions: Sequence[Mapping[str, Any]]) -> str:
    costs = [cost for row in decisions if (cost := as_number(row.get("expected_cost_usd"))) is not None]
    return f"{usd(sum(costs))} USD" if costs else MISSING


def _saving(decisions: Sequence[Mapping[str, Any]]) -> str:
    saved, alone = savings(decisions)
    return f", {usd(saved)} USD ({percent(saved / alone)}) less than on-demand only" if alone else ""


def _lateness(decisions: Sequence[Mapping[str, Any]]) -> str:
    chances = [as_number(row.get("late_probability")) for row in decisions]
    hopeless = sum(bool(row.get("shortfall")) for row in decisions)
    late, unknown = sum((chance or 0.0) >= WORRYING for chance in chances) - hopeless, chances.count(None)
    told = [f"{plural(hopeless, 'job')} cannot meet the deadline."] if hopeless else []
    told += [f"{plural(late, 'job')} may miss the deadline."] if late > 0 else []
    sentence = " ".join(told) or "No job is in danger of being late."
    if unknown == len(chances):
        return "The risk of missing a deadline is unknown."
    return sentence + (f" For {plural(unknown, 'job')} the risk is unknown." if unknown else "")


def _decision_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with its risk in words, and reason, forecaster, solver status and assumptions as text."""
    late = row.get("late_probability")
    mark = risk_mark(as_number(late))
    risk = f" ({mark})" if mark else ""
    model, status = forecaster_told(row), row.get("status")
    parts = [
        text(row.get("reason")),
        f"forecast: {model}" if model else "",
        "" if missing(status) else f"solver: {status}",
        synthetic_told(row.get("synthetic")),
    ]
    why = "; ".join(part for part in parts if part)
    return {**as_shown(row), "late_probability": chance_told(late) + risk, "reason": why}


def forecaster_told(row: Mapping[str, Any]) -> str:
    """Return the forecaster behind a decision, and the reason if a fallback was used."""
    model, fallback = row.get("model") or row.get("forecaster"), row.get("fallback")
    if missing(model):
        return "" if missing(fallback) else str(fallback)
    return str(model) if missing(fallback) else f"{model} (fell back: {fallback})"


def synthetic_told(value: Any) -> str:
    """Return the label of a decision on assumed data: ``value`` is the list of assumptions, or just True or False."""
    if missing(value) or value is False:
        return ""
    if isinstance(value, str):
        return f"synthetic: {value}"
    return "synthetic" if value is True else "synthetic: " + "; ".join(str(a) for a in value)


def slot_length(panels: Sequence[MarketPanel]) -> str:
    """Return the length of a slot in words, "" when the markets differ or there is none."""
    steps = {panel_step(panel) for panel in panels}
    return duration(steps.pop()) if len(steps) == 1 else ""


def markets_section(
    panels: Sequence[MarketPanel], decisions: Sequence[Mapping[str, Any]], at: pd.Timestamp
) -> Section:
    """Return the section with the charts of the markets, those with a decision first."""
    heading = "Markets: what was observed, what is forecast"
    if not panels:
        return Section(heading, ["No market is followed yet; ingest a history to see one."], "markets")
    held = [
        [f"{text(row.get('job'))}: {_holding(row)}" for row in decisions if decided_for(panel, row)]
        for panel in panels
    ]
    shown = [(_panel_figure(panel, own, at), bool(own)) for panel, own in zip(panels, held, strict=True)]
    blocks: list[Block] = [
        "Above: the spot price; below: the available instances. The solid line shows observations, grey fields gaps. The "
        "forecast begins at the dotted vertical line: the blue line is its median, the darkest band contains the true value "
        "with probability 50 %, the lightest with 90 %. Dashed lines: on-demand price (orange) and capacity (green).",
    ]
    for title, decided in (("With a decision now", True), ("Followed, no decision now", False)):
        group = [figure for figure, has in shown if has == decided]
        if group:
            blocks.append(Section(title, [Figures(group)]))
    return Section(heading, blocks, "markets")


#: Legend of a route chart.
ROUTE_TOLD: Final = (
    "Each strip is a market of the job: the greener, the more of the usable spot instances were available; grey is a gap. "
    "Bars are the instances that ran, on spot (blue) or with on-demand (orange); an outline is the decision of the present "
    "slot. The line follows the checkpoint of the job: it changes strips when the job moves."
)
#: Rows of the route table shown unfolded, and fewest slots in the chart, including slots before the job.
ROUTE_ROWS, ROUTE_SLOTS = 12, 24


def routes_section(routes: Sequence[JobRoute]) -> Section:
    """Return the section with the route of each multi-market job: a chart and a table of its markets by slot."""
    blocks: list[Block] = [ROUTE_TOLD]
    for route in routes:
        rows = _route_rows(route)
        table = [Table("", rows[:ROUTE_ROWS], ROUTE_COLUMNS, cards=True)]
        more = rows[ROUTE_ROWS:]
        fold = [Fold("What was before", [Table("", more, ROUTE_COLUMNS, cards=True)])] if more else []
        blocks.append(Section(route.job, [route_figure(route), *table, *fold]))
    return Section("Where jobs that may move have been", blocks, "routes")


ROUTE_COLUMNS: Final[dict[str, Column | str]] = {
    "slot": Column(heading="from", unit="UTC"), "slots": "slots", "where": "where", "on_demand": "on-demand", "spot": "spot",
    "there": "spot there", "price": Column(heading="price", unit="$"),
    "moved_from": Column(heading="moves from", format=zone_of), "move_usd": Column(heading="move", unit="$", format=usd),
}  # fmt: skip


def _route_rows(route: JobRoute) -> list[dict[str, Any]]:
    """Return a row for each period with the same decision in the same market, newest first."""
    panels = {panel.title: panel for panel in route.panels}
    rows: list[dict[str, Any]] = []
    for row in route.decided:
        slot, held = pd.Timestamp(row["slot"]), row["on_demand"] + row["spot"]
        waits = f"waits in {zone_of(row['place'])}" if row["place"] else "nowhere yet"
        where = zone_of(row["market"]) if held else waits
        now = {"where": where, "on_demand": row["on_demand"], "spot": row["spot"]}
        if not rows or row["moved_from"] or any(rows[-1][key] != value for key, value in now.items()):
            moved = {
                "moved_from": row["moved_from"],
                "move_usd": row["move_usd"] if row["moved_from"] else None,
            }
            rows.append({"slot": slot, "slots": 0, "counts": [], "prices": [], **now, **moved})
        count, cost = _there(panels.get(str(row["market"])), slot)
        rows[-1]["slots"] += 1
        rows[-1]["counts"] += [] if count is None else [count]
        rows[-1]["prices"] += [] if cost is None else [cost]
    return [
        {**row, "there": _span(row["counts"], str), "price": _span(row["prices"], price)}
        for row in reversed(rows)
    ]


def _span(values: Sequence[Any], written: Callable[[Any], str]) -> str:
    """Return the least and the greatest of some numbers as text."""
    if not values:
        return MISSING
    ends = [written(min(values)), written(max(values))]
    return " to ".join(dict.fromkeys(ends))


def _there(panel: MarketPanel | None, slot: pd.Timestamp) -> tuple[int | None, float | None]:
    """Return spot count and price of a market in a slot, None where they were not observed."""
    if panel is None or slot not in panel.slots:
        return None, None
    at = panel.slots.get_loc(slot)
    count, cost = float(panel.available[at]), float(panel.price[at])
    return None if np.isnan(count) else int(count), None if np.isnan(cost) else cost


def route_figure(route: JobRoute) -> Figure:
    """Return the chart of a route: markets in order of first use, then those with the most available spot instances."""
    step = panel_step(route.panels[0]) if route.panels else pd.Timedelta(minutes=30)
    slots = [pd.Timestamp(row["slot"]) for row in route.decided]
    if not slots or not route.panels:
        return Figure(
            specs=[], label=f"Places of {route.job}", why="Nothing was decided for it yet.", width=0
        )
    end = slots[-1] + step
    start = min(slots[0], end - ROUTE_SLOTS * step)
    been = [str(row["place"]) for row in route.decided if row["place"]]
    mean = {
        panel.title: float(np.nan_to_num(panel.available[panel.slots >= start]).sum())
        for panel in route.panels
    }
    came = {name: k for k, name in enumerate(dict.fromkeys(been))}
    panels = sorted(
        route.panels, key=lambda one: (came.get(one.title, len(came)), -mean[one.title], one.title)
    )
    zones = [zone_of(panel.title) for panel in panels]
    names = zones if len(set(zones)) == len(zones) else [panel.title for panel in panels]
    name = dict(zip((panel.title for panel in panels), names, strict=True))
    spec = route_chart(
        [
            row
            for panel in panels
            for row in _strip(panel, name[panel.title], route.sizes(panel.title)[1], start, end, step)
        ],
        names,
        held=_route_held(route, name, step),
        path=_route_path(route, name, step),
        ends=(start, end),
        kinds={"on spot": "series1", "with on-demand": "on-demand"},
    )
    moves = [row for row in route.decided if row["moved_from"]]
    paid = sum(row["move_usd"] for row in moves)
    now = f"now in {name.get(been[-1], been[-1])}" if been else "nowhere yet"
    return Figure(
        specs=[spec], label=f"Places of {route.job} among its markets over time", width=0,
        captions=[f"{plural(len(slots), 'slot')}, {plural(len(moves), 'move')} for {usd(paid)} USD; {now}."],
    )  # fmt: skip


def _strip(
    panel: MarketPanel, name: str, most: int, start: pd.Timestamp, end: pd.Timestamp, step: pd.Timedelta
) -> list[dict[str, Any]]:
    """Return a row for each period from ``start`` to ``end`` in which neither count nor price of a market changed."""
    rows: list[dict[str, Any]] = []
    for slot in pd.date_range(start, end - step, freq=step):
        count, cost = _there(panel, slot)
        told = (
            "not observed" if count is None else f"{count} at {MISSING if cost is None else price(cost)} USD"
        )
        if rows and rows[-1]["told"] == told:
            rows[-1]["x2"] = slot + step
            continue
        share = None if count is None else min(count, most) / most
        rows.append({"x": slot, "x2": slot + step, "name": name, "share": share, "told": told})
    return rows


def _route_held(route: JobRoute, name: Mapping[str, str], step: pd.Timedelta) -> list[dict[str, Any]]:
    """Return a bar for every slot with instances: the decided instances, of spot at most those available."""
    panels = {panel.title: panel for panel in route.panels}
    rows: list[dict[str, Any]] = []
    for row in route.decided:
        slot, planned = pd.Timestamp(row["slot"]), row is route.decided[-1]
        count, _ = _there(panels.get(str(row["market"])), slot)
        spot = row["spot"] if planned else min(row["spot"], count or 0)
        if row["market"] not in name or row["on_demand"] + spot < route.sizes(str(row["market"]))[0]:
            continue
        rows.append(
            {
                "x": slot,
                "x2": slot + step,
                "name": name[row["market"]],
                "kind": "with on-demand" if row["on_demand"] else "on spot",
                "told": f"{row['on_demand']} on-demand and {spot} spot",
                "planned": planned,
            }
        )
    return rows


def _route_path(route: JobRoute, name: Mapping[str, str], step: pd.Timedelta) -> list[dict[str, Any]]:
    """Return the vertices of the line through the job's markets."""
    rows: list[dict[str, Any]] = []
    for row in route.decided:
        if row["place"] in name:
            slot, own = pd.Timestamp(row["slot"]), name[row["place"]]
            if rows and rows[-1]["x"] < slot:
                rows.append({**rows[-1], "x": slot})
            rows += [{"x": slot, "name": own}, {"x": slot + step, "name": own}]
    return rows


def decided_for(panel: MarketPanel, row: Mapping[str, Any]) -> bool:
    """Return whether a decision is about a panel's market: the same market key, and the same source if both name a source."""
    market, _, source = str(row.get("market") or "").partition("@")
    source = source or str(row.get("source") or "")
    keys = {panel.title.partition("@")[0].strip()}
    if panel.forecast is not None:
        keys.add(panel.forecast.market.key)
    return market in keys and (not source or not panel.source or source == panel.source)


def _holding(row: Mapping[str, Any]) -> str:
    return f"run {text(row.get('on_demand'))} on-demand + {text(row.get('spot'))} spot"


def _panel_figure(panel: MarketPanel, held: Sequence[str], at: pd.Timestamp) -> Figure:
    """Return the charts of a market with its facts as captions."""
    observed = panel.availability_observed
    facts = f"on-demand {price(panel.on_demand_usd)} USD per instance-hour; "
    facts += f"capacity {panel.capacity}" if observed else "availability not observed"
    label = f"{panel.title}: spot price" + (" and instances available" if observed else "")
    warnings = [f"synthetic: {'; '.join(panel.assumptions)}"] if panel.assumptions else []
    source = [f"source {panel.source}"] if panel.source else []
    if len(panel.slots) == 0:
        why = "No slot was observed yet, so there is nothing to draw."
        return Figure(
            specs=[], label=label, title=panel.title, warnings=warnings, strong=held,
            captions=["; ".join([facts, *source])], why=why, width=0,
        )  # fmt: skip
    past, step = shown_past(panel), panel_step(panel)
    no_price, no_count = np.isnan(panel.price[past]), np.isnan(panel.available[past])
    facts += f"; past {duration(step * no_price.size)} in slots of {duration(step)}"
    gaps = _gap_text(no_price, no_count if observed else np.zeros_like(no_price))
    captions = [
        *_remarks(panel.slots[-1], step, at, bool(no_price.all() and no_count.all())),
        _forecast_told(panel, step),
        "; ".join([facts, *source, *([gaps] if gaps else [])]),
    ]
    return Figure(
        specs=market_charts(panel), label=label, title=panel.title, warnings=warnings, strong=held, captions=captions, width=0
    )  # fmt: skip


def _forecast_told(panel: MarketPanel, step: pd.Timedelta) -> str:
    forecast = panel.forecast
    if forecast is None:
        return "No forecast was issued for this market."
    told = f"forecast by {forecast.predictor}, {duration(step * forecast.horizon)} ahead, issued {utc(forecast.issued_at)}"
    return f"{told}; fell back ({forecast.fallback})" if forecast.fallback else told


def _remarks(last: pd.Timestamp, step: pd.Timedelta, at: pd.Timestamp, all_gap: bool) -> Iterator[str]:
    if all_gap:
        yield "Nothing was observed in any of these slots: they are all gaps."
    if at - last > step:
        yield f"The record ends at {utc(last)}; the market is taken at that time."


def _gap_text(price: np.ndarray, count: np.ndarray) -> str:
    parts = [f"{word} {int(m.sum())}" for word, m in (("price", price), ("count", count)) if m.any()]
    return f"slots not observed (of {price.size}): {', '.join(parts)}" if parts else ""


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


#: Fewest past slots drawn, and the same in multiples of the forecast's horizon, so that the
#: forecast stays legible.
PAST_SLOTS, PAST_HORIZONS = 72, 5
#: Index of the lower level, index of the upper level, and width of the band in percent, among the
#: 19 quantile levels.
BANDS = ((0, 18, 90), (1, 17, 80), (4, 14, 50))
MEDIAN = 9


def panel_step(panel: MarketPanel) -> pd.Timedelta:
    """Return the slot length of a panel: from its forecast, else from its slots, else half an hour (the default grid)."""
    if panel.forecast is not None:
        return panel.forecast.step
    if len(panel.slots) > 1:
        return pd.Timedelta(panel.slots[1] - panel.slots[0])
    return pd.Timedelta(minutes=30)


def shown_past(panel: MarketPanel) -> slice:
    """Return the newest slots of a panel that are drawn."""
    horizon = panel.forecast.horizon if panel.forecast is not None else 0
    return slice(max(0, len(panel.slots) - max(PAST_SLOTS, PAST_HORIZONS * horizon)), None)


def gap_runs(missing: np.ndarray) -> list[tuple[int, int]]:
    """Return runs of True as half-open ranges.

    >>> gap_runs(np.array([True, False, True, True]))
    [(0, 1), (2, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], missing.astype(int), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def market_charts(panel: MarketPanel) -> list[dict[str, Any]]:
    """Return the price chart and, where availability was observed, the count chart below it.

    Each shows the past as steps, gaps, then the median and the 50, 80 and 90 % bands of the
    forecast.
    """
    past, step = shown_past(panel), panel_step(panel)
    slots = panel.slots[past]
    price, count = (
        Fan(
            title=title,
            past=held([*slots, slots[-1] + step], values[past].tolist()),
            gaps=gap_rows(slots, values[past], step),
            ahead=[] if panel.forecast is None else ahead_rows(panel.forecast, quantiles, step),
            limit=limit,
            limit_colour=colour,
            whole=whole,
            height=height,
        )
        for title, values, quantiles, limit, colour, whole, height in (
            ("price, USD per instance-hour", panel.price, panel.forecast and panel.forecast.price,
             panel.on_demand_usd, "on-demand", False, 100),
            ("instances available", panel.available, panel.forecast and panel.forecast.count,
             panel.capacity, "capacity", True, 62),
        )
    )  # fmt: skip
    return [fan(price, labelled=False), fan(count)] if panel.availability_observed else [fan(price)]


def gap_rows(slots: pd.DatetimeIndex, values: np.ndarray, step: pd.Timedelta) -> list[dict[str, Any]]:
    """Return one row per run of slots that were not observed."""
    return [{"x": slots[a], "x2": slots[b - 1] + step} for a, b in gap_runs(np.isnan(values))]


def ahead_rows(forecast: Forecast, quantiles: Any, step: pd.Timedelta) -> list[dict[str, Any]]:
    """Return one row per slot ahead: its ends, the median, and the ends of the bands; ``quantiles`` has shape (h, 19)."""
    return [
        {"x": at, "x2": at + step, "median": row[MEDIAN]}
        | {f"low{band}": row[low] for low, _, band in BANDS}
        | {f"high{band}": row[high] for _, high, band in BANDS}
        for at, row in zip(forecast.slots, quantiles, strict=True)
    ]


#: The reference forecaster.
LAST_VALUE: Final = FLOOR
ERROR_COLUMNS: Final = (
    "market", "variable", "model", "step", "n", "mae", "rmse", "mase", "pinball",
    "skill_mae", "skill_pinball", "coverage_80", "brier", "fallback_share",
)  # fmt: skip
TITLES: Final = {"price": "Price", "count": "Count of available instances"}
UNITS: Final = {"price": "USD per instance-hour", "count": "instances"}


def accuracy_section(accuracy: pd.DataFrame, *, slot: str = "") -> Section:
    """Return the section with the charts of each variable; ``slot`` is the length of a slot in words.

    A market measured in several sources (a column ``source``, if present) counts as several. Raises
    `InputError` if a table with rows lacks one of `ERROR_COLUMNS`.
    """
    heading = "How good the forecasts were"
    if accuracy.empty:
        none = "No forecast has been measured yet: the slots they speak of have not passed."
        return Section(heading, [none], "accuracy")
    table = measured_rows(accuracy)
    names = model_names(table["model"])
    about = (
        f"Forecasts of the last {RECENT.days} days, each compared with what was observed later. “Last value” predicts that nothing "
        f"will change; a model earns its place only where it is better than that. {ABOUT_VERDICTS}"
    )
    parts = [
        Section(TITLES[variable], variable_blocks(table[table["variable"] == variable], variable, names))
        for variable in UNITS
        if (table["variable"] == variable).any()
    ]
    return Section(heading, [f"{about} One slot is {slot}." if slot else about, *parts], "accuracy")


def measured_rows(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with measurements, markets of several sources apart; raises `InputError` if a column is missing."""
    lacking = [column for column in ERROR_COLUMNS if column not in accuracy.columns]
    if lacking:
        raise InputError(f"accuracy table without {', '.join(lacking)}", expected=", ".join(ERROR_COLUMNS))
    return _apart(accuracy)


def _apart(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Return rows with measurements, as floats, with markets of several sources named ``market@source``."""
    accuracy = accuracy.reset_index(drop=True)
    numbers = accuracy[list(ERROR_COLUMNS[4:])].astype(float)
    scale = accuracy["scale"].astype(float) if "scale" in accuracy.columns else 1.0
    kept = [name for name in ("day", *COMMON) if name in accuracy.columns]
    table = accuracy[[*ERROR_COLUMNS[:4], *kept]].join(numbers).assign(scale=scale)
    table = table if "day" in kept else table.assign(day=0)
    if "source" in accuracy.columns:
        several = accuracy.groupby("market")["source"].transform("nunique") > 1
        named = accuracy["market"].astype(str) + "@" + accuracy["source"].astype(str)
        table["market"] = table["market"].where(~several, named)
    return table[table["n"] > 0]


def model_names(models: pd.Series) -> list[str]:
    """Return the models in the order of their line styles: last value first, the others by name."""
    return sorted(set(models.astype(str)), key=lambda name: (name != LAST_VALUE, name))


def pooled(table: pd.DataFrame, *metrics: str) -> list[pd.DataFrame]:
    """Return measures pooled over the markets with all models, each by step (rows) and model (columns) (M6.5)."""
    rows = pooled_scores(shared_scores(table))
    return [rows.pivot(index="step", columns="model", values=metric).astype(float) for metric in metrics]


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableParts:
    """Accuracy of a variable: sentences, charts of error and skill, a table of comparisons, and a note on the pooling."""

    sentences: list[str]
    figures: list[Figure]
    rows: list[dict[str, Any]]
    columns: dict[str, str]
    note: str


def variable_blocks(table: pd.DataFrame, variable: str, names: Sequence[str]) -> list[Block]:
    """Return sentences, the table of comparisons and charts of a variable."""
    parts = variable_parts(table, variable, names)
    if not parts.figures:
        return [parts.note]
    return [
        *parts.sentences,
        Table("Compared with last value, by pinball loss and slots ahead", parts.rows, dict(parts.columns)),
        Figures(parts.figures),
        parts.note,
    ]


def variable_parts(table: pd.DataFrame, variable: str, names: Sequence[str]) -> VariableParts:
    """Return sentences, comparisons and charts of a variable, over the markets where every model was measured."""
    (mae,) = pooled(table, "mae")
    note = _pooling_note(table)
    if mae.empty:
        return VariableParts(sentences=[], figures=[], rows=[], columns={}, note=note)
    errors = errors_of(with_common(shared_scores(table)))
    skill = pd.DataFrame(errors).pivot(index="step", columns="model", values="skill_pinball").astype(float)
    undefined = nothing_compared(errors)
    figures = [
        step_figure(
            mae, names, label=f"{variable}: mean absolute error", title=f"Mean absolute error, {UNITS[variable]}"
        ),
        step_figure(
            skill.drop(columns=LAST_VALUE, errors="ignore"), names, skill=True, label=f"{variable}: pinball skill",
            title="Pinball skill over last value (above 0 is better)", why=undefined,
        ),
    ]  # fmt: skip
    steps = shown_steps(mae.index)
    rows = [
        {
            "model": name,
            "n": max(row["n"] for row in own),
            "days": max(row["days"] for row in own),
            **{f"step_{row['step']}": compared(row) for row in own if row["step"] in steps},
        }
        for name in names
        if name != LAST_VALUE and (own := [row for row in errors if row["model"] == name])
    ]
    return VariableParts(
        sentences=comparison_sentences(errors, variable),
        figures=figures,
        rows=rows,
        columns={
            "model": "Model",
            "n": "Forecasts",
            "days": "Days",
            **{f"step_{step}": str(step) for step in steps},
        },
        note=note,
    )


def shown_steps(steps: Iterable[int]) -> list[int]:
    """Return `STEPS` among ``steps``, and the last step."""
    found = sorted({int(step) for step in steps})
    return [step for step in found if step in STEPS or step == found[-1]]


def step_figure(
    table: pd.DataFrame,
    names: Sequence[str],
    *,
    label: str,
    title: str,
    why: str = UNMEASURED,
    skill: bool = False,
) -> Figure:
    """Return the chart of a measure by lead time, one line per model.

    The axis is scaled to the relevant models, and a caption names lines beyond it. A ``skill`` is
    drawn relative to 0, the skill of last value, an error from 0 upwards.
    """
    models = [str(model) for model in names if model in table.columns]
    series = {model: table[model].tolist() for model in models}
    low, high = (skill_floor(series), None) if skill else (None, error_ceiling(series, LAST_VALUE))
    worst = min((value for values in series.values() for value in values if np.isfinite(value)), default=0.0)
    rows = [
        {"x": step, "y": value, "series": model}
        for model in models
        for step, value in table[model].dropna().items()
    ]
    spec = lines(
        rows, models, order=names, reference=LAST_VALUE, rule=0.0 if skill else None,
        x=Axis(title="slots ahead", whole=True, zero=False), height=190,
        y=Axis(low=None if low is None else max(low, min(worst, -0.05)), high=high),
    )  # fmt: skip
    cut = cut_told(series, low if skill else high, above=not skill)
    return Figure(specs=[spec], label=label, title=title, captions=[cut] if cut else [], width=0, why=why)


def _pooling_note(table: pd.DataFrame) -> str:
    among, markets = table["market"].nunique(), shared_scores(table)["market"].nunique()
    if not markets:
        return (
            "No market was measured with every model, so errors cannot be pooled; see the table per market."
        )
    note = (
        f"Pooled over {plural(markets, 'market')}: errors in units, every forecast counting the same, skills in units "
        "of each market's capacity or mean price."
    )
    if among > markets:
        note += f" Left out: {plural(among - markets, 'market')} where not every model was measured."
    return note


def comparison_sentences(errors: Sequence[Mapping[str, Any]], variable: str) -> list[str]:
    """Return which models are better than, equal to or worse than last value, and at which lead times.

    ``errors`` are as from `errors_of`.
    """
    if not any(row["model"] == LAST_VALUE for row in errors):
        return [f"Last value was not measured on the {variable}, so nothing can be compared with it."]
    others = [row for row in errors if row["model"] != LAST_VALUE]
    if not others:
        return []
    if all(row["verdict"] == TOO_FEW for row in others):
        return [nothing_compared(others)]
    by_words: dict[str, list[str]] = {}
    for name in model_names(pd.Series([row["model"] for row in others])):
        by_words.setdefault(steps_compared([row for row in others if row["model"] == name]), []).append(name)
    return [f"{'; '.join(f'{listed(models)}: {words}' for words, models in by_words.items())}."]


def market_rows(table: pd.DataFrame) -> list[dict[str, str]]:
    """Return errors by market, variable and model over all lead times, weighted by the number of forecasts, as texts."""
    keys = ["market", "variable", "model"]
    steps = table.groupby(keys)["step"]
    means = _weighted(table, keys, ["mae", "pinball", "mase", "coverage_80", "brier", "fallback_share"])
    means["mae_first"] = _weighted(table[table["step"] == steps.transform("min")], keys, ["mae"])["mae"]
    means["mae_last"] = _weighted(table[table["step"] == steps.transform("max")], keys, ["mae"])["mae"]
    means["n"] = table.groupby(keys)["n"].sum()
    found = skills_by_block(scaled_losses(with_common(table)), keys)
    means["compared"] = [compared(row) for row in found.reindex(means.index).to_dict("records")]
    rows = [
        {
            "market": str(row["market"]), "variable": str(row["variable"]), "model": str(row["model"]),
            "n": f"{int(row['n']):,}", "mae_first": significant(row["mae_first"]),
            "mae_last": significant(row["mae_last"]), "mase": number(row["mase"]),
            "skill_pinball": row["compared"],
            "coverage_80": percent(row["coverage_80"]), "brier": number(row["brier"], 3),
            "fallback_share": percent(row["fallback_share"]),
        }
        for row in means.reset_index().to_dict("records")
    ]  # fmt: skip
    return sorted(
        rows, key=lambda r: (r["market"], r["variable"] != "price", r["model"] != LAST_VALUE, r["model"])
    )


def _weighted(table: pd.DataFrame, keys: list[str], metrics: list[str]) -> pd.DataFrame:
    """Return means of ``metrics`` by ``keys``, weighted by ``n``; rows without a value are ignored, NaN if there are none."""
    by = [table[key] for key in keys]
    sums = table[metrics].mul(table["n"], axis=0).groupby(by).sum()
    n = table[metrics].notna().mul(table["n"], axis=0).groupby(by).sum()
    return sums / n.where(n > 0)


#: Rows of the leaderboard, lines in the chart of weights, and changes of the leader shown unfolded.
TOP_POLICIES, TOP_WEIGHTS, TOP_CHANGES = 15, 8, 8


def policies_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    """Return the section with the leaderboard: the best `TOP_POLICIES`, all baselines, and the chart of their costs."""
    heading = "Policies: what each would have made of the jobs that ended"
    if not rows:
        return Section(heading, ["No job has ended yet, so no policy has a record."], "policies")
    top, rest = ranked(rows)
    told = (
        f"{board_summary([*top, *rest])} Every policy is replayed on every job that ended, with the forecasts issued then; "
        '"on time, reported" counts the jobs that a policy decided and whose outcome was reported; '
        "hindsight is what the job would have cost, had the future been known."
    )
    blocks: list[Block] = [told, costs_figure(top), _board("The best policies and the baselines", top)]
    if rest:
        blocks.append(f"{len(rest)} more: `slackwater leaderboard --json` has all policies.")
    return Section(heading, blocks, "policies")


def movers_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    """Return the section of the multi-market policies on multi-market jobs, with separate weights."""
    places = [{**row, "rank": place + 1} for place, row in enumerate(rows)]
    told = (
        "Jobs that may move are replayed over all their markets, by every mover. "
        + board_summary(places)
        + f" {BEST_MARKET} is a bound: which market that is was not known."
    )
    return Section(
        "Movers: what each would have made of the jobs that may move",
        [told, costs_figure(places), _board("Movers", places)],
        "movers",
    )


def ranked(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return rows with their rank, best first: those that are shown, and the others."""
    order = sorted(
        folded_board(rows), key=lambda row: (-_value(row, "mean_utility", -np.inf), str(row.get("policy")))
    )
    views = [{**row, "rank": place + 1, "on_time": row.get("on_time", row.get("on_time_share"))}
             for place, row in enumerate(order)]  # fmt: skip
    top = [
        row for row in views if row["rank"] <= TOP_POLICIES or is_baseline(row) or row.get("reported_jobs")
    ]
    return top, [row for row in views if row not in top]


def is_baseline(row: Mapping[str, Any]) -> bool:
    """Return whether a row of the leaderboard is that of a baseline."""
    return row.get("policy") in BASELINES


def _board(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    columns: dict[str, Column | str] = {"policy": "policy", "rank": "rank"}
    return Table(title, board_rows(rows), columns | columns_of(BOARD_SHOWN), marked=is_baseline, cards=True)


def costs_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Return a dot chart of the cost of a job by policy, in the order of ``rows``; baselines are squares, hindsight is a line.

    The axis is scaled to the policies other than baselines; a cost far above them is drawn at the
    right edge with its number. A policy that is not always in time shows its share of jobs in time:
    an unfinished job can be cheap.
    """
    rows = [row for row in rows if np.isfinite(_value(row, "mean_cost_usd"))]
    costs = np.array([_value(row, "mean_cost_usd") for row in rows])
    bound = common_hindsight(rows)
    baseline = np.array([is_baseline(row) for row in rows])
    high_low = (0.0, -1.0) if not rows else utility_range(-costs, baseline, None if bound is None else -bound)
    low, high = (max(0.0, float(f"{-end:.5g}")) for end in high_low[::-1])  # rounded as in a chart
    points = [
        {
            "label": _timely(row),
            "value": min(cost, high),
            "kind": "baseline" if is_baseline(row) else "policy",
            "beyond": usd(cost) if cost > high else None,
        }
        for row, cost in zip(rows, costs.tolist(), strict=True)
    ]
    spec = dots(
        points, [point["label"] for point in points], x=Axis(title="cost of a job, USD", low=low, high=high),
        bound=bound, kinds={"policy": "series1", "baseline": "on-demand"},
    )  # fmt: skip
    line = "" if bound is None else f" The dashed green line is hindsight, {usd(bound)} USD."
    alone = [_value(row, "mean_cost_usd") + _value(row, "mean_saved_usd") for row in rows[:1]]
    beside = f" On-demand only costs {usd(alone[0])} USD." if alone and np.isfinite(alone[0]) else ""
    return Figure(
        specs=[spec], label="Cost of a job by policy", title="Cost of a job, USD", width=620,
        captions=[
            f"Further left is better; squares are baselines.{line}{beside} The axis does not start at 0; the number of a policy "
            "beyond it stands at its edge."
        ],
    )  # fmt: skip


def _timely(row: Mapping[str, Any]) -> str:
    """Return a policy's name, with its share of jobs in time unless that is 100 %."""
    on_time = as_number(row.get("on_time"))
    name = text(row.get("policy"))
    if on_time is None or on_time >= 1.0:
        return name
    return f"{name}, on time {percent(on_time)}" if on_time > 0.0 else f"{name}, late"


def utility_range(utility: np.ndarray, baseline: np.ndarray, bound: float | None) -> tuple[float, float]:
    """Return the ends of an axis of utilities, or of negative costs.

    With d the distance between the worst non-baseline and the best value (or hindsight), values
    more than d below that worst non-baseline are outside the axis.
    """
    competing = utility[~baseline] if (~baseline).any() else utility
    high = float(utility.max()) if bound is None else max(float(utility.max()), bound)
    reach = high - float(competing.min())
    low = float(utility[utility >= competing.min() - reach].min())
    margin = 0.06 * (high - low) or 0.05
    return low - margin, high + margin


def _value(row: Mapping[str, Any], key: str, default: float = float("nan")) -> float:
    value = as_number(row.get(key))
    return default if value is None else value


def common_hindsight(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the hindsight cost of a job if it is known and all policies were scored on the same jobs (else it differs)."""
    known = [_value(row, "mean_hindsight_usd") for row in rows]
    alike = all(abs(cost - known[0]) < 0.005 for cost in known)  # False if a cost is NaN
    return known[0] if known and alike else None


def board_summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the best policy with its cost, and the costs of the baselines; ``rows`` are those of `ranked`."""
    best = min(rows, key=lambda row: row["rank"])
    share = best.get("saved_share")
    sentence = f"{text(best.get('policy'))} is best: {usd(best.get('mean_cost_usd'))} USD a job" + (
        "" if missing(share) else f", {percent(share)} less than on-demand only"
    )
    others = [
        f"{row['policy']} {usd(row.get('mean_cost_usd'))} USD (rank {row['rank']})"
        for row in rows
        if is_baseline(row) and row is not best
    ]
    return sentence + (f"; the baselines: {listed(others)}." if others else ".")


def weights_section(weights: pd.DataFrame, round_jobs: Sequence[str]) -> Section:
    """Return the section with the chart of the weights, and every change of the leader with the job that caused it.

    Raises `InputError` if the number of jobs differs from the number of rounds.
    """
    heading = "Trust in the policies over time"
    if weights.empty:
        none = "No round of selection yet: all policies are trusted alike until the first job ends."
        return Section(heading, [none], "weights")
    if len(round_jobs) != len(weights):
        raise InputError(
            f"{len(round_jobs)} round jobs for {len(weights)} rounds of weights", expected="one a round"
        )
    values, names = weights.to_numpy(dtype=float), [str(column) for column in weights.columns]
    leaders = leaders_of(values)
    told = changes_told(names, leaders, round_jobs)
    blocks: list[Block] = [
        weights_summary(names, values, leaders)
        + " After each job that ends, every policy is replayed on it, and weight moves to those that did better.",
        weights_figure(names, values, leaders),
    ]
    if told:
        blocks += [
            "Changes of the leader, numbered as in the drawing:",
            Notes(told[:TOP_CHANGES], ordered=True),
        ]
    else:
        blocks.append("The leader has not changed.")
    if told[TOP_CHANGES:]:
        more = Notes(told[TOP_CHANGES:], ordered=True, start=TOP_CHANGES + 1)
        blocks.append(Fold(f"{len(told) - TOP_CHANGES} later changes", [more]))
    return Section(heading, blocks, "weights")


def changes_told(names: Sequence[str], leaders: Sequence[int], round_jobs: Sequence[str]) -> list[str]:
    """Return every change of the leader, with the job that caused it."""
    return [
        f"round {k + 1} ({round_jobs[k]}): {names[leaders[k]]} takes the lead from {names[leaders[k - 1]]}"
        for k in changes_of(leaders)
    ]


def changes_of(leaders: Sequence[int]) -> list[int]:
    """Return the rounds (from 0) after which the leader is another policy than before."""
    return [k for k in range(1, len(leaders)) if leaders[k] != leaders[k - 1] and leaders[k - 1] >= 0]


def weights_figure(names: Sequence[str], values: np.ndarray, leaders: Sequence[int]) -> Figure:
    """Return the chart of weights in percent over rounds, with the sum of all other policies in a separate chart above.

    It is separate because at first nearly all weight is in it, and the lines would coincide with
    the axis.
    """
    drawn = shown_policies(values, leaders)
    labels = {j: f"{names[j]} ({percent(values[-1, j])})" for j in drawn}
    rounds = np.arange(1, len(values) + 1)
    rows = [
        {"x": int(k), "y": 100 * value, "series": labels[j]}
        for j in drawn
        for k, value in zip(rounds, values[:, j], strict=True)
    ]
    marks = [{"x": k + 1, "text": str(i + 1)} for i, k in enumerate(changes_of(leaders)[:TOP_CHANGES])]
    axis = Axis(title="round (one job that ended)", whole=True, low=1, high=len(values), ticks=12)
    specs = [
        lines(
            rows,
            list(labels.values()),
            x=axis,
            y=Axis(title="weight, %"),
            marks=marks,
            points=len(values) < 30,
            height=200,
        )
    ]
    if len(drawn) < len(names):
        rest = 100 * np.delete(values, drawn, axis=1).sum(axis=1)
        shared = [{"x": int(k), "y": value} for k, value in zip(rounds, rest, strict=True)]
        title = Axis(title="all other policies together, %", low=0, high=100, ticks=2)
        specs.insert(0, area(shared, x=Axis(whole=True, low=1, high=len(values)), y=title))
    return Figure(specs=specs, label="Weights of policies over rounds")


def leaders_of(values: np.ndarray) -> list[int]:
    """Return the column of the leader after each round, -1 while all weights tie. ``values``: shape (rounds, policies).

    In a tie the current leader stays.
    """
    leaders, current = [], -1
    for row in values:
        best = float(row.max())
        ahead = np.flatnonzero(row >= best - 1e-12)
        if ahead.size < row.size or row.size == 1:
            current = current if current in ahead else int(ahead[0])
        leaders.append(current)
    return leaders


def shown_policies(values: np.ndarray, leaders: Sequence[int]) -> list[int]:
    """Return the columns of the policies drawn as lines, at most `TOP_WEIGHTS`.

    They are the latest leaders, then those with the most weight in the last round.
    """
    led = [j for j in dict.fromkeys(reversed(leaders)) if j >= 0][: TOP_WEIGHTS // 2]
    heaviest = [int(j) for j in np.argsort(-values[-1], kind="stable")]
    chosen = list(dict.fromkeys(led + heaviest))[:TOP_WEIGHTS]
    return sorted(chosen, key=heaviest.index)


def weights_summary(names: Sequence[str], values: np.ndarray, leaders: Sequence[int]) -> str:
    """Return the leader with its weight, and how often the leader changed."""
    changes = len(changes_of(leaders))
    rounds = plural(len(leaders), "round")
    if leaders[-1] < 0:
        return f"After {rounds} all policies weigh the same: there is no leader yet."
    weight = percent(values[-1, leaders[-1]])
    changed = (
        "never changed" if changes == 0 else "changed once" if changes == 1 else f"changed {changes} times"
    )
    return f"After {rounds} {names[leaders[-1]]} leads with {weight} of the weight; the leader {changed}."
