"""Chart types, each a few lines of Altair: plain rows in, a Vega-Lite specification out.

Colours are custom properties of the style sheet, so that the same chart serves the light and the dark theme.
Times are UTC. Charts fill the width of their container. Rows are dictionaries; missing values leave gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from slackwater.flows.show.formats import plain_scalar
from slackwater.flows.show.page import DASHES, SERIES, SHAPES, colour

if TYPE_CHECKING:
    import altair as alt
else:

    class _Altair:
        """Altair, imported at its first use, because that takes half a second."""

        def __getattr__(self, name: str) -> Any:
            # Else Altair validates every part of a chart when it is made. Tests validate whole charts.
            import_module("altair.utils.schemapi").disable_debug_mode()
            value = getattr(import_module("altair"), name)
            setattr(self, name, value)
            return value

    alt = _Altair()

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Axis of a chart: title, limits (None: the limits of the data) and number format (d3).

    ``symlog`` is the distance from 0 beyond which the scale is logarithmic; ``at`` are the positions of the
    ticks. Limits and ticks are converted to float, so that 1 and 1.0 give equal axes.
    """

    title: str = ""
    low: float | None = None
    high: float | None = None
    format: str | None = None
    log: bool = False
    symlog: float | None = None
    at: Sequence[float] = ()
    whole: bool = False
    zero: bool = True
    ticks: int = 5

    def __post_init__(self) -> None:
        for name in ("low", "high", "symlog"):
            value = getattr(self, name)
            # Rounded, so that sums in another order give the same axis.
            object.__setattr__(self, name, None if value is None else round(float(value), 12))
        object.__setattr__(self, "at", tuple(map(float, self.at)))


def complete_chart(
    chart: Any, *, height: int, legend: Sequence[str] = (), labels: Sequence[str] = (), **rows: Rows
) -> dict[str, Any]:
    """Return the specification of a chart that fills its container, with ``rows`` as its named datasets.

    The lengths of the names in the ``legend`` and of the ``labels`` left of the chart determine the
    space reserved for them.

    Data are added last, because Altair copies its data many times.
    """
    spec: dict[str, Any] = chart.properties(width="container", height=height).to_dict(validate=False)
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    for key in ("$schema", "config"):  # the bundle fixes the version, and the page the theme
        spec.pop(key, None)
    if len(legend) > 1:
        margin = max((len(line) for label in labels for line in label.split("\n")), default=8)
        spec["usermeta"] = {"entry": 34 + 7 * max(map(len, legend)), "labels": 6 * min(margin, 36)}
    return with_data(spec, **rows)


def with_data(spec: dict[str, Any], **rows: Rows) -> dict[str, Any]:
    """Return a specification with ``rows`` added to its named datasets."""
    own = {name: plain_rows(values) for name, values in rows.items()}
    return spec | {"datasets": spec.get("datasets", {}) | own}


def empty_chart(name: str = "rows") -> alt.Chart:
    """Return an empty chart of the named dataset."""
    return alt.Chart(alt.NamedData(name))


def plain_rows(rows: Rows) -> list[dict[str, Any]]:
    """Convert rows for a specification: numbers to five digits, times to milliseconds, NaN to None."""
    return [{key: _plain(value) for key, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    value = plain_scalar(value)
    if hasattr(value, "timestamp"):
        return None if value != value else round(value.timestamp() * 1000)
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def step_rows(edges: Sequence[Any], values: Iterable[Any]) -> list[dict[str, Any]]:
    """Return rows that draw values as steps, each from its edge to the next; needs one more edge than values.

    >>> [(row["x"], row["y"]) for row in step_rows([0, 1, 2, 3], [5.0, None, 7.0])]
    [(0, 5.0), (1, 5.0), (1, None), (2, 7.0), (3, 7.0)]
    """
    rows: list[dict[str, Any]] = []
    last = None
    for edge, value in zip(edges, [*values, None], strict=True):
        missing = value is None or value != value
        if missing and last is not None:
            rows.append({"x": edge, "y": last})
        rows.append({"x": edge, "y": None if missing else value})
        last = None if missing else value
    return rows if rows[-1]["y"] is not None else rows[:-1]


def number_scale(axis: Axis, *, nice: bool = True, clamp: bool = True) -> alt.Scale:
    """Return the scale of a numeric axis with its limits, if any; with ``clamp`` values beyond a limit are drawn at the limit."""
    ends: dict[str, Any] = {}
    if axis.low is not None:
        ends["domainMin"] = axis.low
    if axis.high is not None:
        ends["domainMax"] = axis.high
    kind: dict[str, Any] = {"type": "log"} if axis.log else {}
    if axis.symlog is not None:
        kind = {"type": "symlog", "constant": axis.symlog}
    return alt.Scale(
        zero=alt.Undefined
        if axis.log
        else axis.zero and axis.low is None,  # Vega warns about a zero on a logarithmic scale
        nice=nice and not ends and not axis.log,
        clamp=clamp and bool(ends),
        **kind,
        **ends,
    )


#: Labels of time ticks: the time of day, and the date at midnight.
TICK_WORDS = (
    "utcFormat(datum.value, utchours(datum.value) == 0 && utcminutes(datum.value) == 0 ? '%-d %b' : '%H:%M')"
)


def _axis(axis: Axis, **more: Any) -> alt.Axis:
    shown: dict[str, Any] = {"title": axis.title or None, "tickCount": axis.ticks, **more}
    if axis.whole:
        shown |= {"tickMinStep": 1, "format": "d"}
    if axis.format:
        shown["format"] = axis.format
    if axis.at:
        shown["values"] = list(axis.at)
    return alt.Axis(**shown)


def across(key: str, of: Axis, *, time: bool = False, axis: alt.Axis | None = None) -> alt.X:
    """Return the horizontal channel of numbers, or of times in UTC; ``axis`` replaces the default axis."""
    if time:
        times = alt.Axis(title=of.title or None, tickCount=5, labelOverlap=True, labelExpr=TICK_WORDS)
        return alt.X(f"{key}:T", scale=alt.Scale(type="utc"), axis=times)
    return alt.X(f"{key}:Q", scale=number_scale(of, nice=False), axis=axis or _axis(of))


def upward(key: str, axis: Axis) -> alt.Y:
    """Return the vertical channel of numbers, its title above the axis; values beyond the limits are not drawn."""
    shown = _axis(axis)
    if axis.title:
        shown.titleAngle, shown.titleAlign, shown.titleAnchor = 0, "left", "end"
        shown.titleX, shown.titleY, shown.titleBaseline = -30, -8, "bottom"
    return alt.Y(f"{key}:Q", scale=number_scale(axis, clamp=False), axis=shown)


def legend_of(names: Iterable[str]) -> alt.Legend:
    """Return a legend above the chart, with as many columns as fit on a phone."""
    widest = 28 + 6 * max(map(len, names), default=1)
    return alt.Legend(columns=max(1, min(4, 340 // widest)))


def named_series(names: Sequence[str], *, reference: str = "", order: Sequence[str] = ()) -> dict[str, Any]:
    """Return colour, dash and point shape of the series in ``names``; the ``reference`` is a plain line in text colour.

    Styles are assigned in the order of ``order``, for charts that show only some of the series.
    They repeat after the eighth series.
    """
    shown = alt.Legend(symbolOpacity=1) if len(names) > 1 else None
    styled = [name for name in (order or names) if name != reference]
    place = {name: styled.index(name) for name in names if name in styled}

    def series_scale(values: Sequence[Any], plain: Any) -> alt.Scale:
        given = [values[place[name] % len(values)] if name in place else plain for name in names]
        return alt.Scale(domain=list(names), range=given)

    return {
        "color": alt.Color("series:N", legend=shown, scale=series_scale(SERIES, colour("ink"))),
        "strokeDash": alt.StrokeDash("series:N", legend=shown, scale=series_scale(DASHES, [1, 0])),
        "shape": alt.Shape("series:N", legend=shown, scale=series_scale(SHAPES, "circle")),
    }


def lines(
    rows: Rows,
    names: Sequence[str],
    *,
    x: Axis,
    y: Axis,
    time: bool = False,
    points: bool = True,
    rule: float | Mapping[str, float] | None = None,
    spans: bool = False,
    reference: str = "",
    order: Sequence[str] = (),
    bold: str = "",
    marks: Rows = (),
    guide: Rows = (),
    crosses: Rows = (),
    around: tuple[float, float] | None = None,
    height: int = 220,
) -> dict[str, Any]:
    """Return a line chart of ``rows`` (keys x, y, series; also low and high with ``spans``), with a line per name.

    ``spans`` draws a bar from low to high at each point. A row whose ``point`` is False has no point
    mark. ``rule`` is a reference level, or several by name; ``reference`` is the name of the line
    that others are compared with, ``bold`` that of the most important line.

    ``marks`` are events (keys x and text) along the horizontal axis, ``crosses`` single points
    (keys x, y, series). ``guide`` is the ideal course of a line (keys x and y), ``around`` the range
    of acceptable values.
    """
    rows, marks = list(rows), list(marks)
    drawn = {"marks": marks, "crosses": list(crosses), "guide": list(guide)}
    own = {name: values for name, values in drawn.items() if values}
    points = points and any(row.get("point") is not False and _within(row["y"], y) for row in rows)
    form = _lines(
        names=tuple(names),
        x=x,
        y=y,
        time=time,
        points=points,
        apart=any(row.get("point") is False for row in rows),
        rule=rule if rule is None else tuple(rule.items()) if isinstance(rule, Mapping) else float(rule),
        spans=spans,
        reference=reference,
        order=tuple(order),
        bold=bold if any(row["series"] == bold for row in rows) else "",
        beside=frozenset(own),
        around=around,
        height=height,
    )
    return with_data(form, rows=rows, **own)


def _within(value: Any, axis: Axis) -> bool:
    """Return whether a value lies within the limits of an axis; a layer without any such value would have no extent."""
    if value is None or value != value:
        return False
    return (axis.low is None or value >= axis.low) and (axis.high is None or value <= axis.high)


@lru_cache(maxsize=256)
def _lines(
    *,
    names: tuple[str, ...],
    x: Axis,
    y: Axis,
    time: bool,
    points: bool,
    apart: bool,
    rule: float | tuple[tuple[str, float], ...] | None,
    spans: bool,
    reference: str,
    order: tuple[str, ...],
    bold: str,
    beside: frozenset[str],
    around: tuple[float, float] | None,
    height: int,
) -> dict[str, Any]:
    """Return the chart of `lines` without data, cached because Altair is the slowest step of a page.

    ``apart``: some rows have no point mark; ``beside``: names of additional datasets.
    """
    base = empty_chart().encode(x=across("x", x, time=time))
    style = named_series(names, reference=reference, order=order)
    when = "utcyearmonthdatehoursminutes(x):T" if time else "x:Q"
    tooltip = [
        alt.Tooltip("series:N"),
        alt.Tooltip(when, title=x.title or "x"),
        alt.Tooltip("y:Q", title=y.title or "y", format=".4~g"),
    ]
    layers = [] if around is None else [_range(*around)]
    layers += rules(dict(rule) if isinstance(rule, tuple) else rule)
    if "guide" in beside:
        path = empty_chart("guide").mark_line(color=colour("capacity"), strokeWidth=2.2, strokeDash=[1, 0])
        layers.append(path.encode(x=across("x", x, time=time), y=upward("y", y)))
    if spans:
        bar = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.6, opacity=0.5, clip=True)
        layers.append(bar.encode(y=upward("low", y), y2="high:Q", color=style["color"]))
    # The bold line replaces the thin line, which would fill the gaps of its dashes.
    plain = base.transform_filter(alt.datum.series != bold) if bold else base
    stroke = plain.mark_line(clip=True)
    layers.append(
        stroke.encode(y=upward("y", y), color=style["color"], strokeDash=style["strokeDash"], tooltip=tooltip)
    )
    if bold:
        chosen = base.transform_filter(alt.datum.series == bold)
        thick = chosen.mark_line(clip=True, strokeWidth=3.4)
        layers.append(thick.encode(y=upward("y", y), color=style["color"], strokeDash=style["strokeDash"]))
    if points:
        marked = base.transform_filter("datum.point !== false") if apart else base
        # Filter points beyond the limits: clipping would also halve the points on the left and right edges.
        for end, sign in ((y.low, ">="), (y.high, "<=")):
            marked = marked if end is None else marked.transform_filter(f"datum.y {sign} {end}")
        dot = marked.mark_point()
        layers.append(
            dot.encode(y=upward("y", y), color=style["color"], shape=style["shape"], tooltip=tooltip)
        )
    if "marks" in beside:
        event = empty_chart("marks").encode(x=across("x", x, time=time))
        layers.append(event.mark_rule(strokeDash=[2, 2]))
        layers.append(
            event.mark_text(align="left", baseline="top", dx=3, fontWeight="bold").encode(
                y=alt.value(1), text="text:N"
            )
        )
    if "crosses" in beside:
        found = empty_chart("crosses").mark_point(shape="cross", angle=45, size=90)
        layers.append(
            found.encode(x=across("x", x, time=time), y=upward("y", y), color=style["color"], tooltip=tooltip)
        )
    return complete_chart(alt.layer(*layers), height=height, legend=names)


def _range(low: float, high: float) -> Any:
    data = alt.InlineData(values=[{"from": low, "to": high}])
    return alt.Chart(data).mark_rect(color=colour("grid"), clip=True).encode(y="from:Q", y2="to:Q")


def scatter(
    rows: Rows,
    names: Sequence[str],
    *,
    x: Axis,
    y: Axis,
    rule: float | None = None,
    diagonal: tuple[float, float] | None = None,
    height: int = 360,
) -> dict[str, Any]:
    """Return a scatter plot of rows (x, y, series; optional text); ``diagonal``: ends of a line of equal x and y."""
    rows = list(rows)
    style = named_series(names)
    base = empty_chart().encode(x=across("x", x), y=upward("y", y))
    layers = rules(rule)
    if diagonal is not None:
        ends = [{"x": end, "y": end} for end in diagonal]
        layers.append(
            alt.Chart(alt.InlineData(values=ends)).mark_line(strokeWidth=1).encode(x="x:Q", y="y:Q")
        )
    tips = [
        alt.Tooltip("series:N", title=" "),
        *([alt.Tooltip("text:N", title=" ")] if any("text" in row for row in rows) else []),
        alt.Tooltip("x:Q", title=x.title, format=".4~g"),
        alt.Tooltip("y:Q", title=y.title, format=".4~g"),
    ]
    layers.append(
        base.mark_point(opacity=0.7).encode(color=style["color"], shape=style["shape"], tooltip=tips)
    )
    if any("text" in row for row in rows):
        layers.append(
            base.transform_filter("isValid(datum.text)")
            .mark_text(align="left", dx=6, dy=-5, color=colour("muted"), fontSize=10)
            .encode(text="text:N")
        )
    return complete_chart(alt.layer(*layers), height=height, legend=names, rows=rows)


def stacks(rows: Rows, kinds: Mapping[str, str], *, x: Axis, y: Axis, over: Rows = ()) -> dict[str, Any]:
    """Return stacked bars of rows (x, x2, a number for each of ``kinds``, by colour); ``over`` is a step line (x, y)."""
    pieces: list[dict[str, Any]] = []
    last: dict[str, dict[str, Any]] = {}
    for row in rows:
        foot = 0.0
        for kind in kinds:
            own = {"y": foot, "y2": foot + row[kind], "n": row[kind], "kind": kind}
            before = last.get(kind, {})
            if before.get("x2") == row["x"] and all(before[key] == value for key, value in own.items()):
                before["x2"] = row["x2"]  # joined, so that no seam is visible between equal values
            elif row[kind]:
                last[kind] = {"x": row["x"], "x2": row["x2"], **own}
                pieces.append(last[kind])
            foot = own["y2"]
    hues = alt.Scale(domain=list(kinds), range=[colour(name) for name in kinds.values()])
    when = alt.Tooltip("utcyearmonthdatehoursminutes(x):T", title="from")
    drawn = empty_chart().mark_rect().encode(
        x=across("x", x, time=True), x2="x2:T", y=upward("y", y), y2="y2:Q",
        color=alt.Color("kind:N", legend=alt.Legend(symbolOpacity=1), scale=hues),
        tooltip=[alt.Tooltip("kind:N", title=" "), "n:Q", when],
    )  # fmt: skip
    stepped = empty_chart("over").mark_line(interpolate="step-after", strokeWidth=1.2, clip=True)
    line = stepped.encode(x=across("x", x, time=True), y=upward("y", y))
    return complete_chart(drawn + line, height=200, legend=list(kinds), rows=pieces, over=over)


def rules(values: float | Mapping[str, float] | None) -> list[Any]:
    """Return the layers of reference levels: none, a single level, or several with their names at the right end."""
    if values is None:
        return []
    if not isinstance(values, Mapping):
        return [level(values)]
    levels = [{"level": value, "text": name} for name, value in values.items()]
    data = alt.Chart(alt.InlineData(values=levels)).encode(y="level:Q")
    words = data.mark_text(align="right", dy=-6, color=colour("muted")).encode(
        x=alt.value("width"), text="text:N"
    )
    return [data.mark_rule(color=colour("muted"), strokeDash=[5, 2]), words]


def level(value: float, *, name: str = "ink", across_it: bool = False) -> Any:
    """Return a reference line across the whole chart, horizontal, or vertical with ``across_it``."""
    data = alt.InlineData(values=[{"level": value}])
    rule = alt.Chart(data).mark_rule(color=colour(name), strokeDash=[5, 2], strokeWidth=1.4)
    return rule.encode(x="level:Q") if across_it else rule.encode(y="level:Q")


def dots(
    rows: Rows,
    labels: Sequence[str],
    *,
    x: Axis,
    kinds: Mapping[str, str] | None = None,
    bound: float | None = None,
    rule: float | None = None,
    spans: bool = False,
    height: int | None = None,
) -> dict[str, Any]:
    """Return a dot plot with a dot per row (keys label, value, kind; also low and high with
    ``spans``), labels from the top.

    ``kinds`` maps each kind to its colour; point shapes follow its order. A value beyond the limits
    of the axis is drawn at the edge with its number (key ``beyond``). Labels may have two lines.
    ``bound`` is an upper limit of the values, ``rule`` a reference level; the reference value of a
    row is drawn as a tick (key ``beside``).
    """
    rows, kinds = list(rows), kinds or {"": "series1"}
    ladder = alt.Axis(title=None, domain=False, ticks=False, grid=True, labelLimit=220, labelPadding=8)
    if any("\n" in label for label in labels):
        ladder.labelExpr = "split(datum.label, '\\n')"
    legend = alt.Legend(symbolOpacity=1, offset=8) if len(kinds) > 1 else None
    hues = alt.Scale(domain=list(kinds), range=[colour(name) for name in kinds.values()])
    shapes = alt.Scale(domain=list(kinds), range=list(SHAPES[: len(kinds)]))
    hue = alt.Color("kind:N", legend=legend, scale=hues)
    base = empty_chart().encode(y=alt.Y("label:N", sort=list(labels), axis=ladder))
    # Align the title with the right end: on a narrow screen there is room for it below the labels.
    values = _axis(x, titleAnchor="end", titleAlign="right")
    tips = [alt.Tooltip("label:N", title=" "), alt.Tooltip("value:Q", title=x.title, format=".4~g")]
    layers = [level(bound, name="capacity", across_it=True)] if bound is not None else []
    if rule is not None:
        layers.append(level(rule, across_it=True))
    if spans:
        bar = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=5, opacity=0.35, clip=True)
        layers.append(bar.encode(x=across("low", x, axis=values), x2="high:Q", color=hue))
    if any("beside" in row for row in rows):
        tick = base.mark_tick(color=colour("ink"), thickness=2, size=14)
        layers.append(tick.encode(x=across("beside", x, axis=values), tooltip=tips))
    dot = base.mark_point(size=52)
    layers.append(
        dot.encode(
            x=across("value", x, axis=values),
            tooltip=tips,
            color=hue,
            shape=alt.Shape("kind:N", legend=legend, scale=shapes),
        )
    )
    # The number of a value beyond the axis is written inside the chart, at either edge.
    edges: tuple[tuple[Literal["left", "right"], int, str], ...] = (("left", 8, "<"), ("right", -8, ">="))
    for side, dx, test in edges:
        right = [x.high is not None and row["value"] >= x.high for row in rows if row.get("beyond")]
        if (side == "right") not in right:  # an empty layer would have no extent
            continue
        where = "isValid(datum.beyond)" + ("" if x.high is None else f" && datum.value {test} {x.high}")
        words = base.transform_filter(where).mark_text(align=side, dx=dx)
        layers.append(words.encode(x=across("value", x, axis=values), text="beyond:N"))
    return complete_chart(
        alt.layer(*layers),
        height=height or 21 * len(labels) + 12,
        legend=list(kinds),
        labels=labels,
        rows=rows,
    )


ROW_HEIGHT = 36  # Height of a row of `cells` in pixels: the name above, the strip below


def cells(
    rows: Rows, names: Sequence[str], *, ends: tuple[Any, Any], states: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    """Return a timeline between the ``ends``, with a strip of states for each of ``names``, written above the strip.

    ``rows`` have keys x, x2, name and state, and why for the tooltip. ``states`` maps each state to
    its colour and a letter, written in the cell if it fits, so that states differ without colours.
    """
    place = {name: k for k, name in enumerate(names)}
    drawn = [
        {**row, "top": place[row["name"]] + 0.46, "bottom": place[row["name"]] + 0.94, "letter": states[row["state"]][1]}
        for row in rows
    ]  # fmt: skip
    lanes = alt.Scale(domain=[0, len(names)], reverse=True, nice=False, zero=False)
    up = alt.Y("top:Q", scale=lanes, axis=None)
    shades = alt.Scale(domain=list(states), range=[colour(hue) for hue, _ in states.values()])
    when = "utcyearmonthdatehoursminutes({}):T"
    edge = across("x", Axis(), time=True)
    tips = [alt.Tooltip("name:N", title=" "), "state:N", alt.Tooltip(when.format("x"), title="from"),
            alt.Tooltip(when.format("x2"), title="to"), alt.Tooltip("why:N")]  # fmt: skip
    box = empty_chart().mark_rect(stroke=colour("paper"), strokeWidth=0.6).encode(
        x=edge, x2="x2:T", y=up, y2="bottom:Q", tooltip=tips,
        color=alt.Color("state:N", legend=legend_of(states), scale=shades),
    )  # fmt: skip
    wide = alt.ExprRef("scale('x', datum.x2) - scale('x', datum.x) > 9 ? 1 : 0")
    letter = empty_chart().mark_text(fontWeight="bold", opacity=wide, color=colour("paper"), dy=9)
    middle = letter.transform_calculate(middle="(datum.x + datum.x2) / 2").encode(
        x=across("middle", Axis(), time=True), y=up, text="letter:N"
    )
    label = empty_chart("names").mark_text(align="left", baseline="bottom", dy=1).encode(
        x=alt.value(0), y=up, text="name:N"
    )  # fmt: skip
    labels = [{"name": name, "top": k + 0.42} for name, k in place.items()]
    result = alt.layer(_ends(edge), box, middle, label)
    return complete_chart(
        result, height=ROW_HEIGHT * len(names), rows=drawn, names=labels, ends=_end_rows(ends)
    )


def route(
    rows: Rows,
    names: Sequence[str],
    *,
    held: Rows,
    path: Rows,
    ends: tuple[Any, Any],
    kinds: Mapping[str, str],
) -> dict[str, Any]:
    """Return the route of a job through ``names`` (markets), with a strip per market that shows the
    conditions there over time.

    ``rows`` are the strips (keys x, x2, name, share in [0, 1], told for the tooltip); a missing
    share is a gap. ``held`` are the bars of instances within the strips (keys x, x2, name, kind,
    told and planned; planned bars are outlines), coloured by ``kinds``. ``path`` (keys x and name,
    in order) is a line from market to market.
    """
    place = {name: k for k, name in enumerate(names)}

    def lane(row: Mapping[str, Any], top: float, bottom: float) -> dict[str, Any]:
        k = place[row["name"]]
        return {**row, "top": k + top, "bottom": k + bottom}

    lanes = alt.Scale(domain=[0, len(names)], reverse=True, nice=False, zero=False)
    up, edge = alt.Y("top:Q", scale=lanes, axis=None), across("x", Axis(), time=True)
    when = [
        alt.Tooltip(f"utcyearmonthdatehoursminutes({key}):T", title=title)
        for key, title in (("x", "from"), ("x2", "to"))
    ]
    tips = [alt.Tooltip("name:N", title=" "), alt.Tooltip("told:N", title="there"), *when]
    strip = empty_chart().encode(x=edge, x2="x2:T", y=up, y2="bottom:Q", tooltip=tips)
    there = strip.transform_filter("isValid(datum.share)").mark_rect(color=colour("capacity")).encode(
        opacity=alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0.0, 0.65]), legend=None)
    )  # fmt: skip
    gaps = strip.transform_filter("!isValid(datum.share)").mark_rect(color=colour("gap"), opacity=0.5)
    outline = strip.mark_rect(filled=False, stroke=colour("rule"), strokeWidth=0.5)
    hue = alt.Color(
        "kind:N",
        legend=legend_of(kinds),
        scale=alt.Scale(domain=list(kinds), range=[colour(name) for name in kinds.values()]),
    )
    bar = empty_chart("held").encode(
        x=edge, x2="x2:T", y=up, y2="bottom:Q", tooltip=[alt.Tooltip("told:N", title="held"), *when]
    )
    full = (
        bar.transform_filter("!datum.planned")
        .mark_rect(stroke=colour("paper"), strokeWidth=0.5)
        .encode(color=hue)
    )
    planned = _outlines(bar, kinds)
    went = empty_chart("path").mark_line(color=colour("ink"), strokeWidth=1.4).encode(
        x=edge, y=up, order="place:Q"
    )  # fmt: skip
    label = empty_chart("names").mark_text(align="left", baseline="bottom", dy=1).encode(
        x=alt.value(0), y=up, text="name:N"
    )  # fmt: skip
    return complete_chart(
        alt.layer(_ends(edge), there, gaps, outline, went, full, *planned, label),
        height=ROW_HEIGHT * len(names),
        legend=list(kinds),
        rows=[lane(row, 0.46, 0.94) for row in rows],
        held=[lane(row, 0.6, 0.8) for row in held],
        path=[{**lane(row, 0.7, 0.7), "place": i} for i, row in enumerate(path)],
        names=[{"name": name, "top": k + 0.42} for name, k in place.items()],
        ends=_end_rows(ends),
    )


def _ends(edge: alt.X) -> Any:
    """Return an invisible layer that extends the time axis to its ends."""
    return empty_chart("ends").mark_rule(opacity=0).encode(x=edge)


def _outlines(base: Any, kinds: Mapping[str, str]) -> list[Any]:
    """Return a layer of outlines for the planned instances of each kind."""
    return [
        base.transform_filter(alt.datum.planned & (alt.datum.kind == kind)).mark_rect(
            fill=colour(shade), stroke=colour(shade), fillOpacity=0.15, strokeDash=[3, 2], strokeWidth=1.6
        )
        for kind, shade in kinds.items()
    ]


def _end_rows(ends: tuple[Any, Any]) -> list[dict[str, Any]]:
    return [{"x": end} for end in ends]


def holdings(
    rows: Rows,
    kinds: Mapping[str, str],
    *,
    ends: tuple[Any, Any],
    y: Axis,
    line: Rows,
    line_name: str,
    height: int = 120,
) -> dict[str, Any]:
    """Return stacked bars of the instances run between two times.

    ``rows`` have keys x, x2, y, y2, kind and planned (drawn as an outline). ``kinds`` maps each
    kind to its colour; ``line`` (keys x and y) is the number of available instances.
    """
    names = {**kinds, line_name: "capacity"}
    hues = alt.Scale(domain=list(names), range=[colour(name) for name in names.values()])
    hue = alt.Color("kind:N", legend=legend_of(names), scale=hues)
    when = alt.Tooltip("utcyearmonthdatehoursminutes(x):T", title="slot")
    edge = across("x", Axis(), time=True)
    base = empty_chart().encode(
        x=edge, x2="x2:T", y=upward("y", y), y2="y2:Q", tooltip=[when, "kind:N", "held:Q"]
    )
    rows = list(rows)
    filled = [base.transform_filter("!datum.planned").mark_rect().encode(color=hue)]
    shown = {
        kind: shade
        for kind, shade in kinds.items()
        if any(row["planned"] and row["kind"] == kind for row in rows)
    }
    if all(row["planned"] for row in rows):
        filled = []
    could = empty_chart("line").mark_line(interpolate="step-after", strokeDash=[2, 2]).encode(
        x=edge, y=upward("y", y), color=hue, tooltip=[when, alt.Tooltip("y:Q", title=line_name)]
    )  # fmt: skip
    more: dict[str, Any] = {"line": [{**row, "kind": line_name} for row in line], "ends": _end_rows(ends)}
    return complete_chart(
        alt.layer(_ends(edge), *filled, *_outlines(base, shown), could), height=height, rows=rows, **more
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fan:
    """Data of a fan chart of a market: past values, a limit, and the quantiles of a forecast.

    ``past`` has rows with x and y, as made by `step_rows`; ``gaps`` rows with x and x2; ``ahead`` rows
    with x, x2, median and the bounds of the 50, 80 and 90 % intervals (``low50``, ``high50``, ...).
    A NaN ``limit`` is not drawn.
    """

    title: str
    past: Sequence[Mapping[str, Any]]
    gaps: Sequence[Mapping[str, Any]]
    ahead: Sequence[Mapping[str, Any]]
    limit: float
    limit_colour: str
    whole: bool = False
    height: int = 110


def fan(panel: Fan, *, labelled: bool = True) -> dict[str, Any]:
    """Return a fan chart: past values with gaps, then bands and median of the forecast; ``labelled`` shows the times below."""
    result = _fan(panel.title, panel.limit_colour, panel.whole, labelled, panel.height)
    return _fill_chart(result, panel, start=[{"x": row["x"]} for row in panel.ahead[:1]])


def _fill_chart(empty: dict[str, Any], panel: Fan, **more: Rows) -> dict[str, Any]:
    """Return a chart with the data of a panel, without the layers that have no data."""
    limit = [{"y": panel.limit}] if math.isfinite(panel.limit) else []
    data: dict[str, Rows] = {"past": panel.past, "gaps": panel.gaps, "ahead": panel.ahead, "limit": limit}
    own = {name: plain_rows(rows) for name, rows in (data | more).items()}
    return empty | {
        "layer": [layer for layer in empty["layer"] if own[layer["data"]["name"]]],
        "datasets": own,
    }


@cache
def _fan(title: str, limit: str, whole: bool, labelled: bool, height: int) -> dict[str, Any]:
    """Return a fan chart without data, cached because it is the same for every market."""
    times = alt.Axis(
        title=None, tickCount=4, labels=labelled, ticks=labelled, labelOverlap=True, labelExpr=TICK_WORDS
    )
    edge = alt.X("x:T", scale=alt.Scale(type="utc", nice=False), axis=times)
    right = "x2:T"
    steps: dict[str, Any] = {"tickMinStep": 1, "format": "d"} if whole else {}
    up = alt.Y(
        "y:Q", scale=alt.Scale(zero=True), axis=alt.Axis(title=None, tickCount=3, minExtent=32, **steps)
    )
    when = alt.Tooltip("utcyearmonthdatehoursminutes(x):T", title="slot")
    ahead = empty_chart("ahead").encode(x=edge, x2=right)
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
    seen = empty_chart("past").mark_line(interpolate="step-after").encode(x=edge, y=up, tooltip=tips)
    layers = [
        empty_chart("gaps").mark_rect(color=colour("rest"), opacity=0.5).encode(x=edge, x2=right),
        *bands,
        median,
        empty_chart("start").mark_rule(strokeDash=[2, 2]).encode(x=edge),
        seen,
        empty_chart("limit")
        .mark_rule(color=colour(limit), strokeDash=[5, 2], strokeWidth=1.3)
        .encode(y="y:Q"),
    ]
    drawn = alt.layer(*layers).properties(title=title)
    return complete_chart(drawn, height=height)
