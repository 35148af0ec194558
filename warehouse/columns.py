"""Columns of observations, declared once, in ``data/columns.toml``: a `Column` for each column of a source's rows.

The frames of sources, the columns recognised in tables, the casting and checking of rows, the
reasons for rejecting them, the tables and views of the warehouse and their descriptions follow from
`COLUMNS`. A migration (`slackwater.warehouse.store.schema`) adds the column to its table; a
warehouse whose tables differ from the declaration is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any, Final, Literal, get_args

import pyarrow as pa

from slackwater.warehouse.amounts import LARGEST_COUNT, LONGEST_GAP, SHORTEST_GAP
from slackwater.warehouse.documents import read_data

Kind = Literal["price", "availability"]
Type = Literal["text", "time", "number", "whole", "flag", "word"]
#: ``identity``: identifies a series; ``compared``: two rows differ if they state different values, and null
#: differs from nothing; ``described``: never makes two rows differ; ``judged``: checked and not stored;
#: ``machine``: describes the instances of a type.
Role = Literal["identity", "machine", "time", "value", "compared", "described", "judged", "place"]
STORED: Final[tuple[Role, ...]] = ("value", "compared", "described")
BOTH: Final[tuple[Kind, ...]] = ("price", "availability")

#: Type of a column -> Arrow type in the rows of a source, type in the tables of a warehouse. A word
#: is a text from a fixed list.
ARROW_TYPES: Final[dict[Type, pa.DataType]] = {
    "text": pa.string(),
    "time": pa.timestamp("us", tz="UTC"),
    "number": pa.float64(),
    "whole": pa.int64(),
    "flag": pa.bool_(),
    "word": pa.string(),
}
SQL_TYPES: Final[dict[Type, str]] = {
    "text": "VARCHAR",
    "time": "TIMESTAMP WITH TIME ZONE",
    "number": "DOUBLE",
    "whole": "INTEGER",
    "flag": "BOOLEAN",
    "word": "VARCHAR",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Condition that rejects a row, with the code and the words of its reason.

    ``test``: SQL that is true for a rejected row. In it, {value} is the cast value, {shown} the
    abridged text found, {found} the text as found of another row of the batch (`incoming`), {empty} and
    {absent} are true for a missing value (absent: or NaN),
    {zoneless} for a time without a zone, {COLUMN} is the cast value of another stored column, and
    {latest}, {ahead}, {times} and {share} are the limits of `slackwater.warehouse.observations.Bounds`; {stored} is the value
    of earlier rows of the type (role ``machine``).
    ``parameter`` may use the same.

    The sentence is "COLUMN FOUND words", or ``sentence`` if given; ``more`` and ``parameter`` (SQL for its
    {1}) continue it with details that do not count as another kind of reason. ``column``: the column named in
    the sentence, by default the checked column. ``needs``: the check applies only with a clock, only to
    sources that do not state a time zone, only where list prices are known, only with the rows of its batch, or only for
    texts of imports with decimal commas; the last three kinds are not repeated for exported rows.
    ``by_value``: every value found counts as a separate kind of reason.
    """

    code: str
    test: str
    words: str = ""
    sentence: str = ""
    more: str = ""
    parameter: str = "''"
    column: str = ""
    needs: Literal["", "clock", "no_zone", "list_price", "batch", "decimal_comma"] = ""
    by_value: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of observations: its place, type and unit, the accepted values, and its description.

    ``names``: names by which tables of files have it, the preferred name first; empty for columns that a
    source fills in. ``usable``: SQL that is true for values to store where others are set aside instead of
    rejecting the row; ``set_aside`` then describes them. ``words`` lack unit and nullability, which
    `described` adds; ``view_words`` replace them in the view, which has no placement scores.
    """

    name: str
    kinds: tuple[Kind, ...]
    role: Role
    type: Type
    unit: str = ""
    nullable: bool = True
    names: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    usable: str = ""
    set_aside: Check | None = None
    words: str
    view_words: str = ""

    def __post_init__(self) -> None:
        """Raise `ValueError` for an unknown kind, role or type."""
        if not {*self.kinds} <= {*BOTH} or self.role not in get_args(Role) or self.type not in get_args(Type):
            raise ValueError(f"column {self.name}: {self.kinds}, role {self.role}, type {self.type}")

    @property
    def alias(self) -> str:
        """Name of the cast value in the SQL that checks rows."""
        numeric = self.type in ("number", "whole") and self.role in STORED
        return f"{self.name}_number" if numeric else {"known_at": "stated_known_at"}.get(self.name, self.name)

    def description(self, *, view: bool = False) -> str:
        """Return the description of the column of a table or view."""
        words = (self.view_words if view else "") or self.words
        unit = f", {self.unit}" if self.unit else ""
        null = "; null if not given" if self.nullable and self.role in STORED else ""
        return f"{words}{unit}{null}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Reason for rejecting rows, with parameters {0} and {1}, counted under a text (``by_value``: each sentence apart)."""

    sentence: str
    kind: str
    by_value: bool = False


#: Maximum length of a name in characters; the names of all known providers are much shorter.
LONGEST_NAME: Final = 200
#: Regular expression for control and formatting characters and line ends.
UNPRINTABLE: Final = r"[\p{C}\p{Zl}\p{Zp}]"
#: Kinds of ratings by a provider, which are never read as counts (M13.1): a placement score from 1 to 10, and
#: the band of the share of instances interrupted in a month, from 0 to 4.
SCORE, BAND = RATINGS = ("score", "band")
#: Why a market with ratings alone is not followed.
RATINGS_ALONE: Final = "placement scores and interruption bands (kind score, band) are no counts of instances"
#: Kinds of the rows of counts: launch tests, running instances, listed offers, and ratings.
COUNT_KINDS: Final = ("probe", "held", "offers", *RATINGS)
FUTURE: Final = "future"  # Code of the reason for rows dated after they were read
_CONSTANTS: Final = {
    "LONGEST_NAME": LONGEST_NAME,
    "LARGEST_COUNT": LARGEST_COUNT,
    "COUNT_LIMIT": f"{LARGEST_COUNT:,}",
    "SHORTEST_GAP": SHORTEST_GAP,
    "LONGEST_GAP": LONGEST_GAP,
    "COUNT_KINDS": ", ".join(COUNT_KINDS),
    "COUNT_KINDS_SQL": ", ".join(map(repr, COUNT_KINDS)),
}


#: Regular expressions for ways to buy, units, currencies and systems, by name; they work in Python and DuckDB.
PATTERNS: Final[dict[str, str]] = read_data(__package__, "columns")["patterns"]


def _read_columns() -> tuple[Column, ...]:
    """Return the columns of ``data/columns.toml``."""
    data = read_data(__package__, "columns")
    patterns = PATTERNS | {"UNPRINTABLE": UNPRINTABLE}
    # The braces of a pattern are no parameters of a `Check`.
    escaped = {name: text.replace("{", "{{").replace("}", "}}") for name, text in patterns.items()}
    constants = _CONSTANTS | escaped

    def check(row: Mapping[str, Any] | str) -> Check:
        if isinstance(row, str):
            return check(data["checks"][row])
        filled: dict[str, Any] = {
            key: Template(value).substitute(constants) if isinstance(value, str) else value
            for key, value in row.items()
        }
        return Check(**filled)

    def column(row: Mapping[str, Any]) -> Column:
        lists = {key: tuple(row.get(key, default)) for key, default in (("kinds", BOTH), ("names", ()))}
        aside = {"set_aside": check(row["set_aside"])} if "set_aside" in row else {}
        return Column(**{**row, **lists, **aside, "checks": tuple(map(check, row.get("checks", ())))})

    return tuple(map(column, data["columns"]))


#: Every column of the rows of sources, in their order, which is also the order of checks, tables and views.
COLUMNS: Final = _read_columns()
COLUMN: Final = {column.name: column for column in COLUMNS}


def columns_of(kind: Kind, *roles: Role) -> tuple[Column, ...]:
    """Return the columns of prices or of availability with one of the roles (default: all), in order."""
    return tuple(column for column in COLUMNS if kind in column.kinds and (not roles or column.role in roles))


def stored_columns(kind: Kind) -> tuple[Column, ...]:
    """Return the columns of the table of prices or of availability that hold observed values."""
    return columns_of(kind, *STORED)


def stored_checks(kind: Kind, names: Collection[str]) -> list[tuple[str, str]]:
    """Return the checks of a table (columns ``names``) written elsewhere: SQL, true for an unusable row, and the reason."""
    return [
        (
            check.test.format(
                value=column.name, empty=missing, absent=missing, **{name: name for name in names}
            ),
            REASONS[code_of(column, check)].kind,
        )
        for column in columns_of(kind, "time", *STORED)
        if column.name in names
        for missing in [f"({column.name} IS NULL)"]
        for check in (*column.checks, *([column.set_aside] if column.set_aside else []))
        if not check.needs
    ]


# ---
# Reasons: every check has a code, COLUMN.CODE.


def code_of(column: Column, check: Check) -> str:
    """Return the code of the reason of a check."""
    return f"{check.column or column.name}.{check.code}"


def _reason(column: Column, check: Check) -> Reason:
    name = check.column or column.name
    return Reason(
        sentence=check.sentence or f"{name} {{0}} {check.words}{check.more}",
        kind=check.sentence or f"{name} {check.words}",
        by_value=check.by_value,
    )


#: Code of rows of the same key that differ, and prefix of the codes of rows that contradict a stored row.
CONTRADICTS: Final = "row.contradicts"
CONFLICTS: Final = "row.conflicts."


def _conflict(column: Column) -> str:
    return f"conflicts with stored {'value' if column.role == 'value' else column.name}"


#: Sentences of the reasons that sources of the product state, by code; {0}, {1} and {2} are what was found.
STATED: Final[dict[str, str]] = read_data(__package__, "columns")["reasons"]
_PARAMETER: Final = re.compile(r"\(\{\d\}\)|\{\d\}")


class StatedReason(str):
    """The sentence of a reason in `STATED`, with its ``code``; other texts are reasons without a code."""

    code: str

    def of(self, part: str) -> StatedReason:
        """Return the reason with the part of the row that it is about."""
        reason = StatedReason(f"{part}: {self}")
        reason.code = self.code
        return reason


def because(code: str, *found: object) -> StatedReason:
    """Return the reason with a code, its parameters filled in.

    >>> because("line.fields", 3, 4), because("line.fields", 3, 4).code
    ('3 fields where 4 were expected', 'line.fields')
    """
    reason = StatedReason(STATED[code].format(*found))
    reason.code = code
    return reason


#: Reason by code. The code "" is of a reason that a source of another package states as a sentence.
REASONS: Final[dict[str, Reason]] = {
    "": Reason(sentence="{0}", kind="", by_value=True),
    **{
        code_of(column, check): _reason(column, check)
        for column in COLUMNS
        for check in (*column.checks, *([column.set_aside] if column.set_aside else []))
    },
    CONTRADICTS: Reason(
        sentence="contradicts line {0} of the same market and time",
        kind="contradicts line ... of the same market and time",
    ),
    **{
        f"{CONFLICTS}{column.name}": Reason(
            sentence=f"{_conflict(column)} {{0}}", kind=f"{_conflict(column)} ..."
        )
        for column in COLUMNS
        if column.role in ("value", "compared")
    },
    **{
        code: Reason(
            sentence=sentence,
            kind=_PARAMETER.sub("...", sentence),
            by_value=sentence.startswith("unknown ") or code == "record.lacks",
        )
        for code, sentence in STATED.items()
    },
}


def differences(kind: Kind, found: Sequence[tuple[str, str, bool]]) -> list[str]:
    """Return the differences of columns (name, SQL type, nullable) from the declaration, keys of the table apart."""
    there = {name: (type_, null) for name, type_, null in found if name not in _KEYS}
    wanted = {column.name: (SQL_TYPES[column.type], column.nullable) for column in stored_columns(kind)}
    return [
        f"{kind}.{name} is {_column_words(there.get(name))}, declared as {_column_words(wanted.get(name))}"
        for name in sorted(there.keys() | wanted.keys())
        if there.get(name) != wanted.get(name)
    ]


_KEYS: Final = ("sid", "observed_at", "known_at", "batch")


def _column_words(column: tuple[str, bool] | None) -> str:
    return "missing" if column is None else f"{column[0]}{'' if column[1] else ' NOT NULL'}"
