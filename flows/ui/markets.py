"""Data and charts of markets: the list with freshness, and a market with its past, a forecast and the later observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.exchange import fits, market_rows
from slackwater.flows.following import FollowedMarket
from slackwater.flows.histories import read_history
from slackwater.flows.monitoring.completeness import expected_updates, freshness
from slackwater.flows.places import find_market
from slackwater.flows.show.blocks import Figure
from slackwater.flows.show.formats import as_number, number, plural, price, rows_of, utc
from slackwater.flows.turn.report.panels import market_charts, panel
from slackwater.flows.ui.reading import Reading
from slackwater.forecasting.quantiles import LEVELS, Forecast
from slackwater.warehouse.catalogue import UNKNOWN_RANK, rank_sql
from slackwater.warehouse.errors import InputError, SlackwaterError
from slackwater.warehouse.history import History, Market
from slackwater.warehouse.issued import read_forecasts, read_rows
from slackwater.warehouse.listing import list_markets

#: Slots drawn before a forecast, and the number of forecasts to select from.
PAST_SLOTS: Final = 72
MOST_VINTAGES: Final = 336


PAGE_MARKETS: Final = 100  # Markets per page of the list


def markets_data(reading: Reading, *, patterns: Sequence[str] = (), page: int = 1) -> dict[str, Any]:
    """Return a page of the markets that match all patterns, stale markets first, with newest values and ages."""
    known = market_rows(reading.store, reading.settings, known_at=reading.at)
    forecast = _newest_vintages(reading)
    newest = _newest_values(reading)
    stale = _stale_markets(reading, [(row["market"], row["source"]) for row in known])
    rows = []
    for market in known:
        key = f"{market['market']}@{market['source']}"
        gap = max(pd.Timedelta(seconds=as_number(market["gap_seconds"]) or 0.0), reading.step)
        age = None if reading.at is None else reading.at - pd.Timestamp(market["last_observed"])
        rows.append(
            market
            | {
                "key": key,
                "price_usd": newest.get((key, "price")), "available": newest.get((key, "count")),
                "age_minutes": None if age is None else max(0.0, age / pd.Timedelta(minutes=1)),
                "nominal_minutes": gap / pd.Timedelta(minutes=1),
                "stale": key in stale,
                "newest_forecast": forecast.get(key),
            }
        )  # fmt: skip
    fitting = [row for row in rows if fits(patterns, row)]
    fitting.sort(key=lambda row: (not row["stale"], row["key"]))
    pages = max(1, -(-len(fitting) // PAGE_MARKETS))
    page = min(max(page, 1), pages)
    return {
        "at": reading.at, "known": len(rows), "fitting": len(fitting),
        "stale": sum(row["stale"] for row in fitting), "page": page, "pages": pages,
        "markets": fitting[(page - 1) * PAGE_MARKETS : page * PAGE_MARKETS],
    }  # fmt: skip


def _stale_markets(reading: Reading, markets: Sequence[tuple[str, str]]) -> set[str]:
    """Return the markets (``market@source``) that are stale at the newest turn by `freshness`, as in status and alarms."""
    if reading.at is None:
        return set()
    promises = expected_updates(reading.store, markets, at=reading.at, step=reading.step)
    return {f"{row['market']}@{row['source']}" for row in freshness(promises, at=reading.at) if row["stale"]}


def _newest_vintages(reading: Reading) -> dict[str, pd.Timestamp]:
    """Return the issue time of the planner's newest forecast by market and source."""
    rows = reading.store.execute(
        "SELECT market || '@' || source, max(issued_at) FROM vintages WHERE model = ? GROUP BY ALL",
        [reading.settings.planner],
    )
    return {str(key): pd.Timestamp(at) for key, at in rows}


def _newest_values(reading: Reading) -> dict[tuple[str, str], float]:
    """Return the newest planned price and count, no ratings, of each market and source, as known at the newest turn."""
    newest = (
        "SELECT sid, '{}' AS kind, arg_max({}, row(observed_at, known_at)) AS value FROM {} "
        "WHERE known_at <= $at AND {} GROUP BY sid"
    )
    # Not `market_series.planned`: a file that was last written by an older version has an older view.
    planned = (
        f"SELECT arg_min(sid, rank) FROM (SELECT *, {rank_sql('product')} AS rank FROM series WHERE kind = 'price') "
        f"WHERE rank IS NOT NULL GROUP BY mid, source HAVING min(rank) < {UNKNOWN_RANK} OR count(*) = 1"
    )
    prices = newest.format("price", "price_usd", "price", f"sid IN ({planned})")
    counts = newest.format(
        "count", "available", "availability", "coalesce(kind, '') NOT IN ('score', 'band')"
    )
    at = reading.at if reading.at is not None else pd.Timestamp("9999-12-31", tz="UTC")
    rows = reading.store.execute(
        f"SELECT market || '@' || source, n.kind, value FROM ({prices} UNION ALL {counts}) AS n JOIN market_series USING (sid)",
        {"at": at.to_pydatetime()},
    )
    return {(str(key), str(kind)): float(value) for key, kind, value in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketView:
    """Data of a market page: the history around a forecast (None if there is none), and the forecasts to select from."""

    history: History
    forecast: Forecast | None
    vintages: tuple[pd.Timestamp, ...]
    models: tuple[str, ...]
    model: str
    followed: FollowedMarket


def market_view(reading: Reading, key: str, *, model: str = "", issued: str = "") -> MarketView:
    """Return the market ``provider/region/zone/type[@source]`` with a model's newest forecast, or
    the forecast issued at ``issued``.

    Raises `MarketError` for an unknown market, `InputError` for an unknown model or issue time.
    """
    at = reading.at if reading.at is not None else pd.Timestamp(reading.now)
    followed = find_market(reading.store, key, at=at, settings=reading.settings)
    where = {"market": followed.market.key, "source": followed.source}
    table = read_rows(reading.store, "vintages", where=where, order_by=["issued_at"])
    table = table[table["step_seconds"] == int(reading.step.total_seconds())]
    models = tuple(sorted(set(table["model"])))
    if model and model not in models:
        raise InputError(
            f"no forecasts of {key} by {model!r}", expected=f"one of {', '.join(models) or 'none yet'}"
        )
    model = model or (
        reading.settings.planner if reading.settings.planner in models else (models or ("",))[0]
    )
    times = tuple(pd.Timestamp(t) for t in table["issued_at"][table["model"] == model])[-MOST_VINTAGES:]
    chosen = _choose_vintage(times, issued)
    forecast = None
    if chosen is not None:
        forecast = read_forecasts(
            reading.store,
            Forecast,
            market=followed.market,
            source=followed.source,
            model=model,
            start=chosen,
            end=chosen,
            step=reading.step,
        )[0]
    start = (chosen if chosen is not None else followed.at) - PAST_SLOTS * reading.step
    history = read_history(reading.store, followed, settings=reading.settings, start=start)
    return MarketView(
        history=history, forecast=forecast, vintages=times, models=models, model=model, followed=followed
    )


def _choose_vintage(times: Sequence[pd.Timestamp], issued: str) -> pd.Timestamp | None:
    if not issued:
        return times[-1] if times else None
    for time in times:
        if issued in (time.isoformat(), f"{time:%Y-%m-%dT%H:%M}Z"):
            return time
    span = f"{times[0].isoformat()} to {times[-1].isoformat()}" if times else "none yet"
    raise InputError(f"no forecast issued at {issued!r}", expected=f"one of those issued, {span}")


def market_data(reading: Reading, view: MarketView) -> dict[str, Any]:
    """Return a market as plain values: facts, past slots, the forecast with later observations, and all issue times."""
    history, forecast = view.history, view.forecast
    return {
        "at": reading.at,
        "market": history.market.key,
        "source": history.source,
        "key": view.followed.key,
        "on_demand_usd": history.on_demand_usd if history.on_demand.known else None,
        "on_demand_from": str(history.on_demand),
        "on_demand_note": history.on_demand_note,
        "availability_observed": history.availability_observed,
        "capacity": history.capacity,
        "assumptions": list(history.assumptions),
        "real_clock": history.real_clock,
        "model": view.model,
        "models": list(view.models),
        "issued_at": None if forecast is None else forecast.issued_at,
        "fallback": "" if forecast is None else forecast.fallback,
        "backfilled": False if forecast is None else forecast.backfilled,
        "vintages": list(view.vintages),
        "past": _past(history, forecast),
        "forecast": [] if forecast is None else _steps(history, forecast),
    }


def _past(history: History, forecast: Forecast | None) -> list[dict[str, Any]]:
    """Return the slots up to the issue of the forecast; all slots without a forecast."""
    frame = history.frame if forecast is None else history.frame.loc[: forecast.issued_at]
    return [
        {
            "slot": slot,
            "price_usd": as_number(price),
            "available": as_number(count) if history.availability_observed else None,
        }
        for slot, price, count in zip(frame.index, frame["price_usd"], frame["available"], strict=True)
    ]


def _steps(history: History, forecast: Forecast) -> list[dict[str, Any]]:
    """Return a row per slot ahead: quantiles of price and count, and the observations (None: missing or still to come)."""
    actual = history.frame.reindex(forecast.slots)
    places = {name: int(np.argmin(np.abs(LEVELS - level))) for name, level in _BANDS.items()}
    rows = []
    for i, slot in enumerate(forecast.slots):
        row: dict[str, Any] = {"slots_ahead": i + 1, "slot": slot}
        for variable, column in (("price", "price_usd"), ("count", "available")):
            q = forecast.quantiles("price" if variable == "price" else "count")[i]
            row[variable] = {name: float(q[place]) for name, place in places.items()}
            row[variable]["mean"] = float(forecast.mean("price" if variable == "price" else "count")[i])
            observed = variable == "price" or history.availability_observed
            row[variable]["came"] = as_number(actual[column].iloc[i]) if observed else None
        rows.append(row)
    return rows


#: Quantiles shown of a forecast: the bounds of the 90, 80 and 50 % bands, and the median.
_BANDS: Final = {"q05": 0.05, "q10": 0.1, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q90": 0.9, "q95": 0.95}


def nearest_market(reading: Reading, key: str) -> list[str]:
    """Return similar markets, as suggestions for an unknown market."""
    listing = list_markets(reading.store, known_at=reading.at)
    try:
        kind = Market.parse(key.partition("@")[0]).instance_type
    except SlackwaterError:
        kind = ""
    keys = [f"{row['market']}@{row['source']}" for row in rows_of(listing)]
    return [key for key in keys if kind and key.partition("@")[0].endswith("/" + kind)][:5] or keys[:5]


def market_values(view: MarketView, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the charts of a market, the previous and next forecast, and the coverage of the forecast so far."""
    times = list(data["vintages"])
    place = times.index(data["issued_at"]) if data["issued_at"] in times else None
    return {
        "drawn": market_figure(data, view),
        "place": place,
        "older": times[place - 1] if place else None,
        "newer": times[place + 1] if place is not None and place + 1 < len(times) else None,
        "came": {variable: _coverage_text(data["forecast"], variable) for variable in ("price", "count")},
    }


def _coverage_text(ahead: Sequence[Mapping[str, Any]], variable: str) -> str:
    """Return a text on how often the observations lay in the 80 % band; "" before the first observation."""
    known = [row[variable] for row in ahead if row[variable]["came"] is not None]
    if not known:
        return ""
    inside = sum(row["q10"] - 1e-9 <= row["came"] <= row["q90"] + 1e-9 for row in known)
    return f"{inside} of {plural(len(known), 'slot')} so far lie in the 80 % band"


def market_figure(data: Mapping[str, Any], view: MarketView) -> Figure | None:
    """Return the chart of price and count around a forecast: past, fan and later observations; None without any slot."""
    if not data["past"]:
        return None
    what = "Price and availability" if view.history.availability_observed else "Price"
    return Figure(
        specs=lambda: market_charts(panel(view.history, view.forecast), heights=(150, 110)),
        label=f"{what} of {data['market']}",
        captions=[_caption(data)],
        width=0,
    )


def _caption(data: Mapping[str, Any]) -> str:
    past = data["past"][-1]
    there = (
        f"{number(past['available'], 0)} instances available"
        if data["availability_observed"]
        else "availability not observed,"
    )
    seen = f"price {price(past['price_usd'])} USD, {there} at {utc(past['slot'])}"
    if not data["forecast"]:
        return f"Newest values: {seen}. No forecast was issued."
    ahead = data["forecast"][0]
    return (
        f"Last values before the forecast: {seen}. Forecast one slot ahead: price {price(ahead['price']['q50'])} USD"
        + (f", {ahead['count']['q50']:.0f} instances" if data["availability_observed"] else "")
        + ". The table below has every slot ahead."
    )
