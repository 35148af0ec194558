"""A page: the one place of colours, fonts and measures, and one HTML file of the blocks that needs no network."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flows.show.blocks import Block, Figure, Figures, Fold, Page, Section, Table
from warehouse.errors import InputError

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


# ---
# The one place of colours, fonts and measures: custom properties of the page's style sheet, and what charts are set in.

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
    "focus": ("#b3001b", "#ffb3a7"),
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


# ---
# One HTML file that needs no network: the blocks of a page, the style sheet, and the charts' script where there are charts.

#: A table with texts longer than this is shown a row a paragraph on narrow screens.
_LONG = 40
#: A chart's specification behind the chart's place; `specification` leaves no "<" in it.
_SPECIFICATION = re.compile(r'<script type="application/json">(.*?)</script>\n?')


def render_page(page: Page) -> str:
    """The page as text; every name and sentence is escaped. The same page gives the same bytes."""
    from markupsafe import Markup

    templates = environment()
    body: str = templates.get_template("blocks.html").module.all(page.blocks, 2)  # type: ignore[attr-defined]
    charts = _SPECIFICATION.findall(body)
    return templates.get_template("page.html").render(
        page=page,
        body=Markup(_SPECIFICATION.sub("", body)),
        properties=Markup(properties()),
        sections=[block for block in page.blocks if isinstance(block, Section)],
        theme=vega_config(),
        charts=packed({"charts": [json.loads(chart) for chart in charts], "vega": asset("vega.js")})
        if charts
        else "",
        drawing=Markup(asset("draw.js")) if charts else "",
        sorting=Markup(asset("sort.js")) if has_sortable(page.blocks) else "",
    )


def figures_of(blocks: Iterable[Block]) -> Iterator[Figure]:
    """Every figure in some blocks."""
    for block in blocks:
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Figures):
            yield from block.figures
        elif isinstance(block, Fold | Section):
            yield from figures_of(block.blocks)


def has_sortable(blocks: Iterable[Block]) -> bool:
    """Whether a table is among some blocks whose rows a reader may put in another order."""
    return any(
        (isinstance(block, Table) and block.sortable)
        or (isinstance(block, Fold | Section) and has_sortable(block.blocks))
        for block in blocks
    )


@cache
def asset(name: str) -> str:
    """A file that lies beside this one: the Vega bundle, the scripts that draw and sort."""
    return files("flows.show").joinpath(name).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """Jinja with the house's templates and filters; every value is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("flows", "show"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= show_filters()
    return made


def show_filters() -> dict[str, Callable[..., Any]]:
    """The filters that ``blocks.html`` and the UI's templates need."""
    from markupsafe import Markup

    return {
        "breakable": breakable,
        "drawing": Markup,  # the UI's own markup, escaped where it was made
        "specification": specification,
        "anchor": anchor,
        "sentences": has_sentences,
    }


def breakable(text: str) -> Markup:
    """A text whose long names may wrap after their separators, while times stay whole."""
    from markupsafe import Markup, escape

    if re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", text):
        return Markup('<span class="whole">') + text[:10] + Markup("</span> ") + text[11:]
    if re.fullmatch(r"[−+$-]?[\d.,]+(?: %)?", text):
        return escape(text)
    return Markup("<wbr>").join(escape(piece) for piece in re.split(r"(?<=[/@_,;=|])(?=\S)", text))


def specification(spec: Mapping[str, Any]) -> Markup:
    """A chart's specification as JSON that may stand inside a script element."""
    from markupsafe import Markup

    written = json.dumps(spec, separators=(",", ":"), allow_nan=False, sort_keys=True)
    return Markup(written.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def packed(value: Any) -> str:
    """A value as JSON in a third of its size: gzip, written as base64; ``draw.js`` unpacks it."""
    return base64.b64encode(gzip.compress(json.dumps(value, allow_nan=False).encode(), mtime=0)).decode()


def anchor(section: Section) -> str:
    """The section's address within its page."""
    return section.anchor or re.sub(r"[^a-z0-9]+", "-", section.heading.lower()).strip("-")


def has_sentences(table: Table) -> bool:
    """Whether some cell of a table is longer than a name is."""
    return any(len(cell) > _LONG for row in table.cells() for cell in row)


def write_page(page: Page, path: Path, *, option: str) -> Path:
    """Render a page to ``path`` so that a reader sees the old one or the new one, never half of one; returns ``path``.

    Folders are made. Raises `InputError` if the file cannot be written; ``option`` is the one that names another path.
    """
    return write_html(render_page(page), path, option=option)


def write_html(content: str, path: Path, *, option: str) -> Path:
    """Write a text likewise."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(content)
            os.chmod(temporary, 0o644)  # mkstemp's own mode would hide the page from a web server
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(
            f"report {path}: {error.strerror}",
            expected="a writable file",
            remedy=f"choose another path with {option}",
        ) from error
    return path
