"""Conversion of times for the warehouse: time-zone-aware arguments, UTC microseconds in SQL (M1.4)."""

from __future__ import annotations

import datetime as dt
import time

import numpy as np
import pandas as pd

from slackwater.warehouse.errors import SettingsError

_MICROSECOND = pd.Timedelta(microseconds=1)


def moment(at: pd.Timestamp, name: str) -> dt.datetime:
    """Return ``at`` as a UTC datetime; raises `SettingsError` if it has no time zone."""
    if pd.isna(at) or at.tzinfo is None:
        raise SettingsError(f"{name} {at} has no time zone", expected="a UTC time")
    return pd.Timestamp(at).tz_convert("UTC").to_pydatetime(warn=False)


def microseconds(at: pd.Timestamp | pd.Timedelta, name: str) -> int:
    """Return the microseconds since the epoch (of a time) or in a duration, rounded down."""
    if isinstance(at, pd.Timedelta):
        return int(at // _MICROSECOND)
    moment(at, name)
    return int((at - pd.Timestamp(0, tz="UTC")) // _MICROSECOND)


def utc_index(at_us: np.ndarray) -> pd.DatetimeIndex:
    """Convert microseconds since the epoch to a UTC index; negative values are times before 1970."""
    return pd.DatetimeIndex(at_us.astype("datetime64[us]")).tz_localize("UTC")


def steady_seconds() -> float:
    """Return the seconds of a monotonic clock: only for limits on waiting, no result may depend on it (M1.4)."""
    return time.monotonic()
