"""Charts of markets around a forecast, and of the markets of a multi-market job over time: for reports and the UI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.ledger.fields import zone_of
from slackwater.flows.show.blocks import Block, Column, Figure, Fold, Section, Table
from slackwater.flows.show.charts import Fan, fan, step_rows
from slackwater.flows.show.charts import route as route_chart
from slackwater.flows.show.formats import MISSING, duration, plural, price, usd, utc
from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.job.request import JobRequest
from slackwater.optimization.job.units import instance_range
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.history import AVAILABLE, PRICE, History, Market

PANEL_SLOTS: Final = 336  # Past slots in a market panel of the report


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketPanel:
    """Past and forecast of a market: ``price`` and ``available`` (slots,), NaN in gaps and where never observed."""

    title: str
    source: str
    slots: pd.DatetimeIndex
    price: np.ndarray
    available: np.ndarray
    on_demand_usd: float
    capacity: int
    forecast: Forecast | None
    assumptions: tuple[str, ...] = ()
    availability_observed: bool = True


def panel(history: History, forecast: Forecast | None) -> MarketPanel:
    """Return the recent past and the planning forecast of a market."""
    tail = history.frame.iloc[-PANEL_SLOTS:]
    return MarketPanel(
        title=history.market.key,
        source=history.source,
        slots=pd.DatetimeIndex(tail.index),
        price=tail[PRICE].to_numpy(dtype=float),
        available=np.where(history.availability_observed, tail[AVAILABLE].to_numpy(dtype=float), np.nan),
        on_demand_usd=history.on_demand_usd,
        capacity=history.capacity,
        forecast=forecast,
        assumptions=history.assumptions,
        availability_observed=history.availability_observed,
    )


#: Fewest past slots drawn, and the same in multiples of the forecast's horizon, so that the
#: forecast stays legible.
PAST_SLOTS, PAST_HORIZONS = 72, 5
#: Index of the lower level, index of the upper level, and width of the band in percent, among the
#: 19 quantile levels.
BANDS = ((0, 18, 90), (1, 17, 80), (4, 14, 50))
MEDIAN = 9


def panel_step(panel: MarketPanel) -> pd.Timedelta:
    """Return the slot length of a panel: from its forecast, else from its slots, else half an hour (the default grid)."""
    if panel.forecast is not None:
        return panel.forecast.step
    if len(panel.slots) > 1:
        return pd.Timedelta(panel.slots[1] - panel.slots[0])
    return pd.Timedelta(minutes=30)


def shown_past(panel: MarketPanel) -> slice:
    """Return the slots of a panel that are drawn: those before its forecast, and the later ones."""
    forecast = panel.forecast
    if forecast is None:
        return slice(max(0, len(panel.slots) - PAST_SLOTS), None)
    before = int((panel.slots <= forecast.issued_at).sum())
    return slice(max(0, before - max(PAST_SLOTS, PAST_HORIZONS * forecast.horizon)), None)


def gap_runs(missing: np.ndarray) -> list[tuple[int, int]]:
    """Return runs of True as half-open ranges.

    >>> gap_runs(np.array([True, False, True, True]))
    [(0, 1), (2, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], missing.astype(int), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def market_charts(panel: MarketPanel, *, heights: tuple[int, int] = (100, 62)) -> list[dict[str, Any]]:
    """Return the price chart and, where availability was observed, the count chart below it.

    Each shows the observations as steps, gaps before the forecast, then the median and the 50, 80
    and 90 % bands of the forecast; observations may go on after its issue.
    """
    forecast, step, shown = panel.forecast, panel_step(panel), shown_past(panel)
    slots = panel.slots[shown]
    before = len(slots) if forecast is None else int((slots <= forecast.issued_at).sum())
    fans = []
    for title, values, quantiles, limit, colour, whole, height in (
        ("price, USD per instance-hour", panel.price, forecast and forecast.price,
         panel.on_demand_usd, "on-demand", False, heights[0]),
        ("instances available", panel.available, forecast and forecast.count,
         panel.capacity, "capacity", True, heights[1]),
    ):  # fmt: skip
        seen = values[shown]
        known = np.flatnonzero(~np.isnan(seen[before:]))
        # Slots that are still to be observed are no gaps.
        end = before + (int(known[-1]) + 1 if known.size else 0)
        fans.append(
            Fan(
                title=title,
                past=step_rows([*slots[:end], slots[end - 1] + step], seen[:end].tolist()) if end else [],
                gaps=[
                    {"x": slots[a], "x2": slots[b - 1] + step} for a, b in gap_runs(np.isnan(seen[:before]))
                ],
                ahead=[] if forecast is None else ahead_rows(forecast, quantiles, step),
                limit=limit,
                limit_colour=colour,
                whole=whole,
                height=height,
            )
        )
    price, count = fans
    return [fan(price, labelled=False), fan(count)] if panel.availability_observed else [fan(price)]


def ahead_rows(forecast: Forecast, quantiles: Any, step: pd.Timedelta) -> list[dict[str, Any]]:
    """Return one row per slot ahead: its ends, the median, and the ends of the bands; ``quantiles`` has shape (h, 19)."""
    return [
        {"x": at, "x2": at + step, "median": row[MEDIAN]}
        | {f"low{band}": row[low] for low, _, band in BANDS}
        | {f"high{band}": row[high] for _, high, band in BANDS}
        for at, row in zip(forecast.slots, quantiles, strict=True)
    ]


def panel_figure(panel: MarketPanel, held: Sequence[str], at: pd.Timestamp) -> Figure:
    """Return the charts of a market with its facts as captions."""
    observed = panel.availability_observed
    facts = f"on-demand {price(panel.on_demand_usd)} USD per instance-hour; "
    facts += f"capacity {panel.capacity}" if observed else "availability not observed"
    label = f"{panel.title}: spot price" + (" and instances available" if observed else "")
    warnings = [f"assumed: {'; '.join(panel.assumptions)}"] if panel.assumptions else []
    source = [f"source {panel.source}"] if panel.source else []
    if len(panel.slots) == 0:
        why = "No slot was observed yet, so there is nothing to draw."
        return Figure(
            specs=[], label=label, title=panel.title, warnings=warnings, strong=held,
            captions=["; ".join([facts, *source])], why=why, width=0,
        )  # fmt: skip
    past, step = shown_past(panel), panel_step(panel)
    no_price, no_count = np.isnan(panel.price[past]), np.isnan(panel.available[past])
    facts += f"; past {duration(step * no_price.size)} in slots of {duration(step)}"
    gaps = _gap_text(no_price, no_count if observed else np.zeros_like(no_price))
    captions = [
        *_remarks(panel.slots[-1], step, at, bool(no_price.all() and no_count.all())),
        _forecast_words(panel, step),
        "; ".join([facts, *source, *([gaps] if gaps else [])]),
    ]
    return Figure(
        specs=lambda: market_charts(panel), label=label, title=panel.title, warnings=warnings,
        strong=held, captions=captions, width=0,
    )  # fmt: skip


def _forecast_words(panel: MarketPanel, step: pd.Timedelta) -> str:
    forecast = panel.forecast
    if forecast is None:
        return "No forecast was issued for this market."
    text = f"forecast by {forecast.predictor}, {duration(step * forecast.horizon)} ahead, issued {utc(forecast.issued_at)}"
    return f"{text}; fell back ({forecast.fallback})" if forecast.fallback else text


def _remarks(last: pd.Timestamp, step: pd.Timedelta, at: pd.Timestamp, all_gap: bool) -> Iterator[str]:
    if all_gap:
        yield "Nothing was observed in any of these slots: they are all gaps."
    if at - last > step:
        yield f"The record ends at {utc(last)}; the market is taken at that time."


def _gap_text(price: np.ndarray, count: np.ndarray) -> str:
    parts = [f"{word} {int(m.sum())}" for word, m in (("price", price), ("count", count)) if m.any()]
    return f"slots not observed (of {price.size}): {', '.join(parts)}" if parts else ""


# ---
# Routes of multi-market jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRoute:
    """The markets of a multi-market job over time: ``decided`` are its decisions, ascending, ``panels`` its market panels."""

    job: str
    request: JobRequest
    decided: list[dict[str, Any]]
    panels: list[MarketPanel]

    def sizes(self, market: str) -> tuple[int, int]:
        """Return the least and the most instances that the job may run in a market; (1, 1) where unknown."""
        try:
            return instance_range(self.request, Market.parse(market))
        except JobError:  # the type is too large for the job, or its GPUs are unknown
            return 1, 1


#: Legend of a route chart.
ROUTE_LEGEND: Final = (
    "Each strip is a market of the job: the greener, the more of the usable spot instances were available; grey is a gap. "
    "Bars are the instances that ran, on spot (blue) or with on-demand (orange); an outline is the decision of the present "
    "slot. The line follows the checkpoint of the job: it changes strips when the job moves."
)
#: Rows of the route table shown unfolded, and fewest slots in the chart, including slots before the job.
ROUTE_ROWS, ROUTE_SLOTS = 12, 24


def routes_section(routes: Sequence[JobRoute]) -> Section:
    """Return the section with the route of each multi-market job: a chart and a table of its markets by slot."""
    blocks: list[Block] = [ROUTE_LEGEND]
    for route in routes:
        rows = _route_rows(route)
        table = [Table("", rows[:ROUTE_ROWS], ROUTE_COLUMNS, cards=True)]
        more = rows[ROUTE_ROWS:]
        fold = [Fold("Previous decisions", [Table("", more, ROUTE_COLUMNS, cards=True)])] if more else []
        blocks.append(Section(route.job, [route_figure(route), *table, *fold]))
    return Section("Markets of multi-market jobs", blocks, "routes")


ROUTE_COLUMNS: Final[dict[str, Column | str]] = {
    "slot": Column(heading="from", unit="UTC"), "slots": "slots", "where": "where", "on_demand": "on-demand", "spot": "spot",
    "there": "spot there", "price": Column(heading="price", unit="$"),
    "moved_from": Column(heading="moves from", format=zone_of), "move_usd": Column(heading="move", unit="$", format=usd),
}  # fmt: skip


def _route_rows(route: JobRoute) -> list[dict[str, Any]]:
    """Return a row for each period with the same decision in the same market, newest first."""
    panels = {panel.title: panel for panel in route.panels}
    rows: list[dict[str, Any]] = []
    for row in route.decided:
        slot, held = pd.Timestamp(row["slot"]), row["on_demand"] + row["spot"]
        waits = f"waits in {zone_of(row['place'])}" if row["place"] else "nowhere yet"
        where = zone_of(row["market"]) if held else waits
        now = {"where": where, "on_demand": row["on_demand"], "spot": row["spot"]}
        if not rows or row["moved_from"] or any(rows[-1][key] != value for key, value in now.items()):
            moved = {
                "moved_from": row["moved_from"],
                "move_usd": row["move_usd"] if row["moved_from"] else None,
            }
            rows.append({"slot": slot, "slots": 0, "counts": [], "prices": [], **now, **moved})
        count, cost = _observed_at(panels.get(str(row["market"])), slot)
        rows[-1]["slots"] += 1
        rows[-1]["counts"] += [] if count is None else [count]
        rows[-1]["prices"] += [] if cost is None else [cost]
    return [
        {**row, "there": _span(row["counts"], str), "price": _span(row["prices"], price)}
        for row in reversed(rows)
    ]


def _span(values: Sequence[Any], written: Callable[[Any], str]) -> str:
    if not values:
        return MISSING
    ends = [written(min(values)), written(max(values))]
    return " to ".join(dict.fromkeys(ends))


def _observed_at(panel: MarketPanel | None, slot: pd.Timestamp) -> tuple[int | None, float | None]:
    """Return spot count and price of a market in a slot, None where they were not observed."""
    if panel is None or slot not in panel.slots:
        return None, None
    at = panel.slots.get_loc(slot)
    count, cost = float(panel.available[at]), float(panel.price[at])
    return None if np.isnan(count) else int(count), None if np.isnan(cost) else cost


def route_figure(route: JobRoute) -> Figure:
    """Return the chart of a route: markets in order of first use, then those with the most available spot instances."""
    step = panel_step(route.panels[0]) if route.panels else pd.Timedelta(minutes=30)
    slots = [pd.Timestamp(row["slot"]) for row in route.decided]
    if not slots or not route.panels:
        return Figure(
            specs=[], label=f"Places of {route.job}", why="Nothing was decided for it yet.", width=0
        )
    end = slots[-1] + step
    start = min(slots[0], end - ROUTE_SLOTS * step)
    been = [str(row["place"]) for row in route.decided if row["place"]]
    mean = {
        panel.title: float(np.nan_to_num(panel.available[panel.slots >= start]).sum())
        for panel in route.panels
    }
    first_visits = {name: k for k, name in enumerate(dict.fromkeys(been))}
    panels = sorted(
        route.panels,
        key=lambda drawn: (first_visits.get(drawn.title, len(first_visits)), -mean[drawn.title], drawn.title),
    )
    zones = [zone_of(panel.title) for panel in panels]
    names = zones if len(set(zones)) == len(zones) else [panel.title for panel in panels]
    name = dict(zip((panel.title for panel in panels), names, strict=True))

    def draw() -> list[dict[str, Any]]:
        strips = [
            row
            for panel in panels
            for row in _strip(panel, name[panel.title], route.sizes(panel.title)[1], start, end, step)
        ]
        return [
            route_chart(
                strips,
                names,
                held=_route_held(route, name, step),
                path=_route_path(route, name, step),
                ends=(start, end),
                kinds={"on spot": "series1", "with on-demand": "on-demand"},
            )
        ]

    moves = [row for row in route.decided if row["moved_from"]]
    paid = sum(row["move_usd"] for row in moves)
    now = f"now in {name.get(been[-1], been[-1])}" if been else "nowhere yet"
    return Figure(
        specs=draw, label=f"Places of {route.job} among its markets over time", width=0,
        captions=[f"{plural(len(slots), 'slot')}, {plural(len(moves), 'move')} for {usd(paid)} USD; {now}."],
    )  # fmt: skip


def _strip(
    panel: MarketPanel, name: str, most: int, start: pd.Timestamp, end: pd.Timestamp, step: pd.Timedelta
) -> list[dict[str, Any]]:
    """Return a row for each period from ``start`` to ``end`` in which neither count nor price of a market changed."""
    rows: list[dict[str, Any]] = []
    for slot in pd.date_range(start, end - step, freq=step):
        count, cost = _observed_at(panel, slot)
        caption = (
            "not observed" if count is None else f"{count} at {MISSING if cost is None else price(cost)} USD"
        )
        if rows and rows[-1]["told"] == caption:
            rows[-1]["x2"] = slot + step
            continue
        share = None if count is None else min(count, most) / most
        rows.append({"x": slot, "x2": slot + step, "name": name, "share": share, "told": caption})
    return rows


def _route_held(route: JobRoute, name: Mapping[str, str], step: pd.Timedelta) -> list[dict[str, Any]]:
    """Return a bar for every slot with instances: the decided instances, of spot at most those available."""
    panels = {panel.title: panel for panel in route.panels}
    rows: list[dict[str, Any]] = []
    for row in route.decided:
        slot, planned = pd.Timestamp(row["slot"]), row is route.decided[-1]
        count, _ = _observed_at(panels.get(str(row["market"])), slot)
        spot = row["spot"] if planned else min(row["spot"], count or 0)
        if row["market"] not in name or row["on_demand"] + spot < route.sizes(str(row["market"]))[0]:
            continue
        rows.append(
            {
                "x": slot,
                "x2": slot + step,
                "name": name[row["market"]],
                "kind": "with on-demand" if row["on_demand"] else "on spot",
                "told": f"{row['on_demand']} on-demand and {spot} spot",
                "planned": planned,
            }
        )
    return rows


def _route_path(route: JobRoute, name: Mapping[str, str], step: pd.Timedelta) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for row in route.decided:
        if row["place"] in name:
            slot, market = pd.Timestamp(row["slot"]), name[row["place"]]
            if rows and rows[-1]["x"] < slot:
                rows.append({**rows[-1], "x": slot})
            rows += [{"x": slot, "name": market}, {"x": slot + step, "name": market}]
    return rows
