"""Text output of blocks for terminals; no text is ever cropped.

Lines respect a maximum width: cells wrap at spaces, long names at their separators, and a table
whose columns do not fit becomes a paragraph per row. A table of cards is printed as a table only if
every row fits on a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final

from rich.cells import cell_len

from slackwater.flows.show.blocks import Banner, Block, Column, Fold, Notes, Section, Table, Tiles, Verbatim
from slackwater.flows.show.formats import MISSING

_GAP: Final = "  "
#: Minimum width of a column of sentences; if it does not fit, each row becomes a paragraph.
_SENTENCE: Final = 24
_TALLEST: Final = 3  # Maximum height of a row in lines; if a row is higher, each row becomes a paragraph
#: Separators after which names wrap: first the strong separators, then the weak ones if a part is still long.
_STRONG: Final = re.compile(r"(?<=[/@,;|])(?=.)")
_WEAK: Final = re.compile(r"(?<=[:_+=.-])(?=.)")
#: Control characters are escaped, because names from outside could contain terminal escape sequences.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Style:
    """Format of lines: ``width`` in columns (None: unlimited), bold headings or not, and whether tables may be ``abridged``."""

    width: int | None = None
    bold: bool = False
    abridged: bool = False

    def strong(self, line: str) -> str:
        """Return a heading in bold."""
        return f"\x1b[1m{line}\x1b[0m" if self.bold and line else line

    def faint(self, line: str) -> str:
        """Return a line in faint type, for less important text."""
        return f"\x1b[2m{line}\x1b[0m" if self.bold and line else line


def lines_of(blocks: Iterable[Block], style: Style) -> Iterator[str]:
    """Yield the lines of some blocks, without figures and folded blocks, whose values tables and JSON have."""
    for block in blocks:
        if isinstance(block, str):
            yield from wrap_text(escape_controls(block), style.width)
        elif isinstance(block, Notes):
            for item in block.items:
                yield from _indented_lines("* ", escape_controls(item), style.width)
        elif isinstance(block, Verbatim):
            yield from map(escape_controls, block.text.split("\n"))
        elif isinstance(block, Banner):
            yield from wrap_text(escape_controls(f"{block.label} {block.text}"), style.width)
        elif isinstance(block, Tiles):
            yield from wrap_text(
                escape_controls(", ".join(f"{tile.label}: {tile.value}" for tile in block.tiles)), style.width
            )
        elif isinstance(block, Table):
            yield from table_lines(block, style)
        elif isinstance(block, Fold):
            yield from lines_of(block.blocks if block.printed else (), style)
        elif isinstance(block, Section):
            inner = list(lines_of(block.blocks, style))
            if inner:  # a section of charts only has no lines
                yield ""
                yield from (
                    style.strong(line) for line in wrap_text(escape_controls(block.heading), style.width)
                )
                yield from inner


def escape_controls(text: str) -> str:
    r"""Return a text with control characters escaped.

    >>> escape_controls("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def table_lines(table: Table, style: Style) -> Iterator[str]:
    """Yield the lines of a table, as a grid, as a paragraph per row if the grid does not fit, or as a sentence without rows."""
    title = escape_controls(table.title)
    if not table.rows:
        yield from wrap_text(f"{title}: {table.empty}" if title else table.empty, style.width)
        return
    if title:
        yield from (style.strong(line) for line in wrap_text(title, style.width))
    # A line end in a cell, as in a note of a user, would look like a line of the answer.
    cells = [[escape_controls(cell).replace("\n", "\\n") for cell in row] for row in table.cells()]
    labels = [escape_controls(column.label) for column in table.all_columns().values()]
    left_out = 0
    if style.abridged and table.most is not None:
        kept = [
            k < table.most or (table.marked is not None and table.marked(row))
            for k, row in enumerate(table.rows)
        ]
        cells, left_out = list(compress(cells, kept)), kept.count(False)
    numeric, columns = table.numeric(), list(table.all_columns().values())
    if (
        column_widths(labels, cells, style.width, wraps=False) is None
    ):  # narrow: columns empty in every row go
        full = [any(row[j] not in (MISSING, "") for row in cells) or not j for j in range(len(labels))]
        labels, *cells = ([*compress(row, full)] for row in (labels, *cells))
        numeric, columns = [*compress(numeric, full)], [*compress(columns, full)]
    widths = column_widths(labels, cells, style.width, wraps=not table.cards)
    if widths is None:
        yield from _paragraphs(columns, cells, numeric[0], style)
    else:
        yield from _grid(labels, cells, widths, numeric, style)
    if left_out:
        yield from wrap_text(f"... and {left_out:,} more{table.more}, see --json or --html", style.width)
    yield ""


def column_widths(
    labels: Sequence[str], cells: Sequence[Sequence[str]], width: int | None, *, wraps: bool = True
) -> list[int] | None:
    """Return column widths that fit into ``width`` (None: natural), or None; without ``wraps`` cells stay on a line."""
    columns = list(zip(labels, *cells, strict=True))
    natural = [max(cell_len(cell) for cell in column) for column in columns]
    if width is None:
        return natural
    if not wraps:
        return natural if sum(natural) + len(_GAP) * (len(natural) - 1) <= width else None
    least = [
        max(*(_least(cell) for cell in column), min(full, _SENTENCE) if full > 2 * _SENTENCE else 0)
        for column, full in zip(columns, natural, strict=True)
    ]
    spare = width - sum(least) - len(_GAP) * (len(columns) - 1)
    if spare < 0:
        return None
    widths = list(least)
    order = sorted(range(len(columns)), key=lambda j: natural[j] - least[j])
    for k, j in enumerate(order):  # Columns that need little get all of it; the others share the rest.
        extra = min(natural[j] - least[j], spare // (len(order) - k))
        widths[j] += extra
        spare -= extra
    tallest = max(len(wrap_text(cell, widths[j])) for row in cells for j, cell in enumerate(row))
    return widths if tallest <= _TALLEST else None


def _pieces(word: str, whole: int) -> list[str]:
    """Split a name at its strong separators, and parts longer than ``whole`` at the weak separators."""
    return [
        piece
        for part in _STRONG.split(word)
        for piece in (_WEAK.split(part) if cell_len(part) > whole else [part])
    ]


def _least(text: str) -> int:
    """Return the minimum width at which a text wraps only at spaces and separators; short words, times and numbers stay whole."""
    words = (_pieces(word, 24) if cell_len(word) > 16 else [word] for word in text.split())
    return max((cell_len(piece) for pieces in words for piece in pieces), default=0)


def wrap_text(text: str, width: int | None) -> list[str]:
    """Wrap a text into lines of at most ``width`` columns, at spaces, else at separators, else anywhere.

    The indentation of each line of the text is preserved.

    >>> wrap_text("aws/us-east-1/us-east-1a/p4d.24xlarge", 16)
    ['aws/us-east-1/', 'us-east-1a/', 'p4d.24xlarge']
    """
    if width is None:
        return text.split("\n")
    lines: list[str] = []
    for paragraph in text.split("\n"):
        lead = " " * min(len(paragraph) - len(paragraph.lstrip(" ")), width // 2)
        room, own, line = width - len(lead), list[str](), ""
        for word in paragraph.split():
            joined = f"{line} {word}" if line else word
            if cell_len(joined) <= room:
                line = joined
                continue
            if line and cell_len(word) <= room:
                own.append(line)
                line = word
                continue
            line = _break_word(line, word, room, own)
        lines += [lead + part if part else part for part in (*own, line)]
    return lines


def _break_word(line: str, word: str, width: int, lines: list[str]) -> str:
    """Append a word longer than a line to ``line``; full lines go to ``lines``, the last line is returned."""
    start = True
    for piece in _pieces(word, width):
        joined = f"{line} {piece}" if line and start else line + piece
        start = False
        if cell_len(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        while cell_len(piece) > width:
            cut = next(k for k in range(len(piece), 0, -1) if cell_len(piece[:k]) <= width or k == 1)
            lines.append(piece[:cut])
            piece = piece[cut:]
        line = piece
    return line


def _grid(
    labels: Sequence[str],
    cells: Sequence[Sequence[str]],
    widths: Sequence[int],
    numeric: Sequence[bool],
    style: Style,
) -> Iterator[str]:
    for line in _row(labels, widths, numeric, style.width):
        yield style.faint(line)
    yield style.faint(_GAP.join("─" * width for width in widths))
    for row in cells:
        yield from _row(row, widths, numeric, style.width)


def _row(
    row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool], limit: int | None
) -> Iterator[str]:
    parts = [
        wrap_text(cell, width if limit is not None else None) for cell, width in zip(row, widths, strict=True)
    ]
    for k in range(max(len(part) for part in parts)):
        texts = [part[k] if k < len(part) else "" for part in parts]
        padded = [
            " " * (width - cell_len(text)) + text if right else text + " " * (width - cell_len(text))
            for text, width, right in zip(texts, widths, numeric, strict=True)
        ]
        yield _GAP.join(padded).rstrip()


def _paragraphs(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], numeric: bool, style: Style
) -> Iterator[str]:
    """Yield each row as its first cell (with its heading if numeric) and the other cells with their headings below.

    As many cells as fit share a line; empty cells are omitted. Columns with a ``card`` position
    appear in that order.
    """
    width = style.width or 0
    order = sorted(range(1, len(columns)), key=lambda j: columns[j].card)
    for row in cells:
        first = escape_controls(columns[0].pair(row[0])) if numeric else row[0]
        yield from (style.strong(line) for line in wrap_text(first, width))
        line, on = "", 0
        for column, cell in ((columns[j], row[j]) for j in order):
            if cell in (MISSING, ""):
                continue
            pair = escape_controls(column.pair(cell))
            joined = f"{line}   {pair}" if line else pair
            if cell_len(joined) <= width - 2 and column.card // 10 == on:
                line = joined
                continue
            if line:
                yield f"  {line}"
            line, on = pair, column.card // 10
            if cell_len(pair) > width - 2:
                yield from _indented_lines("  ", pair, style.width, deeper=2)
                line = ""
        if line:
            yield f"  {line}"


def _indented_lines(first: str, text: str, width: int | None, deeper: int = 0) -> Iterator[str]:
    """Yield a text after ``first``; further lines are indented equally, or ``deeper`` by that many columns."""
    lead = " " * (len(first) + deeper)
    room = None if width is None else width - len(lead)
    for k, line in enumerate(wrap_text(text, room)):
        yield (lead if k else first) + line
