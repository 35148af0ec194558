"""One HTML file that needs no network: the blocks of a page, the style sheet, and the charts' script where there are charts."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.show.blocks import Block, Fold, Grid, Page, Section, Table
from flows.show.figure import Figure
from flows.show.theme import properties, vega_config
from warehouse.errors import InputError

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

#: A table with texts longer than this is shown a row a paragraph on narrow screens.
_LONG = 40


def render_page(page: Page) -> str:
    """The page as text; every name and sentence is escaped. The same page gives the same bytes."""
    from markupsafe import Markup

    drawn = any(figure.specs for figure in figures_of(page.blocks))
    return (
        environment()
        .get_template("page.html")
        .render(
            page=page,
            properties=Markup(properties()),
            sections=[block for block in page.blocks if isinstance(block, Section)],
            drawn=drawn,
            theme=vega_config(),
            bundle=Markup(asset("vega.js")) if drawn else "",
            drawing=Markup(asset("draw.js")) if drawn else "",
            sorting=Markup(asset("sort.js")) if has_sortable(page.blocks) else "",
        )
    )


def figures_of(blocks: Iterable[Block]) -> Iterator[Figure]:
    """Every figure in some blocks."""
    for block in blocks:
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Grid):
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
