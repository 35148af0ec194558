"""Histories for tests: a price and a count that wander, and those of the real files."""

from __future__ import annotations

import numpy as np
import pandas as pd
from make import make_history
from open_data import DATA

from slackwater.forecasting.predictor import Panel
from slackwater.warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History, Market


def wandering(slots, *, seed=0, capacity=8, gaps=0.03, **options):
    """Return a price with occasional small steps, and a count that stays and jumps, with gaps in both."""
    rng = np.random.default_rng(seed)
    price = 1.0 + 0.02 * np.cumsum(rng.choice([-1, 0, 0, 0, 0, 1], slots)).clip(-40, 80)
    jump = rng.random(slots) < 0.2
    level = np.maximum.accumulate(np.where(jump, np.arange(slots), 0))
    count = rng.choice([0, 0, 2, 5, capacity, capacity], slots)[level].astype(float)
    price[rng.random(slots) < gaps] = np.nan
    count[rng.random(slots) < gaps] = np.nan
    return make_history(price, count, capacity=capacity, **options)


def real_histories(pattern, step="30min"):
    """Return histories of a source of the real files on a slot grid (M1.3), by zone; unknown prices are the
    first known or 1.0.
    """
    width = pd.Timedelta(step)
    rows = pd.read_parquet(DATA / "availability.parquet")
    rows = rows[rows["source"].str.contains(pattern)]
    prices = pd.read_parquet(DATA / "prices.parquet")
    prices = prices[prices["source"].str.contains(pattern)]
    out = {}
    for zone, probes in rows.sort_values("timestamp").groupby("zone"):
        first, last = probes["timestamp"].iloc[0].ceil(step), probes["timestamp"].iloc[-1].floor(step)
        grid = pd.DataFrame({"slot": pd.date_range(first, last, freq=step).astype("datetime64[us, UTC]")})
        age = pd.Timedelta(seconds=3 * int(probes["gap_seconds"].iloc[0]))
        held = pd.merge_asof(grid, probes, left_on="slot", right_on="timestamp", tolerance=max(age, width))[
            "available"
        ]
        own = prices[prices["zone"] == zone].sort_values("timestamp")
        on_demand = float(own["on_demand_price_usd_per_hour"].iloc[0]) if len(own) else 3.06
        if len(own):
            own = own.assign(timestamp=own["timestamp"].where(own["timestamp"] > first, first))
            own = own.drop_duplicates("timestamp", keep="last")
            spot = pd.merge_asof(grid, own, left_on="slot", right_on="timestamp")["spot_price_usd_per_hour"]
        else:
            spot = pd.Series(0.3 * on_demand, index=grid.index)
        index = pd.DatetimeIndex(grid["slot"], name=None, freq=None)
        frame = pd.DataFrame(
            {PRICE: spot.to_numpy(float), AVAILABLE: held.astype("Float64").to_numpy(float, na_value=np.nan)},
            index=index,
        )
        frame[ROW_KNOWN_AT] = index
        one = probes.iloc[0]
        out[zone] = History(
            market=Market(
                provider=one["provider"], region=one["region"], zone=zone, instance_type=one["instance_type"]
            ),
            step=width, known_at=index[-1], frame=frame, on_demand_usd=on_demand,
            capacity=int(probes["capacity_probed"].max()), real_clock="spot-traces" not in one["source"],
            source=one["source"],
        )  # fmt: skip
    return out


def panels_of(series):
    """Return a panel per source, variable and step, in order of first appearance; repeated keys are dropped."""
    groups = {}
    for one in series:
        groups.setdefault((one.source, one.variable, one.step), {}).setdefault(one.key, one)
    return [Panel(series=tuple(own.values())) for own in groups.values()]
