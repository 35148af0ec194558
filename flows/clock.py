"""The only place that reads the clock: what the command line takes as "now" (M1.4)."""

from __future__ import annotations

from datetime import UTC, datetime

import pandas as pd

from warehouse.errors import SettingsError


def now() -> pd.Timestamp:
    """The present time, UTC."""
    return pd.Timestamp(datetime.now(UTC))


def parse_time(text: str, option: str) -> pd.Timestamp:
    """An ISO 8601 time, UTC unless it says otherwise; raises `SettingsError` naming the option."""
    try:
        stamp = pd.Timestamp(text)
    except ValueError as error:
        raise SettingsError(f"{option} {text!r}", expected="a time such as 2025-10-10T12:00Z") from error
    if pd.isna(stamp):
        raise SettingsError(f"{option} {text!r}", expected="a time such as 2025-10-10T12:00Z")
    return stamp.tz_localize("UTC") if stamp.tz is None else stamp.tz_convert("UTC")
