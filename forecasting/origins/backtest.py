"""Rolling-origin backtest: forecasts as they would have been issued, kept by vintage, and their scores (M6.4, M6.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecasting.accuracy.losses import score
from forecasting.accuracy.sums import slot_times
from forecasting.forecast import LEVELS, Forecast, Variable
from forecasting.origins.rolling import Block, Rolling
from forecasting.predictor import NOTHING_OBSERVED, Predictor
from forecasting.predictors import make_predictor
from forecasting.series import Series
from warehouse.errors import ForecastError, SettingsError
from warehouse.history import History

__all__ = ["REFERENCES", "BacktestResult", "backtest", "refit_groups", "score", "second_half"]

#: Models that every backtest includes: nothing is judged without them.
REFERENCES = ("last_value", "seasonal_naive")


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestResult:
    """``forecasts`` per model in the order of their origins, and the ``history`` they are scored on."""

    forecasts: Mapping[str, list[Forecast]]
    history: History

    def issued(self) -> list[Forecast]:
        """All forecasts of all models, the form in which they are stored."""
        return [forecast for made in self.forecasts.values() for forecast in made]

    def scores(self) -> pd.DataFrame:
        """The table of `forecasting.accuracy.losses.score`."""
        return score(self.issued(), self.history)


def backtest(
    predictors: Sequence[str | Predictor],
    history: History,
    *,
    origins: Sequence[pd.Timestamp],
    horizon: int,
    refit_every: pd.Timedelta | None = None,
    progress: Callable[[str], None] | None = None,
) -> BacktestResult:
    """Forecast from every origin with every predictor, and with `REFERENCES` beside them.

    ``origins`` are ascending slots of ``history``. Parameters are estimated at the first origin and again at the first
    origin at least ``refit_every`` after the last estimation (None: never again); in between the state moves on alone (M6.4).
    A predictor is handed ``history.until(...)`` and nothing else. Raises `SettingsError` on origins that are not ascending slots.
    """
    at = pd.DatetimeIndex(list(origins))
    if not at.is_monotonic_increasing or not at.is_unique or not at.isin(history.slots).all():
        raise SettingsError(
            f"{len(at)} origins, {int((~at.isin(history.slots)).sum())} of them outside the history",
            expected="ascending slots of the history without repeats",
        )
    made = [make_predictor(p) if isinstance(p, str) else p for p in predictors]
    made += [make_predictor(name) for name in REFERENCES if name not in {p.name for p in made}]
    groups = refit_groups(at, refit_every)
    forecasts: dict[str, list[Forecast]] = {}
    for predictor in made:
        if progress is not None:
            progress(predictor.name)
        forecasts[predictor.name] = _roll(predictor, history, groups, horizon)
    return BacktestResult(forecasts=forecasts, history=history)


def refit_groups(origins: pd.DatetimeIndex, refit_every: pd.Timedelta | None) -> list[pd.DatetimeIndex]:
    """Origins grouped by the estimation they use; each group's first origin is when that estimation is made."""
    if len(origins) == 0:
        return []
    if refit_every is None:
        return [origins]
    starts = [0]
    while True:
        due = max(int(origins.searchsorted(origins[starts[-1]] + refit_every)), starts[-1] + 1)
        if due >= len(origins):
            break
        starts.append(due)
    return [origins[a:b] for a, b in zip(starts, [*starts[1:], len(origins)], strict=True)]


def _roll(
    predictor: Predictor, history: History, groups: Sequence[pd.DatetimeIndex], horizon: int
) -> list[Forecast]:
    forecasts: list[Forecast] = []
    for group in groups:
        fitted = predictor.fit(history.until(group[0]))
        forecasts += fitted.forecast_many(history.until(group[-1]), list(group), horizon=horizon)
    return forecasts


def second_half(history: History) -> list[pd.Timestamp]:
    """The usual test origins: the last slot of the first half to the one before the last."""
    n = len(history.slots)
    return [pd.Timestamp(slot) for slot in history.slots[np.arange(max(0, n // 2 - 1), max(0, n - 1))]]


# ---
# Blocks of a backtest as the forecasts they are: one value per market and origin, price and count together (M6.1).


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
