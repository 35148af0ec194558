"""HTML pages: all colours, fonts and sizes, and blocks rendered to a single file that needs no network."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slackwater.flows.show.blocks import Block, Fold, Page, Section, Table
from slackwater.warehouse.errors import InputError

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


#: Colours by name, as (light theme, dark theme). Series use the palette of Okabe and Ito, which
#: colour-blind readers can distinguish.
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
#: Font that Vega uses to measure text. The font list of the page must begin with the same font, so
#: that texts fit.
FONT: Final = (
    'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif'
)
#: Dash patterns of the series, in order, so that lines differ without colours.
DASHES: Final = ([1, 0], [5, 2], [2, 2], [6, 2, 1, 2], [8, 3], [3, 1], [1, 1], [8, 2])
#: Point shapes of the series, in order.
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
    """Return a colour as a CSS custom property, for light, dark and print; raises `KeyError` for an unknown colour."""
    if name not in COLOURS:
        raise KeyError(name)
    return f"var(--{name})"


SERIES: Final = tuple(colour(name) for name in COLOURS if name.startswith("series"))


def properties() -> str:
    """Return the CSS custom properties of all colours, for the light and the dark theme."""
    light = " ".join(f"--{name}: {pair[0]};" for name, pair in COLOURS.items())
    dark = " ".join(f"--{name}: {pair[1]};" for name, pair in COLOURS.items())
    return (
        f":root {{ color-scheme: light dark; --font: {FONT}; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    )


def vega_config() -> dict[str, Any]:
    """Return the Vega configuration shared by all charts."""
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
# A single HTML file without network access: blocks, style sheet, and the chart script if there are charts.

_LONG = 40  # Tables with longer texts show each row as a paragraph on narrow screens
#: Specification of a chart, placed after its element; `specification` escapes every "<" in it.
_SPECIFICATION = re.compile(r'<script type="application/json">(.*?)</script>\n?')


def render_page(page: Page) -> str:
    """Render a page as HTML; all text is escaped. Equal pages give equal bytes."""
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
        charts=compress_json({"charts": [json.loads(chart) for chart in charts], "vega": asset("vega.js")})
        if charts
        else "",
        drawing=Markup(asset("draw.js")) if charts else "",
        sorting=Markup(asset("sort.js")) if has_sortable(page.blocks) else "",
    )


def has_sortable(blocks: Iterable[Block]) -> bool:
    """Return whether any table in some blocks is sortable."""
    return any(
        (isinstance(block, Table) and block.sortable)
        or (isinstance(block, Fold | Section) and has_sortable(block.blocks))
        for block in blocks
    )


@cache
def asset(name: str) -> str:
    """Return the text of a file of this folder: the Vega bundle, or a script that draws or sorts."""
    return files("slackwater.flows.show").joinpath(name).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """Return the Jinja environment with the templates and filters of this package; it escapes every value."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    result = Environment(
        loader=PackageLoader("slackwater.flows", "show"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters |= show_filters()
    return result


def show_filters() -> dict[str, Callable[..., Any]]:
    """Return the filters that ``blocks.html`` and the templates of the UI need."""
    from markupsafe import Markup

    return {
        "breakable": breakable,
        "drawing": Markup,  # markup of the UI, escaped where it is made
        "specification": specification,
        "anchor": anchor,
        "sentences": has_sentences,
    }


def breakable(text: str) -> Markup:
    """Allow long names to wrap after their separators; times stay whole."""
    from markupsafe import Markup, escape

    if re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", text):
        return Markup('<span class="whole">') + text[:10] + Markup("</span> ") + text[11:]
    if re.fullmatch(r"[−+$-]?[\d.,]+(?: %)?", text):
        return escape(text)
    return Markup("<wbr>").join(escape(piece) for piece in re.split(r"(?<=[/@_,;=|])(?=\S)", text))


def specification(spec: Mapping[str, Any]) -> Markup:
    """Return the specification of a chart as JSON that is safe inside a script element."""
    from markupsafe import Markup

    written = json.dumps(spec, separators=(",", ":"), allow_nan=False, sort_keys=True)
    return Markup(written.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def compress_json(value: Any) -> str:
    """Return a value as compressed JSON: gzip in base64, about a third of the size; ``draw.js`` unpacks it."""
    return base64.b64encode(gzip.compress(json.dumps(value, allow_nan=False).encode(), mtime=0)).decode()


def anchor(section: Section) -> str:
    """Return the fragment identifier of a section."""
    return section.anchor or re.sub(r"[^a-z0-9]+", "-", section.heading.lower()).strip("-")


def has_sentences(table: Table) -> bool:
    """Return whether any cell of a table is longer than a name."""
    return any(len(cell) > _LONG for row in table.cells() for cell in row)


def write_page(page: Page, path: Path, *, option: str) -> Path:
    """Render a page to ``path`` atomically, so that readers never see a partial file; return ``path``.

    Missing folders are created. Raises `InputError` if the file cannot be written; ``option`` is
    the option that sets another path.
    """
    return write_html(render_page(page), path, option=option)


def write_html(content: str, path: Path, *, option: str) -> Path:
    """Write HTML to ``path`` atomically; see `write_page`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise InputError(
            f"report {path}: {error.strerror}",
            expected="a writable file",
            remedy=f"choose another path with {option}",
        ) from error
    return path


def write_whole(file: Path, text: str) -> None:
    """Write a file atomically: readers see, and a crash leaves, either the old or the new file."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise
