"""Measure the forecasters and issue forecasts: one call per market, which returns values and writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from flows.config import Settings
from forecasting.accuracy import score
from forecasting.forecast import Forecast
from forecasting.predictors import make_predictor
from forecasting.schedule import Timetable, scheduled, since
from warehouse.errors import ForecastError
from warehouse.history import History


def timetable_of(settings: Settings) -> Timetable:
    """The refit timetable of the settings."""
    return Timetable(
        refit_every=pd.Timedelta(hours=settings.refit_hours),
        lookback=pd.Timedelta(days=settings.history_days),
    )


def lacking(origins: Sequence[pd.Timestamp], stored: Sequence[Forecast]) -> list[pd.Timestamp]:
    """The origins for which no forecast is stored yet, ascending."""
    have = {forecast.issued_at for forecast in stored}
    return [origin for origin in origins if origin not in have]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketForecasts:
    """What a market's call returns: the forecasts it made, the planner's at the present, and the measured errors."""

    issued: list[Forecast]
    planned: Forecast
    accuracy: pd.DataFrame


def forecast_market(
    history: History,
    *,
    settings: Settings,
    missing: dict[str, list[pd.Timestamp]],
    stored: dict[str, list[Forecast]],
) -> MarketForecasts:
    """Forecast one market with every model at the origins it lacks, and measure all its forecasts (M6.4, M6.5).

    The present is the history's last slot; forecasts for earlier origins are marked as backfilled. Each sees only what was
    known at its origin. Raises `ForecastError` if the planner has no forecast at the present.
    """
    present = history.slots[-1]
    made = [
        replace(forecast, backfilled=forecast.issued_at < present)
        for model, origins in missing.items()
        for forecast in scheduled(
            make_predictor(model),
            history,
            origins,
            horizon=settings.planning_horizon if model == settings.planner else settings.horizon,
            timetable=timetable_of(settings),
        )
    ]
    everything = [*made, *(forecast for kept in stored.values() for forecast in kept)]
    planned = [f for f in everything if f.issued_at == present and f.predictor == settings.planner]
    if not planned:
        raise ForecastError(f"no {settings.planner} forecast of {history.market.key} at {present}")
    first = present - settings.measured_origins * history.step
    measured = sorted(
        (f for f in everything if f.issued_at >= first and f.predictor in settings.models),
        key=lambda forecast: (forecast.predictor, forecast.issued_at),
    )
    # However far back this turn's jobs reach, errors are scaled (MASE) by the same stretch of history.
    scale = since(history, timetable_of(settings).start(first))
    errors = score(measured, scale, horizon=settings.horizon).assign(source=history.source)
    return MarketForecasts(issued=made, planned=planned[0], accuracy=errors)
