"""Numbers, money, prices, shares and durations as people write and read them; without pandas or NumPy, as help uses it."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd

MISSING: Final = "—"
LARGEST_COUNT: Final = 1_000_000  # Largest accepted number of instances of a market (M1.2)
#: Bounds of the seconds between two observations of a source (M1.2).
SHORTEST_GAP, LONGEST_GAP = 1.0, 366 * 86_400.0
#: Range of years accepted in times of jobs and of command options (M2.8).
EARLIEST_YEAR, LATEST_YEAR = 1970, 2199
#: Longest duration accepted from users.
LONGEST_DAYS: Final = 36_600
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DURATION: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]+)? ?[a-zA-Z]+ ?)+")


def is_number(text: str) -> bool:
    """Return whether a text is a decimal number as people write it, with ASCII digits, a point and an exponent.

    Python and DuckDB read more: digits grouped by underscores, digits of other scripts, ``inf`` and ``nan``.

    >>> [is_number(text) for text in ("8.52", " -1e3 ", "1_0", "0x10", "1,5", "nan", "\uff11\uff10")]
    [True, True, False, False, False, False, False]
    """
    return _NUMBER.fullmatch(text.strip()) is not None


def parsed_number(text: str) -> float:
    """Parse a finite number of `is_number`; raises `ValueError` that describes the problem with any other text.

    >>> parsed_number("1_0")
    Traceback (most recent call last):
    ValueError: '1_0' is not a number such as 8.52
    """
    if not is_number(text) or not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]!r} is not a number such as 8.52")
    return number


def parsed_decimal(text: str) -> Decimal:
    """Parse a number of `is_number` without rounding; raises `ValueError` as `parsed_number` does."""
    if not is_number(text):
        raise ValueError(f"{text[:40]!r} is not a number such as 8.52")
    return Decimal(text.strip())


def parsed_whole(text: str) -> int:
    """Parse a whole number; raises `ValueError` that describes the problem with any other text, and with 2.5.

    >>> parsed_whole("30"), parsed_whole("30.0")
    (30, 30)
    >>> parsed_whole("2.5")
    Traceback (most recent call last):
    ValueError: '2.5' is not a whole number such as 8
    """
    if text.strip().lstrip("+-").isdecimal() and is_number(text):
        return int(text)  # exact beyond 2**53
    if not is_number(text) or not parsed_number(text).is_integer():
        raise ValueError(f"{text[:40]!r} is not a whole number such as 8")
    return int(parsed_number(text))


def parsed_duration(text: str) -> pd.Timedelta:
    """Parse a positive duration; raises `ValueError` that describes the problem with any other text.

    >>> str(parsed_duration("90min")), str(parsed_duration("2d"))
    ('0 days 01:30:00', '2 days 00:00:00')
    >>> parsed_duration("20")
    Traceback (most recent call last):
    ValueError: '20' has no unit; expected a duration such as 20min, 20h or 20d
    """
    import pandas as pd

    plain = text.strip()
    if is_number(plain):
        raise ValueError(
            f"{plain!r} has no unit; expected a duration such as {plain}min, {plain}h or {plain}d"
        )
    wanted = f"{text!r}; expected a duration such as 10min, 12h or 2d"
    if not _DURATION.fullmatch(plain):  # pandas reads 1,5h as 15 h
        raise ValueError(wanted)
    try:
        span = pd.Timedelta(plain.removesuffix("d") + "D" if plain.endswith("d") else plain)
    except (ValueError, OverflowError) as error:
        raise ValueError(wanted) from error
    if not span > pd.Timedelta(0):  # also rejects NaT
        raise ValueError(f"{text!r}; expected a positive duration such as 1h")
    if span > pd.Timedelta(days=LONGEST_DAYS):
        raise ValueError(f"{text!r}; expected at most {LONGEST_DAYS:,} days")
    return span


def missing(value: Any) -> bool:
    """Return True for None, NaN, NaT, "" and an empty list or tuple.

    >>> [missing(value) for value in (None, float("nan"), "", [], 0, False)]
    [True, True, True, True, False, False]
    """
    if value is None or (isinstance(value, str | list | tuple) and len(value) == 0):
        return True
    if isinstance(value, str | list | tuple | dict):
        return False
    return bool(value != value) or str(value) in ("NaT", "<NA>")


def text(value: Any) -> str:
    """Return any value as text, a dash for a missing value."""
    return MISSING if missing(value) else str(value)


def plain_scalar(value: Any) -> Any:
    """Convert a NumPy scalar to a Python scalar; return anything else unchanged."""
    return value.item() if hasattr(value, "item") and not hasattr(value, "isoformat") else value


def as_number(value: Any) -> float | None:
    """Return a finite number as a float, None for anything else (True and False are not numbers)."""
    if missing(value):
        return None
    value = plain_scalar(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def number(value: Any, digits: int = 2) -> str:
    """Format a number with ``digits`` decimals and commas between thousands; other values are returned as text.

    >>> number(1234.5), number(-0.25), number(float("nan")), number("n/a")
    ('1,234.50', '−0.25', '—', 'n/a')
    """
    found = as_number(value)
    if found is None:
        return MISSING if isinstance(plain_scalar(value), float) else text(value)
    return f"{found:,.{digits}f}".replace("-", "−")


def price(value: Any) -> str:
    """Format a price in USD with two to four decimals.

    >>> price(3.06), price(11.0), price(0.09151)
    ('3.06', '11.00', '0.0915')
    """
    written = number(value, 4)
    return written.removesuffix("0").removesuffix("0") if written[-5:-4] == "." else written


def usd(value: Any) -> str:
    """Format an amount of money in cents, or with three significant digits below a tenth of a dollar.

    >>> usd(1234.5), usd(0.01234), usd(-1e-12), usd(-12.345)
    ('1,234.50', '0.0123', '0.00', '−12.35')
    """
    found = as_number(value)
    if found is not None and abs(found) <= ROUNDING:
        return number(0)
    return significant(value) if found and abs(found) < 0.1 else number(value)


def significant(value: Any) -> str:
    """Format a number with three significant digits, for errors whose magnitude is not known beforehand.

    >>> significant(0.01234), significant(12.34), significant(0.0), significant(1234.5)
    ('0.0123', '12.3', '0', '1,234')
    """
    found = as_number(value)
    if not found:
        return MISSING if found is None else "0"
    digits = 2 - math.floor(math.log10(abs(found)))
    return number(found, min(max(digits, 0), 6))


ROUNDING = 1e-6  # Shares below this are errors of rounding


def percent(value: Any) -> str:
    """Format a share of 1 in percent; small shares get a decimal, so that 0.4 % is not shown as 0 %.

    >>> percent(0.25), percent(0.004), percent(0), percent(0.0001), percent(-0.25), percent(None)
    ('25 %', '0.4 %', '0 %', '< 0.1 %', '−25 %', '—')
    >>> percent(-0.0001), percent(-1e-12)
    ('> −0.1 %', '0 %')
    """
    found = as_number(value)
    if found is None:
        return number(value)
    if abs(found) < ROUNDING:
        return "0 %"
    if abs(found) < 0.001:
        return "< 0.1 %" if found > 0 else "> −0.1 %"
    return f"{number(100 * found, 0 if found == 0 or abs(found) >= 0.0995 else 1)} %"


def duration(length: Any) -> str:
    """Format a duration (`datetime.timedelta` or `pandas.Timedelta`) in minutes below one hour, else in hours.

    >>> from datetime import timedelta
    >>> [duration(timedelta(minutes=m)) for m in (5, 90, 720, 2880)]
    ['5 min', '1.5 h', '12 h', '48 h']
    """
    hours = length.total_seconds() / 3600
    return f"{round(60 * hours)} min" if hours < 1 else f"{hours:.1f}".removesuffix(".0") + " h"


def plural(n: int, noun: str) -> str:
    """Format a count with its noun.

    >>> plural(1, "job"), plural(0, "job")
    ('1 job', '0 jobs')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
