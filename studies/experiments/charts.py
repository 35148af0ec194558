"""Chart types that only experiments draw: heat maps and filled areas."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from slackwater.flows.show.charts import Axis, Rows, across, complete_chart, empty_chart, upward
from slackwater.flows.show.page import colour


def heat(rows: Rows, *, x: Axis, y: Axis, value: str) -> dict[str, Any]:
    """Return a heat map: ``rows`` with keys x and y (names) and z, the number in the cell; a dash if z is missing.

    The sign determines the hue, the absolute value the intensity, which is full from 1 on.
    Names on the horizontal axis are broken at commas.
    """
    drawn = []
    for row in rows:
        known = row["z"] is not None and math.isfinite(row["z"])
        share = min(1.0, abs(row["z"])) if known else 0.0
        text = f"{row['z']:.2f}".replace("-", "−") if known else "–"
        drawn.append({**row, "sign": bool(known and row["z"] > 0), "shade": 0.75 * share, "text": text})
    lines_high = len({row["y"] for row in drawn})
    plain: dict[str, Any] = {"domain": False, "ticks": False}
    names = alt.Axis(
        title=x.title or None,
        labelAngle=0,
        orient="top",
        labelExpr="split(datum.label, ', ')",
        labelPadding=18,
        **plain,
    )
    base = empty_chart().encode(
        x=alt.X("x:N", sort=None, axis=names),
        y=alt.Y("y:N", sort=None, axis=alt.Axis(title=y.title or None, labelLimit=240, **plain)),
    )
    hue = alt.condition("datum.sign", alt.value(colour("series3")), alt.value(colour("series2")))
    tips = ["y:N", "x:N", alt.Tooltip("z:Q", title=value, format=".3~g")]
    square = base.mark_rect().encode(
        color=hue, opacity=alt.Opacity("shade:Q", scale=None, legend=None), tooltip=tips
    )
    number = base.mark_text().encode(text="text:N")
    return complete_chart(square + number, height=30 * lines_high, rows=drawn)


def area(rows: Rows, *, x: Axis, y: Axis, height: int = 60) -> dict[str, Any]:
    """Return an area chart of a single series (keys x and y)."""
    chart = empty_chart().mark_area(color=colour("rest"), line={"color": colour("muted"), "strokeWidth": 1.2})
    return complete_chart(chart.encode(x=across("x", x), y=upward("y", y)), height=height, rows=rows)
