"""The values an answer is made of. They know nothing of terminals, HTML or files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from flows.show.formats import auto, decimals, missing, plain_scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: its heading, the unit of its values, how a value is written, and what it means in a sentence.

    ``words`` become the hint of the heading on a page. ``tone`` gives a value its shade there: ``up1`` to ``up3`` for good,
    ``down1`` to ``down3`` for bad, ``off`` for what is not as it should be. ``card`` is its place where a row is a paragraph,
    two digits: its line there, and its turn on the line (0: in the order of the columns, as many on a line as fit). On a page a
    card's column that stands ``beneath`` is a line below its row, and a narrow screen shows those of a ``glance`` and folds the
    others.
    """

    heading: str
    unit: str = ""
    format: Callable[[Any], str] = auto
    words: str = ""
    tone: Callable[[Any], str] | None = None
    card: int = 0
    beneath: bool = False
    glance: bool = False

    @property
    def label(self) -> str:
        """Heading and unit."""
        return f"{self.heading}, {self.unit}" if self.unit else self.heading

    def pair(self, cell: str) -> str:
        """Heading and one value with its unit, as they stand where there is no row of headings.

        >>> Column(heading="cost", unit="$").pair("−12.30"), Column(heading="slot", unit="UTC").pair("06:00")
        ('cost: −$12.30', 'slot: 06:00 UTC')
        """
        if self.unit == "$":
            sign = cell[:1] if cell.startswith(("-", "−")) else ""
            return f"{self.heading}: {sign}${cell.removeprefix(sign)}"
        return f"{self.heading}: {cell} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Columns of a table on a page by where they stand, as their places."""

    row: list[int]
    beneath: list[int]
    folded: list[int]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of plain values under columns (key -> `Column`, or its heading alone); keys that are not named are not shown.

    ``marked`` names rows to be set off (baselines): it is told a row. ``most`` limits the other rows on a terminal; a pipe, a
    page and ``--json`` have them all, and ``more`` says how to see fewer. ``empty`` is said instead of a table without rows. Rows
    of ``cards`` are blocks of lines where they do not fit on one. The rows of a ``sortable`` table are put in order on a page by a
    click on a heading.
    """

    kind: ClassVar[str] = "table"
    title: str
    rows: Sequence[Mapping[str, Any]]
    columns: Mapping[str, Column | str]
    empty: str = "none"
    most: int | None = None
    more: str = ""
    marked: Callable[[Mapping[str, Any]], bool] | None = None
    cards: bool = False
    sortable: bool = False

    def described(self) -> dict[str, Column]:
        """The columns, each as a `Column`."""
        return {
            key: column if isinstance(column, Column) else Column(heading=column)
            for key, column in self.columns.items()
        }

    def cells(self) -> list[list[str]]:
        """The texts, a list a row."""
        columns = self.described()
        return [[column.format(row.get(key)) for key, column in columns.items()] for row in self.rows]

    def tones(self) -> list[list[str]]:
        """The shades of the cells, a list a row; "" for none."""
        columns = self.described()
        return [
            [column.tone(row.get(key)) if column.tone else "" for key, column in columns.items()]
            for row in self.rows
        ]

    def parts(self) -> Parts:
        """Which columns stand in the row, which below it, and which a narrow screen folds; the first one is the row's heading."""
        columns = list(self.described().values())
        every = range(len(columns))
        if not self.cards or not any(column.beneath or column.glance for column in columns):
            return Parts(row=[*every], beneath=[], folded=[])
        beneath = [k for k in every if k and columns[k].beneath]
        return Parts(
            row=[k for k in every if k not in beneath],
            beneath=beneath,
            folded=[k for k in every if k and not columns[k].glance],
        )

    def numeric(self) -> list[bool]:
        """Which columns hold numbers only: these are set to the right."""
        return [all(_is_number(row.get(key)) for row in self.rows) for key in self.columns]


def _is_number(value: Any) -> bool:
    return missing(value) or isinstance(plain_scalar(value), int | float)


def keyed(*names: str, **headings: str) -> dict[str, Column | str]:
    """Columns named by their keys, underscores as spaces, and those given a heading.

    >>> keyed("job", "expected_finish", cost_usd="cost $")
    {'job': 'job', 'expected_finish': 'expected finish', 'cost_usd': 'cost $'}
    """
    columns: dict[str, Column | str] = {name: name.replace("_", " ") for name in names}
    return columns | headings


@dataclass(frozen=True, slots=True)
class Notes:
    """Sentences one below the other, each with a bullet."""

    kind: ClassVar[str] = "notes"
    items: Sequence[str]
    ordered: bool = False
    start: int = 1


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Lines that somebody copies whole, such as JSON and paths: never folded."""

    kind: ClassVar[str] = "verbatim"
    text: str


@dataclass(frozen=True, slots=True)
class Banner:
    """A warning that stands out, such as that prices are simulated."""

    kind: ClassVar[str] = "banner"
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Tile:
    """A number that stands out: what it is, the number, a hint below it, and the colour it is set in ("" for the text's own)."""

    label: str
    value: str
    hint: str = ""
    colour: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Big numbers side by side, as many as fit; a terminal has them as one line."""

    kind: ClassVar[str] = "tiles"
    tiles: Sequence[Tile]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures side by side, as many as fit."""

    kind: ClassVar[str] = "grid"
    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that a page shows when they are asked for.

    A terminal leaves them out, unless they are ``printed``: the numbers of a chart, which stands in their place on a page.
    """

    kind: ClassVar[str] = "fold"
    summary: str
    blocks: Sequence[Block]
    printed: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with blocks under it; ``anchor`` is its address within a page."""

    kind: ClassVar[str] = "section"
    heading: str
    blocks: Sequence[Block]
    anchor: str = ""


Block: TypeAlias = "str | Table | Notes | Verbatim | Banner | Tiles | Figures | Fold | Section | Figure"


def numbers(
    columns: Mapping[str, Column | str],
    rows: Sequence[Mapping[str, Any]],
    *,
    digits: int = 4,
    title: str = "",
) -> Table:
    """A table whose fractions have ``digits`` decimals, unless a column has a format of its own."""
    written = decimals(digits)
    described = {
        key: Column(heading=column, format=written) if isinstance(column, str) else column
        for key, column in columns.items()
    }
    return Table(title, rows, described)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One HTML file: a title, a line on what it is about, and blocks (most often sections, listed at its top)."""

    title: str
    blocks: Sequence[Block]
    about: str = ""
    short: str = ""
    banner: Banner | None = None


# ---
# A drawing with what stands around it; the drawing itself is a Vega-Lite specification, made in `flows.show.charts`.


#: What stands in the place of a chart without values, where nobody knows more.
UNMEASURED: Final = "Nothing is drawn: none of the values that this chart shows was measured."


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart under a title.

    ``specs`` are Vega-Lite specifications, drawn one below the other, or make them where only a page needs them. One without
    a value is left out: empty axes say nothing. Where there are none ``why`` says so in their place.
    ``label`` is what a screen reader calls it. ``warnings`` and ``strong`` stand above the drawing, ``captions`` below it.
    ``width`` is how wide it grows at most, in CSS pixels (0: as wide as its place).
    """

    kind: ClassVar[str] = "figure"
    specs: Sequence[Mapping[str, Any]] | Callable[[], Sequence[Mapping[str, Any]]]
    label: str
    title: str = ""
    strong: Sequence[str] = ()
    warnings: Sequence[str] = ()
    captions: Sequence[str] = ()
    why: str = UNMEASURED
    width: int = 860

    def drawn(self) -> Sequence[Mapping[str, Any]]:
        """The specifications of what has something to show."""
        return [spec for spec in (self.specs() if callable(self.specs) else self.specs) if has_values(spec)]


def has_values(spec: Mapping[str, Any]) -> bool:
    """Whether a chart has anything to show beside its axes, levels and guides.

    >>> has_values({"datasets": {"rows": [{"x": 1, "y": None}]}}), has_values({"datasets": {"rows": [{"x": 1, "y": 2.0}]}})
    (False, True)
    """
    return any(
        row.get(key) is not None
        for name in ("rows", "past", "ahead", "held", "faint", "line")
        for row in spec["datasets"].get(name, ())
        for key in ("y", "y2", "value", "z", "median", "state", "share")
    )
