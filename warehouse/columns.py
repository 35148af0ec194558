"""Columns of observations, declared once: a `Column` for each column of a source's rows.

The frames of sources, the columns recognised in tables, the casting and checking of rows, the
reasons for rejecting them, the tables and views of the warehouse and their descriptions follow from
`COLUMNS`. A migration (`slackwater.warehouse.store.schema`) adds the column to its table; a
warehouse whose tables differ from the declaration is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from slackwater.warehouse.amounts import LARGEST_COUNT, LONGEST_GAP, SHORTEST_GAP

Kind = Literal["price", "availability"]
Type = Literal["text", "time", "number", "whole", "flag", "word"]
#: ``identity``: identifies a series; ``compared``: two rows differ if they state different values, and null
#: differs from nothing; ``described``: never makes two rows differ; ``judged``: checked and not stored.
Role = Literal["identity", "time", "value", "compared", "described", "judged", "place"]
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
    abridged text found, {empty} and {absent} are true for a missing value (absent: or NaN),
    {zoneless} for a time without a zone, {COLUMN} is the cast value of another stored column, and
    {latest}, {ahead} and {times} are the limits of `slackwater.warehouse.observations.Bounds`. ``parameter`` may use the same.

    The sentence is "COLUMN FOUND words", or ``sentence`` if given; ``more`` and ``parameter`` (SQL for its
    {1}) continue it with details that do not count as another kind of reason. ``column``: the column named in
    the sentence, by default the checked column. ``needs``: the check applies only with a clock, only to
    sources that do not state a time zone, or only where list prices are known; the last kind is not repeated
    for exported rows. ``by_value``: every value found counts as a separate kind of reason.
    """

    code: str
    test: str
    words: str = ""
    sentence: str = ""
    more: str = ""
    parameter: str = "''"
    column: str = ""
    needs: Literal["", "clock", "no_zone", "list_price"] = ""
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

    @property
    def alias(self) -> str:
        """Name of the cast value in the SQL that checks rows."""
        numeric = self.type in ("number", "whole") and self.role in STORED
        return f"{self.name}_number" if numeric else {"known_at": "stated_known_at"}.get(self.name, self.name)

    def described(self, *, view: bool = False) -> str:
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


def _escape_braces(pattern: str) -> str:
    """Return a regular expression for use in a `Check`, whose braces mark parameters."""
    return pattern.replace("{", "{{").replace("}", "}}")


def _of_words(code: str, pattern: str, words: str) -> Check:
    return Check(
        code=code, words=words, test=f"NOT regexp_full_match({{value}}, '(?i){_escape_braces(pattern)}')"
    )


#: Maximum length of a name in characters; the names of all known providers are much shorter.
LONGEST_NAME: Final = 200
#: Regular expression for control and formatting characters and line ends.
UNPRINTABLE: Final = r"[\p{C}\p{Zl}\p{Zp}]"
#: Kinds of counts: launch tests, running instances, listed offers; a placement score is not a count
#: of instances.
COUNT_KINDS: Final = ("probe", "held", "offers", "score")
#: Regular expressions for accepted modes, units and currencies: a spot price in USD per instance-hour.
_SPOT = (
    "(spot|preemptib(le|ility)|interruptib(le|ility)|bid)([ _-]?(vms?|instances?|price|market|requests?))?"
    "|true|yes|t|y|1"  # of a column such as is_spot
)
_INSTANCE_HOUR = (
    "((usd|us)?[ _$]*(per|/)?[ _]*)?(1[ _]*)?((instance|vm|machine|node|server)s?)?[ _/-]*"
    "(per[ _]*)?(h|hrs?|hours?|hourly|hour\\(s\\))?"
)
_US_DOLLAR = "usd|us ?\\$|\\$|us dollars?"

_WHOLE = "({value} IS NOT NULL AND isfinite({value}) AND {value} = floor({value}) AND {value} >= 0)"
_NOT_TIME = Check(
    code="not_time", words="is not a time", test="NOT {empty} AND ({value} IS NULL OR NOT isfinite({value}))"
)
_NO_ZONE = Check(
    code="no_zone", words="names no time zone", test="coalesce({zoneless}, FALSE)", needs="no_zone"
)
FUTURE: Final = "future"  # Code of the reason for rows dated after they were read
_FUTURE = Check(
    code=FUTURE,
    words="is in the future",
    more=", more than {1} after it was read",
    parameter="'{ahead}'",
    test="{value} > CAST('{latest}' AS TIMESTAMPTZ)",
    needs="clock",
)
_NOT_WHOLE = Check(
    code="not_whole", words="is not a whole number >= 0", test=f"NOT {{absent}} AND NOT {_WHOLE}"
)
_TOO_MANY = Check(
    code="too_many",
    words=f"is more than {LARGEST_COUNT:,} instances",
    test=f"{{value}} > {LARGEST_COUNT} AND NOT isnan({{value}})",
)
# Names are shown on terminals and used in paths and by other programs.
_NAMED = (
    Check(
        code="unprintable",
        words="contains a character that cannot be printed",
        test=f"regexp_matches({{value}}, '{_escape_braces(UNPRINTABLE)}')",
    ),
    Check(code="long", words=f"is longer than {LONGEST_NAME}", test=f"length({{value}}) > {LONGEST_NAME}"),
)
# "/" and "@" would make provider/region/zone/instance_type@source ambiguous.
_OF_A_MARKET = (
    Check(code="separator", words="contains / or @", test="contains({value}, '/') OR contains({value}, '@')"),
    *_NAMED,
)


def _missing(name: str, test: str = "{empty}") -> Check:
    return Check(code="missing", sentence=f"no {name}", test=test)


def _identity(name: str, *names: str, words: str) -> Column:
    return Column(
        name=name,
        kinds=BOTH,
        role="identity",
        type="text",
        nullable=False,
        names=(name, *names),
        checks=(_missing(name, "{value} IS NULL"), *(_NAMED if name == "source" else _OF_A_MARKET)),
        words=words,
    )


#: On-demand price of the row, else the lowest list price of the type; null if neither is known.
_LOWEST_ON_DEMAND = "CASE WHEN (isfinite({value}) AND {value} > 0) THEN {value} ELSE lowest_listed_usd END"
_ON_DEMAND_OR_LISTED = "CASE WHEN (isfinite({value}) AND {value} > 0) THEN {value} ELSE listed_usd END"

#: Every column of the rows of sources, in their order, which is also the order of checks, tables and views.
COLUMNS: Final[tuple[Column, ...]] = (
    _identity("source", words="Source of the observations of the market"),
    _identity("provider", "cloud", "cloud_provider", "vendor", words="Cloud provider"),
    _identity("region", "region_name", "region_code", words="Region of the provider"),
    _identity("zone", "availability_zone", "az", words="Zone of the region"),
    _identity(
        "instance_type", "machine_type", "vm_size", "arm_sku_name", "instance", words="Type of the instances"
    ),
    Column(
        name="product",
        kinds=("price",),
        role="identity",
        type="text",
        names=("product", "product_description", "os", "operating_system", "platform"),
        checks=_NAMED,
        words="Product that the price applies to, as named by the provider",
    ),
    Column(
        name="observed_at",
        kinds=BOTH,
        role="time",
        type="time",
        nullable=False,
        names=("timestamp", "observed_at", "time", "datetime", "date", "ts"),
        checks=(
            _missing("observed_at"),
            Check(code="not_time", words="is not a time", test="{value} IS NULL OR NOT isfinite({value})"),
            Check(
                code="outside",
                words="is outside 1900..2200",
                # Compared as times: extracting the year is slower.
                test="{value} < CAST('1900-01-01' AS TIMESTAMPTZ) "
                "OR {value} >= CAST('2201-01-01' AS TIMESTAMPTZ)",
            ),
            _NO_ZONE,
            _FUTURE,
        ),
        words="Time of the observation, UTC",
    ),
    Column(
        name="price_usd",
        kinds=("price",),
        role="value",
        type="number",
        unit="USD per instance-hour",
        nullable=False,
        names=(
            "spot_price_usd_per_hour",
            "spot_price",
            "spot_price_usd",
            "spot_usd_per_hour",
            "spot_usd",
            "price_usd",
        ),
        checks=(
            _missing("price_usd"),
            Check(code="not_number", words="is not a number", test="{value} IS NULL"),
            Check(code="not_finite", words="is not finite", test="NOT isfinite({value})"),
            Check(code="negative", words="is negative", test="{value} < 0"),
            Check(code="placeholder", words="is a placeholder, not a price", test="{value} = 0"),
        ),
        words="Spot price",
    ),
    Column(
        name="on_demand_usd",
        kinds=("price",),
        role="compared",
        type="number",
        unit="USD per instance-hour",
        names=(
            "on_demand_price_usd_per_hour",
            "on_demand_price",
            "on_demand_price_usd",
            "on_demand_usd_per_hour",
            "on_demand_usd",
            "on_demand",
            "list_price",
        ),
        checks=(
            Check(
                code="far_above",
                words="is far above on-demand",
                more=": more than {1}",
                parameter="concat('{times:g} times ', listed_usd)",
                test="{value} > {times!r} * listed_usd AND isfinite({value})",
                needs="list_price",
            ),
            Check(
                code="far_above",
                column="price_usd",
                words="is far above on-demand",
                more=": more than {1}",
                parameter=f"concat('{{times:g}} times ', {_ON_DEMAND_OR_LISTED})",
                test=f"{{price_usd}} > {{times!r}} * ({_ON_DEMAND_OR_LISTED})",
                needs="list_price",
            ),
            Check(
                code="far_below",
                column="price_usd",
                words="is far below on-demand",
                more=": less than {1}",
                parameter=f"concat('{{share:g}} of ', {_LOWEST_ON_DEMAND})",
                test=f"{{price_usd}} < {{share!r}} * ({_LOWEST_ON_DEMAND})",
                needs="list_price",
            ),
        ),
        usable="isfinite({value}) AND {value} > 0",
        set_aside=Check(
            code="not_price",
            words="is not a price",
            more=": set aside, the spot price is kept",
            test="NOT {absent} AND NOT coalesce(isfinite({value}) AND {value} > 0, FALSE)",
        ),
        words="On-demand price given by the same source",
    ),
    Column(
        name="available",
        kinds=("availability",),
        role="value",
        type="whole",
        nullable=False,
        names=("available", "available_instances", "instances_available", "available_count"),
        checks=(_missing("available", "{absent}"), _NOT_WHOLE, _TOO_MANY),
        words="Available instances, or a placement score (kind `score`)",
        view_words="Available instances",
    ),
    Column(
        name="capacity",
        kinds=("availability",),
        role="compared",
        type="whole",
        names=("capacity_probed", "capacity", "requested", "instances_requested"),
        checks=(
            _NOT_WHOLE,
            _TOO_MANY,
            Check(
                code="above_capacity",
                column="available",
                words="is above the capacity",
                more=" {1}",
                parameter="{shown}",
                test="isfinite({value}) AND {available} > {value}",
            ),
        ),
        words="Largest count that the probe can return",
    ),
    Column(
        name="gap_seconds",
        kinds=("availability",),
        role="described",
        type="number",
        unit="seconds",
        names=("gap_seconds", "interval_seconds"),
        checks=(
            Check(
                code="not_positive",
                words="is not a positive number",
                test="NOT {absent} AND ({value} IS NULL OR NOT isfinite({value}) OR {value} <= 0)",
            ),
            Check(
                code="not_gap",
                words="is not within a second and a year",
                test=f"{{value}} NOT BETWEEN {SHORTEST_GAP} AND {LONGEST_GAP} AND NOT isnan({{value}})",
            ),
        ),
        words="Nominal sampling interval of the source",
    ),
    Column(
        name="kind",
        kinds=("availability",),
        role="described",
        type="word",
        names=("kind",),
        checks=(
            Check(
                code="none_of",
                words=f"is none of {', '.join(COUNT_KINDS)}",
                test=f"{{value}} NOT IN ({', '.join(map(repr, COUNT_KINDS))})",
                by_value=True,
            ),
        ),
        words="`probe`, `held`, `offers`, or `score`, a placement score instead of a count",
        view_words="`probe`, `held` or `offers`",
    ),
    Column(
        name="truncated",
        kinds=("availability",),
        role="compared",
        type="flag",
        names=("truncated",),
        checks=(
            Check(code="not_flag", words="is not true or false", test="NOT {empty} AND {value} IS NULL"),
        ),
        words="Whether the probe stopped at its capacity, so that more instances may have been available",
    ),
    Column(
        name="mode",
        kinds=BOTH,
        role="judged",
        type="text",
        names=(
            "mode",
            "pricing_model",
            "price_type",
            "purchase_option",
            "purchasing_option",
            "capacity_type",
            "rental_type",
            "lifecycle",
            "usage_type",
            "term_type",
            "provisioning_model",
            "market_type",
            "instance_lifecycle",
            "is_spot",
            "is_preemptible",
            "preemptible",
            "is_interruptible",
            "interruptible",
        ),
        checks=(_of_words("not_spot", _SPOT, "is no spot instance"),),
        words="How the instance is bought",
    ),
    Column(
        name="unit",
        kinds=("price",),
        role="judged",
        type="text",
        names=(
            "unit",
            "price_unit",
            "unit_of_measure",
            "pricing_unit",
            "price_basis",
            "pricing_basis",
            "price_per",
            "priced_per",
            "billing_unit",
            "billing_interval",
        ),
        checks=(_of_words("not_hourly", _INSTANCE_HOUR, "is not per instance and hour"),),
        words="Unit of the price",
    ),
    Column(
        name="currency",
        kinds=("price",),
        role="judged",
        type="text",
        names=("currency", "currency_code", "price_currency", "billing_currency"),
        checks=(_of_words("not_usd", _US_DOLLAR, "is not USD"),),
        words="Currency of the price",
    ),
    Column(
        name="valid_from",
        kinds=("price",),
        role="judged",
        type="time",
        names=("valid_from", "effective_from", "effective_date", "effective_start_date"),
        checks=(
            Check(code="not_time", words="is not a time", test="NOT {empty} AND {value} IS NULL"),
            Check(
                code="not_yet",
                words="is after the time of the price",
                more=": not yet in force",
                test="{value} > observed_at",
            ),
        ),
        words="Start of the validity of the price",
    ),
    Column(
        name="valid_until",
        kinds=("price",),
        role="judged",
        type="time",
        names=("valid_until", "valid_to", "effective_until", "effective_to", "effective_end_date"),
        checks=(
            Check(code="not_time", words="is not a time", test="NOT {empty} AND {value} IS NULL"),
            Check(
                code="no_longer",
                words="is not after the time of the price",
                more=": no longer in force",
                test="{value} <= observed_at",
            ),
        ),
        words="End of the validity of the price",
    ),
    Column(
        name="known_at",
        kinds=BOTH,
        role="time",
        type="time",
        names=("known_at",),
        checks=(
            _NOT_TIME,
            Check(code="early", words="is before observed_at", test="{value} < observed_at"),
            _NO_ZONE,
            _FUTURE,
        ),
        words="Time at which the row became known, UTC; computations as of an earlier time do not read it (M1.2)",
    ),
    Column(name="file", kinds=BOTH, role="place", type="text", words="File of the row"),
    Column(name="line", kinds=BOTH, role="place", type="whole", words="Line of the file"),
)

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
STATED: Final[dict[str, str]] = {
    "line.empty": "empty line",
    "line.not_utf8": "bytes that are not UTF-8",
    "line.half_character": "{0} has half a character in it",
    "line.not_json": "not JSON ({0})",
    "line.not_object": "not a JSON object",
    "line.fields": "{0} fields where {1} were expected",
    "line.open_quote": "a quote opened in line {0} runs over {1} lines",
    "line.not_count": "not `date, time, count`",
    "line.not_event": "not `milliseconds,add|remove,node`",
    "record.not_price": "no record of a spot price",
    "record.lacks": "record without {0}",
    "record.lacks_count": "no count of {0} in {1}",
    "record.not_row": "not a row with fields",
    "record.not_offer": "not an offer",
    "record.not_item": "not an item of the price list",
    "record.not_record": "not a record",
    "record.not_score": "not a score",
    "record.not_sku": "not a SKU",
    "record.nested": "{0} is a list or an object",
    "record.disagrees": "{0} rows of one market that differ (the option several states how they count)",
    "record.no_instance": "price of GPUs without the instance that has them",
    "record.ambiguous_type": "no {0} of an instance type that has several: {1}",
    "zone.unknown": "unknown zone {0} {1}",
    "zone.other_cloud": "zone {0} is neither an AWS nor a Google Cloud zone",
    "answer.more_pages": "NextToken: more pages follow; ask again without --max-items",
    "probe.interrupted": "the probe round ended with status {0}",
    "probe.no_result": "zone probed without a result",
    "size.not_number": "size {0} is not a number followed by x",
    "count.not_whole": "count is not a whole number",
    "value.not_number": "{0} is not a number",
    "value.not_price": "{0} is not a price",
    "value.placeholder": "{0} 0 is a placeholder, not a price",
    "value.not_time": "{0} is not a time in ISO 8601 with an offset",
    "value.not_seconds": "{0} is not a time in seconds since 1970",
    "value.not_megabytes": "{0} is no size in MB",
    "value.unparsed": "not a date or number ({0})",
    "value.unexpected": "{0} {1}, expected {2}",
    "event.too_late": "event more than a year after the start",
    "event.added_twice": "event adds a node that is there",
    "event.removed_twice": "event removes a node that is not there",
    "offer.other_site": "row from {0}: prices are per instance, not an interruptible offer of Vast.ai",
    "offer.sizes": "expected 1 to {0} GPUs and at least 0 offers, found {1}",
    "offer.unmatched": "on-demand offer without an interruptible offer of the same day, country and size",
    "offer.contradicts": "on-demand offer contradicts another of the same fetch",
    "offer.repeats": "on-demand offer repeats line {0}",
    "offer.older": "on-demand offer fetched before line {0}",
    "offer.differs": "{0} offers of one id that differ",
    "price.several": "{0} prices of one {1}: {2}",
    "price.lacks": "no {0}",
    "price.several_times": "several prices, one of them without effectiveTime",
    "price.one_time": "several prices of one effectiveTime",
    "price.one_tier": "several prices of one tier",
}  # fmt: skip
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
