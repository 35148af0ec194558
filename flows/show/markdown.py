"""Blocks of an answer as Markdown, for readers outside of terminal and page, such as Prefect's artifacts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slackwater.flows.show.blocks import Banner, Block, Fold, Notes, Section, Table, Tiles, Verbatim
from slackwater.flows.show.terminal import escape_controls

MOST_COLUMNS, MOST_ROWS = 8, 50  # Largest numbers of columns and rows of a table


def markdown_of(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown: tables with their first columns and rows, without figures.

    >>> print(markdown_of(["Run 2 spot.", Table("Jobs", [{"job": "a", "n": 2}], {"job": "job", "n": "n"})]))
    Run 2 spot.
    <BLANKLINE>
    **Jobs**
    <BLANKLINE>
    | job | n |
    | --- | --: |
    | a | 2 |
    """
    return "\n\n".join(_paragraphs(blocks))


def _paragraphs(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, str):
            yield _plain(block)
        elif isinstance(block, Notes):
            if block.items:
                yield "\n".join(f"* {_plain(item)}" for item in block.items)
        elif isinstance(block, Verbatim):
            yield f"`{escape_controls(block.text)}`"
        elif isinstance(block, Banner):
            yield f"**{_plain(block.label)}** {_plain(block.text)}"
        elif isinstance(block, Tiles):
            yield ", ".join(f"{_plain(tile.label)}: **{_plain(tile.value)}**" for tile in block.tiles)
        elif isinstance(block, Table):
            yield from _table(block)
        elif isinstance(block, Fold):
            yield from _paragraphs(block.blocks if block.printed else ())
        elif isinstance(block, Section):
            inner = list(_paragraphs(block.blocks))
            if inner:
                yield f"### {_plain(block.heading)}"
                yield from inner


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield f"**{_plain(table.title)}**"
    if not table.rows:
        yield _plain(table.empty)
        return
    labels = [_plain(column.label) for column in table.all_columns().values()][:MOST_COLUMNS]
    marks = ["--:" if number else "---" for number in table.numeric()[:MOST_COLUMNS]]
    rows = [[_plain(cell) for cell in row[:MOST_COLUMNS]] for row in table.cells()[:MOST_ROWS]]
    yield "\n".join(f"| {' | '.join(row)} |" for row in [labels, marks, *rows])
    if len(table.rows) > MOST_ROWS:
        yield f"... and {len(table.rows) - MOST_ROWS:,} more"


def _plain(text: str) -> str:
    """Return a text in which nothing is read as a table, a tag or emphasis."""
    for mark in ("\\", "|", "<", "*", "_", "`"):
        text = text.replace(mark, f"\\{mark}")
    return escape_controls(text).replace("\n", " ")
