"""What a command answers, and the one place where an answer becomes lines, a JSON object or a page."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows.show.blocks import Banner, Block, Notes, Page, Section
from flows.show.formats import as_json
from flows.show.terminal import Style, lines_of

if TYPE_CHECKING:
    from flows.command.session import Output


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command found.

    ``value`` is the JSON object, of a form in `flows.schemas.forms` where programs read it. ``blocks`` are what a person
    reads, after a line on what they are ``about`` and a ``banner``, before the ``notes``. ``page`` makes another page than these,
    where there is one (a text is HTML). ``exit_code`` is the program's.
    """

    title: str
    value: Any
    blocks: Sequence[Block] = ()
    about: str = ""
    banner: Banner | None = None
    notes: Sequence[str] = ()
    page: Callable[[], Page | str] | None = None
    exit_code: int = 0

    def as_page(self) -> Page | str:
        """The answer as a page."""
        if self.page is not None:
            return self.page()
        return Page(
            title=self.title, about=self.about, banner=self.banner, blocks=[*self.blocks, *self._last()]
        )

    def lines(self, style: Style) -> Iterator[str]:
        """The answer as a terminal shows it."""
        first = (self.about, self.banner)
        yield from lines_of([*(block for block in first if block), *self.blocks, *self._last()], style)

    def _last(self) -> Sequence[Block]:
        return [Section("Notes", [Notes(self.notes)], "notes")] if self.notes else []


def deliver(answer: Answer, output: Output | None) -> int:
    """Write the page that is asked for, then print the answer; returns the exit code.

    Raises `InputError` if the page cannot be written.
    """
    if output is not None and output.html is not None:
        from flows.show.page import render_page, write_html

        page = answer.as_page()
        write_html(page if isinstance(page, str) else render_page(page), output.html, option="--html")
    if output is not None and output.json:
        print(as_json(answer.value))
        return answer.exit_code
    for line in answer.lines(terminal_style()):
        print(line)
    if output is not None and output.html is not None:
        print(f"page: {output.html}")
    return answer.exit_code


def terminal_style() -> Style:
    """The width of the terminal and whether it shows bold text; without limits where standard output is none."""
    if not sys.stdout.isatty():
        return Style()
    width = shutil.get_terminal_size().columns or 80
    return Style(width=max(20, width), bold="NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb")
