"""Synthetic panels for tests of the backtest engine, and panel models simple enough to check by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from make import HALF_HOUR
from series_kit import wandering

from slackwater.forecasting.accuracy.tables import accuracy_of, tally
from slackwater.forecasting.origins import Cadence, Rolling, Timetable, forecast_blocks, second_half, units_of
from slackwater.forecasting.predictor import Outlook, Panel
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.series import Series, series_of
from slackwater.warehouse.history import Market


def a_series(slots, *, variable="count", zone="a", later=0, source="lab", **options):
    """Return one variable of a random history, in a separate zone, beginning ``later`` slots after the others."""
    made = series_of(wandering(slots, **options), variable)
    market = Market(provider="aws", region="r", zone=f"r{zone}", instance_type="gpu")
    return replace(made, market=market, source=source, first_slot=made.first_slot + later)


def binary(series):
    """Return the series of [y >= 1]."""
    return replace(series, values=np.minimum(series.values, 1.0), upper=np.ones(len(series)))


def every(refit, lookback=None):
    """Return a timetable with equal cadences for both variables, by default with a lookback beyond any history."""
    cadence = Cadence(refit_every=refit, lookback=lookback or pd.Timedelta(days=3000))
    return Timetable(price=cadence, count=cadence)


DAY = pd.Timedelta(days=1)
DAILY = every(DAY)


def a_rolling(panels, predictors, *, timetable=DAILY, **options):
    origins = tuple(tuple(second_half(series) for series in panel.series) for panel in panels)
    return Rolling(
        panels=tuple(panels),
        origins=origins,
        predictors=predictors,
        timetable=timetable,
        **{"horizon": 3} | options,
    )


def blocks_of(rolling):
    return [block for unit in units_of(rolling) for block in forecast_blocks(unit, rolling)]


def accuracy_by(rolling, default="last_value"):
    tallies = (tally(block, rolling) for block in blocks_of(rolling))
    return accuracy_of(rolling, tallies, default=default)


LAST = make_predictor("last_value")


@dataclass(frozen=True)
class Watching:
    """A predictor that returns the mean of its training data, and records its inputs."""

    shown: list
    name: str = "watching"
    pooled: bool = True

    def fit(self, panel):
        self.shown.append(("fit", max(series.end for series in panel.series) - 1))
        seen = np.concatenate([series.observed for series in panel.series])
        return WatchingFit(self.shown, float(seen.mean()) if seen.size else 0.0)


@dataclass(frozen=True)
class WatchingFit:
    shown: list
    level: float

    def outlook(self, panel, which, origins, horizon):
        series: Series = panel.series[which]
        self.shown.append(
            ("outlook", max(one.end for one in panel.series) - 1, series.first_slot + origins[-1], panel)
        )
        mean = np.full((origins.size, horizon), self.level)
        return Outlook(
            quantiles=np.repeat(mean[:, :, None], 19, axis=2), mean=mean, reasons=("",) * origins.size
        )


def scrambled(panel, after, rng):
    """Return the panel with all values after a slot (since the epoch) replaced by other numbers."""
    out = []
    for series in panel.series:
        keep = series.first_slot + np.arange(len(series)) <= after
        noise = np.floor(rng.uniform(0, 9, len(series)))
        within = np.where(keep[:, None], series.within, noise[:, None])
        values = np.where(keep, series.values, noise)
        places = np.where(np.isnan(values), -1, np.arange(len(series)))
        upper = series.upper if series.variable == "count" else np.where(keep, series.upper, 99.0)
        out.append(
            replace(
                series, values=values, within=within, upper=upper,
                newest=np.maximum.accumulate(places),
            )
        )  # fmt: skip
    return Panel(series=tuple(out))


__all__ = ["DAILY", "DAY", "HALF_HOUR", "LAST", "Watching"]
