"""Formats of values on terminals and pages, a dash for missing values; without pandas or NumPy, as help texts use it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from slackwater.warehouse.amounts import (
    MISSING,
    as_number,
    duration,
    missing,
    number,
    percent,
    plain_scalar,
    plural,
    price,
    significant,
    text,
    usd,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "MISSING", "age", "as_json", "as_number", "auto", "decimals", "duration", "fixed_decimals", "join_words", "missing", "number",
    "percent", "plain", "plain_scalar", "plural", "price", "ranges", "rows_of", "significant", "text", "time", "usd", "utc",
    "whole",
]  # fmt: skip

#: ISO 8601 time, shown to the minute in UTC.
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)")


def auto(value: Any) -> str:
    """Format a value of unknown type.

    Numbers below 1e-9 are rounding errors of sums and shown as 0.

    >>> auto(2e-15), auto(0.123456), auto(True), auto(["a", "b"]), auto("2026-05-04T12:30:00+00:00"), auto(None), auto(12)
    ('0', '0.1235', 'yes', 'a; b', '2026-05-04 12:30', '—', '12')
    """
    if missing(value):
        return MISSING
    value = plain_scalar(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value if abs(value) >= 1e-9 else 0.0:.4g}"
    if isinstance(value, list | tuple):
        return "; ".join(auto(item) for item in value)
    return time(value) if isinstance(value, datetime) or _TIME.fullmatch(str(value)) else str(value)


def fixed_decimals(digits: int) -> Any:
    """Return a formatter for numbers with a fixed number of decimals.

    >>> fixed_decimals(3)(0.5)
    '0.500'
    """
    return lambda value: number(value, digits)


def decimals(digits: int) -> Any:
    """Return a formatter for mixed columns: fractions get a fixed number of decimals.

    >>> decimals(2)(0.5), decimals(2)(3), decimals(2)(True), decimals(2)("x")
    ('0.50', '3', 'yes', 'x')
    """

    def format_value(value: Any) -> str:
        return number(value, digits) if isinstance(plain_scalar(value), float) else auto(value)

    return format_value


def whole(value: Any) -> str:
    """Format a count.

    >>> whole(1234), whole(None)
    ('1,234', '—')
    """
    return number(value, 0)


def time(value: Any) -> str:
    """Format a time to the minute in UTC, without the zone, which belongs in the heading.

    Text that is not a time is returned unchanged.

    >>> time("2026-05-04T12:30:00+02:00"), time(None), time("soon")
    ('2026-05-04 10:30', '—', 'soon')
    """
    if missing(value):
        return MISSING
    if not isinstance(value, datetime):
        try:
            value = datetime.fromisoformat(str(value))
        except ValueError:
            return str(value)
    value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return f"{value:%Y-%m-%d %H:%M}"


def utc(value: Any) -> str:
    """Format a time to the minute with its zone, for sentences.

    >>> utc("2026-05-04T12:30:00+02:00"), utc(None)
    ('2026-05-04 10:30 UTC', '—')
    """
    written = time(value)
    return f"{written} UTC" if re.fullmatch(r"[\d-]{10} [\d:]{5}", written) else written


def age(length: Any) -> str:
    """Format an age in whole minutes, hours or days.

    >>> from datetime import timedelta
    >>> age(timedelta(minutes=40)), age(timedelta(minutes=60)), age(timedelta(hours=41)), age(timedelta(hours=2, days=5))
    ('40 minutes', '60 minutes', '41 hours', '5 days')
    """
    minutes = length.total_seconds() / 60.0
    if minutes < 120:
        return plural(int(minutes), "minute")
    return f"{minutes / 60:,.0f} hours" if minutes < 96 * 60 else f"{minutes / 1440:,.0f} days"


def ranges(numbers: Iterable[int]) -> str:
    """Format integers with consecutive numbers joined to ranges.

    >>> ranges([1, 2, 3, 5, 8, 9])
    '1–3, 5, 8–9'
    """
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def join_words(items: Iterable[str]) -> str:
    """Join words as in a sentence.

    >>> join_words(["a", "b", "c"])
    'a, b and c'
    """
    words = list(items)
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def first_of(texts: Iterable[str], most: int, rest: str = "{:,} more") -> list[str]:
    """Return at most the first texts, and the number of the others in the words of ``rest``.

    >>> first_of(["a", "b", "c"], 1), first_of(["a"], 1)
    (['a', '2 more'], ['a'])
    """
    found = list(texts)
    more = len(found) - most
    return [*found[:most], rest.format(more)] if more > 0 else found


# ---
# Values for JSON.


def as_json(value: Any) -> str:
    """Return a value as JSON text, without NaN and with times as ISO 8601."""
    return json.dumps(plain(value), indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """Convert NaN to None and times to text, recursively."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "isoformat"):
        return None if str(value) == "NaT" else value.isoformat()
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# ---
# Table rows as plain dictionaries.


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a data frame as dictionaries, in order."""
    return cast("list[dict[str, Any]]", frame.to_dict("records") if len(frame) else [])


def dollars(amount: float) -> str:
    """Format an amount in dollars, without cents from 100 on.

    >>> dollars(473.2), dollars(58.45)
    ('473', '58.45')
    """
    return number(amount, 0) if abs(amount) >= 100 else usd(amount)
