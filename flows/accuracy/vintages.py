"""The forecasts that a warehouse holds, scored as they were issued: what turns said, not what they would say (M6.1, M6.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from flows.accuracy.series import Measured
from forecasting.accuracy.tables import Accuracy, Tally, accuracy_of, tally
from forecasting.origins import Block, Timetable
from forecasting.predictor import Outlook, Panel
from forecasting.quantiles import Forecast
from forecasting.series import Series, slot_at
from warehouse.errors import MarketError
from warehouse.issued import read_vintages, vintage_times
from warehouse.store.connection import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """What was forecast, as `forecasting.accuracy.tables.Tested` has it; origins are those of any model."""

    panels: tuple[Panel, ...]
    origins: tuple[tuple[np.ndarray, ...], ...]
    models: tuple[str, ...]
    horizon: int
    timetable: Timetable


def accuracy_of_vintages(
    store: Store,
    measured: Measured,
    models: Sequence[str],
    *,
    horizon: int,
    timetable: Timetable,
    default: str,
    since: pd.Timestamp | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Accuracy:
    """The tables of `forecasting.accuracy.tables.accuracy_of` over the stored forecasts of some models, ``horizon`` ahead.

    Forecasts that look less far ahead are left out. Raises `MarketError` if there are none of these series.
    """
    origins = tuple(
        tuple(_origins(store, one, models, since) for one in panel.series) for panel in measured.panels
    )
    issued = Issued(
        panels=measured.panels, origins=origins, models=tuple(models), horizon=horizon, timetable=timetable
    )
    if not any(own.size for panel in origins for own in panel):
        raise MarketError(
            "the warehouse holds no forecasts of these series",
            expected="forecasts that turns have issued",
            remedy="`slackwater run` or `slackwater backfill` makes them; --backtest forecasts the series anew",
        )
    total = sum(own.size > 0 for panel in origins for own in panel)
    tallies = _tallies(store, issued, default, lambda done: progress(done, total) if progress else None)
    return accuracy_of(issued, tallies, default=default, notes=measured.notes)


def _origins(store: Store, series: Series, models: Sequence[str], since: pd.Timestamp | None) -> np.ndarray:
    """The slots of a series (indices) at which any of the models issued a forecast, with a value at or before each."""
    if series.market is None or not len(series):
        return np.zeros(0, dtype=np.int64)
    times = vintage_times(
        store, markets=[(series.market, series.source)], models=models,
        start=max(series.time(0), since) if since is not None else series.time(0),
        end=series.time(len(series) - 1), step=series.step,
    )  # fmt: skip
    slots = sorted({slot_at(at, series.step) - series.first_slot for own in times.values() for at in own})
    places = np.array(slots, dtype=np.int64)
    return places[series.newest[places] >= 0] if places.size else places


def _tallies(store: Store, issued: Issued, default: str, told: Callable[[int], None]) -> Iterator[Tally]:
    done = 0
    for number, panel in enumerate(issued.panels):
        for which, series in enumerate(panel.series):
            origins = issued.origins[number][which]
            if series.market is None or not origins.size:
                continue
            vintages = read_vintages(
                store, Forecast, markets=[(series.market, series.source)], models=issued.models,
                start=series.time(int(origins[0])), end=series.time(int(origins[-1])), step=series.step,
            )  # fmt: skip
            for (_, _, model), own in vintages.items():
                block = _block(model, (number, which), series, own, issued)
                if block is not None:
                    yield tally(block, issued, fans=model == default)
            done += 1
            told(done)


def _block(
    model: str, place: tuple[int, int], series: Series, forecasts: Sequence[Forecast], issued: Issued
) -> Block | None:
    """The stored forecasts of one variable of a market by one model, those that look far enough ahead."""
    variable, horizon = series.variable, issued.horizon
    wanted = set(issued.origins[place[0]][place[1]].tolist())
    at = {slot_at(one.issued_at, series.step) - series.first_slot: one for one in forecasts}
    there = sorted(spot for spot, one in at.items() if spot in wanted and one.horizon >= horizon)
    if not there:
        return None
    own = [at[spot] for spot in there]
    return Block(
        model=model,
        panel=place[0],
        which=place[1],
        origins=np.array(there, dtype=np.int64),
        outlook=Outlook(
            quantiles=np.stack([one.quantiles(variable)[:horizon] for one in own]),
            mean=np.stack([one.mean(variable)[:horizon] for one in own]),
            reasons=tuple(one.price_fallback if variable == "price" else one.count_fallback for one in own),
        ),
    )
