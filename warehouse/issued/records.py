"""What was issued, decided and scored: written once, never overwritten, read back by column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import pyarrow as pa

from warehouse.errors import StoreError
from warehouse.history import History
from warehouse.store.connection import Store
from warehouse.times import moment

#: Table -> its natural key: a row with the key of a stored one is repeated, whatever else it says.
NATURAL_KEYS: Mapping[str, tuple[str, ...]] = {
    "assumptions": ("market", "source", "text"),
    "accuracy": ("measured_at", "market", "source", "model", "variable", "step"),
    "jobs": ("name",),
    "decisions": ("job", "slot"),
    "outcomes": ("job", "policy"),
    "weights": ("round", "policy"),
    "runs": ("run", "stage", "status"),
    "fitted": ("predictor", "variable", "panel", "step_seconds", "fitted_at"),
    "reports": ("job", "reported_at", "known_at", "revision"),
    "deliveries": ("sink", "job", "slot"),
    "fetches": ("feed", "logical_at"),
    "alarms": ("kind", "subject", "raised_at"),
}
_READABLE = (
    *NATURAL_KEYS,
    "imports",
    "rejected",
    "vintages",
    "forecasts",
    "markets",
    "series",
    "price",
    "availability",
)


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
    # first, so that a table of millions is not taken into memory for a few rows.
    keys = ", ".join(key)
    there = (
        f"SELECT {keys} FROM {table} WHERE {key[0]} BETWEEN (SELECT min({key[0]}) FROM incoming) "
        f"AND (SELECT max({key[0]}) FROM incoming)"
    )
    with store.registered("incoming", incoming.select(list(key))):
        places = store.arrays(
            "SELECT place FROM (SELECT *, row_number() OVER () - 1 AS place FROM incoming) AS new "
            f"ANTI JOIN (SELECT * FROM ({there}) SEMI JOIN incoming USING ({keys})) AS old USING ({keys}) "
            f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY place) = 1 ORDER BY place"
        )["place"]
    return incoming if len(places) == incoming.num_rows else incoming.take(places)


def _as_arrow(rows: pd.DataFrame | pa.Table | Sequence[Mapping[str, Any]]) -> pa.Table:
    if isinstance(rows, pd.DataFrame):
        return pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, Sequence):
        return pa.Table.from_pylist([dict(row) for row in rows])
    return rows


def _columns(store: Store, table: str) -> list[str]:
    if table not in store.columns:
        rows = store.execute(
            "SELECT column_name FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index", [table]
        )
        store.columns[table] = [str(row[0]) for row in rows]
    return store.columns[table]


def _check_columns(store: Store, table: str, names: Sequence[str], key: Sequence[str]) -> None:
    there = _columns(store, table)
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
    if table not in _READABLE:
        raise StoreError(f"table {table!r}", expected=f"one of {', '.join(_READABLE)}")
    there = _columns(store, table)
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
# The warehouse knows no model: a state is text that `forecasting.state` writes and reads.


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
