"""What ``rent`` answers, as plain values, and what a GPU costs in a followed market (M8, M8.6)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.command.progress import say
from flows.command.session import Session
from flows.renting.file import read_types
from flows.renting.rent import Question, answer_of, market_row
from flows.turn.context import Turn
from flows.turn.forecast import forecasts_of, ready
from flows.turn.markets import find_market
from optimization.renting.budget import JobType
from optimization.renting.price import EffectivePrice, affordable, forecast_outlook, loss_rate
from optimization.renting.simulation import Renting
from warehouse.errors import SettingsError


def market_price(
    market: str,
    budget_usd: float,
    *,
    model: str | None,
    restart_hours: float,
    session: Session,
) -> tuple[dict[str, Any], EffectivePrice]:
    """Facts on a market as plain values, and the effective price of a GPU-hour for the fleet that the budget holds.

    Nothing known after the session's time is read, nothing is stored.
    """
    chosen = session.config
    with session.market_data() as store:
        when, own_end = session.moment(store)
        turn = Turn(store=store, at=when, settings=chosen, run_id="rent", own_end=own_end, say=say)
        followed = find_market(store, market, at=when, settings=chosen, own_end=own_end)
        histories, prepared = ready(turn, {followed: [followed.at]}, [model or chosen.planner])
        history = histories[followed].until(followed.at)
        (forecast,) = forecasts_of(history, prepared.batches[followed], settings=chosen)
    losses = loss_rate(history.available, budget_usd / history.on_demand_usd, slot_hours=history.slot_hours)
    outlook = forecast_outlook(forecast, on_demand_usd=history.on_demand_usd, loss_rate=losses)
    price = affordable(outlook, budget_usd, overhead_hours=restart_hours)
    facts = {
        "market": followed.key,
        "at": forecast.issued_at,
        "forecaster": forecast.predictor,
        "fallback": forecast.fallback,
        "horizon_hours": forecast.horizon * history.slot_hours,
        "losses_per_spot_gpu_hour": losses,
        "assumptions": list(history.assumptions),
    }
    return facts, price


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalRequest:
    """What is rented: the types of jobs, and the budget; ``restart_hours`` are lost whenever a spot instance goes."""

    types: Path
    budget: float
    whole: bool
    price: float | None
    market: str | None
    restart_hours: float
    model: str | None
    runs: Path | None
    seed: int


def rental_answer(asked: RentalRequest, session: Session) -> dict[str, Any]:
    """Widths, baselines and sensitivity for a budget, at a list price or at that of a market."""
    if asked.price is not None and asked.market is not None:
        raise SettingsError("both --price and --market", expected="one of them: a list price, or a market's")
    types, notes = _types(asked)
    market: dict[str, Any] | None = None
    if asked.market is not None:
        market, price = market_price(
            asked.market, asked.budget, model=asked.model, restart_hours=asked.restart_hours, session=session
        )
        answer = answer_of(_question(asked, types, price.paid_usd, price.lost), say)
        market |= market_row(price, asked.restart_hours)
        market["at_list_price"] = _at_list_price(_question(asked, types, price.on_demand_usd, 0.0))
        notes.append(
            "response times include restarts; the frontier holds the price of a GPU at this budget's: a larger fleet gets less spot"
        )
    else:
        answer = answer_of(_question(asked, types, asked.price or 1.0, 0.0), say)
    return answer | {"types_file": str(asked.types), "market": market, "notes": notes}


def _types(asked: RentalRequest) -> tuple[list[JobType], list[str]]:
    if asked.runs is None:
        return read_types(asked.types)
    from forecasting.configurations.runs import read_runs

    return read_types(asked.types, read_runs(asked.runs))


def _question(asked: RentalRequest, types: list[JobType], price: float, lost: float) -> Question:
    """``price`` is what a GPU-hour held costs; ``lost`` is the share by which restarts make jobs longer."""
    if not 0.0 < price < float("inf"):
        raise SettingsError(f"a price of {price} USD per GPU-hour", expected="a positive number")
    slowed = tuple(replace(kind, mean_hours=kind.mean_hours * (1.0 + lost)) for kind in types)
    money = asked.price is not None or asked.market is not None
    return Question(
        renting=Renting(types=slowed, budget=asked.budget, whole=asked.whole, price=price),
        unit="USD per hour" if money else "GPUs",
        seed=asked.seed,
    )


def _at_list_price(question: Question) -> dict[str, Any]:
    """The same budget without spot, or why it is too small."""
    try:
        found = question.renting.rental()
    except SettingsError as error:
        return {"response_hours": None, "loss_per_hour": None, "gpus": None, "note": str(error)}
    return {
        "response_hours": found.response_hours,
        "loss_per_hour": found.loss_per_hour,
        "gpus": found.gpus,
        "note": "",
    }
