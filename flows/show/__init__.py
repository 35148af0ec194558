"""What a person is shown: tables, charts, sections and pages as values, and the only code that knows terminals or HTML.

An answer is made of blocks: sentences (plain ``str``), `Notes`, `Verbatim`, `Table`, `Figure`, `Figures`, `Fold`, `Banner` and
`Section`. `flows.show.terminal` prints them, `flows.show.page` writes them as one HTML file; both take headings, units and number
formats from the blocks, so that a column is described once.
"""

from flows.show.blocks import (
    Banner,
    Block,
    Column,
    Figure,
    Figures,
    Fold,
    Notes,
    Page,
    Section,
    Table,
    Verbatim,
)

__all__ = [
    "Banner",
    "Block",
    "Column",
    "Figure",
    "Figures",
    "Fold",
    "Notes",
    "Page",
    "Section",
    "Table",
    "Verbatim",
]
