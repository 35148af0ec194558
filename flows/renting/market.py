"""What a GPU costs in a followed market: its forecast at a time, and how often spot was lost before (M8.6)."""

from __future__ import annotations

from typing import Any

from flows.command.progress import say
from flows.command.session import Session
from flows.turn.context import Turn
from flows.turn.forecast import forecasts_of, ready
from flows.turn.markets import find_market
from optimization.renting.price import EffectivePrice, affordable, forecast_outlook, loss_rate


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
