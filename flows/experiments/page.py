"""One HTML page for an experiment: sections of sentences, drawings and tables; it needs no network and reads no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.html_file import render_template, write_html
from flows.inline_svg import PALETTE
from flows.report_format import number, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of plain values under the headings of ``columns`` (key -> heading); numbers are given ``digits`` decimals."""

    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]
    digits: int = 4

    def cells(self) -> list[list[tuple[str, bool]]]:
        """Text of each cell, and whether it is a number."""
        return [[self._cell(row.get(key)) for key in self.columns] for row in self.rows]

    def _cell(self, value: Any) -> tuple[str, bool]:
        if isinstance(value, bool):
            return ("yes" if value else "no"), False
        if isinstance(value, float):
            return number(value, self.digits), True
        return text(value), isinstance(value, int)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, sentences, a drawing (an ``<svg>`` of `flows.experiments.plots`) and a table; what is empty is left out."""

    anchor: str
    heading: str
    sentences: Sequence[str] = ()
    drawing: str = ""
    table: Table | None = None
    unfold: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An experiment's page: a title, what it is about, its sections and notes."""

    title: str
    about: str
    sections: Sequence[Section]
    notes: Sequence[str] = field(default=())
    synthetic: str = ""
    synthetic_label: str = "Synthetic joins."


def join_banner(answer: Mapping[str, Any]) -> str:
    """The banner of a page with joins, from ``synthetic_jobs`` and ``jobs`` of its answer; none where all were measured."""
    if not answer["synthetic_jobs"]:
        return ""
    return f"In {answer['synthetic_jobs']} of {answer['jobs']} jobs one market's counts are joined with another's prices."


def render_page(page: Page) -> str:
    """The page as text; every name and sentence is escaped, the drawings are our own markup."""
    return render_template("experiment.html", {"page": page, "palette": PALETTE})


def write_page(page: Page, path: Path) -> Path:
    """Render ``page`` to ``path``, whole or not at all; folders are made. Raises `InputError` if it cannot be written."""
    return write_html(render_page(page), path, option="--html")
