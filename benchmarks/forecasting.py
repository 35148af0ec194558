"""Accuracy of every predictor on real histories, half-hour slots, scored on the second half of each (E4).

Nine H100 zones and two 16-instance V100 zones with open availability data; six V100 zones with varying prices. Every market
is forecast separately, on the timetable of turns, and also with an estimation every 14 days (``refit rarely``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from slackwater.forecasting.accuracy.losses import score
from slackwater.forecasting.origins import TIMETABLE, Cadence, Timetable, backtest
from slackwater.forecasting.predictors import FLOOR, PREDICTORS
from slackwater.warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History, Market

HORIZON = 12
STEPS = [1, 2, 4, 8, 12]
NAMES = tuple(PREDICTORS)
_FORTNIGHT = Cadence(refit_every=pd.Timedelta(days=14), lookback=pd.Timedelta(days=14))
RARELY = Timetable(price=_FORTNIGHT, count=_FORTNIGHT)
SLOT = pd.Timedelta(minutes=30)
COUNT_SOURCES = ("skynomad-artifact:h100", "availability/16-node")
PRICE_SOURCES = ("skynomad-artifact:v100",)


def run(data: Path) -> dict:
    counts = list(histories(data, COUNT_SOURCES))
    prices = list(histories(data, PRICE_SOURCES))
    return {
        "counts_16": measure(counts, "count"),
        "counts_16_refit_rarely": measure(counts, "count", RARELY),
        "counts_0_1": measure(prices, "count"),
        "prices": measure(prices, "price"),
    }


def measure(markets: list[History], variable: str, timetable: Timetable = TIMETABLE) -> dict:
    """Return MAE, mean pinball loss and coverage by step as means over markets, steps that lose to last value, and seconds."""
    tables, seconds = [], dict.fromkeys(NAMES, 0.0)
    for history in markets:
        n, floor = len(history.slots), []
        origins = list(history.slots[max(0, n // 2 - 1) : n - 1])
        for name in NAMES:
            began = time.perf_counter()
            (made,) = backtest(
                [history], name, origins=origins, horizon=HORIZON, timetable=timetable
            ).values()
            seconds[name] += time.perf_counter() - began
            floor = made if name == FLOOR else floor
            table = score([*made, *(floor if name != FLOOR else [])], history)
            tables.append(table[(table["model"] == name) & (table["variable"] == variable)])
    scores = pd.concat(tables)
    scores = scores[scores["step"].isin(STEPS)]
    out: dict = {"markets": len(markets)}
    for metric in ("mae", "pinball", "coverage_80"):
        pivot = scores.pivot_table(index="model", columns="step", values=metric, aggfunc="mean")
        out[metric] = {
            m: [float(f"{v:.4g}") for v in row] for m, row in zip(pivot.index, pivot.to_numpy(), strict=True)
        }
    floor = {metric: np.array(out[metric]["last_value"]) for metric in ("mae", "pinball")}
    out["steps"] = STEPS
    out["loses_to_last_value_at"] = {
        metric: {
            m: [k for k, v, f in zip(STEPS, out[metric][m], floor[metric], strict=True) if v > f]
            for m in NAMES
        }
        for metric in floor
    }
    out["seconds_per_market"] = {m: round(s / len(markets), 2) for m, s in seconds.items()}
    return out


def histories(data: Path, sources: tuple[str, ...]) -> Iterator[History]:
    """Yield the open availability series of some sources on the slot grid, with prices of the same zone if available."""
    probes = pd.read_parquet(data / "availability.parquet")
    prices = pd.read_parquet(data / "prices.parquet")
    for source in sources:
        rows = probes[probes["source"].str.contains(source, regex=False)].sort_values("timestamp")
        own = prices[prices["source"].str.contains(source, regex=False)].sort_values("timestamp")
        for zone, series in rows.groupby("zone"):
            yield one_history(series, own[own["zone"] == zone])


def one_history(series: pd.DataFrame, prices: pd.DataFrame) -> History:
    """Return a history on half-hour slots, sample and hold (M1.3); a missing price is 30 % of a V100's on-demand price."""
    first = series.iloc[0]
    grid = pd.date_range(
        series["timestamp"].iloc[0].ceil(SLOT), series["timestamp"].iloc[-1].floor(SLOT), freq=SLOT
    )
    slots = pd.DataFrame({"slot": grid.astype("datetime64[us, UTC]")})
    old = pd.Timedelta(seconds=3 * int(first["gap_seconds"]))
    held = pd.merge_asof(slots, series, left_on="slot", right_on="timestamp", tolerance=old)["available"]
    on_demand, spot = 3.06, np.full(len(grid), 0.3 * 3.06)
    if len(prices):
        on_demand = float(prices["on_demand_price_usd_per_hour"].iloc[0])
        dated = prices.assign(timestamp=prices["timestamp"].astype("datetime64[us, UTC]"))
        if len(prices) == 1:  # a single catalogue price, stored at the end of the record, is constant
            dated["timestamp"] = slots["slot"].iloc[0]
        column = pd.merge_asof(slots, dated, left_on="slot", right_on="timestamp")["spot_price_usd_per_hour"]
        spot = column.to_numpy(dtype=float)
    index = pd.DatetimeIndex(slots["slot"], name=None)
    frame = pd.DataFrame(
        {PRICE: spot, AVAILABLE: held.astype("Float64").to_numpy(float, na_value=np.nan)}, index=index
    )
    frame[ROW_KNOWN_AT] = index
    market = Market(
        provider=first["provider"],
        region=first["region"],
        zone=first["zone"],
        instance_type=first["instance_type"],
    )
    return History(
        market=market, step=SLOT, known_at=index[-1], frame=frame, on_demand_usd=on_demand,
        capacity=int(series["capacity_probed"].max()), real_clock="skynomad" in first["source"], source=first["source"],
        assumptions=() if len(prices) > 1 else ("constant price",),
    )  # fmt: skip
