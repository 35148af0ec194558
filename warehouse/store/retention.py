"""Rows that are no longer needed in full, by age (decision 60)."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import microseconds

KEEP_FITTED = pd.Timedelta(days=14)  # Age of estimated forecasters that turns may still read
Span = tuple[pd.Timestamp, pd.Timestamp]  # A time range, both ends included


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long rows are kept in full, counted back from the newest of their kind; None: forever.

    ``fitted``: estimated forecasters, dropped afterwards; states are read at their fit time only (M6.4), and
    backfills can fit them again. ``forecasts``: of older days the first forecast of each model in a market
    stays, and those of the model ``planner`` in ``spans``, by which jobs are replayed. ``accuracy``: of older
    days the last measurement stays. The newest row of a market always stays.
    """

    fitted: pd.Timedelta | None = KEEP_FITTED
    forecasts: pd.Timedelta | None = None
    accuracy: pd.Timedelta | None = None
    planner: str = ""
    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        """Raise `SettingsError` for a negative age."""
        for name in ("fitted", "forecasts", "accuracy"):
            age: pd.Timedelta | None = getattr(self, name)
            if age is not None and age < pd.Timedelta(0):
                raise SettingsError(f"{name} kept for {age}", expected="0 days or more")


USUAL = Retention()  # Estimated forecasters by age, everything else forever


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinnedRows:
    """Numbers of dropped rows: estimated forecasters, issued forecasts (all lead times of one count once) and measured errors."""

    fitted: int = 0
    forecasts: int = 0
    accuracy: int = 0


def thin(store: Store, keep: Retention) -> ThinnedRows:
    """Drop the rows that ``keep`` leaves out, all or none; return their numbers."""
    with store.transaction():
        return ThinnedRows(
            fitted=_drop_fitted(store, keep.fitted),
            forecasts=_thin_forecasts(store, keep),
            accuracy=_thin_accuracy(store, keep.accuracy),
        )


def _drop_fitted(store: Store, age: pd.Timedelta | None) -> int:
    return _drop_rows(
        store,
        "DELETE FROM fitted WHERE fitted_at < (SELECT max(fitted_at) FROM fitted) - to_microseconds($age)",
        age,
    )


def _thin_forecasts(store: Store, keep: Retention) -> int:
    if keep.forecasts is None:
        return 0
    spans = ", ".join(
        f"(make_timestamptz({microseconds(first, 'first')}), make_timestamptz({microseconds(last, 'last')}))"
        for first, last in keep.spans
    )
    replayed = f"FROM (VALUES {spans}) AS s(first, last) WHERE v.issued_at BETWEEN s.first AND s.last"
    store.execute(
        "CREATE OR REPLACE TEMP TABLE dropped AS SELECT vid FROM ("
        "SELECT vid, model, issued_at, max(issued_at) OVER () AS now, max(issued_at) OVER own AS newest, "
        "min(issued_at) OVER (PARTITION BY market, source, model, step_seconds, CAST(issued_at AS DATE)) AS kept "
        "FROM vintages WINDOW own AS (PARTITION BY market, source, model)) AS v "
        "WHERE issued_at < now - to_microseconds(CAST($age AS BIGINT)) AND issued_at NOT IN (kept, newest) "
        + (
            f"AND NOT (model = $planner AND EXISTS (SELECT 1 {replayed}))"
            if spans
            else "AND $planner = $planner"
        ),
        {"age": keep.forecasts // pd.Timedelta(microseconds=1), "planner": keep.planner},
    )
    store.execute("DELETE FROM forecasts WHERE vid IN (SELECT vid FROM dropped)")
    ((count,),) = store.execute("DELETE FROM vintages WHERE vid IN (SELECT vid FROM dropped)")
    store.execute("DROP TABLE temp.dropped")
    return int(count)


def _thin_accuracy(store: Store, age: pd.Timedelta | None) -> int:
    return _drop_rows(
        store,
        "DELETE FROM accuracy AS a WHERE measured_at < (SELECT max(measured_at) FROM accuracy) - to_microseconds($age) "
        "AND measured_at NOT IN (SELECT max(measured_at) FROM accuracy GROUP BY CAST(measured_at AS DATE)) "
        "AND measured_at NOT IN (SELECT max(measured_at) FROM accuracy GROUP BY market, source)",
        age,
    )


def _drop_rows(store: Store, sql: str, age: pd.Timedelta | None) -> int:
    if age is None:
        return 0
    ((count,),) = store.execute(
        sql.replace("$age", "CAST($age AS BIGINT)"), {"age": age // pd.Timedelta(microseconds=1)}
    )
    return int(count)
