"""A market drawn around one forecast vintage: the past, the fan, and what then came, for price and count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from flows.ui.charts import (
    LEFT,
    NARROW,
    RIGHT,
    WIDE,
    Scale,
    band,
    drawing,
    gaps,
    label,
    nice_ticks,
    px,
    steps,
    times_axis,
    x_axis,
    y_axis,
)

#: (lower, upper, class) of the bands, the widest first.
BANDS: Final = (("q05", "q95", "band90"), ("q10", "q90", "band80"), ("q25", "q75", "band50"))
#: Slots of the past that a narrow drawing has room for.
NARROW_PAST: Final = 36


def draw_market(data: Mapping[str, Any], *, step: pd.Timedelta) -> str:
    """Both sizes of the drawing of one market, from the plain values of `flows.ui.markets.market_data`; "" with no slot at all."""
    if not data["past"]:
        return ""
    return "".join(_draw(data, step, width) for width in (WIDE, NARROW))


def _draw(data: Mapping[str, Any], step: pd.Timedelta, width: int) -> str:
    past = data["past"][-NARROW_PAST:] if width == NARROW else data["past"]
    ahead = data["forecast"]
    first = pd.Timestamp(past[0]["slot"])
    times = times_axis(first, first + (len(past) + len(ahead)) * step, width=width)
    edges = [times.at(first + k * step) for k in range(len(past) + len(ahead) + 1)]
    body = [x_axis(times, top=28, bottom=330)]
    for variable, column, top, bottom, name, limit in (
        ("price", "price_usd", 28, 170, "spot price, USD per instance-hour", data["on_demand_usd"]),
        ("count", "available", 212, 330, "instances available", float(data["capacity"])),
    ):
        seen = np.array([np.nan if row[column] is None else row[column] for row in past], dtype=float)
        came = np.array(
            [np.nan if row[variable]["came"] is None else row[variable]["came"] for row in ahead], dtype=float
        )
        high = 1.06 * max([limit, *seen[~np.isnan(seen)], *(row[variable]["q95"] for row in ahead)])
        scale = Scale(low=0.0, high=high or 1.0, start=bottom, end=top)
        body.append(label(LEFT, top - 14, name))
        body.append(y_axis(scale, nice_ticks(high, whole=variable == "count"), right=width - RIGHT))
        body.append(gaps(edges, np.isnan(seen), top=top, bottom=bottom))
        body += _fan(ahead, variable, edges[len(past) :], scale)
        y = px(scale.at(limit))
        kind = "od-line" if variable == "price" else "cap-line"
        body.append(f'<line class="{kind}" x1="{LEFT}" x2="{px(width - RIGHT)}" y1="{y}" y2="{y}"/>')
        body.append(f'<path class="seen-line" d="{steps(edges, np.concatenate([seen, came]), scale)}"/>')
    if ahead:
        x = px(edges[len(past)])
        body.append(f'<line class="now-line" x1="{x}" x2="{x}" y1="22" y2="330"/>')
    return drawing(
        "".join(body),
        width=width,
        height=356,
        title=f"Price and availability of {data['market']}",
        desc=_described(data),
    )


def _fan(ahead: list[Mapping[str, Any]], variable: str, edges: list[float], scale: Scale) -> list[str]:
    if not ahead:
        return []
    q = {
        name: np.array([row[variable][name] for row in ahead])
        for name in ("q05", "q10", "q25", "q50", "q75", "q90", "q95")
    }
    parts = [f'<path class="{kind}" d="{band(edges, q[low], q[high], scale)}"/>' for low, high, kind in BANDS]
    return [*parts, f'<path class="median-line" d="{steps(edges, q["q50"], scale)}"/>']


def _described(data: Mapping[str, Any]) -> str:
    past = data["past"][-1]
    seen = f"price {past['price_usd']}, {past['available']} instances available at {past['slot']}"
    if not data["forecast"]:
        return f"Newest values: {seen}. No forecast was issued."
    ahead = data["forecast"][0]
    return (
        f"Last values before the forecast: {seen}. Forecast one slot ahead: price {ahead['price']['q50']:.4g}, "
        f"{ahead['count']['q50']:.0f} instances. The table below has every slot ahead."
    )
