"""The kinds of charts, each a few lines of Altair: plain rows in, a Vega-Lite specification out.

Colours are the style sheet's custom properties, so that one chart serves light and dark paper; times are UTC; every chart is
as wide as the column it stands in. Rows are dictionaries; what is missing in them leaves a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from flows.show.formats import plain_scalar
from flows.show.theme import DASHES, SERIES, SHAPES, colour

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis: its title, its ends (None: those of the data), and how numbers stand on it (d3's format)."""

    title: str = ""
    low: float | None = None
    high: float | None = None
    format: str | None = None
    log: bool = False
    whole: bool = False
    zero: bool = True
    ticks: int = 5


def finished(chart: Any, *, height: int, **rows: Rows) -> dict[str, Any]:
    """The specification of a chart that is as wide as its place, with ``rows`` as its named data.

    Data go in at the end: Altair copies and checks what it holds many times over.
    """
    with debug_mode(False):
        spec: dict[str, Any] = chart.properties(width="container", height=height).to_dict(validate=False)
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    for key in ("$schema", "config"):  # the bundle has one version, and the page one theme
        spec.pop(key, None)
    return spec | {"datasets": {name: plain_rows(values) for name, values in rows.items()}}


def named(name: str = "rows") -> alt.Chart:
    """A chart of the rows of this name."""
    return alt.Chart(alt.NamedData(name))


def plain_rows(rows: Rows) -> list[dict[str, Any]]:
    """Rows for a specification: numbers to five digits, times as milliseconds, NaN as null."""
    return [{key: _plain(value) for key, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    value = plain_scalar(value)
    if hasattr(value, "timestamp"):
        return None if value != value else round(value.timestamp() * 1000)
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def number_scale(axis: Axis, *, nice: bool = True) -> alt.Scale:
    """The scale of numbers along an axis, cut at its ends where it has any."""
    ends: dict[str, Any] = {}
    if axis.low is not None:
        ends["domainMin"] = axis.low
    if axis.high is not None:
        ends["domainMax"] = axis.high
    kind = {"type": "log"} if axis.log else {}
    return alt.Scale(
        zero=axis.zero and not axis.log and axis.low is None,
        nice=nice and not ends,
        clamp=bool(ends),
        **kind,
        **ends,
    )


def _axis(axis: Axis) -> alt.Axis:
    shown: dict[str, Any] = {"title": axis.title or None, "tickCount": axis.ticks}
    if axis.whole:
        shown |= {"tickMinStep": 1, "format": "d"}
    if axis.format:
        shown["format"] = axis.format
    return alt.Axis(**shown)


def across(key: str, axis: Axis, *, time: bool = False) -> alt.X:
    """The horizontal channel: numbers, or times in UTC."""
    if time:
        return alt.X(
            f"{key}:T",
            scale=alt.Scale(type="utc"),
            axis=alt.Axis(title=axis.title or None, tickCount=5, labelOverlap=True),
        )
    return alt.X(f"{key}:Q", scale=number_scale(axis, nice=False), axis=_axis(axis))


def upward(key: str, axis: Axis) -> alt.Y:
    """The vertical channel of numbers, its title above the axis, where there is room for it."""
    shown = _axis(axis)
    if axis.title:
        shown.titleAngle, shown.titleAlign, shown.titleAnchor = 0, "left", "end"
        shown.titleX, shown.titleY, shown.titleBaseline = -30, -8, "bottom"
    return alt.Y(f"{key}:Q", scale=number_scale(axis), axis=shown)


def named_series(names: Sequence[str], *, legend: bool = True) -> dict[str, Any]:
    """Colour, dash and mark of the series in ``names``, in this order; ninth and later begin again."""
    shown = alt.Legend() if legend and len(names) > 1 else None
    n = range(len(names))
    return {
        "color": alt.Color("series:N", legend=shown, scale=alt.Scale(domain=list(names), range=[SERIES[k % len(SERIES)] for k in n])),
        "strokeDash": alt.StrokeDash("series:N", legend=shown, scale=alt.Scale(domain=list(names), range=[DASHES[k % len(DASHES)] for k in n])),
        "shape": alt.Shape("series:N", legend=shown, scale=alt.Scale(domain=list(names), range=[SHAPES[k % len(SHAPES)] for k in n])),
    }  # fmt: skip


def lines(
    rows: Rows,
    names: Sequence[str],
    *,
    x: Axis,
    y: Axis,
    time: bool = False,
    points: bool = True,
    steps: bool = False,
    rule: float | None = None,
    band: bool = False,
    height: int = 220,
) -> dict[str, Any]:
    """Lines of ``rows`` (keys x, y, series; low and high too with ``band``), one a name; ``rule`` is a level to compare with."""
    base = named().encode(x=across("x", x, time=time))
    style = named_series(names)
    tooltip = [alt.Tooltip("series:N"), alt.Tooltip("utcyearmonthdatehoursminutes(x):T" if time else "x:Q", title=x.title or "x"),
               alt.Tooltip("y:Q", title=y.title or "y", format=".4~g")]  # fmt: skip
    drawn = base.encode(
        y=upward("y", y), color=style["color"], strokeDash=style["strokeDash"], tooltip=tooltip
    )
    layers = [level(rule)] if rule is not None else []
    if band:
        layers.append(base.mark_area(opacity=0.18).encode(y="low:Q", y2="high:Q", color=style["color"]))
    layers.append(drawn.mark_line(interpolate="step-after" if steps else "linear", clip=True))
    if points:
        layers.append(
            base.mark_point(clip=True).encode(
                y=upward("y", y), color=style["color"], shape=style["shape"], tooltip=tooltip
            )
        )
    return finished(alt.layer(*layers), height=height, rows=rows)


def level(value: float, *, name: str = "ink", across_it: bool = False) -> Any:
    """A level, as a line through the whole chart (upright with ``across_it``)."""
    channel = {"x" if across_it else "y": alt.datum(value)}
    return (
        alt.Chart(alt.InlineData(values=[{}]))
        .mark_rule(color=colour(name), strokeDash=[5, 2], strokeWidth=1.4)
        .encode(**channel)
    )


def dots(
    rows: Rows,
    labels: Sequence[str],
    *,
    x: Axis,
    kinds: Mapping[str, str] | None = None,
    bound: float | None = None,
    spans: bool = False,
    height: int | None = None,
) -> dict[str, Any]:
    """A dot a row (keys label, value, kind; low and high too with ``spans``), labels from the top in their order.

    ``kinds`` gives each kind its colour, in order of mark; a value beyond the ends of the axis stands at its edge as an arrow
    with its number (key ``beyond``).
    """
    kinds = kinds or {"": "series1"}
    place = alt.Y(
        "label:N",
        sort=list(labels),
        axis=alt.Axis(title=None, domain=False, ticks=False, grid=True, labelLimit=220),
    )
    scale = {
        "color": alt.Color("kind:N", legend=alt.Legend() if len(kinds) > 1 else None,
                           scale=alt.Scale(domain=list(kinds), range=[colour(name) for name in kinds.values()])),
        "shape": alt.Shape("kind:N", legend=alt.Legend() if len(kinds) > 1 else None,
                           scale=alt.Scale(domain=list(kinds), range=list(SHAPES[: len(kinds)]))),
    }  # fmt: skip
    base = named().encode(y=place)
    layers = [level(bound, name="capacity", across_it=True)] if bound is not None else []
    if spans:
        layers.append(
            base.mark_rule(strokeWidth=5, opacity=0.35).encode(
                x=across("low", x), x2="high:Q", color=scale["color"]
            )
        )
    layers.append(base.mark_point(size=52, clip=False).encode(
        x=across("value", x), tooltip=[alt.Tooltip("label:N", title=" "), alt.Tooltip("value:Q", title=x.title, format=".4~g")], **scale))  # fmt: skip
    beyond = base.transform_filter("isValid(datum.beyond)").mark_text(align="left", dx=8)
    layers.append(beyond.encode(x=across("value", x), text="beyond:N"))
    return finished(alt.layer(*layers), height=height or 21 * len(labels) + 12, rows=rows)


def bars(rows: Rows, names: Sequence[str], *, x: Axis, y: Axis, height: int = 220) -> dict[str, Any]:
    """Bars of ``rows`` (keys x as a name, y, series), side by side."""
    chart = named().mark_bar().encode(
        x=alt.X("x:N", sort=None, axis=alt.Axis(title=x.title or None, labelAngle=0)),
        xOffset=alt.XOffset("series:N", sort=list(names)),
        y=upward("y", y),
        color=named_series(names)["color"],
        tooltip=["x:N", "series:N", alt.Tooltip("y:Q", format=".4~g")],
    )  # fmt: skip
    return finished(chart, height=height, rows=rows)


def cells(
    rows: Rows, *, x: Axis, y: Axis, shown: Mapping[str, str], time: bool = False, height: int = 200
) -> dict[str, Any]:
    """A map of states: ``rows`` with keys x, x2, y (a name) and state; ``shown`` gives each state its colour."""
    chart = named().mark_rect().encode(
        x=across("x", x, time=time), x2="x2:T" if time else "x2:Q",
        y=alt.Y("y:N", sort=None, axis=alt.Axis(title=y.title or None, domain=False, ticks=False, labelLimit=240)),
        color=alt.Color("state:N", legend=alt.Legend(), scale=alt.Scale(domain=list(shown), range=[colour(one) for one in shown.values()])),
        tooltip=["y:N", "state:N", alt.Tooltip("utcyearmonthdatehoursminutes(x):T" if time else "x:Q", title="from")],
    )  # fmt: skip
    return finished(chart, height=height, rows=rows)


def heat(
    rows: Rows, *, x: Axis, y: Axis, value: str, height: int = 260, diverging: bool = False
) -> dict[str, Any]:
    """A grid of numbers: ``rows`` with keys x and y (names) and z; the number stands in its cell."""
    base = named().encode(
        x=alt.X("x:O", sort=None, axis=alt.Axis(title=x.title or None, labelAngle=0)),
        y=alt.Y("y:O", sort=None, axis=alt.Axis(title=y.title or None, domain=False, ticks=False, labelLimit=240)),
    )  # fmt: skip
    scale = alt.Scale(scheme="redblue", domainMid=0) if diverging else alt.Scale(scheme="blues")
    square = base.mark_rect().encode(
        color=alt.Color("z:Q", legend=None, scale=scale),
        tooltip=["x:O", "y:O", alt.Tooltip("z:Q", title=value, format=".3~g")],
    )
    return finished(
        square + base.mark_text().encode(text=alt.Text("z:Q", format=".3~g")), height=height, rows=rows
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fan:
    """One panel of a market: what was seen, a limit, and the quantiles of a forecast.

    ``past`` has rows with x, x2 and y; ``gaps`` rows with x and x2; ``ahead`` rows with x, x2, median and, for each of 50, 80
    and 90 %, low and high (``low50``, ``high50``, ...).
    """

    title: str
    past: Sequence[Mapping[str, Any]]
    gaps: Sequence[Mapping[str, Any]]
    ahead: Sequence[Mapping[str, Any]]
    limit: float
    limit_colour: str
    whole: bool = False
    height: int = 110


BANDS = ("90", "80", "50")


def fan(panel: Fan, *, labelled: bool = True) -> dict[str, Any]:
    """Steps of the past with its gaps, then bands and median of what is forecast; ``labelled``: with times below."""
    made = _fan(panel.title, panel.limit_colour, panel.whole, labelled, panel.height)
    data = {
        "past": panel.past,
        "gaps": panel.gaps,
        "ahead": panel.ahead,
        "limit": [{"y": panel.limit}],
        "start": [{"x": row["x"]} for row in panel.ahead[:1]],
    }
    return made | {"datasets": {name: plain_rows(rows) for name, rows in data.items()}}


@cache
def _fan(title: str, limit: str, whole: bool, labelled: bool, height: int) -> dict[str, Any]:
    """The same chart for every market: only its data differ."""
    edge = alt.X("x:T", scale=alt.Scale(type="utc", nice=False), axis=alt.Axis(
        title=None, tickCount=4, labels=labelled, ticks=labelled, labelOverlap=True))  # fmt: skip
    steps = {"tickMinStep": 1, "format": "d"} if whole else {}
    up = alt.Y(
        "y:Q", scale=alt.Scale(zero=True), axis=alt.Axis(title=None, tickCount=3, minExtent=32, **steps)
    )
    when = alt.Tooltip("utcyearmonthdatehoursminutes(x):T", title="slot")
    ahead = named("ahead").encode(x=edge, x2="x2:T")
    bands = [
        ahead.mark_rect(color=colour(f"band{band}")).encode(y=alt.Y(f"low{band}:Q"), y2=f"high{band}:Q")
        for band in ("90", "80", "50")
    ]
    median = ahead.mark_rule(color=colour("median"), strokeWidth=1.8).encode(
        y=alt.Y("median:Q"),
        tooltip=[when, alt.Tooltip("median:Q", format=".4~g"), alt.Tooltip("low90:Q", title="5 %", format=".4~g"),
                 alt.Tooltip("high90:Q", title="95 %", format=".4~g")],
    )  # fmt: skip
    tips = [when, alt.Tooltip("y:Q", title=title, format=".4~g")]
    drawn = alt.layer(
        named("gaps").mark_rect(color=colour("rest"), opacity=0.5).encode(x=edge, x2="x2:T"),
        *bands,
        median,
        named("start").mark_rule(strokeDash=[2, 2]).encode(x=edge),
        named("past").mark_line(interpolate="step-after").encode(x=edge, y=up, tooltip=tips),
        named("limit").mark_rule(color=colour(limit), strokeDash=[5, 2], strokeWidth=1.3).encode(y="y:Q"),
    )
    return finished(drawn.properties(title=title), height=height)
