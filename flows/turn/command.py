"""What ``forecast``, ``plan``, ``replay`` and ``report`` do; none of them starts the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flows.clock import parse_time
from flows.command.answer import print_json, print_table, say_to_stderr
from flows.command.context import BOARD_COLUMNS, DECISION_COLUMNS, logical_time, warehouse_for
from flows.config import Settings, read_settings
from flows.delivery.document import document
from flows.jobs.file import JobRequest, first_slot, read_request
from flows.jobs.record import PeerReader, record_start
from flows.jobs.reports import Report, every_report
from flows.ledger.records import allocations_of, decisions_of, find_job
from flows.turn.context import Turn, staged
from flows.turn.decide import decide, open_job
from flows.turn.estimate import Prepared, prepare, timetable_of
from flows.turn.forecast import forecasts_of
from flows.turn.markets import Followed, choose_markets, find_market, read_histories, read_history, step_of
from flows.turn.score import EndedJob, Scored, ended_job, job_slots, score_job
from flows.turn.whole import deciding_policy
from flows.turn.work import panel_mates, pool_of
from forecasting.forecast import Forecast
from forecasting.origins.timetable import is_pooled
from forecasting.predictors import make_predictor
from optimization.job.termination import check_job
from optimization.policies.pool import policy_named
from optimization.replay.ledger import perfect_forecasts
from warehouse.errors import JobError, MarketError
from warehouse.history import History
from warehouse.issued.vintages import write_forecasts
from warehouse.store.connection import Store

SHOWN_STEPS = (1, 2, 4, 8, 12, 24, 48)


def forecast_command(
    *,
    market: str | None,
    model: str | None,
    horizon: int | None,
    data: Path | None,
    db: Path,
    at: str | None,
    settings: Path | None,
    as_json: bool,
) -> None:
    """``slackwater forecast``: issue forecasts at a time and keep them."""
    chosen = read_settings(settings)
    models = [model] if model else list(dict.fromkeys([*chosen.models, chosen.planner]))
    made: list[tuple[Followed, Forecast]] = []
    with warehouse_for(db, data, say=say_to_stderr, write=True) as store:
        when, own_end = logical_time(store, at)
        turn = Turn(
            store=store, at=when, settings=chosen, run_id="forecast", own_end=own_end, say=say_to_stderr
        )
        asked = _asked_markets(turn, market)
        histories, prepared = ready(turn, {followed: [followed.at] for followed in asked}, models)
        for followed in asked:
            batches = prepared.batches[followed]
            forecasts = forecasts_of(histories[followed], batches, settings=chosen, horizon=horizon)
            made += [(followed, forecast) for forecast in forecasts]
        with store.transaction():
            prepared.save(store)
            for followed, forecast in made:
                write_forecasts(store, [forecast], source=followed.source)
    if as_json:
        print_json({"forecasts": [forecast_row(followed, forecast) for followed, forecast in made]})
        return
    for followed, forecast in made:
        label = f" (fallback: {forecast.fallback})" if forecast.fallback else ""
        print_table(
            f"{followed.key} by {forecast.predictor} at {forecast.issued_at:%Y-%m-%d %H:%M} UTC{label}",
            _shown_steps(forecast),
            {
                "step": "slots ahead",
                "slot": "slot",
                "price": "price $",
                "price_80": "80 %",
                "count": "count",
                "count_80": "80 %",
            },
        )


def _asked_markets(turn: Turn, market: str | None) -> list[Followed]:
    if market is not None:
        return [find_market(turn.store, market, at=turn.at, settings=turn.settings, own_end=turn.own_end)]
    return [followed for followed, _, _ in choose_markets(turn, most=turn.settings.max_markets)]


def ready(
    turn: Turn, origins: Mapping[Followed, Sequence[pd.Timestamp]], models: Sequence[str]
) -> tuple[dict[Followed, History], Prepared]:
    """What forecasts of some markets at ascending origins need, with the other followed markets of their sources beside them.

    Also the histories, long enough for the record of a job from the first of the origins on. Nothing is stored.
    """
    sources = {followed.source for followed in origins}
    together = any(is_pooled(make_predictor(model)) for model in models)
    mates = panel_mates(turn, origins) if together else []
    first = {
        source: min(own[0] for one, own in origins.items() if one.source == source) for source in sources
    }
    timetable = timetable_of(turn.settings)
    starts = {one: timetable.start(first[one.source]) for one in (*origins, *mates)}
    starts |= {one: min(starts[one], record_start(own[0])) for one, own in origins.items()}
    histories = read_histories(turn.store, starts, settings=turn.settings)
    missing = {one: {model: list(own) for model in models} for one, own in origins.items()}
    return histories, staged(prepare(turn, histories, missing), turn.fan)


def forecast_row(followed: Followed, forecast: Forecast) -> dict[str, Any]:
    """A forecast as plain values."""
    frame = forecast.frame.drop(columns=["fallback"])
    numbers = frame.select_dtypes("float").columns
    frame[numbers] = frame[numbers].round(6)
    tables = {
        str(variable): table.drop(columns=["variable"]).to_dict("records")
        for variable, table in frame.groupby("variable", sort=True)
    }
    return {
        "market": followed.market.key,
        "source": followed.source,
        "model": forecast.predictor,
        "issued_at": forecast.issued_at,
        "newest_row": forecast.newest_row,
        "step_minutes": forecast.step / pd.Timedelta(minutes=1),
        "fallback": forecast.fallback,
        **tables,
    }


def _shown_steps(forecast: Forecast) -> list[dict[str, Any]]:
    rows = []
    for step in SHOWN_STEPS:
        if step <= forecast.horizon:
            price, count = forecast.price[step - 1], forecast.count[step - 1]
            rows.append(
                {
                    "step": step,
                    "slot": forecast.slots[step - 1].isoformat(),
                    "price": float(price[9]),
                    "price_80": f"{price[1]:.4g} to {price[17]:.4g}",
                    "count": float(count[9]),
                    "count_80": f"{count[1]:.3g} to {count[17]:.3g}",
                }
            )
    return rows


def plan_command(
    job: str,
    *,
    market: str | None,
    policy: str | None,
    data: Path | None,
    db: Path,
    at: str | None,
    settings: Path | None,
    as_json: bool,
) -> None:
    """``slackwater plan``: decide the next slot of one job and print the decision document; stores nothing."""
    chosen = read_settings(settings)
    with warehouse_for(db, data, say=say_to_stderr) as store:
        when, own_end = logical_time(store, at)
        request, decisions, reports = _asked_job(store, job)
        text = _market_text(request, market)
        followed = find_market(store, text, at=when, settings=chosen, own_end=own_end)
        if request.deadline is None or request.start is None:
            request = request.placed(at=followed.at, market=followed.market.key, source=followed.source)
        first = first_slot(request, step_of(chosen))
        if not first <= followed.at < request.ends:
            raise JobError(
                f"job {request.name!r} runs from {first} to {request.deadline}, the market is taken at {followed.at}",
                expected="a time between the two",
                remedy="give --at TIME",
            )
        slots = list(pd.date_range(first, followed.at, freq=step_of(chosen)))
        turn = Turn(
            store=store, at=followed.at, settings=chosen, run_id="plan", own_end=own_end, say=say_to_stderr
        )
        histories, prepared = ready(turn, {followed: slots}, [chosen.planner])
        history = histories[followed]
        forecasts = forecasts_of(history, prepared.batches[followed], settings=chosen)
        by, why = (policy_named(policy), "asked for") if policy else deciding_policy(turn)
        peers = PeerReader(turn=turn, start=record_start(first)).peers_of(followed)
    running = open_job(
        request,
        history,
        decided=allocations_of(decisions),
        forecasts=forecasts,
        peers=peers,
        reports=reports,
    )
    decision = decide(running, by, settings=chosen).row() | {"chosen_because": why}
    if as_json:
        print_json(document(decision))
    else:
        print_table(f"Decision for {decision['slot']}", [decision], DECISION_COLUMNS)


def _asked_job(store: Store, job: str) -> tuple[JobRequest, list[dict[str, Any]], list[Report]]:
    """A job by file or by name, with the decisions made for it and the reports of it."""
    if job.endswith(".toml") or Path(job).exists():
        return read_request(Path(job)), [], []
    return find_job(store, job).request, decisions_of(store, job), every_report(store, [job])


def _market_text(request: JobRequest, market: str | None) -> str:
    if market is not None:
        return market
    if request.market is None:
        raise MarketError(f"job {request.name!r} names no market", remedy="give --market MARKET")
    return f"{request.market}@{request.source}" if request.source else request.market


# ---
# What ``replay`` does: one job, one market, one policy or the whole pool, beside hindsight.

#: The forecaster that is never wrong: a bound, not a policy.
PERFECT = "perfect"
REPLAY_COLUMNS = {
    "policy": "policy", "cost_usd": "cost $", "value_usd": "value $", "utility_usd": "utility $",
    "utility": BOARD_COLUMNS["mean_utility"], "finish": "finish", "on_time": "on time", "spot_share": "spot share",
    "gap_to_hindsight": "gap to hindsight",
}  # fmt: skip


def replay_command(
    job: Path,
    *,
    market: str,
    policy: str,
    start: str | None,
    model: str | None,
    data: Path | None,
    db: Path,
    settings: Path | None,
    as_json: bool,
) -> None:
    """``slackwater replay``: one job, one market, one policy (or the pool), beside hindsight."""
    chosen = read_settings(settings)
    request = read_request(job)
    planner = model or chosen.planner
    with warehouse_for(db, data, say=say_to_stderr) as store:
        when, _ = logical_time(store, None)
        followed = find_market(store, market, at=when, settings=chosen, own_end=True)
        placed = _placed_in_record(request, followed, parse_time(start, "--from") if start else None, chosen)
        step = step_of(chosen)
        first = first_slot(placed, step)
        if first > followed.at:
            raise MarketError(
                f"job {placed.name!r} starts at {first}, the record of {followed.key} ends at {followed.at}",
                expected="a start within the record",
                remedy="choose an earlier --from",
            )
        turn = Turn(store=store, at=when, settings=chosen, run_id="replay", own_end=True, say=say_to_stderr)
        pool = pool_of(turn)
        ended = _with_forecasts(turn, placed, followed, planner)
    policies = pool if policy == "all" else [policy_named(policy)]
    if policy != "OD-only":
        check_job(ended.job, uses_spot=True)
    scored = score_job(ended, policies)
    rows = [replay_row(scored, i, followed, planner, step) for i in range(len(policies))]
    rows.sort(key=lambda row: -row["utility_usd"])
    if as_json:
        print_json(rows[0] if policy != "all" else {"replays": [_short(row) for row in rows]})
        return
    print_replay(rows, scored)


def _placed_in_record(
    request: JobRequest, followed: Followed, start: pd.Timestamp | None, settings: Settings
) -> JobRequest:
    """The request placed at ``start``, else at its own start, else so that its last slot is the record's last."""
    step = step_of(settings)
    if start is None and request.start is None:
        trial = request.placed(at=followed.at, market=followed.market.key, source=followed.source)
        start = followed.at + step - (trial.ends - trial.starts)
        start = start.ceil(step)
    if start is not None:
        request = request.model_copy(update={"start": start.to_pydatetime()})
    return request.placed(at=followed.at, market=followed.market.key, source=followed.source)


def _with_forecasts(turn: Turn, request: JobRequest, followed: Followed, planner: str) -> EndedJob:
    """The ended job with the forecasts that would have been issued in each of its slots."""
    settings, start = turn.settings, record_start(first_slot(request, step_of(turn.settings)))
    history = read_history(turn.store, followed, settings=settings, start=start)
    peers = PeerReader(turn=turn, start=start).peers_of(followed)
    if planner == PERFECT:
        ended = ended_job(request, history, [], peers)
        return replace(ended, forecasts=list(perfect_forecasts(ended.window, settings.planning_horizon)))
    _, grid = job_slots(request, history)
    inside = [slot for slot in grid if slot in history.slots]
    forecasts: list[Forecast] = []
    if inside:
        histories, prepared = ready(turn, {followed: inside}, [planner])
        forecasts = forecasts_of(
            histories[followed],
            prepared.batches[followed],
            settings=settings,
            horizon=settings.planning_horizon,
        )
    return ended_job(request, history, forecasts, peers)


def replay_row(
    scored: Scored, i: int, followed: Followed, planner: str, step: pd.Timedelta
) -> dict[str, Any]:
    """One replay as plain values: cost, utility, finish, allocations, hindsight bracket."""
    ended, outcome, row = scored.ended, scored.outcomes[i], scored.ledger[i]
    finish = None if outcome.finish_slots is None else ended.start + outcome.finish_slots * step
    slots = [
        {
            "slot": ended.start + t * step,
            "on_demand": a.on_demand,
            "spot": a.spot,
            "price_usd": float(ended.window.price[t]) if ended.window.observed[t] else None,
            "available": int(ended.window.available[t]) if ended.window.observed[t] else None,
        }
        for t, a in enumerate(outcome.allocations)
    ]
    return {
        "job": ended.job.name,
        "market": followed.market.key,
        "source": followed.source,
        "policy": outcome.policy,
        "forecaster": planner,
        "from": ended.start,
        "deadline": ended.start + ended.job.deadline_slots * step,
        "deadline_slots": ended.job.deadline_slots,
        "cost_usd": outcome.total_cost_usd,
        "value_usd": outcome.value_usd,
        "utility_usd": outcome.utility_usd,
        "utility": row.utility,
        "finish": finish,
        "finish_slots": outcome.finish_slots,
        "on_time": outcome.on_time,
        "spot_share": outcome.spot_share,
        "on_demand_only_usd": row.on_demand_only_usd,
        "hindsight": {"low": scored.hindsight_low, "high": scored.hindsight_high},
        "gap_to_hindsight": row.gap_to_hindsight,
        "must_finish": ended.job.must_finish,
        "gaps": int(np.count_nonzero(~ended.window.observed)),
        "synthetic": list(ended.assumptions),
        "allocations": slots,
    }


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "allocations"}


def print_replay(rows: Sequence[Mapping[str, Any]], scored: Scored) -> None:
    """The outcome and, for a single policy, the slots."""
    first = rows[0]
    print_table(
        f"{first['job']} on {first['market']} from {first['from']:%Y-%m-%d %H:%M} UTC, {first['deadline_slots']} slots",
        rows[:20],
        REPLAY_COLUMNS,
    )
    bracket = f"{scored.hindsight_low:.4f} to {scored.hindsight_high:.4f} USD"
    print(f"hindsight: {bracket}; on-demand only costs {first['on_demand_only_usd']:.4f} USD")
    for text in first["synthetic"]:
        print(f"synthetic: {text}")
    if len(rows) == 1:
        print_table(
            "Slots",
            first["allocations"],
            {
                "slot": "slot (UTC)",
                "on_demand": "on-demand",
                "spot": "spot",
                "price_usd": "price $",
                "available": "available",
            },
        )
