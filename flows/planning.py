"""What ``forecast``, ``plan``, ``replay`` and ``report`` do; none of them starts the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from flows.advice import document
from flows.allocate import decide, open_job
from flows.commands import DECISION_COLUMNS, logical_time, warehouse_for
from flows.config import read_settings
from flows.fitting import Prepared, prepare, timetable_of
from flows.forecast import forecasts_of
from flows.job_report import Report, every_report
from flows.jobfile import JobRequest, first_slot, read_request
from flows.known_past import PeerReader, record_start
from flows.markets import Followed, choose_markets, find_market, read_histories, step_of
from flows.printing import print_json, print_table, say_to_stderr
from flows.records import allocations_of, decisions_of, find_job
from flows.stages import deciding_policy
from flows.turn import Turn, staged
from flows.work import panel_mates
from forecasting.forecast import Forecast
from forecasting.predictors import make_predictor
from forecasting.schedule import is_pooled
from optimization.pool import policy_named
from warehouse.errors import JobError, MarketError
from warehouse.history import History
from warehouse.store import Store, write_forecasts

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
