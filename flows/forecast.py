"""Measure the forecasters and issue forecasts: one call per market, which returns values and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from flows.config import Settings
from flows.fitting import Batch, timetable_of
from forecasting.accuracy import score
from forecasting.forecast import Forecast
from forecasting.schedule import forecast_from, since
from warehouse.errors import ForecastError
from warehouse.history import History


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
    batches: Mapping[str, Sequence[Batch]],
    stored: Mapping[str, Sequence[Forecast]],
) -> MarketForecasts:
    """Forecast one market with every model at the origins it lacks, and measure all its forecasts (M6.4, M6.5).

    The present is the history's last slot; forecasts for earlier origins are marked as backfilled. Each sees only what was
    known at its origin. Raises `ForecastError` if the planner has no forecast at the present.
    """
    present = history.slots[-1]
    made = forecasts_of(history, batches, settings=settings)
    everything = [*made, *(forecast for kept in stored.values() for forecast in kept)]
    planned = [f for f in everything if f.issued_at == present and f.predictor == settings.planner]
    if not planned:
        raise ForecastError(f"no {settings.planner} forecast of {history.market.key} at {present}")
    first = present - settings.measured_origins * history.step
    measured = sorted(
        (f for f in everything if first <= f.issued_at < present and f.predictor in settings.models),
        key=lambda forecast: (forecast.predictor, forecast.issued_at),
    )
    # However far back this turn's jobs reach, errors are scaled (MASE) by the same stretch of history.
    scale = since(history, timetable_of(settings).start(first))
    errors = score(measured, scale, horizon=settings.horizon).assign(source=history.source)
    return MarketForecasts(issued=made, planned=planned[0], accuracy=errors)


def forecasts_of(
    history: History,
    batches: Mapping[str, Sequence[Batch]],
    *,
    settings: Settings,
    horizon: int | None = None,
) -> list[Forecast]:
    """The forecasts of one market that its batches stand for, by model and time; ``horizon`` in the place of the settings'."""
    made = [
        forecast
        for model, own in batches.items()
        for batch in own
        for forecast in forecast_from(
            batch.estimated,
            history,
            batch.origins,
            horizon=horizon or horizon_of(model, settings),
            timetable=timetable_of(settings),
            peers=batch.peers,
        )
    ]
    return [replace(forecast, backfilled=forecast.issued_at < history.slots[-1]) for forecast in made]


def horizon_of(model: str, settings: Settings) -> int:
    """Slots ahead that a model forecasts: the planner as far as plans look."""
    return settings.planning_horizon if model == settings.planner else settings.horizon
