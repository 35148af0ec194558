"""Times at the border of the warehouse: aware in, UTC microseconds in SQL (M1.4)."""

from __future__ import annotations

import datetime as dt
import time

import numpy as np
import pandas as pd

from warehouse.errors import SettingsError

_MICROSECOND = pd.Timedelta(microseconds=1)


def moment(at: pd.Timestamp, name: str) -> dt.datetime:
    """``at`` as an aware UTC datetime; raises `SettingsError` if it has no time zone."""
    if pd.isna(at) or at.tzinfo is None:
        raise SettingsError(f"{name} {at} has no time zone", expected="a UTC time")
    return pd.Timestamp(at).tz_convert("UTC").to_pydatetime(warn=False)


def microseconds(at: pd.Timestamp | pd.Timedelta, name: str) -> int:
    """Microseconds since the epoch (of a time) or in a duration, rounded down."""
    if isinstance(at, pd.Timedelta):
        return int(at // _MICROSECOND)
    moment(at, name)
    return int((at - pd.Timestamp(0, tz="UTC")) // _MICROSECOND)


def utc_index(at_us: np.ndarray) -> pd.DatetimeIndex:
    """Microseconds since the epoch as a UTC index; negative ones before 1970 are times too."""
    return pd.DatetimeIndex(at_us.astype("datetime64[us]")).tz_localize("UTC")


def steady_seconds() -> float:
    """Seconds since some moment, only ever forward: for bounds on waiting, no result may depend on it (M1.4)."""
    return time.monotonic()
