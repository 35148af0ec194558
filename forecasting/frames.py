"""Observations and forecasts as the tables of Nixtla's libraries: `unique_id`, `ds`, `y`, `cutoff` and a column for each model.

A series is named ``source/market/variable``, the last part ``price`` (USD per instance-hour) or ``count`` (instances). Times
are UTC. `of_histories` and `of_forecasts` write the tables that statsforecast, mlforecast and utilsforecast read.
`from_table` makes a predictor of forecasts that another program issued, so that accuracy and plans take them, and
`tidy_rows` the rows of observations that `slackwater ingest tabular` reads. Both take data frames of pandas or Polars.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import pandas as pd

from slackwater.forecasting.adapters import Past, remember_predictor
from slackwater.forecasting.predictor import ByVariable
from slackwater.forecasting.quantiles import LEVELS, Forecast, Variable
from slackwater.warehouse.errors import ForecastError, SettingsError
from slackwater.warehouse.history import History, Market

VARIABLES: tuple[Variable, ...] = ("price", "count")
#: Columns of the values in tidy tables of observations.
_VALUES: dict[str, str] = {"price": "spot_price_usd_per_hour", "count": "available"}


class ColumnTable(Protocol):
    """Table with named columns, as Polars has it."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""

    def __getitem__(self, name: str) -> Any:
        """Return a column, which has a method ``to_numpy``."""


def of_histories(histories: Sequence[History]) -> pd.DataFrame:
    """Return the observed values: columns `unique_id`, `ds` (start of the slot), `y`. Gaps are left out, never filled."""
    parts = [
        pd.DataFrame(
            {
                "unique_id": _series_name(history.source, history.market.key, variable),
                "ds": history.slots,
                "y": values,
            }
        )
        for history in histories
        for variable, values in zip(VARIABLES, (history.price, history.available), strict=True)
    ]
    columns = pd.DataFrame({"unique_id": pd.Series(dtype=str), "ds": pd.Series(dtype="datetime64[us, UTC]")})
    found = pd.concat(parts, ignore_index=True) if parts else columns.assign(y=0.0)
    return found.dropna(subset="y").reset_index(drop=True)


def of_forecasts(
    forecasts: Sequence[Forecast],
    *,
    source: str,
    observed: pd.DataFrame | None = None,
    level: Sequence[int] = (80,),
) -> pd.DataFrame:
    """Return forecasts: columns `unique_id`, `ds`, `cutoff`, `y`, then for each model its median and `model-lo-80`, `model-hi-80`.

    ``observed``: table of `of_histories`, for `y` (NaN where nothing was observed). ``level``: central intervals in percent,
    from the quantiles 5 to 95 % in steps of 5: 10, 20, ... 90. Raises `ForecastError` for another level.
    """
    wrong = [percentage for percentage in level if percentage not in range(10, 91, 10)]
    if wrong:
        raise ForecastError(f"level {wrong[0]}", expected="10, 20, ... 90, as the stored quantiles allow")
    keys = ["unique_id", "ds", "cutoff"]
    tables: dict[str, list[pd.DataFrame]] = {}
    for forecast in forecasts:
        for variable in VARIABLES:
            quantiles = forecast.quantiles(variable)
            columns: dict[str, Any] = {
                "unique_id": _series_name(source, forecast.market.key, variable),
                "ds": forecast.slots,
                "cutoff": forecast.issued_at,
                forecast.predictor: forecast.median(variable),
            }
            for width in level:
                half = width // 10
                columns[f"{forecast.predictor}-lo-{width}"] = quantiles[:, 9 - half]
                columns[f"{forecast.predictor}-hi-{width}"] = quantiles[:, 9 + half]
            tables.setdefault(forecast.predictor, []).append(pd.DataFrame(columns))
    found = pd.DataFrame(columns=keys)
    for parts in tables.values():
        table = pd.concat(parts, ignore_index=True)
        found = table if found.empty else found.merge(table, on=keys, how="outer")
    known = pd.DataFrame(columns=["unique_id", "ds", "y"]) if observed is None else observed
    with_y = found.merge(known, on=["unique_id", "ds"], how="left") if len(found) else found.assign(y=[])
    rest = [name for name in with_y if name not in (*keys, "y")]
    return with_y[[*keys, "y", *rest]].sort_values(["unique_id", "cutoff", "ds"], ignore_index=True)


def tidy_rows(table: pd.DataFrame | ColumnTable) -> pd.DataFrame:
    """Return observations in the form of `of_histories` as rows that `slackwater ingest tabular` reads, saved as CSV or Parquet.

    Rows without a value are left out. Raises `SettingsError` for missing columns and names of other series.
    """
    table = _as_pandas(table)
    missing = [column for column in ("unique_id", "ds", "y") if column not in table]
    if missing:
        raise SettingsError(
            f"a table of observations without {', '.join(missing)}", expected="unique_id, ds, y"
        )
    rows = []
    for name, group in table.dropna(subset="y").groupby("unique_id", sort=False):
        source, key, variable = _parts_of_name(str(name))
        market = Market.parse(key)
        found = pd.DataFrame(
            {"timestamp": pd.to_datetime(group["ds"], utc=True), _VALUES[variable]: group["y"]}
        )
        rows.append(
            found.assign(
                provider=market.provider,
                region=market.region,
                zone=market.zone,
                instance_type=market.instance_type,
                source=source,
            )
        )
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=[*_VALUES.values()])


def from_table(table: pd.DataFrame | ColumnTable, *, name: str) -> ByVariable:
    """Return the predictor that issues the forecasts of a table, in the form of `of_forecasts`, made by any other program.

    ``name`` is the column of the model. Its intervals ``name-lo-80``, ``name-hi-80`` and so on give the quantiles, linear
    between them and equal beyond; without intervals every quantile is the point. The forecast of an origin is that with the
    same `cutoff`; an origin without a row for every slot ahead gets last value, with the reason. Whether a cutoff is honest,
    the table must say: rows made later than their `cutoff` would know the future. Raises `SettingsError` for missing columns.
    """
    table = _as_pandas(table)
    levels = sorted(
        int(found[1])
        for column in table
        if (found := re.fullmatch(rf"{re.escape(name)}-lo-(\d+)", str(column)))
    )
    needed = ["unique_id", "ds", "cutoff", name, *(f"{name}-hi-{level}" for level in levels)]
    missing = [column for column in needed if column not in table]
    if missing:
        raise SettingsError(f"a table of forecasts without {', '.join(missing)}", expected=", ".join(needed))
    shares = [(50 - level / 2) / 100 for level in reversed(levels)]
    columns = [
        *(f"{name}-lo-{level}" for level in reversed(levels)),
        name,
        *(f"{name}-hi-{level}" for level in levels),
    ]
    points = [*shares, 0.5, *(1 - share for share in reversed(shares))]
    known = table[columns].to_numpy(dtype=float)
    quantiles = np.array([np.interp(LEVELS, points, row) for row in np.maximum.accumulate(known, axis=1)])
    rows: dict[str, dict[tuple[str, int], dict[int, np.ndarray]]] = {variable: {} for variable in VARIABLES}
    times = {
        column: pd.DatetimeIndex(pd.to_datetime(table[column], utc=True)).as_unit("us").asi8
        for column in ("ds", "cutoff")
    }
    for series, ds, cutoff, given in zip(
        table["unique_id"], times["ds"], times["cutoff"], quantiles, strict=True
    ):
        source, market, variable = _parts_of_name(str(series))
        rows[variable].setdefault((f"{market}@{source}", int(cutoff)), {})[int(ds)] = given
    price, count = (
        remember_predictor(f"{name} ({column})", IssuedForecasts(rows=rows[column]), pickled=False)
        for column in VARIABLES
    )
    return ByVariable(name=name, price=price, count=count, pooled=False)


@dataclass(frozen=True, kw_only=True)
class IssuedForecasts:
    """Forecasts of a variable that were issued elsewhere: quantiles (19,) by series key, cutoff and slot, in microseconds."""

    pooled: ClassVar[bool] = False
    gives_quantiles: ClassVar[bool] = True

    rows: Mapping[tuple[str, int], Mapping[int, np.ndarray]]

    def fit(self, pasts: Sequence[Past]) -> None:
        """Estimate nothing."""

    def forecast(self, fitted: None, pasts: Sequence[Past], horizon: int) -> np.ndarray:
        """Return the quantiles (pasts, ``horizon``, 19) issued at the end of each past; raises `LookupError` if one is missing."""
        return np.array([self._issue(past, horizon) for past in pasts])

    def _issue(self, past: Past, horizon: int) -> np.ndarray:
        step = past.step // pd.Timedelta(microseconds=1)
        cutoff = int(past.slots[-1]) * step
        found = self.rows.get((past.key, cutoff), {})
        ahead = [found.get(cutoff + k * step) for k in range(1, horizon + 1)]
        if any(forecast is None for forecast in ahead):
            raise LookupError("the table has no row for every slot ahead of this one")
        return np.array(ahead)


def _series_name(source: str, market: str, variable: Variable) -> str:
    return f"{source}/{market}/{variable}"


def _parts_of_name(name: str) -> tuple[str, str, Variable]:
    """Return source, market and variable of the name of a series; raises `SettingsError` for another name."""
    rest, _, variable = name.rpartition("/")
    source, _, market = rest.partition("/")
    for known in VARIABLES:
        if variable == known:
            return source, market, known
    raise SettingsError(f"unique_id {name!r}", expected="source/market/price or source/market/count")


def _as_pandas(table: pd.DataFrame | ColumnTable) -> pd.DataFrame:
    if isinstance(table, pd.DataFrame):
        return table
    return pd.DataFrame({column: table[column].to_numpy() for column in table.columns})
