"""Import of observations: stage, cast, check, merge, count (M1.1, M1.2)."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from slackwater.warehouse.amounts import duration
from slackwater.warehouse.catalogue import catalogue, highest_likely_price, lowest_list_price, provider_names
from slackwater.warehouse.columns import (
    COLUMNS,
    CONFLICTS,
    CONTRADICTS,
    FUTURE,
    LONGEST_NAME,
    RATINGS,
    REASONS,
    STATED,
    STORED,
    UNPRINTABLE,
    Check,
    Column,
    Kind,
    code_of,
    columns_of,
    stored_columns,
)
from slackwater.warehouse.errors import InputError, SourceFileError, StoreError
from slackwater.warehouse.sources import SOURCES, check_source
from slackwater.warehouse.sources.contract import Batch, Source, SourceOptions
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.store.schema import sql_literal
from slackwater.warehouse.times import moment

# ---
# SQL that casts the rows of a file, or gives the reason for rejecting them (M1.1, M1.2).
#
# A batch may contain text, numbers or timestamps in any column. The SQL is a single SELECT over the registered
# batch ``incoming``: no row passes through Python.

IDENTITY = tuple(column.name for column in COLUMNS if column.role == "identity")
_A_DAY = pd.Timedelta(days=1)
_SHOWN = 80  # Maximum number of characters of the original text shown in a reason
#: Parts of a time in ISO 8601: no hour 24, no leap second, only offsets as zones.
_DATE = r"\d{4}-\d{2}-\d{2}"
_CLOCK = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,9})?)?"
_OFFSET = r"(0\d|1[0-4])(:?[0-5]\d)?"
#: Columns that describe the machine of a type, stored per type (table machines) and checked against it.
MACHINE = tuple(column.name for column in COLUMNS if column.role == "machine")
#: Columns that are checked but not stored.
CHECKED_ONLY = tuple(column.name for column in COLUMNS if column.role == "judged")
#: Numbers with a decimal comma (8,52 and 1.234,5), in SQL; 1,234 and 1,234.5 may have commas between thousands.
_DECIMAL_COMMA = r"[+-]?([0-9]+|[0-9]{1,3}([.][0-9]{3})+),[0-9]+"
_THOUSANDS = r"[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """Observed variable, with the names of the columns of its table by their role (`Column`)."""

    kind: Kind

    @property
    def value(self) -> str:
        """Column of the observed value."""
        return columns_of(self.kind, "value")[0].name

    @property
    def compared(self) -> tuple[str, ...]:
        """Columns that belong to the observation: two rows with different values there differ."""
        return tuple(column.name for column in columns_of(self.kind, "compared"))

    @property
    def sides(self) -> tuple[str, ...]:
        """All columns except the value."""
        return tuple(column.name for column in columns_of(self.kind, "compared", "described"))

    @property
    def columns(self) -> tuple[str, ...]:
        """Value and side columns, in the order of the table."""
        return tuple(column.name for column in stored_columns(self.kind))


PRICE = Variable(kind="price")
AVAILABILITY = Variable(kind="availability")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Plausibility limits for observations (M1.2, ours).

    ``clock``: present time as known to the command line (None: times are not checked); ``future``:
    how far after it a row may be dated. A price is rejected above ``price_times_on_demand`` times
    the on-demand price of its row, else the list price of its type, else the highest list price, and
    below ``price_share_of_on_demand`` of it; an on-demand price above the same multiple of the list price.
    The highest spot price in measured histories is 10.4 times on-demand; a price per month is some 30
    times on-demand or more.
    ``time_zone``: "UTC" if times without a zone are in UTC, "" if the source does not specify it: then
    rows with such times are rejected. ``decimal_comma``: numbers of the import have a decimal comma, so 1.852
    may be 1852; found while the import is read.
    """

    clock: pd.Timestamp | None = None
    future: pd.Timedelta = _A_DAY
    price_times_on_demand: float = 20.0
    price_share_of_on_demand: float = 0.001
    time_zone: str = "UTC"
    decimal_comma: bool = False

    @property
    def latest(self) -> pd.Timestamp | None:
        """Latest time that an observation may have, None without a clock."""
        return None if self.clock is None else self.clock + self.future

    def words(self) -> str:
        """Return a text that identifies limits (except the clock) other than the default, for fingerprints; "" for the default."""
        return (
            ""
            if replace(self, clock=None) == Bounds()
            else str((self.future, self.price_times_on_demand, self.price_share_of_on_demand, self.time_zone))
        )


USUAL = Bounds()


def places_sql(variable: Variable, schema: pa.Schema) -> str:
    """Return a SELECT over ``found_places`` with one row per series of the batch: pid, raw_* columns, identity, reason.

    A batch has few series: trimming and checking each once, not in every row, makes casting three
    times as fast.
    """
    found = _ColumnSql(schema)
    raw = ", ".join(["pid", *(f"{name} AS raw_{name}" for name in _place_columns(schema))])
    names = [column.name for column in columns_of(variable.kind, "identity")]
    texts = [
        f"{_named_as_known(found.text(name)) if name == 'provider' else found.text(name)} AS {name}"
        for name in names
    ]
    if variable is PRICE:
        texts[-1] = f"coalesce({found.text('product')}, 'unspecified') AS product"
    else:
        texts.append("'' AS product")
    machine = [f"{found.cast(column)} AS {column.name}" for column in columns_of(variable.kind, "machine")]
    columns = [f"coalesce({found.text('file')}, '') AS file", *texts, *machine]
    tests = _tests(found, columns_of(variable.kind, "identity"), USUAL)
    return (
        f"SELECT *, {_case(tests)} AS reason "
        f"FROM (SELECT *, {', '.join(columns)} FROM (SELECT {raw} FROM found_places)) AS named"
    )


def _named_as_known(provider: str) -> str:
    """Return SQL for the catalogue's name of a provider (M1.1); other names are unchanged."""
    cases = " ".join(
        f"WHEN {sql_literal(spelling)} THEN {sql_literal(name)}"
        for spelling, name in provider_names().items()
    )
    return f"CASE lower({provider}) {cases} ELSE {provider} END"


def cast_sql(variable: Variable, schema: pa.Schema, bounds: Bounds = USUAL) -> str:
    """Return a SELECT over ``incoming`` and ``places`` that casts and checks the rows.

    Its columns: n, pid, tsid, line, times, stored columns, reason (null if usable), raw (JSON). The
    reason is a struct of its code and parameters (`REASONS`). ``incoming`` has the columns of the
    schema, n (row number) and pid (number of the row's series).
    """
    found = _ColumnSql(schema)
    judged = [column for column in columns_of(variable.kind, "judged") if column.name in schema.names]
    stored = stored_columns(variable.kind)
    checked = (*columns_of(variable.kind, "time"), *judged, *stored)
    columns = [
        f"coalesce(CAST({found.number('line')} AS BIGINT), 0) AS line",
        *(f"{found.cast(column)} AS {column.alias}" for column in checked),
    ]
    tests = [("place_reason IS NOT NULL", "place_reason"), *_tests(found, checked, bounds)]
    raw = ", ".join(["n", "pid", *(f"{name} AS raw_{name}" for name in schema.names)])
    whole = ", ".join(f"'{name}': raw_{name}" for name in schema.names)
    typed = ", ".join(f"{_typed_sql(column)} AS {column.name}" for column in stored)
    return (
        f"WITH found AS (SELECT i.*, p.tsid, p.reason AS place_reason, p.listed_usd, p.lowest_listed_usd, {', '.join(columns)} "
        f"FROM (SELECT {raw} FROM incoming) AS i JOIN places AS p USING (pid)), "
        f"judged AS (SELECT *, {_case(tests)} AS reason FROM found) "
        f"SELECT n, pid, tsid, line, observed_at, stated_known_at, {typed}, reason, "
        f"CASE WHEN reason IS NOT NULL THEN CAST(to_json({{{whole}}}) AS VARCHAR) END AS raw FROM judged"
    )


def _tests(found: _ColumnSql, columns: Iterable[Column], bounds: Bounds) -> list[tuple[str, str]]:
    """Return the checks of the columns: SQL that is true for a rejected row, and SQL of its reason."""
    limits = {
        "times": bounds.price_times_on_demand,
        "share": bounds.price_share_of_on_demand,
        "ahead": duration(bounds.future),
        **{column.name: column.alias for column in columns if column.role in STORED},
        "latest": "" if bounds.latest is None else bounds.latest.tz_convert("UTC").isoformat(),
    }
    skipped = {"clock"} if bounds.latest is None else set()
    skipped |= {"no_zone"} if bounds.time_zone == "UTC" else set()
    tests = []
    for column in columns:
        given = {**limits, **found.parts(column)}
        has_commas = bounds.decimal_comma and found.is_text(column.name)
        for check in column.checks:
            if check.needs in skipped or (check.needs == "decimal_comma" and not has_commas):
                continue
            code = code_of(column, check)
            shown = found.abridged_text(check.column or column.name)
            reason = f"{{'code': '{code}', 'found': {shown}, 'more': {check.parameter.format(**given)}}}"
            tests.append((check.test.format(**given), reason))
    return tests


def _typed_sql(column: Column) -> str:
    """Return SQL for the value to store of a column, from its cast value."""
    if column.type == "whole":
        return f"TRY_CAST({column.alias} AS INTEGER)"
    if column.type != "number" or not column.nullable:
        return column.alias
    usable = column.usable or "isfinite({value})"
    return f"CASE WHEN {usable.format(value=column.alias)} THEN {column.alias} END"


def shortened_names(table: pa.Table) -> pa.Table:
    """Return the table with names cut that are far longer than `LONGEST_NAME`: they are rejected, and repeat in every row."""
    for k, name in enumerate(table.column_names):
        column = table.column(k)
        if (
            name in IDENTITY
            and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type))
            and column.nbytes > 4 * LONGEST_NAME * max(len(column), 1)
        ):
            table = table.set_column(k, name, pc.utf8_slice_codeunits(column, 0, 2 * LONGEST_NAME))
    return table


def numbered_places(table: pa.Table) -> tuple[pa.Array, pa.Table]:
    """Return the number of each row's place (pid), and a table with one row per place in the order of pid.

    A place is a distinct combination of the columns that identify a series.
    """
    names = _place_columns(table.schema)
    nothing = pa.chunked_array([pa.nulls(table.num_rows, pa.string())])
    texts = [_place_text(table[name]) for name in names] or [nothing]
    joined = pc.binary_join_element_wise(*texts, "\x1f", null_handling="replace", null_replacement="\0")
    pid = joined.combine_chunks().dictionary_encode().indices
    _, first = np.unique(pid.to_numpy(), return_index=True)
    numbers = np.arange(first.size, dtype=np.int32)
    return pid, pa.table({**{name: table[name].take(first) for name in names}, "pid": numbers})


def _place_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a column as texts; of nested types every row is another text."""
    try:
        return pc.cast(column, pa.string(), safe=False)
    except pa.ArrowNotImplementedError:
        return pa.chunked_array([np.arange(len(column)).astype(str)])


def _place_columns(schema: pa.Schema) -> list[str]:
    return [name for name in ("file", *IDENTITY, *MACHINE) if name in schema.names]


def _case(tests: Sequence[tuple[str, str]]) -> str:
    """Return SQL for the value of the first true test, null if none is true."""
    return "CASE " + " ".join(f"WHEN {test} THEN {value}" for test, value in tests) + " END"


class _ColumnSql:
    """SQL expressions for the columns of a batch, by their Arrow type; a missing column is null."""

    def __init__(self, schema: pa.Schema) -> None:
        self._types = {field.name: field.type for field in schema}

    def text(self, name: str) -> str:
        """Return SQL for trimmed text, null when empty."""
        if name not in self._types:
            return "CAST(NULL AS VARCHAR)"
        return f"nullif(trim(CAST(raw_{name} AS VARCHAR)), '')"

    def empty(self, name: str) -> str:
        """Return SQL that is true if the column is null or an empty text."""
        if name not in self._types:
            return "TRUE"
        if self.is_text(name):
            return f"nullif(trim(CAST(raw_{name} AS VARCHAR)), '') IS NULL"
        return f"raw_{name} IS NULL"

    def absent(self, name: str) -> str:
        """Return SQL that is true if the column is empty or NaN, which marks missing numbers in floating columns."""
        return f"({self.empty(name)} OR coalesce(isnan({name}_number), FALSE))"

    def abridged_text(self, name: str) -> str:
        """Return SQL for the abridged text of the column in a reason (`_case`); evaluated for rejected rows only."""
        if name not in self._types:
            return "''"
        return f"left(trim(CAST(raw_{name} AS VARCHAR)), {_SHOWN})"

    def parts(self, column: Column) -> dict[str, str]:
        """Return the SQL of the parameters of a `Check`, by name."""
        name = column.name
        return {
            "value": column.alias,
            "shown": self.abridged_text(name),
            "found": f"CAST({name} AS VARCHAR)" if name in self._types else "NULL",
            "empty": self.empty(name),
            "absent": self.absent(name),
            "zoneless": self.zoneless(name) if column.type == "time" else "FALSE",
        }

    def cast(self, column: Column) -> str:
        """Return SQL for the value of the column, null when empty or of another type."""
        match column.type:
            case "number" | "whole":
                return self.number(column.name)
            case "time":
                return self.time(column.name)
            case "flag":
                return self.flag(column.name)
            case "word":
                return f"lower({self.text(column.name)})"
            case "text":
                return self.text(column.name)

    def is_text(self, name: str) -> bool:
        """Return whether the column is there, with texts."""
        kind = self._types.get(name)
        return kind is not None and not (
            types.is_integer(kind)
            or types.is_floating(kind)
            or types.is_decimal(kind)
            or types.is_temporal(kind)
        )

    def number(self, name: str) -> str:
        """Return SQL for a DOUBLE, null when empty or not a number."""
        if name not in self._types:
            return "CAST(NULL AS DOUBLE)"
        if not self.is_text(name):
            return f"TRY_CAST(raw_{name} AS DOUBLE)"
        # DuckDB reads 1_0 as 10 (`is_number`).
        return (
            f"CASE WHEN NOT contains({self.text(name)}, '_') THEN TRY_CAST({self.text(name)} AS DOUBLE) END"
        )

    def flag(self, name: str) -> str:
        """Return SQL for a BOOLEAN, null when empty or not a truth value."""
        return f"TRY_CAST({self.text(name)} AS BOOLEAN)"

    def zoneless(self, name: str) -> str:
        """Return SQL that is true for a time without a zone: a text without an offset, or a timestamp without time zone."""
        if name not in self._types:
            return "FALSE"
        kind = self._types[name]
        if types.is_timestamp(kind) or types.is_date(kind):
            return "FALSE" if types.is_timestamp(kind) and kind.tz is not None else f"raw_{name} IS NOT NULL"
        return f"regexp_full_match({self.text(name)}, '{_DATE}([T ]{_CLOCK})?')"

    def time(self, name: str) -> str:
        """Return SQL for a TIMESTAMPTZ, null when empty or not a time; text must be ISO 8601, in UTC if it has no offset.

        Every text is cast with an explicit offset: DuckDB reads a text without an offset in the
        zone of the session, or in that of an earlier row that names a zone.
        """
        if name not in self._types:
            return "CAST(NULL AS TIMESTAMPTZ)"
        kind = self._types[name]
        if types.is_timestamp(kind) and kind.tz is not None:
            return f"CAST(raw_{name} AS TIMESTAMPTZ)"
        if types.is_timestamp(kind) or types.is_date(kind):
            return f"timezone('UTC', CAST(raw_{name} AS TIMESTAMP))"
        text = self.text(name)
        # DuckDB requires capitals, seconds and no space before the offset.
        spaced = f"regexp_replace(upper({text}), ' ?(UTC|GMT|Z)$', '+00:00')"
        plain = (
            f"regexp_replace(regexp_replace({spaced}, ' ([+-])', '\\1'), '^(.{{16}})([+-].*)$', '\\1:00\\2')"
        )
        return (
            f"CASE WHEN regexp_full_match({text}, '{_DATE}[T ]{_CLOCK}[+-]{_OFFSET}') AND {text}[17] = ':' "
            f"THEN TRY_CAST({text} AS TIMESTAMPTZ) "
            f"WHEN regexp_full_match({text}, '{_DATE}') THEN TRY_CAST({text} || ' 00:00:00+00:00' AS TIMESTAMPTZ) "
            f"WHEN regexp_full_match({text}, '(?i){_DATE}[T ]{_CLOCK}') THEN TRY_CAST("
            f"regexp_replace(upper({text}) || '+00:00', '^(.{{16}})([+-].*)$', '\\1:00\\2') AS TIMESTAMPTZ) "
            f"WHEN regexp_full_match({text}, '(?i){_DATE}[T ]{_CLOCK} ?(Z|UTC|GMT|[+-]{_OFFSET})') "
            f"THEN TRY_CAST({plain} AS TIMESTAMPTZ) END"
        )


# ---
# Reasons for rejecting rows: a code with parameters, or a sentence of the source.

#: Prefix of sentences on names unknown to a source: every name counts as a separate kind of reason.
UNKNOWN = "unknown "
_OWN_WORDS = re.compile(r"'[^']*'|\"[^\"]*\"|\([^()]*\)|(?<![\w.-])-?\d[\w.:+-]*")
_REASONS = pa.table(
    {
        "code": list(REASONS),
        "sentence": [reason.sentence for reason in REASONS.values()],
        "by_value": [reason.by_value for reason in REASONS.values()],
        "is_stated": [not code or code in STATED for code in REASONS],
    }
)
#: SQL of the columns by which rejected rows are counted: the code, and the sentence unless the code says all.
_COUNTED_BY = (
    "code, CASE WHEN code IN ("
    + ", ".join(sql_literal(code) for code, reason in REASONS.items() if not reason.by_value)
    + ") THEN '' ELSE reason END"
)


def kind_of_reason(code: str, reason: str) -> str:
    """Return the text under which rejected rows are counted, without the text and numbers of a single row.

    >>> kind_of_reason("price_usd.negative", "price_usd -0.1 is negative"), kind_of_reason("", "no offer 4")
    ('price_usd is negative', 'no offer ...')
    """
    known = REASONS.get(code)
    if known is not None and not known.by_value:
        return known.kind
    return (
        reason
        if (code in REASONS and code) or reason.startswith(UNKNOWN)
        else _OWN_WORDS.sub("...", reason)[:_SHOWN]
    )


def counted_reasons(found: Iterable[tuple[str, str, int]]) -> dict[str, int]:
    """Aggregate row counts by code and sentence to counts by kind of reason, largest first."""
    counts: Counter[str] = Counter()
    for code, reason, count in found:
        counts[kind_of_reason(code, reason)] += count
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


# ---
# Staging and merging: each file is staged in chunks, cast and checked in SQL, and merged in one transaction.

#: Rows merged at a time, so that grouping and joining stay well within the store's memory limit.
PART_ROWS = 1_000_000
#: Bytes of rows cast at a time.
STAGED_BYTES = 32 << 20
_KEY = "sid, observed_at, known_at"
_IN_PART = "sid BETWEEN $first_sid AND $last_sid AND observed_at >= $start AND observed_at < $stop"


class Stage:
    """Temporary tables with the rows of an import before the merge; DuckDB spills them to disk when they grow."""

    def __init__(self, store: Store, rule: str, bounds: Bounds = USUAL) -> None:
        self._store = store
        self._bounds = bounds
        self._rule = rule
        self._rows = self._places = 0
        #: Whether a number of the import has a decimal comma.
        self.has_decimal_comma = False
        #: Number of discarded values of usable rows, by kind of reason.
        self.set_aside: Counter[str] = Counter()
        names = " VARCHAR NOT NULL, ".join(IDENTITY)
        machine = " DOUBLE, ".join(MACHINE)
        store.execute(
            f"CREATE OR REPLACE TEMP TABLE staged_series (tsid INTEGER, sid INTEGER, file VARCHAR, {names} VARCHAR, kind VARCHAR, "
            f"{machine} DOUBLE)"
        )
        store.execute(
            "CREATE OR REPLACE TEMP TABLE staged_rejected (n BIGINT, file VARCHAR, line BIGINT, raw VARCHAR, "
            "code VARCHAR, found VARCHAR, more VARCHAR)"
        )
        for variable in (PRICE, AVAILABILITY):
            columns = ", ".join(variable.columns)
            store.execute(
                f"CREATE OR REPLACE TEMP TABLE staged_{variable.kind} AS SELECT 0 AS tsid, CAST(0 AS BIGINT) AS n, "
                f"CAST(0 AS BIGINT) AS line, observed_at, known_at, {columns} FROM {variable.kind} LIMIT 0"
            )

    def drop(self) -> None:
        """Drop the temporary tables."""
        for name in ("series", "rejected", "price", "availability"):
            self._store.execute(f"DROP TABLE IF EXISTS temp.staged_{name}")
        self._store.execute("DROP TABLE IF EXISTS temp.places")

    def fill(self, batches: Iterable[Batch], *, hashed: bool) -> str:
        """Stage all batches; return the digest of their content (with ``hashed``, else of nothing)."""
        digest = hashlib.sha256()
        for batch in _combine_batches(_hash_batches(batches, digest) if hashed else batches):
            self._add(batch)
            self._rows += batch.table.num_rows
        return digest.hexdigest()

    def _add(self, batch: Batch) -> None:
        if batch.kind == "rejected":
            code = "coalesce(code, '')" if "code" in batch.table.column_names else "''"
            with self._store.registered("incoming", batch.table):
                self._store.execute(
                    "INSERT INTO staged_rejected SELECT row_number() OVER () + $offset, coalesce(file, ''), "
                    f"coalesce(line, 0), coalesce(CAST(raw AS VARCHAR), ''), {code}, coalesce(reason, ''), '' FROM incoming",
                    {"offset": self._rows},
                )
            return
        variable = PRICE if batch.kind == "price" else AVAILABILITY
        store, table = self._store, batch.table
        table = shortened_names(table.drop_columns(_empty_columns(table, (*CHECKED_ONLY, *MACHINE))))
        schema = table.schema
        pid, places = numbered_places(table)
        numbers = pa.array(np.arange(self._rows + 1, self._rows + 1 + table.num_rows))
        table = table.append_column("n", numbers).append_column("pid", pid)
        with store.registered("found_places", places), store.registered("incoming", table):
            self.has_decimal_comma = self.has_decimal_comma or self._finds_decimal_comma(variable, schema)
            self._place(variable, schema)
            store.execute(
                f"INSERT INTO staged_series SELECT tsid, NULL, file, {', '.join(IDENTITY)}, $kind, {', '.join(MACHINE)} "
                "FROM places WHERE reason IS NULL",
                {"kind": variable.kind},
            )
            ((usable,),) = store.execute(
                f"INSERT INTO staged_{variable.kind} SELECT tsid, n, line, observed_at, "
                f"coalesce(stated_known_at, {self._rule}), {', '.join(variable.columns)} "
                f"FROM ({cast_sql(variable, schema, self._bounds)}) WHERE reason IS NULL"
            )
            # A second cast for batches with rejected rows, of which only these keep their original columns.
            if usable < table.num_rows:
                store.execute(
                    "INSERT INTO staged_rejected SELECT n, file, line, raw, c.reason.code, c.reason.found, c.reason.more "
                    f"FROM ({cast_sql(variable, schema, self._bounds)}) AS c JOIN places USING (pid) WHERE c.reason IS NOT NULL"
                )
            for column in stored_columns(variable.kind) if usable else ():
                if column.set_aside is not None and column.name in schema.names:
                    self._count_set_aside(schema, column, column.set_aside)
        self._places += places.num_rows

    def _finds_decimal_comma(self, variable: Variable, schema: pa.Schema) -> bool:
        """Return whether a number of the batch has a decimal comma."""
        found = _ColumnSql(schema)
        names = [c.name for c in stored_columns(variable.kind) if c.type in ("number", "whole")]
        tests = [
            f"(contains({text}, ',') AND regexp_full_match({text}, '{_DECIMAL_COMMA}') "
            f"AND NOT regexp_full_match({text}, '{_THOUSANDS}'))"
            for text in (f"trim(CAST({name} AS VARCHAR))" for name in names if found.is_text(name))
        ]
        if not tests:
            return False
        return bool(self._store.execute(f"SELECT 1 FROM incoming WHERE {' OR '.join(tests)} LIMIT 1"))

    def _place(self, variable: Variable, schema: pa.Schema) -> None:
        """Create ``places``: the series of a batch with their numbers, names, reasons (`places_sql`) and list prices."""
        self._store.execute(
            f"CREATE OR REPLACE TEMP TABLE places AS SELECT *, NULL::DOUBLE AS listed_usd, "
            f"NULL::DOUBLE AS lowest_listed_usd, pid + {self._places} AS tsid "
            f"FROM ({places_sql(variable, schema)})"
        )
        self._spell_as_known()
        self._reject_other_machines(schema)
        if variable is PRICE:
            self._list_prices()

    def _spell_as_known(self) -> None:
        """Write names that differ from known ones in capitals only as those (M1.1).

        The names stored come first, then those of the catalogue, of this import, and of this batch.
        """
        columns = [name for name in IDENTITY if name not in ("source", "product")]
        names = ", ".join(columns)
        with self._store.registered("listed_names", _catalogue_names()):
            for name in columns:
                self._store.execute(
                    f"UPDATE places SET {name} = known.name FROM ("
                    f"SELECT lower(provider) AS cloud, lower({name}) AS folded, list({name}) FILTER (WHERE rank = 0) AS stored, "
                    f"max({{'rank': -rank, 'name': {name}}}).name AS name FROM (SELECT {names}, 0 AS rank FROM markets "
                    f"UNION ALL SELECT {names}, 1 FROM listed_names UNION ALL SELECT {names}, 2 FROM staged_series "
                    f"UNION ALL SELECT {names}, 3 FROM places) WHERE {name} IS NOT NULL GROUP BY ALL) AS known "
                    f"WHERE lower(places.provider) = known.cloud AND lower(places.{name}) = known.folded "
                    f"AND places.{name} <> known.name AND NOT coalesce(list_contains(known.stored, places.{name}), FALSE)"
                )

    def _reject_other_machines(self, schema: pa.Schema) -> None:
        """Reject places whose rows state another machine than the earlier rows of the type (M1.2)."""
        found = _ColumnSql(schema)
        for column in COLUMNS:
            if column.role != "machine" or column.name not in schema.names:
                continue
            (check,) = column.checks
            given = {
                **found.parts(column),
                "value": f"places.{column.name}",
                "stored": f"known.{column.name}",
            }
            parameter = check.parameter.format(**given)
            reason = f"{{'code': '{code_of(column, check)}', 'found': {found.abridged_text(column.name)}, 'more': {parameter}}}"
            self._store.execute(
                f"UPDATE places SET reason = {reason} FROM machines AS known "
                "WHERE places.reason IS NULL AND places.provider = known.provider "
                f"AND places.instance_type = known.instance_type AND {check.test.format(**given)}"
            )

    def _count_set_aside(self, schema: pa.Schema, column: Column, check: Check) -> None:
        """Count the invalid values of a column: only they are set aside, the rest of their rows is stored."""
        found = _ColumnSql(schema)
        ((count,),) = self._store.execute(
            f"SELECT count(*) FROM (SELECT raw_{column.name}, {found.cast(column)} AS {column.alias} "
            f"FROM (SELECT {column.name} AS raw_{column.name} FROM incoming)) AS found "
            f"WHERE {check.test.format(**found.parts(column))}"
        )
        if count:
            self.set_aside[REASONS[code_of(column, check)].kind] += count

    def _list_prices(self) -> None:
        """Set the highest (`highest_likely_price`) and lowest on-demand list price of every place, None if it is not listed."""
        pairs = self._store.execute(
            "SELECT DISTINCT provider, instance_type FROM places WHERE reason IS NULL"
        )
        listed = pa.table(
            {
                "provider": [provider for provider, _ in pairs],
                "instance_type": [kind for _, kind in pairs],
                "highest": pa.array([highest_likely_price(*pair) for pair in pairs], pa.float64()),
                "lowest": pa.array([lowest_list_price(*pair) for pair in pairs], pa.float64()),
            }
        )
        with self._store.registered("listed", listed):
            self._store.execute(
                "UPDATE places SET listed_usd = listed.highest, lowest_listed_usd = listed.lowest FROM listed "
                "WHERE places.provider = listed.provider AND places.instance_type = listed.instance_type"
            )


@cache
def _catalogue_names() -> pa.Table:
    """Return provider, region, zone (none) and instance type of the catalogue's rows."""
    rows = [
        {"provider": row.provider, "region": region, "zone": None, "instance_type": row.instance_type}
        for row in catalogue()
        for region in row.regions
    ]
    return pa.Table.from_pylist(
        rows, schema=pa.schema([(name, pa.string()) for name in IDENTITY if name in rows[0]])
    )


def _combine_batches(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Combine batches to about `STAGED_BYTES`, to reduce the work per batch."""
    held: list[Batch] = []
    for batch in batches:
        if held and (batch.kind != held[0].kind or batch.table.schema != held[0].table.schema):
            yield _concatenate(held)
            held = []
        if batch.table.num_rows:
            held.append(batch)
        if sum(waiting.table.nbytes for waiting in held) >= STAGED_BYTES:
            yield _concatenate(held)
            held = []
    if held:
        yield _concatenate(held)


def _empty_columns(table: pa.Table, names: Sequence[str]) -> list[str]:
    """Return the named columns that have no value."""
    return [name for name in names if name in table.column_names and table[name].null_count == len(table)]


def _concatenate(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    return Batch(kind=batches[0].kind, table=pa.concat_tables([batch.table for batch in batches]))


def _hash_batches(batches: Iterable[Batch], digest: Any) -> Iterator[Batch]:
    """Yield the batches and add their content to a digest."""
    for batch in batches:
        table = batch.table.drop_columns(_empty_columns(batch.table, MACHINE))
        digest.update(batch.kind.encode())
        digest.update(str(table.schema.remove_metadata()).encode())
        for chunk in table.to_batches():
            digest.update(memoryview(chunk.serialize()))
        yield batch


def keep_series(store: Store) -> None:
    """Assign market and series ids to the staged series, inserting new markets and series."""
    place = "provider, region, zone, instance_type"
    _find_series(store)
    if not store.execute("SELECT 1 FROM staged_series WHERE sid IS NULL LIMIT 1"):
        return  # usual for feeds after their first fetch
    store.execute(
        "INSERT INTO markets SELECT (SELECT coalesce(max(mid), 0) FROM markets) + "
        f"row_number() OVER (ORDER BY {place}), * "
        f"FROM (SELECT DISTINCT {place} FROM staged_series) AS s ANTI JOIN markets USING ({place})"
    )
    store.execute(
        "INSERT INTO series SELECT (SELECT coalesce(max(sid), 0) FROM series) + "
        "row_number() OVER (ORDER BY mid, source, kind, product), * "
        f"FROM (SELECT DISTINCT mid, source, kind, product FROM staged_series JOIN markets USING ({place})) AS s "
        "ANTI JOIN series USING (mid, source, kind, product)"
    )
    _find_series(store)


def keep_machines(store: Store) -> None:
    """Store the machines that the staged series state, for types without a stored one."""
    key = "provider, instance_type"
    stated = ", ".join(f"max({name}) AS {name}" for name in MACHINE)
    store.execute(
        f"CREATE OR REPLACE TEMP TABLE stated AS SELECT {key}, {stated} FROM staged_series "
        f"WHERE coalesce({', '.join(MACHINE)}) IS NOT NULL GROUP BY ALL"
    )
    filled = ", ".join(f"{name} = coalesce(known.{name}, stated.{name})" for name in MACHINE)
    lacking = " OR ".join(f"known.{name} IS NULL" for name in MACHINE)
    store.execute(
        f"UPDATE machines AS known SET {filled} FROM stated WHERE known.provider = stated.provider "
        f"AND known.instance_type = stated.instance_type AND ({lacking})"
    )
    columns = f"{key}, {', '.join(MACHINE)}"
    store.execute(
        f"INSERT INTO machines ({columns}) SELECT {columns} FROM stated ANTI JOIN machines USING ({key})"
    )
    store.execute("DROP TABLE temp.stated")


def _find_series(store: Store) -> None:
    """Set the ids of staged series that are stored already."""
    store.execute(
        "UPDATE staged_series AS s SET sid = k.sid FROM (SELECT * FROM series JOIN markets USING (mid)) AS k "
        "WHERE " + " AND ".join(f"s.{name} = k.{name}" for name in (*IDENTITY, "kind"))
    )


def merge(store: Store, variable: Variable, batch: int) -> tuple[int, int]:
    """Merge the staged rows of a variable, in parts of bounded size; return the numbers of added and of repeated rows.

    Rejected rows go to ``staged_rejected``.
    """
    added = rejected = 0
    if not store.execute(f"SELECT 1 FROM staged_{variable.kind} LIMIT 1"):
        return 0, 0
    read, whole = _sort(store, variable)
    columns = ", ".join(variable.columns)
    keys = "SELECT sid, observed_at FROM"
    for part in _parts(store) if read > PART_ROWS else [whole]:
        # Observations that occur more than once in the import, or are stored already.
        ((contested,),) = store.execute(
            f"CREATE OR REPLACE TEMP TABLE contested AS {keys} sorted WHERE again AND {_IN_PART} UNION ALL "
            f"SELECT * FROM ({keys} sorted WHERE {_IN_PART}) AS s SEMI JOIN ({keys} {variable.kind} WHERE {_IN_PART}) AS stored "
            "USING (sid, observed_at)",
            part,
        )
        hard = f"JOIN contested USING (sid, observed_at) WHERE {_IN_PART}"
        ((new,),) = store.execute(
            f"INSERT INTO {variable.kind} ({_KEY}, {columns}, batch) SELECT {_KEY}, {columns}, $batch FROM sorted "
            + (f"ANTI {hard} ORDER BY {_KEY}" if contested else f"WHERE {_IN_PART}"),
            {**part, "batch": batch},
        )
        added += new
        if contested and _has_news(store, variable, hard, part):
            store.execute(f"CREATE OR REPLACE TEMP TABLE hard AS SELECT * FROM sorted SEMI {hard}", part)
            _choose_winners(store, variable)
            rejected += _reject_contradicting(store, variable)
            _complete_stored(store, variable)
            rejected += _reject_conflicts(store, variable)
            added += _add_versions(store, variable, batch)
            for table in ("hard", "winners", "chain"):
                store.execute(f"DROP TABLE IF EXISTS temp.{table}")
    for table in ("sorted", "contested"):
        store.execute(f"DROP TABLE IF EXISTS temp.{table}")
    return added, read - added - rejected


def _sort(store: Store, variable: Variable) -> tuple[int, dict[str, object]]:
    """Create ``sorted``: the staged rows in table order, with a flag for repeated observations.

    Returns the number of rows, and the range of their series and times. The order is checked while the rows
    leave the sort, which costs a tenth of grouping them; raises `StoreError` if they are not in order.
    """
    before = "lag(sid) OVER () AS last_sid, lag(observed_at) OVER () AS last_at"
    store.execute(
        "CREATE OR REPLACE TEMP TABLE sorted AS SELECT * EXCLUDE (last_sid, last_at), "
        "coalesce(sid = last_sid AND observed_at = last_at, FALSE) AS again, "
        "coalesce(sid < last_sid OR (sid = last_sid AND observed_at < last_at), FALSE) AS astray "
        f"FROM (SELECT *, {before} FROM (SELECT s.sid, t.* FROM staged_{variable.kind} AS t JOIN staged_series AS s USING (tsid) "
        f"ORDER BY {_KEY}))"
    )
    read, astray, *bounds = store.execute(
        "SELECT count(*), count(*) FILTER (WHERE astray), "
        "min(sid), max(sid), min(observed_at), max(observed_at) + to_microseconds(1) FROM sorted"
    )[0]
    if astray:
        raise StoreError(
            f"{astray} of {read} rows left a sort out of order", expected="rows by series and time"
        )
    return int(read), dict(zip(("first_sid", "last_sid", "start", "stop"), bounds, strict=True))


def _parts(store: Store) -> list[dict[str, object]]:
    """Return ranges of series ids (of times, for long series) with about `PART_ROWS` staged rows, in order of the tables."""
    sizes = store.execute("SELECT sid, count(*) FROM sorted GROUP BY sid ORDER BY sid")
    parts: list[dict[str, object]] = []
    room = 0
    for sid, size in sizes:
        if size > PART_ROWS:
            parts += _time_parts(store, sid, size)
            room = 0
        elif size > room:
            parts.append({"first_sid": sid, "last_sid": sid, "start": "-infinity", "stop": "infinity"})
            room = PART_ROWS - size
        else:
            parts[-1]["last_sid"] = sid
            room -= size
    return parts


def _time_parts(store: Store, sid: int, size: int) -> list[dict[str, object]]:
    shares = ", ".join(str(k * PART_ROWS / size) for k in range(1, -(-size // PART_ROWS)))
    (marks,) = store.execute(
        f"SELECT quantile_disc(observed_at, [{shares}]) FROM sorted WHERE sid = $sid", {"sid": sid}
    )[0]
    bounds = ["-infinity", *sorted(set(marks)), "infinity"]
    return [
        {"first_sid": sid, "last_sid": sid, "start": start, "stop": stop} for start, stop in pairwise(bounds)
    ]


def _has_news(store: Store, variable: Variable, hard: str, part: Mapping[str, object]) -> bool:
    """Return whether any contested row is not stored exactly as it is: most rows of a feed that is read again are."""
    same = " AND ".join(f"h.{name} IS NOT DISTINCT FROM p.{name}" for name in variable.columns)
    found = store.execute(
        f"SELECT 1 FROM (SELECT * FROM sorted SEMI {hard}) AS h WHERE NOT EXISTS ("
        f"SELECT 1 FROM (SELECT * FROM {variable.kind} WHERE {_IN_PART}) AS p WHERE {_same_key('h', 'p')} AND {same}) LIMIT 1",
        part,
    )
    return bool(found)


def _choose_winners(store: Store, variable: Variable) -> None:
    """Create ``winners``: per key the value on which all rows of the import agree, with the side values any of them states.

    Keys whose rows differ have no winner, independent of the row order (`_reject_contradicting`).
    """
    names = (variable.value, *variable.compared)
    agree = " AND ".join(f"count(DISTINCT {name}) <= 1" for name in names)
    columns = ", ".join(f"max({name}) AS {name}" for name in variable.columns)
    store.execute(
        f"CREATE OR REPLACE TEMP TABLE winners AS SELECT {_KEY}, {columns} FROM hard GROUP BY {_KEY} HAVING {agree}"
    )
    store.execute(
        f"CREATE OR REPLACE TEMP TABLE chain AS SELECT * FROM {variable.kind} "
        "SEMI JOIN winners USING (sid, observed_at)"
    )


def _differ(variable: Variable, first: str, other: str) -> str:
    """Return SQL that is true if the two rows state different values."""
    tests = [f"{first}.{variable.value} <> {other}.{variable.value}"]
    tests += [f"coalesce({first}.{side} <> {other}.{side}, FALSE)" for side in variable.compared]
    return f"({' OR '.join(tests)})"


def _reject(store: Store, variable: Variable, rows: str, *, code: str, parameter: str) -> int:
    """Copy rows of ``hard`` (alias h) to ``staged_rejected`` with a reason, given as SQL; return their number."""
    names = [column.name for column in columns_of(variable.kind, "identity")]
    parts = [f"'{name}': s.{name}" for name in names]
    parts += [f"'{name}': h.{name}" for name in ("observed_at", "known_at", *variable.columns)]
    result = store.execute(
        f"INSERT INTO staged_rejected SELECT h.n, s.file, h.line, CAST(to_json({{{', '.join(parts)}}}) AS VARCHAR), "
        f"{code}, CAST({parameter} AS VARCHAR), '' FROM hard AS h JOIN staged_series AS s ON h.tsid = s.tsid {rows}"
    )
    return int(result[0][0])


def _reject_contradicting(store: Store, variable: Variable) -> int:
    """Reject rows of the same key that differ, as it is unknown which of them is right; return their number."""
    apart = f"(SELECT * FROM hard ANTI JOIN winners USING ({_KEY}))"
    rejected = _reject(
        store,
        variable,
        f"JOIN (SELECT {_KEY}, min(line) AS first_line, max(line) AS last_line FROM {apart} GROUP BY {_KEY}) AS w "
        f"ON {_same_key('h', 'w')}",
        code=sql_literal(CONTRADICTS),
        parameter="CASE WHEN h.line = w.first_line THEN w.last_line ELSE w.first_line END",
    )
    if rejected:
        store.execute(
            f"DELETE FROM hard AS h WHERE NOT EXISTS (SELECT 1 FROM winners AS w WHERE {_same_key('h', 'w')})"
        )
    return rejected


def _same_key(first: str, other: str) -> str:
    return " AND ".join(f"{first}.{name} = {other}.{name}" for name in _KEY.split(", "))


def _complete_stored(store: Store, variable: Variable) -> None:
    """Fill missing side values of stored rows from imported rows that do not differ otherwise."""
    lacking = " OR ".join(f"(p.{side} IS NULL AND w.{side} IS NOT NULL)" for side in variable.sides)
    for table in (variable.kind, "chain"):
        settings = ", ".join(f"{side} = coalesce(p.{side}, w.{side})" for side in variable.sides)
        store.execute(
            f"UPDATE {table} AS p SET {settings} FROM winners AS w "
            f"WHERE {_same_key('p', 'w')} AND NOT {_differ(variable, 'p', 'w')} AND ({lacking})"
        )


def _reject_conflicts(store: Store, variable: Variable) -> int:
    """Reject rows that contradict a stored row of the same key; return their number."""
    names = (variable.value, *variable.compared)
    differ = {name: f"coalesce(h.{name} <> p.{name}, FALSE)" for name in names}
    return _reject(
        store,
        variable,
        f"JOIN chain AS p ON {_same_key('h', 'p')} WHERE {_differ(variable, 'h', 'p')}",
        code=_case([(test, sql_literal(f"{CONFLICTS}{name}")) for name, test in differ.items()]),
        parameter=_case([(test, f"CAST(p.{name} AS VARCHAR)") for name, test in differ.items()]),
    )


def _add_versions(store: Store, variable: Variable, batch: int) -> int:
    """Add winners without a stored row of their key, unless the previously known version is the same; return their number."""
    value, columns = variable.value, ", ".join(variable.columns)
    before = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    carried = "".join(
        f", last_value({side} IGNORE NULLS) OVER (w {before}) AS earlier_{side}" for side in variable.compared
    )
    news = [f"earlier_{value} IS NULL", f"{value} <> earlier_{value}"]
    news += [f"({side} IS NOT NULL AND {side} IS DISTINCT FROM earlier_{side})" for side in variable.compared]
    ((added,),) = store.execute(
        f"INSERT INTO {variable.kind} ({_KEY}, {columns}, batch) WITH versions AS ("
        f"SELECT {_KEY}, {columns}, TRUE AS stored FROM chain UNION ALL "
        f"SELECT {_KEY}, {columns}, FALSE FROM winners ANTI JOIN chain USING ({_KEY})), "
        f"compared AS (SELECT *, lag({value}) OVER w AS earlier_{value}{carried} FROM versions "
        "WINDOW w AS (PARTITION BY sid, observed_at ORDER BY known_at)) "
        f"SELECT {_KEY}, {columns}, $batch FROM compared WHERE NOT stored AND ({' OR '.join(news)}) ORDER BY {_KEY}",
        {"batch": batch},
    )
    return int(added)


def keep_rejected(store: Store, batch: int, content: str) -> dict[str, int]:
    """Store the rejected rows, except those already stored from the same content; return the counts of all by kind."""
    if not store.execute("SELECT 1 FROM staged_rejected LIMIT 1"):
        return {}
    with store.registered("reasons", _REASONS):
        store.execute(
            "CREATE OR REPLACE TEMP TABLE told AS SELECT n, file, line, raw, code, "
            "CASE WHEN is_stated THEN found "
            "ELSE regexp_replace(format(sentence, coalesce(found, ''), coalesce(more, '')), "
            f"'{UNPRINTABLE}', '?', 'g') END AS reason "
            "FROM staged_rejected JOIN reasons USING (code)"
        )
    store.execute(
        "INSERT INTO rejected (batch, file, line, raw, reason, code) SELECT $batch, file, line, raw, reason, code "
        "FROM told ANTI JOIN "
        "(SELECT line, raw, reason FROM rejected JOIN imports USING (batch) WHERE content = $content) AS old "
        "USING (line, raw, reason) ORDER BY n",
        {"batch": batch, "content": content},
    )
    counts = store.execute(f"SELECT {_COUNTED_BY}, count(*) FROM told GROUP BY ALL")
    store.execute("DROP TABLE temp.told")
    return counted_reasons(counts)


def keep_assumptions(store: Store, texts: tuple[str, ...]) -> None:
    """Store the assumptions of the reader for every series of the import."""
    for text in texts:
        store.execute(
            "INSERT INTO assumptions SELECT * FROM (SELECT DISTINCT "
            "concat_ws('/', provider, region, zone, instance_type) AS market, source, $text AS text "
            "FROM staged_series) AS new ANTI JOIN assumptions USING (market, source, text) ORDER BY ALL",
            {"text": text},
        )


# ---
# Import of files and batches.
#
# Every row is counted: added + repeated + rejected is the number of rows read; the same file again adds nothing.


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedSince:
    """Rule for when rows of a live feed became known: fetched at ``at``, feed followed since ``start`` (M1.2, ours).

    A row observed before ``start`` is history fetched afterwards: known when it was observed. A
    later row was known at the fetch that returned it, and never before it was observed, however far
    the server's clock is ahead.
    """

    start: pd.Timestamp
    at: pd.Timestamp


#: When rows that do not state it became known: when observed (None), at a given time (but not before they
#: were observed), or by the rule of a live feed.
KnownAt = pd.Timestamp | FollowedSince | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Row counts of an import: ``added`` observations, ``repeated`` without new information, ``rejected`` (stored separately).

    ``reasons``: rejected rows by kind of reason (`kind_of_reason`), largest first. ``set_aside``:
    number of values discarded while the rest of their row was stored, by reason. ``batches``:
    numbers of the imports in the table ``imports``.
    """

    added: int
    repeated: int
    rejected: int
    reasons: Mapping[str, int] = field(default_factory=dict, compare=False)
    set_aside: Mapping[str, int] = field(default_factory=dict, compare=False)
    batches: tuple[int, ...] = field(default=(), compare=False)

    def __add__(self, other: Appended) -> Appended:
        return Appended(
            added=self.added + other.added,
            repeated=self.repeated + other.repeated,
            rejected=self.rejected + other.rejected,
            reasons=dict((Counter(self.reasons) + Counter(other.reasons)).most_common()),
            set_aside=dict((Counter(self.set_aside) + Counter(other.set_aside)).most_common()),
            batches=self.batches + other.batches,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of an import; the fields of its row in the table ``imports``."""

    reader: str
    file: str
    options: str
    known_at_rule: str
    assumptions: tuple[str, ...]
    imported_at: pd.Timestamp | None


STANDARD_INPUT = "-"  # File name of rows read from standard input


def find_source(name: str) -> Source:
    """Return the source of that name; raises `InputError` with the known names."""
    check_source(name)
    return SOURCES[name]


def ingest(
    store: Store,
    source: str,
    /,
    *paths: Path | str,
    known_at: KnownAt = None,
    imported_at: pd.Timestamp | None = None,
    bounds: Bounds = USUAL,
    progress: Callable[[str], None] = lambda _: None,
    rows: Callable[[str, int], None] = lambda _file, _rows: None,
    standard_input: Path | None = None,
    **options: str | Mapping[str, str],
) -> Appended:
    """Import every file of a source found in ``paths`` (files or folders), with a transaction per file; return summed counts.

    ``options`` are specific to the source (`slackwater ingest --list`). ``progress`` is called with
    each file's name, ``rows`` with the name and the number of rows read so far; ``bounds``:
    plausibility limits. ``standard_input``: which of the paths is the copy of standard input.

    A file that does not have the source's format does not stop the import of the others; afterwards
    `SourceFileError` is raised (`InputError` if there are several files). Raises `InputError` for
    an unknown source.
    """
    reader = find_source(source)
    given_options = SourceOptions(values=options)
    total = Appended(added=0, repeated=0, rejected=0)
    refused: list[SourceFileError] = []
    files = reader.files([Path(path) for path in paths])
    for path in files:
        progress(path.name)
        try:
            total += ingest_file(
                store,
                reader,
                path,
                options=given_options,
                known_at=known_at,
                imported_at=imported_at,
                bounds=bounds,
                name=STANDARD_INPUT if path == standard_input else None,
                rows=partial(rows, path.name),
            )
        except SourceFileError as error:
            refused.append(_renamed_error(error, "standard input") if path == standard_input else error)
    if len(files) == 1 and refused:
        raise refused[0]
    if refused:
        raise InputError(
            f"{len(refused)} of {len(files)} files refused, the first: {refused[0]}",
            remedy=f"the others are in: {total.added} rows added, {total.repeated} repeated, {total.rejected} rejected",
        )
    return total


def _renamed_error(error: SourceFileError, name: str) -> SourceFileError:
    """Return the error with another name in place of the file name."""
    found = error.found.removeprefix(error.file).removeprefix(f", line {error.line}").removeprefix(": ")
    return SourceFileError(name, error.line, found, expected=error.expected, remedy=error.remedy)


def ingest_file(
    store: Store,
    source: Source,
    path: Path,
    *,
    options: SourceOptions,
    known_at: KnownAt = None,
    imported_at: pd.Timestamp | None = None,
    bounds: Bounds = USUAL,
    name: str | None = None,
    rows: Callable[[int], None] = lambda _: None,
) -> Appended:
    """Import a file with ``source`` in a single transaction and return its row counts.

    A file that was imported before (same bytes, path, source, options, rule and bounds) is not read
    again, unless some of its rows were dated in the future then: its usable rows count as repeated,
    its rejected rows as rejected.

    ``known_at`` applies to rows that do not state it (M1.2); ``imported_at`` is the logical time of the
    import; ``name`` is the file name stored in ``imports`` and with its rows, by default the path; ``rows`` is
    called with the number of rows read so far. Raises `SourceFileError` if the file does not have the source's
    format; then none of its rows are stored.
    """
    content = _digest(path) if source.has_files else None
    origin = Origin(
        reader=source.name,
        file=path.as_posix() if name is None else name,
        options=json.dumps(dict(options.values), sort_keys=True),
        known_at_rule=rule_words(known_at),
        assumptions=(),
        imported_at=imported_at,
    )
    if not source.time_zone(path, options):
        bounds = replace(bounds, time_zone="")
    known = None if content is None else _known_import(store, _fingerprint(content, origin, bounds))
    if known is not None:
        return known
    assumed = tuple(source.assumptions(path, options))
    origin = replace(origin, assumptions=assumed)

    def read() -> Iterator[Batch]:
        return _count_rows(source.read(path, options), rows, name)

    return _import(store, read, origin, known_at=known_at, content=content, bounds=bounds)


def _count_rows(batches: Iterable[Batch], rows: Callable[[int], None], name: str | None) -> Iterator[Batch]:
    """Yield the batches, with ``name`` as their file if it is given, and report the number of rows read."""
    read = 0
    for batch in batches:
        read += batch.table.num_rows
        rows(read)
        if name is not None:
            place = batch.table.column_names.index("file")
            named = pa.repeat(pa.scalar(name), batch.table.num_rows)
            batch = replace(batch, table=batch.table.set_column(place, "file", named))
        yield batch


def _digest(path: Path) -> str:
    if path.exists() and not path.is_file():  # a pipe or device may be endless
        raise SourceFileError(path, 0, "a folder, pipe or device", expected="a file")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SourceFileError(
            path,
            0,
            f"cannot be read ({error.strerror})",
            expected="a readable file",
            remedy="check its rights",
        ) from error


def append(
    store: Store,
    batches: Iterable[Batch],
    *,
    source: str,
    known_at: KnownAt = None,
    imported_at: pd.Timestamp | None = None,
    file: str = "",
    assumptions: tuple[str, ...] = (),
    bounds: Bounds = USUAL,
) -> Appended:
    """Import batches that do not come from a file (a simulated market, an API); rules as in `ingest_file`.

    ``source`` is the reader's name stored in ``imports``; the label of each series is in the rows.
    The same batches again add nothing.
    """
    origin = Origin(
        reader=source,
        file=file,
        options="{}",
        known_at_rule=rule_words(known_at),
        assumptions=assumptions,
        imported_at=imported_at,
    )
    found = tuple(batches)
    return _import(store, lambda: found, origin, known_at=known_at, content=None, bounds=bounds)


def rule_words(known_at: KnownAt) -> str:
    """Return the rule as text, as stored in ``imports``; raises `SettingsError` for a time without zone."""
    if known_at is None:
        return "observed_at"
    if isinstance(known_at, FollowedSince):
        return f"observed_at before {_utc_text(known_at.start)}, then {rule_words(known_at.at)}"
    return f"max(observed_at, {_utc_text(known_at)})"


def _utc_text(at: pd.Timestamp) -> str:
    return moment(at, "known_at").isoformat()


def _rule_sql(known_at: KnownAt) -> str:
    if known_at is None:
        return "observed_at"
    if isinstance(known_at, FollowedSince):
        return (
            f"CASE WHEN observed_at < CAST('{_utc_text(known_at.start)}' AS TIMESTAMPTZ) THEN observed_at "
            f"ELSE {_rule_sql(known_at.at)} END"
        )
    return f"greatest(observed_at, CAST('{_utc_text(known_at)}' AS TIMESTAMPTZ))"


def _fingerprint(content: str, origin: Origin, bounds: Bounds) -> str:
    parts = [content, origin.reader, origin.file, origin.options, origin.known_at_rule]
    if unusual := bounds.words():
        parts.append(unusual)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _known_import(store: Store, fingerprint: str) -> Appended | None:
    """Return the result of the newest identical import; None if there was none, or if some of its rows were in the future."""
    rows = store.execute(
        "SELECT batch, content, added, repeated, rejected FROM imports WHERE fingerprint = ? ORDER BY batch DESC",
        [fingerprint],
    )
    if not rows:
        return None
    batch, content, added, repeated, rejected = rows[0]
    counts = store.execute(
        f"SELECT {_COUNTED_BY}, count(*) FROM rejected JOIN imports USING (batch) WHERE content = ? GROUP BY ALL",
        [content],
    )
    if any(code.endswith(f".{FUTURE}") for code, _, _ in counts):
        return None
    reasons = counted_reasons(counts)
    return Appended(added=0, repeated=added + repeated, rejected=rejected, reasons=reasons, batches=(batch,))


def _import(
    store: Store,
    read: Callable[[], Iterable[Batch]],
    origin: Origin,
    *,
    known_at: KnownAt,
    content: str | None,
    bounds: Bounds,
) -> Appended:
    """Stage and keep the batches of ``read``, which is called again if their numbers turn out to have decimal commas."""
    with store.exclusive():
        stage = Stage(store, _rule_sql(known_at), bounds)
        try:
            digest = stage.fill(read(), hashed=content is None)
            if stage.has_decimal_comma:
                stage = Stage(store, _rule_sql(known_at), replace(bounds, decimal_comma=True))
                stage.fill(read(), hashed=False)
            content = content or digest
            fingerprint = _fingerprint(content, origin, bounds)
            known = _known_import(store, fingerprint)
            if known is not None:
                return known
            with store.transaction():
                done = _keep(store, origin, fingerprint=fingerprint, content=content)
            return replace(done, set_aside=dict(stage.set_aside))
        finally:
            with suppress(StoreError):  # a failed transaction has already dropped the tables
                stage.drop()


def _keep(store: Store, origin: Origin, *, fingerprint: str, content: str) -> Appended:
    """Merge the staged rows and record the import; requires a transaction."""
    (batch,) = store.execute("SELECT coalesce(max(batch), 0) + 1 FROM imports")[0]
    keep_series(store)
    keep_machines(store)
    merged = [merge(store, variable, batch) for variable in (PRICE, AVAILABILITY)]
    added, repeated = (sum(counts) for counts in zip(*merged, strict=True))
    reasons = keep_rejected(store, batch, content)
    rejected = sum(reasons.values())
    store.execute(
        f"INSERT INTO imports VALUES ({', '.join('?' * 12)})",
        [
            batch,
            fingerprint,
            content,
            origin.reader,
            origin.file,
            origin.options,
            origin.known_at_rule,
            json.dumps(origin.assumptions, ensure_ascii=False),
            origin.imported_at,
            added,
            repeated,
            rejected,
        ],
    )
    keep_assumptions(store, origin.assumptions)
    return Appended(added=added, repeated=repeated, rejected=rejected, reasons=reasons, batches=(batch,))


# ---
# Queries of rejected rows: counts by kind of reason, and the newest rows in their original form.


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRows:
    """Rejected rows: ``reasons`` counts all matching rows, largest first; ``rows`` are the newest of them, newest first.

    A row has source (the reader), imported_at (the logical time of its import, UTC, or None), file,
    line, reason and raw, the original row (JSON of its fields, or its text).
    """

    reasons: Mapping[str, int]
    rows: Sequence[Mapping[str, Any]]


def rejected_rows(
    store: Store,
    *,
    source: str | None = None,
    file: str | None = None,
    reason: str | None = None,
    most: int = 20,
) -> RejectedRows:
    """Return at most ``most`` rejected rows by source (or label), and any part of file and reason, ignoring case."""
    parameters = (
        "FROM rejected AS r JOIN imports AS i USING (batch) WHERE "
        "($source IS NULL OR i.reader = $source OR i.file LIKE $source || ':%' "
        "OR (try_cast(r.raw AS JSON) ->> '$.source') = $source) "
        "AND ($file IS NULL OR contains(lower(r.file), lower($file)) OR contains(lower(i.file), lower($file))) "
        "AND ($reason IS NULL OR contains(lower(r.reason), lower($reason)) OR list_contains($kinds, "
        f"concat_ws(chr(0), {_COUNTED_BY})))"
    )
    # A kind abridges the reason, so it is matched against the kinds of all stored reasons.
    every = store.execute(f"SELECT DISTINCT {_COUNTED_BY} FROM rejected") if reason is not None else []
    kinds = [
        f"{code}\0{sentence}"
        for code, sentence in every
        if reason is not None and reason.lower() in kind_of_reason(code, sentence).lower()
    ]
    given = {"source": source, "file": file, "reason": reason, "kinds": kinds}
    counts = store.execute(f"SELECT {_COUNTED_BY}, count(*) {parameters} GROUP BY ALL", given)
    names = ("source", "imported_at", "file", "line", "reason", "raw")
    found = store.execute(
        f"SELECT i.reader, epoch_us(i.imported_at), coalesce(nullif(r.file, ''), i.file), r.line, r.reason, r.raw {parameters} "
        "ORDER BY r.batch DESC, r.line DESC LIMIT $most",
        {**given, "most": most},
    )
    rows = [dict(zip(names, row, strict=True)) for row in found]
    for row in rows:
        at = row["imported_at"]
        row["imported_at"] = None if at is None else pd.Timestamp(at, unit="us", tz="UTC")
    return RejectedRows(reasons=counted_reasons(counts), rows=rows)


def imported_series(store: Store, batches: Sequence[int]) -> list[dict[str, Any]]:
    """Return the series added by some imports, one dict per market and source, sorted.

    The keys: market, source, prices, counts, ratings (numbers of rows), first, last (UTC), products.
    Repeated rows are not counted.
    """
    rows = store.execute(
        "WITH brought AS (SELECT sid, observed_at, false AS rated FROM price WHERE list_contains($batches, batch) "
        "UNION ALL SELECT sid, observed_at, coalesce(list_contains($ratings, kind), false) FROM availability "
        "WHERE list_contains($batches, batch)) "
        "SELECT concat_ws('/', provider, region, zone, instance_type) AS market, source, "
        "count(*) FILTER (WHERE kind = 'price'), count(*) FILTER (WHERE kind = 'availability' AND NOT rated), "
        "count(*) FILTER (WHERE rated), "
        "epoch_us(min(observed_at)), epoch_us(max(observed_at)), "
        "list_sort(list(DISTINCT product) FILTER (WHERE kind = 'price')) "
        "FROM brought JOIN series USING (sid) JOIN markets USING (mid) GROUP BY ALL ORDER BY market, source",
        {"batches": list(batches), "ratings": list(RATINGS)},
    )
    return [
        {
            "market": market,
            "source": source,
            "prices": prices,
            "counts": counts,
            "ratings": ratings,
            "first": pd.Timestamp(first, unit="us", tz="UTC"),
            "last": pd.Timestamp(last, unit="us", tz="UTC"),
            "products": products or [],
        }
        for market, source, prices, counts, ratings, first, last, products in rows
    ]
