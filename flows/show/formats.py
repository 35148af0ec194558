"""How values are written, on terminals and pages alike: one form a kind of value, a dash for what is missing.

Nothing here imports pandas or NumPy: their scalars are recognised by what they can do, so that a help text loads neither.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    import pandas as pd

MISSING: Final = "—"
#: A time as ISO 8601; a person reads it to the minute, in UTC.
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)")


def missing(value: Any) -> bool:
    """True for None, NaN, NaT, "" and an empty list.

    >>> [missing(value) for value in (None, float("nan"), "", [], 0, False)]
    [True, True, True, True, False, False]
    """
    if value is None or (isinstance(value, str | list | tuple) and len(value) == 0):
        return True
    if isinstance(value, str | list | tuple | dict):
        return False
    return bool(value != value) or str(value) in ("NaT", "<NA>")


def text(value: Any) -> str:
    """Any value as it is, or the dash."""
    return MISSING if missing(value) else str(value)


def plain_scalar(value: Any) -> Any:
    """A NumPy scalar as Python's own; anything else as it is."""
    return value.item() if hasattr(value, "item") and not hasattr(value, "isoformat") else value


def as_number(value: Any) -> float | None:
    """A finite number as a float, None for anything else (True and False are no numbers)."""
    if missing(value):
        return None
    value = plain_scalar(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def auto(value: Any) -> str:
    """A value of a kind that is not known beforehand.

    >>> auto(0.123456), auto(True), auto(["a", "b"]), auto("2026-05-04T12:30:00+00:00"), auto(None), auto(12)
    ('0.1235', 'yes', 'a; b', '2026-05-04 12:30', '—', '12')
    """
    if missing(value):
        return MISSING
    value = plain_scalar(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return "; ".join(auto(item) for item in value)
    return time(value) if isinstance(value, datetime) or _TIME.fullmatch(str(value)) else str(value)


def number(value: Any, digits: int = 2) -> str:
    """A number with ``digits`` decimals and a comma between thousands; other things as they are.

    >>> number(1234.5), number(-0.25), number(float("nan")), number("n/a")
    ('1,234.50', '−0.25', '—', 'n/a')
    """
    found = as_number(value)
    if found is None:
        return MISSING if isinstance(plain_scalar(value), float) else text(value)
    return f"{found:,.{digits}f}".replace("-", "−")


def fixed(digits: int) -> Any:
    """The format of numbers with so many decimals.

    >>> fixed(3)(0.5)
    '0.500'
    """
    return lambda value: number(value, digits)


def decimals(digits: int) -> Any:
    """The format of a column in which only some values are fractions: these get so many decimals.

    >>> decimals(2)(0.5), decimals(2)(3), decimals(2)(True), decimals(2)("x")
    ('0.50', '3', 'yes', 'x')
    """

    def written(value: Any) -> str:
        return number(value, digits) if isinstance(plain_scalar(value), float) else auto(value)

    return written


def whole(value: Any) -> str:
    """A count.

    >>> whole(1234), whole(None)
    ('1,234', '—')
    """
    return number(value, 0)


def price(value: Any) -> str:
    """A price in USD with two to four decimals.

    >>> price(3.06), price(11.0), price(0.09151)
    ('3.06', '11.00', '0.0915')
    """
    written = number(value, 4)
    return written.removesuffix("0").removesuffix("0") if written[-5:-4] == "." else written


def usd(value: Any) -> str:
    """An amount of money: cents, or three significant digits below a tenth of a dollar.

    >>> usd(1234.5), usd(0.01234), usd(0), usd(-12.345)
    ('1,234.50', '0.0123', '0.00', '−12.35')
    """
    found = as_number(value)
    return significant(value) if found and abs(found) < 0.1 else number(value)


def significant(value: Any) -> str:
    """A number with three significant digits, for errors whose size is not known beforehand.

    >>> significant(0.01234), significant(12.34), significant(0.0), significant(1234.5)
    ('0.0123', '12.3', '0', '1,234')
    """
    found = as_number(value)
    if not found:
        return MISSING if found is None else "0"
    digits = 2 - math.floor(math.log10(abs(found)))
    return number(found, min(max(digits, 0), 6))


def percent(value: Any) -> str:
    """A share of 1 in percent; small ones with a decimal, so that 0.4 % is not shown as none.

    >>> percent(0.25), percent(0.004), percent(0), percent(0.0001), percent(None)
    ('25 %', '0.4 %', '0 %', '< 0.1 %', '—')
    """
    found = as_number(value)
    if found is None:
        return number(value)
    if 0 < found < 0.001:
        return "< 0.1 %"
    return f"{100 * found:.0f} %" if found == 0 or found >= 0.0995 else f"{100 * found:.1f} %"


def time(value: Any) -> str:
    """A time to the minute in UTC, without the zone (the heading says it); a text that is no time as it is.

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
    """A time to the minute with its zone, for sentences.

    >>> utc("2026-05-04T12:30:00+02:00"), utc(None)
    ('2026-05-04 10:30 UTC', '—')
    """
    written = time(value)
    return f"{written} UTC" if re.fullmatch(r"[\d-]{10} [\d:]{5}", written) else written


def duration(length: Any) -> str:
    """A length of time (`datetime.timedelta` or pandas' own) in the largest unit that divides it well.

    >>> from datetime import timedelta
    >>> [duration(timedelta(minutes=m)) for m in (5, 90, 720, 2880)]
    ['5 min', '1.5 h', '12 h', '48 h']
    """
    hours = length.total_seconds() / 3600
    return f"{round(60 * hours)} min" if hours < 1 else f"{hours:.1f}".removesuffix(".0") + " h"


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers with runs joined.

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


def plural(n: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "job"), plural(0, "job")
    ('1 job', '0 jobs')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def listed(items: Iterable[str]) -> str:
    """Words joined as in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    words = list(items)
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# ---
# Values as JSON has them.


def as_json(value: Any) -> str:
    """One JSON object as text: no NaN, times as ISO 8601."""
    return json.dumps(plain(value), indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """The value with NaN as null and times as text."""
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
    """The rows of a table with named columns, in order."""
    return cast("list[dict[str, Any]]", frame.to_dict("records"))
