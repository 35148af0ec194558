"""Forecasts, estimations, decisions and scores as they were issued; never overwritten.

In this file: rows of any of the tables written once and read back, estimations kept, and vintages of forecasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from warehouse.errors import StoreError
from warehouse.history import History, Market
from warehouse.store.connection import Store
from warehouse.store.schema import TABLES
from warehouse.times import microseconds, moment, utc_index

# ---
# What was issued, decided and scored: written once, never overwritten, read back by column.

#: Table -> its natural key: a row with the key of a stored one is repeated, whatever else it says.
NATURAL_KEYS: Mapping[str, tuple[str, ...]] = {
    name: rule.key for name, rule in TABLES.items() if not rule.id and not rule.needs
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Rows (or forecasts) that were added, and those whose key was there already."""

    added: int
    repeated: int


def write_rows(
    store: Store, table: str, rows: pd.DataFrame | pa.Table | Sequence[Mapping[str, Any]]
) -> Written:
    """Add rows to one of the tables of `NATURAL_KEYS`; a key that is there already, or twice in ``rows``, counts as repeated.

    Columns that are left out are null. Raises `StoreError` for an unknown table or column, or a missing key column.
    """
    key = NATURAL_KEYS.get(table)
    if key is None:
        raise StoreError(f"table {table!r}", expected=f"one of {', '.join(NATURAL_KEYS)}")
    incoming = _as_arrow(rows)
    if not incoming.num_rows:
        return Written(added=0, repeated=0)
    _check_columns(store, table, incoming.column_names, key)
    fresh = _fresh(store, table, incoming, key)
    if fresh.num_rows:
        names = ", ".join(fresh.column_names)
        with store.transaction(), store.registered("incoming", fresh):
            store.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM incoming")
    return Written(added=fresh.num_rows, repeated=incoming.num_rows - fresh.num_rows)


def _fresh(store: Store, table: str, incoming: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows whose key is neither stored nor that of an earlier row, in their order."""
    # Found by their keys alone: sorted and joined whole, wide rows would be held several times over. What is stored is narrowed
    # first, so that a table of millions is not taken into memory for a few rows; its bounds are given as values, since two more
    # queries in the query would be half of what a few rows cost.
    keys = ", ".join(key)
    bounds = pc.min_max(incoming[key[0]]).as_py()
    there = f"SELECT {keys} FROM {table} WHERE {key[0]} BETWEEN $least AND $most"
    with store.registered("incoming", incoming.select(list(key))):
        if incoming.num_rows == 1:  # as most often: nothing beside it to be the same
            known = store.execute(f"SELECT 1 FROM {table} SEMI JOIN incoming USING ({keys}) LIMIT 1")
            return incoming.slice(0, 0) if known else incoming
        places = store.arrays(
            "SELECT min(place) AS place FROM (SELECT *, row_number() OVER () - 1 AS place FROM incoming) AS new "
            f"ANTI JOIN (SELECT * FROM ({there}) SEMI JOIN incoming USING ({keys})) AS old USING ({keys}) "
            f"GROUP BY {keys} ORDER BY place",
            {"least": bounds["min"], "most": bounds["max"]},
        )["place"]
    return incoming if len(places) == incoming.num_rows else incoming.take(places)


def _as_arrow(rows: pd.DataFrame | pa.Table | Sequence[Mapping[str, Any]]) -> pa.Table:
    if isinstance(rows, pd.DataFrame):
        return pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, Sequence):
        return pa.Table.from_pylist([dict(row) for row in rows])
    return rows


def _check_columns(store: Store, table: str, names: Sequence[str], key: Sequence[str]) -> None:
    there = store.columns(table)
    if unknown := [name for name in names if name not in there]:
        raise StoreError(
            f"table {table} has no column {unknown[0]!r}", expected=f"some of {', '.join(there)}"
        )
    if lacking := [name for name in key if name not in names]:
        raise StoreError(f"rows for table {table} lack {lacking[0]!r}", expected=f"its key {', '.join(key)}")


def read_rows(
    store: Store, table: str, *, where: Mapping[str, object] | None = None, order_by: Sequence[str] = ()
) -> pd.DataFrame:
    """Rows of a table, in the order written unless ``order_by`` names columns.

    ``where`` maps a column to a value (equal), a list or tuple (one of), or a slice (start <= column < stop, either may be
    None). Raises `StoreError` for an unknown table or column. Times are UTC.
    """
    if table not in TABLES:
        raise StoreError(f"table {table!r}", expected=f"one of {', '.join(TABLES)}")
    there = store.columns(table)
    for name in (*(where or {}), *order_by):
        if name not in there:
            raise StoreError(f"table {table} has no column {name!r}", expected=f"one of {', '.join(there)}")
    tests: list[str] = []
    parameters: list[object] = []
    for name, wanted in (where or {}).items():
        _add_test(name, wanted, tests, parameters)
    sql = f"SELECT * FROM {table}" + (f" WHERE {' AND '.join(tests)}" if tests else "")
    frame: pd.DataFrame = store.arrow(
        sql + (f" ORDER BY {', '.join(order_by)}" if order_by else ""), parameters
    ).to_pandas()
    return frame


def _add_test(name: str, wanted: object, tests: list[str], parameters: list[object]) -> None:
    if isinstance(wanted, slice):
        for sign, bound in ((">=", wanted.start), ("<", wanted.stop)):
            if bound is not None:
                tests.append(f"{name} {sign} ?")
                parameters.append(_plain(bound))
    elif isinstance(wanted, list | tuple):
        tests.append(f"{name} IN ({', '.join('?' * len(wanted))})" if wanted else "FALSE")
        parameters.extend(_plain(value) for value in wanted)
    else:
        tests.append(f"{name} IS NOT DISTINCT FROM ?")
        parameters.append(_plain(wanted))


def _plain(value: object) -> object:
    return moment(value, "time") if isinstance(value, pd.Timestamp) else value


def record_assumptions(store: Store, history: History) -> Written:
    """Keep what a history assumed, per market and source."""
    return write_rows(
        store,
        "assumptions",
        [
            {"market": history.market.key, "source": history.source, "text": text}
            for text in history.assumptions
        ],
    )


# ---
# Estimated forecasters as they were estimated (M6.4): written once, so that a turn between two refits need not estimate.
#
# The warehouse knows no model: a state is text that `forecasting.predictor` writes and reads.


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedState:
    """What ``predictor`` learned of one variable from the series called ``panel``, on slots of ``step``.

    ``fitted_at`` is the last slot it was estimated on, ``known_at`` (not before it) when all of that was known. ``panel`` names
    the series: a ``market@source`` for a market estimated alone, a source or any other name for several together.
    """

    predictor: str
    variable: Literal["price", "count"]
    panel: str
    step: pd.Timedelta
    fitted_at: pd.Timestamp
    known_at: pd.Timestamp
    state: str

    def __post_init__(self) -> None:
        if self.known_at < self.fitted_at:
            raise StoreError(
                f"{self.predictor} of {self.panel} estimated at {self.fitted_at} on what was known at {self.known_at}",
                expected="a known_at at or after the fit time",
            )


def save_fitted(store: Store, states: Iterable[FittedState]) -> Written:
    """Keep estimated forecasters; one whose predictor, variable, panel, step and fit time are there already is left as it is."""
    rows = [
        {
            "predictor": one.predictor,
            "variable": one.variable,
            "panel": one.panel,
            "step_seconds": int(one.step.total_seconds()),
            "fitted_at": moment(one.fitted_at, "fitted_at"),
            "known_at": moment(one.known_at, "known_at"),
            "state": one.state,
        }
        for one in states
    ]
    return write_rows(store, "fitted", rows)


def forget_fitted(store: Store, states: Iterable[FittedState]) -> None:
    """Drop the stored states of the same predictor, variable, panel, step and fit time: they cannot be read any more."""
    with store.transaction():
        for one in states:
            store.execute(
                "DELETE FROM fitted WHERE predictor = ? AND variable = ? AND panel = ? AND step_seconds = ? "
                "AND fitted_at = ?",
                [
                    one.predictor,
                    one.variable,
                    one.panel,
                    int(one.step.total_seconds()),
                    moment(one.fitted_at, "fitted_at"),
                ],
            )


def load_fitted(
    store: Store,
    *,
    predictor: str,
    step: pd.Timedelta,
    panels: Sequence[str],
    fitted_at: pd.Timestamp,
    known_at: pd.Timestamp,
) -> dict[tuple[str, str], FittedState]:
    """The states estimated at exactly ``fitted_at`` from what was known at ``known_at`` (M1.2), by (panel, variable).

    One query, however many panels; a panel that was not estimated then is absent.
    """
    if not panels:
        return {}
    rows = store.execute(
        "SELECT panel, variable, epoch_us(known_at), state FROM fitted WHERE predictor = $predictor "
        "AND step_seconds = $step AND fitted_at = $fitted_at AND known_at <= $known_at AND list_contains($panels, panel)",
        {
            "predictor": predictor,
            "step": int(step.total_seconds()),
            "fitted_at": moment(fitted_at, "fitted_at"),
            "known_at": moment(known_at, "known_at"),
            "panels": list(panels),
        },
    )
    return {
        (panel, variable): FittedState(
            predictor=predictor,
            variable=variable,
            panel=panel,
            step=step,
            fitted_at=fitted_at,
            known_at=pd.Timestamp(known_us, unit="us", tz="UTC"),
            state=state,
        )
        for panel, variable, known_us, state in rows
    }


# ---
# Forecasts as they were issued (M6.1): each vintage is written once and read back as the value it was.

_QUANTILES = tuple(f"q{level:02d}" for level in range(5, 100, 5))
ForecastT = TypeVar("ForecastT")


class ForecastValue(Protocol):
    """What the warehouse, which knows no model, needs of a forecast; `forecasting.quantiles.Forecast` has it."""

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
    forecasts = list(forecasts)
    known = {tuple(row) for row in _vintage_keys(store, source, forecasts)}
    (next_vid,) = store.execute("SELECT coalesce(max(vid), 0) + 1 FROM vintages")[0]
    new: list[ForecastValue] = []
    for forecast in forecasts:
        key = (
            forecast.market.key,
            forecast.predictor,
            microseconds(forecast.issued_at, "issued_at"),
            int(forecast.step.total_seconds()),
        )
        if key not in known:
            known.add(key)
            new.append(forecast)
    if new:
        vids = range(next_vid, next_vid + len(new))
        vintages = [_vintage(forecast, vid, source) for forecast, vid in zip(new, vids, strict=True)]
        _insert_all(store, {"vintages": pa.Table.from_pylist(vintages), "forecasts": _values(new, vids)})
    return Written(added=len(new), repeated=len(forecasts) - len(new))


def _vintage_keys(store: Store, source: str, forecasts: Sequence[ForecastValue]) -> list[tuple[Any, ...]]:
    """The keys of stored vintages of a source issued within the time of some forecasts."""
    if not forecasts:
        return []
    issued = [forecast.issued_at for forecast in forecasts]
    return store.execute(
        "SELECT market, model, epoch_us(issued_at), step_seconds FROM vintages "
        "WHERE source = ? AND issued_at BETWEEN ? AND ?",
        [source, moment(min(issued), "issued_at"), moment(max(issued), "issued_at")],
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


def _values(forecasts: Sequence[ForecastValue], vids: Sequence[int]) -> pa.Table:
    """The rows of several forecasts: of each first its prices, then its counts, by step."""
    horizons = np.array([forecast.price.shape[0] for forecast in forecasts])
    twice = np.repeat(horizons, 2)
    columns: dict[str, pa.Array] = {
        "vid": pa.array(np.repeat(np.asarray(vids, dtype=np.int32), 2 * horizons)),
        "variable": pa.array(
            np.repeat(np.tile(np.array(["price", "count"], dtype=object), horizons.size), twice)
        ),
        "step_ahead": pa.array(np.concatenate([np.arange(1, h + 1, dtype=np.int32) for h in twice])),
        "mean": pa.array(
            np.concatenate([m for f in forecasts for m in (f.price_mean, f.count_mean)]).astype(float)
        ),
    }
    body = np.concatenate([q for f in forecasts for q in (f.price, f.count)]).astype(float)
    for place, name in enumerate(_QUANTILES):
        columns[name] = pa.array(np.ascontiguousarray(body[:, place]))
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
    parameters |= {"keys": [market.key], "sources": [source], "models": [model]}
    parameters["step"] = None if step is None else int(step.total_seconds())
    found = _read(store, make, {(market.key, source): market}, parameters)
    return found.get((market.key, source, model), [])


def read_vintages(
    store: Store,
    make: Callable[..., ForecastT],
    *,
    markets: Iterable[tuple[Market, str]],
    models: Iterable[str],
    start: pd.Timestamp,
    end: pd.Timestamp,
    step: pd.Timedelta,
) -> dict[tuple[str, str, str], list[ForecastT]]:
    """What `read_forecasts` gives for several markets of a source and models, by (market, source, model), in two statements."""
    named = {(market.key, source): market for market, source in markets}
    return _read(store, make, named, _asked(named, models, start=start, end=end, step=step))


def vintage_times(
    store: Store,
    *,
    markets: Iterable[tuple[Market, str]],
    models: Iterable[str],
    start: pd.Timestamp,
    end: pd.Timestamp,
    step: pd.Timedelta,
) -> dict[tuple[str, str, str], set[pd.Timestamp]]:
    """When forecasts of several markets and models were issued from ``start`` to ``end``, by (market, source, model)."""
    named = {(market.key, source): market for market, source in markets}
    columns = store.arrays(
        f"SELECT market, source, model, epoch_us(issued_at) AS issued_us FROM ({_CHOSEN})",
        _asked(named, models, start=start, end=end, step=step),
    )
    found: dict[tuple[str, str, str], set[pd.Timestamp]] = {}
    issued = utc_index(columns["issued_us"].astype(np.int64))
    for market, source, model, at in zip(
        columns["market"], columns["source"], columns["model"], issued, strict=True
    ):
        found.setdefault((market, source, model), set()).add(at)
    return found


_CHOSEN = (
    "SELECT * FROM vintages JOIN (SELECT unnest($keys) AS market, unnest($sources) AS source) USING (market, source) "
    "WHERE list_contains($models, model) AND ($start IS NULL OR issued_at >= $start) "
    "AND ($end IS NULL OR issued_at <= $end) AND ($step IS NULL OR step_seconds = $step)"
)


def _asked(
    named: Mapping[tuple[str, str], Market],
    models: Iterable[str],
    *,
    start: pd.Timestamp,
    end: pd.Timestamp,
    step: pd.Timedelta,
) -> dict[str, object]:
    return {
        "keys": [key for key, _ in named],
        "sources": [source for _, source in named],
        "models": list(models),
        "start": moment(start, "start"),
        "end": moment(end, "end"),
        "step": int(step.total_seconds()),
    }


def _read(
    store: Store,
    make: Callable[..., ForecastT],
    named: Mapping[tuple[str, str], Market],
    parameters: Mapping[str, object],
) -> dict[tuple[str, str, str], list[ForecastT]]:
    if not named:
        return {}
    vintages = store.execute(
        "SELECT market, source, model, vid, epoch_us(issued_at), step_seconds, epoch_us(newest_row), capacity, "
        f"price_fallback, count_fallback, backfilled FROM ({_CHOSEN}) ORDER BY issued_at, step_seconds, vid",
        parameters,
    )
    if not vintages:
        return {}
    columns = store.arrays(
        f"SELECT vid, mean, {', '.join(_QUANTILES)} FROM forecasts "
        f"WHERE vid IN (SELECT vid FROM ({_CHOSEN})) ORDER BY vid, variable DESC, step_ahead",
        parameters,
    )
    body = np.column_stack([columns[name] for name in ("mean", *_QUANTILES)])
    issued = utc_index(np.array([row[4] for row in vintages], dtype=np.int64))
    newest = utc_index(np.array([row[6] for row in vintages], dtype=np.int64))
    ends = np.searchsorted(columns["vid"], [[row[3], row[3] + 1] for row in vintages])
    found: dict[tuple[str, str, str], list[ForecastT]] = {}
    for i, (key, source, model, *row) in enumerate(vintages):
        fields = _fields(tuple(row), body[ends[i, 0] : ends[i, 1]])
        fields |= {"issued_at": issued[i], "newest_row": newest[i], "market": named[key, source]}
        found.setdefault((key, source, model), []).append(make(predictor=model, **fields))
    return found


def _fields(row: tuple[Any, ...], body: np.ndarray) -> dict[str, Any]:
    _, _, step_seconds, _, capacity, price_fallback, count_fallback, backfilled = row
    price, count = np.split(body, 2)
    return {
        "step": pd.Timedelta(seconds=step_seconds),
        "price": price[:, 1:],
        "price_mean": price[:, 0],
        "count": count[:, 1:],
        "count_mean": count[:, 0],
        "capacity": capacity,
        "price_fallback": price_fallback,
        "count_fallback": count_fallback,
        "backfilled": backfilled,
    }
