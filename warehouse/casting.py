"""SQL that turns rows as found into typed rows, or into a reason why they cannot be used (M1.1, M1.2).

A batch may hold text, numbers or timestamps in any column. The text made here is one SELECT over the registered batch
``incoming``: no row passes through Python.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as types

IDENTITY = ("source", "provider", "region", "zone", "instance_type", "product")
_MARKET = ("provider", "region", "zone", "instance_type")
_LARGEST_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One observed variable and the columns of its table.

    ``value`` is what was observed. ``compared`` columns belong to it: two rows that state different ones differ, a null
    states nothing. ``described`` columns tell how it was observed and never make two rows differ.
    """

    kind: str
    value: str
    compared: tuple[str, ...]
    described: tuple[str, ...]

    @property
    def sides(self) -> tuple[str, ...]:
        """All columns beside the value."""
        return self.compared + self.described

    @property
    def columns(self) -> tuple[str, ...]:
        """Value and sides, in the order of the table."""
        return (self.value, *self.sides)


PRICE = Variable(kind="price", value="price_usd", compared=("on_demand_usd",), described=())
AVAILABILITY = Variable(
    kind="availability",
    value="available",
    compared=("capacity", "truncated"),
    described=("gap_seconds", "kind"),
)


def cast_sql(variable: Variable, schema: pa.Schema) -> str:
    """SELECT over ``incoming`` giving n, file, line, identity, times, value, sides, reason (null if usable) and raw (JSON).

    ``$offset`` is the number of rows read before this batch.
    """
    found = _Found(schema)
    columns = [
        "row_number() OVER () + $offset AS n",
        f"coalesce({found.text('file')}, '') AS file",
        f"coalesce(CAST({found.number('line')} AS BIGINT), 0) AS line",
        *(f"{found.text(name)} AS {name}" for name in IDENTITY[:-1]),
        _product(variable, found),
        f"{found.time('observed_at')} AS observed_at",
        f"{found.time('known_at')} AS stated_known_at",
    ]
    numbers = (
        ("price_usd", "on_demand_usd") if variable is PRICE else ("available", "capacity", "gap_seconds")
    )
    columns += [f"{found.number(name)} AS {name}_number" for name in numbers]
    if variable is AVAILABILITY:
        columns += [f"{found.text('kind')} AS kind", f"{found.flag('truncated')} AS truncated"]
    reasons = _common_reasons(found) + (_price_reasons(found) if variable is PRICE else _count_reasons(found))
    typed = _typed_price() if variable is PRICE else _typed_count()
    cases = " ".join(f"WHEN {test} THEN {words}" for test, words in reasons)
    return (
        f"WITH found AS (SELECT incoming AS whole, {', '.join(columns)} FROM incoming), "
        f"judged AS (SELECT *, CASE {cases} END AS reason FROM found) "
        f"SELECT n, file, line, {', '.join(IDENTITY)}, observed_at, stated_known_at, {typed}, reason, "
        "CASE WHEN reason IS NOT NULL THEN CAST(to_json(whole) AS VARCHAR) END AS raw FROM judged"
    )


class _Found:
    """Expressions for the columns of one batch, by their Arrow type; a column that is not there is null."""

    def __init__(self, schema: pa.Schema) -> None:
        self._types = {field.name: field.type for field in schema}

    def text(self, name: str) -> str:
        """Trimmed text, null when empty."""
        if name not in self._types:
            return "CAST(NULL AS VARCHAR)"
        return f"nullif(trim(CAST(incoming.{name} AS VARCHAR)), '')"

    def empty(self, name: str) -> str:
        """Whether there is nothing in the column: a null, or an empty text."""
        if name not in self._types:
            return "TRUE"
        if self._is_text(name):
            return f"nullif(trim(CAST(whole.{name} AS VARCHAR)), '') IS NULL"
        return f"whole.{name} IS NULL"

    def absent(self, name: str) -> str:
        """Empty, or the NaN that stands for a missing number in floating columns."""
        return f"({self.empty(name)} OR coalesce(isnan({name}_number), FALSE))"

    def shown(self, name: str) -> str:
        """The text of the column as it stands in a reason; evaluated for refused rows only."""
        return f"trim(CAST(whole.{name} AS VARCHAR))" if name in self._types else "''"

    def says(self, name: str, words: str) -> str:
        """The reason ``<name> <text found> <words>``."""
        return f"'{name} ' || {self.shown(name)} || ' {words}'"

    def _is_text(self, name: str) -> bool:
        kind = self._types[name]
        return not (
            types.is_integer(kind)
            or types.is_floating(kind)
            or types.is_decimal(kind)
            or types.is_temporal(kind)
        )

    def number(self, name: str) -> str:
        """DOUBLE, null when empty or not a number."""
        if name not in self._types:
            return "CAST(NULL AS DOUBLE)"
        return f"TRY_CAST({self.text(name) if self._is_text(name) else f'incoming.{name}'} AS DOUBLE)"

    def flag(self, name: str) -> str:
        """BOOLEAN, null when empty or not a truth value."""
        return f"TRY_CAST({self.text(name)} AS BOOLEAN)"

    def time(self, name: str) -> str:
        """TIMESTAMPTZ in UTC, null when empty or not a time; text must be ISO 8601 and is UTC when it names no zone."""
        if name not in self._types:
            return "CAST(NULL AS TIMESTAMPTZ)"
        kind = self._types[name]
        if types.is_timestamp(kind) or types.is_date(kind):
            return f"CAST(incoming.{name} AS TIMESTAMPTZ)"
        text = self.text(name)
        # DuckDB 1.5 wants seconds; words such as "epoch" or "infinity" are times to DuckDB, but not to us.
        whole = f"regexp_replace({text}, '^(.{{10}}[T ]\\d{{2}}:\\d{{2}})(Z|[+-].*)$', '\\1:00\\2')"
        return (
            f"CASE WHEN regexp_matches({text}, '^\\d{{4}}-\\d{{2}}-\\d{{2}}([T ]|$)') "
            f"THEN coalesce(TRY_CAST({text} AS TIMESTAMPTZ), TRY_CAST({whole} AS TIMESTAMPTZ)) END"
        )


def _product(variable: Variable, found: _Found) -> str:
    return (
        "'' AS product"
        if variable is AVAILABILITY
        else f"coalesce({found.text('product')}, 'unspecified') AS product"
    )


def _common_reasons(found: _Found) -> list[tuple[str, str]]:
    reasons = [(f"{name} IS NULL", f"'no {name}'") for name in IDENTITY[:-1]]
    for name in _MARKET:
        # "/" and "@" would make provider/region/zone/instance_type@source ambiguous.
        reasons.append(
            (f"contains({name}, '/') OR contains({name}, '@')", found.says(name, "contains / or @"))
        )
    return [
        *reasons,
        (found.empty("observed_at"), "'no observed_at'"),
        ("observed_at IS NULL OR NOT isfinite(observed_at)", found.says("observed_at", "is not a time")),
        ("year(observed_at) NOT BETWEEN 1900 AND 2200", found.says("observed_at", "is outside 1900..2200")),
        (
            f"NOT {found.empty('known_at')} AND (stated_known_at IS NULL OR NOT isfinite(stated_known_at))",
            found.says("known_at", "is not a time"),
        ),
        ("stated_known_at < observed_at", found.says("known_at", "is before observed_at")),
    ]


def _price_reasons(found: _Found) -> list[tuple[str, str]]:
    on_demand = "on_demand_usd_number"
    return [
        (found.empty("price_usd"), "'no price_usd'"),
        ("price_usd_number IS NULL", found.says("price_usd", "is not a number")),
        ("NOT isfinite(price_usd_number)", found.says("price_usd", "is not finite")),
        ("price_usd_number < 0", found.says("price_usd", "is negative")),
        (
            f"NOT {found.absent('on_demand_usd')} AND ({on_demand} IS NULL OR NOT isfinite({on_demand}) OR {on_demand} <= 0)",
            found.says("on_demand_usd", "is not a positive number"),
        ),
    ]


def _whole(name: str) -> str:
    number = f"{name}_number"
    return (
        f"({number} IS NOT NULL AND isfinite({number}) AND {number} = floor({number}) "
        f"AND {number} BETWEEN 0 AND {_LARGEST_COUNT})"
    )


def _count_reasons(found: _Found) -> list[tuple[str, str]]:
    gap = "gap_seconds_number"
    return [
        (found.absent("available"), "'no available'"),
        (f"NOT {_whole('available')}", found.says("available", "is not a whole number >= 0")),
        (
            f"NOT {found.absent('capacity')} AND NOT {_whole('capacity')}",
            found.says("capacity", "is not a whole number >= 0"),
        ),
        (
            "isfinite(capacity_number) AND available_number > capacity_number",
            f"{found.says('available', 'is above the capacity ')} || {found.shown('capacity')}",
        ),
        (
            f"NOT {found.absent('gap_seconds')} AND ({gap} IS NULL OR NOT isfinite({gap}) OR {gap} <= 0)",
            found.says("gap_seconds", "is not a positive number"),
        ),
        (
            f"NOT {found.empty('truncated')} AND truncated IS NULL",
            found.says("truncated", "is not true or false"),
        ),
    ]


def _typed_price() -> str:
    return (
        "price_usd_number AS price_usd, "
        "CASE WHEN isfinite(on_demand_usd_number) THEN on_demand_usd_number END AS on_demand_usd"
    )


def _typed_count() -> str:
    return ", ".join(
        [
            "TRY_CAST(available_number AS INTEGER) AS available",
            "TRY_CAST(capacity_number AS INTEGER) AS capacity",
            "truncated",
            "CASE WHEN isfinite(gap_seconds_number) THEN gap_seconds_number END AS gap_seconds",
            "kind",
        ]
    )
