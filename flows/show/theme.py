"""The one place of colours, fonts and measures: custom properties of the page's style sheet, and what charts are set in."""

from __future__ import annotations

from typing import Any, Final

#: Colours by name, on white and on dark paper. The hues of series are those of Okabe and Ito, told apart by the colour-blind.
COLOURS: Final[dict[str, tuple[str, str]]] = {
    "paper": ("#ffffff", "#12171e"),
    "card": ("#f7f9fb", "#1a212a"),
    "rule": ("#d9e0e7", "#323c48"),
    "ink": ("#1d2733", "#e6ebf1"),
    "muted": ("#5b6776", "#a2aebc"),
    "grid": ("#e3e8ee", "#2a333e"),
    "gap": ("#a0abb8", "#5d6875"),
    "rest": ("#c9d0d9", "#4a5563"),
    "warn": ("#fff4dc", "#3a2e10"),
    "warn-edge": ("#b97a00", "#e0a63a"),
    "mark": ("#fdeee3", "#33261c"),
    "band90": ("#dce9f5", "#1b3350"),
    "band80": ("#b9d4ec", "#22466f"),
    "band50": ("#7fb3dd", "#2f659c"),
    "median": ("#0b5394", "#8cc4f5"),
    "on-demand": ("#b84c08", "#f08a4b"),
    "capacity": ("#0a7d5d", "#4cc79f"),
    "series1": ("#0072b2", "#5aaee6"),
    "series2": ("#d55e00", "#f0803c"),
    "series3": ("#009e73", "#3cc79d"),
    "series4": ("#b3578f", "#dd8bbd"),
    "series5": ("#c98a00", "#e8b23c"),
    "series6": ("#3fa0d8", "#86cdf5"),
    "series7": ("#6b4fa0", "#ab91e0"),
    "series8": ("#7a6a4f", "#bda988"),
}
#: Vega measures texts by this font; the page's own list begins with it, so that they fit.
FONT: Final = (
    'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif'
)
#: Dashes of the lines of several series, in this order, so that they are told apart without colours.
DASHES: Final = ([1, 0], [5, 2], [2, 2], [6, 2, 1, 2], [8, 3], [3, 1], [1, 1], [8, 2])
#: Marks of the points of several series.
SHAPES: Final = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "triangle-down",
    "cross",
    "triangle-left",
    "triangle-right",
)


def colour(name: str) -> str:
    """A colour as the style sheet's custom property: one drawing serves light, dark and print."""
    if name not in COLOURS:
        raise KeyError(name)
    return f"var(--{name})"


SERIES: Final = tuple(colour(name) for name in COLOURS if name.startswith("series"))


def properties() -> str:
    """The custom properties of all colours, for light and for dark paper, as CSS."""
    light = " ".join(f"--{name}: {pair[0]};" for name, pair in COLOURS.items())
    dark = " ".join(f"--{name}: {pair[1]};" for name, pair in COLOURS.items())
    return (
        f":root {{ color-scheme: light dark; --font: {FONT}; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    )


def vega_config() -> dict[str, Any]:
    """The configuration all charts share."""
    axis = {
        "labelColor": colour("muted"), "titleColor": colour("muted"), "domainColor": colour("muted"),
        "tickColor": colour("muted"), "gridColor": colour("grid"), "labelFontSize": 11, "titleFontSize": 11,
        "titleFontWeight": "normal", "tickSize": 4,
    }  # fmt: skip
    return {
        "font": FONT,
        "background": "transparent",
        "view": {"stroke": None},
        "axis": axis,
        "axisX": {"grid": False},
        "axisY": {"domain": False, "ticks": False, "tickCount": 5, "minExtent": 30},
        "legend": {"labelColor": colour("ink"), "titleColor": colour("muted"), "labelFontSize": 11, "orient": "top",
                   "title": None, "columns": 4, "labelLimit": 300, "symbolStrokeWidth": 2, "offset": 24},
        "title": {"color": colour("muted"), "fontSize": 11, "fontWeight": "normal", "anchor": "start", "offset": 4},
        "text": {"color": colour("ink"), "fontSize": 11},
        "line": {"strokeWidth": 1.6, "color": colour("ink")},
        "rule": {"color": colour("muted")},
        "point": {"filled": True, "size": 36, "opacity": 1},
        "range": {"category": list(SERIES)},
    }  # fmt: skip
