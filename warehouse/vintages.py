"""Forecasts as they were issued (M6.1): each vintage is written once and read back as the value it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from warehouse.history import Market
from warehouse.records import Written
from warehouse.times import microseconds, moment, utc_index

if TYPE_CHECKING:
    from warehouse.store import Store

_QUANTILES = tuple(f"q{level:02d}" for level in range(5, 100, 5))
ForecastT = TypeVar("ForecastT")


class ForecastValue(Protocol):
    """What the warehouse, which knows no model, needs of a forecast; `forecasting.forecast.Forecast` has it."""

    @property
    def market(self) -> Market:
        """The market it speaks of."""

    @property
    def issued_at(self) -> pd.Timestamp:
        """The slot it was issued in."""

    @property
    def step(self) -> pd.Timedelta:
        """Length of a slot."""

    @property
    def predictor(self) -> str:
        """Name of the model."""

    @property
    def newest_row(self) -> pd.Timestamp:
        """The slot of the newest value it knew."""

    @property
    def price(self) -> np.ndarray:
        """Quantiles of the price, shape (h, 19)."""

    @property
    def price_mean(self) -> np.ndarray:
        """Mean price, shape (h,)."""

    @property
    def count(self) -> np.ndarray:
        """Quantiles of the count, shape (h, 19)."""

    @property
    def count_mean(self) -> np.ndarray:
        """Mean count, shape (h,)."""

    @property
    def capacity(self) -> int:
        """Largest count the market can show."""

    @property
    def price_fallback(self) -> str:
        """Why a simpler model answered for the price, "" if none did."""

    @property
    def count_fallback(self) -> str:
        """The same for the count."""

    @property
    def backfilled(self) -> bool:
        """Made later for a past time."""


def write_forecasts(store: Store, forecasts: Iterable[ForecastValue], *, source: str) -> Written:
    """Keep forecasts of markets of one source, counted in forecasts; nothing overwrites one (M6.1).

    The key of a vintage is (market, source, model, issued_at, step); one that is there already is left as it is.
    """
    known = {tuple(row) for row in _vintage_keys(store, source)}
    (next_vid,) = store.execute("SELECT coalesce(max(vid), 0) + 1 FROM vintages")[0]
    vintages: list[dict[str, object]] = []
    values: list[pa.Table] = []
    repeated = 0
    for forecast in forecasts:
        key = (
            forecast.market.key,
            forecast.predictor,
            microseconds(forecast.issued_at, "issued_at"),
            int(forecast.step.total_seconds()),
        )
        if key in known:
            repeated += 1
            continue
        known.add(key)
        vid = next_vid + len(vintages)
        vintages.append(_vintage(forecast, vid, source))
        values += [_values(forecast, vid, variable) for variable in ("price", "count")]
    if vintages:
        _insert_all(
            store, {"vintages": pa.Table.from_pylist(vintages), "forecasts": pa.concat_tables(values)}
        )
    return Written(added=len(vintages), repeated=repeated)


def _vintage_keys(store: Store, source: str) -> list[tuple[Any, ...]]:
    return store.execute(
        "SELECT market, model, epoch_us(issued_at), step_seconds FROM vintages WHERE source = ?", [source]
    )


def _insert_all(store: Store, tables: Mapping[str, pa.Table]) -> None:
    with store.transaction():
        for name, table in tables.items():
            with store.registered("incoming", table):
                columns = ", ".join(table.column_names)
                store.execute(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM incoming")


def _vintage(forecast: ForecastValue, vid: int, source: str) -> dict[str, object]:
    return {
        "vid": vid,
        "market": forecast.market.key,
        "source": source,
        "model": forecast.predictor,
        "issued_at": moment(forecast.issued_at, "issued_at"),
        "step_seconds": int(forecast.step.total_seconds()),
        "newest_row": moment(forecast.newest_row, "newest_row"),
        "horizon": int(forecast.price.shape[0]),
        "capacity": int(forecast.capacity),
        "price_fallback": forecast.price_fallback,
        "count_fallback": forecast.count_fallback,
        "backfilled": bool(forecast.backfilled),
    }


def _values(forecast: ForecastValue, vid: int, variable: str) -> pa.Table:
    quantiles = forecast.price if variable == "price" else forecast.count
    mean = forecast.price_mean if variable == "price" else forecast.count_mean
    horizon = quantiles.shape[0]
    columns: dict[str, pa.Array] = {
        "vid": pa.array(np.full(horizon, vid, dtype=np.int32)),
        "variable": pa.array([variable] * horizon, pa.string()),
        "step_ahead": pa.array(np.arange(1, horizon + 1, dtype=np.int32)),
        "mean": pa.array(np.asarray(mean, dtype=float)),
    }
    for place, name in enumerate(_QUANTILES):
        columns[name] = pa.array(np.ascontiguousarray(quantiles[:, place], dtype=float))
    return pa.table(columns)


def read_forecasts(
    store: Store,
    make: Callable[..., ForecastT],
    *,
    market: Market,
    source: str,
    model: str,
    start: pd.Timestamp | None = None,
    end: pd.Timestamp | None = None,
    step: pd.Timedelta | None = None,
) -> list[ForecastT]:
    """The forecasts issued from ``start`` to ``end`` (both inclusive), ascending, rebuilt by ``make`` (pass `Forecast`).

    The warehouse knows no forecaster: ``make`` is called with the fields of the value by name. ``step`` None: all slot lengths.
    """
    bounds = {"start": start, "end": end}
    parameters: dict[str, object] = {
        name: None if at is None else moment(at, name) for name, at in bounds.items()
    }
    parameters |= {"market": market.key, "source": source, "model": model}
    parameters["step"] = None if step is None else int(step.total_seconds())
    chosen = (
        "SELECT * FROM vintages WHERE market = $market AND source = $source AND model = $model "
        "AND ($start IS NULL OR issued_at >= $start) AND ($end IS NULL OR issued_at <= $end) "
        "AND ($step IS NULL OR step_seconds = $step)"
    )
    vintages = store.execute(
        "SELECT vid, epoch_us(issued_at), step_seconds, epoch_us(newest_row), capacity, price_fallback, count_fallback, "
        f"backfilled FROM ({chosen}) ORDER BY issued_at, step_seconds",
        parameters,
    )
    columns = store.arrays(
        f"SELECT vid, variable = 'price' AS is_price, mean, {', '.join(_QUANTILES)} FROM forecasts "
        f"WHERE vid IN (SELECT vid FROM ({chosen})) ORDER BY vid, variable DESC, step_ahead",
        parameters,
    )
    body = np.column_stack([columns[name] for name in ("mean", *_QUANTILES)])
    return [make(market=market, predictor=model, **_fields(row, columns, body)) for row in vintages]


def _fields(row: tuple[Any, ...], columns: Mapping[str, np.ndarray], body: np.ndarray) -> dict[str, Any]:
    vid, issued_us, step_seconds, newest_us, capacity, price_fallback, count_fallback, backfilled = row
    first, last = np.searchsorted(columns["vid"], [vid, vid + 1])
    horizon = (last - first) // 2
    price, count = body[first : first + horizon], body[first + horizon : last]
    issued_at, newest_row = utc_index(np.array([issued_us, newest_us], dtype=np.int64))
    return {
        "issued_at": issued_at,
        "step": pd.Timedelta(seconds=step_seconds),
        "newest_row": newest_row,
        "price": price[:, 1:],
        "price_mean": price[:, 0],
        "count": count[:, 1:],
        "count_mean": count[:, 0],
        "capacity": capacity,
        "price_fallback": price_fallback,
        "count_fallback": count_fallback,
        "backfilled": backfilled,
    }
