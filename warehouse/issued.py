"""Rows, fitted states and vintages of forecasts, decisions and scores as they were issued; never overwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.warehouse.errors import StoreError
from slackwater.warehouse.history import History, IssuedForecast, Market
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.store.schema import TABLES
from slackwater.warehouse.times import microseconds, moment, utc_index

#: Table -> its natural key: a row with the key of a stored row is repeated, even if other columns differ.
NATURAL_KEYS: Mapping[str, tuple[str, ...]] = {
    name: rule.key for name, rule in TABLES.items() if not rule.id and not rule.needs
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedRows:
    """Numbers of rows (or forecasts) that were added, and of those whose key was stored already."""

    added: int
    repeated: int


def write_rows(
    store: Store, table: str, rows: pd.DataFrame | pa.Table | Sequence[Mapping[str, Any]]
) -> AddedRows:
    """Add rows to a table of `NATURAL_KEYS`; rows whose key is stored already, or occurs earlier in ``rows``, count as repeated.

    Missing columns are null. Raises `StoreError` for an unknown table or column, or a missing key column.
    """
    key = NATURAL_KEYS.get(table)
    if key is None:
        raise StoreError(f"table {table!r}", expected=f"one of {', '.join(NATURAL_KEYS)}")
    incoming = _as_arrow(rows)
    if not incoming.num_rows:
        return AddedRows(added=0, repeated=0)
    _check_columns(store, table, incoming.column_names, key)
    fresh = _new_rows(store, table, incoming, key)
    if fresh.num_rows:
        names = ", ".join(fresh.column_names)
        with store.transaction(), store.registered("incoming", fresh):
            store.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM incoming")
    return AddedRows(added=fresh.num_rows, repeated=incoming.num_rows - fresh.num_rows)


def _new_rows(store: Store, table: str, incoming: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the rows whose key is neither stored nor that of an earlier row, in their order."""
    # Only keys are sorted and joined: with whole rows, wide tables would be in memory several times. Stored
    # rows are filtered by the range of the first key column, so that a table of millions is not loaded for a
    # few rows; the range is passed as values, since two subqueries would take half the time for a few rows.
    keys = ", ".join(key)
    bounds = pc.min_max(incoming[key[0]]).as_py()
    there = f"SELECT {keys} FROM {table} WHERE {key[0]} BETWEEN $least AND $most"
    with store.registered("incoming", incoming.select(list(key))):
        if incoming.num_rows == 1:  # the usual case: no duplicates within the rows
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
    """Return rows of a table, in the order written unless ``order_by`` names columns.

    ``where`` maps a column to a value (equal), a list or tuple (any of), or a slice (start <= column < stop,
    either may be None). Raises `StoreError` for an unknown table or column. Times are UTC.
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
    elif wanted is None:
        tests.append(f"{name} IS NULL")
    else:
        # Not "IS NOT DISTINCT FROM", by which DuckDB would read every block of a table of a year.
        tests.append(f"{name} = ?")
        parameters.append(_plain(wanted))


def _plain(value: object) -> object:
    return moment(value, "time") if isinstance(value, pd.Timestamp) else value


def record_assumptions(store: Store, history: History) -> AddedRows:
    """Store the assumptions of a history, per market and source."""
    return write_rows(
        store,
        "assumptions",
        [
            {"market": history.market.key, "source": history.source, "text": text}
            for text in history.assumptions
        ],
    )


# ---
# States of fitted forecasters (M6.4): written once, so that turns between two refits need no fit.
#
# The warehouse does not interpret a state: it is text that `slackwater.forecasting.predictor` writes and reads.


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedState:
    """State of ``predictor`` for a variable, fitted on the series ``panel`` with slots of ``step``.

    ``fitted_at``: last slot used for the fit; ``known_at`` (not before it): when all these rows
    were known. ``panel`` names the series: ``market@source`` for a market fitted alone, a source or
    any other name for several markets fitted together.
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
                f"{self.predictor} of {self.panel} estimated at {self.fitted_at} on the data known at {self.known_at}",
                expected="a known_at at or after the fit time",
            )


def save_fitted(store: Store, states: Iterable[FittedState]) -> AddedRows:
    """Store fitted states; a stored state with the same predictor, variable, panel, step and fit time remains unchanged."""
    rows = [
        {
            "predictor": state.predictor,
            "variable": state.variable,
            "panel": state.panel,
            "step_seconds": int(state.step.total_seconds()),
            "fitted_at": moment(state.fitted_at, "fitted_at"),
            "known_at": moment(state.known_at, "known_at"),
            "state": state.state,
        }
        for state in states
    ]
    return write_rows(store, "fitted", rows)


def forget_fitted(store: Store, states: Iterable[FittedState]) -> None:
    """Delete stored states of the same predictor, variable, panel, step and fit time, because they are no longer readable."""
    with store.transaction():
        for state in states:
            store.execute(
                "DELETE FROM fitted WHERE predictor = ? AND variable = ? AND panel = ? AND step_seconds = ? "
                "AND fitted_at = ?",
                [
                    state.predictor,
                    state.variable,
                    state.panel,
                    int(state.step.total_seconds()),
                    moment(state.fitted_at, "fitted_at"),
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
    """Return the states fitted at ``fitted_at`` and known at ``known_at`` (M1.2), by (panel, variable), in one query."""
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
# Forecasts as they were issued (M6.1): each vintage is written once and read back unchanged.

_QUANTILES = tuple(f"q{level:02d}" for level in range(5, 100, 5))
ForecastT = TypeVar("ForecastT")


def write_forecasts(store: Store, forecasts: Iterable[IssuedForecast], *, source: str) -> AddedRows:
    """Store forecasts for markets of a source, counted in forecasts; existing forecasts are never overwritten (M6.1).

    The key of a vintage is (market, source, model, issued_at, step); a vintage whose key is stored
    remains unchanged.
    """
    forecasts = list(forecasts)
    known = {tuple(row) for row in _vintage_keys(store, source, forecasts)}
    (next_vid,) = store.execute("SELECT coalesce(max(vid), 0) + 1 FROM vintages")[0]
    new: list[IssuedForecast] = []
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
    return AddedRows(added=len(new), repeated=len(forecasts) - len(new))


def _vintage_keys(store: Store, source: str, forecasts: Sequence[IssuedForecast]) -> list[tuple[Any, ...]]:
    """Return the keys of a source's stored vintages issued within the time range of the forecasts."""
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


def _vintage(forecast: IssuedForecast, vid: int, source: str) -> dict[str, object]:
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


def _values(forecasts: Sequence[IssuedForecast], vids: Sequence[int]) -> pa.Table:
    """Return the rows of several forecasts: for each first the prices, then the counts, by lead time."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class VintageQuery:
    """Query of stored forecasts by markets with their sources, models, and time of issue, ``start`` to ``end`` inclusive.

    None: no bound, and for ``step`` all slot lengths.
    """

    markets: Iterable[tuple[Market, str]]
    models: Iterable[str]
    start: pd.Timestamp | None = None
    end: pd.Timestamp | None = None
    step: pd.Timedelta | None = None

    def parameters(self) -> dict[str, object]:
        """Return the parameters of `_CHOSEN`."""
        places = list(self.markets)
        return {
            "keys": [market.key for market, _ in places],
            "sources": [source for _, source in places],
            "models": list(self.models),
            "start": None if self.start is None else moment(self.start, "start"),
            "end": None if self.end is None else moment(self.end, "end"),
            "step": None if self.step is None else int(self.step.total_seconds()),
        }


_CHOSEN = (
    "SELECT * FROM vintages JOIN (SELECT unnest($keys) AS market, unnest($sources) AS source) USING (market, source) "
    "WHERE list_contains($models, model) AND ($start IS NULL OR issued_at >= $start) "
    "AND ($end IS NULL OR issued_at <= $end) AND ($step IS NULL OR step_seconds = $step)"
)


def read_forecasts(
    store: Store, make: Callable[..., ForecastT], *, market: Market, source: str, model: str, **bounds: Any
) -> list[ForecastT]:
    """Return the forecasts of one market by one model, ascending; ``bounds`` are those of `VintageQuery`."""
    query = VintageQuery(markets=[(market, source)], models=[model], **bounds)
    return read_vintages(store, make, query).get((market.key, source, model), [])


def vintage_times(store: Store, query: VintageQuery) -> dict[tuple[str, str, str], set[pd.Timestamp]]:
    """Return the issue times of stored forecasts by (market, source, model)."""
    columns = store.arrays(
        f"SELECT market, source, model, epoch_us(issued_at) AS issued_us FROM ({_CHOSEN})", query.parameters()
    )
    found: dict[tuple[str, str, str], set[pd.Timestamp]] = {}
    issued = utc_index(columns["issued_us"].astype(np.int64))
    for market, source, model, at in zip(
        columns["market"], columns["source"], columns["model"], issued, strict=True
    ):
        found.setdefault((market, source, model), set()).add(at)
    return found


def read_vintages(
    store: Store, make: Callable[..., ForecastT], query: VintageQuery
) -> dict[tuple[str, str, str], list[ForecastT]]:
    """Return the stored forecasts, ascending, by (market, source, model), in two statements.

    ``make`` (pass `Forecast`) is called with the fields of the forecast by name, as the warehouse does not
    import any forecaster.
    """
    query = replace(query, markets=list(query.markets))
    named = {(market.key, source): market for market, source in query.markets}
    parameters = query.parameters()
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
