"""Present time and times of the command line; no other module reads the clock (M1.4)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from slackwater.warehouse.amounts import EARLIEST_YEAR, LATEST_YEAR
from slackwater.warehouse.errors import SettingsError

if TYPE_CHECKING:
    import pandas as pd

_SUCH = "a time such as 2025-10-10T12:00Z"
_ISO = re.compile(r"\d{4}(-\d{2}(-\d{2})?|\d{4})?([T ]|$)")


def now() -> pd.Timestamp:
    """Return the present time in UTC."""
    import pandas as pd

    return pd.Timestamp(datetime.now(UTC))


def check_written(text: str, option: str) -> None:
    """Raise `SettingsError` unless a text looks like an ISO 8601 time, without importing pandas."""
    if not _ISO.match(text.strip()):  # pandas would also accept numbers and words such as "now"
        raise SettingsError(f"{option} {text!r}", expected=_SUCH)


def parse_time(text: str, option: str) -> pd.Timestamp:
    """Return an ISO 8601 time in UTC, rounded down to microseconds; without an offset it is taken as UTC.

    Raises `SettingsError` naming the option, also if the year, in UTC or in the given time zone, is not between
    `EARLIEST_YEAR` and `LATEST_YEAR`.
    """
    check_written(text, option)
    import pandas as pd

    try:
        stamp = pd.Timestamp(text.strip())
        at = stamp.tz_localize("UTC") if stamp.tz is None else stamp.tz_convert("UTC")
    except (ValueError, OverflowError) as error:
        raise SettingsError(f"{option} {text!r}", expected=_SUCH) from error
    if not all(EARLIEST_YEAR <= moment.year <= LATEST_YEAR for moment in (stamp, at)):
        raise SettingsError(
            f"{option} {text!r}", expected=f"a time from the year {EARLIEST_YEAR} to {LATEST_YEAR}"
        )
    return at.floor("us") if at.nanosecond else at  # the warehouse stores microseconds
