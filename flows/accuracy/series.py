"""Data on which accuracy is measured: every measured series as panels, and forecasts as issued by turns (M1.2, M6.1, M6.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.following import FollowedMarket, slot_to_read, step_of
from slackwater.flows.histories import read_history
from slackwater.flows.show.formats import duration, rows_of
from slackwater.forecasting.accuracy.tables import Accuracy, StoredForecasts, Tally, accuracy_of, tally
from slackwater.forecasting.origins import Block, Timetable, second_half
from slackwater.forecasting.predictor import Outlook, Panel
from slackwater.forecasting.quantiles import Forecast, Variable
from slackwater.forecasting.series import Series, series_of, slot_at
from slackwater.warehouse.asof import HELD_CONSTANT
from slackwater.warehouse.errors import MarketError, no_observations
from slackwater.warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History, Market
from slackwater.warehouse.issued import VintageQuery, read_vintages, vintage_times
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.store.connection import Store

VARIABLES: tuple[Variable, ...] = ("count", "price")
#: Minimum number and share of observed slots in either half of a series.
LEAST_SLOTS = 48
LEAST_SHARE = 0.5
LEAST_PRICES = 20  # Minimum number of records of a price; fewer do not show how it changes


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesChoice:
    """Selection of series: markets by a glob on ``provider/region/zone/type[@source]``, variables, and first origin."""

    market: str | None = None
    variables: Sequence[Variable] = VARIABLES
    since: pd.Timestamp | None = None

    def matches(self, row: dict[str, Any]) -> bool:
        """Return whether a row of the market list is selected."""
        if self.market is None:
            return True
        key = f"{row['market']}@{row['source']}" if "@" in self.market else str(row["market"])
        return fnmatchcase(key, self.market)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSeries:
    """Panels by source and variable, the origins of every series, and notes on the series left out."""

    panels: tuple[Panel, ...]
    origins: tuple[tuple[np.ndarray, ...], ...]
    notes: tuple[str, ...]


#: Markets of the series left out, by source, variable and reason.
_LeftOut = dict[tuple[str, str, str], list[str]]


def _leave_out(left_out: _LeftOut, row: dict[str, Any], variable: str, reason: str) -> None:
    left_out.setdefault((str(row["source"]), variable, reason), []).append(str(row["market"]))


def _notes_on(left_out: _LeftOut) -> tuple[str, ...]:
    """Return a sentence per source, variable and reason."""
    return tuple(
        f"{source}: {len(markets)} {variable} series left out: {reason} (for example {markets[0]})"
        if len(markets) > 1
        else f"{source}: {variable} of {markets[0]} left out: {reason}"
        for (source, variable, reason), markets in sorted(left_out.items())
    )


def measured_panels(
    store: Store,
    settings: Settings,
    choice: SeriesChoice,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> MeasuredSeries:
    """Return every testable series of the warehouse, as known at the end of its own record.

    A value that became known after its slot had begun is a gap, since no forecast at that slot
    could use it. Price and count of a market are separate series; assumed values are not measured.
    Raises `MarketError` if no market matches or no series can be tested, with the reasons.
    """
    rows = [row for row in rows_of(list_markets(store)) if choice.matches(row)]
    if not rows and not choice.market:
        raise no_observations()
    if not rows:
        raise MarketError(
            f"no market matches {choice.market!r}",
            expected="a glob on provider/region/zone/instance_type",
            remedy="`slackwater markets` lists the known ones",
        )
    left_out: _LeftOut = {}
    found: dict[tuple[str, Variable], list[tuple[Series, np.ndarray]]] = {}
    for done, row in enumerate(rows, start=1):
        for series in _series_of_row(store, settings, row, choice, left_out):
            origins = second_half(series, choice.since)
            if origins.size == 0:
                _leave_out(left_out, row, series.variable, "no origin at or after --since")
                continue
            found.setdefault((str(row["source"]), series.variable), []).append((series, origins))
        if progress is not None:
            progress(done, len(rows))
    if not found:
        raise MarketError(
            "no series is long enough to be tested",
            expected=f"at least {LEAST_SLOTS} observed slots in either half; "
            + "; ".join(_notes_on(left_out)[:3]),
            remedy="choose another --step or other markets",
        )
    order = sorted(found, key=lambda key: (-sum(own.size for _, own in found[key]), key))
    return MeasuredSeries(
        panels=tuple(Panel(series=tuple(series for series, _ in found[key])) for key in order),
        origins=tuple(tuple(own for _, own in found[key]) for key in order),
        notes=_notes_on(left_out),
    )


def _series_of_row(
    store: Store, settings: Settings, row: dict[str, Any], choice: SeriesChoice, left_out: _LeftOut
) -> list[Series]:
    step = step_of(settings)
    wanted = [variable for variable in choice.variables if row[_HAS[variable]]]
    for variable in list(wanted):
        reason = _too_thin(row, variable, step)
        if reason:
            _leave_out(left_out, row, variable, reason)
            wanted.remove(variable)
    if not wanted:
        return []
    last = pd.Timestamp(row["last_observed"])
    followed = FollowedMarket(
        market=Market.parse(row["market"]),
        source=str(row["source"]),
        at=slot_to_read(last, last, step, own_end=True),
    )
    start = pd.Timestamp(row["first_observed"])
    try:
        history, priced = _history(store, settings, followed, start)
    except MarketError as error:
        for variable in wanted:
            _leave_out(left_out, row, variable, error.found)
        return []
    history, late = _on_time(history)
    out = []
    for variable in wanted:
        series = _observed_part(series_of(history, variable))
        series = series if priced else replace(series, on_demand_usd=float("nan"))
        reason = _why_untestable(series, history, late)
        if reason:
            _leave_out(left_out, row, variable, reason)
        else:
            out.append(series)
    return out


def _history(
    store: Store, settings: Settings, followed: FollowedMarket, start: pd.Timestamp
) -> tuple[History, bool]:
    """Return the history, and whether its on-demand price is known; counts can be forecast without it."""
    try:
        return read_history(store, followed, settings=settings, start=start), True
    except MarketError:  # an error with another cause is raised again below
        return read_history(store, followed, settings=settings, start=start, on_demand_usd=1.0), False


_HAS: dict[Variable, str] = {"count": "has_counts", "price": "has_price"}


def _too_thin(row: dict[str, Any], variable: Variable, step: pd.Timedelta) -> str:
    """Return the reason to skip a row of the market list without reading it, "" if there is none."""
    gap = row["gap_seconds"]
    if gap > step.total_seconds():
        return f"read every {duration(pd.Timedelta(seconds=gap))}, less often than once a slot"
    span = pd.Timestamp(row["last_observed"]) - pd.Timestamp(row["first_observed"])
    if span < 2 * LEAST_SLOTS * step:
        return f"shorter than {2 * LEAST_SLOTS} slots"
    if variable == "price" and not row["has_counts"] and row["price_rows"] < LEAST_PRICES:
        return f"fewer than {LEAST_PRICES} records of the price"
    return ""


def _on_time(history: History) -> tuple[History, int]:
    """Return the history with a gap for each row that became known after its slot had begun, and the number of these gaps."""
    late = history.frame[ROW_KNOWN_AT] > history.frame.index
    if not late.any():
        return history, 0
    frame = history.frame.copy()
    frame.loc[late, [PRICE, AVAILABLE]] = np.nan
    return replace(history, frame=frame), int(late.sum())


def _observed_part(series: Series) -> Series:
    seen = np.flatnonzero(~np.isnan(series.values))
    return series.part(int(seen[0]), int(seen[-1]) + 1) if seen.size else series.part(0, 0)


def _why_untestable(series: Series, history: History, late: int) -> str:
    """Return why a series cannot be tested, "" if it can."""
    if series.variable == "price" and any(words.startswith(HELD_CONSTANT) for words in history.assumptions):
        return "the price was read once and is held constant by assumption"
    half = len(series) // 2
    seen = ~np.isnan(series.values)
    slots = min(int(seen[:half].sum()), int(seen[half:].sum()))
    learned = f" ({late} became known only after their slot)" if late else ""
    if slots < LEAST_SLOTS:
        return f"fewer than {LEAST_SLOTS} observed slots in a half{learned}"
    if min(seen[:half].mean(), seen[half:].mean()) < LEAST_SHARE:
        return f"fewer than {LEAST_SHARE:.0%} of the slots observed in a half{learned}"
    return ""


# ---
# Stored forecasts of a warehouse, scored as issued, not as the current models would forecast (M6.1, M6.5).


def accuracy_of_vintages(
    store: Store,
    measured: MeasuredSeries,
    models: Sequence[str],
    *,
    horizon: int,
    timetable: Timetable,
    default: str,
    since: pd.Timestamp | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Accuracy:
    """Return the tables of `slackwater.forecasting.accuracy.tables.accuracy_of` for the stored forecasts of
    some models, ``horizon`` ahead.

    Forecasts with a shorter horizon are left out. Raises `MarketError` if there are no forecasts of
    these series.
    """
    origins = tuple(
        tuple(_origins(store, series, models, since) for series in panel.series) for panel in measured.panels
    )
    issued = StoredForecasts(
        panels=measured.panels, origins=origins, models=tuple(models), horizon=horizon, timetable=timetable
    )
    if not any(own.size for panel in origins for own in panel):
        raise MarketError(
            "the warehouse holds no forecasts of these series",
            expected="forecasts that turns have issued",
            remedy="`slackwater run` or `slackwater backfill` issues them; --backtest forecasts the series again",
        )
    total = sum(own.size > 0 for panel in origins for own in panel)
    tallies = _tallies(store, issued, lambda done: progress(done, total) if progress else None)
    return accuracy_of(issued, tallies, default=default, notes=measured.notes)


def _origins(store: Store, series: Series, models: Sequence[str], since: pd.Timestamp | None) -> np.ndarray:
    """Return the slots (indices) of a series with a forecast by any of the models and a value at or before the slot."""
    if series.market is None or not len(series):
        return np.zeros(0, dtype=np.int64)
    query = VintageQuery(
        markets=[(series.market, series.source)], models=models,
        start=max(series.time(0), since) if since is not None else series.time(0),
        end=series.time(len(series) - 1), step=series.step,
    )  # fmt: skip
    times = vintage_times(store, query)
    slots = sorted({slot_at(at, series.step) - series.first_slot for own in times.values() for at in own})
    places = np.array(slots, dtype=np.int64)
    return places[series.newest[places] >= 0] if places.size else places


def _tallies(store: Store, issued: StoredForecasts, progressed: Callable[[int], None]) -> Iterator[Tally]:
    done = 0
    for number, panel in enumerate(issued.panels):
        for which, series in enumerate(panel.series):
            origins = issued.origins[number][which]
            if series.market is None or not origins.size:
                continue
            query = VintageQuery(
                markets=[(series.market, series.source)], models=issued.models,
                start=series.time(int(origins[0])), end=series.time(int(origins[-1])), step=series.step,
            )  # fmt: skip
            for (_, _, model), own in read_vintages(store, Forecast, query).items():
                block = _block(model, (number, which), series, own, issued)
                if block is not None:
                    yield tally(block, issued)
            done += 1
            progressed(done)


def _block(
    model: str, place: tuple[int, int], series: Series, forecasts: Sequence[Forecast], issued: StoredForecasts
) -> Block | None:
    """Return the stored forecasts of a variable of a market by a model with a sufficient horizon."""
    variable, horizon = series.variable, issued.horizon
    wanted = set(issued.origins[place[0]][place[1]].tolist())
    at = {slot_at(forecast.issued_at, series.step) - series.first_slot: forecast for forecast in forecasts}
    there = sorted(spot for spot, forecast in at.items() if spot in wanted and forecast.horizon >= horizon)
    if not there:
        return None
    own = [at[spot] for spot in there]
    return Block(
        model=model,
        panel=place[0],
        which=place[1],
        origins=np.array(there, dtype=np.int64),
        outlook=Outlook(
            quantiles=np.stack([forecast.quantiles(variable)[:horizon] for forecast in own]),
            mean=np.stack([forecast.mean(variable)[:horizon] for forecast in own]),
            reasons=tuple(
                forecast.price_fallback if variable == "price" else forecast.count_fallback
                for forecast in own
            ),
        ),
    )
