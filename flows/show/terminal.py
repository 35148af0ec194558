"""Blocks as lines of text: nothing is ever cropped.

Lines keep to a width: cells wrap at spaces, long names at their separators, and a table whose columns do not fit becomes one
paragraph a row. A table of cards is a table only where every row is one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final

from rich.cells import cell_len

from flows.show.blocks import Banner, Block, Column, Fold, Notes, Section, Table, Tiles, Verbatim
from flows.show.formats import MISSING

_GAP: Final = "  "
#: A cell of a sentence is given so much room at least, else the table is shown a row a paragraph.
_SENTENCE: Final = 24
#: Rows are at most so many lines high, else likewise.
_TALLEST: Final = 3
#: Names wrap after the first of these, and after the second where a part is still long.
_STRONG: Final = re.compile(r"(?<=[/@,;|])(?=.)")
_WEAK: Final = re.compile(r"(?<=[:_+=.-])(?=.)")
#: Control characters (a name may hold escape sequences): shown, never obeyed.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Style:
    """How lines are written: ``width`` in columns (None: no limit), and whether headings may be bold.

    ``abridged``: a long table may end before its last row, and says so.
    """

    width: int | None = None
    bold: bool = False
    abridged: bool = False

    def strong(self, line: str) -> str:
        """A heading."""
        return f"\x1b[1m{line}\x1b[0m" if self.bold and line else line

    def faint(self, line: str) -> str:
        """What stands behind."""
        return f"\x1b[2m{line}\x1b[0m" if self.bold and line else line


def lines_of(blocks: Iterable[Block], style: Style) -> Iterator[str]:
    """The lines of some blocks; figures and what is folded are left out, as they are drawn from what tables and JSON say."""
    for block in blocks:
        if isinstance(block, str):
            yield from wrapped(shown(block), style.width)
        elif isinstance(block, Notes):
            for item in block.items:
                yield from _hanging("* ", shown(item), style.width)
        elif isinstance(block, Verbatim):
            yield from map(shown, block.text.split("\n"))
        elif isinstance(block, Banner):
            yield from wrapped(shown(f"{block.label} {block.text}"), style.width)
        elif isinstance(block, Tiles):
            yield from wrapped(
                shown("   ".join(f"{tile.label}: {tile.value}" for tile in block.tiles)), style.width
            )
        elif isinstance(block, Table):
            yield from table_lines(block, style)
        elif isinstance(block, Fold):
            yield from lines_of(block.blocks if block.printed else (), style)
        elif isinstance(block, Section):
            inner = list(lines_of(block.blocks, style))
            if inner:  # one that is drawn only has no line
                yield ""
                yield from (style.strong(line) for line in wrapped(shown(block.heading), style.width))
                yield from inner


def shown(text: str) -> str:
    r"""A text with control characters written out.

    >>> shown("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def table_lines(table: Table, style: Style) -> Iterator[str]:
    """A table, or one paragraph a row where it does not fit, or one sentence where it has no row."""
    title = shown(table.title)
    if not table.rows:
        yield from wrapped(f"{title}: {table.empty}" if title else table.empty, style.width)
        return
    if title:
        yield from (style.strong(line) for line in wrapped(title, style.width))
    cells = [[shown(cell) for cell in row] for row in table.cells()]
    labels = [shown(column.label) for column in table.described().values()]
    left_out = 0
    if style.abridged and table.most is not None:
        kept = [
            k < table.most or (table.marked is not None and table.marked(row))
            for k, row in enumerate(table.rows)
        ]
        cells, left_out = list(compress(cells, kept)), kept.count(False)
    widths = column_widths(labels, cells, style.width, wraps=not table.cards)
    if widths is None:
        yield from _paragraphs(list(table.described().values()), cells, table.numeric()[0], style)
    else:
        yield from _grid(labels, cells, widths, table.numeric(), style)
    if left_out:
        yield from wrapped(f"... and {left_out:,} more{table.more}, see --json or --html", style.width)
    yield ""


def column_widths(
    labels: Sequence[str], cells: Sequence[Sequence[str]], width: int | None, *, wraps: bool = True
) -> list[int] | None:
    """Widths of the columns within ``width`` (None: as wide as they are), or None if they do not fit well.

    Without ``wraps`` they fit only where every cell is one line.
    """
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
    for k, j in enumerate(order):  # what needs little is given all of it, the rest is shared
        extra = min(natural[j] - least[j], spare // (len(order) - k))
        widths[j] += extra
        spare -= extra
    tallest = max(len(wrapped(cell, widths[j])) for row in cells for j, cell in enumerate(row))
    return widths if tallest <= _TALLEST else None


def _least(text: str) -> int:
    """The narrowest width in which a text wraps at spaces and separators only."""
    return max((cell_len(piece) for word in text.split() for piece in _pieces(word)), default=0)


def _pieces(word: str) -> list[str]:
    """A name at its separators; short words, times and numbers stay whole."""
    if cell_len(word) <= 16:
        return [word]
    return [
        piece
        for part in _STRONG.split(word)
        for piece in (_WEAK.split(part) if cell_len(part) > 24 else [part])
    ]


def wrapped(text: str, width: int | None) -> list[str]:
    """A text in lines of at most ``width`` columns, broken at spaces, else at separators, else anywhere; indented as it was.

    >>> wrapped("aws/us-east-1/us-east-1a/p4d.24xlarge", 16)
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
            line = _broken(line, word, room, own)
        lines += [lead + one if one else one for one in (*own, line)]
    return lines


def _broken(line: str, word: str, width: int, lines: list[str]) -> str:
    """Put a word that is longer than a line after ``line``; full lines go to ``lines``, the last one is returned."""
    start = True
    pieces = [
        piece
        for part in _STRONG.split(word)
        for piece in (_WEAK.split(part) if cell_len(part) > width else [part])
    ]
    for piece in pieces:
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
        wrapped(cell, width if limit is not None else None) for cell, width in zip(row, widths, strict=True)
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
    """Each row as its first cell (a number with its heading) and, below, the others with their headings, as many on a line as
    fit; none where there is none. Columns that name their place on a card stand there.
    """
    width = style.width or 0
    order = sorted(range(1, len(columns)), key=lambda j: columns[j].card)
    for row in cells:
        first = shown(columns[0].pair(row[0])) if numeric else row[0]
        yield from (style.strong(line) for line in wrapped(first, width))
        line, on = "", 0
        for column, cell in ((columns[j], row[j]) for j in order):
            if cell in (MISSING, ""):
                continue
            pair = shown(column.pair(cell))
            joined = f"{line}   {pair}" if line else pair
            if cell_len(joined) <= width - 2 and column.card // 10 == on:
                line = joined
                continue
            if line:
                yield f"  {line}"
            line, on = pair, column.card // 10
            if cell_len(pair) > width - 2:
                yield from _hanging("  ", pair, style.width, deeper=2)
                line = ""
        if line:
            yield f"  {line}"


def _hanging(first: str, text: str, width: int | None, deeper: int = 0) -> Iterator[str]:
    """A text after ``first``, its further lines set in as far, or ``deeper`` by so many columns."""
    lead = " " * (len(first) + deeper)
    room = None if width is None else width - len(lead)
    for k, line in enumerate(wrapped(text, room)):
        yield (lead if k else first) + line
