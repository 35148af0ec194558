"""Numbers with a stated decimal separator: 8,52 and 1.234,5 (decimal comma), 8.52 and 1,234.5 (decimal point)."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

#: Decimal separator -> characters that may separate thousands, for a regular expression.
_THOUSANDS: Final = {",": ".'\u2019 \u00a0\u202f", ".": ",'\u2019 \u00a0\u202f"}


def with_points(texts: pa.Array, decimal: str) -> tuple[pa.Array, pa.Array]:
    """Return numbers written with a decimal point and no thousands separator, and which texts have digits but are no such number.

    The latter, and texts without digits, stay as they are.

    >>> numbers, bad = with_points(pa.array(["8,52", "1.234,5", "1.852", "1.85", "n/a"]), ",")
    >>> numbers.to_pylist(), bad.to_pylist()
    (['8.52', '1234.5', '1852', '1.85', 'n/a'], [False, False, False, True, False])
    >>> with_points(pa.array(["1,234.50", "1,85"]), ".")[0].to_pylist()
    ['1234.50', '1,85']
    """
    group = f"[{_THOUSANDS[decimal]}]"
    number = rf"^\s*[+-]?([0-9]+|[0-9]{{1,3}}({group}[0-9]{{3}})+)?([{decimal}][0-9]*)?([eE][+-]?[0-9]+)?\s*$"
    is_number = pc.match_substring_regex(texts, number)
    plain = pc.replace_substring_regex(texts, group, "")
    plain = pc.replace_substring(plain, decimal, ".")
    bad = pc.and_not(pc.match_substring_regex(texts, "[0-9]"), is_number)
    return pc.if_else(is_number, plain, texts), pc.fill_null(bad, False)
