"""Blocks of an answer: values independent of terminals, HTML and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from slackwater.flows.show.formats import auto, decimals, missing, plain_scalar
from slackwater.warehouse.plugins import has_extra, lacks_extra


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of a table: heading, unit, number format and a sentence that explains the values.

    ``words`` are the explanation, shown as the tooltip of the heading on a page. ``tone`` returns
    the style of a value on a page: ``up1`` to ``up3`` for good, ``down1`` to ``down3`` for bad,
    ``off`` for an abnormal value.

    ``card`` is the position in a row printed as a paragraph: two digits, line and order within the line (0:
    in column order, as many per line as fit). On a page, ``beneath`` puts the column of a card on a line
    below its row, and narrow screens show only the columns with ``glance`` and fold the others.
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
        """Return heading, value and unit as text, for layouts without a row of headings.

        >>> Column(heading="cost", unit="$").pair("−12.30"), Column(heading="slot", unit="UTC").pair("06:00")
        ('cost: −$12.30', 'slot: 06:00 UTC')
        """
        if self.unit == "$":
            sign = cell[:1] if cell.startswith(("-", "−")) else ""
            return f"{self.heading}: {sign}${cell.removeprefix(sign)}"
        return f"{self.heading}: {cell} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Column indices of a table on a page, grouped by position."""

    row: list[int]
    beneath: list[int]
    folded: list[int]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of plain values under columns (key -> `Column` or heading); other keys are not shown.

    ``marked`` is a predicate on rows: True highlights a row, such as a baseline. ``most`` limits the unmarked
    rows on a terminal; pipes, pages and ``--json`` get all rows, and ``more`` is appended to the note on
    hidden rows. ``empty`` is the text for a table without rows. Rows of ``cards`` become blocks of lines
    where they do not fit on a line. On a page, a click on a heading sorts the rows of a ``sortable`` table.
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

    def all_columns(self) -> dict[str, Column]:
        """Return all columns as `Column`."""
        return {
            key: column if isinstance(column, Column) else Column(heading=column)
            for key, column in self.columns.items()
        }

    def cells(self) -> list[list[str]]:
        """Return the formatted cells, one list per row."""
        columns = self.all_columns()
        return [[column.format(row.get(key)) for key, column in columns.items()] for row in self.rows]

    def tones(self) -> list[list[str]]:
        """Return the styles of the cells, one list per row; "" for none."""
        columns = self.all_columns()
        return [
            [column.tone(row.get(key)) if column.tone else "" for key, column in columns.items()]
            for row in self.rows
        ]

    def parts(self) -> Parts:
        """Return the columns in the row (always the first), those below it, and those folded on narrow screens."""
        columns = list(self.all_columns().values())
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
        """Return for each column whether all its values are numbers; such columns are right-aligned."""
        return [all(_is_number(row.get(key)) for row in self.rows) for key in self.columns]


def _is_number(value: Any) -> bool:
    return missing(value) or isinstance(plain_scalar(value), int | float)


def columns_by_key(*names: str, **headings: str) -> dict[str, Column | str]:
    """Return columns named by their keys, with spaces for underscores, and columns with the given headings.

    >>> columns_by_key("job", "expected_finish", cost_usd="cost $")
    {'job': 'job', 'expected_finish': 'expected finish', 'cost_usd': 'cost $'}
    """
    columns: dict[str, Column | str] = {name: name.replace("_", " ") for name in names}
    return columns | headings


@dataclass(frozen=True, slots=True)
class Notes:
    """List of sentences, each with a bullet."""

    kind: ClassVar[str] = "notes"
    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Text meant to be copied whole, such as JSON or paths; lines are never wrapped."""

    kind: ClassVar[str] = "verbatim"
    text: str


@dataclass(frozen=True, slots=True)
class Banner:
    """Highlighted warning, for example that prices are simulated."""

    kind: ClassVar[str] = "banner"
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Tile:
    """Highlighted number with a label, a hint below it, and a colour ("": the text colour)."""

    label: str
    value: str
    hint: str = ""
    colour: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Highlighted numbers side by side, as many as fit; a single line on a terminal."""

    kind: ClassVar[str] = "tiles"
    tiles: Sequence[Tile]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures side by side, as many as fit."""

    kind: ClassVar[str] = "grid"
    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class Fold:
    """Collapsible blocks of a page, omitted on a terminal unless ``printed``, as the numbers of a chart are."""

    kind: ClassVar[str] = "fold"
    summary: str
    blocks: Sequence[Block]
    printed: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """Heading with blocks below it; ``anchor`` is its fragment identifier on a page."""

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
    """Return a table whose fractions have ``digits`` decimals, unless a column has its own format."""
    written = decimals(digits)
    described = {
        key: Column(heading=column, format=written) if isinstance(column, str) else column
        for key, column in columns.items()
    }
    return Table(title, rows, described)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Page in a single HTML file: a title, a subtitle, and blocks (usually sections, listed at the top)."""

    title: str
    blocks: Sequence[Block]
    about: str = ""
    short: str = ""
    banner: Banner | None = None


# ---
# Charts with titles and captions; `slackwater.flows.show.charts` makes the Vega-Lite specifications.


#: Default text shown in place of a chart without values.
UNMEASURED: Final = "Nothing is drawn: none of the values that this chart shows was measured."


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart under a title.

    ``specs`` are Vega-Lite specifications, drawn one below the other, or a function that returns them, called
    only for a page and only with the extra ``charts``. Specifications without values are omitted, since empty
    axes carry no information; if none is left, the text ``why`` is shown instead. ``label`` is the text for
    screen readers. ``warnings`` and ``strong`` appear above the chart, ``captions`` below it. ``width`` is
    the maximum width in CSS pixels (0: the full width of the container).
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

    def specifications(self) -> Sequence[Mapping[str, Any]]:
        """Return the specifications that contain values; none without the extra ``charts``."""
        if not has_extra("charts"):
            return []
        return [spec for spec in (self.specs() if callable(self.specs) else self.specs) if has_values(spec)]

    def absence(self) -> str:
        """Return the text in place of a chart: ``why``, or how to install the charts."""
        return self.why if has_extra("charts") else str(lacks_extra("charts", "this chart"))


def has_values(spec: Mapping[str, Any]) -> bool:
    """Return whether a chart shows any values besides axes, levels and guides.

    >>> has_values({"datasets": {"rows": [{"x": 1, "y": None}]}}), has_values({"datasets": {"rows": [{"x": 1, "y": 2.0}]}})
    (False, True)
    """
    return any(
        row.get(key) is not None
        for name in ("rows", "past", "ahead", "held", "line")
        for row in spec["datasets"].get(name, ())
        for key in ("y", "y2", "value", "z", "median", "state", "share")
    )
