"""Blocks of a backtest as the forecasts they are: one value per market and origin, price and count together (M6.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecasting.forecast import LEVELS, Forecast, Variable
from forecasting.rolling import Block, Rolling
from forecasting.series import Series
from forecasting.tallies import slot_times
from forecasting.univariate import NOTHING_OBSERVED
from warehouse.errors import ForecastError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One variable's answer at one origin."""

    series: Series
    origin: int
    quantiles: np.ndarray
    mean: np.ndarray
    reason: str


def issued(blocks: Iterable[Block], rolling: Rolling) -> dict[str, list[Forecast]]:
    """The forecasts of one model by source, ascending by market and time, marked as made later for a past time.

    Blocks of price and of count of one market are joined by their slot; where a variable was not forecast its place
    is taken by the on-demand price (0 where unknown) or by a count of 0, labelled. Raises `ForecastError` on blocks
    of several models.
    """
    found: dict[tuple[str, str, pd.Timestamp], dict[Variable, _Side]] = {}
    models = set()
    for block in blocks:
        models.add(block.model)
        series, given = rolling.panels[block.panel].series[block.which], block.outlook
        for i, (origin, at) in enumerate(zip(block.origins, slot_times(series, block.origins), strict=True)):
            side = _Side(
                series=series, origin=int(origin), quantiles=given.quantiles[i], mean=given.mean[i], reason=given.reasons[i],
            )  # fmt: skip
            found.setdefault((series.source, series.key, at), {})[series.variable] = side
    if len(models) > 1:
        raise ForecastError(f"blocks of {', '.join(sorted(models))}", expected="blocks of one model")
    out: dict[str, list[Forecast]] = {}
    for (source, _, at), sides in sorted(found.items(), key=lambda item: item[0]):
        out.setdefault(source, []).append(_forecast(next(iter(models)), at, sides))
    return out


def _forecast(model: str, at: pd.Timestamp, sides: dict[Variable, _Side]) -> Forecast:
    any_side = next(iter(sides.values()))
    series, horizon = any_side.series, any_side.mean.size
    if series.market is None:
        raise ForecastError("a block of a series without a market", expected="series of markets")
    known = series.on_demand_usd if np.isfinite(series.on_demand_usd) else 0.0
    price = sides.get("price") or _unknown(series, horizon, known)
    count = sides.get("count") or _unknown(series, horizon, 0.0)
    capacity = int(count.series.upper[count.origin]) if "count" in sides else 0
    newest = [slot_times(side.series, side.series.newest[[side.origin]])[0] for side in sides.values()]
    return Forecast(
        market=series.market,
        issued_at=at,
        step=series.step,
        predictor=model,
        newest_row=max(newest),
        price=price.quantiles,
        price_mean=price.mean,
        count=count.quantiles,
        count_mean=count.mean,
        capacity=capacity,
        price_fallback=price.reason,
        count_fallback=count.reason,
        backfilled=True,
    )


def _unknown(series: Series, horizon: int, value: float) -> _Side:
    return _Side(
        series=series,
        origin=0,
        quantiles=np.full((horizon, LEVELS.size), value),
        mean=np.full(horizon, value),
        reason=NOTHING_OBSERVED,
    )
