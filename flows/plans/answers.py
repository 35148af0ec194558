"""Results of the commands ``forecast``, ``plan`` and ``replay`` as plain values, without the workflow engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.following import FollowedMarket, choose_markets, step_of, why_not_followed
from slackwater.flows.ledger.fields import chance, saving
from slackwater.flows.ledger.rounds import outcome_values
from slackwater.flows.places import market_of, placed_in
from slackwater.flows.plans.decisions import opened_to_decide
from slackwater.flows.query import NamedJob
from slackwater.flows.show.blocks import Column
from slackwater.flows.show.formats import first_of, number, price, rows_of, usd, utc
from slackwater.flows.turn.context import Turn
from slackwater.flows.turn.forecast import forecasts_of, ready
from slackwater.flows.turn.opening import read_records
from slackwater.flows.turn.pool import policies_named
from slackwater.flows.turn.results import Results, write
from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.job.definition import check_job
from slackwater.optimization.job.request import JobRequest, check_slots, first_slot
from slackwater.optimization.job.units import works_words
from slackwater.optimization.moving.decision import ranked_markets
from slackwater.optimization.replay.score import EndedJob, ScoredJob, perfect_forecasts, score_job
from slackwater.warehouse.errors import MarketError

if TYPE_CHECKING:
    from slackwater.optimization.job.definition import Allocation
    from slackwater.optimization.market.window import MarketWindow

PERFECT = "perfect"  # Name of the forecaster with perfect foresight: a bound, not a policy


def issue_forecasts(
    turn: Turn, market: str | None, models: Sequence[str], *, horizon: int | None
) -> list[tuple[FollowedMarket, Forecast, bool]]:
    """Issue and store forecasts by ``models`` for one market, or for all followed markets.

    Returns for each forecast the market, the forecast, and whether the availability was observed.
    Where it was not, the count forecast is meaningless.
    """
    markets = _queried_markets(turn, market)
    histories, prepared = ready(turn, {followed: [followed.at] for followed in markets}, models)
    result = [
        (followed, forecast, histories[followed].availability_observed)
        for followed in markets
        for forecast in forecasts_of(
            histories[followed], prepared.batches[followed], settings=turn.settings, horizon=horizon
        )
    ]
    write(
        turn.store,
        Results(
            unreadable=prepared.unreadable,
            estimates=prepared.estimates,
            forecasts=tuple((followed.source, (forecast,)) for followed, forecast, _ in result),
        ),
    )
    return result


MOST_UNFOLLOWED = 3  # Number of unfollowed markets that an error message lists with the reason


def _queried_markets(turn: Turn, market: str | None) -> list[FollowedMarket]:
    if market is not None:
        return [market_of(turn, market)]
    chosen = [followed for followed, _, _ in choose_markets(turn, most=turn.settings.max_markets)]
    if not chosen:
        raise MarketError(
            f"no market is followed: {_unfollowed_words(turn)}",
            expected="counts of instances at least once a slot for three days",
            remedy="name a market with --market; `slackwater markets` lists them",
        )
    return chosen


def _unfollowed_words(turn: Turn) -> str:
    """Return the first `MOST_UNFOLLOWED` unfollowed markets and the reasons, as text."""
    reasons = why_not_followed(turn, most=turn.settings.max_markets)
    words = (f"{market}: {reason}" for market, reason in reasons.items())
    return "; ".join(first_of(words, MOST_UNFOLLOWED, "and {:,} more"))


def forecast_row(followed: FollowedMarket, forecast: Forecast, availability_observed: bool) -> dict[str, Any]:
    """Return a forecast as plain values, without counts where availability was not observed."""
    frame = forecast.frame.drop(columns=["fallback"])
    numbers = frame.select_dtypes("float").columns
    frame[numbers] = frame[numbers].round(6)
    own = frame["variable"]
    slots = frame.drop(columns=["variable"])
    return {
        "market": followed.market.key,
        "source": followed.source,
        "model": forecast.predictor,
        "issued_at": forecast.issued_at,
        "newest_row": forecast.newest_row,
        "step_minutes": forecast.step / pd.Timedelta(minutes=1),
        "fallback": forecast.fallback,
        "count": rows_of(slots[own == "count"]) if availability_observed else [],
        "price": rows_of(slots[own == "price"]),
    }


#: Columns of `ranked_rows`.
RANKED_COLUMNS: dict[str, Column | str] = {
    "market": "market", "on_demand": "on-demand", "spot": "spot",
    "dearer_usd": Column(heading="extra cost", unit="$", format=number),
    "move_usd": Column(heading="move", unit="$", format=usd), "price_usd": Column(heading="spot price", unit="$", format=price),
    "on_demand_usd": Column(heading="on-demand price", unit="$", format=price),
    "chance_of_spot": Column(heading="chance of spot next slot", format=chance), "reason": "reason",
}  # fmt: skip


def ranked_rows(turn: Turn, named: NamedJob) -> list[dict[str, Any]]:
    """Return the markets of a job as plain values, in increasing order of expected total cost.

    Each market is rated by the expected cost of the whole job if it runs there in the next slot.
    Raises as `opened_to_decide` does.
    """
    job = opened_to_decide(turn, named)
    return [
        {
            "market": job.places[market.market],
            "source": job.histories[market.market].source,
            "on_demand": market.allocation.on_demand,
            "spot": market.allocation.spot,
            "dearer_usd": market.dearer_usd,
            "move_usd": market.move_usd,
            "price_usd": market.price_usd,
            "available": market.available,
            "on_demand_usd": market.on_demand_usd,
            "chance_of_spot": market.chance,
            "reason": market.reason,
        }
        for market in ranked_markets(job.live)
    ]


def replay_answer(
    turn: Turn,
    job: JobRequest,
    *,
    market: str | None,
    policy: str,
    start: pd.Timestamp | None,
    model: str | None,
) -> list[dict[str, Any]]:
    """Simulate one policy, or ``all``, for a job on the records of its markets; rows by descending utility.

    ``market`` is as in `placed_in`. Raises `MarketError` if the job starts after the records, ends
    before they begin, or is not covered by them, and `PolicyError` for an unknown policy.
    """
    planner = model or turn.settings.planner
    request, places = placed_in(turn, job, market=market)
    policies = policies_named(turn, request, [policy])
    placed = _placed_in_record(job, places[0], start, turn.settings)
    first = first_slot(placed, step_of(turn.settings))
    if first > places[0].at:
        raise MarketError(
            f"job {placed.name!r} starts at {first}, the record of {places[0].key} ends at {places[0].at}",
            expected="a start within the record",
            remedy="choose an earlier --from",
        )
    _require_record(turn, placed, places)
    # A multi-market job has no home unless one is given.
    placed = placed.model_copy(update={"market": request.market, "source": request.source})
    ended = _with_forecasts(turn, placed, places, planner)
    if policy != "OD-only":
        check_job(ended.run, uses_spot=True)
    scored = score_job(ended, policies, with_bounds=policy == "all")
    best_first = sorted(range(len(scored.outcomes)), key=lambda i: -scored.outcomes[i].utility_usd)
    return [replayed_row(scored, i, placed, places, planner) for i in best_first]


def _require_record(turn: Turn, placed: JobRequest, places: Sequence[FollowedMarket]) -> None:
    """Raise `MarketError` where a placed request ends before the records of its markets begin."""
    keys = {place.key for place in places}
    begun = [
        pd.Timestamp(row["first_observed"])
        for row in turn.market_rows()
        if f"{row['market']}@{row['source']}" in keys
    ]
    if begun and placed.ends <= min(begun):
        raise MarketError(
            f"job {placed.name!r} runs from {utc(placed.starts)} to {utc(placed.ends)}, "
            f"the record of {places[0].key} begins at {utc(min(begun))}",
            expected="a start within the record",
            remedy="choose a later --from",
        )


def _placed_in_record(
    request: JobRequest, followed: FollowedMarket, start: pd.Timestamp | None, settings: Settings
) -> JobRequest:
    """Return the request placed at ``start``, else at its own start, else so that it ends with the record."""
    step = step_of(settings)
    if start is None and request.start is None:
        trial = request.with_place(at=followed.at, market=followed.market.key, source=followed.source)
        start = followed.at + step - (trial.ends - trial.starts)
        start = start.ceil(step)
    if start is not None:
        request = request.model_copy(update={"start": start.to_pydatetime()})
    return request.with_place(at=followed.at, market=followed.market.key, source=followed.source)


def _with_forecasts(
    turn: Turn, request: JobRequest, places: Sequence[FollowedMarket], planner: str
) -> EndedJob:
    """Return the ended job on the records of its markets, with the forecasts that would have been issued in its slots."""
    step = step_of(turn.settings)
    first = first_slot(request, step)
    for place in places:
        turn.say(f"replay: {place.key}")
    grid = list(pd.date_range(first, periods=check_slots(request, step), freq=step))
    issued_by = None if planner == PERFECT else planner
    ended = read_records(turn, dict.fromkeys(places, grid), planner=issued_by).ended_job(request, first)
    if issued_by is not None:
        return ended
    horizon = turn.settings.planning_horizon
    cases = [replace(case, forecasts=perfect_forecasts(case.window, horizon)) for case in ended.cases]
    return replace(ended, cases=tuple(cases))


def replayed_row(
    scored: ScoredJob, i: int, request: JobRequest, places: Sequence[FollowedMarket], planner: str
) -> dict[str, Any]:
    """Return a simulated policy as plain values: cost, utility, finish, hindsight bracket, and its instances by slot.

    ``market`` and ``source`` are those of the home of the job, or of the first of its markets where
    it has no home. For jobs with a hard deadline, figures that depend on the imputed value are
    None, as in `outcomes_of`.
    """
    ended, outcome, row = scored.ended, scored.outcomes[i], scored.ledger[i]
    run, step, windows = ended.run, pd.Timedelta(hours=ended.slot_hours), ended.windows
    valued = not run.must_finish
    values = outcome_values(outcome, ended.start, step, valued=valued, observed=ended.availability_observed)
    alone = row.on_demand_only_usd if scored.on_demand_known else None
    gpus = {own.gpus for own in ended.job.runs}
    found: dict[str, Any] = {
        "job": run.name,
        "market": places[0].market.key,
        "source": places[0].source,
        **values,
        "policy": outcome.policy.replace("market 0", "its home"),
        "forecaster": planner,
        "from": ended.start,
        "deadline": ended.start + run.deadline_slots * step,
        "deadline_slots": run.deadline_slots,
        "gpus_per_instance": gpus.pop() if len(gpus) == 1 else None,
        "work": works_words(
            request, [(own, place.market) for own, place in zip(ended.job.runs, places, strict=True)]
        ),
        "value_usd": outcome.value_usd if valued else None,
        "utility": row.utility if valued else None,
        "finish_slots": outcome.finish_slots,
        "on_demand_only_usd": alone,
        **saving(outcome.total_cost_usd, alone, is_finished=values["finish"] is not None),
        "hindsight": {
            "low": scored.hindsight_low if valued else None,
            "high": scored.hindsight_high if valued else None,
            "cost_usd": scored.hindsight_usd,
        },
        "gap_to_hindsight": row.gap_to_hindsight,
        "must_finish": run.must_finish,
        "gaps": int(sum(np.count_nonzero(~window.observed) for window in windows)),
        "synthetic": list(ended.assumptions),
        "allocations": [],
    }
    moves = outcome.places is not None
    for t, held in enumerate(outcome.allocations):
        m = outcome.places[t] if outcome.places is not None else 0
        own = held_in(None if m is None else windows[m], t, ended.start + t * step, held)
        place = {"market": None if m is None else ended.names[m]} if moves else {}
        found["allocations"].append(own | place)
    if moves:
        found |= {"synthetic": sorted(ended.assumptions), "markets": list(ended.names)}
        found |= {"moves": outcome.moves, "moving_usd": outcome.moving_usd}
    return found


def held_in(window: MarketWindow | None, t: int, at: pd.Timestamp, held: Allocation) -> dict[str, Any]:
    """Return the instances held in the slot at ``at``, with its price and count; ``window`` None: no instances."""
    seen = window is not None and bool(window.observed[t])
    return {
        "slot": at,
        "on_demand": held.on_demand,
        "spot": held.spot,
        "price_usd": float((window.price if window.quoted is None else window.quoted)[t])
        if window is not None and seen
        else None,
        "available": int(window.available[t])
        if window is not None and seen and window.availability_observed
        else None,
    }
