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


def places_sql(variable: Variable, schema: pa.Schema) -> str:
    """SELECT over ``incoming`` giving each distinct series of the batch: pid, what was found (raw_*), identity, reason.

    A batch has few of them: to trim and judge them once, not in every row, makes casting three times as fast.
    """
    found = _Found(schema)
    keys = _place_columns(schema)
    raw = ", ".join(f"incoming.{name} AS raw_{name}" for name in keys)
    distinct = f"SELECT DISTINCT {raw} FROM incoming" if keys else "SELECT 1"
    names = IDENTITY if variable is PRICE else IDENTITY[:-1]
    texts = [f"{found.text(name)} AS {name}" for name in names]
    if variable is PRICE:
        texts[-1] = f"coalesce({found.text('product')}, 'unspecified') AS product"
    else:
        texts.append("'' AS product")
    columns = [f"coalesce({found.text('file')}, '') AS file", *texts]
    return (
        f"SELECT row_number() OVER () AS pid, *, {_case(_place_reasons(found))} AS reason "
        f"FROM (SELECT *, {', '.join(columns)} FROM ({distinct}) AS raw) AS named"
    )


def cast_sql(variable: Variable, schema: pa.Schema) -> str:
    """SELECT over ``incoming`` and ``places``: n, pid, line, times, value, sides, reason (null if usable), raw (JSON).

    ``$offset`` is the number of rows read before this batch.
    """
    found = _Found(schema)
    columns = [
        f"coalesce(CAST({found.number('line')} AS BIGINT), 0) AS line",
        f"{found.time('observed_at')} AS observed_at",
        f"{found.time('known_at')} AS stated_known_at",
    ]
    numbers = (
        ("price_usd", "on_demand_usd") if variable is PRICE else ("available", "capacity", "gap_seconds")
    )
    columns += [f"{found.number(name)} AS {name}_number" for name in numbers]
    if variable is AVAILABILITY:
        columns += [f"{found.text('kind')} AS kind", f"{found.flag('truncated')} AS truncated"]
    reasons = _time_reasons(found) + (_price_reasons(found) if variable is PRICE else _count_reasons(found))
    same = " AND ".join(f"i.raw_{name} IS NOT DISTINCT FROM p.raw_{name}" for name in _place_columns(schema))
    raw = ", ".join(f"incoming.{name} AS raw_{name}" for name in schema.names)
    whole = ", ".join(f"'{name}': raw_{name}" for name in schema.names)
    return (
        f"WITH i AS (SELECT row_number() OVER () + $offset AS n, {raw} FROM incoming), "
        f"found AS (SELECT i.*, p.pid, p.reason AS place_reason, {', '.join(columns)} "
        f"FROM i JOIN places AS p ON {same or 'TRUE'}), "
        f"judged AS (SELECT *, coalesce(place_reason, {_case(reasons)}) AS reason FROM found) "
        f"SELECT n, pid, line, observed_at, stated_known_at, "
        f"{_typed_price() if variable is PRICE else _typed_count()}, reason, "
        f"CASE WHEN reason IS NOT NULL THEN CAST(to_json({{{whole}}}) AS VARCHAR) END AS raw FROM judged"
    )


def _place_columns(schema: pa.Schema) -> list[str]:
    return [name for name in ("file", *IDENTITY) if name in schema.names]


def _case(reasons: list[tuple[str, str]]) -> str:
    return "CASE " + " ".join(f"WHEN {test} THEN {words}" for test, words in reasons) + " END"


class _Found:
    """Expressions for the columns of one batch, by their Arrow type; a column that is not there is null."""

    def __init__(self, schema: pa.Schema) -> None:
        self._types = {field.name: field.type for field in schema}

    def text(self, name: str) -> str:
        """Trimmed text, null when empty."""
        if name not in self._types:
            return "CAST(NULL AS VARCHAR)"
        return f"nullif(trim(CAST(raw_{name} AS VARCHAR)), '')"

    def empty(self, name: str) -> str:
        """Whether there is nothing in the column: a null, or an empty text."""
        if name not in self._types:
            return "TRUE"
        if self._is_text(name):
            return f"nullif(trim(CAST(raw_{name} AS VARCHAR)), '') IS NULL"
        return f"raw_{name} IS NULL"

    def absent(self, name: str) -> str:
        """Empty, or the NaN that stands for a missing number in floating columns."""
        return f"({self.empty(name)} OR coalesce(isnan({name}_number), FALSE))"

    def shown(self, name: str) -> str:
        """The text of the column as it stands in a reason; evaluated for refused rows only."""
        return f"trim(CAST(raw_{name} AS VARCHAR))" if name in self._types else "''"

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
        return f"TRY_CAST({self.text(name) if self._is_text(name) else f'raw_{name}'} AS DOUBLE)"

    def flag(self, name: str) -> str:
        """BOOLEAN, null when empty or not a truth value."""
        return f"TRY_CAST({self.text(name)} AS BOOLEAN)"

    def time(self, name: str) -> str:
        """TIMESTAMPTZ in UTC, null when empty or not a time; text must be ISO 8601 and is UTC when it names no zone."""
        if name not in self._types:
            return "CAST(NULL AS TIMESTAMPTZ)"
        kind = self._types[name]
        if types.is_timestamp(kind) or types.is_date(kind):
            return f"CAST(raw_{name} AS TIMESTAMPTZ)"
        text = self.text(name)
        # DuckDB 1.5 wants seconds; words such as "epoch" or "infinity" are times to DuckDB, but not to us.
        whole = f"regexp_replace({text}, '^(.{{10}}[T ]\\d{{2}}:\\d{{2}})(Z|[+-].*)$', '\\1:00\\2')"
        return (
            f"CASE WHEN regexp_matches({text}, '^\\d{{4}}-\\d{{2}}-\\d{{2}}([T ]|$)') "
            f"THEN coalesce(TRY_CAST({text} AS TIMESTAMPTZ), TRY_CAST({whole} AS TIMESTAMPTZ)) END"
        )


def _place_reasons(found: _Found) -> list[tuple[str, str]]:
    reasons = [(f"{name} IS NULL", f"'no {name}'") for name in IDENTITY[:-1]]
    for name in _MARKET:
        # "/" and "@" would make provider/region/zone/instance_type@source ambiguous.
        reasons.append(
            (f"contains({name}, '/') OR contains({name}, '@')", found.says(name, "contains / or @"))
        )
    return reasons


def _time_reasons(found: _Found) -> list[tuple[str, str]]:
    return [
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
