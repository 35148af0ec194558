"""One scheduled forecast turn for fifty markets, price and count, 12 steps: with an estimation, and with the last one restored.

The markets are simulated, two weeks of half-hour slots with the readings between them, in a warehouse on disk. A turn reads
the histories, gets the fitted model (estimates and keeps it, or restores it from the warehouse), forecasts from the newest slot,
and writes the vintages. Imports, compilation and the first use of the file are done before. Aims: 5 s restored, 60 s estimated.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import turn as simulated
from flows.ingest import ingest_paths
from forecasting.fitted_state import restored, state_text
from forecasting.forecast import Variable
from forecasting.issued import issued
from forecasting.panel import FittedPanelModel, Panel
from forecasting.rolling import Block, Rolling, TestPart, panel_models
from forecasting.series import series_of
from forecasting.univariate import Outlook, bounded
from warehouse.history import History, Market
from warehouse.store import (
    FittedState,
    HistoryRequest,
    Store,
    list_markets,
    load_fitted,
    load_histories,
    open_store,
    save_fitted,
    write_forecasts,
)

MARKETS = 50
HORIZON = 12
STEP = pd.Timedelta(minutes=30)
LOOKBACK = pd.Timedelta(days=14)
VARIABLES: tuple[Variable, ...] = ("price", "count")
MODELS = ("combined", "lightgbm", "arima", "last_value")


def run() -> dict[str, Any]:
    out: dict[str, Any] = {"markets": MARKETS, "aim": {"restored": 5.0, "estimated": 60.0}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        simulated.tidy_markets(folder, simulated.AT + pd.Timedelta(hours=4), markets=MARKETS)
        with open_store(folder / "w.duckdb") as store:
            ingest_paths(store, "tabular", [folder], options={}, known_at=None, imported_at=simulated.AT)
            for model in MODELS:
                turn(store, model, simulated.AT - STEP, simulated.AT - STEP)  # imports and compilation
                out[model] = {
                    "estimated": turn(store, model, simulated.AT, simulated.AT),
                    "restored": [
                        turn(store, model, simulated.AT + k * STEP, simulated.AT) for k in (1, 2, 3)
                    ],
                }
    return out


def turn(store: Store, model: str, at: pd.Timestamp, fit_time: pd.Timestamp) -> dict[str, float]:
    """One turn at ``at`` with the estimation of ``fit_time``; seconds by stage."""
    seconds: dict[str, float] = {}
    with timed(seconds, "read"):
        histories = read(store, at)
        panels = {v: Panel(series=tuple(series_of(one, v) for one in histories)) for v in VARIABLES}
    with timed(seconds, "restore"):
        fitted = stored(store, model, at, fit_time)
    if not fitted:
        with timed(seconds, "estimate"):
            fitted = {v: panel_models(model)[v].fit(panels[v]) for v in VARIABLES}
        with timed(seconds, "keep"):
            keep(store, model, fitted, fit_time)
    with timed(seconds, "forecast"):
        made = forecasts(model, fitted, panels)
    with timed(seconds, "write"), store.transaction():
        for source, own in made.items():
            write_forecasts(store, own, source=source)
    seconds["total"] = sum(seconds.values())
    return seconds


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - began


def read(store: Store, at: pd.Timestamp) -> list[History]:
    listing = list_markets(store, known_at=at)
    chosen = listing[listing["has_counts"] & listing["has_price"]].head(MARKETS)
    return load_histories(
        store,
        [
            HistoryRequest(
                market=Market.parse(row.market), source=row.source, start=at - LOOKBACK, end=at, step=STEP, known_at=at,
                within=True,
            )
            for row in chosen.itertuples()
        ],
    )  # fmt: skip


def stored(
    store: Store, model: str, at: pd.Timestamp, fit_time: pd.Timestamp
) -> dict[Variable, FittedPanelModel]:
    """The model of each variable as it was estimated at ``fit_time``; empty if it was not."""
    states = load_fitted(store, predictor=model, step=STEP, panels=["bench"], fitted_at=fit_time, known_at=at)
    return {variable: restored(one.state) for (_, variable), one in states.items()}  # type: ignore[misc]


def keep(store: Store, model: str, fitted: dict[Variable, FittedPanelModel], fit_time: pd.Timestamp) -> None:
    save_fitted(
        store,
        [
            FittedState(
                predictor=model, variable=variable, panel="bench", step=STEP, fitted_at=fit_time, known_at=fit_time,
                state=state_text(one),
            )
            for variable, one in fitted.items()
        ],
    )  # fmt: skip


def forecasts(
    model: str, fitted: dict[Variable, FittedPanelModel], panels: dict[Variable, Panel]
) -> dict[str, list]:
    """What every market's newest slot says of the next `HORIZON`, by source."""
    blocks = []
    for place, variable in enumerate(VARIABLES):
        panel = panels[variable]
        for which, series in enumerate(panel.series):
            origin = np.array([len(series) - 1])
            if series.newest[-1] < 0:
                continue
            given = fitted[variable].outlook(panel, which, origin, HORIZON)
            quantiles, mean = bounded(given.quantiles, given.mean, series, origin)
            outlook = Outlook(quantiles=quantiles, mean=mean, reasons=given.reasons)
            blocks.append(
                Block(model=model, panel=place, which=which, fit_slot=0, origins=origin, outlook=outlook)
            )
    parts = tuple(
        tuple(TestPart(start=0, origins=np.zeros(0, dtype=int)) for _ in panels[v].series) for v in VARIABLES
    )
    every = dict.fromkeys(VARIABLES, STEP)
    rolling = Rolling(panels=tuple(panels[v] for v in VARIABLES), parts=parts, models={}, refit=every)
    return issued(blocks, rolling)


if __name__ == "__main__":
    print(run())
