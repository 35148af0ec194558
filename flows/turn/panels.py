"""A market's recent past beside its forecast: what is drawn of it, and the two charts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from flows.show.charts import Fan, fan
from forecasting.quantiles import Forecast

#: Past slots drawn at least, and in units of the forecast's horizon, so that the forecast is never a sliver.
PAST_SLOTS, PAST_HORIZONS = 72, 5
#: (lower level, upper level, band in percent) by position among the 19 quantile levels.
BANDS = ((0, 18, 90), (1, 17, 80), (4, 14, 50))
MEDIAN = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketPanel:
    """One market's recent past and its forecast: ``price`` and ``available`` have shape (slots,), NaN in gaps."""

    title: str
    source: str
    slots: pd.DatetimeIndex
    price: np.ndarray
    available: np.ndarray
    on_demand_usd: float
    capacity: int
    forecast: Forecast | None
    assumptions: tuple[str, ...] = ()


def panel_step(panel: MarketPanel) -> pd.Timedelta:
    """Slot length of a panel: its forecast's, else the distance of its slots, else half an hour (the default grid)."""
    if panel.forecast is not None:
        return panel.forecast.step
    if len(panel.slots) > 1:
        return pd.Timedelta(panel.slots[1] - panel.slots[0])
    return pd.Timedelta(minutes=30)


def shown_past(panel: MarketPanel) -> slice:
    """The newest slots of a panel that are drawn."""
    horizon = panel.forecast.horizon if panel.forecast is not None else 0
    return slice(max(0, len(panel.slots) - max(PAST_SLOTS, PAST_HORIZONS * horizon)), None)


def gap_runs(missing: np.ndarray) -> list[tuple[int, int]]:
    """Runs of True as half-open ranges.

    >>> gap_runs(np.array([True, False, True, True]))
    [(0, 1), (2, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], missing.astype(int), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def market_charts(panel: MarketPanel) -> list[dict[str, Any]]:
    """Price above, count below: the past as steps, gaps set off, then median and 50, 80 and 90 % bands of the forecast."""
    past, step = shown_past(panel), panel_step(panel)
    slots = panel.slots[past]
    price, count = (
        Fan(
            title=title,
            past=past_rows(slots, values[past], step),
            gaps=gap_rows(slots, values[past], step),
            ahead=[] if panel.forecast is None else ahead_rows(panel.forecast, quantiles, step),
            limit=limit,
            limit_colour=colour,
            whole=whole,
            height=height,
        )
        for title, values, quantiles, limit, colour, whole, height in (
            ("price, USD per instance-hour", panel.price, panel.forecast and panel.forecast.price,
             panel.on_demand_usd, "on-demand", False, 100),
            ("instances available", panel.available, panel.forecast and panel.forecast.count,
             panel.capacity, "capacity", True, 62),
        )
    )  # fmt: skip
    return [fan(price, labelled=False), fan(count)]


def past_rows(slots: pd.DatetimeIndex, values: np.ndarray, step: pd.Timedelta) -> list[dict[str, Any]]:
    """One row a slot, and one at the end of the last, so that it is drawn over its whole length."""
    ends = slots.append(pd.DatetimeIndex([slots[-1] + step]))
    return [{"x": at, "y": value} for at, value in zip(ends, np.append(values, values[-1]), strict=True)]


def gap_rows(slots: pd.DatetimeIndex, values: np.ndarray, step: pd.Timedelta) -> list[dict[str, Any]]:
    """One row a run of slots that were not observed."""
    return [{"x": slots[a], "x2": slots[b - 1] + step} for a, b in gap_runs(np.isnan(values))]


def ahead_rows(forecast: Forecast, quantiles: Any, step: pd.Timedelta) -> list[dict[str, Any]]:
    """One row a slot ahead: its ends, the median, and the ends of the bands; ``quantiles`` has shape (h, 19)."""
    return [
        {"x": at, "x2": at + step, "median": row[MEDIAN]}
        | {f"low{band}": row[low] for low, _, band in BANDS}
        | {f"high{band}": row[high] for _, high, band in BANDS}
        for at, row in zip(forecast.slots, quantiles, strict=True)
    ]
