"""Issue forecasts and measure the forecasters: one call per market, which returns values and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from flows.config import Settings
from flows.fitting import Batch, timetable_of
from forecasting.forecast import Forecast
from forecasting.schedule import forecast_from
from forecasting.windows import Windows, window_scores
from warehouse.errors import ForecastError
from warehouse.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketForecasts:
    """What a market's call returns: the forecasts it made, the planner's at each present, and the errors measured there."""

    issued: list[Forecast]
    planned: dict[pd.Timestamp, Forecast]
    accuracy: pd.DataFrame


def forecast_market(
    history: History,
    *,
    settings: Settings,
    batches: Mapping[str, Sequence[Batch]],
    stored: Sequence[Forecast],
    presents: Sequence[pd.Timestamp],
    live: bool = True,
) -> MarketForecasts:
    """Forecast one market with every model at the origins it lacks, and measure all its forecasts (M6.4, M6.5).

    ``presents`` are the slots of one or more turns, the last of them the history's; ``live`` says that the forecasts of the last
    are issued in their own slot: all others are marked as backfilled. Each sees only what was known at its origin, and
    errors are those known at each present. Raises `ForecastError` if the planner has no forecast at a present.
    """
    made = [
        replace(forecast, backfilled=not live or forecast.issued_at < history.slots[-1])
        for forecast in forecasts_of(history, batches, settings=settings)
    ]
    everything = sorted([*made, *stored], key=lambda forecast: forecast.issued_at)
    planned = {f.issued_at: f for f in everything if f.predictor == settings.planner}
    for present in presents:
        if present not in planned:
            raise ForecastError(f"no {settings.planner} forecast of {history.market.key} at {present}")
    timetable = timetable_of(settings)
    windows = Windows(
        presents=tuple(presents),
        origins=settings.measured_origins,
        horizon=settings.horizon,
        # However far back this turn's jobs reach, errors are scaled (MASE) by the same stretch of history.
        scale_from=timetable.start,
    )
    measured = [forecast for forecast in everything if forecast.predictor in settings.models]
    errors = window_scores(measured, history, windows)
    return MarketForecasts(
        issued=made,
        planned={present: planned[present] for present in presents},
        accuracy=errors.assign(source=history.source),
    )


def forecasts_of(
    history: History,
    batches: Mapping[str, Sequence[Batch]],
    *,
    settings: Settings,
    horizon: int | None = None,
) -> list[Forecast]:
    """The forecasts of one market that its batches stand for, by model and time; ``horizon`` in the place of the settings'.

    Those of slots before the history's last are marked as backfilled.
    """
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
