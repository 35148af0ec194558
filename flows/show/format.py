"""How values are written on the report page: one form a kind of value, an em dash for what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pandas as pd

MISSING: Final = "—"


def missing(value: Any) -> bool:
    """True for None, NaN, NaT, "" and an empty list."""
    if value is None or (isinstance(value, str | list | tuple) and len(value) == 0):
        return True
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def text(value: Any) -> str:
    """Any value as it is, or the em dash."""
    return MISSING if missing(value) else str(value)


def as_number(value: Any) -> float | None:
    """A finite number as a float, None for anything else."""
    if missing(value) or not isinstance(value, int | float | np.number):
        return None
    found = float(value)
    return found if math.isfinite(found) else None


def number(value: Any, digits: int = 2) -> str:
    """A number with ``digits`` decimals and a comma between thousands; other things as they are.

    >>> number(1234.5), number(-0.25), number(float("nan")), number("n/a")
    ('1,234.50', '−0.25', '—', 'n/a')
    """
    found = as_number(value)
    if found is None:
        return MISSING if isinstance(value, float | np.floating) else text(value)
    return f"{found:,.{digits}f}".replace("-", "−")


def price(value: Any) -> str:
    """A price in USD with two to four decimals.

    >>> price(3.06), price(11.0), price(0.09151)
    ('3.06', '11.00', '0.0915')
    """
    written = number(value, 4)
    return written.removesuffix("0").removesuffix("0") if written[-5:-4] == "." else written


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


def utc(value: Any) -> str:
    """A time to the minute, in UTC; a text that is no time as it is.

    >>> utc("2026-05-04T12:30:00+02:00"), utc(None)
    ('2026-05-04 10:30 UTC', '—')
    """
    if missing(value):
        return MISSING
    try:
        time = pd.Timestamp(value)
    except (ValueError, TypeError):
        return str(value)
    time = time.tz_localize("UTC") if time.tzinfo is None else time.tz_convert("UTC")
    return f"{time:%Y-%m-%d %H:%M} UTC"


def duration(length: pd.Timedelta) -> str:
    """A length of time in the largest unit that divides it well.

    >>> [duration(pd.Timedelta(minutes=m)) for m in (5, 90, 720, 2880)]
    ['5 min', '1.5 h', '12 h', '48 h']
    """
    hours = length / pd.Timedelta(hours=1)
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
