"""Seconds of a scheduled forecast turn for fifty markets, price and count, 12 steps: with estimation and with restored models.

The markets are simulated, two weeks of half-hour slots, in a warehouse on disk. A turn is the forecast stage of the loop: it reads
the histories, restores the fitted models or estimates and stores them, forecasts the newest slot and writes the vintages, on two
threads as in the engine. Imports, compilation and the first use of the file are excluded. Aims: 5 s restored, 60 s estimated.
CPU seconds show the time on a machine without other load.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import turn as simulated
from slackwater.flows.config import Settings
from slackwater.flows.following import FollowedMarket
from slackwater.flows.turn.context import Turn
from slackwater.flows.turn.stages import forecast_turns
from slackwater.flows.turn.work import Work
from slackwater.warehouse.history import Market
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.store.connection import Store, open_store

MARKETS = 50
HORIZON = 12
STEP = pd.Timedelta(minutes=30)
MODELS = ("combined", "lightgbm", "arima", "last_value")
#: Later turns, in slots after the first turn of the day, which estimates; the last is the second to last of the day.
LATER = (1, 8, 34)
THREADS = 2


@dataclass(slots=True)
class TimedFan:
    """Thread pool of two threads that records the wall seconds of each function."""

    seconds: dict[str, float] = field(default_factory=dict)

    def __call__(self, function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
        began = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as pool:
            done = list(pool.map(lambda call: function(**call), calls))
        label = function.__name__
        label = function.__name__
        self.seconds[label] = self.seconds.get(label, 0.0) + time.perf_counter() - began
        return done


def run(models: Sequence[str] = MODELS) -> dict[str, Any]:
    out: dict[str, Any] = {"markets": MARKETS, "aim": {"restored": 5.0, "estimated": 60.0}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        simulated.tidy_markets(folder, simulated.AT + pd.Timedelta(hours=18), markets=MARKETS)
        with open_store(folder / "w.duckdb") as store:
            ingest(store, "tabular", folder, imported_at=simulated.AT)
            for model in models:
                turn(store, model, simulated.AT - STEP, markets=2)  # imports and compilation
                out[model] = {
                    "estimated": turn(store, model, simulated.AT),
                    "restored": [turn(store, model, simulated.AT + k * STEP) for k in LATER],
                }
    return out


def turn(store: Store, model: str, at: pd.Timestamp, *, markets: int = MARKETS) -> dict[str, float]:
    """Run a forecast stage at ``at``; return wall seconds in total and by parallel function, CPU seconds, and new fitted states."""
    settings = Settings(
        models=(model,), planner=model, horizon=HORIZON, planning_horizon=HORIZON, measured_origins=0
    )
    fan = TimedFan()
    states = len(read_rows(store, "fitted"))
    work = Work(markets=make_markets(store, at, markets), running=(), ended=())
    wall, cpu = time.perf_counter(), time.process_time()
    forecast_turns(
        [Turn(store=store, at=at, settings=settings, run_id=f"{model}-{at}-{markets}", fan=fan)], [work]
    )
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        **{f"{label}_seconds": seconds for label, seconds in fan.seconds.items()},
        "states_made": len(read_rows(store, "fitted")) - states,
    }


def make_markets(store: Store, at: pd.Timestamp, markets: int) -> tuple[FollowedMarket, ...]:
    """Return ``markets`` markets with price and counts."""
    listing = list_markets(store, known_at=at)
    chosen = listing[listing["has_counts"] & listing["has_price"]].head(markets)
    return tuple(
        FollowedMarket(market=Market.parse(row.market), source=row.source, at=at)
        for row in chosen.itertuples()
    )


if __name__ == "__main__":
    print(run())
